"""Pallas kernels: compiled through Triton on GPUs, interpreted on the CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from near import TF32, contracted, near, numbers, summed, wide


@pytest.fixture(scope="module")
def interpret() -> bool:
    return jax.default_backend() == "cpu"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_elementwise_kernel(dtype: str, interpret: bool) -> None:
    def add(x, y, out):
        out[...] = x[...] + y[...]

    x, y = numbers(1024, dtype=dtype), numbers(1024, seed=1, dtype=dtype)
    shape = jax.ShapeDtypeStruct((1024,), jnp.dtype(dtype))
    got = pl.pallas_call(add, out_shape=shape, interpret=interpret)(x, y)
    near(got, wide(x) + wide(y))


def test_a_kernel_over_a_grid_of_blocks(interpret: bool) -> None:
    def square(x, out):
        out[...] = x[...] * x[...]

    x = numbers(4096, dtype="float32")
    block = pl.BlockSpec((512,), lambda i: (i,))
    got = pl.pallas_call(
        square,
        grid=(8,),
        in_specs=[block],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(x.shape, jnp.float32),
        interpret=interpret,
    )(x)
    near(got, wide(x) ** 2)


def test_a_matrix_product_by_blocks(interpret: bool) -> None:
    def product(x, y, out):
        out[...] = jnp.dot(x[...], y[...])

    x, y = numbers(128, 64, dtype="float32"), numbers(64, 128, seed=1, dtype="float32")
    got = pl.pallas_call(
        product,
        grid=(2, 2),
        in_specs=[
            pl.BlockSpec((64, 64), lambda i, _: (i, 0)),
            pl.BlockSpec((64, 64), lambda _, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((64, 64), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((128, 128), jnp.float32),
        interpret=interpret,
    )(x, y)
    contracted(got, np.matmul, x, y, terms=64, rounded=TF32)  # Triton may use tensor cores


@pytest.mark.parametrize("warps", [1, 2, 4, 8])
@pytest.mark.parametrize("width", [33, 256, 1000])
def test_a_reduction_across_the_lanes_of_a_block(width: int, warps: int, interpret: bool) -> None:
    """A wavefront has 64 lanes on gfx9 and 32 on gfx10 to gfx12: both have tails here.

    One block is many rows wide, so that the reduction crosses wavefronts, too.
    """
    from jax.experimental.pallas import triton

    padded = 1 << (width - 1).bit_length()

    def total(x, out):
        inside = jnp.arange(padded)[None, :] < width
        kept = jnp.where(inside, x[...], 0.0)
        out[...] = jnp.sum(kept, axis=1)

    x = numbers(16, padded, dtype="float32")
    got = pl.pallas_call(
        total,
        out_shape=jax.ShapeDtypeStruct((16,), jnp.float32),
        compiler_params=None if interpret else triton.CompilerParams(num_warps=warps),
        interpret=interpret,
    )(x)
    summed(got, lambda x: x[:, :width].sum(axis=1), x, number=width)


def test_a_kernel_has_a_place_in_a_larger_jitted_function(interpret: bool) -> None:
    def scale(x, out):
        out[...] = 2 * x[...]

    x = numbers(256, dtype="float32")
    shape = jax.ShapeDtypeStruct(x.shape, jnp.float32)

    @jax.jit
    def pipeline(x):
        return jnp.sum(pl.pallas_call(scale, out_shape=shape, interpret=interpret)(jnp.sin(x)))

    want = 2 * np.sin(wide(x))
    near(pipeline(x), want.sum(), steps=256, scale=np.abs(want).sum())
