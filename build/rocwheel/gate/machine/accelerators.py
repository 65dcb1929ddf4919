"""Which accelerators this machine has, and which of them this process was allotted.

AMD GPUs are read from the KFD topology in sysfs, without starting HIP; NVIDIA GPUs are asked of
`nvidia-smi`; the CPU is one device, for those who ask for it by name. Masks found in
the environment (ROCR_VISIBLE_DEVICES and the like) are an allotment: they are narrowed for a
worker, never widened. A list that cannot be read is an InfraError, never a default; a GPU that
cannot be read is left out and named.
"""

import enum
import errno
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import amdgpu_family_matrix as matrix
from rocwheel.base.errors import CommandError, HostError, named
from rocwheel.base.host import cgroup
from rocwheel.base.process import Command, Runner
from rocwheel.base.values import Plain, replace
from rocwheel.gate import InfraError, NoRunnerError
from rocwheel.records.verdict import Device

PARTITION_SHIFT: Final = 28
PLACE_MASK: Final = (1 << PARTITION_SHIFT) - 1
NODES: Final = "sys/class/kfd/kfd/topology/nodes"
READ: Final = frozenset({  # of a node's properties and of its memory's; kernels add others
    "simd_count", "gfx_target_version", "drm_render_minor", "unique_id", "location_id", "domain",
    "heap_type", "size_in_bytes",
})  # fmt: skip

# ROCr applies its mask first; HIP numbers what is left and reads CUDA's name where its own is not
# set. An empty mask allots nothing, also where HIP itself would ignore it: never wider.
ROCR_MASK: Final = "ROCR_VISIBLE_DEVICES"
HIP_MASK: Final = "HIP_VISIBLE_DEVICES"
CUDA_MASK: Final = "CUDA_VISIBLE_DEVICES"
ORDINAL_MASK: Final = "GPU_DEVICE_ORDINAL"  # HIP's, where neither of the two is set
MASKS: Final = (ROCR_MASK, HIP_MASK, CUDA_MASK, ORDINAL_MASK)
DMESG: Final = "check the amdgpu driver: dmesg"


class Maker(enum.Enum):
    """Whose device it is; the value is the name of JAX's backend."""

    AMD = "rocm"
    NVIDIA = "cuda"
    CPU = "cpu"


class Accelerator(Plain, frozen=True, kw_only=True):
    maker: Maker
    index: int  # as the maker's runtime numbers what this process may use
    target: str  # gfx942; sm_90; "cpu"
    serial: str  # unique id; a partition of a GPU adds its number
    memory: int = 0  # bytes, 0 when unknown
    free: int = 0  # of an APU, whose memory is the host's: bytes nothing uses now
    name: str = ""
    board: str = ""  # what its partitions have in common
    place: int = 0  # as ROCr numbers GPUs without any mask
    node: int = 0  # as the kernel counts, hidden ones included
    ill: str = ""  # why it cannot be used
    hidden: str = ""  # its render node, where this process may not open that

    @property
    def label(self) -> str:
        return "cpu" if self.maker is Maker.CPU else f"gpu{self.index}"

    @property
    def device(self) -> Device:
        return Device(target=self.target, serial=self.serial, memory=self.memory)


class Allotment(Plain, frozen=True, kw_only=True):
    devices: tuple[Accelerator, ...]
    masks: Mapping[str, str] = {}
    ill: tuple[str, ...] = ()  # of GPUs that are left out, why
    hidden: str = ""  # render nodes of GPUs that the kernel has, and that this process may not open

    def env(self, devices: Sequence[Accelerator]) -> dict[str, str]:
        """Mask all but `devices` for a child; all of them must be in the allotment.

        ROCr's mask hides the others from a process, which otherwise takes memory and queues of
        each; within it HIP numbers from 0, not by inherited masks (as JAX's own conftest does).
        """
        if not set(devices) <= set(self.devices):
            raise ValueError("a device outside the allotment")
        match devices[0].maker if devices else Maker.CPU:
            case Maker.AMD:
                places = ",".join(str(device.place) for device in devices)
                return {ROCR_MASK: places, HIP_MASK: ",".join(map(str, range(len(devices))))}
            case Maker.NVIDIA:
                return {CUDA_MASK: ",".join(device.serial for device in devices)}
            case Maker.CPU:
                # a GPU build of JAX must not find a GPU that it was not given
                return dict.fromkeys(MASKS, "-1")


def amd(root: Path, environ: Mapping[str, str]) -> Allotment:
    """Read the KFD topology below `root` (the machine's is `/`) and apply inherited masks.

    GPUs whose properties or render node this process may not open are not ours: container
    runtimes hide devices that way, and the ROCm runtime does not count them either. One that
    cannot be understood keeps its number and is no device. Raises InfraError when none can be
    read, or two look the same.
    """
    every = [gpu for node in _nodes(root / NODES) if (gpu := _gpu(root, node))]
    gpus = [gpu for gpu in every if not gpu.hidden]
    for serial, number in Counter(gpu.serial for gpu in gpus).items():
        if number > 1:
            raise InfraError(
                f"{number} devices are called {serial}",
                hint="partitions need a kernel that numbers them: amdgpu of ROCm 6.0 or newer",
            )
    devices = tuple(replace(gpu, index=index, place=index) for index, gpu in enumerate(gpus))
    masks = {name: environ[name] for name in MASKS if name in environ}
    if ROCR_MASK in masks:
        left = _masked(devices, masks[ROCR_MASK], ROCR_MASK)
        devices = tuple(replace(device, index=index) for index, device in enumerate(left))
    if hip := next((name for name in (HIP_MASK, CUDA_MASK, ORDINAL_MASK) if name in masks), ""):
        devices = _masked(devices, masks[hip], hip)
    ill = tuple(device.ill for device in devices if device.ill)
    well = tuple(device for device in devices if not device.ill)
    if ill and not well:
        raise InfraError(f"unreadable GPU topology: {'; '.join(ill)}", hint=DMESG)
    hidden = ", ".join(gpu.hidden for gpu in every if gpu.hidden)
    return Allotment(devices=well, masks=masks, ill=ill, hidden=hidden)


def nvidia(runner: Runner, environ: Mapping[str, str]) -> Allotment:
    """Ask `nvidia-smi`; no such program means no device. Raises InfraError when it fails."""
    query = "index,uuid,compute_cap,memory.total,name"
    argv = ("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits")
    try:
        output = runner.capture(Command(argv=argv, timeout=30.0))
    except HostError:
        return Allotment(devices=())
    except CommandError as exc:
        raise InfraError(f"nvidia-smi failed: {exc}", hint="run nvidia-smi by hand") from exc
    devices = tuple(_nvidia_line(line) for line in output.splitlines() if line.strip())
    masks = {CUDA_MASK: environ[CUDA_MASK]} if CUDA_MASK in environ else {}
    if masks:
        devices = _masked(devices, masks[CUDA_MASK], CUDA_MASK)
    return Allotment(devices=devices, masks=masks)


def cpu() -> Allotment:
    """Return the CPU as a device; its verdict never stands for a GPU family."""
    device = Accelerator(maker=Maker.CPU, index=0, target="cpu", serial="cpu", board="cpu")
    return Allotment(devices=(device,))


def of_targets(allotment: Allotment, targets: Iterable[str], *, name: str) -> Allotment:
    """Keep the devices of a GPU family. Raises NoRunnerError when none is left."""
    wanted = frozenset(targets)
    kept = tuple(device for device in allotment.devices if device.target in wanted)
    if kept:
        return replace(allotment, devices=kept)
    here = ", ".join(sorted({device.target for device in allotment.devices})) or "no GPU"
    masks = "".join(f", {name}={value!r}" for name, value in sorted(allotment.masks.items()))
    hidden = (
        f", and GPUs whose {allotment.hidden} this process may not open" if allotment.hidden else ""
    )
    raise NoRunnerError(
        f"{name}: this machine has no {' or '.join(sorted(wanted))}; it has {here}{hidden}{masks}",
        hint=f"run this on a runner of {name}, with /dev/kfd and /dev/dri given to the container",
    )


def gfx_name(version: int) -> str:
    """Spell KFD's number as LLVM does: 90402 is gfx942, 90010 gfx90a, 110501 gfx1151."""
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{stepping:x}"


def _nodes(folder: Path) -> list[Path]:
    """Return topology nodes in the kernel's order, which is the order ROCm numbers devices in."""
    if not folder.is_dir():
        return []
    with named(folder, InfraError, hint="give the container /sys, read-only is enough"):
        nodes = [path for path in folder.iterdir() if path.name.isdecimal()]
    return sorted(nodes, key=lambda path: int(path.name))


def _gpu(root: Path, node: Path) -> Accelerator | None:
    """Read one node; None for a CPU and for a GPU that a device cgroup hides."""
    banks: list[dict[str, int]] = []
    try:
        properties, problem = _properties(node / "properties")
        for bank in _nodes(node / "mem_banks"):
            bank_numbers, wrong = _properties(bank / "properties")
            banks.append(bank_numbers)
            problem = problem or wrong
    except OSError as exc:
        # what a device cgroup hides (kfd_devcgroup_check_permission):
        # https://github.com/torvalds/linux/blob/master/drivers/gpu/drm/amd/amdkfd/kfd_priv.h
        if exc.errno == errno.EPERM:
            return None
        properties, problem = {}, str(exc)
    if 0 in (properties.get("simd_count"), properties.get("gfx_target_version")):
        return None
    minor = properties.get("drm_render_minor", 0)
    if not problem and minor <= 0:
        problem = "a GPU without a render node"
    render = f"dev/dri/renderD{minor}"
    is_given = minor <= 0 or os.access(root / render, os.R_OK | os.W_OK)
    unique = properties.get("unique_id", 0)
    location = properties.get("location_id", 0)
    # the kernel numbers partitions in the upper four bits (kfd_topology_add_device), the same
    # number, visible or not; newer ones give each a unique id, too:
    # https://github.com/torvalds/linux/blob/master/drivers/gpu/drm/amd/amdkfd/kfd_topology.c
    partition = location >> PARTITION_SHIFT
    board = f"pci-{properties.get('domain', 0):04x}-{location & PLACE_MASK:04x}"
    target = gfx_name(properties.get("gfx_target_version", 0))
    return Accelerator(
        maker=Maker.AMD,
        index=0,
        target=target,
        # boards without an id of their own are identified by their slot
        serial=(node.name if problem else f"{unique:016x}" if unique else board)
        + (f".{partition}" if partition else ""),
        board=board,
        memory=sum(bank["size_in_bytes"] for bank in banks if bank.get("heap_type") in (1, 2)),
        free=_free(root, minor) if target in matrix.APUS else 0,
        node=int(node.name),
        ill=f"{node}: {problem}" if problem else "",
        hidden="" if is_given else f"/{render}",
    )


def _properties(path: Path) -> tuple[dict[str, int], str]:
    """Return the numbers of a node, and what is wrong with one of them. Raises OSError."""
    numbers: dict[str, int] = {}
    for line in path.read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(" ")
        if name in READ or not line.isascii():
            try:
                numbers[name] = int(value)
            except ValueError:
                return numbers, f"{name} {value!r} is not a number"
    return numbers, "" if numbers else f"{path.name} is empty"


def _free(root: Path, minor: int) -> int:
    """Return what an APU may still take: of its carve-out, and of the host what is free there."""
    folder = root / f"sys/class/drm/renderD{minor}/device"
    try:
        vram, vram_used, gtt, gtt_used = (
            int((folder / f"mem_info_{name}").read_text(encoding="ascii"))
            for name in ("vram_total", "vram_used", "gtt_total", "gtt_used")
        )
        host = min(cgroup.available(root), cgroup.memory(root))
    except (OSError, ValueError):  # another driver: what KFD says is all there is to know
        return 0
    return max(0, vram - vram_used) + max(0, min(gtt - gtt_used, host))


def _masked(devices: Sequence[Accelerator], mask: str, name: str) -> tuple[Accelerator, ...]:
    """Apply one mask; like the runtimes, stop at the first entry that names no device."""
    chosen: list[Accelerator] = []
    for entry in mask.split(",") if mask.strip() else ():
        device = _named(devices, entry.strip(), name)
        if device is None or device in chosen:
            break
        chosen.append(device)
    return tuple(chosen)


def _named(devices: Sequence[Accelerator], entry: str, name: str) -> Accelerator | None:
    if entry.startswith("MIG-"):
        raise InfraError(f"{name}={entry}: MIG slices are not supported", hint="name whole GPUs")
    if re.fullmatch(r"[0-9]+", entry):
        return next((device for device in devices if device.index == int(entry)), None)
    wanted = entry.lower()
    for device in devices:
        uuid = device.serial if device.maker is Maker.NVIDIA else f"GPU-{device.serial}"
        if wanted and wanted != "gpu-" and uuid.lower().startswith(wanted):
            return device
    return None


def _nvidia_line(line: str) -> Accelerator:
    try:
        index, uuid, capability, memory, name = (part.strip() for part in line.split(",", 4))
        return Accelerator(
            maker=Maker.NVIDIA,
            index=int(index),
            node=int(index),
            target=f"sm_{capability.replace('.', '')}",
            serial=uuid,
            board=uuid,
            memory=int(memory) << 20,
            name=name,
        )
    except ValueError as exc:
        raise InfraError(
            f"nvidia-smi printed {line!r}", hint="run nvidia-smi by hand, the driver is not well"
        ) from exc
