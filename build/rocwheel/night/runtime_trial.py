"""Trying a runtime image: the gate runs in it, on its own Python, with its ROCm and its wheels.

What is mounted is read-only and beside the image, so that what is tried is what users pull: the
gate itself with the packages it needs, the suite's, the set's manifest, the tests.
"""

import secrets
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from amdgpu_family_matrix import Family
from rocwheel.base import container
from rocwheel.base.container import ContainerEngine, ContainerSpec, Mount
from rocwheel.base.errors import ConfigError, HostError
from rocwheel.base.home import Home
from rocwheel.base.process import Command, GuestPath, HostRunner, Runner, guest
from rocwheel.base.values import Plain, replace
from rocwheel.dist.build_request import Executor
from rocwheel.dist.executor import caller, limits
from rocwheel.gate.suite.suites import Suite
from rocwheel.gate.verdict import storing
from rocwheel.image import closure
from rocwheel.image.found import Found
from rocwheel.image.packages import pip
from rocwheel.image.recipe import copy_tool
from rocwheel.image.runtime_making import PYTHON, ImagePlan
from rocwheel.records.manifest import MANIFEST
from rocwheel.records.results import Results
from rocwheel.records.verdict import Verdict

TOOL: Final = guest("/rocwheel/tool")
DEPENDENCIES: Final = guest("/rocwheel/dependencies")
BESIDE: Final = guest("/rocwheel/beside")
WHEELS: Final = guest("/rocwheel/wheels")
OUTPUT: Final = guest("/rocwheel/output")
FAMILIES: Final = guest("/rocwheel/families.yaml")
TESTS: Final = guest("/rocwheel/jax")
SLOTS: Final = guest("/rocwheel/slots")
WORK: Final = "/tmp"  # noqa: S108 - inside, in memory


class Trial(Plain, frozen=True, kw_only=True):
    """One suite in one image."""

    plan: ImagePlan
    image: Found
    family: Family
    families: Path | None  # the file of families of one's own
    suite: Suite
    home: Home
    jax_tests: Path | None  # a checkout, for suites that take JAX's own tests
    slots: Path  # locks of this machine's devices
    masks: Mapping[str, str]  # what of the devices this process may use, as its environment says
    folder: Path  # scratch, kept until the image was tried
    output: Path


def inside(
    image: Found, mounts: tuple[Mount, ...], *, engine: ContainerEngine, folder: Path
) -> ContainerSpec:
    """Start a container as users would: under an unknown uid, with the GPUs."""
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


def refuse_missing(plan: ImagePlan, runner: Runner) -> None:
    """Raise HostError with the libraries that something in the image needs and it has not."""
    asked = Command(argv=("/bin/sh", "-c", "PATH=$PATH:/sbin:/usr/sbin ldconfig -p"), timeout=60)
    if lacks := closure.missing(plan.closure, runner.capture(asked)):
        listed = ", ".join(f"{name} (for {who})" for name, who in lacks.items())
        raise HostError(
            f"{plan.subject.reference}: neither ROCm nor the base brings {listed}",
            hint="add the packages that do to the base in ci/images.yaml",
        )


def run(trial: Trial, *, engine: ContainerEngine, runner: HostRunner, host: str) -> Verdict:
    """Run the suite in the image. Raises HostError when the gate itself could not be run."""
    mounts = [Mount(host=host, guest=guest) for guest, host in _prepare(trial, runner).items()]
    mounts += [
        Mount(host=trial.output, guest=OUTPUT, writable=True),
        Mount(host=trial.slots, guest=SLOTS, writable=True),
    ]
    given = ((trial.families, FAMILIES), (trial.jax_tests, TESTS))
    mounts += [Mount(host=host, guest=guest) for host, guest in given if host]
    trial.output.mkdir(parents=True, exist_ok=True)
    storing.clear(trial.output)
    spec = inside(trial.image, tuple(mounts), engine=engine, folder=trial.folder)
    log = trial.output / "gate.log"
    with container.running(spec, runner=runner) as it:
        done = it.run(_gate(trial), log=log, check=False)
    try:
        verdict, results = storing.shard_in(trial.output, seen_from=trial.output)
    except ConfigError as exc:
        raise HostError(
            f"{trial.image.reference}: the gate did not run in it",
            hint=f"the whole output is in {log}",
            detail=done.output,
        ) from exc
    assert verdict  # noqa: S101 - the manifest is mounted beside the gate
    return replace(verdict, host=host, reason=_reason(verdict, results))


def _gate(trial: Trial) -> Command:
    """Return the gate, as it is called in the image."""
    words = [
        PYTHON, str(TOOL / "build" / "ci_build"), "gate", f"--wheels={WHEELS}",
        f"--suite={trial.suite.name}", f"--python={trial.plan.subject.python}",
        f"--family={trial.family.name}", f"--installed={PYTHON}", f"--packages={BESIDE}",
        f"--output={OUTPUT}", f"--slots={SLOTS}",
    ]  # fmt: skip
    if trial.families:
        words.append(f"--families={FAMILIES}")
    if trial.jax_tests:
        words.append(f"--jax-tests={TESTS}")
    env = {
        "PYTHONPATH": f"{DEPENDENCIES}:{TOOL / 'build'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "ROCWHEEL_CACHE_DIR": f"{WORK}/cache",
        **trial.masks,
    }
    return Command(argv=tuple(words), env=env, cwd=PurePosixPath(WORK))


def _prepare(trial: Trial, runner: HostRunner) -> Mapping[GuestPath, Path]:
    """Return folders with the gate, what it needs, what the suite needs, the manifest."""
    folder, where = trial.folder, trial.plan.where
    made = {
        DEPENDENCIES: folder / "dependencies",
        BESIDE: folder / "beside",
        WHEELS: folder / "wheels",
        TOOL: folder / "tool",
    }
    trial.slots.mkdir(parents=True, exist_ok=True)
    if made[TOOL].is_dir():
        return made
    root = trial.home.root
    lock = root / "build" / "requirements.lock"
    runner.run(
        pip("install", "--no-deps", "--require-hashes", *where.options, "--target",
            str(made[DEPENDENCIES]), f"--requirement={lock}")
    )  # fmt: skip
    runner.run(
        pip("install", *where.options, f"--target={made[BESIDE]}", *trial.suite.requirements)
    )
    made[WHEELS].mkdir()
    (made[WHEELS] / MANIFEST).write_bytes(trial.plan.subject.manifest.to_bytes())
    copy_tool(root, made[TOOL])
    return made


def _reason(verdict: Verdict, results: Results) -> str:
    """Return the reason with the line of the first failure that names it."""
    texts = [test.attempts[-1].message for test in results.failures if test.attempts]
    texts += [error.message for error in results.collect_errors]
    lines = [line for line in next(filter(None, texts), "").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    cause = (errors or lines or [""])[-1]
    return " ".join(f"{verdict.reason}; {cause}".strip("; ").split())
