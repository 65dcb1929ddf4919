"""Memory: a device that is nearly full computes rightly, and one that is too full says so."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

SHARE = 0.6  # of what the process may still have
CHUNK = 32 << 20  # numbers of float32 in one array
TOO_MUCH = 1 << 50  # bytes


def free() -> int:
    """Return the bytes that this process may still take of its device, a little on the CPU."""
    stats = jax.devices()[0].memory_stats() or {}
    return int(stats.get("bytes_limit", 1 << 30)) - int(stats.get("bytes_in_use", 0))


def test_arrays_that_nearly_fill_a_device_keep_their_values():
    """Twice: the second time the memory is that of the first."""
    for turn in range(2):
        number = max(2, int(free() * SHARE) // (4 * CHUNK))
        held = [jnp.full((CHUNK,), turn * 1000.0 + n, jnp.float32) for n in range(number)]
        sums = jnp.stack([array[:: CHUNK // 64].sum() for array in held])
        np.testing.assert_array_equal(sums, 64 * (turn * 1000.0 + np.arange(number)))
        product = held[0][: 256 * 256].reshape(256, 256) @ jnp.eye(256)
        np.testing.assert_array_equal(product, np.full((256, 256), turn * 1000.0))
        for array in held:
            array.delete()


def test_more_than_there_is_raises_and_the_process_goes_on():
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
        jax.block_until_ready(jnp.zeros((TOO_MUCH,), jnp.uint8))
    np.testing.assert_array_equal(jnp.ones(8).sum(), 8)
