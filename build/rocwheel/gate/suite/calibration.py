"""From results on GPUs of a family to the numbers that a suite demands there."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import yaml

from amdgpu_family_matrix import Family
from rocwheel.base import files
from rocwheel.base.errors import ConfigError
from rocwheel.gate.machine.accelerators import Maker
from rocwheel.gate.suite import suites
from rocwheel.gate.suite.suites import Numbers
from rocwheel.records.results import Results

SLACK: Final = 100  # a number may be off by one in so many: runners and drivers differ
HEAD: Final = """\
# How many tests a suite has on GPUs of a family, by JAX. Written by `rocwheel gate calibrate` from
# results of whole runs; a family that is missing here is `uncalibrated`.
"""


def count(runs: Iterable[Results]) -> Numbers:
    """Return the numbers of runs of one suite, family and JAX that no run falls short of.

    A test that failed counts as one that must pass.
    """
    counts = [run.counts for run in runs]
    wanted = [c.passed + c.flaky + c.failed + c.crashed + c.timed_out for c in counts]
    most = {
        "may_skip": max(c.skipped for c in counts),
        "may_xfail": max(c.xfailed for c in counts),
        "may_deselect": max(c.deselected for c in counts),
    }
    numbers = {"must_run": max(1, min(wanted) - min(wanted) // SLACK)}
    return numbers | {name: number + number // SLACK for name, number in most.items()}


def calibrated(
    ci: Path, runs: Iterable[tuple[str, Results]], families: Mapping[str, Family]
) -> dict[str, dict[str, dict[str, Numbers]]]:
    """Return what is counted once these runs, each with its name, are. Raises ConfigError."""
    known = suites.calibration(ci)
    groups: dict[tuple[str, str, str], list[Results]] = {}
    for name, run in runs:
        about = run.environment
        if problem := _unfit(ci, run, families):
            hint = "name whole runs of a suite with `counted` on the family's own GPUs"
            raise ConfigError(f"{name}: {problem}", hint=hint)
        groups.setdefault((run.suite, about["family"], about["jax"]), []).append(run)
    for (suite, family, jax), results in groups.items():
        known.setdefault(suite, {}).setdefault(family, {})[jax] = count(results)
    return known


def write(ci: Path, counted: dict[str, dict[str, dict[str, Numbers]]]) -> Path:
    """Write the numbers; return where."""
    body = yaml.safe_dump({"counted": counted}, width=100)
    files.write(path := ci / suites.CALIBRATION, (HEAD + body).encode())
    return path


def _unfit(ci: Path, run: Results, families: Mapping[str, Family]) -> str:
    """Return why a run counts nothing, "" where it does."""
    about = run.environment
    if suites.load(ci, run.suite).counted is None:
        return f"the suite {run.suite} is not counted by family"
    family = families.get(about.get("family", ""))
    if family is None:
        return f"no such family: {about.get('family', '')!r}"
    targets = {device.target for lane in run.lanes for device in lane.devices}
    if about.get("backend") != Maker.AMD.value or not targets or targets - set(family.targets):
        return f"it ran on {', '.join(sorted(targets)) or 'no device'}, not on {family.name}"
    if run.shard or run.files != run.suite_files or not run.tests:
        return "it is no run of the whole suite"
    bad = next((fault.message for fault in run.faults), "")
    bad = bad or next((error.message for error in run.collect_errors), "")
    return bad or ("some tests did not run" if run.counts.not_run else "")
