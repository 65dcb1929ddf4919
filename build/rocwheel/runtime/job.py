"""One runtime image, from a request to a tag that users pull: made, tried, pushed, recorded."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from amdgpu_family_matrix import Family
from rocwheel import container, files, parallel, rocm, source
from rocwheel.console import Console, size
from rocwheel.container import ContainerEngine
from rocwheel.errors import ConfigError
from rocwheel.gate import subject as gated
from rocwheel.gate.machine.accelerators import MASKS
from rocwheel.gate.suite import suites
from rocwheel.home import Home
from rocwheel.image import contents, found
from rocwheel.ledger import log, manifests
from rocwheel.ledger.state import Standing
from rocwheel.manifest import Manifest
from rocwheel.model import PythonVersion
from rocwheel.places import Place
from rocwheel.process import HostRunner
from rocwheel.release.operations import Who
from rocwheel.runtime import image_recipe, making, packages, publishing, record, sbom, trial
from rocwheel.runtime.image_recipe import PythonSource
from rocwheel.runtime.making import ImagePlan, MadeImage, Subject
from rocwheel.source import git
from rocwheel.values import replace
from rocwheel.verdict import State
from rocwheel.wheel.inspect import inspect


@dataclass(frozen=True, kw_only=True)
class ImageRequest:
    """An image of a wheel set that is asked for, and what to do with it."""

    manifest: Manifest
    family: Family
    release: Place
    staging: Place
    python: str
    recipe: str
    base: str  # "" is the recipe's default
    base_image: str  # takes the place of the base's own; "" is that one
    profile: str
    rocm: str  # a source; "" is the manifest's
    unreleased: bool
    build_network: str
    test: bool
    jax_tests: Path | None
    slots: Path
    push: str  # a registry; "" pushes nothing
    tags: tuple[str, ...]
    output: Path
    families: Path | None
    who: Who


class Workplace(Protocol):
    """What a command lends an image's making: where it works, and how it talks."""

    @property
    def environ(self) -> Mapping[str, str]: ...
    @property
    def cwd(self) -> Path: ...
    @property
    def cache(self) -> Path: ...
    @property
    def home(self) -> Home: ...
    @property
    def runner(self) -> HostRunner: ...
    @property
    def console(self) -> Console: ...
    def now(self) -> datetime: ...


@dataclass(frozen=True, kw_only=True)
class ImageOutcome:
    """How making an image ended: an exit status, and what is printed."""

    status: int
    document: Mapping[str, Any]
    line: str  # for people: what to pull, or the local name


@dataclass(frozen=True, kw_only=True)
class ImageJob:
    """A request that was checked: a set in a place, and an image of it."""

    request: ImageRequest
    place: Place
    subject: Subject
    python: PythonSource
    image: str  # that it is made on
    docker: Path  # the folder of Dockerfiles

    @property
    def lines(self) -> list[str]:
        """Return what would be done."""
        subject, manifest = self.subject, self.request.manifest
        fits = ("", str(subject.python))
        return [
            f"image: {subject.reference}",
            f"set: {manifest.sha256} of {self.place.location}",
            f"base: {self.image}, with {' '.join(subject.base.packages)}",
            f"ROCm: {manifest.rocm.name} {manifest.rocm.sha256[:12]}",
            f"profile: {subject.profile}, cut to {', '.join(manifest.gfx_targets)}",
            f"CPython: {subject.python}, {' '.join(self.python.packages) or self.python.archive}",
            *(f"wheel: {item.filename}" for item in manifest.wheels if item.python in fits),
            f"beside: {' '.join(subject.recipe.packages_beside(manifest)) or 'nothing'}",
            f"suites: {', '.join(subject.recipe.suites)}",
            f"budget: {size(subject.recipe.budgets[subject.profile])}",
        ]


def plan(request: ImageRequest, *, home: Home) -> ImageJob:
    """Check a request against the index and the recipes. Raises ConfigError, StoreError."""
    sources, manifest = home.sources, request.manifest
    known = log.read(request.release).sets.get(manifest.sha256)
    is_released = known is not None and known.standing is Standing.LISTED
    if not is_released and not request.unreleased:
        raise ConfigError(
            f"{manifest.sha256[:12]}: not released",
            hint="promote it first, or add --unreleased: it goes to another repository",
        )
    if not is_released and request.tags:
        raise ConfigError(
            f"{manifest.sha256[:12]}: not released",
            hint="moving tags name released sets only: leave --tag out",
        )
    chosen = image_recipe.load(home.ci / "images.yaml", request.recipe)
    subject = Subject(
        recipe=chosen,
        base=chosen.base(request.base),
        manifest=manifest,
        family=request.family.name,
        python=PythonVersion.parse(request.python),
        profile=request.profile,
        is_released=is_released,
    )
    python = subject.base.python(subject.python)
    if str(subject.python) not in manifest.pythons:
        raise ConfigError(
            f"the wheel set has no CPython {subject.python}",
            hint=f"it has {', '.join(manifest.pythons)}",
        )
    image = request.base_image or subject.base.base.reference
    if not request.base_image and not subject.base.base.digest:
        raise ConfigError(
            f"{image}: a tag where a digest must be",
            hint="write its digest into ci/images.yaml, or give --base-image NAME@sha256:…",
        )
    return ImageJob(
        request=request,
        place=request.release if is_released else request.staging,
        subject=subject,
        python=python,
        image=image,
        docker=sources / "docker",
    )


def make(job: ImageJob, here: Workplace, engine: ContainerEngine) -> ImageOutcome:
    """Make, test and push the image, as far as the request goes."""
    plan = _plan(job, here, engine)
    to = publishing.Registry(name=job.request.push, environ=here.environ)
    known = publishing.recorded(plan, job.place, to) if job.request.push else None
    if known and not job.request.test:
        here.console.info(f"unchanged inputs: {known.reference} is there, nothing was built")
        document: dict[str, Any] = {
            "inputs": plan.digest,
            "new": False,
            "config": known.config,
        }
        document |= _moved(job, here, to, known) | {"pushed": False}
        return ImageOutcome(status=0, document=document, line=str(document["pull"]))
    if job.request.push and not known:
        publishing.refuse_taken(plan, to)
    made = making.build(
        plan,
        engine=engine,
        runner=here.runner,
        console=here.console,
        network=job.request.build_network,
        place=here.cache / container.PLACE,
    )
    if not made.is_new:
        here.console.info(f"unchanged inputs: {plan.image} is there, nothing was built")
    spec = trial.inside(made.image, (), engine=engine, folder=here.cache / container.PLACE)
    with contents.programs(
        spec, made.image.config, cache=here.cache, runner=here.runner
    ) as programs:
        trial.refuse_missing(plan, programs)
        system = sbom.packages(programs)
    weights = ", ".join(f"{name} {size(amount)}" for name, amount in made.layers.items())
    here.console.info(f"   {size(sum(made.layers.values()))}: {weights}")
    making.refuse_heavy(plan, made)
    document = {
        "reference": job.subject.reference,
        "local": plan.image,
        "config": made.image.config,
        "inputs": plan.digest,
        "new": made.is_new,
        "layers": dict(made.layers),
        "rocm_files": len(plan.closure.paths),
        "verdicts": [],
    }
    worst = 0
    if job.request.test:
        verdicts = [
            _test(job, here, plan, made, name, engine=engine) for name in job.subject.recipe.suites
        ]
        worst = max(item.state.exit_code for item in verdicts)
        document["verdicts"] = [
            {"suite": item.suite, "state": item.state.value, "reason": item.reason}
            for item in verdicts
        ]
        bad = (item for item in verdicts if item.state is not State.PASS)
        document["reason"] = next(
            (f"{item.suite}: {item.state.value} {item.reason}".rstrip() for item in bad), ""
        )
    if job.request.push and not worst:
        pushed, sent = (
            (known, False)
            if known
            else _pushed(job, here, plan, made, to=to, engine=engine, system=system)
        )
        document |= _moved(job, here, to, pushed) | {"pushed": sent}
    line = str(document.get("pull", plan.image))
    return ImageOutcome(status=worst, document=document, line=line)


def _plan(job: ImageJob, here: Workplace, engine: ContainerEngine) -> ImagePlan:
    subject, manifest = job.subject, job.request.manifest
    base = found.obtain(
        job.image,
        engine=engine,
        locked=False,
        otherwise="change the recipe's base in ci/images.yaml",
        runner=here.runner,
        console=here.console,
    )
    with here.console.step("ROCm", key="rocm"):
        wanted_rocm = gated.rocm_of(
            manifest, job.request.rocm, exact=True, cache=here.cache, cwd=here.cwd
        )
        tree = rocm.fetch(wanted_rocm, console=here.console, env=here.environ)
        if tree.origin == manifest.rocm.origin and tree.sha256 != manifest.rocm.sha256:
            raise ConfigError("another ROCm than the set's", hint="give --rocm")
    with here.console.step("Wheels and their dependencies", key="wheels"):
        folder = here.cache / "runtime" / manifest.sha256
        brought = {wheel.filename: wheel.sha256 for wheel in manifest.built}
        local = manifests.bring(job.place, brought, folder)
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
        pins = packages.resolve(mine, beside, where, runner=here.runner)
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
            job.python, here.cache / "runtime", env=here.environ, console=here.console
        ),
        docker=job.docker,
        tool=source.head(here.home.sources, runner=here.runner),
    )


def _test(
    job: ImageJob,
    here: Workplace,
    plan: ImagePlan,
    made: MadeImage,
    name: str,
    *,
    engine: ContainerEngine,
) -> record.ImageVerdict:
    suite = suites.load(here.home.ci, name)
    with (
        container.scratch(here.cache / container.PLACE, "trial") as folder,
        here.console.step(f"Suite {name} in the image", key="test"),
    ):
        asked = trial.Trial(
            plan=plan,
            image=made.image,
            family=job.request.family,
            families=job.request.families,
            suite=suite,
            home=here.home,
            jax_tests=None if suite.source.folder else _jax(job, here),
            slots=here.cwd / job.request.slots,
            masks={name: here.environ[name] for name in MASKS if name in here.environ},
            folder=folder,
            output=here.cwd / job.request.output / name,
        )
        verdict = trial.run(
            asked, engine=engine, runner=here.runner, now=here.now(), host=socket.gethostname()
        )
        record.add_verdict(job.place, verdict)
    line = f"{name}: {verdict.state.value}{f': {verdict.reason}' if verdict.reason else ''}"
    (here.console.info if verdict.state is State.PASS else here.console.warn)(line)
    return verdict


def _jax(job: ImageJob, here: Workplace) -> Path:
    """Return a checkout of the set's JAX, for suites that run its tests."""
    if job.request.jax_tests:
        return here.cwd / job.request.jax_tests
    wanted = gated.jax_of(job.request.manifest, cache=here.cache)
    git.checkout(wanted, runner=here.runner)
    return wanted.folder


def _pushed(
    job: ImageJob,
    here: Workplace,
    plan: ImagePlan,
    made: MadeImage,
    *,
    to: publishing.Registry,
    engine: ContainerEngine,
    system: tuple[str, ...],
) -> tuple[record.ImageRecord, bool]:
    """Push and record; return the record, and whether anything was sent."""
    who = replace(job.request.who, now=here.now())
    passed = publishing.refuse_untried(plan, made, job.place)
    with here.console.step("Push", key="push"):
        remote, sent = publishing.push(
            plan, made, to, engine=engine, runner=here.runner, console=here.console
        )
    bill = sbom.write(plan, made.image.config, system, now=made.image.made_at)
    pushed = publishing.describe(plan, made, remote, passed, sbom=files.sha256(bill), who=who)
    if grown := publishing.trend(job.place, pushed):
        here.console.info(f"   size: {grown}")
    record.put(job.place, pushed, bill)
    return pushed, sent


def _moved(
    job: ImageJob,
    here: Workplace,
    to: publishing.Registry,
    found: record.ImageRecord,
) -> dict[str, Any]:
    """Point the moving tags, last of all; return what `--json` shows of it."""
    who = replace(job.request.who, now=here.now())
    moved = [tag for tag in job.request.tags if publishing.move(job.place, to, tag, found, who)]
    return {
        "reference": found.reference,
        "pull": f"{found.repository}@{found.digest}",
        "tags": moved,
    }
