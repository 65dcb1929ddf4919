"""The whole main job on the miniature workspace: a night, from a ROCm tarball to `import`.

Its store is a folder and its build cell is `demo --wheels-only`, which makes a TheRock-like tarball
from this machine's packages and lets `rocwheel.dist` build the wheel set as it would for JAX.
Stage, gate, promote and page are the cells of any night. Afterwards pip installs the set from the
index by hash, and it is imported. No other module knows of the demo: it differs from a real night
by its recipe, and by the family, which is data (`examples/miniature/families.yaml`, or
`three_families.yaml` for one build with a gate for each).
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import amdgpu_family_matrix as matrix
from rocwheel import dist, rocm
from rocwheel.base import container, files, git
from rocwheel.base.console import silent
from rocwheel.base.container import EngineKind
from rocwheel.base.errors import CommandError, ConfigError, HostError, WheelError
from rocwheel.base.here import Here
from rocwheel.base.home import Home
from rocwheel.base.host import debian, machine, virtualenv
from rocwheel.base.process import Command, HostRunner
from rocwheel.base.store import Store
from rocwheel.base.values import Plain, canonical_json, replace
from rocwheel.base.versions import CPYTHON_RANGE, RocmVersion, WheelKind, module_name
from rocwheel.bazel.binary import UNKNOWN
from rocwheel.dist import executor
from rocwheel.dist.wheelhouse import IDENTITY_LENGTH
from rocwheel.gate.suite import suites
from rocwheel.image import build
from rocwheel.image.recipe import BuilderOptions
from rocwheel.night import planning, resolving, truth
from rocwheel.night.page import PAGE
from rocwheel.night.settings import BuildCost, Cost, NightSettings
from rocwheel.night.standing import CellStanding
from rocwheel.records import families
from rocwheel.records.install import Install
from rocwheel.records.manifest import Manifest
from rocwheel.release.index import channels
from rocwheel.release.ledger import log
from rocwheel.release.ledger.nights import NightPlan, Nights, WheelRecipe
from rocwheel.release.ledger.state import Standing
from rocwheel.release.operations import Who

ROCM_VERSION: Final = "7.10.0a20251120"
RECIPE: Final = "debian_12"  # the image that has what the miniature is built with
FAMILY: Final = "miniature"  # the family's name, and its suite's
SEVERAL: Final = "three_families.yaml"  # of which one build has the targets of each
TARGETS: Final = ("gfx90a", "gfx942", "gfx1100", "gfx1201")
TARBALL: Final = f"therock-dist-linux-miniature-{ROCM_VERSION}.tar.gz"
SCRIPT: Final = "make_therock.py"  # of the workspace, which makes it


def miniature(home: Home) -> Path:
    """Return the folder of the miniature workspace. Raises HostError where the data lacks it."""
    folder = home.root / "examples" / "miniature"
    if not folder.is_dir():
        raise HostError(
            f"{folder}: not found", hint="restore it from the repository, or install rocwheel again"
        )
    return folder


class Prepared(Plain, frozen=True, kw_only=True):
    """A demo's request to `dist` without its tarball, and where and with what it builds."""

    request: dist.Request
    place: executor.BuildEnvironment
    interpreters: tuple[machine.Interpreter, ...]


def for_families(base: dist.Request, number: int | None) -> dist.Request:
    """Return the request with the first `number` families of `SEVERAL`; None changes nothing."""
    own = miniature(base.home) / SEVERAL if number else None
    names = tuple(families.load(own))[:number] if own else ()
    return replace(base, families=names, own_families=own)


def prepare(base: dist.Request, here: Here, *, pull: bool = True) -> Prepared:
    """Fill in a request: the miniature's own options, and all CPythons that have headers.

    CPythons that were asked for are kept. Raises HostError when one is missing, or there is none;
    ConfigError for a free-threaded one, for which the workspace has no toolchain.
    """
    if free_threaded := [str(version) for version in base.pythons if version.free_threaded]:
        raise ConfigError(
            f"CPython {', '.join(free_threaded)}: the demo builds for no free-threaded CPython",
            hint="choose another: --python-versions; dist_wheels builds for those of a JAX release",
        )
    place = executor.choose(base, here, pull=pull)
    there = {
        item.version: item
        for item in place.interpreters(base, runner=here.runner)
        if item.headers and not item.version.free_threaded
    }
    wanted = base.pythons or tuple(there)
    missing = [str(version) for version in wanted if version not in there]
    if missing or not wanted:
        raise HostError(
            f"CPython {', '.join(missing) or CPYTHON_RANGE}: not found with its headers (Python.h)",
            hint="install python3-dev, or choose another: --python-versions",
        )
    interpreters = tuple(there[version] for version in wanted)
    filled = replace(
        base,
        pythons=wanted,
        rocm_version=ROCM_VERSION,
        gfx_targets=base.gfx_targets or (() if base.families else TARGETS),
        jax_source_dir=miniature(base.home) / "workspace",
        jaxlib="built",
        compiler="clang",
        bazel_startup_options=(*base.bazel_startup_options, *_debian(place)),
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


def _debian(place: executor.BuildEnvironment) -> tuple[str, ...]:
    if place.facts:
        is_debians = any(item.version == UNKNOWN for item in place.facts.bazels)
    else:
        is_debians = Path("/usr/share/bazel/install_base_key").is_file()
    return ("--bazelrc=bazel/debian.bazelrc",) if is_debians else ()


def wheels(prepared: Prepared, here: Here) -> dist.Result:
    """Build the set from a tarball that is made here. Raises what the stages raise."""
    tarball = make_tarball(prepared.request, here)
    ready = replace(prepared.request, therock=str(tarball), therock_sha256=files.sha256(tarball))
    return dist.build(dist.plan(ready), here, place=prepared.place)


class DemoNight(Plain, frozen=True, kw_only=True):
    recipe: WheelRecipe
    setting: planning.PlanInput
    folder: Path  # of the store, and of what is written beside it

    def indexes(self, manifest: Manifest) -> dict[str, dict[str, Any]]:
        """Return each family's index, and whether it lists the set."""
        channel, listed = self.setting.channel, {}
        for name in self.recipe.families:
            _, place = channel.pair(channel.open(), manifest, name)
            known = log.read(place).of(name).sets.get(manifest.sha256)
            released = known is not None and known.standing is Standing.LISTED
            listed[name] = {"released": released, "index": place.url}
        return listed


def night(
    prepared: Prepared, tarball: Path, words: Sequence[str], here: Here, *, who: Who
) -> DemoNight:
    """Return the one recipe of the night; `words` are the options of `demo` that were given."""
    base = prepared.request
    ours = base.home
    workspace = miniature(ours) / "workspace"
    # a store for each number: an index of all takes no set that lacks one of its families
    folder = base.wheelhouse / (f"demo-{len(base.families)}" if base.families else "demo")
    source = git.identify(workspace, runner=here.runner)
    pythons = tuple(str(python) for python in base.pythons)
    argv = (
        "demo", "--wheels-only", *words, f"--python-versions={','.join(pythons)}",
        f"--wheelhouse={base.wheelhouse}",
    )  # fmt: skip
    sha256 = files.sha256(tarball)
    inputs = [
        resolving.tool_of(ours, here.runner),
        source.commit,
        source.digest,
        sha256,
        list(argv),
    ]
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
        families=base.families or (FAMILY,),
        pythons=pythons,
        argv=argv,
    )
    own = base.own_families or miniature(ours) / "families.yaml"
    store = (folder / "store").as_uri()
    setting = planning.PlanInput(
        night=who.now.strftime("demo-%Y%m%d-%H%M%S"),
        settings=NightSettings(
            trigger=matrix.Trigger.NIGHTLY,
            sets=(),
            build=BuildCost(cpus=1, memory_mib=1024, disk_mib=1024, hours=1),
            gate=Cost(cpus=1, memory_mib=512, disk_mib=512, hours=1),
        ),
        families=families.load(own),
        channel=replace(
            channels.of_store(store),
            one_build=bool(base.families),
            suites=suites.load_known(ours, today=who.now.date()),
        ),
        target=(f"--store={store}",),
        ci=ours.ci,
        by=who.by,
        now=who.now,
        own=(f"--family-file={own}",),
    )
    return DemoNight(recipe=recipe, setting=setting, folder=folder)


def plan(what: DemoNight, nights: Nights, wheelhouses: Path) -> NightPlan:
    """Plan the night and store it; a set without its wheelhouse is built again."""
    last = truth.newest(nights, lambda _said: None)
    seen = planning.look(what.setting, [what.recipe], nights.store, last)
    built = seen.manifests.get(what.recipe.inputs, "")
    if built and not (wheelhouses / built[:IDENTITY_LENGTH]).is_dir():
        seen = replace(seen, manifests={})
    made = planning.plan(what.setting, [what.recipe], [], seen)
    nights.add(made)
    return made


def finish(
    prepared: Prepared, what: DemoNight, built: str, here: Here
) -> tuple[dict[str, Any], list[str]]:
    """Install what the night released, by hash, and import it; return what to say of it all.

    Raises CommandError, WheelError.
    """
    base = prepared.request
    folder = base.wheelhouse / built[:IDENTITY_LENGTH]
    manifest = Manifest.load(folder)
    major = RocmVersion.parse(manifest.rocm.version).major
    indexes = what.indexes(manifest)
    first = min(indexes.values(), key=lambda item: not item["released"])  # that has it
    requirements = what.folder / "requirements.txt"
    requirements.write_text(Install.of(manifest, first["index"]).requirements, encoding="utf-8")
    fetched = rocm.plan(what.recipe.rocm, sha256=None, version=None, cache=base.cache, cwd=base.cwd)
    modules = [module_name(kind, str(major)) for kind in WheelKind]
    installed = []
    with here.console.step("Install with pip and import, in fresh environments", key="install"):
        tree = rocm.fetch(fetched, console=here.console, env=base.environ)
        for interpreter in prepared.interpreters:
            install(interpreter, requirements, modules, rocm=tree.root, runner=here.runner)
            installed.append({"python": str(interpreter.version), "modules": modules})
            here.console.info(f"   CPython {interpreter.version}: imported {', '.join(modules)}")
    page, pip = what.folder / "store" / PAGE, Install.by_hash(str(requirements))[0]
    document = {**dist.contents(folder, manifest), "index": first["index"], "pip": pip}
    document |= {"page": str(page), "installed": installed}
    lines = list(dist.table(manifest))
    if base.families:
        document["families"] = indexes
        for name, item in indexes.items():
            is_there = "released" if item["released"] else "not released"
            lines.append(f"{name}: {is_there}: {item['index']}")
    return document, [*lines, f"the page of the night: {page}", f"to install the set: {pip}"]


def image(options: BuilderOptions, engine: str, here: Here, *, dry_run: bool) -> str:
    """Return the builder image, made if needed; "" for a dry run that would make it."""
    asked = container.ask(EngineKind(engine), environ=here.environ, runner=here.runner)
    there = build.current(options.recipe, here.home, engine=asked, runner=here.runner)
    if there and not options.base:
        return there.reference
    return "" if dry_run else build.builder(options, asked, here).name


def dry_run(base: dist.Request, here: Here, *, wheels_only: bool) -> Iterator[str]:
    """Yield its steps as lines; looks for CPythons and packages, changes nothing."""
    packages = debian.MINIATURE_PACKAGES
    missing = debian.missing(packages, runner=here.runner) if debian.present() else ()
    for command in debian.install_commands(missing) if missing else ():
        yield str(command)
    prepared = prepare(base, replace(here, console=silent()), pull=False)
    wanted = prepared.request
    tarball = wanted.cache / "demo" / TARBALL
    yield str(Command(argv=("mkdir", "-p", str(tarball.parent))))
    yield str(_making(miniature(base.home), tarball))
    url = f"https://localhost/{TARBALL}"  # of a name that says all that the file's will
    named = rocm.plan(url, sha256=None, version=ROCM_VERSION, cache=wanted.cache, cwd=wanted.cwd)
    made = replace(named, origin=rocm.Origin.TARBALL, source=str(tarball))
    planned = dist.plan(replace(wanted, therock=str(tarball)), recorded=made)
    yield from dist.dry_run(planned, here, place=prepared.place)
    if not wheels_only and base.families:
        yield f"# stage once, gate for each of {', '.join(base.families)}, promote for those that"
        yield "# pass: a night, into a folder, where their indexes list the same files"
    elif not wheels_only:
        yield "# stage, gate (suite miniature, every CPython), promote: a night, into a folder"
        yield "# install from that index by hash into a fresh environment per CPython, and import"


def make_tarball(wanted: dist.Request, here: Here) -> Path:
    """Return the tarball, made again only when its script or a package it is made from changed."""
    folder = miniature(wanted.home)
    sources = sorted([folder / SCRIPT, *(folder / "therock").glob("*")])
    query = ("dpkg-query", "--show", *debian.MINIATURE_PACKAGES)
    packages = here.runner.capture(Command(argv=query)).encode()
    digest = files.sha256([*(file.read_bytes() for file in sources), packages])
    target = wanted.cache / "demo" / digest[:16] / TARBALL
    if target.exists():
        here.console.info(f"   unchanged: {target}")
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=target.parent) as scratch:
        made = Path(scratch, TARBALL)
        making = _making(folder, made)
        here.runner.run(making, on_line=lambda line: here.console.detail(f"   {line}"))
        made.replace(target)
    return target


def _making(folder: Path, tarball: Path) -> Command:
    words = (str(folder / SCRIPT), "--output", str(tarball), "--rocm-version", ROCM_VERSION)
    return Command(argv=(sys.executable, *words))


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
    requirements: Path,
    modules: Sequence[str],
    *,
    rocm: Path,
    runner: HostRunner,
) -> None:
    """Install the set by hash into a new environment of one CPython and import it there.

    The ROCm tree is linked to the place in the wheels' RUNPATH (`site-packages/rocm`): with an
    LD_LIBRARY_PATH a wrong RUNPATH would not be noticed. Raises CommandError or WheelError.
    """

    def answer(*argv: str) -> str:
        return runner.capture(Command(argv=argv)).strip()

    with tempfile.TemporaryDirectory(prefix="rocwheel-demo-") as folder:
        python = f"{folder}/bin/python"
        answer(str(interpreter.executable), "-m", "venv", "--without-pip", folder)
        words = ("--isolated", "--require-hashes", "--no-deps", "-r", str(requirements))
        runner.run(virtualenv.pip("--python", python, "install", *words))
        site = answer(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
        Path(site, "rocm").symlink_to(rocm)
        result = json.loads(answer(python, "-I", "-c", _CHECK, json.dumps(modules)))
    if result != {"modules": list(modules), "plugins": list(modules[-1:]), "devices": 0}:
        raise WheelError(
            f"CPython {interpreter.version}: the installed wheels answered {result}",
            hint="run `wheel verify` on the wheelhouse",
        )


def failure(standings: Mapping[str, CellStanding], store: Store) -> CommandError | None:
    """Return the error of the first cell of the night that did not pass, with its log.

    A family's own failure is no error where the set passed for another one.
    """
    failed = [item for item in standings.values() if not item.passed]
    families = {item.cell.family for item in standings.values()} - {""}
    is_shared = families > {item.cell.family for item in failed} - {""}
    item = next((item for item in failed if not (is_shared and item.cell.family)), None)
    if item is None:
        return None
    log = item.last.log if item.last else ""
    return CommandError(
        f"{item.cell.name}: {item.word}: {item.reason}",
        hint="fix that and run it again: what passed is kept",
        detail=store.read(log)[0].decode("utf-8", "replace") if log else "",
    )
