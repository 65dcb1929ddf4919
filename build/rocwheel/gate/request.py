"""The request to the gate, made in `cli`."""

from __future__ import annotations

import enum
from collections.abc import Callable
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement

from amdgpu_family_matrix import Family
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import Plain, replace
from rocwheel.base.versions import PythonVersion
from rocwheel.bazel import KnownFailure
from rocwheel.gate.subject import WheelsUnderTest
from rocwheel.gate.suite.discovery import Shard
from rocwheel.gate.suite.history import SuiteHistory
from rocwheel.gate.suite.skips import Skip
from rocwheel.gate.suite.suites import Library, Suite
from rocwheel.records.manifest import Manifest
from rocwheel.records.places import Place
from rocwheel.records.results import Outcome, Results
from rocwheel.records.verdict import Demand, KnownSuite

BESIDE: Final = 1800.0  # seconds that a gate has beside those of its tests


class DeviceChoice(enum.Enum):
    """The devices to run on; all but the family's own GPUs must be asked for by name."""

    FAMILY = "gpu"
    NVIDIA = "nvidia"
    CPU = "cpu"


class Choice(enum.Enum):
    """Which tests of a suite are run: all, named ones, or those that are skipped."""

    ALL = "all"  # but those of the skip lists
    NAMED = "named"
    SKIPPED = "skipped"  # those of the skip lists alone


class GateRequest(Plain, frozen=True, kw_only=True):
    """One gate: a suite, wheels, a family, a CPython, how to run it, and what is known of it."""

    suite: Suite
    family: Family
    python: PythonVersion
    wheels: WheelsUnderTest
    manifest: Manifest
    shard: Shard = Shard()
    device: DeviceChoice = DeviceChoice.FAMILY
    rocm: str = ""  # a tarball, URL or folder, `pip:` and requirements; "" for the manifest's
    jax_tests: Path | None = None  # a JAX checkout, instead of the commit of the wheels
    requirements: tuple[str, ...] = ()  # beside the suite's
    lanes: int = 0  # most processes at once; 0 for as many as there are devices
    jobs: int = 0  # processes on one GPU; 0 for as many as the suite and the memory allow
    choice: Choice = Choice.ALL
    tests: frozenset[str] = frozenset()  # node ids or files, for Choice.NAMED
    patience: float = 3600.0  # seconds to wait for devices others hold
    installed: Path | None = None  # Python of an environment that has wheels and ROCm: an image's
    folders: tuple[Path, ...] = ()  # with packages that the suite needs and that one lacks
    output: Path = Path()
    # finds the set that the family has released last, for the control run
    released: Callable[[], tuple[Manifest, WheelsUnderTest]] | None = None
    slots: Path = Path()  # lock files of devices, shared by all users of the machine
    runner: str = ""  # its label
    host: str = ""
    libraries: tuple[Library, ...] = ()
    device_errors: tuple[KnownFailure, ...] = ()
    skips: tuple[Skip, ...] = ()
    constraints: tuple[str, ...] = ()  # versions to hold other packages to
    history: SuiteHistory | None = None
    known: KnownSuite | None = None  # the suite as our checkout has it, for the verdict
    command: str = ""  # that asks the same again, to paste

    def __post_init__(self) -> None:
        try:
            tuple(map(Requirement, self.requirements))
        except InvalidRequirement as exc:
            what = " ".join(str(exc).split())
            raise ConfigError(f"--with: {what}", hint="write NAME==VERSION") from exc

    def for_failures_of(self, results: Results) -> GateRequest:
        """Return the same request for what failed there, with the same packages."""
        again = (Outcome.FLAKY, Outcome.NOT_RUN)
        tests = {t.test for t in results.tests if t.outcome.bad or t.outcome in again}
        tests |= {error.file for error in results.collect_errors} - {"(session)"}
        if not tests:
            raise ConfigError(
                "no test failed there", hint="run the whole gate again, without --failed-of"
            )
        return replace(
            self,
            choice=Choice.NAMED,
            tests=self.tests | tests,
            constraints=tuple(results.environment.get("packages", "").split()),
        )

    @property
    def whole(self) -> bool:
        """Return whether the results are for the whole suite or a whole shard of it."""
        return self.choice is Choice.ALL

    @property
    def stored(self) -> Place | None:
        """Where its verdict goes; None unless a whole suite runs on the family's GPUs."""
        counts = self.whole and self.device is DeviceChoice.FAMILY and not self.installed
        return self.wheels.place if counts else None

    @property
    def logs(self) -> Path:
        return self.output / "logs"

    @property
    def unofficial(self) -> tuple[str, ...]:
        """The reason why its verdict would not count: something that other machines do not run."""
        reasons = {
            "--jax-tests": self.jax_tests,
            f"--with {' '.join(self.requirements)}": self.requirements,
            "package versions of an earlier run": self.constraints,
            "only some of the tests": self.choice is not Choice.ALL,
            f"--device {self.device.value}": self.device is not DeviceChoice.FAMILY,
            f"--rocm {self.rocm}": self.rocm.startswith("pip:"),
            f"--installed {self.installed}": self.installed,
        }
        return tuple(reason for reason, holds in reasons.items() if holds)

    @property
    def demand(self) -> Demand:
        demand = self.suite.demands.of(self.wheels.jax_version)
        if self.shard.count > 1:
            return demand.of_part()
        # one that passes is enough of those that were named
        return demand if self.whole else demand.of_part(must_run=1)

    @property
    def key(self) -> str:
        shard = f" shard {self.shard}" if str(self.shard) else ""
        return f"{self.suite.name}{shard} on {self.family.name}, CPython {self.python}"

    @property
    def seconds(self) -> float:
        return self.suite.deadlines.suite + BESIDE

    @property
    def run_seconds(self) -> float:
        deadlines = self.suite.deadlines
        return float(deadlines.shard if self.shard.count > 1 else deadlines.suite)
