"""Features that ROCm does not support: expected to fail there, and a failure when they do not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import rocm_version
from documented import UNSUPPORTED, Unsupported
from near import near, numbers, wide


def tf32(backend: str) -> None:
    """TF32 drops 13 bits of the mantissa: where it is used, the product shows it."""
    if backend == "cpu":
        pytest.skip("TF32 is a format of GPUs")
    a, b = (numbers(256, 256, seed=n, dtype="float32") for n in (0, 1))
    with jax.default_matmul_precision("tensorfloat32"):
        product = wide(jnp.matmul(a, b))
    error = np.abs(product - wide(a) @ wide(b)).max() / np.abs(product).max()
    assert 1e-5 < error < 1e-2, f"relative error {error:.3g}: not TF32"


def rnn(backend: str) -> None:
    """LSTM in float32 is in the table of libraries; this is what goes beyond it."""
    if backend == "cpu":
        pytest.skip("JAX has recurrent networks for GPUs only")
    from jax.experimental import rnn as api

    x = numbers(2, 3, 4, dtype="float64")
    start = np.zeros((1, 2, 4))
    flat = api.init_lstm_weight(jax.random.key(0), 4, 4, 1, False).astype("float64")
    api.lstm(x, start, start, flat, np.full(2, 3, np.int32), 4, 4, 1, 0.0, False)


def int4(backend: str) -> None:
    values = np.arange(-8, 8)
    a = jnp.asarray(values, jnp.int4)
    near((a + jnp.int4(1)).astype(jnp.int32)[:-1], values[:-1] + 1)
    near(jax.jit(lambda a: a.astype(jnp.int8) * jnp.int8(3))(a), (3 * values).astype(np.int8))


def sparsify(backend: str) -> None:
    from jax.experimental import sparse

    dense = numbers(9, 9)
    dense[np.abs(dense) < 1] = 0
    function = sparse.sparsify(lambda m, v: jnp.sum(m @ v) + jnp.sum(2 * m))
    v = numbers(9, seed=1)
    size = np.abs(dense * v).sum() + 2 * np.abs(dense).sum()
    want = (dense @ v).sum() + 2 * dense.sum()
    near(function(sparse.BCOO.fromdense(dense), v), want, steps=81, scale=size)


TRIES = {"tf32": tf32, "rnn": rnn, "int4": int4, "sparsify": sparsify}


@pytest.mark.parametrize(
    "feature",
    [
        pytest.param(item, id=item.name, marks=pytest.mark.rocm(item.library))
        for item in UNSUPPORTED
    ],
)
def test_feature(feature: Unsupported, backend: str, request: pytest.FixtureRequest) -> None:
    if feature.fails_on(backend, rocm=rocm_version(), jax_version=jax.__version__):
        reason = f"{feature.feature}: not on ROCm {feature.rocm} (suites/smoke/documented.py)"
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    TRIES[feature.name](backend)
