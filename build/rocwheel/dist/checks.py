"""What would make a build fail after an hour, looked for before Bazel starts.

Every config, flag and label that Bazel will be given is looked up in the tree's own rc and BUILD
files; the compiler and linker that follow from them must exist; the ROCm tree must have what the
build rules of this JAX version look for. What is missing is told all at once.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocwheel import bazel, rocm, source
from rocwheel.errors import HostError, RocmError, SourceError
from rocwheel.process import Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rocwheel.process import Runner

COMPILER: Final = "CLANG_COMPILER_PATH"  # what XLA's rocm_configure.bzl compiles host code with
HERMETIC: Final = "USE_HERMETIC_CC_TOOLCHAIN"  # "0" where a config turns to the machine's compiler


def check_options(tree: source.SourceTree, planned: tuple[bazel.BazelInvocation, ...]) -> None:
    """Look up every config and every flag of this tree. Raises SourceError, naming all missing."""
    if tree.rc is None:  # the tree is not here yet
        return
    missing: dict[str, str] = {}
    for invocation in planned:
        for option in invocation.recipe:
            name, _, value = option.partition("=")
            if name == "--config" and value not in tree.rc.configs(invocation.command):
                missing[option] = "no rc file of the tree defines it"
            elif name.startswith("--//") and not source.has_target(tree.workspace, name[2:]):
                missing[option] = "no BUILD file of the tree has it"
    if missing:
        raise SourceError(
            f"{tree.root}: JAX {tree.jax_version} was to be built with options it does not have",
            hint="check out a whole release, or add a class to ci/layouts.yaml",
            detail="\n".join(f"{option}: {problem}" for option, problem in missing.items()),
        )


def check_toolchain(
    tree: source.SourceTree,
    spec: bazel.BuildSpec,
    planned: tuple[bazel.BazelInvocation, ...],
    *,
    environ: Mapping[str, str],
    runner: Runner,
) -> Iterator[str]:
    """Look for the compiler and the linker the ROCm wheels will really get; yields warnings.

    Raises HostError for one that is not there. Of a tree that is not here yet, the class is known.
    """
    if tree.rc is None:
        if spec.compiler.cc:
            _check_linker(tree.version_class.linker, str(spec.compiler.cc), runner=runner)
        elif not tree.version_class.own_clang:
            yield (
                f"--compiler hermetic: JAX {tree.jax_version} compiles its ROCm wheels with the "
                "compiler of this machine that its rc file names"
            )
        return
    for invocation in planned:
        if not any(kind.needs_rocm for kind in invocation.kinds):
            continue
        options = tree.rc.flatten(invocation.command, invocation.recipe)
        values = source.variables(options)
        if values.get(HERMETIC) != "0":
            continue
        compiler = values.get(COMPILER, "")
        if compiler and spec.compiler.kind == "hermetic":
            yield (
                f"--compiler hermetic: JAX {tree.jax_version} compiles its ROCm wheels with this "
                f"machine's {compiler} all the same"
            )
        if compiler and not _is_there(compiler, environ, runner):
            raise HostError(
                f"{compiler}: not found; JAX {tree.jax_version} compiles its ROCm wheels with it",
                hint="apt-get install clang-18, or --compiler clang for the machine's own",
            )
        if compiler:
            for linker in _linkers(tree, options):
                _check_linker(linker, compiler, runner=runner)
        return  # the other invocations differ in the CPython alone


def _linkers(tree: source.SourceTree, options: tuple[str, ...]) -> set[str]:
    """The linkers that the ROCm toolchain and the tree's rc files ask for."""
    prefix = "-fuse-ld="
    asked = {
        value.removeprefix(prefix)
        for option in options
        if (value := option.partition("=")[2]).startswith(prefix)
    }
    return {tree.version_class.linker, *asked}


def _check_linker(linker: str, compiler: str, *, runner: Runner) -> None:
    """Ask the compiler itself where it would find the linker."""
    name = f"ld.{linker}"
    said = runner.capture(Command(argv=(compiler, f"-print-prog-name={name}"), timeout=60)).strip()
    if not Path(said).is_absolute() and not _is_there(
        said, {"PATH": "/usr/bin:/bin"}, runner
    ):
        package = {"gold": "binutils", "lld": "lld"}[linker]
        raise HostError(
            f"{name}: {compiler} does not find it, and the ROCm toolchain links with it",
            hint=f"apt-get install {package} (or dnf install {package})",
        )


def check_rocm(tree: source.SourceTree, root: rocm.RocmRoot) -> None:
    """What XLA's repository rules look for in ROCm. Raises RocmError with the list."""
    missing = rocm.missing(root.root, tree.version_class.needs.paths)
    if missing:
        raise RocmError(
            f"{root.name}: lacks {len(missing)} of the files JAX {tree.jax_version} looks for",
            hint="use a whole TheRock distribution, with its development headers",
            detail="\n".join(missing),
        )


def check_programs(
    tree: source.SourceTree, *, environ: Mapping[str, str], runner: Runner
) -> None:
    """Programs that JAX's build rules run. Raises HostError with the list of missing ones."""
    needed = tree.version_class.needs.programs
    programs = [name for name in needed if not _is_there(name, environ, runner)]
    if programs:
        raise HostError(
            f"{', '.join(programs)}: not found; JAX's build rules run it",
            hint="apt-get install binutils",
        )


def odd_options(spec: bazel.BuildSpec, *, home: str) -> Iterator[str]:
    """Warnings about options that probably do not mean what was meant."""
    for option in spec.options:
        if " --" in option:
            yield f"{option!r}: one option for Bazel, not two; give --bazel-options once for each"
    root = str(spec.rocm_root or "")
    if spec.remote.options and home and root.startswith(f"{home.rstrip('/')}/"):
        yield (
            f"{root}: lies in a home folder, so nobody else shares what the remote cache keeps; "
            "give all who share it one --rocm-dir"
        )


def _is_there(program: str, environ: Mapping[str, str], runner: Runner) -> bool:
    """Whether a program can be started where `runner` runs commands."""
    if not runner.isolated:
        return shutil.which(program, path=environ.get("PATH", "")) is not None
    ask = Command(argv=("/bin/sh", "-c", 'command -v "$0" > /dev/null', program), timeout=60)
    return runner.run(ask, check=False).returncode == 0
