"""The gate: runs a suite of tests on accelerators against installed wheels, ending in a verdict.

`run` is the stage. `machine/` finds the devices a run may use and checks its environment; `suite/`
finds the tests and knows their past; `engine/` runs them in worker processes; `verdict/` turns
results into a state and stores it. `machine/facts.py` and `engine/worker/` are scripts that run in
the tested environment: they know only the standard library, pytest and what they test.
"""

from typing import ClassVar

from rocwheel.base.errors import RocwheelError
from rocwheel.records.verdict import State


class SetupError(RocwheelError):
    """The suite could not start; `state` is what the verdict says."""

    state: ClassVar[State]
    kind = "gate"

    def __init_subclass__(cls, *, state: State) -> None:
        cls.state, cls.exit_code = state, state.exit_code


class InfraError(SetupError, state=State.INFRA):
    """The machine is not what it should be; the wheels were not judged."""


class NoRunnerError(SetupError, state=State.NO_RUNNER):
    """This machine has no device, or too few devices, of the family."""


class NoTestError(SetupError, state=State.NOTHING_RAN):
    """The suite has none of the files that were named."""


class WrongWheelsError(SetupError, state=State.FAIL):
    """The wheels do not install together, or are not what is used."""


class CrashingWheelsError(SetupError, state=State.CRASH):
    """The wheels kill the process that imports them."""
