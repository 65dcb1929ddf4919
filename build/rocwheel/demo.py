"""The whole main job on the miniature workspace, from a tarball over HTTP to `import`.

It makes a TheRock-like tarball from this machine's packages, serves it on loopback, lets
`rocwheel.dist` build the wheel set as it would for JAX, installs the wheels into fresh
environments with pip, and imports them. Nothing of it is special-cased below this module: the
only differences to a real run are the options it passes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import json
import shutil
import sys
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocwheel import dist
from rocwheel.console import silent
from rocwheel.container import Mount
from rocwheel.dist import executor
from rocwheel.errors import HostError, WheelError
from rocwheel.host import debian, machine
from rocwheel.model import WheelKind, module_name
from rocwheel.process import Command
from rocwheel.store import sha256_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rocwheel.console import Console
    from rocwheel.home import Home
    from rocwheel.process import GuestPath, HostRunner, Runner

ROCM_VERSION: Final = "7.10.0a20251120"
TARGETS: Final = ("gfx90a", "gfx942", "gfx1100", "gfx1201")
TARBALL: Final = f"therock-dist-linux-miniature-{ROCM_VERSION}.tar.gz"


@dataclass(frozen=True, kw_only=True)
class Installed:
    """What an environment said after installing and importing the wheels."""

    python: str
    modules: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished demo."""

    built: dist.Result
    installed: tuple[Installed, ...]


def miniature(home: Home) -> Path:
    """The folder of the miniature workspace."""
    return home.root / "examples" / "miniature"


def install_packages(*, runner: HostRunner, console: Console, root: bool) -> None:
    """Install the system packages the miniature workspace needs. Raises HostError."""
    with console.step("System packages", key="system_packages"):
        packages = debian.MINIATURE_PACKAGES
        if not debian.ensure(packages, runner=runner, root=root, say=console.info):
            console.info("   all there")


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a demo asks of `dist`, except for where the tarball is; where it builds, with what."""

    request: dist.Request
    place: executor.Place
    interpreters: tuple[machine.Interpreter, ...]


def prepare(
    base: dist.Request, *, runner: HostRunner, console: Console, pull: bool = True
) -> Prepared:
    """Fill in a request: the miniature's own options, and all CPythons that have headers.

    CPythons that were asked for are kept. Raises HostError when one is missing, or there is none.
    """
    place = executor.choose(base, runner=runner, console=console, pull=pull)
    found = {
        item.version: item
        for item in place.interpreters(base, runner=runner)
        if item.headers and not item.version.free_threaded
    }
    wanted = base.pythons or tuple(found)
    missing = [str(version) for version in wanted if version not in found]
    if missing or not wanted:
        raise HostError(
            f"CPython {', '.join(missing) or '3.10-3.14'}: not found with its headers (Python.h)",
            hint="install python3-dev, or choose another: --python-versions",
        )
    interpreters = tuple(found[version] for version in wanted)
    filled = dataclasses.replace(
        base,
        pythons=wanted,
        rocm_version=ROCM_VERSION,
        gfx_targets=base.gfx_targets or TARGETS,
        jax_source_dir=miniature(base.home) / "workspace",
        jaxlib="built",
        compiler="clang",
        compiler_path=base.compiler_path,
        bazel_options=("--config=debian_bazel", *base.bazel_options),
        machine_options=(
            # The miniature downloads no compiler: its hermetic route takes what CC names.
            f"--repo_env=CC={place.clang(base.environ)}",
            *(
                f"--repo_env=MINIATURE_PYTHON_{item.version.major}_{item.version.minor}"
                f"={item.executable}"
                for item in interpreters
            ),
        ),
        allow_dirty=True,
    )
    return Prepared(request=filled, place=place, interpreters=interpreters)


def run(base: dist.Request, *, runner: HostRunner, console: Console, root: bool) -> Result:
    """Do everything; raises what the stages raise."""
    install_packages(runner=runner, console=console, root=root)
    prepared = prepare(base, runner=runner, console=console)
    wanted = prepared.request
    with console.step("Make a ROCm tarball from this machine's packages", key="tarball"):
        tarball = make_tarball(miniature(base.home), wanted.cache, runner=runner, console=console)
    with serve(tarball.parent) as url:
        console.info(f"serving {tarball.name} at {url}")
        ready = dataclasses.replace(
            wanted, therock=f"{url}/{tarball.name}", therock_sha256=sha256_of(tarball)
        )
        built = dist.build(dist.plan(ready), runner=runner, console=console, place=prepared.place)
    with console.step("Install with pip and import, in fresh environments", key="install"):
        place = prepared.place.with_mounts(
            Mount(host=built.wheelhouse, guest=executor.WHEELHOUSE),
            Mount(host=built.rocm_root, guest=executor.ROCM),
        )
        with place.running(runner) as inside:
            installed = tuple(
                install(built, interpreter, tool=place.tool, runner=inside)
                for interpreter in prepared.interpreters
            )
        for item in installed:
            console.info(f"   CPython {item.python}: imported {', '.join(item.modules)}")
    return Result(built=built, installed=installed)


def dry_run(base: dist.Request, *, runner: HostRunner) -> Iterator[str]:
    """What `run` would do, as lines; asks for CPythons and packages, changes nothing."""
    missing = debian.missing(debian.MINIATURE_PACKAGES, runner=runner) if debian.present() else ()
    for command in debian.install_commands(missing) if missing else ():
        yield str(command)
    prepared = prepare(base, runner=runner, console=silent(), pull=False)
    wanted = prepared.request
    tarball = wanted.cache / "demo" / TARBALL
    yield str(_making(miniature(base.home), tarball))
    yield f"# serve {tarball.parent} on a free loopback port while dist_wheels runs:"
    served = dataclasses.replace(wanted, therock=f"http://localhost/{TARBALL}")
    yield from dist.dry_run(dist.plan(served), runner=runner, place=prepared.place)
    yield "# install the wheels with pip into a fresh environment per CPython, import them"


def make_tarball(folder: Path, cache: Path, *, runner: HostRunner, console: Console) -> Path:
    """The tarball, made again only when its script or a package it is made from changed."""
    script = folder / "make_therock.py"
    digest = hashlib.sha256()
    for file in sorted([script, *(folder / "therock").glob("*")]):
        digest.update(file.read_bytes())
    query = ("dpkg-query", "--show", *debian.MINIATURE_PACKAGES)
    digest.update(runner.capture(Command(argv=query)).encode())
    target = cache / "demo" / digest.hexdigest()[:16] / TARBALL
    if target.exists():
        console.info(f"   unchanged: {target}")
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=target.parent))
    try:
        made = scratch / TARBALL
        runner.run(_making(folder, made), on_line=lambda line: console.detail(f"   {line}"))
        made.replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _making(folder: Path, tarball: Path) -> Command:
    script = str(folder / "make_therock.py")
    return Command(
        argv=(sys.executable, script, "--output", str(tarball), "--rocm-version", ROCM_VERSION)
    )


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve a folder over HTTP on a free loopback port; gives the URL."""
    handler = partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_args: object) -> None:
        """Say nothing: the client reports what it got."""


# What an environment must be able to do with the wheels: import every module of them, call into
# the compiled code, find the plugin through its entry point as JAX does.
_CHECK: Final = """
import importlib, importlib.metadata, json, sys
jaxlib, plugin, pjrt = map(importlib.import_module, json.loads(sys.argv[1]))
assert jaxlib.dot([1.0, 2.0], [3.0, 4.0]) == 11.0
for name in ("_prng", "_linalg"):
    assert importlib.import_module(f"{plugin.__name__}.{name}").registrations()
extension = importlib.import_module(plugin.__name__ + ".rocm_plugin_extension")
points = importlib.metadata.entry_points(group="jax_plugins")
print(json.dumps({
    "modules": [jaxlib.__name__, plugin.__name__, pjrt.__name__],
    "plugins": [point.value for point in points],
    "devices": extension.device_count(),
}))
"""


def install(
    built: dist.Result,
    interpreter: machine.Interpreter,
    *,
    tool: GuestPath | None,
    runner: Runner,
) -> Installed:
    """Install the set into a new environment of one CPython and import it there.

    `tool` is a Python with pip where `runner` runs commands; None is our own. The ROCm tree is
    linked to where the wheels' RUNPATH looks for it (`site-packages/rocm`), so that no
    LD_LIBRARY_PATH hides a wrong RUNPATH. Raises CommandError or WheelError.
    """
    version = str(interpreter.version)

    def said(*argv: str) -> str:
        return runner.capture(Command(argv=argv)).strip()

    folder = said("mktemp", "--directory", "--tmpdir", "rocwheel-demo-XXXXXXXX")
    try:
        venv = f"{folder}/venv"
        said(str(interpreter.executable), "-m", "venv", "--without-pip", venv)
        python = f"{venv}/bin/python"
        wheels = [
            str(runner.path(built.wheelhouse / wheel.filename))
            for wheel in built.manifest.built
            if wheel.python in ("", version)
        ]
        said(*pip(str(tool or sys.executable), python), "--no-index", *wheels)
        site = said(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
        said("ln", "-s", str(runner.path(built.rocm_root)), f"{site}/rocm")
        modules = [module_name(kind, built.rocm_number) for kind in WheelKind]
        answer = json.loads(said(python, "-I", "-c", _CHECK, json.dumps(modules)))
    finally:
        said("rm", "-rf", folder)
    if answer != {"modules": modules, "plugins": modules[-1:], "devices": 0}:
        raise WheelError(
            f"CPython {version}: the installed wheels answered {answer}",
            hint="run `wheel verify` on the wheelhouse",
        )
    return Installed(python=version, modules=tuple(modules))


def pip(tool: str, interpreter: str) -> tuple[str, ...]:
    """The start of a pip command that installs into another interpreter's environment."""
    return (
        tool, "-m", "pip", "--python", interpreter, "--disable-pip-version-check", "--quiet",
        "install",
    )  # fmt: skip


def document(result: Result, *, seconds: Mapping[str, float]) -> dict[str, Any]:
    """The same for a program."""
    return {
        **dist.document(result.built, seconds=seconds),
        "installed": [
            {"python": item.python, "modules": list(item.modules)} for item in result.installed
        ],
    }
