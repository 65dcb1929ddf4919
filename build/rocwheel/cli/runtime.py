"""`runtime_images`: images that users pull, from a released wheel set; their list, a rollback."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from rocwheel.choices import IMAGE_PROFILES
from rocwheel.cli.app import App
from rocwheel.cli.command import (
    DryRun,
    command,
    group_command,
    once,
    option,
    section,
)
from rocwheel.cli.gate_run import SLOTS
from rocwheel.cli.image import EngineOptions
from rocwheel.cli.imports import when_run
from rocwheel.cli.page_file import page_path, write_page
from rocwheel.cli.target import (
    PersonOptions,
    Target,
    TargetOptions,
)
from rocwheel.errors import ConfigError, PromotionError

with when_run():
    import socket

    from rocwheel import container, files, parallel, rocm, source
    from rocwheel.console import columns, size
    from rocwheel.container import ContainerEngine, EngineKind
    from rocwheel.gate import subject as gated
    from rocwheel.gate.machine.accelerators import MASKS
    from rocwheel.gate.suite import suites
    from rocwheel.image import contents, found
    from rocwheel.ledger import log, manifests
    from rocwheel.ledger.state import Standing
    from rocwheel.manifest import Manifest
    from rocwheel.model import PythonVersion
    from rocwheel.places import Place
    from rocwheel.release import wheelset
    from rocwheel.runtime import (
        image_recipe,
        listing,
        making,
        packages,
        publishing,
        record,
        sbom,
        trial,
    )
    from rocwheel.runtime.making import ImagePlan, MadeImage, Subject
    from rocwheel.source import git
    from rocwheel.verdict import State
    from rocwheel.wheel.inspect import inspect


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions(TargetOptions, PersonOptions, EngineOptions, DryRun):
    """Options of `runtime_images`."""

    manifest: str | None
    python: str | None
    recipe: str
    base: str
    base_image: str | None
    profile: str
    rocm: str | None
    unreleased: bool
    build_network: str
    test: bool
    jax_tests: Path | None
    slots: Path
    push: str | None
    tags: tuple[str, ...]
    output: Path

    def check(self) -> None:
        """Raises UsageError for what is missing."""
        for name in ("manifest", "python", "family"):
            if not getattr(self, name):
                raise click.UsageError(f"give --{name}")
        if self.tags and not self.push:
            raise click.UsageError("--tag needs --push")


@group_command("runtime_images", RuntimeOptions)
@section(
    "Inputs",
    once("--manifest", metavar="SHA|PATH", help="The wheel set (required)."),
    once("--python", metavar="VERSION", help="CPython: 3.12 (required)."),
    once("--recipe", default="jax", show_default=True, help="Recipe of ci/images.yaml."),
    once("--base", default="", metavar="NAME", help="Base of ci/images.yaml; default: the first."),
    once(
        "--base-image",
        metavar="IMAGE",
        help="This image in place of the base's own: NAME@sha256:…, or a local one.",
    ),
    once(
        "--profile",
        type=click.Choice(IMAGE_PROFILES),
        default=IMAGE_PROFILES[0],
        show_default=True,
        help="What of ROCm: what the wheels need, or all of it.",
    ),
    once(
        "--rocm",
        metavar="SOURCE",
        help="ROCm as a tarball, URL or folder; default: the manifest's tarball.",
    ),
    option(
        "--unreleased",
        is_flag=True,
        help="Of a set that is only staged: to another repository, labelled so.",
    ),
    once(
        "--build-network",
        metavar="NAME",
        default="default",
        show_default=True,
        help="Network of the steps that install packages: default, host.",
    ),
)
@section(
    "Output",
    option("--test", is_flag=True, help="Run the recipe's suites in the image."),
    once(
        "--jax-tests",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="A JAX checkout at the set's commit; default: it is fetched.",
    ),
    option(
        "--slots",
        type=click.Path(path_type=Path),
        default=SLOTS,
        show_default=True,
        help="Lock files of the devices, shared by everything on this machine.",
    ),
    once(
        "--output",
        type=click.Path(path_type=Path),
        default=Path("gate-results/image"),
        show_default=True,
        help="Where results and logs go.",
    ),
)
@section(
    "Target",
    once("--push", metavar="REGISTRY", help="Push it there, tested; needs verdicts that pass."),
    option(
        "--tag", "tags", multiple=True, metavar="NAME", help="Then point this moving tag at it."
    ),
)
def runtime_images(app: App, options: RuntimeOptions) -> int:
    """Make, test and push a runtime image of a released wheel set.

    Base, ROCm, CPython and wheels are layers of their own; what users pull is what was tested.
    Unchanged inputs build and push nothing. Exit status 9 when verdicts hold the push up.
    """
    options.check()
    wanted = _Wanted(app, options)
    if options.dry_run:
        app.emit_plan(wanted.lines())
        return 0
    engine = container.ask(EngineKind(options.engine), environ=app.environ, runner=app.runner)
    return _make(app, options, wanted, engine)


class _Wanted:
    """What the options mean: a set in a place, an image of it."""

    def __init__(self, app: App, options: RuntimeOptions) -> None:
        """Raises UsageError, ConfigError, StoreError."""
        self.docker = app.home.sources / "docker"
        target = Target(app, options)
        self.family = target.family
        self.manifest = target.manifest(app, options.manifest or "")
        major = wheelset.rocm_major(self.manifest)
        release = target.channel.release(target.store, self.family.name, major)
        staging = target.channel.staging(target.store, self.family.name, major)
        known = log.read(release).sets.get(self.manifest.sha256)
        is_released = known is not None and known.standing is Standing.LISTED
        if not is_released and not options.unreleased:
            raise ConfigError(
                f"{self.manifest.sha256[:12]}: not released",
                hint="promote it first, or add --unreleased: it goes to another repository",
            )
        if not is_released and options.tags:
            raise ConfigError(
                f"{self.manifest.sha256[:12]}: not released",
                hint="moving tags name released sets only: leave --tag out",
            )
        self.place: Place = release if is_released else staging
        chosen = image_recipe.load(app.home.ci / "images.yaml", options.recipe)
        self.subject = Subject(
            recipe=chosen,
            base=chosen.base(options.base),
            manifest=self.manifest,
            family=self.family.name,
            python=PythonVersion.parse(options.python or ""),
            profile=options.profile,
            is_released=is_released,
        )
        self.python = self.subject.base.python(self.subject.python)
        if str(self.subject.python) not in self.manifest.pythons:
            raise ConfigError(
                f"the wheel set has no CPython {self.subject.python}",
                hint=f"it has {', '.join(self.manifest.pythons)}",
            )
        self.image = options.base_image or self.subject.base.base.reference
        if not options.base_image and not self.subject.base.base.digest:
            raise ConfigError(
                f"{self.image}: a tag where a digest must be",
                hint="write its digest into ci/images.yaml, or give --base-image NAME@sha256:…",
            )

    def lines(self) -> list[str]:
        """What would be done."""
        subject, manifest = self.subject, self.manifest
        return [
            f"image: {subject.reference}",
            f"set: {manifest.sha256} of {self.place.location}",
            f"base: {self.image}, with {' '.join(subject.base.packages)}",
            f"ROCm: {manifest.rocm.name} {manifest.rocm.sha256[:12]}",
            f"profile: {subject.profile}, cut to {', '.join(manifest.gfx_targets)}",
            f"CPython: {subject.python}, {' '.join(self.python.packages) or self.python.archive}",
            *(f"wheel: {item.filename}" for item in self._wheels()),
            f"beside: {' '.join(subject.recipe.packages_beside(manifest)) or 'nothing'}",
            f"suites: {', '.join(subject.recipe.suites)}",
            f"budget: {size(subject.recipe.budgets[subject.profile])}",
        ]

    def _wheels(self) -> list[Any]:
        fits = ("", str(self.subject.python))
        return [item for item in self.manifest.wheels if item.python in fits]


def _make(app: App, options: RuntimeOptions, wanted: _Wanted, engine: ContainerEngine) -> int:
    plan = _plan(app, options, wanted, engine)
    to = publishing.Registry(name=options.push or "", environ=app.environ)
    known = publishing.recorded(plan, wanted.place, to) if options.push else None
    if known and not options.test:
        app.console.info(f"unchanged inputs: {known.reference} is there, nothing was built")
        document: dict[str, Any] = {
            "inputs": plan.digest,
            "new": False,
            "config": known.config,
        }
        document |= _moved(app, options, wanted, to, known) | {"pushed": False}
        app.emit(document, str(document["pull"]))
        return 0
    if options.push and not known:
        publishing.refuse_taken(plan, to)
    made = making.build(
        plan,
        engine=engine,
        runner=app.runner,
        console=app.console,
        network=options.build_network,
        place=app.cache / container.PLACE,
    )
    if not made.is_new:
        app.console.info(f"unchanged inputs: {plan.image} is there, nothing was built")
    spec = trial.inside(made.image, (), engine=engine, folder=app.cache / container.PLACE)
    with contents.programs(spec, made.image.config, cache=app.cache, runner=app.runner) as programs:
        trial.refuse_missing(plan, programs)
        system = sbom.packages(programs)
    weights = ", ".join(f"{name} {size(amount)}" for name, amount in made.layers.items())
    app.console.info(f"   {size(sum(made.layers.values()))}: {weights}")
    making.refuse_heavy(plan, made)
    document = {
        "reference": wanted.subject.reference,
        "local": plan.image,
        "config": made.image.config,
        "inputs": plan.digest,
        "new": made.is_new,
        "layers": dict(made.layers),
        "rocm_files": len(plan.closure.paths),
        "verdicts": [],
    }
    worst = 0
    if options.test:
        verdicts = [_test(app, options, plan, made, name, engine=engine, place=wanted.place,
                          wanted=wanted) for name in wanted.subject.recipe.suites]  # fmt: skip
        worst = max(item.state.exit_code for item in verdicts)
        document["verdicts"] = [
            {"suite": item.suite, "state": item.state.value, "reason": item.reason}
            for item in verdicts
        ]
        bad = (item for item in verdicts if item.state is not State.PASS)
        document["reason"] = next(
            (f"{item.suite}: {item.state.value} {item.reason}".rstrip() for item in bad), ""
        )
    if options.push and not worst:
        found, sent = (
            (known, False)
            if known
            else _pushed(app, options, wanted, plan, made, to=to, engine=engine, system=system)
        )
        document |= _moved(app, options, wanted, to, found) | {"pushed": sent}
    app.emit(document, str(document.get("pull", plan.image)))
    return worst


def _plan(app: App, options: RuntimeOptions, wanted: _Wanted, engine: ContainerEngine) -> ImagePlan:
    subject, manifest = wanted.subject, wanted.manifest
    base = found.obtain(
        wanted.image,
        engine=engine,
        locked=False,
        otherwise="change the recipe's base in ci/images.yaml",
        runner=app.runner,
        console=app.console,
    )
    with app.console.step("ROCm", key="rocm"):
        wanted_rocm = gated.rocm_of(
            manifest, options.rocm or "", exact=True, cache=app.cache, cwd=app.cwd
        )
        tree = rocm.fetch(wanted_rocm, console=app.console, env=app.environ)
        if not options.rocm and tree.sha256 != manifest.rocm.sha256:
            raise ConfigError("another ROCm than the set's", hint="give --rocm")
    with app.console.step("Wheels and their dependencies", key="wheels"):
        folder = app.cache / "runtime" / manifest.sha256
        brought = {wheel.filename: wheel.sha256 for wheel in manifest.built}
        local = manifests.bring(wanted.place, brought, folder)
        reports = tuple(parallel.each(inspect, local))
        fits = {
            item.filename for item in manifest.built if item.python in ("", str(subject.python))
        }
        mine = {path: sha256 for path, sha256 in local.items() if path.name in fits}
        where = packages.Where(python=subject.python, glibc=subject.base.glibc)
        beside = (
            *packages.upstream(manifest, subject.python),
            *subject.recipe.packages_beside(manifest),
        )
        pins = packages.resolve(mine, beside, where, runner=app.runner)
        packages.compare(pins, manifest, subject.python)
    return ImagePlan(
        subject=subject,
        base=base,
        rocm=tree,
        closure=making.files_of(subject.profile, tree, reports, subject.recipe, manifest),
        wheels=mine,
        pins=pins,
        where=where,
        archive=packages.archive(
            wanted.python, app.cache / "runtime", env=app.environ, console=app.console
        ),
        docker=wanted.docker,
        tool=source.head(app.home.sources, runner=app.runner),
    )


def _test(
    app: App,
    options: RuntimeOptions,
    plan: ImagePlan,
    made: MadeImage,
    name: str,
    *,
    engine: ContainerEngine,
    place: Place,
    wanted: _Wanted,
) -> record.ImageVerdict:
    suite = suites.load(app.home.ci, name)
    with (
        container.scratch(app.cache / container.PLACE, "trial") as folder,
        app.console.step(f"Suite {name} in the image", key="test"),
    ):
        asked = trial.Trial(
            plan=plan,
            image=made.image,
            family=wanted.family,
            families=app.path(options.families),
            suite=suite,
            home=app.home,
            jax_tests=None if suite.source.folder else _jax(app, options, wanted.manifest),
            slots=app.cwd / options.slots,
            masks={name: app.environ[name] for name in MASKS if name in app.environ},
            folder=folder,
            output=app.cwd / options.output / name,
        )
        verdict = trial.run(
            asked, engine=engine, runner=app.runner, now=app.now(), host=socket.gethostname()
        )
        record.add_verdict(place, verdict)
    said = f"{name}: {verdict.state.value}{f': {verdict.reason}' if verdict.reason else ''}"
    (app.console.info if verdict.state is State.PASS else app.console.warn)(said)
    return verdict


def _jax(app: App, options: RuntimeOptions, manifest: Manifest) -> Path:
    """A checkout of the set's JAX, for suites that run its tests."""
    if options.jax_tests:
        return app.cwd / options.jax_tests
    wanted = gated.jax_of(manifest, cache=app.cache)
    git.checkout(wanted, runner=app.runner)
    return wanted.folder


def _pushed(
    app: App,
    options: RuntimeOptions,
    wanted: _Wanted,
    plan: ImagePlan,
    made: MadeImage,
    *,
    to: publishing.Registry,
    engine: ContainerEngine,
    system: tuple[str, ...],
) -> tuple[record.ImageRecord, bool]:
    """Push and record; whether anything was sent."""
    who = options.who(app, reason="runtime image")
    passed = publishing.refuse_untried(plan, made, wanted.place)
    with app.console.step("Push", key="push"):
        remote, sent = publishing.push(
            plan, made, to, engine=engine, runner=app.runner, console=app.console
        )
    bill = sbom.write(plan, made.image.config, system, now=made.image.made_at)
    found = publishing.describe(plan, made, remote, passed, sbom=files.sha256(bill), who=who)
    if grown := publishing.trend(wanted.place, found):
        app.console.info(f"   size: {grown}")
    record.put(wanted.place, found, bill)
    return found, sent


def _moved(
    app: App,
    options: RuntimeOptions,
    wanted: _Wanted,
    to: publishing.Registry,
    found: record.ImageRecord,
) -> dict[str, Any]:
    """Point the moving tags, last of all; what a program is told of it."""
    who = options.who(app, reason="runtime image")
    moved = [tag for tag in options.tags if publishing.move(wanted.place, to, tag, found, who)]
    return {
        "reference": found.reference,
        "pull": f"{found.repository}@{found.digest}",
        "tags": moved,
    }


@dataclass(frozen=True, kw_only=True)
class ListOptions(TargetOptions):
    """Options of `runtime_images list`."""

    html: Path | None


@command("list", ListOptions, parent=runtime_images)
@option(
    "--html",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write a page for people, too.",
)
def list_images(app: App, options: ListOptions) -> None:
    """List the images that were pushed: reference, digest, size, set, and moving tags."""
    page = page_path(app, options.html)
    target = Target(app, options)
    found = [item for pair in target.pairs() for place in pair for item in listing.listed(place)]
    rows = [
        (item["reference"], item["digest"][7:19], size(item["size"]), item["manifest"][:12],
         "released" if item["released"] else "staged", " ".join(item["tags"]))
        for item in found
    ]  # fmt: skip
    head = ("image", "digest", "size", "set", "state", "tags")
    app.emit({"images": found}, "\n".join(columns(head, rows)))
    if page:
        title = f"Runtime images of {target.family.name}"
        write_page(page, listing.page(found, title=title, now=app.now()))


@dataclass(frozen=True, kw_only=True)
class RollbackOptions(TargetOptions, PersonOptions, DryRun):
    """Options of `runtime_images rollback`."""

    manifest: str


@command("rollback", RollbackOptions, parent=runtime_images)
@section("Target", once("--manifest", required=True, metavar="SHA|PATH", help="The wheel set."))
def rollback(app: App, options: RollbackOptions) -> int:
    """Move tags away from the images of a set, to where they pointed before; name the images.

    Images are kept: who pulled one by digest can still pull it. Exit status 9 when a tag has
    nowhere to go.
    """
    place, sha256 = Target(app, options).release_of(app, options.manifest)
    sets = log.read(place).sets
    listed = {key for key, item in sets.items() if item.standing is Standing.LISTED}
    found = publishing.withdrawal(place, sha256, listed=listed)
    _withdraw(app, options, place, found)
    images = [item.pinned for item in found.images]
    document = {
        "moved": [f"{last.repository}:{last.tag}" for last, _ in found.moves],
        "stuck": [f"{last.repository}:{last.tag}" for last in found.stuck],
        "images": images,
        "dry_run": options.dry_run,
    }
    app.emit(document, "\n".join(images))
    return PromotionError.exit_code if found.stuck else 0


def _withdraw(
    app: App, options: RollbackOptions, place: Place, found: publishing.Withdrawal
) -> None:
    """Move each tag back, and tell of those that have nowhere to go."""
    who = options.who(app, reason="rollback")
    to = publishing.Registry(name="", environ=app.environ)
    for last, image in found.moves:
        app.console.info(f"{last.repository}:{last.tag} -> {image.reference}")
        if not options.dry_run:
            publishing.move(place, to, last.tag, image, who)
    for last in found.stuck:
        app.console.fail(
            PromotionError(
                f"{last.repository}:{last.tag}: points at {last.digest}, and at nothing before",
                hint="push another set under it, or remove the tag in the registry",
            )
        )
