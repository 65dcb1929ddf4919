"""Where a registry is asked for a repository, from its name alone."""

from __future__ import annotations

import pytest

from rocwheel.image import registry


@pytest.mark.parametrize(
    ("repository", "url"),
    [
        ("debian", "https://registry-1.docker.io/v2/library/debian"),
        ("docker.io/rocm/jax", "https://registry-1.docker.io/v2/rocm/jax"),
        ("rocm/jax", "https://registry-1.docker.io/v2/rocm/jax"),
        ("ghcr.io/rocm/jax", "https://ghcr.io/v2/rocm/jax"),
        ("localhost:5000/jax", "http://localhost:5000/v2/jax"),
        ("[::1]:5000/jax", "http://[::1]:5000/v2/jax"),
    ],
)
def test_a_name_without_a_registry_is_asked_of_docker_hub(repository, url):
    assert registry.address(repository)[1] == url
