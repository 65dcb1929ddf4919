"""The core of JAX: grad, jit, vmap, scan, and sharding in its three ways."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from near import near, numbers, wide


def test_grad_equals_the_derivative_known_on_paper():
    x = numbers(200)
    near(jax.vmap(jax.grad(lambda t: jnp.sin(t) * t**2))(x), np.cos(x) * x**2 + 2 * x * np.sin(x))


@pytest.mark.rocm("hipBLAS")
def test_higher_derivatives_and_jacobians():
    near(jax.grad(jax.grad(jax.grad(lambda t: t**4)))(2.0), 48.0)
    a = numbers(6, 6)
    near(jax.jacfwd(lambda v: a @ v)(numbers(6, seed=1)), a, steps=6)
    near(jax.jacrev(lambda v: a @ v)(numbers(6, seed=1)), a, steps=6)
    near(jax.hessian(lambda v: v @ a @ v)(numbers(6, seed=1)), a + a.T, steps=36)


@pytest.mark.rocm("hipSOLVER")
def test_grad_goes_through_a_linear_solver():
    a, b = numbers(8, 8) + 8 * np.eye(8), numbers(8, seed=1)
    slope = jax.grad(lambda b: jnp.sum(jnp.linalg.solve(a, b)))(b)
    near(slope, np.linalg.solve(a.T, np.ones(8)), steps=64)


def test_jit_computes_what_python_does_and_compiles_once():
    traced = []

    @jax.jit
    def polynomial(x):
        traced.append(1)
        return 3 * x**3 - 2 * x + 1

    x = numbers(1000)
    near(polynomial(x), 3 * x**3 - 2 * x + 1, steps=4)
    near(polynomial(x + 1), 3 * (x + 1) ** 3 - 2 * (x + 1) + 1, steps=4)
    assert len(traced) == 1


def test_jit_with_static_arguments_and_donation():
    scale = jax.jit(lambda x, n: x * n, static_argnums=1, donate_argnums=0)
    near(scale(jnp.ones(8), 3), 3 * np.ones(8))


@pytest.mark.rocm("hipBLAS")
def test_vmap_equals_a_loop():
    a, b = numbers(12, 5, 7), numbers(12, 7, seed=1)
    near(jax.vmap(jnp.dot)(a, b), np.einsum("bij,bj->bi", a, b), steps=7)
    near(jax.vmap(jnp.dot, in_axes=(0, None))(a, b[0]), a @ b[0], steps=7)


def test_scan_equals_a_loop_and_has_a_gradient():
    x = numbers(50)

    def total(x):
        last, seen = jax.lax.scan(lambda s, v: (0.9 * s + v, s), 0.0, x)
        return last, seen

    expected, state = [], 0.0
    for value in x:
        expected.append(state)
        state = 0.9 * state + value
    last, seen = jax.jit(total)(x)
    near(last, state, steps=50)
    near(seen, expected, steps=50)
    near(jax.grad(lambda x: total(x)[0])(x), 0.9 ** np.arange(49, -1, -1), steps=50)


def test_control_flow():
    near(jax.lax.while_loop(lambda v: v < 100, lambda v: v * 2, 1.0), 128.0)
    near(jax.lax.fori_loop(0, 10, lambda i, v: v + i, 0), 45)
    near(jax.jit(lambda x: jax.lax.cond(x > 0, jnp.sin, jnp.cos, x))(-1.0), np.cos(-1.0))


def test_checkpointing_changes_no_gradient():
    function = lambda x: jnp.sum(jnp.tanh(jnp.sin(x)) ** 2)  # noqa: E731
    x = numbers(64)
    near(jax.grad(jax.checkpoint(function))(x), jax.grad(function)(x), steps=4)


def test_a_custom_gradient_is_used():
    @jax.custom_vjp
    def clipped(x):
        return x

    clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1, 1),))
    near(jax.grad(lambda x: 5 * clipped(x))(2.0), 1.0)


def mesh(kind: AxisType) -> jax.sharding.Mesh:
    """All devices along one axis; one device is a mesh as well."""
    return jax.make_mesh((jax.device_count(),), ("x",), axis_types=(kind,))


@pytest.mark.rocm("RCCL")
def test_automatic_sharding_by_the_compiler():
    devices = mesh(AxisType.Auto)
    count = jax.device_count()
    a, b = numbers(8 * count, 32), numbers(32, 16, seed=1)
    placed = jax.device_put(a, NamedSharding(devices, P("x", None)))
    assert len(placed.addressable_shards) == count
    assert placed.addressable_shards[0].data.shape == (8, 32)
    got = jax.jit(lambda a, b: jnp.tanh(a @ b).sum(axis=0))(placed, b)
    want = np.tanh(wide(a) @ wide(b))
    near(got, want.sum(axis=0), steps=32 * count * 8, scale=np.abs(want).sum(axis=0))


@pytest.mark.rocm("RCCL")
def test_explicit_sharding_in_the_types():
    devices = mesh(AxisType.Explicit)
    a = numbers(4 * jax.device_count(), 6)
    with jax.set_mesh(devices):
        placed = jax.device_put(a, P("x", None))

        @jax.jit
        def double(x):
            assert jax.typeof(x).sharding.spec == P("x", None)
            return 2 * x

        got = double(placed)
    assert got.sharding.spec == P("x", None)
    near(got, 2 * a)


@pytest.mark.rocm("RCCL")
def test_manual_sharding_with_collectives():
    devices = mesh(AxisType.Auto)
    count = jax.device_count()
    a = numbers(count * 4, 5)

    def mean_over_devices(block):
        return block - jax.lax.pmean(jnp.mean(block, axis=0), "x")

    mapped = jax.shard_map(mean_over_devices, mesh=devices, in_specs=P("x"), out_specs=P("x"))
    near(jax.jit(mapped)(a), a - a.mean(axis=0), steps=count * 4)

    def shift(block):
        return jax.lax.ppermute(block, "x", [(n, (n + 1) % count) for n in range(count)])

    rolled = jax.shard_map(shift, mesh=devices, in_specs=P("x"), out_specs=P("x"))
    near(jax.jit(rolled)(a), np.roll(a, 4, axis=0))


def test_arrays_cross_to_numpy_and_back_by_dlpack():
    a = np.ascontiguousarray(numbers(5, 7))
    shared = jnp.from_dlpack(a, device=jax.devices("cpu")[0], copy=True)
    np.testing.assert_array_equal(shared, a)
    np.testing.assert_array_equal(np.from_dlpack(shared), a)


def test_large_arrays_reach_the_device_and_come_back():
    a = numbers(1 << 22, dtype="float32")
    on_device = jax.device_put(a)
    assert on_device.devices() <= set(jax.devices())
    np.testing.assert_array_equal(np.asarray(on_device + 0), a)
