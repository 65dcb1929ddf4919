"""The miniature's PJRT plugin for ROCm: importing it is safe on any machine.

`status()` says whether an AMD GPU can be used, `initialize()` (the entry point JAX calls) insists
on one, and `api_version()` loads the shared library, which needs ROCm but no GPU.
"""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

_LIBRARY = Path(__file__).parent / "xla_rocm_plugin.so"
_DRIVER = Path("/dev/kfd")

# The first fields of a PJRT_Api: size, extensions, and the version with its size and extensions.
_API_HEAD = struct.Struct("NPNPii")


def status() -> str:
    """Say in one line whether this machine has an AMD GPU; never raises."""
    return "AMD GPU present" if _DRIVER.exists() else f"no AMD GPU: {_DRIVER} does not exist"


def api_version() -> tuple[int, int]:
    """Load the library and return the version of its PJRT API.

    Raises OSError when the loader finds no ROCm.
    """
    get_pjrt_api = ctypes.CDLL(str(_LIBRARY)).GetPjrtApi
    get_pjrt_api.restype = ctypes.c_void_p
    head = ctypes.string_at(get_pjrt_api(), _API_HEAD.size)
    *_, major, minor = _API_HEAD.unpack(head)
    return major, minor


def initialize() -> None:
    """Check, as the entry point of a JAX plugin, that there is an AMD GPU to serve.

    Raises ValueError when there is none.
    """
    if not _DRIVER.exists():
        raise ValueError(status())
    api_version()
