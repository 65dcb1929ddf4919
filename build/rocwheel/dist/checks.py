"""Checks before Bazel starts for what would make a build fail after an hour.

Every config, flag and label that Bazel will be given is looked up in the tree's own rc and BUILD
files; the compiler and linker that follow from them must exist; the ROCm tree must have what the
build rules of this JAX version look for. One error lists all that is missing.
"""

import re
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from rocwheel import bazel, rocm, source
from rocwheel.base.errors import CommandError, ConfigError, HostError, RocmError, SourceError
from rocwheel.base.host.machine import Programs
from rocwheel.base.process import Command, Runner
from rocwheel.base.versions import gfx_target, suggest
from rocwheel.dist.build_request import Plan

COMPILER: Final = "CLANG_COMPILER_PATH"  # what XLA's rocm_configure.bzl compiles host code with
# Sources that include ROCm's headers: of JAX, and of an XLA (https://github.com/openxla/xla).
VENDOR: Final = "jaxlib/gpu/vendor.h"
XLA_WRAPPERS: Final = "xla/stream_executor/rocm/*.h"
CLANGS: Final = ("lib/llvm/bin/clang++", "llvm/bin/clang++")
PREPROCESS: Final = (
    *("-x", "c++", "-std=c++17", "-M", "-MG", "-w"),
    *("-DJAX_GPU_HIP=1", "-D__HIP_PLATFORM_AMD__=1", "-DTENSORFLOW_USE_ROCM=1"),
)
ROCM_CONFIG: Final = """\
#include "rocm/include/rocm-core/rocm_version.h"
#define TF_ROCM_VERSION \\
  (ROCM_VERSION_MAJOR * 10000 + ROCM_VERSION_MINOR * 100 + ROCM_VERSION_PATCH)
"""  # XLA's rocm_configure.bzl writes a number
OF_ROCM: Final = re.compile(r"(amd|hip|miopen|rccl|roc)[\w-]*/\S+\.h(pp)?\Z")
# Debian's and Fedora's package for a program that is missing.
PACKAGES: Final = {
    "clang": ("clang lld", "clang lld"),
    "ld.lld": ("lld", "lld"),
    "ld.gold": ("binutils", "binutils-gold"),
    "readelf": ("binutils", "binutils"),
    "git": ("git", "git"),
    "python3": ("python3", "python3"),
    "bash": ("bash", "bash"),
    "which": ("debianutils", "which"),
}
HERMETIC: Final = "USE_HERMETIC_CC_TOOLCHAIN"  # "0" where a config turns to the machine's compiler
_ENV: Final = r"--(?:repo|action|host_action|client)_env="
# What an option of rocwheel decides: variables of Bazel's, options, and those before the command.
_OWNED: Final = (
    (_ENV + r"HERMETIC_PYTHON_VERSION(=|\Z)", "--python-versions"),
    (r"--@rules_python//python/config_settings:py_freethreaded\b", "--python-versions"),
    (_ENV + r"ML_WHEEL_\w+(=|\Z)", "--wheel-suffix"),
    (
        (_ENV + r"(ROCM_PATH|ROCM_DISTRO_\w+|TF_ROCM_MULTIPLE_PATHS|TF_NEED_ROCM)(=|\Z)"),
        "--therock-path",
    ),
    (_ENV + r"TF_ROCM_AMDGPU_TARGETS(=|\Z)", "--gfx-targets or --family"),
    (r"--(?:override_(?:repository|module)|inject_repository)=xla=", "--xla-source-dir"),
    (r"--build_event_json_file\b", "rocwheel itself, which finds the wheels with it"),
)
_OWNED_STARTUP: Final = (
    (r"--output_(?:base|user_root)\b", "--cache-dir"),
    (r"--(?:noworkspace_rc|ignore_all_rc_files)\b|--workspace_rc=(?:0|no|false)", "the tree"),
)


def check_own_options(tree: source.SourceTree, spec: bazel.BuildSpec) -> None:
    """Refuse a user's Bazel option that would silently undo another option.

    A config counts as the options it contains. JAX's own build refuses HERMETIC_PYTHON_VERSION
    there too; a distribution of ROCm named by variable goes before ROCM_PATH in XLA's
    rocm_configure.bzl. Raises ConfigError.
    """
    startup = source.joined(spec.startup_options)
    for before, word in (*pairwise(("", *spec.options)), *pairwise(("", *startup))):
        value = before.startswith("-") and "=" not in before  # of an option in two words
        if word == "--" or re.match(r"--?[\w@/:.+-]+\s", word) or (word[:1] != "-" and not value):
            raise ConfigError(
                f"{word!r}: not one option as Bazel takes it",
                hint="write --bazel-options=--NAME=VALUE, without quotes that a shell has left",
            )
    for option in startup:
        _refuse(option, option, _OWNED_STARTUP)
    rc = _rc_files(tree, startup)
    personal = {str(tree.root / name) for name in tree.layout.personal}
    for line in rc.lines if rc else ():
        if not line.config and line.where.rpartition(":")[0] in personal:
            for option in line.options:
                _refuse(option, line.where, _OWNED)
    for option in source.joined(spec.options):
        name, _, config = option.partition("=")
        if rc and name == "--config" and config not in rc.configs:
            raise ConfigError(
                f"{option}: no rc file of {tree.root} defines it",
                hint=suggest(config, sorted(rc.configs)),
            )
        for item in rc.expand((option,)) if rc else (option,):
            _refuse(item, option, _OWNED)


def _rc_files(tree: source.SourceTree, startup: tuple[str, ...]) -> source.RcFiles | None:
    named = [item.partition("=")[2] for item in startup if item.startswith("--bazelrc=")]
    if tree.rc is None or not named:
        return tree.rc
    for name in named:
        if not (tree.workspace / name).is_file():
            raise ConfigError(f"{name}: no such file, for Bazel to read", hint="name an rc file")
    return source.read_rc(tree.workspace, (*tree.version_class.startup_files, *named))


def _refuse(item: str, given: str, owned: tuple[tuple[str, str], ...]) -> None:
    plain = item.replace('"', "").replace("'", "")
    for pattern, decides in owned:
        if re.match(pattern, plain):
            held = "" if item == given else f"{given} holds "
            raise ConfigError(
                f"{held}{item}: decided by {decides}",
                hint="leave it out of Bazel's options, and use rocwheel's own option",
            )


def check_options(tree: source.SourceTree, planned: tuple[bazel.BazelInvocation, ...]) -> None:
    """Look up every config and every flag of this tree. Raises SourceError, naming all missing."""
    if tree.rc is None:  # the tree is not here yet
        return
    missing: dict[str, str] = {}
    for invocation in planned:
        for option in invocation.recipe:
            name, _, value = option.partition("=")
            if name == "--config" and value not in tree.rc.configs:
                missing[option] = "no rc file of the tree defines it"
            elif name.startswith("--//") and not source.has_target(tree.workspace, name[2:]):
                missing[option] = "no BUILD file of the tree has it"
    if missing:
        raise SourceError(
            f"{tree.root}: JAX {tree.jax_version} lacks options that its class needs",
            hint="check out a whole release, or add a class to ci/layouts.yaml",
            detail="\n".join(f"{option}: {problem}" for option, problem in missing.items()),
        )


def check_toolchain(
    tree: source.SourceTree,
    spec: bazel.BuildSpec,
    planned: tuple[bazel.BazelInvocation, ...],
    *,
    programs: Programs,
) -> Iterator[str]:
    """Look for the compiler and the linker that the ROCm wheels really get; yields warnings.

    Raises HostError for a missing one. The class is known even if the tree is not here yet.
    """
    rc = _rc_files(tree, source.joined(spec.startup_options))
    if rc is None:
        if spec.compiler.cc:
            _check_linker(tree.version_class.linker, str(spec.compiler.cc), programs)
        elif not tree.version_class.own_clang:
            yield (
                f"--compiler hermetic: JAX {tree.jax_version} compiles its ROCm wheels with the "
                "compiler of this machine that its rc file names"
            )
        return
    with_rocm = (item for item in planned if any(kind.needs_rocm for kind in item.kinds))
    for invocation in with_rocm:
        given = (*invocation.recipe, *source.joined(spec.options))
        options = rc.flatten(given)
        values = source.variables(options)
        if values.get(HERMETIC) != "0":
            continue
        compiler = values.get(COMPILER, "")
        if compiler and spec.compiler.kind == "hermetic":
            yield (
                f"--compiler hermetic: JAX {tree.jax_version} compiles its ROCm wheels with this "
                f"machine's {compiler} all the same"
            )
        if compiler and not programs.has(compiler):
            raise HostError(
                f"{compiler}: not found; JAX {tree.jax_version} compiles its ROCm wheels with it",
                hint="apt-get install clang-18, or --compiler clang for the machine's own",
            )
        if compiler:
            # the ROCm toolchain and the tree's rc files ask for linkers
            values_of = (option.partition("=")[2].partition("-fuse-ld=") for option in options)
            asked = {linker for before, _, linker in values_of if linker and not before}
            for linker in {tree.version_class.linker, *asked}:
                _check_linker(linker, compiler, programs)
        return  # the other invocations differ in the CPython alone


def host_compilers(
    tree: source.SourceTree, spec: bazel.BuildSpec, planned: tuple[bazel.BazelInvocation, ...]
) -> set[str]:
    """Return the compilers of the machine that a build runs, as its options name them."""
    rc = _rc_files(tree, source.joined(spec.startup_options))
    named = {str(path) for path in (spec.compiler.cc, spec.compiler.cxx) if path}
    for invocation in planned:
        given = (*invocation.recipe, *source.joined(spec.options))
        values = source.variables(rc.flatten(given) if rc else given)
        named.add(values.get("CC", ""))
        if values.get(HERMETIC) == "0":
            named.add(values.get(COMPILER, ""))
    return named


def _check_linker(linker: str, compiler: str, programs: Programs) -> None:
    """Ask the compiler itself where it would find the linker.

    clang looks on its path too and prints a bare name only for a missing program.
    """
    name = f"ld.{linker}"
    asked = Command(argv=(compiler, f"-print-prog-name={name}"), timeout=60)
    printed = programs.runner.capture(asked).strip()
    if not Path(printed).is_absolute():
        debian, fedora = PACKAGES[name]
        raise HostError(
            f"{name}: {compiler} does not find it, and the ROCm toolchain links with it",
            hint=f"apt-get install {debian} (or dnf install {fedora})",
        )


def check_rocm(
    tree: source.SourceTree, root: Path, *, name: str, targets: tuple[str, ...], runner: Runner
) -> None:
    """Look for the files of ROCm that XLA's repository rules and the tree's sources need.

    ROCm's clang must also compile. Raises RocmError with the list of what is missing.
    """
    missing = rocm.missing(root, tree.version_class.needs)
    missing = tuple(dict.fromkeys((*missing, *lacking_headers(tree, root, runner))))
    hint = rocm.of_packages(root)
    if not hint and (lines := rocm.linking(root, missing)):
        hint = f"{lines}; or name the tarball, whose copy gets these links"
    hint = hint or "use a whole TheRock distribution, with its development headers"
    if missing:
        raise RocmError(
            f"{name}: lacks {len(missing)} of the files JAX {tree.jax_version} looks for",
            hint=hint,
            detail="\n".join(missing),
        )
    if refused := rocm.uncompiled(root, targets, runner=runner):
        if len(refused) < len(targets):
            hint = "leave them out of --family or --gfx-targets, or use a ROCm that has them"
        raise RocmError(
            f"{name}: its clang compiles nothing for {len(refused)} of {len(targets)} gfx targets",
            hint=hint,
            detail="\n".join(refused),
        )


def lacking_headers(tree: source.SourceTree, root: Path, runner: Runner) -> list[str]:
    """Return the headers of ROCm that the tree's sources include and `root` lacks.

    The ROCm's own clang preprocesses JAX's `vendor.h` and the wrappers of ROCm's libraries in an
    XLA given by folder. With `-MG` it lists missing headers as well. Without such sources, or where
    that clang does not run, the list is empty.
    """
    own = tree.xla_dir.glob(XLA_WRAPPERS) if tree.xla_dir else ()
    sources = [path for path in (tree.workspace / VENDOR, *sorted(own)) if path.is_file()]
    clang = next((root / path for path in CLANGS if (root / path).is_file()), None)
    if not sources or clang is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rocm").mkdir()
        (Path(folder) / "rocm" / "include").symlink_to(root / "include")
        (Path(folder) / "rocm" / "rocm_config.h").write_text(ROCM_CONFIG)
        unit = Path(folder) / "unit.cc"
        unit.write_text("".join(f'#include "{path}"\n' for path in sources))
        searched = (f"-I{folder}", f"-I{root / 'include'}")
        command = Command(argv=(str(clang), *PREPROCESS, *searched, str(unit)), timeout=120)
        try:
            printed = runner.capture(command)
        except (CommandError, HostError):
            return []
    names = (word.removeprefix("rocm/include/") for word in printed.split())
    return [f"include/{name}" for name in names if OF_ROCM.match(name)]


def check_programs(tree: source.SourceTree, programs: Programs) -> None:
    """Look for the programs that JAX's build rules run. Raises HostError with missing ones."""
    needed = tree.version_class.needs.programs
    missing = [name for name in needed if not programs.has(name)]
    if missing:
        packages = dict.fromkeys(PACKAGES[name][0] for name in missing if name in PACKAGES)
        raise HostError(
            f"{', '.join(missing)}: not found; JAX's build rules run it",
            hint=f"apt-get install {' '.join(packages)}",
        )


def option_warnings(planned: Plan, spec: bazel.BuildSpec) -> Iterator[str]:
    """Yield warnings about options that are probably mistakes."""
    home = planned.request.environ.get("HOME", "")
    family = planned.rocm.family
    if family and (others := sorted({*map(gfx_target, spec.gfx_targets)} - {*family.targets})):
        yield (
            f"{planned.rocm.name}: its libraries have no code for {', '.join(others)}; "
            f"{family.name} is {', '.join(family.targets)}"
        )
    for option in spec.options:
        if " --" in option:
            yield f"{option!r}: one option for Bazel, not two; give --bazel-options once for each"
    root = str(spec.rocm_root)
    if spec.remote.options and home and root.startswith(f"{home.rstrip('/')}/"):
        yield (
            f"{root}: lies in a home folder, so no other user shares what the remote cache keeps; "
            "give all who share it one --rocm-dir"
        )
