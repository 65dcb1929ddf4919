"""From what a machine has to lanes: how many devices each process gets, and locks of them.

Each device has a lock file named by its serial; who holds the lock has the device. The kernel
releases a lock when its holder dies, so nothing has to be cleaned up. A device that a process
could not be removed from is quarantined: no gate takes it until the machine is restarted or the
file is deleted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final

from rocwheel.base import files
from rocwheel.base.errors import named
from rocwheel.base.here import Here
from rocwheel.base.host import cgroup
from rocwheel.base.values import Plain, replace
from rocwheel.gate import InfraError, NoRunnerError
from rocwheel.gate.engine.plan import Lane
from rocwheel.gate.machine import accelerators
from rocwheel.gate.machine.accelerators import Accelerator, Allotment, Maker
from rocwheel.gate.request import DeviceChoice, GateRequest

HOST_MEMORY: Final = 6 << 30  # bytes of the host for a process that shares a GPU
# A process that has loaded ROCm and JAX holds some GiB before its first test; other gates may have
# the other GPUs of the machine.
MOST_MEMORY: Final = 32 << 30
MOST_JOBS: Final = 16  # processes on one GPU


class Allotted(Plain, frozen=True, kw_only=True):
    allotment: Allotment
    per_process: int
    most: int  # groups of devices at once
    jobs: int = 1  # processes on each of them
    usable: int  # CPUs for all of them

    @property
    def threads(self) -> int:
        return max(1, self.usable // (self.most * self.jobs))

    @property
    def locked(self) -> bool:
        return self.allotment.devices[0].maker is not Maker.CPU

    def __str__(self) -> str:
        names = ", ".join(
            f"{item.label} ({item.target}, {item.serial})" for item in self.allotment.devices
        )
        shared = f", {self.jobs} processes on each" if self.jobs > 1 else ""
        shared += "".join(f"; left out: {why}" for why in self.allotment.ill)
        return f"{names}; {self.per_process} per process, up to {self.most} at once{shared}"


def choose(request: GateRequest, here: Here) -> Allotted:
    """Find the devices. Raises NoRunnerError for none or too few, InfraError for unclear ones."""
    usable = cgroup.cpus(here.root, requested=here.environ.get(cgroup.REQUEST, ""))
    if request.device is DeviceChoice.CPU or not request.suite.needs_gpu:
        most = request.lanes or max(1, usable // 2)
        return Allotted(allotment=accelerators.cpu(), per_process=1, most=most, usable=usable)
    if request.device is DeviceChoice.NVIDIA:
        allotment = accelerators.nvidia(here.runner, here.environ)
        if not allotment.devices:
            raise NoRunnerError(
                "this machine has no NVIDIA GPU", hint="nvidia-smi -L lists those it has"
            )
    else:
        allotment = accelerators.amd(here.root, here.environ)
        targets, name = request.family.targets, request.family.name
        allotment = accelerators.of_targets(allotment, targets, name=name)
    if min(request.suite.gpus) > 1 and not request.suite.partitions:
        boards = {device.board: device for device in reversed(allotment.devices)}
        first = tuple(device for device in allotment.devices if device in boards.values())
        allotment = replace(allotment, devices=first)
    count = len(allotment.devices)
    per_process = next((number for number in request.suite.gpus if number <= count), 0)
    if not per_process:
        least = min(request.suite.gpus)
        raise NoRunnerError(
            f"{request.suite.name} needs {least} GPUs, this machine has {count} for it",
            hint="run it on a runner with more, see amdgpu_family_matrix.py",
        )
    most = min(count // per_process, request.lanes or count)
    jobs = _jobs(request, allotment, usable // most) if per_process == 1 else 1
    jobs = min(jobs, max(1, request.lanes // most)) if request.lanes else jobs
    return Allotted(
        allotment=allotment, per_process=per_process, most=most, jobs=jobs, usable=usable
    )


def _jobs(request: GateRequest, allotment: Allotment, usable: int) -> int:
    """Return how many processes share a GPU: as many as was asked, or as memory and CPUs allow.

    JAX's own CI divides a GPU's memory by what a test takes, and holds the number to the CPUs and
    to a part of the host's memory for each (`ci/run_pytest_rocm.sh` of JAX).
    """
    need = request.suite.process_memory << 30
    if request.jobs or not need:
        return max(1, request.jobs)
    least = min(device.free or device.memory for device in allotment.devices)
    host = cgroup.memory() // HOST_MEMORY // len(allotment.devices)
    if any(device.free for device in allotment.devices):  # one memory for both
        host = least // (need + HOST_MEMORY)
    return max(1, min(least // need, usable, host, MOST_JOBS))


def host_memory(lanes: int) -> int:
    """Return the bytes that a process may hold and go on: half its share leaves a test room.

    JAX keeps what it compiled: on the CPU some hundred tests of gradients leave 3.6 GB.
    """
    return min(MOST_MEMORY, cgroup.memory() // lanes // 2)


def lanes(
    allotted: Allotted, devices: Sequence[Accelerator], env: Mapping[str, str]
) -> Iterator[Lane]:
    threads = cgroup.thread_env(allotted.threads)
    size, processes = allotted.per_process, allotted.jobs if allotted.locked else allotted.most
    shares, usable = allotted.most * allotted.jobs, allotted.usable
    for start in range(0, len(devices) - size + 1, size):
        mine = tuple(devices[start : start + size])
        name = mine[0].label if size == 1 else f"{mine[0].label}-{mine[-1].index}"
        masks = allotted.allotment.env(mine)
        for number in range(processes):
            own = f"{name}.{number}" if allotted.jobs > 1 else name
            own = own if allotted.locked else f"{name}{number}"  # the CPU, which all of them share
            # its CPUs, counted on beyond those there are, follow the GPU's number on the machine:
            # gates and pods that have a GPU each have CPUs of their own without knowing of others
            position = mine[0].node // size * allotted.jobs + number
            first = position * usable // shares
            cpus = range(first, max(first + 1, (position + 1) * usable // shares))
            yield Lane(name=own, devices=mine, env={**threads, **env, **masks}, cpus=cpus)


POLL_SECONDS: Final = 1.0


class Slots(Plain, frozen=True, kw_only=True):
    """The lock files of one host; `boot` names the current boot of its kernel."""

    folder: Path
    boot: str
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    @classmethod
    def of(cls, folder: Path, here: Here) -> Slots:
        try:
            path = here.root / "proc/sys/kernel/random/boot_id"
            boot = path.read_text(encoding="ascii").strip()
        except OSError:  # the kernel does not say
            boot = ""
        return cls(folder=folder, boot=boot, clock=here.clock, sleep=here.sleep)

    @contextmanager
    def take(
        self, devices: Sequence[Accelerator], *, least: int, most: int, patience: float
    ) -> Iterator[dict[Accelerator, int]]:
        """Hold between `least` and `most` free devices until the block is left; yield their locks.

        A process that is given these descriptors holds the devices too, until it ends.
        All or none: two gates that each need several devices cannot hold half of them each. Raises
        InfraError when too few devices are well, or come free within `patience` seconds.
        """
        well = [device for device in devices if not self.quarantined(device)]
        if len(well) < least:
            raise InfraError(
                f"{len(well)} of {len(devices)} devices are well, {least} needed: "
                + "; ".join(f"{d.serial}: {why}" for d in devices if (why := self.quarantined(d))),
                hint=f"restart the machine, or delete {self.folder}/*.quarantined once it is well",
            )
        self._prepare()
        until = self.clock() + patience
        while True:
            with ExitStack() as locks:
                got: dict[Accelerator, int] = {}
                for device in sorted(well, key=lambda device: device.serial):
                    # never deleted: a lock on a file that has lost its name would protect nothing
                    with self._writing():
                        free = len(got) < most
                        lock = files.try_locked(self._path(device, "lock")) if free else None
                    if lock:
                        got[device] = locks.enter_context(lock).descriptor
                if len(got) >= least:
                    yield dict(sorted(got.items(), key=lambda item: item[0].index))
                    return
            if self.clock() >= until:
                raise InfraError(
                    f"{len(got)} of {least} devices came free within {patience:g} s",
                    hint=f"see who holds them: fuser -v {self.folder}/*.lock",
                )
            self.sleep(POLL_SECONDS)

    def quarantine(self, device: Accelerator, reason: str) -> Path:
        """Keep every gate of this host away from `device` until the next boot."""
        self._prepare()
        path = self._path(device, "quarantined")
        files.write_json(path, {"boot": self.boot, "reason": reason})
        return path

    def quarantined(self, device: Accelerator) -> str:
        """Return why `device` is in quarantine, "" when it is not. A restart ends a quarantine."""
        path = self._path(device, "quarantined")
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            return str(record["reason"]) if record["boot"] == self.boot else ""
        except FileNotFoundError:
            return ""
        except (OSError, ValueError, KeyError, TypeError) as exc:
            return f"{path} is unreadable: {exc}"

    def _path(self, device: Accelerator, suffix: str) -> Path:
        return self.folder / f"{device.maker.value}-{device.serial}.{suffix}"

    def _prepare(self) -> None:
        """Make the folder, writable for every user of the host, as /tmp is."""
        if not self.folder.is_dir():
            with self._writing():
                self.folder.mkdir(parents=True, exist_ok=True)
                self.folder.chmod(0o1777)

    def _writing(self) -> AbstractContextManager[None]:
        return named(self.folder, InfraError, hint="name a folder that can be written, --slots")
