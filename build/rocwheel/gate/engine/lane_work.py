"""The state of a lane: its process, what that does now, and what it did before."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final

from rocwheel.gate.engine.outcomes import STREAK

if TYPE_CHECKING:
    import subprocess

    from rocwheel.gate.engine.child import Child
    from rocwheel.gate.engine.outcomes import Rerun
    from rocwheel.gate.engine.plan import Lane
    from rocwheel.gate.engine.protocol import Bye
    from rocwheel.gate.engine.scheduler import Step


class LaneMode(enum.Enum):
    """What the process of a lane does, as far as the engine knows."""

    FREE = "free"
    STARTING = "starting"
    READY = "ready"
    COLLECTING = "collecting"
    RUNNING = "running"
    ENDING = "ending"
    DUMPING = "dumping stacks"
    KILLING = "killing"
    PROBING = "probing the device"
    LOST = "lost"


@dataclass(kw_only=True, slots=True)
class LaneWork:
    """The state of one lane; the engine changes it."""

    lane: Lane
    mode: LaneMode = LaneMode.FREE
    since: float = 0.0  # when the mode began
    step: Step | None = None  # what comes next, and cannot begin yet
    rerun: Rerun | None = None
    left: list[str] = field(default_factory=list)  # tests of the rerun still to send
    unanswered: bool = False  # whether the search that the rerun is for waits for its answer
    suspicion: int = STREAK  # failures in a row after which the process is replaced
    starts: int = 0  # that failed, in a row
    probe: subprocess.Popen[bytes] | None = None
    suspect: bool = False  # something broke: ask the device before going on
    lost: str = ""  # why no further process is started

    # of the process
    child: Child | None = None
    number: int = 0
    born: float = 0.0
    collecting: Step | None = None
    importing: bool = False  # whether it said that it began to
    sent: deque[Step] = field(default_factory=deque)  # tests it was sent and did not begin
    running: Step | None = None  # the test it began last, while that runs
    batch: int = 0  # grows with every failure: what was sent before is void
    began: float = 0.0  # when the running test did
    offset: int = 0  # of the log, where it began
    last: str = ""  # the test that it finished last
    history: list[str] = field(default_factory=list)  # tests that it ran, in order
    streak: int = 0  # failures in a row
    bye: Bye | None = None
    was: LaneMode = LaneMode.FREE  # what it did when it had to be stopped
    cause: str = ""  # why it had to be
    stacks: str = ""  # what it has written of them by now
    grew: float = 0.0  # when that became more
    broken: bool = False  # because it broke the protocol
    full: bool = False  # it holds more memory than a process may that goes on
    unfit: str = ""  # why another process is to try what this one could not

    def new_process(self, child: Child, number: int, now: float) -> None:
        """Begin again with a new process."""
        fresh = LaneWork(lane=self.lane, child=child, number=number, born=now, began=now)
        for name in OF_PROCESS:
            setattr(self, name, getattr(fresh, name))
        self.mode, self.since = LaneMode.STARTING, now

    @property
    def spent(self) -> bool:
        """Whether the process must be replaced before its next test; each runs one at least."""
        return self.full and bool(self.history) and self.rerun is None

    @property
    def busy(self) -> bool:
        """Return whether the lane has something to do or to end."""
        return self.mode not in (LaneMode.FREE, LaneMode.LOST) or self.step is not None

    @property
    def process(self) -> Child:
        """Its process, of which there must be one."""
        if self.child is None:
            raise ValueError(f"{self.lane.name} has no process")
        return self.child

    @property
    def wanted(self) -> Step:
        """The step that it collects a file for."""
        if self.collecting is None:
            raise ValueError(f"{self.lane.name} collects nothing")
        return self.collecting

    @property
    def title(self) -> str:
        """The name of the process in messages."""
        return f"process {self.number} on {self.lane.name}"

    @property
    def doing(self) -> str:
        """What it does, in a word or the name of a test or file."""
        step = self.running or self.collecting or (self.sent[0] if self.sent else None)
        return (step.test or step.file) if step else self.mode.value


_FIELDS: Final = [field.name for field in fields(LaneWork)]
OF_PROCESS: Final = _FIELDS[_FIELDS.index("child") :]
