"""Small models are trained for a few steps: the loss falls, and sharding does not change it."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

STEPS = 60


def mlp_init(key):
    sizes = (16, 64, 64, 1)
    keys = jax.random.split(key, len(sizes))
    return [
        {"w": jax.random.normal(k, (m, n)) / np.sqrt(m), "b": jnp.zeros(n)}
        for k, m, n in zip(keys, sizes, sizes[1:], strict=False)
    ]


def mlp(params, x):
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return (x @ params[-1]["w"] + params[-1]["b"])[:, 0]


def regression(count):
    x = np.random.default_rng(0).standard_normal((count, 16)).astype(np.float32)
    return x, np.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2]


def block_init(key, *, vocabulary=17, width=32):
    shapes = {
        "embed": (vocabulary, width), "position": (24, width), "qkv": (width, 3 * width),
        "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width),
    }  # fmt: skip
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.normal(k, shape) / np.sqrt(shape[0])
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def norm(x):
    return jax.nn.standardize(x, axis=-1, epsilon=1e-5)


def block(params, tokens, *, heads=4, dtype=jnp.float32):
    """One pre-norm transformer block between an embedding and its transpose."""
    params = jax.tree.map(lambda p: p.astype(dtype), params)
    x = params["embed"][tokens] + params["position"][: tokens.shape[1]]
    q, k, v = jnp.split(norm(x) @ params["qkv"], 3, axis=-1)
    apart = lambda t: t.reshape(*t.shape[:2], heads, -1)  # noqa: E731
    mixed = jax.nn.dot_product_attention(apart(q), apart(k), apart(v), is_causal=True)
    x = x + mixed.reshape(x.shape) @ params["out"]
    x = x + jax.nn.gelu(norm(x) @ params["up"]) @ params["down"]
    return (norm(x) @ params["embed"].T).astype(jnp.float32)


def next_token_loss(params, tokens, dtype):
    logits = block(params, tokens[:, :-1], dtype=dtype)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)
    return -jnp.mean(chosen)


def counting(count):
    """Sequences that count up by a step of their own: the next token can be learned."""
    source = np.random.default_rng(1)
    start, step = source.integers(0, 17, (count, 1)), source.integers(1, 3, (count, 1))
    return (start + step * np.arange(20)) % 17


def adam(loss, params, *, rate, steps):
    """Train by Adam (Kingma and Ba 2015) in one compiled scan; return the losses."""
    zeros = jax.tree.map(jnp.zeros_like, params)

    def step(state, number):
        params, first, second = state
        value, slope = jax.value_and_grad(loss)(params)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, slope)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, slope)
        size = rate * jnp.sqrt(1 - 0.999**number) / (1 - 0.9**number)
        params = jax.tree.map(
            lambda p, m, v: p - size * m / (jnp.sqrt(v) + 1e-8), params, first, second
        )
        return (params, first, second), value

    numbers = jnp.arange(1, steps + 1, dtype=jnp.float32)
    return jax.jit(lambda p: jax.lax.scan(step, (p, zeros, zeros), numbers)[1])(params)


def falls(losses, *, to):
    losses = np.asarray(losses, np.float64)
    assert np.all(np.isfinite(losses))
    assert losses[-1] < to * losses[0], f"loss {losses[0]:.3f} -> {losses[-1]:.3f}"


@pytest.mark.rocm("hipBLAS", "hipBLASLt")
def test_an_mlp_learns_a_function():
    x, y = regression(512)
    falls(
        adam(lambda p: jnp.mean((mlp(p, x) - y) ** 2), mlp_init(jax.random.key(0)), rate=3e-3,
             steps=STEPS),
        to=0.4,
    )  # fmt: skip


@pytest.mark.rocm("hipBLAS", "hipBLASLt")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_transformer_block_learns_to_count(dtype):
    tokens = counting(64)
    loss = partial(next_token_loss, tokens=tokens, dtype=jnp.dtype(dtype))
    falls(adam(loss, block_init(jax.random.key(1)), rate=1e-2, steps=STEPS), to=0.4)


@pytest.mark.rocm("MIOpen")
def test_a_convolutional_network_learns_to_tell_stripes_apart():
    source = np.random.default_rng(2)
    labels = source.integers(0, 2, 128)
    rows = np.sin(np.arange(16))[:, None] * np.ones(16)
    images = np.where(labels[:, None, None], rows, rows.T) + source.normal(0, 0.5, (128, 16, 16))
    x = images[:, None].astype(np.float32)

    def logit(p, x):
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, p["k"], (2, 2), "SAME"))
        return x.mean(axis=(2, 3)) @ p["w"]

    def loss(p):
        return jnp.mean(jnp.logaddexp(0, -(2 * labels - 1) * logit(p, x)))

    keys = jax.random.split(jax.random.key(3))
    start = {"k": jax.random.normal(keys[0], (8, 1, 3, 3)), "w": jax.random.normal(keys[1], (8,))}
    falls(adam(loss, start, rate=3e-2, steps=STEPS), to=0.4)


@pytest.mark.rocm("RCCL")
def test_training_sharded_over_all_devices_takes_the_same_steps():
    x, y = regression(64 * jax.device_count())
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    place = lambda a, spec: jax.device_put(a, NamedSharding(mesh, spec))  # noqa: E731
    start = mlp_init(jax.random.key(4))

    def losses(x, y, params):
        return adam(lambda p: jnp.mean((mlp(p, x) - y) ** 2), params, rate=3e-3, steps=20)

    alone = losses(x, y, start)
    sharded = losses(place(x, P("data")), place(y, P("data")), place(start, P()))
    falls(sharded, to=0.9)
    np.testing.assert_allclose(sharded, alone, rtol=1e-4)
