"""The backend under test, and how near is near enough."""

from __future__ import annotations

import os

# Several host devices, so that sharding means something on a machine without GPUs; the flag has
# no effect on GPUs. It must be set before JAX is imported.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import jax
import pytest

jax.config.update("jax_enable_x64", True)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "rocm(*libraries): ROCm libraries the test exercises")


@pytest.fixture(scope="session")
def backend() -> str:
    """`rocm`, `cuda` or `cpu`: JAX's own name for both makers is `gpu`."""
    for name in ("rocm", "cuda"):
        try:
            jax.devices(name)
        except RuntimeError:
            continue
        return name
    return jax.default_backend()


def rocm_version() -> str:
    """The ROCm the gate brought; without a gate, the newest the tables speak of."""
    return os.environ.get("ROCWHEEL_ROCM_VERSION") or "10.0"
