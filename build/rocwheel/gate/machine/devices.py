"""From what a machine has to lanes: how many devices each process gets, and how many processes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rocwheel.base.here import Here
from rocwheel.base.host import cgroup
from rocwheel.base.values import Plain, replace
from rocwheel.gate.engine.plan import Lane
from rocwheel.gate.machine import accelerators
from rocwheel.gate.machine.accelerators import Accelerator, Allotment, Maker
from rocwheel.gate.request import DeviceChoice, GateRequest
from rocwheel.gate.setup_errors import NoRunnerError

HOST_MEMORY: Final = 6 << 30  # bytes of the host for a process that shares a GPU
# A process that has loaded ROCm and JAX holds some GiB before its first test; other gates may have
# the other GPUs of the machine.
MOST_MEMORY: Final = 32 << 30
MOST_JOBS: Final = 16  # processes on one GPU


class Allotted(Plain, frozen=True, kw_only=True):
    """The devices a run may use, and how they are shared out."""

    allotment: Allotment
    per_process: int
    most: int  # groups of devices at once
    jobs: int = 1  # processes on each of them
    usable: int  # CPUs for all of them

    @property
    def threads(self) -> int:
        """The CPUs of a process."""
        return max(1, self.usable // (self.most * self.jobs))

    @property
    def locked(self) -> bool:
        """Return whether the devices are shared with others by locks."""
        return self.allotment.devices[0].maker is not Maker.CPU

    def __str__(self) -> str:
        """Say it in one line, for --dry-run and the log."""
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
    """Share out the devices that were taken."""
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
