"""Errors that end a gate before its first test; each kind is a state of the verdict."""

from __future__ import annotations

from typing import ClassVar

from rocwheel.errors import RocwheelError
from rocwheel.verdict import State


class SetupError(RocwheelError):
    """The suite could not start; `state` is what the verdict says."""

    state: ClassVar[State]
    kind = "gate"


class InfraError(SetupError):
    """The machine is not what it should be; the wheels were not judged."""

    state = State.INFRA
    exit_code = State.INFRA.exit_code


class NoRunnerError(SetupError):
    """This machine has no device, or too few devices, of the family."""

    state = State.NO_RUNNER
    exit_code = State.NO_RUNNER.exit_code


class WrongWheelsError(SetupError):
    """The wheels do not install together, or are not what is used."""

    state = State.FAIL
    exit_code = State.FAIL.exit_code


class CrashingWheelsError(SetupError):
    """The wheels kill the process that imports them."""

    state = State.CRASH
    exit_code = State.CRASH.exit_code
