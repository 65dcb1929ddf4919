"""What a gate leaves behind, wherever it ended: results, where they come from, the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocwheel import __version__
from rocwheel.results import Fault, Results
from rocwheel.verdict import Attempts, RocmBrought, State, Verdict

if TYPE_CHECKING:
    from rocwheel.gate.engine.plan import Lane
    from rocwheel.gate.environment import Environment
    from rocwheel.gate.machine.preflight import Facts
    from rocwheel.gate.request import Host, Request


@dataclass(kw_only=True)
class Told:
    """What is known so far; a gate may end anywhere."""

    brought: RocmBrought
    facts: Facts | None = None
    environment: Environment | None = None
    lanes: tuple[Lane, ...] = ()


def empty(request: Request, state: State, message: str) -> Results:
    """The results of a gate that ended before its first test."""
    return Results(
        suite=request.suite.name,
        shard=str(request.shard),
        files=(),
        suite_files=(),
        tests=(),
        faults=(Fault(state=state, message=message),),
    )


def about(request: Request, host: Host, told: Told) -> dict[str, str]:
    """Where and with what it ran, for the report and for whoever runs it again."""
    rocm = told.brought
    packages = told.environment.packages if told.environment else ()
    devices_ = {d.serial: d for lane in told.lanes for d in lane.devices}
    return {
        "command": request.command,
        "wheels": "\n".join(wheel.filename for wheel in request.wheels.wheels),
        "manifest": request.wheels.manifest,
        "family": request.family.name,
        "python": told.facts.python if told.facts else str(request.python),
        "jax": request.wheels.jax_version if request.suite.with_jax else "",
        "backend": told.facts.backend if told.facts else "",
        "rocm": " ".join(filter(None, (rocm.origin, rocm.name, rocm.version, rocm.sha256))),
        "devices": "\n".join(f"{d.target} {d.serial} {d.name}".strip() for d in devices_.values()),
        "host": host.name,
        "runner": host.label,
        "packages": "\n".join(packages),
        "tool": __version__,
    }


def verdict(
    request: Request, host: Host, told: Told, results: Results, found: Fault
) -> Verdict | None:
    if not request.wheels.manifest:
        return None
    failures = results.failures
    first = failures[0].test if failures else ""
    if not first and results.collect_errors:
        first = results.collect_errors[0].file
    wheels = {wheel.filename: wheel.sha256 for wheel in request.wheels.wheels}
    return Verdict(
        manifest=request.wheels.manifest,
        family=request.family.name,
        python=str(request.python),
        suite=request.suite.name,
        state=found.state,
        reason=" ".join(found.message.split()),
        counts=results.counts,
        wheels=wheels if told.environment else {},
        backend=told.facts.backend if told.facts else "",
        runner=host.label,
        host=host.name,
        devices=tuple(dict.fromkeys(d.device for lane in told.lanes for d in lane.devices)),
        rocm=told.brought,
        jax_version=request.wheels.jax_version,
        started="",
        ended="",
        tool=__version__,
        first_failure=first,
        attempts=tuple(
            Attempts(test=test.test, outcomes=tuple(item.outcome.value for item in test.attempts))
            for test in results.tests
            if len(test.attempts) > 1
        ),
        shard=results.shard,
    )
