"""KFD sysfs trees of real machines' shape, written below a folder that stands for `/`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30
CPU_NODE = {"cpu_cores_count": 64, "simd_count": 0, "gfx_target_version": 0, "vendor_id": 0}


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU node; a partition is a node of its own that shares its board's unique id."""

    version: int
    unique_id: int
    minor: int
    memory: int = 192 * GIB
    location: int = 0x0500
    given: bool = True  # whether its render node is in this container
    readable: bool = True


def machine(root: Path, *gpus: Gpu, cpus: int = 2) -> Path:
    """Write the nodes of `cpus` sockets, then those of `gpus`."""
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    (root / "dev/dri").mkdir(parents=True)
    for number in range(cpus):
        _write(nodes / str(number) / "properties", CPU_NODE)
        _write(nodes / str(number) / "mem_banks/0/properties", {"heap_type": 0, "size_in_bytes": 7})
    for number, gpu in enumerate(gpus, start=cpus):
        node = nodes / str(number)
        _write(
            node / "properties",
            {
                "cpu_cores_count": 0,
                "simd_count": 1216,
                "mem_banks_count": 1,
                "wave_front_size": 64,
                "gfx_target_version": gpu.version,
                "vendor_id": 4098,
                "device_id": 29857,
                "location_id": gpu.location,
                "domain": 0,
                "drm_render_minor": gpu.minor,
                "hive_id": 11638818706288400384,
                "num_xcc": 8,
                "unique_id": gpu.unique_id,
            },
        )
        _write(node / "mem_banks/0/properties", {"heap_type": 1, "size_in_bytes": gpu.memory})
        if gpu.given:
            (root / f"dev/dri/renderD{gpu.minor}").touch()
    return root


def mi300x(count: int) -> tuple[Gpu, ...]:
    """Unpartitioned MI300X boards."""
    return tuple(
        Gpu(version=90402, unique_id=0x21B6D61638A86F00 + n, minor=128 + 8 * n, location=256 * n)
        for n in range(count)
    )


def mi300x_cpx() -> tuple[Gpu, ...]:
    """One MI300X in CPX mode: eight nodes, one board."""
    return tuple(
        Gpu(
            version=90402,
            unique_id=0x21B6D61638A86F00,
            minor=128 + n,
            memory=24 * GIB,
            location=0x0500 | n << 28,
        )
        for n in range(8)
    )


def hide(root: Path, *minors: int) -> Path:
    """Take render nodes away, as a container has them that was given only others."""
    for minor in minors:
        (root / f"dev/dri/renderD{minor}").unlink()
    return root


def workstation() -> tuple[Gpu, ...]:
    """An RX 7900 XTX beside the small GPU of the processor, which has no unique id."""
    return (
        Gpu(version=110000, unique_id=0xDEADBEEF, minor=128, memory=24 * GIB, location=0x0300),
        Gpu(version=100306, unique_id=0, minor=129, memory=GIB, location=0x0E00),
    )


def _write(path: Path, values: dict[str, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name} {value}\n" for name, value in values.items()))
