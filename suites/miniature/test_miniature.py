"""The wheels of examples/miniature, installed: they import, find ROCm and find each other."""

from __future__ import annotations

import importlib
from importlib.metadata import distributions, entry_points
from types import ModuleType

import pytest


def module_of(kind: str) -> ModuleType:
    """The package of the one installed wheel of this kind, whichever ROCm its name says."""
    names = [dist for dist in distributions() if dist.name.replace("_", "-").endswith(f"-{kind}")]
    assert len(names) == 1, [dist.name for dist in names]
    return importlib.import_module(names[0].name.replace("-", "_"))


@pytest.fixture(scope="module")
def plugin() -> ModuleType:
    return module_of("plugin")


def test_jaxlib_computes() -> None:
    import jaxlib

    assert jaxlib.dot([1.0, 2.0], [3.0, 4.0]) == 11.0
    with pytest.raises(ValueError, match="different length"):
        jaxlib.dot([1.0], [1.0, 2.0])


def test_all_wheels_are_of_one_version() -> None:
    versions = {
        dist.name: dist.version
        for dist in distributions()
        if dist.name.startswith(("jax-rocm", "jax_rocm", "jaxlib"))
    }
    assert len(versions) == 3
    assert len(set(versions.values())) == 1, versions


@pytest.mark.parametrize("name", ["_linalg", "_prng"])
def test_kernels_are_registered(plugin: ModuleType, name: str) -> None:
    assert importlib.import_module(f"{plugin.__name__}.{name}").registrations()


def test_the_hip_runtime_is_found_and_answers(plugin: ModuleType) -> None:
    extension = importlib.import_module(f"{plugin.__name__}.rocm_plugin_extension")
    assert extension.runtime_version() > 0
    assert extension.device_count() >= 0


def test_jax_would_find_the_pjrt_plugin() -> None:
    (point,) = entry_points(group="jax_plugins")
    module = importlib.import_module(point.value)
    assert module.api_version() >= (0, 1)
    assert "AMD GPU" in module.status()
