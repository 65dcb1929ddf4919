"""What a cell that did not pass tells of: wheels, tests, inputs, store or machine.

The exit status says it in general, `ci/causes.yaml` and `ci/device_errors.yaml` of texts. What
tells of wheels or inputs is not tried again: the same bytes fail in the same way.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rocwheel.base import errors
from rocwheel.base.choices import TEST_KINDS
from rocwheel.base.values import replace
from rocwheel.bazel import KnownFailure, load_failures
from rocwheel.gate.suite.suites import device_errors
from rocwheel.records.verdict import SILENT, State
from rocwheel.release.ledger.nights import CauseClass, Ended

FILE: Final = "causes.yaml"
BY_STATUS: Final = {  # of a command
    errors.ConfigError.exit_code: CauseClass.INPUTS,
    errors.FetchError.exit_code: CauseClass.INPUTS,
    errors.RocmError.exit_code: CauseClass.INPUTS,
    errors.SourceError.exit_code: CauseClass.INPUTS,
    errors.StoreError.exit_code: CauseClass.STORE,
    errors.HostError.exit_code: CauseClass.MACHINE,
    errors.PromotionError.exit_code: CauseClass.TESTS,
}
FINAL: Final = frozenset({CauseClass.WHEELS, CauseClass.INPUTS})


def load(ci: Path) -> tuple[KnownFailure, ...]:
    """Read the texts. Raises ConfigError."""
    devices = (item for item in device_errors(ci) if item.cause == CauseClass.MACHINE.value)
    return (*load_failures(ci / FILE), *devices)


def judged(known: Sequence[KnownFailure], kind: str, ended: Ended, log: str) -> Ended:
    """Return how a cell of a kind ended, corrected by known texts, with its cause."""
    state = ended.state
    if state in {State.PASS, State.NOT_RUN}:
        return ended
    met = next((item.cause for item in known if item.pattern.search(ended.reason)), "")
    said = CauseClass(met) if met else None
    if not said and kind in TEST_KINDS and state not in SILENT:
        machine = (item for item in known if item.cause == CauseClass.MACHINE.value)
        match = next((m for item in machine if (m := item.pattern.search(log))), None)
        if match:
            said = CauseClass.MACHINE
            line = log[log.rfind("\n", 0, match.start()) + 1 :].partition("\n")[0].strip()
            ended = replace(ended, reason=line)
    if said is CauseClass.MACHINE:
        state = State.INFRA
    elif said in FINAL and state in SILENT:
        state = State.FAIL
    cause = said or BY_STATUS.get(ended.exit_code) or usual(kind, state)
    return replace(ended, state=state, cause=cause)


def usual(kind: str, state: State) -> CauseClass:
    """Return the cause of a kind of cell with a state, without a known text."""
    if state in SILENT:
        return CauseClass.MACHINE
    return CauseClass.TESTS if kind in {*TEST_KINDS, "promote"} else CauseClass.WHEELS
