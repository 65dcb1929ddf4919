"""Records of a run of the gate, wherever it ended: results, their circumstances, the verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from rocwheel import __version__
from rocwheel.base.here import Here
from rocwheel.gate.engine.plan import Lane
from rocwheel.gate.environment import NO_ROCM, Environment, Provided
from rocwheel.gate.machine.preflight import EnvironmentFacts
from rocwheel.gate.request import GateRequest
from rocwheel.gate.verdict.judge import collected, drawn
from rocwheel.records.results import Fault, Results
from rocwheel.records.verdict import Ran, State, Verdict

DIRTY: Final = "-dirty"


@dataclass(kw_only=True)
class Setup:
    """What a run has set up so far; it may end at any step."""

    request: GateRequest
    here: Here
    provided: Provided = NO_ROCM
    facts: EnvironmentFacts | None = None
    environment: Environment | None = None
    prepared: str = ""  # how the environment came to be
    uncompared: str = ""  # which wheels are there on trust
    lanes: tuple[Lane, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # the suite's variables, with values
    tests: str = ""  # commit of JAX whose tests ran, or SHA-256 of the folder
    tool: str = __version__  # our commit, "-dirty" when files differ from it

    @property
    def packages(self) -> tuple[str, ...]:
        return self.environment.packages if self.environment else ()


def empty(request: GateRequest, state: State, message: str) -> Results:
    """Return the results of a gate that ended before its first test."""
    return Results(
        suite=request.suite.name,
        shard=str(request.shard),
        files=(),
        suite_files=(),
        tests=(),
        faults=(Fault(state=state, message=message),),
    )


def about(setup: Setup) -> dict[str, str]:
    """Return the circumstances of the run, for the report and for running it again."""
    request, facts, rocm = setup.request, setup.facts, setup.provided.record
    devices = {d.serial: d for lane in setup.lanes for d in lane.devices}
    return {
        "command": request.command,
        "wheels": "\n".join(wheel.filename for wheel in request.wheels.wheels),
        "manifest": request.manifest.sha256,
        "family": request.family.name,
        "python": facts.python if facts else str(request.python),
        "jax": request.wheels.jax_version if request.suite.with_jax else "",
        "backend": facts.backend if facts else "",
        "rocm": " ".join(filter(None, (rocm.origin, rocm.name, rocm.version, rocm.sha256))),
        "devices": "\n".join(f"{d.target} {d.serial} {d.name}".strip() for d in devices.values()),
        "host": request.host,
        "runner": request.runner,
        "environment": "; ".join(filter(None, (setup.prepared, setup.uncompared))),
        "packages": "\n".join(setup.packages),
        "variables": "\n".join(f"{name}={value}" for name, value in setup.env.items()),
        "tests": setup.tests,
        "tool": setup.tool,
    }


def verdict(setup: Setup, results: Results, judged: Fault, *, started: datetime) -> Verdict:
    request = setup.request
    wheels = {wheel.filename: wheel.sha256 for wheel in request.wheels.wheels}
    return Verdict(
        manifest=request.manifest.sha256,
        family=request.family.name,
        python=str(request.python),
        wheels=wheels if setup.environment else {},
        backend=setup.facts.backend if setup.facts else "",
        runner=request.runner,
        host=request.host,
        devices=tuple(dict.fromkeys(d.device for lane in setup.lanes for d in lane.devices)),
        rocm=setup.provided.record,
        jax_version=request.wheels.jax_version,
        started=started.isoformat(),
        ended=setup.here.now().isoformat(),
        tool=setup.tool,
        ran=_ran(setup, results),
        **drawn(results, judged, request.demand),
    )


def _ran(setup: Setup, results: Results) -> Ran:
    """Return what ran; empty where nothing did."""
    request, known = setup.request, setup.request.known
    pytest = [item.partition("==")[2] for item in setup.packages if item.startswith("pytest==")]
    unknown = ""  # why these tests cannot be run again with the same rocwheel
    if setup.tool.endswith(DIRTY):
        unknown = "files of rocwheel differ from its commit"
    elif results.tests and setup.tool == __version__:
        unknown = "this rocwheel does not know the commit it was built from"
    return Ran(
        definition=known.definition if known else "",
        skips=known.skips if known else "",
        tests=setup.tests,
        selection=request.suite.select,
        pytest=next(iter(pytest), ""),
        collected=collected(results),
        unofficial=(*request.unofficial, *filter(None, (setup.uncompared, unknown))),
    )
