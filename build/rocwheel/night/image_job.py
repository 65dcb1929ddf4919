"""Makes one runtime image, from a request to a tag that users pull: made, tested, pushed, recorded.

The gate runs in it, on its own Python, with its ROCm and its wheels. Mounts are read-only and
beside the image, so that the test is of what users pull: the gate with its packages, the suite's
packages, the set's manifest, the tests.
"""

import secrets
import socket
from pathlib import Path, PurePosixPath
from typing import Any, Final

from amdgpu_family_matrix import Family
from rocwheel import rocm
from rocwheel.base import container, git, parallel
from rocwheel.base.console import size
from rocwheel.base.container import ContainerEngine, ContainerSpec, Mount
from rocwheel.base.errors import ConfigError, HostError, PromotionError, StoreError
from rocwheel.base.here import Here
from rocwheel.base.host.cgroup import REQUEST
from rocwheel.base.host.virtualenv import pip
from rocwheel.base.process import Command, GuestPath, guest
from rocwheel.base.values import Plain, replace
from rocwheel.base.versions import PythonVersion
from rocwheel.dist.build_request import Executor
from rocwheel.dist.executor import caller, limits
from rocwheel.gate import subject as gated
from rocwheel.gate.machine.accelerators import MASKS
from rocwheel.gate.suite import suites
from rocwheel.gate.suite.suites import Suite
from rocwheel.gate.verdict import storing
from rocwheel.image import closure, contents, recipe, registry, runtime
from rocwheel.image.build import Made
from rocwheel.image.recipe import ImageOptions
from rocwheel.image.registry import INPUTS, Found
from rocwheel.image.runtime import PYTHON, ImagePlan, Subject
from rocwheel.night import image_record as record
from rocwheel.night.image_record import ImageRecord, ImageVerdict
from rocwheel.records.manifest import MANIFEST, Manifest
from rocwheel.records.places import Place
from rocwheel.records.results import Results
from rocwheel.records.verdict import State, Verdict
from rocwheel.release.ledger import log, manifests
from rocwheel.release.ledger.state import Standing
from rocwheel.release.operations import Who
from rocwheel.wheel.inspect import inspect

TOOL: Final = guest("/rocwheel/tool")
DEPENDENCIES: Final = guest("/rocwheel/dependencies")
BESIDE: Final = guest("/rocwheel/beside")
WHEELS: Final = guest("/rocwheel/wheels")
OUTPUT: Final = guest("/rocwheel/output")
FAMILIES: Final = guest("/rocwheel/families.yaml")
TESTS: Final = guest("/rocwheel/jax")
SLOTS: Final = guest("/rocwheel/slots")
WORK: Final = "/tmp"  # noqa: S108 - inside, in memory


class ImageJob(Plain, frozen=True, kw_only=True):
    """A checked request: a set in a place, an image of it, and what to do with that."""

    options: ImageOptions
    subject: Subject
    place: Place  # where the set is
    image: str  # that it is made on
    family: Family
    families: Path | None  # --family-file
    who: Who

    @property
    def repository(self) -> str:
        """Where it is pushed."""
        return f"{self.options.push}/{self.subject.repository}"

    @property
    def lines(self) -> list[str]:
        """Return the lines of a dry run."""
        subject, manifest = self.subject, self.subject.manifest
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


def plan(
    options: ImageOptions,
    here: Here,
    *,
    manifest: Manifest,
    family: Family,
    families: Path | None,
    release: Place,
    staging: Place,
    who: Who,
) -> ImageJob:
    """Check a request against the index, the recipes and a ROCm that is here."""
    known = log.read(release).of(release.family).sets.get(manifest.sha256)
    is_released = known is not None and known.standing is Standing.LISTED
    for lacks, hint in (
        (not options.unreleased,
         "promote it first, or add --unreleased: it goes to another repository"),
        (options.tags, "moving tags name released sets only: leave --tag out"),
    ):  # fmt: skip
        if lacks and not is_released:
            raise ConfigError(f"{manifest.sha256[:12]}: not released", hint=hint)
    chosen = recipe.runtime(here.home.ci, options.recipe)
    subject = Subject(
        recipe=chosen,
        base=chosen.base(options.base),
        manifest=manifest,
        family=family.name,
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
        rocm.check_local(
            gated.rocm_of(manifest, options.rocm, exact=True, cache=here.cache, cwd=here.cwd)
        )
    return ImageJob(
        options=options,
        subject=subject,
        place=release if is_released else staging,
        image=options.base_image or subject.base.base.pinned("--base-image"),
        family=family,
        families=families,
        who=who,
    )


def make(job: ImageJob, engine: ContainerEngine, here: Here) -> tuple[int, dict[str, Any], str]:
    """Make, test and push the image, as far as the request goes.

    Return an exit status, the document of `--json`, and for people the name to pull.
    """
    plan, options = _plan(job, engine, here), job.options
    wanted = f"{job.repository}:{job.subject.tag}"
    images = record.records(job.place, {wanted}) if options.push else ()
    known = next((item for item in images if item.inputs == plan.digest), None)
    if known and not options.test:
        here.console.info(f"unchanged inputs: {known.reference} is there, nothing was built")
        document = {"inputs": plan.digest, "new": False, "config": known.config}
        document |= _pointed(job, known, here) | {"pushed": False}
        return 0, document, str(document["pull"])
    if options.push and not known:  # before hours go into an image that could not be pushed
        there = registry.look(
            job.repository, job.subject.tag, environ=here.environ, runner=here.runner
        )
        if there and there.labels.get(INPUTS) != plan.digest:
            raise StoreError(
                f"{wanted}: is there, made from other inputs",
                hint="no tag is overwritten: change `tag` or the repository in ci/images.yaml",
            )
    made = runtime.make(plan, engine, here, network=options.build_network)
    spec = _inside(made.image, (), engine, here.cache / container.PLACE)
    with contents.entered(spec, runner=here.runner) as inside:
        loader = ("/bin/sh", "-c", "PATH=$PATH:/sbin:/usr/sbin ldconfig -p")
        known_libraries = inside.capture(Command(argv=loader, timeout=60))
    if lacks := closure.missing(plan.closure, known_libraries):
        listed = ", ".join(f"{name} (for {who})" for name, who in lacks.items())
        raise HostError(
            f"{job.subject.reference}: neither ROCm nor the base brings {listed}",
            hint="add the packages that do to the base in ci/images.yaml",
        )
    here.console.info(f"   {size(made.image.size)}")
    made.refuse_heavy(job.subject.budget)
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
            _test(job, plan, made.image, engine, here, name=name)
            for name in job.subject.recipe.suites
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
            _pointed(job, known, here) | {"pushed": False}
            if known
            else _pushed(job, plan, made, engine, here)
        )
    return worst, document, str(document.get("pull", plan.image))


def _plan(job: ImageJob, engine: ContainerEngine, here: Here) -> ImagePlan:
    subject, manifest = job.subject, job.subject.manifest
    base = registry.obtain(
        job.image,
        engine,
        runner=here.runner,
        console=here.console,
        alternative="change the recipe's base in ci/images.yaml",
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
        where = closure.Where(python=subject.python, glibc=subject.base.glibc)
        # with those of the set that it did not build
        beside = [f"{item.project}=={item.version}" for item in own if item.origin == "upstream"]
        beside += subject.recipe.packages_beside(manifest)
        pins = closure.resolve(mine, beside, where, runner=here.runner)
        closure.compare(pins, manifest, subject.python)
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


def _inside(
    image: Found, mounts: tuple[Mount, ...], engine: ContainerEngine, folder: Path
) -> ContainerSpec:
    """Return a container as users would start it: under an unknown uid, with the GPUs."""
    run = secrets.token_hex(6)
    return ContainerSpec(
        engine=engine,
        image=image.identity,
        run=run,
        folder=folder / run,
        user=caller(),
        mounts=mounts,
        limits=limits(Executor()),
        devices=container.devices(),
        purpose="trial",
    )


def _test(
    job: ImageJob, plan: ImagePlan, image: Found, engine: ContainerEngine, here: Here, *, name: str
) -> Verdict:
    """Run a suite in the image; store and return its verdict. Raises HostError without one."""
    suite = suites.load(here.home.ci, name)
    output = job.options.output / name
    with (
        container.scratch(here.cache / container.PLACE, "trial") as folder,
        here.console.step(f"Suite {name} in the image", key="test"),
    ):
        tests = None if suite.source.folder else job.options.jax_tests
        if not suite.source.folder and tests is None:  # those of the JAX that the set is of
            wanted = gated.jax_of(plan.subject.manifest, cache=here.cache)
            git.checkout(wanted, runner=here.runner)
            tests = wanted.folder
        given = {FAMILIES: job.families, TESTS: tests}
        read = _prepared(plan, suite, folder, here) | {
            at: host for at, host in given.items() if host
        }
        mounts = [Mount(host=host, guest=at) for at, host in read.items()]
        for at, host in {OUTPUT: output, SLOTS: job.options.slots}.items():
            host.mkdir(parents=True, exist_ok=True)
            mounts.append(Mount(host=host, guest=at, writable=True))
        storing.clear(output)
        spec = _inside(image, tuple(mounts), engine, folder)
        env = {
            "PYTHONPATH": f"{DEPENDENCIES}:{TOOL / 'build'}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "ROCWHEEL_CACHE_DIR": f"{WORK}/cache",
            # it may use the devices that we may use
            **{key: here.environ[key] for key in (*MASKS, REQUEST) if key in here.environ},
        }
        words = (
            PYTHON, str(TOOL / "build" / "ci_build"), "gate", f"--wheels={WHEELS}",
            f"--suite={name}", f"--python={plan.subject.python}", f"--family={job.family.name}",
            f"--installed={PYTHON}", f"--packages={BESIDE}", f"--output={OUTPUT}",
            f"--slots={SLOTS}",
            *((f"--family-file={FAMILIES}",) if FAMILIES in read else ()),
            *((f"--jax-tests={TESTS}",) if TESTS in read else ()),
        )  # fmt: skip
        gate = Command(argv=words, env=env, cwd=PurePosixPath(WORK))
        with container.running(spec, runner=here.runner) as inside:
            done = inside.run(gate, log=output / "gate.log", check=False)
        try:
            verdict, results = storing.shard_in(output, seen_from=output)
        except ConfigError as exc:
            raise HostError(
                f"{image.reference}: the gate did not run in it",
                hint=f"the whole output is in {output / 'gate.log'}",
                detail=done.output,
            ) from exc
        assert verdict  # noqa: S101 - the manifest is mounted beside the gate
        reason = reason_with_cause(verdict, results)
        verdict = replace(verdict, host=socket.gethostname(), reason=reason)
        record.add_verdict(job.place, ImageVerdict(image=image.config, verdict=verdict))
    line = f"{name}: {verdict.state.value}{f': {verdict.reason}' if verdict.reason else ''}"
    (here.console.info if verdict.state is State.PASS else here.console.warn)(line)
    return verdict


def _prepared(plan: ImagePlan, suite: Suite, folder: Path, here: Here) -> dict[GuestPath, Path]:
    """Make folders with the gate and its packages, the suite's packages, the manifest."""
    root, where = here.home.root, plan.where
    made = {
        at: folder / name
        for at, name in (
            (DEPENDENCIES, "dependencies"), (BESIDE, "beside"), (WHEELS, "wheels"), (TOOL, "tool"),
        )
    }  # fmt: skip
    lock = root / "build" / "requirements.lock"
    for command in (
        pip("install", "--no-deps", "--require-hashes", *where.options, "--target",
            str(made[DEPENDENCIES]), f"--requirement={lock}"),
        pip("install", *where.options, f"--target={made[BESIDE]}", *suite.requirements),
    ):  # fmt: skip
        here.runner.run(command)
    made[WHEELS].mkdir()
    (made[WHEELS] / MANIFEST).write_bytes(plan.subject.manifest.to_bytes())
    recipe.copy_tool(root, made[TOOL])
    return made


def reason_with_cause(verdict: Verdict, results: Results) -> str:
    """Return the verdict's reason with the line of the first failure that names the error."""
    texts = [test.attempts[-1].message for test in results.failures if test.attempts]
    texts += [error.message for error in results.collect_errors]
    lines = [line for line in next(filter(None, texts), "").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    cause = (errors or lines or [""])[-1]
    return " ".join(f"{verdict.reason}; {cause}".strip("; ").split())


def _pushed(
    job: ImageJob, plan: ImagePlan, made: Made, engine: ContainerEngine, here: Here
) -> dict[str, Any]:
    """Push the image, point the moving tags at it, record it; return its document.

    Each step can be repeated: existing objects are compared and left alone. The record comes last
    and means finished. Raises PromotionError without a pass of each suite.
    """
    subject = job.subject
    verdicts = record.verdicts(job.place, made.image.config)
    if refused := tuple(record.refusals(verdicts, subject.recipe.suites)):
        raise PromotionError(
            f"{subject.reference}: not pushed: {'; '.join(refused)}",
            hint="run it with --test; an image that failed is never pushed, build another",
        )
    with here.console.step("Push", key="push"):
        remote, sent = registry.push(made.image, job.repository, subject.tag, engine, here)
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
        by=job.who.by,
        tool=plan.tool,
    )
    shown = _pointed(job, image, here)
    record.put(job.place, image)
    return shown | {"pushed": sent}


def _pointed(job: ImageJob, image: ImageRecord, here: Here) -> dict[str, Any]:
    """Point the moving tags at a pushed image; return its document.

    A tag is pointed at an image by writing that image's own manifest under it (OCI distribution
    specification, "pushing manifests"), so the bytes are those that were tried.
    """
    tags = job.options.tags
    moved = [tag for tag in tags if registry.point(job.repository, tag, image.digest, here)]
    pull = f"{job.repository}@{image.digest}"
    return {"reference": image.reference, "pull": pull, "tags": moved}
