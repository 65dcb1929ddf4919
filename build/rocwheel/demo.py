"""The whole main job on the miniature workspace, from a tarball over HTTP to `import`.

It makes a TheRock-like tarball from this machine's packages, serves it on loopback, lets
`rocwheel.dist` build the wheel set as it would for JAX, stages, gates and promotes it into a
folder, installs it from there by hash with pip, and imports it. Nothing of it is special-cased
below this module: the only differences to a real run are the options it passes, and the family,
which is data (`examples/miniature/families.yaml`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import json
import shlex
import shutil
import sys
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocwheel import dist, families, files
from rocwheel.console import silent
from rocwheel.container import Mount
from rocwheel.dist import executor
from rocwheel.errors import HostError, WheelError
from rocwheel.gate import environment
from rocwheel.gate import run as gate
from rocwheel.gate.engine.plan import Watcher
from rocwheel.gate.request import GateRequest
from rocwheel.gate.suite import skips, suites
from rocwheel.gate.verdict import storing
from rocwheel.host import debian, machine
from rocwheel.index import channels
from rocwheel.model import PythonVersion, WheelKind, module_name
from rocwheel.process import Command
from rocwheel.release import promote, stage, wheelset
from rocwheel.report import render
from rocwheel.values import replace
from rocwheel.verdict import State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import date

    from amdgpu_family_matrix import Family
    from rocwheel.console import Console
    from rocwheel.gate.request import Host
    from rocwheel.home import Home
    from rocwheel.manifest import Manifest
    from rocwheel.places import Place
    from rocwheel.process import GuestPath, HostRunner, Runner
    from rocwheel.release.operations import Who

ROCM_VERSION: Final = "7.10.0a20251120"
FAMILY: Final = "miniature"  # the family's name, and its suite's
TARGETS: Final = ("gfx90a", "gfx942", "gfx1100", "gfx1201")
TARBALL: Final = f"therock-dist-linux-miniature-{ROCM_VERSION}.tar.gz"


@dataclass(frozen=True, kw_only=True)
class Installed:
    """What an environment said after installing and importing the wheels."""

    python: str
    modules: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Released:
    """Where the set can be installed from, and what can be looked at."""

    index: str  # URL
    requirements: Path  # of the set, with hashes, for every CPython
    page: Path  # the gate's report for the first CPython

    @property
    def pip(self) -> str:
        """The line that installs the set, by hash and from nowhere else."""
        words = ("install", "--index-url", self.index, "--require-hashes", "-r")
        return shlex.join(("python3", "-m", "pip", *words, str(self.requirements)))


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """A finished demo."""

    built: dist.Result
    released: Released | None  # None for a build in a container, which the host cannot gate
    installed: tuple[Installed, ...]


def miniature(home: Home) -> Path:
    """The folder of the miniature workspace. Raises HostError where the data lacks it."""
    folder = home.root / "examples" / "miniature"
    if not folder.is_dir():
        raise HostError(
            f"{folder}: not found", hint="restore it from the repository, or install rocwheel again"
        )
    return folder


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
    place: executor.BuildEnvironment
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


def run(base: dist.Request, *, host: Host, who: Who, console: Console, root: bool) -> DemoResult:
    """Do everything; raises what the stages raise."""
    runner = host.runner
    install_packages(runner=runner, console=console, root=root)
    prepared = prepare(base, runner=runner, console=console)
    wanted = prepared.request
    with console.step("Make a ROCm tarball from this machine's packages", key="tarball"):
        tarball = make_tarball(miniature(base.home), wanted.cache, runner=runner, console=console)
    with serve(tarball.parent) as url:
        console.info(f"serving {tarball.name} at {url}")
        ready = dataclasses.replace(
            wanted, therock=f"{url}/{tarball.name}", therock_sha256=files.sha256(tarball)
        )
        built = dist.build(dist.plan(ready), runner=runner, console=console, place=prepared.place)
    released = None
    if prepared.place.spec is None:  # a gate needs the CPythons that built the wheels
        released = release(built, tarball, base.home, host=host, who=who, console=console)
    with console.step("Install with pip and import, in fresh environments", key="install"):
        place = prepared.place.with_mounts(
            Mount(host=built.wheelhouse, guest=executor.WHEELHOUSE),
            Mount(host=built.rocm_root, guest=executor.ROCM),
        )
        with place.running(runner) as inside:
            installed = tuple(
                install(built, released, interpreter, tool=place.tool, runner=inside)
                for interpreter in prepared.interpreters
            )
        for item in installed:
            console.info(f"   CPython {item.python}: imported {', '.join(item.modules)}")
    return DemoResult(built=built, released=released, installed=installed)


def release(
    built: dist.Result, tarball: Path, ours: Home, *, host: Host, who: Who, console: Console
) -> Released:
    """Stage, gate and promote the set: the same as for JAX, into a folder beside the wheelhouse.

    Raises what the stages raise, and WheelError when the gate's verdict is no pass.
    """
    family = families.load(miniature(ours) / "families.yaml")[FAMILY]
    folder = built.wheelhouse.with_name(f"{built.wheelhouse.name}-demo")
    channel = replace(
        channels.of_store((folder / "store").as_uri()),
        suites=suites.load_known(ours, today=who.now.date()),
    )
    store = channel.open()
    with console.step("Stage", key="stage"):
        staged = stage.plan(built.wheelhouse, family, channel, store, who=who)
        stage.apply(staged, console=console)
    place = channel.staging(store, family.name, wheelset.rocm_major(built.manifest))
    with console.step("Gate", key="gate"):
        for python in built.manifest.pythons:
            version = PythonVersion.parse(python)
            asked = _gate(built, family, version, place, ours=ours, today=who.now.date())
            asked = replace(asked, rocm=str(tarball), output=folder / "gate" / python)
            _pass(asked, place, host, console)
    with console.step("Promote", key="promote"):
        planned = promote.plan(built.manifest, family, channel, store, who=who, approvals=())
        promote.apply(planned, console=console)
    requirements = folder / "requirements.txt"
    requirements.write_text(_pinned(built.manifest), encoding="utf-8")
    released = channel.release(store, family.name, wheelset.rocm_major(built.manifest))
    return Released(
        index=released.link(""),
        requirements=requirements,
        page=folder / "gate" / built.manifest.pythons[0] / "report.html",
    )


def _gate(
    built: dist.Result,
    family: Family,
    python: PythonVersion,
    place: Place,
    *,
    ours: Home,
    today: date,
) -> GateRequest:
    suite = suites.load(ours.ci, FAMILY)
    listed = skips.load(ours.ci, today=today)
    return GateRequest(
        suite=suite,
        family=family,
        python=python,
        wheels=environment.of_manifest(built.manifest, python, place.link),
        manifest=built.manifest,
        home=ours,
        output=built.wheelhouse,
        libraries=suites.libraries(ours.ci),
        skips=listed,
        known=suites.known(ours, suite, listed),
    )


def _pass(asked: GateRequest, place: Place, host: Host, console: Console) -> None:
    """Gate one CPython, write and store what came of it. Raises WheelError for what is no pass."""
    gated = gate.run(asked, host, console, Watcher())
    reports = render(gated.results, gated.found, {})
    verdict = gated.verdict
    if verdict:
        _, verdict = storing.put(place, verdict, reports)
    storing.write(asked.output, reports, verdict)
    if gated.error:
        raise gated.error
    if gated.found.state is not State.PASS:
        raise WheelError(
            f"{asked.cell}: {gated.found.state.value}: {gated.found.message}",
            hint=f"look at {asked.output / 'report.html'}",
        )


def _pinned(manifest: Manifest) -> str:
    """A requirements file of the whole set, for every CPython: pip takes the wheel that fits."""
    hashes: dict[tuple[str, str], list[str]] = {}
    for wheel in manifest.wheels:
        hashes.setdefault((wheel.project, wheel.version), []).append(wheel.sha256)
    return "".join(
        f"{project}=={version} {' '.join(f'--hash=sha256:{item}' for item in found)}\n"
        for (project, version), found in sorted(hashes.items())
    )


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
    yield "# stage, gate (suite miniature, every CPython) and promote into a folder beside it"
    yield "# install from that index by hash into a fresh environment per CPython, and import"


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
    released: Released | None,
    interpreter: machine.Interpreter,
    *,
    tool: GuestPath | None,
    runner: Runner,
) -> Installed:
    """Install the set into a new environment of one CPython and import it there.

    It comes from the index where it was released, by hash; else from the wheelhouse. `tool` is the
    Python of rocwheel's own tools in an image; None is ours here. The ROCm tree is linked to where
    the wheels' RUNPATH looks for it (`site-packages/rocm`), so that no LD_LIBRARY_PATH hides a
    wrong RUNPATH. Raises CommandError or WheelError.
    """
    version = str(interpreter.version)

    def said(*argv: str) -> str:
        return runner.capture(Command(argv=argv)).strip()

    folder = said("mktemp", "--directory", "--tmpdir", "rocwheel-demo-XXXXXXXX")
    try:
        venv = f"{folder}/venv"
        # An image's pip may be too old for a mounted CPython, which brings its own.
        bare = () if tool else ("--without-pip",)
        said(str(interpreter.executable), "-m", "venv", *bare, venv)
        python = f"{venv}/bin/python"
        manager = pip(python if tool else sys.executable, python)
        said(*manager, *_where(built, released, version, runner))
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


def _where(
    built: dist.Result, released: Released | None, version: str, runner: Runner
) -> tuple[str, ...]:
    """What tells pip where the wheels are; its configuration says nothing here."""
    if released:
        by_hash = ("--require-hashes", "--no-deps", "-r", str(released.requirements))
        return ("--isolated", "--index-url", released.index, *by_hash)
    wheels = [
        str(runner.path(built.wheelhouse / wheel.filename))
        for wheel in built.manifest.built
        if wheel.python in ("", version)
    ]
    return ("--no-index", *wheels)


def pip(tool: str, interpreter: str) -> tuple[str, ...]:
    """The start of a pip command that installs into another interpreter's environment."""
    return (
        tool, "-m", "pip", "--python", interpreter, "--disable-pip-version-check", "--quiet",
        "install",
    )  # fmt: skip


def lines(result: DemoResult, *, seconds: Mapping[str, float]) -> Iterator[str]:
    """What a person is told at the end."""
    yield from dist.lines(result.built, seconds=seconds)
    if result.released:
        yield f"the gate's report: {result.released.page}"
        yield f"to install the set: {result.released.pip}"


def document(result: DemoResult, *, seconds: Mapping[str, float]) -> dict[str, Any]:
    """The same for a program."""
    return {
        **dist.document(result.built, seconds=seconds),
        "installed": [
            {"python": item.python, "modules": list(item.modules)} for item in result.installed
        ],
        "index": result.released.index if result.released else "",
        "pip": result.released.pip if result.released else "",
        "page": str(result.released.page) if result.released else "",
    }
