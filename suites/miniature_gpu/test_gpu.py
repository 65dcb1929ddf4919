"""The wheels of examples/miniature, installed, find a GPU."""

from __future__ import annotations

import importlib
from importlib.metadata import distributions


def test_the_hip_runtime_has_a_device() -> None:
    (name,) = {dist.name for dist in distributions() if dist.name.endswith("plugin")}
    extension = importlib.import_module(f"{name.replace('-', '_')}.rocm_plugin_extension")
    assert extension.device_count() > 0, "the HIP runtime has no device"
