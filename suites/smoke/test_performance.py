"""How fast the device is at three things. The figures are reported; nothing is judged by them."""

from __future__ import annotations

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

LEAST_SECONDS = 0.1  # of work that a figure stands for
ON_CPU = 8  # times smaller


def rate(work: Callable[[], jax.Array], amount: float) -> int:
    """Return how much of `amount` (per call) is done in a second: the best of three."""
    jax.block_until_ready(work())
    best, calls = 0.0, 1
    for _ in range(3):
        while True:
            started = time.perf_counter()
            jax.block_until_ready([work() for _ in range(calls)])
            seconds = time.perf_counter() - started
            if seconds >= LEAST_SECONDS:
                break
            calls *= 2
        best = max(best, calls * amount / seconds)
    return round(best)


def side(size: int) -> int:
    return size // ON_CPU if jax.default_backend() == "cpu" else size


@pytest.mark.rocm("hipBLASLt")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_matrix_products(dtype: str, record_property: Callable[[str, object], None]) -> None:
    size = side(4096)
    a = jnp.ones((size, size), dtype)
    product = jax.jit(jnp.matmul)
    gflops = rate(lambda: product(a, a), 2 * size**3 / 1e9)
    record_property(f"{dtype} product of {size}, GFLOP/s", gflops)
    np.testing.assert_array_equal(product(a, a).astype("float32"), np.full((size, size), size))


@pytest.mark.rocm("MIOpen")
def test_convolutions(record_property: Callable[[str, object], None]) -> None:
    channels, size = side(128), side(64)
    x, w = jnp.ones((32, channels, size, size)), jnp.ones((channels, channels, 3, 3))
    convolve = jax.jit(lambda x, w: jax.lax.conv(x, w, (1, 1), "SAME"))
    amount = 2 * 32 * channels**2 * size**2 * 9 / 1e9
    gflops = rate(lambda: convolve(x, w), amount)
    record_property(f"float32 convolution of {channels}x{size}x{size}, GFLOP/s", gflops)
    np.testing.assert_array_equal(convolve(x, w)[:, :, 1:-1, 1:-1], 9 * channels)


def test_copies(record_property: Callable[[str, object], None]) -> None:
    number = side(1 << 28)
    x = jnp.ones((number,), jnp.float32)
    more = jax.jit(lambda x: x + 1)
    record_property("memory read and written, MB/s", rate(lambda: more(x), 8 * number / 1e6))
    np.testing.assert_array_equal(more(x)[:: number // 64], 2)
