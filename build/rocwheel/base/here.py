"""Where and with what a command runs: environment, folders, console, processes and clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from rocwheel.base.console import Console
from rocwheel.base.home import Home
from rocwheel.base.process import HostRunner


def utc_now() -> datetime:
    return datetime.now(tz=timezone.utc)


@dataclass(frozen=True, kw_only=True)
class Here:
    """What a stage may use of the machine. The command line makes one; tests make their own.

    Nothing below `cli` reads the process environment, the working directory or the clock
    elsewhere. A dry run is a run with another `runner`.
    """

    environ: Mapping[str, str]
    cwd: Path
    cache: Path  # everything in it can be made again
    home: Home  # the data in use: `ci/`, suites, miniature
    console: Console
    runner: HostRunner
    program: tuple[str, ...] = ("rocwheel",)  # how this program is started again
    root: Path = field(default_factory=lambda: Path("/"))  # the file system, another one in tests
    now: Callable[[], datetime] = utc_now
    clock: Callable[[], float] = time.monotonic  # seconds
    sleep: Callable[[float], None] = time.sleep
