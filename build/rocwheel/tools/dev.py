"""The developer's loop: build with local sources, install, test; or run Bazel by hand.

These wheels are not for release: they are snapshots, installed as Bazel made them (no repair), and
only those that changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from rocwheel import bazel, dist
from rocwheel.base import files
from rocwheel.base.container import Mount, devices
from rocwheel.base.errors import CommandError, ConfigError, HostError
from rocwheel.base.here import Here
from rocwheel.base.host import virtualenv
from rocwheel.base.process import Command, GuestPath, Runner
from rocwheel.base.values import Plain, replace
from rocwheel.base.versions import PythonVersion, WheelKind, suggest
from rocwheel.bazel import BazelInvocation
from rocwheel.bazel.invocation import NO_RC
from rocwheel.bazel.remote import quoted, write_headers
from rocwheel.dist.executor import CONFIGURE, output_folder

# What a test may need of the caller's environment; everything else a child sees is fixed.
TEST_ENV: Final = ("GPU_", "HIP_", "HSA_", "JAX_", "ROCR_", "XLA_")
_ABOUT: Final = """
import importlib.metadata, importlib.util, json, sys, sysconfig
# the record of pip: packaging.python.org/en/latest/specifications/direct-url-data-structure
installed = {}
for item in importlib.metadata.distributions():
    origin = json.loads(item.read_text("direct_url.json") or "{}")
    name = item.metadata["Name"].lower().replace("_", "-")
    archive = origin.get("archive_info", {})
    old = archive.get("hash", "").rpartition("sha256=")[2]  # as pip before 23.1 writes it
    installed[name] = archive.get("hashes", {}).get("sha256", old)
free = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
print(json.dumps({
    "python": "%d.%d%s" % (*sys.version_info[:2], free),
    "installed": installed,
    **{name: bool(importlib.util.find_spec(name)) for name in ("pip", "pytest")},
}))
"""


class Loop(Plain, frozen=True, kw_only=True):
    """One turn of the loop: what to build, where to install it, what to run against it."""

    request: dist.Request
    environment: Path  # a virtual environment
    kinds: tuple[WheelKind, ...] = ()  # () is every wheel the sources build
    tests: tuple[Path, ...] = ()
    test_options: tuple[str, ...] = ()


def kinds(names: Sequence[str]) -> tuple[WheelKind, ...]:
    known = tuple(kind.value for kind in WheelKind)
    for name in (name for name in names if name not in known):
        raise ConfigError(f"{name!r}: unknown wheel", hint=suggest(name, known))
    return tuple(map(WheelKind, names))


def turn(loop: Loop, here: Here) -> tuple[bazel.Runs, list[str]]:
    """Build, install what changed, run the tests; return the builds, and what was installed.

    Raises what building raises; HostError for a folder that is no environment; CommandError when
    pip or a test fails.
    """
    runner, console = here.runner, here.console
    planned, hashes = _begin(loop, runner)
    inputs = dist.gather(planned, here)
    with bazel.explained(planned.failures), inputs.place.running(runner) as inside:
        runs = bazel.build_all(
            bazel.invocations(_spec(loop, inputs.spec)),
            folder=loop.request.cache / "logs",
            into=loop.request.cache / "dev" / inputs.spec.output_base.name,
            runner=inside,
            console=console,
        )
    with console.step("Install", key="install"):
        made = {path: files.sha256(path) for path in runs.outputs}
        changed = {path: digest for path, digest in made.items() if digest not in hashes}
        # pip before 23.1 remembers a digest only when it was given one:
        # https://pip.pypa.io/en/stable/news/#v23-1
        what = [f"{path.as_uri()}#sha256={digest}" for path, digest in changed.items()]
        for command in _install(loop, what):
            runner.run(command)
        console.info(f"   {len(changed)} of {len(runs.outputs)} had changed")
    if loop.tests:
        with console.step("Test", key="test"):
            test = _test(loop, inputs.root.root / "lib")
            if code := runner.run(test, on_line=console.info, check=False).returncode:
                why = {1: "a test failed", 5: "no test was collected"}.get(code, f"status {code}")
                hint = "its output is above; --dry-run prints its line"
                raise CommandError(f"pytest: {why}", hint=hint)
    return runs, [path.name for path in changed]


def lines_of_turn(loop: Loop, here: Here) -> Iterator[str]:
    """Yield every command `turn` would run; changes nothing."""
    planned, _ = _begin(loop, here.runner)
    seen, environ = dist.gather(planned, here, fetch=False), loop.request.environ
    yield from dist.fetching(seen, here)
    yield from (f"# {note}" for note in seen.notes)
    for title, command in seen.commands(bazel.invocations(_spec(loop, seen.spec)), here):
        yield f"# {title}"
        yield dist.pasteable(command, environ)
    for command in _install(loop, ["WHEEL..."]):
        yield f"# then, with the wheels that changed: {command}"
    if loop.tests:
        yield dist.pasteable(_test(loop, seen.rocm_root / "lib"), environ)


def configure(
    request: dist.Request, here: Here, *, rc_file: Path | None, dry_run: bool = False
) -> tuple[Path, list[str]]:
    """Write the options of a build into an rc file outside the checkout; return it, and lines.

    The lines run Bazel by hand with it. Output base and caches are rocwheel's, so neither rebuilds
    what the other built. The lines of a dry run, which writes nothing, first bring what they need.
    Raises ConfigError for a file below the workspace.
    """
    planned = dist.plan(replace(request, allow_dirty=True))
    inputs = dist.gather(planned, here, fetch=not dry_run)
    path = rc_file or _default_rc(request, inputs.spec)
    if path.resolve().is_relative_to(inputs.tree.root.resolve()):
        raise ConfigError(
            f"{path}: lies in the checkout, which a build leaves clean",
            hint="choose a place outside of it, or drop --output",
        )
    invocations = bazel.invocations(inputs.spec)
    lines: list[str] = []
    if dry_run:
        lines += [*dist.fetching(inputs, here), *(f"# {note}" for note in inputs.notes)]
        lines += [f"# write {path}", *dist.writing(path, _rc_lines(invocations))]
        if inputs.spec.remote.rc_file(output_folder(request)):
            lines.append(
                "# the headers of the remote cache are secret: a real run writes their file"
            )
    else:
        _write_rc(request, inputs.spec, path)
    place = inputs.place.with_mounts(Mount(host=path.parent, guest=CONFIGURE))
    place, opening = place.opened(here.runner)
    by_hand = [_by_hand(invocation, place.path(path)) for invocation in invocations]
    commands = [*opening, *(place.command(each, n) for n, each in enumerate(by_hand, 1))]
    return path, lines + [dist.pasteable(command, request.environ) for command in commands]


def shell(request: dist.Request, words: Sequence[str], here: Here, *, tty: bool) -> int:
    """Run a command, such as a shell, where a build would run, with GPUs, on our own terminal."""
    if request.executor.kind == "host":
        raise ConfigError(
            "this opens a build's container, and builds run on this machine",
            hint="add --executor=docker or podman with --builder-image",
        )
    executor = replace(request.executor, devices=devices())
    planned = dist.plan(replace(request, executor=executor, allow_dirty=True))
    inputs = dist.gather(planned, here)
    rc_file = _default_rc(request, inputs.spec)
    place = inputs.place.with_mounts(Mount(host=rc_file.parent, guest=CONFIGURE))
    for invocation in _write_rc(request, inputs.spec, rc_file):
        here.console.info(f"   {_by_hand(invocation, place.path(rc_file))}")
    with place.running(here.runner) as inside:
        command = Command(argv=tuple(words), cwd=inputs.spec.workspace)
        return inside.interact(command, tty=tty)


def _write_rc(
    request: dist.Request, spec: bazel.BuildSpec, path: Path
) -> tuple[BazelInvocation, ...]:
    planned = bazel.invocations(spec)
    write_headers(spec.remote, output_folder(request))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(_rc_lines(planned)) + "\n", encoding="utf-8")
    return planned


def _default_rc(request: dist.Request, spec: bazel.BuildSpec) -> Path:
    return request.cache / "configure" / f"{spec.output_base.name}.bazelrc"


def _spec(loop: Loop, spec: bazel.BuildSpec) -> bazel.BuildSpec:
    """Return a specification without date or commit: a new version would be a reason to rebuild."""
    return replace(
        spec, kinds=loop.kinds or spec.kinds, wheel_type="snapshot", wheel_suffix="", git_hash=""
    )


def _rc_lines(planned: Sequence[BazelInvocation]) -> list[str]:
    lines = ["# Written by `rocwheel dev configure`. Each config is one of its command lines."]
    for option in planned[0].startup:
        name, _, value = option.partition("=")
        if name == "--bazelrc":  # read after the workspace's own, as on a command line
            lines.append(f"import {value if value.startswith('/') else f'%workspace%/{value}'}")
        elif name not in NO_RC:  # which only a command line can say
            lines.append(f"startup {quoted(option)}")
    for invocation in planned:
        lines.append(f"# {invocation.title}")
        lines += [f"build:{_config(invocation)} {quoted(item)}" for item in invocation.options]
    return lines


def _config(invocation: BazelInvocation) -> str:
    kinds = "_".join(kind.value for kind in invocation.kinds)
    return f"{kinds}_{invocation.python.abi}"


def _by_hand(invocation: BazelInvocation, rc_file: GuestPath) -> Command:
    return Command(
        argv=(
            str(invocation.spec.bazel.path),
            *NO_RC,
            f"--bazelrc={rc_file}",
            "build",
            f"--config={_config(invocation)}",
            *invocation.targets.values(),
        ),
        cwd=invocation.spec.workspace,
    )


def _begin(loop: Loop, runner: Runner) -> tuple[dist.Plan, frozenset[str]]:
    environment = loop.environment
    python = environment / "bin" / "python"
    if not python.is_file():
        other = environment if not environment.exists() else environment.parent / "venv"
        raise HostError(
            f"{environment}: no virtual environment", hint=f"make one: python3 -m venv {other}"
        )
    answer = json.loads(runner.capture(Command(argv=(str(python), "-c", _ABOUT), timeout=60)))
    installed: Mapping[str, str] = answer["installed"]
    needed = {
        "pip": "python -m ensurepip",
        **({"pytest": "pip install pytest"} if loop.tests else {}),
    }
    for name, line in needed.items():
        if not answer[name]:
            hint = f"bring it: {environment / 'bin'}/{line}"
            raise HostError(f"{environment}: has no {name}", hint=hint)
    for test in loop.tests:
        if not test.exists():
            raise ConfigError(f"{test}: no such file", hint="check --test")
    pythons = (PythonVersion.parse(answer["python"]),)
    request = replace(loop.request, pythons=pythons, allow_dirty=True, is_snapshot=True)
    return dist.plan(request), frozenset(filter(None, installed.values()))


def _install(loop: Loop, changed: Sequence[str]) -> list[Command]:
    if not changed:
        return []
    python = str(loop.environment / "bin" / "python")
    how = ("--no-deps", "--no-index", "--force-reinstall")
    return [virtualenv.pip("install", *how, *changed, python=python)]


def _test(loop: Loop, library: Path) -> Command:
    environ = loop.request.environ
    passed = {name: value for name, value in environ.items() if name.startswith(TEST_ENV)}
    search = ":".join(filter(None, (str(library), environ.get("LD_LIBRARY_PATH", ""))))
    python = str(loop.environment / "bin" / "python")
    return Command(
        argv=(python, "-m", "pytest", *map(str, loop.tests), *loop.test_options),
        cwd=loop.request.cwd,
        env={**passed, "LD_LIBRARY_PATH": search, "PYTHONUNBUFFERED": "1"},
    )
