"""RCCL: collectives over all devices, from a few bytes to many, which it sends in different ways.

A suite of its own runs them on several boards; one GPU alone calls no RCCL. The numbers are small
integers, whose sums are exact in every type: what is lost, sent twice or put elsewhere shows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

AXIS = "board"
COUNT = jax.device_count()
LARGEST = 1 << 21 if jax.default_backend() == "gpu" else 1 << 12
SIZES = (1, 1000, 3000, LARGEST)  # numbers that each device has of each: 128 MiB of 8 at most
TYPES = ("float32", "bfloat16", "int32", "float64")


def moved(x: np.ndarray, by: int) -> np.ndarray:
    """Return what devices have once each has sent its block to the one `by` places further."""
    return np.roll(x, by, axis=0)


def exchanged(x: np.ndarray) -> np.ndarray:
    """Return what devices have once each has sent a part of its block to each other."""
    parts = x.reshape(COUNT, COUNT, -1)
    return parts.swapaxes(0, 1).reshape(COUNT, -1)


# What a device does with its block, and what all of them then have.
COLLECTIVES: dict[str, tuple[Callable[..., jax.Array], Callable[[np.ndarray], np.ndarray]]] = {
    "all-reduce": (
        lambda x: lax.psum(x, AXIS),
        lambda x: np.tile(x.sum(axis=0), (COUNT, 1)),
    ),
    "maximum": (
        lambda x: lax.pmax(x, AXIS),
        lambda x: np.tile(x.max(axis=0), (COUNT, 1)),
    ),
    "all-gather": (
        lambda x: lax.all_gather(x, AXIS, axis=1, tiled=True),
        lambda x: np.tile(x.reshape(1, -1), (COUNT, 1)),
    ),
    "reduce-scatter": (
        lambda x: lax.psum_scatter(x, AXIS, scatter_dimension=1, tiled=True),
        lambda x: x.sum(axis=0).reshape(COUNT, -1),
    ),
    "all-to-all": (
        lambda x: lax.all_to_all(x, AXIS, split_axis=1, concat_axis=1, tiled=True),
        exchanged,
    ),
    "send": (
        lambda x: lax.ppermute(x, AXIS, [(n, (n + 1) % COUNT) for n in range(COUNT)]),
        partial(moved, by=1),
    ),
}


def test_there_are_devices_to_talk_to() -> None:
    assert COUNT > 1, "one device needs no collective"


@pytest.mark.rocm("RCCL")
@pytest.mark.parametrize("size", SIZES, ids=["1", "1000", "3000", "largest"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_over_all_devices_is_exact(name: str, dtype: str, size: int) -> None:
    function, reference = COLLECTIVES[name]
    # what a device gathers of all of them is as large as the rest
    width = COUNT * max(1, size // COUNT if name == "all-gather" else size)
    drawn = np.random.default_rng(width).integers(0, 5, (COUNT, width), np.int8)
    mesh = jax.make_mesh((COUNT,), (AXIS,), axis_types=(AxisType.Auto,))
    spec = P(AXIS, None)
    mapped = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec))
    block = drawn.astype(getattr(ml_dtypes, dtype, None) or dtype)
    want = reference(drawn.astype(np.int16)).astype(np.int8)  # 32 at most
    for _ in range(2):  # the second time with the buffers of the first
        np.testing.assert_array_equal(np.asarray(mapped(block)).astype(np.int8), want)
