"""The engine's inputs: plan, lanes, the world around it, and a watcher of the run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rocwheel.base.values import Plain
from rocwheel.gate.engine.scheduler import Estimates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rocwheel.base.process import Command, HostRunner
    from rocwheel.bazel import KnownFailure
    from rocwheel.gate.engine.child import WorkerSpec
    from rocwheel.gate.machine.accelerators import Accelerator
    from rocwheel.records.results import Attempt


class Lane(Plain, frozen=True, kw_only=True):
    """Where processes run: their devices, the environment for these, and a check of them."""

    name: str
    devices: tuple[Accelerator, ...]
    env: Mapping[str, str]
    cpus: range = range(0)  # that its processes keep to, of those of this one; none: all
    probe: Command | None = None  # exits 0 while the devices answer


class RunPlan(Plain, frozen=True, kw_only=True):
    """What to run. Seconds throughout."""

    suite: str
    shard: str
    files: tuple[str, ...]
    suite_files: tuple[str, ...]
    worker: WorkerSpec
    lanes: tuple[Lane, ...]
    test_deadline: float
    deadline: float  # of the whole run
    retry_limit: int
    backend: str = ""  # that JAX must have used, where a worker used JAX
    modules: str = ""  # folder that watched modules must have come from
    alone: frozenset[str] = frozenset()  # files that need a process of their own
    process_memory: int = 0  # bytes; a process that holds more is sent no other test; 0 for any
    hidden: Callable[[str], tuple[str, ...]] = lambda _file: ()  # tests of a file, unimported
    estimates: Estimates = Estimates()
    wanted: Callable[[str], bool] = lambda _test: True  # whether a test is looked at at all
    skip: Callable[[str], str] = lambda _test: ""  # the reason not to run a test
    device_errors: tuple[KnownFailure, ...] = ()
    kill_deadline: float = 10.0


class System(Plain, frozen=True, kw_only=True):
    """What the engine needs of the world around it."""

    starter: HostRunner
    clock: Callable[[], float]
    killpg: Callable[[int, int], None] = os.killpg
    oom_kills: Callable[[], int] = lambda: 0
    quarantine: Callable[[Accelerator, str], object] = lambda _device, _reason: None


class Snapshot(Plain, frozen=True, kw_only=True):
    """How far a run is."""

    done: int
    total: int  # as far as it is known
    bad: int
    lanes: tuple[tuple[str, str, float], ...]  # name, what it does, for how many seconds


class Watcher:
    """Gets the events of a run; this one ignores them."""

    def progress(self, snapshot: Snapshot) -> None: ...

    def failed(self, test: str, attempt: Attempt) -> None: ...
