"""The whole main job on the miniature workspace: a night, from a tarball over HTTP to `import`.

Its store is a folder and its build cell is `demo --wheels-only`, which makes a TheRock-like tarball
from this machine's packages, serves it on loopback and lets `rocwheel.dist` build the wheel set as
it would for JAX. Stage, gate, promote and page are the cells of any night. Afterwards the set is
installed from the index by hash with pip, and imported. Nothing of it is special-cased below this
module: the only differences to a real night are its recipe, and the family, which is data
(`examples/miniature/families.yaml`).
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import amdgpu_family_matrix as matrix
from rocwheel import dist, families, files, git, rocm, wheelhouse
from rocwheel.console import Console, silent
from rocwheel.container import Mount
from rocwheel.dist import executor
from rocwheel.errors import CommandError, ConfigError, HostError, WheelError
from rocwheel.gate.suite import suites
from rocwheel.home import Home
from rocwheel.host import debian, machine
from rocwheel.index import channels
from rocwheel.install import Install
from rocwheel.ledger.nights import NightPlan, Nights, WheelRecipe
from rocwheel.manifest import Manifest
from rocwheel.model import PythonVersion, WheelKind, module_name
from rocwheel.pipeline import looking, planning, resolving
from rocwheel.pipeline.settings import BuildCost, Cost, NightSettings
from rocwheel.pipeline.standing import CellStanding
from rocwheel.process import Command, GuestPath, HostRunner, Runner
from rocwheel.release import wheelset
from rocwheel.release.operations import Who
from rocwheel.report.night_page import PAGE
from rocwheel.store import Store
from rocwheel.values import canonical_json, replace

ROCM_VERSION: Final = "7.10.0a20251120"
RECIPE: Final = "debian_12"  # the image that has what the miniature is built with
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
    requirements: Path  # of the set, with its index and hashes, for every CPython
    page: Path  # the page of the night, which leads to the gates' reports

    @property
    def pip(self) -> str:
        """The line that installs the set, by hash and from nowhere else."""
        return Install.by_hash(str(self.requirements))[0]


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """A finished demo."""

    wheelhouse: Path
    manifest: Manifest
    released: Released
    installed: tuple[Installed, ...]


def miniature(home: Home) -> Path:
    """Return the folder of the miniature workspace. Raises HostError where the data lacks it."""
    folder = home.root / "examples" / "miniature"
    if not folder.is_dir():
        raise HostError(
            f"{folder}: not found", hint="restore it from the repository, or install rocwheel again"
        )
    return folder


def accept(pythons: Sequence[PythonVersion]) -> None:
    """Raise ConfigError for a free-threaded CPython: the workspace has no toolchain for one."""
    if free_threaded := [str(version) for version in pythons if version.free_threaded]:
        raise ConfigError(
            f"CPython {', '.join(free_threaded)}: the demo builds for no free-threaded CPython",
            hint="choose another: --python-versions; dist_wheels builds for those of a JAX release",
        )


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


def wheels(
    base: dist.Request, *, runner: HostRunner, console: Console
) -> tuple[dist.Result, tuple[Installed, ...]]:
    """Build the set, install it from the wheelhouse and import it. Raises what the stages raise."""
    prepared = prepare(base, runner=runner, console=console)
    wanted = prepared.request
    tarball = make_tarball(miniature(base.home), wanted.cache, runner=runner, console=console)
    with serve(tarball.parent) as url:
        console.info(f"serving {tarball.name} at {url}")
        ready = dataclasses.replace(
            wanted, therock=f"{url}/{tarball.name}", therock_sha256=files.sha256(tarball)
        )
        built = dist.build(dist.plan(ready), runner=runner, console=console, place=prepared.place)
    pythons = {str(item.version): item for item in prepared.interpreters}
    place = prepared.place.with_mounts(
        Mount(host=built.wheelhouse, guest=executor.WHEELHOUSE),
        Mount(host=built.rocm_root, guest=executor.ROCM),
    )
    with (
        console.step("Install with pip and import, in fresh environments", key="install"),
        place.running(runner) as inside,
    ):
        installed = tuple(
            install(
                interpreter,
                from_wheelhouse(built, version, inside),
                modules_of(built.manifest),
                rocm=inside.path(built.rocm_root),
                tool=place.tool,
                runner=inside,
            )
            for version, interpreter in pythons.items()
        )
    return built, installed


@dataclass(frozen=True, kw_only=True)
class DemoNight:
    """What a demo's night is made of, besides what was built before."""

    recipe: WheelRecipe
    setting: looking.PlanInput
    folder: Path  # of the store, and of what is written beside it


def night(
    prepared: Prepared, tarball: Path, words: Sequence[str], *, who: Who, runner: HostRunner
) -> DemoNight:
    """Return the one recipe of the night; `words` are the options of `demo` that were given."""
    base = prepared.request
    ours = base.home
    workspace, folder = miniature(ours) / "workspace", base.wheelhouse / "demo"
    source = git.identify(workspace, runner=runner)
    pythons = tuple(str(python) for python in base.pythons)
    argv = (
        "demo", "--wheels-only", *words, f"--python-versions={','.join(pythons)}",
        f"--wheelhouse={base.wheelhouse}",
    )  # fmt: skip
    sha256 = files.sha256(tarball)
    inputs = [resolving.tool_of(ours, runner), source.commit, source.digest, sha256, list(argv)]
    recipe = WheelRecipe(
        name=FAMILY,
        inputs=files.sha256(canonical_json(inputs)),
        jax=FAMILY,
        jax_repository="",
        jax_commit=source.commit or source.digest,
        rocm=str(tarball),
        rocm_version=ROCM_VERSION,
        rocm_sha256=sha256,
        image="",
        families=(FAMILY,),
        pythons=pythons,
        argv=argv,
    )
    own = miniature(ours) / "families.yaml"
    store = (folder / "store").as_uri()
    setting = looking.PlanInput(
        night=who.now.strftime("demo-%Y%m%d-%H%M%S"),
        settings=NightSettings(
            trigger=matrix.Trigger.NIGHTLY,
            sets=(),
            build=BuildCost(cpus=1, memory_mib=1024, disk_mib=1024, hours=1),
            gate=Cost(cpus=1, memory_mib=512, disk_mib=512, hours=1),
        ),
        families=families.load(own),
        channel=replace(
            channels.of_store(store), suites=suites.load_known(ours, today=who.now.date())
        ),
        target=(f"--store={store}",),
        ci=ours.ci,
        by=who.by,
        now=who.now,
        own=(f"--families={own}",),
    )
    return DemoNight(recipe=recipe, setting=setting, folder=folder)


def plan(what: DemoNight, nights: Nights, wheelhouses: Path) -> NightPlan:
    """Plan the night and store it; a set without its wheelhouse is built again."""
    seen = looking.look(what.setting, [what.recipe], nights.store, None)
    built = seen.manifests.get(what.recipe.inputs, "")
    if built and not house(wheelhouses, built).is_dir():
        seen = dataclasses.replace(seen, manifests={})
    made = planning.plan(what.setting, [what.recipe], [], seen)
    nights.add(made)
    return made


def finish(
    prepared: Prepared, what: DemoNight, built: str, *, runner: HostRunner, console: Console
) -> DemoResult:
    """Install what the night released, by hash, and import it. Raises CommandError, WheelError."""
    base, setting = prepared.request, what.setting
    folder = house(base.wheelhouse, built)
    manifest = Manifest.load(folder)
    channel = setting.channel
    place = channel.release(channel.open(), FAMILY, wheelset.rocm_major(manifest))
    requirements = what.folder / "requirements.txt"
    text = Install.of(manifest, place.url).requirements
    requirements.write_text(text, encoding="utf-8")
    released = Released(
        index=place.url, requirements=requirements, page=what.folder / "store" / PAGE
    )
    fetched = rocm.plan(what.recipe.rocm, sha256=None, version=None, cache=base.cache, cwd=base.cwd)
    with console.step("Install with pip and import, in fresh environments", key="install"):
        tree = rocm.fetch(fetched, console=console, env=base.environ)
        words = ("--require-hashes", "--no-deps", "-r", str(requirements))
        installed = tuple(
            install(
                interpreter,
                ("--isolated", *words),
                modules_of(manifest),
                rocm=tree.root,
                tool=None,
                runner=runner,
            )
            for interpreter in prepared.interpreters
        )
        for item in installed:
            console.info(f"   CPython {item.python}: imported {', '.join(item.modules)}")
    return DemoResult(wheelhouse=folder, manifest=manifest, released=released, installed=installed)


def house(folder: Path, manifest: str) -> Path:
    """Return the wheelhouse of a set."""
    return folder / manifest[: wheelhouse.IDENTITY_LENGTH]


def dry_run(
    base: dist.Request, *, wheels_only: bool, runner: HostRunner, console: Console
) -> Iterator[str]:
    """Yield what it would do, as lines; asks for CPythons and packages, changes nothing."""
    missing = debian.missing(debian.MINIATURE_PACKAGES, runner=runner) if debian.present() else ()
    for command in debian.install_commands(missing) if missing else ():
        yield str(command)
    prepared = prepare(base, runner=runner, console=silent(), pull=False)
    wanted = prepared.request
    tarball = wanted.cache / "demo" / TARBALL
    yield str(_making(miniature(base.home), tarball))
    yield f"# serve {tarball.parent} on a free loopback port while dist_wheels runs:"
    served = dataclasses.replace(wanted, therock=f"http://localhost/{TARBALL}")
    yield from dist.dry_run(dist.plan(served), runner=runner, console=console, place=prepared.place)
    if not wheels_only:
        yield "# stage, gate (suite miniature, every CPython), promote: a night, into a folder"
    where = "from the wheelhouse" if wheels_only else "from that index by hash"
    yield f"# install {where} into a fresh environment per CPython, and import"


def make_tarball(folder: Path, cache: Path, *, runner: HostRunner, console: Console) -> Path:
    """Return the tarball, made again only when its script or a package it is made from changed."""
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
    interpreter: machine.Interpreter,
    words: Sequence[str],
    modules: Sequence[str],
    *,
    rocm: Path | GuestPath,
    tool: GuestPath | None,
    runner: Runner,
) -> Installed:
    """Install the set into a new environment of one CPython and import it there.

    `words` say from where; `tool` is the Python of rocwheel's own tools in an image, None is ours.
    The ROCm tree is linked to where the wheels' RUNPATH looks for it (`site-packages/rocm`), so
    that no LD_LIBRARY_PATH hides a wrong RUNPATH. Raises CommandError or WheelError.
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
        said(*manager, *words)
        site = said(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
        said("ln", "-s", str(rocm), f"{site}/rocm")
        answer = json.loads(said(python, "-I", "-c", _CHECK, json.dumps(modules)))
    finally:
        said("rm", "-rf", folder)
    if answer != {"modules": list(modules), "plugins": list(modules[-1:]), "devices": 0}:
        raise WheelError(
            f"CPython {version}: the installed wheels answered {answer}",
            hint="run `wheel verify` on the wheelhouse",
        )
    return Installed(python=version, modules=tuple(modules))


def modules_of(manifest: Manifest) -> tuple[str, ...]:
    """Return the package that each kind of wheel brings."""
    return tuple(module_name(kind, str(wheelset.rocm_major(manifest))) for kind in WheelKind)


def from_wheelhouse(built: dist.Result, version: str, runner: Runner) -> tuple[str, ...]:
    """Return what tells pip to take the wheels of one CPython from where they were built."""
    wheels_ = [
        str(runner.path(built.wheelhouse / wheel.filename))
        for wheel in built.manifest.built
        if wheel.python in ("", version)
    ]
    return ("--no-index", *wheels_)


def pip(tool: str, interpreter: str) -> tuple[str, ...]:
    """Return the start of a pip command that installs into another interpreter's environment."""
    return (
        tool, "-m", "pip", "--python", interpreter, "--disable-pip-version-check", "--quiet",
        "install",
    )  # fmt: skip


def failure(found: Mapping[str, CellStanding], store: Store) -> CommandError | None:
    """Return the error of the first cell of the night that did not pass, with its log."""
    for item in found.values():
        if item.passed:
            continue
        log = item.last.log if item.last else ""
        return CommandError(
            f"{item.cell.name}: {item.word}: {item.reason}",
            hint="mend that and run it again: what passed is kept",
            detail=store.read(log)[0].decode("utf-8", "replace") if log else "",
        )
    return None


def lines(result: DemoResult) -> Iterator[str]:
    """Yield the last lines for a person."""
    yield from dist.table(result.manifest)
    yield f"the page of the night: {result.released.page}"
    yield f"to install the set: {result.released.pip}"


def document(result: DemoResult) -> dict[str, Any]:
    """Return the same for a program."""
    return {
        **dist.contents(result.wheelhouse, result.manifest),
        "installed": [dataclasses.asdict(item) for item in result.installed],
        "index": result.released.index,
        "pip": result.released.pip,
        "page": str(result.released.page),
    }
