"""One runtime image, from a request to a tag that users pull: made, tried, pushed, recorded."""

import socket
from pathlib import Path
from typing import Any

from amdgpu_family_matrix import Family
from rocwheel import rocm
from rocwheel.base import container, git, parallel
from rocwheel.base.console import size
from rocwheel.base.container import ContainerEngine
from rocwheel.base.errors import ConfigError, PromotionError, StoreError
from rocwheel.base.host.cgroup import REQUEST
from rocwheel.base.values import Plain
from rocwheel.base.versions import PythonVersion
from rocwheel.gate import subject as gated
from rocwheel.gate.machine.accelerators import MASKS
from rocwheel.gate.suite import suites
from rocwheel.image import closure, contents, found, packages, registry
from rocwheel.image import runtime_making as making
from rocwheel.image import runtime_recipe as image_recipe
from rocwheel.image.building import Made, Workplace
from rocwheel.image.found import INPUTS
from rocwheel.image.runtime_making import ImagePlan, Subject
from rocwheel.night import runtime_record as record
from rocwheel.night import runtime_trial as trial
from rocwheel.night.runtime_options import ImageOptions
from rocwheel.night.runtime_record import ImageRecord, ImageVerdict
from rocwheel.records.manifest import Manifest
from rocwheel.records.places import Place
from rocwheel.records.verdict import State, Verdict
from rocwheel.release.ledger import log, manifests
from rocwheel.release.ledger.state import Standing
from rocwheel.release.operations import Who
from rocwheel.wheel.inspect import inspect


class ImageRequest(Plain, frozen=True, kw_only=True):
    """An image of a wheel set that is asked for, and what to do with it."""

    options: ImageOptions
    manifest: Manifest
    family: Family
    release: Place
    staging: Place
    families: Path | None
    who: Who


class ImageJob(Plain, frozen=True, kw_only=True):
    """A request that was checked: a set in a place, and an image of it."""

    request: ImageRequest
    place: Place
    subject: Subject
    image: str  # that it is made on

    @property
    def options(self) -> ImageOptions:
        return self.request.options

    @property
    def repository(self) -> str:
        """Where it is pushed."""
        return f"{self.options.push}/{self.subject.repository}"

    @property
    def lines(self) -> list[str]:
        """Return what would be done."""
        subject, manifest = self.subject, self.request.manifest
        return [
            f"image: {subject.reference}",
            f"set: {manifest.sha256} of {self.place.location}",
            f"base: {self.image}, with {' '.join(subject.base.packages)}",
            f"ROCm: {manifest.rocm.name} {manifest.rocm.sha256[:12]}",
            f"profile: {subject.profile}, cut to {', '.join(manifest.gfx_targets)}",
            f"CPython: {subject.python}, {' '.join(subject.base.python(subject.python))}",
            *(f"wheel: {item.filename}" for item in manifest.of_python(subject.python)),
            f"beside: {' '.join(subject.recipe.packages_beside(manifest)) or 'nothing'}",
            f"suites: {', '.join(subject.recipe.suites)}",
            f"budget: {size(subject.budget)}",
        ]


def plan(request: ImageRequest, here: Workplace) -> ImageJob:
    """Check a request against the index, the recipes and a ROCm that is here.

    Raises ConfigError, StoreError, RocmError.
    """
    options, manifest = request.options, request.manifest
    known = log.read(request.release).of(request.release.view).sets.get(manifest.sha256)
    is_released = known is not None and known.standing is Standing.LISTED
    for lacks, hint in (
        (not options.unreleased,
         "promote it first, or add --unreleased: it goes to another repository"),
        (options.tags, "moving tags name released sets only: leave --tag out"),
    ):  # fmt: skip
        if lacks and not is_released:
            raise ConfigError(f"{manifest.sha256[:12]}: not released", hint=hint)
    chosen = image_recipe.load(here.home.ci / "images.yaml", options.recipe)
    subject = Subject(
        recipe=chosen,
        base=chosen.base(options.base),
        manifest=manifest,
        family=request.family.name,
        python=PythonVersion.parse(options.python),
        profile=options.profile,
        is_released=is_released,
    )
    subject.base.python(subject.python)
    if str(subject.python) not in manifest.pythons:
        raise ConfigError(
            f"the wheel set has no CPython {subject.python}",
            hint=f"it has {', '.join(manifest.pythons)}",
        )
    if options.rocm:
        place = {"cache": here.cache, "cwd": here.cwd}
        rocm.check_local(gated.rocm_of(manifest, options.rocm, exact=True, **place))
    return ImageJob(
        request=request,
        place=request.release if is_released else request.staging,
        subject=subject,
        image=options.base_image or subject.base.base.pinned("--base-image"),
    )


def make(
    job: ImageJob, here: Workplace, engine: ContainerEngine
) -> tuple[int, dict[str, Any], str]:
    """Make, test and push the image, as far as the request goes.

    Return an exit status, what `--json` shows, and for people what to pull, or the local name.
    """
    plan, options = _plan(job, here, engine), job.options
    wanted = f"{job.repository}:{job.subject.tag}"
    images = record.records(job.place, {wanted}) if options.push else ()
    known = next((item for item in images if item.inputs == plan.digest), None)
    if known and not options.test:
        here.console.info(f"unchanged inputs: {known.reference} is there, nothing was built")
        document = {"inputs": plan.digest, "new": False, "config": known.config}
        document |= _pointed(job, here, known) | {"pushed": False}
        return 0, document, str(document["pull"])
    if options.push and not known:  # before hours go into an image that could not be pushed
        there = registry.look(job.repository, job.subject.tag, environ=here.environ)
        if there and there.labels.get(INPUTS) != plan.digest:
            raise StoreError(
                f"{wanted}: is there, made from other inputs",
                hint="no tag is overwritten: change `tag` or the repository in ci/images.yaml",
            )
    made = _made(job, here, plan, engine)
    document = {
        "reference": job.subject.reference,
        "local": plan.image,
        "config": made.image.config,
        "inputs": plan.digest,
        "new": made.is_new,
        "size": made.image.size,
        "rocm_files": len(plan.closure.paths),
        "verdicts": [],
    }
    worst = 0
    if options.test:
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
    if options.push and not worst:
        document |= (
            _pointed(job, here, known) | {"pushed": False}
            if known
            else _pushed(job, here, plan, made, engine=engine)
        )
    return worst, document, str(document.get("pull", plan.image))


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
            manifest, job.options.rocm, exact=True, cache=here.cache, cwd=here.cwd
        )
        tree = rocm.fetch(wanted_rocm, console=here.console, env=here.environ)
        if tree.origin == manifest.rocm.origin and tree.sha256 != manifest.rocm.sha256:
            raise ConfigError("another ROCm than the set's", hint="give --rocm")
    with here.console.step("Wheels and their dependencies", key="wheels"):
        folder = here.cache / "runtime" / manifest.sha256
        brought = {wheel.filename: wheel.sha256 for wheel in manifest.built}
        local = manifests.bring(job.place, brought, folder)
        reports = tuple(parallel.each(inspect, local))
        own = manifest.of_python(subject.python)
        fits = {item.filename for item in own}
        mine = {path: sha256 for path, sha256 in local.items() if path.name in fits}
        where = packages.Where(python=subject.python, glibc=subject.base.glibc)
        # with those of the set that it did not build
        beside = [f"{item.project}=={item.version}" for item in own if item.origin == "upstream"]
        beside += subject.recipe.packages_beside(manifest)
        pins = packages.resolve(mine, beside, where, runner=here.runner)
        packages.compare(pins, manifest, subject.python)
    return ImagePlan(
        subject=subject,
        base=base,
        rocm=tree,
        closure=closure.whole(tree.root)
        if subject.profile == "devel"
        else closure.needed(tree.root, reports, subject.recipe.files, targets=manifest.gfx_targets),
        wheels=mine,
        pins=pins,
        where=where,
        docker=here.home.sources / "docker",
        tool=git.head(here.home.sources, runner=here.runner),
    )


def _made(job: ImageJob, here: Workplace, plan: ImagePlan, engine: ContainerEngine) -> Made:
    """Make the image where the engine lacks it. Raises what an incomplete or heavy one raises."""
    made = making.make(plan, engine, here, network=job.options.build_network)
    spec = trial.inside(made.image, (), engine=engine, folder=here.cache / container.PLACE)
    with contents.entered(spec, runner=here.runner) as inside:
        trial.refuse_missing(plan, inside)
    here.console.info(f"   {size(made.image.size)}")
    made.refuse_heavy(job.subject.budget)
    return made


def _test(
    job: ImageJob,
    here: Workplace,
    plan: ImagePlan,
    made: Made,
    name: str,
    *,
    engine: ContainerEngine,
) -> Verdict:
    suite = suites.load(here.home.ci, name)
    with (
        container.scratch(here.cache / container.PLACE, "trial") as folder,
        here.console.step(f"Suite {name} in the image", key="test"),
    ):
        tests = None if suite.source.folder else job.options.jax_tests
        if not suite.source.folder and tests is None:  # those of the JAX that the set is of
            wanted = gated.jax_of(job.request.manifest, cache=here.cache)
            git.checkout(wanted, runner=here.runner)
            tests = wanted.folder
        asked = trial.Trial(
            plan=plan,
            image=made.image,
            family=job.request.family,
            families=job.request.families,
            suite=suite,
            home=here.home,
            jax_tests=tests,
            slots=job.options.slots,
            masks={name: here.environ[name] for name in (*MASKS, REQUEST) if name in here.environ},
            folder=folder,
            output=job.options.output / name,
        )
        verdict = trial.run(asked, engine=engine, runner=here.runner, host=socket.gethostname())
        record.add_verdict(job.place, ImageVerdict(image=made.image.config, verdict=verdict))
    line = f"{name}: {verdict.state.value}{f': {verdict.reason}' if verdict.reason else ''}"
    (here.console.info if verdict.state is State.PASS else here.console.warn)(line)
    return verdict


def _pushed(
    job: ImageJob, here: Workplace, plan: ImagePlan, made: Made, *, engine: ContainerEngine
) -> dict[str, Any]:
    """Push the image, point the moving tags at it, record it; return what `--json` shows of it.

    Each step can be repeated: what is there already is compared and left alone. The record comes
    last: what has one is finished. Raises PromotionError without a pass of each suite.
    """
    subject = job.subject
    verdicts = record.verdicts(job.place, made.image.config)
    if refused := tuple(record.refusals(verdicts, subject.recipe.suites)):
        raise PromotionError(
            f"{subject.reference}: not pushed: {'; '.join(refused)}",
            hint="run it with --test; an image that failed is never pushed, build another",
        )
    with here.console.step("Push", key="push"):
        remote, sent = registry.push(
            made.image,
            job.repository,
            subject.tag,
            engine=engine,
            runner=here.runner,
            environ=here.environ,
            console=here.console,
        )
    image = ImageRecord(
        reference=f"{remote.repository}:{subject.tag}",
        digest=remote.digest,
        config=remote.config,
        inputs=plan.digest,
        manifest=subject.manifest.sha256,
        released=subject.is_released,
        recipe=subject.recipe.name,
        profile=subject.profile,
        python=str(subject.python),
        base=plan.base.reference,
        base_config=plan.base.config,
        rocm=str(plan.rocm.version),
        rocm_sha256=plan.rocm.sha256,
        layers={"all": made.image.size},
        blobs=remote.layers,
        packages={pin.filename: pin.sha256 for pin in plan.pins},
        verdicts=tuple(sorted(verdicts)),
        time=here.now().isoformat(),
        by=job.request.who.by,
        tool=plan.tool,
    )
    shown = _pointed(job, here, image)
    record.put(job.place, image)
    return shown | {"pushed": sent}


def _pointed(job: ImageJob, here: Workplace, image: ImageRecord) -> dict[str, Any]:
    """Point the moving tags at a pushed image; return what `--json` shows of it.

    A tag is pointed at an image by writing that image's own manifest under it (OCI distribution
    specification, "pushing manifests"), so the bytes are those that were tried.
    """
    moved = [
        tag
        for tag in job.options.tags
        if registry.point(job.repository, tag, image.digest, environ=here.environ)
    ]
    pull = f"{job.repository}@{image.digest}"
    return {"reference": image.reference, "pull": pull, "tags": moved}
