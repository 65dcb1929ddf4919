"""What a gate is asked, and the machine it is asked on: two values, made in `cli`."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocwheel.gate.suite.discovery import Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from pathlib import Path

    from amdgpu_family_matrix import Family
    from rocwheel.gate.environment import WheelSet
    from rocwheel.gate.suite.history import History
    from rocwheel.gate.suite.skips import Skip
    from rocwheel.gate.suite.suites import Library, Suite
    from rocwheel.manifest import Manifest
    from rocwheel.model import PythonVersion
    from rocwheel.process import HostRunner


class Device(enum.Enum):
    """Whose devices to run on; anything but the family's own GPUs must be asked for by name."""

    FAMILY = "gpu"
    NVIDIA = "nvidia"
    CPU = "cpu"


class Choice(enum.Enum):
    """Which tests of a suite."""

    ALL = "all"  # but those of the skip lists
    NAMED = "named"
    SKIPPED = "skipped"  # those of the skip lists alone


@dataclass(frozen=True, kw_only=True)
class Request:
    """One gate: a suite, a wheel set, a family, a CPython."""

    suite: Suite
    family: Family
    python: PythonVersion
    wheels: WheelSet
    manifest: Manifest | None  # None for wheels without one
    checkout: Path  # ours, with ci/ and suites/
    output: Path
    libraries: tuple[Library, ...] = ()
    skips: tuple[Skip, ...] = ()
    shard: Shard = field(default_factory=Shard)
    device: Device = Device.FAMILY
    rocm: str = ""  # a tarball, URL or folder, `pip:` and requirements; "" for the manifest's
    jax_tests: Path | None = None  # a JAX checkout, instead of the commit of the wheels
    requirements: tuple[str, ...] = ()  # beside the suite's
    constraints: tuple[str, ...] = ()  # versions to hold other packages to
    lanes: int = 0  # most processes at once; 0 for as many as there are devices
    choice: Choice = Choice.ALL
    tests: frozenset[str] = frozenset()  # node ids or files, for Choice.NAMED
    serials: frozenset[str] = frozenset()  # devices to keep to; all when empty
    deadline: float = 0.0  # seconds for everything; 0 for the suite's and half an hour
    patience: float = 3600.0  # seconds to wait for devices others hold
    keep: bool = False  # the environment, afterwards
    history: History | None = None
    command: str = ""  # that asks the same again, to paste

    @property
    def whole(self) -> bool:
        """Whether the results speak for the suite or, with others, for a shard of it."""
        return self.choice is Choice.ALL

    @property
    def cell(self) -> str:
        """What is gated, in one short line."""
        shard = f" shard {self.shard}" if str(self.shard) else ""
        return f"{self.suite.name}{shard} on {self.family.name}, CPython {self.python}"

    @property
    def seconds(self) -> float:
        """The deadline of everything."""
        return self.deadline or self.suite.deadlines.suite + 1800.0

    @property
    def run_seconds(self) -> float:
        """The deadline of the tests."""
        deadlines = self.suite.deadlines
        return float(deadlines.shard if self.shard.count > 1 else deadlines.suite)


@dataclass(frozen=True, kw_only=True)
class Host:
    """The machine and the process's place on it."""

    runner: HostRunner
    environ: Mapping[str, str]  # where masks and proxies stand
    root: Path  # the file system, "/" but in tests
    cwd: Path
    cache: Path
    slots: Path  # lock files of devices, shared by all users of the machine
    name: str
    label: str  # of the runner
    online: int  # CPUs of this process's affinity
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    now: Callable[[], datetime]

    @property
    def boot(self) -> str:
        """Names the current boot, "" where the kernel does not say."""
        try:
            path = self.root / "proc/sys/kernel/random/boot_id"
            return path.read_text(encoding="ascii").strip()
        except OSError:
            return ""
