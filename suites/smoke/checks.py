"""One numeric check per function that the page lists: against NumPy or SciPy in float64."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import scipy.fft
import scipy.linalg
import scipy.signal
import scipy.sparse
import scipy.stats
from jax.experimental import sparse
from near import near, numbers, wide

FLOATS = ("float32", "float64")


@dataclass(frozen=True)
class Check:
    """A function to call with the API and a dtype."""

    run: Callable[..., None]
    dtypes: tuple[str, ...]


CHECKS: dict[tuple[str, str], Check] = {}


def check(name: str, *dtypes: str, library: str = "") -> Callable[..., Callable[..., None]]:
    """Register the check of an API; for a library of its own where libraries differ in it."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        CHECKS[library, name] = Check(function, dtypes or FLOATS)
        return function

    return register


def found(library: str, name: str) -> Check | None:
    return CHECKS.get((library, name)) or CHECKS.get(("", name))


# --- hipBLAS, hipBLASLt --------------------------------------------------------------------------


@check("jax.numpy.matmul", "float16", "bfloat16", "float32", "float64")
def matmul(api, dtype):
    a, b = numbers(96, 160, dtype=dtype), numbers(160, 64, seed=1, dtype=dtype)
    near(api(a, b), wide(a) @ wide(b), steps=160)
    a, b = numbers(5, 1, 17, 33, dtype=dtype), numbers(4, 33, 9, seed=1, dtype=dtype)
    near(api(a, b), wide(a) @ wide(b), steps=33)
    a = numbers(64, 64, dtype=dtype)
    near(api(a.T, a), wide(a).T @ wide(a), steps=64)


@check("jax.numpy.matmul", "int8", "bfloat16", "float32", library="hipBLASLt")
def matmul_with_epilogue(api, dtype):
    """What hipBLASLt adds: integers, wider accumulation, bias and activation in one kernel."""
    if dtype == "int8":
        a, b = (np.random.default_rng(n).integers(-9, 9, (64, 64), np.int8) for n in (0, 1))
        got = api(a, b, preferred_element_type=jnp.int32)
        near(got, a.astype(np.int32) @ b.astype(np.int32))
        return
    a, b = numbers(128, 256, dtype=dtype), numbers(256, 64, seed=1, dtype=dtype)
    bias = numbers(64, seed=2, dtype=dtype)
    got = jax.jit(
        lambda a, b, bias: jax.nn.relu(api(a, b, preferred_element_type=jnp.float32) + bias)
    )(a, b, bias)
    near(got, np.maximum(wide(a) @ wide(b) + wide(bias), 0), steps=256, dtype=dtype)


@check("jax.lax.dot", "float16", "bfloat16", "float32", "float64")
def lax_dot(api, dtype):
    a, b = numbers(33, 65, dtype=dtype), numbers(65, 17, seed=1, dtype=dtype)
    near(api(a, b), wide(a) @ wide(b), steps=65)
    near(api(a, b[:, 0]), wide(a) @ wide(b[:, 0]), steps=65)


@check("jax.lax.dot", "bfloat16", "float32", library="hipBLASLt")
def lax_dot_mixed(api, dtype):
    a, b = numbers(64, 512, dtype=dtype), numbers(512, 64, seed=1, dtype=dtype)
    got = api(a, b, preferred_element_type=jnp.float32)
    assert got.dtype == jnp.float32
    near(got, wide(a) @ wide(b), steps=512)


@check("jax.lax.dot_general")
def dot_general(api, dtype):
    a, b = numbers(6, 7, 11, dtype=dtype), numbers(6, 11, 5, seed=1, dtype=dtype)
    got = api(a, b, (((2,), (1,)), ((0,), (0,))))
    near(got, np.einsum("bij,bjk->bik", wide(a), wide(b)), steps=11)


@check("jax.numpy.dot", "float32", "float64", "complex64", "complex128")
def numpy_dot(api, dtype):
    real = "float32" if dtype in ("float32", "complex64") else "float64"
    a, b = numbers(301, dtype=real), numbers(301, seed=1, dtype=real)
    if dtype.startswith("complex"):
        a, b = (a + 1j * b).astype(dtype), (b - 1j * a).astype(dtype)
    near(api(a, b), np.dot(a.astype(np.complex128), b.astype(np.complex128))
         if dtype.startswith("complex") else wide(a) @ wide(b), steps=301)  # fmt: skip


@check("jax.numpy.einsum")
def einsum(api, dtype):
    a, b = numbers(8, 12, 16, dtype=dtype), numbers(8, 16, 10, seed=1, dtype=dtype)
    near(api("bij,bjk->bik", a, b), np.einsum("bij,bjk->bik", wide(a), wide(b)), steps=16)
    near(api("bij->ji", a), np.einsum("bij->ji", wide(a)), steps=8)
    near(api("bij,bjk->", a, b), np.einsum("bij,bjk->", wide(a), wide(b)), steps=8 * 12 * 16 * 10)


# --- hipCUB, rocThrust ---------------------------------------------------------------------------


def _reduction(name, steps):
    @check(f"jax.numpy.{name}")
    def reduce(api, dtype):
        a = numbers(37, 1000, dtype=dtype)
        a = 1 + a / 1000 if name == "prod" else a
        reference = getattr(np, name)
        for axis in (None, 0, 1, (0, 1)):
            near(api(a, axis=axis), reference(wide(a), axis=axis), steps=steps)


for _name, _steps in (("sum", 37000), ("mean", 37000), ("prod", 37000), ("max", 1), ("min", 1)):
    _reduction(_name, _steps)


@check("jax.numpy.cumsum")
def cumsum(api, dtype):
    a = numbers(11, 3001, dtype=dtype)
    near(api(a, axis=1), np.cumsum(wide(a), axis=1), steps=3001)
    near(api(np.arange(100_000)), np.cumsum(np.arange(100_000)))


@check("jax.numpy.cumprod")
def cumprod(api, dtype):
    a = (1 + numbers(11, 301, dtype=dtype) / 300).astype(dtype)
    near(api(a, axis=1), np.cumprod(wide(a), axis=1), steps=301)


@check("jax.numpy.sort", "float32", "float64", "int32", "uint8")
def sort(api, dtype):
    a = (100 * np.abs(numbers(9, 4097))).astype(dtype)
    np.testing.assert_array_equal(api(a, axis=1), np.sort(a, axis=1))
    np.testing.assert_array_equal(api(a, axis=0), np.sort(a, axis=0))


@check("jax.numpy.argsort", "float32", "int32")
def argsort(api, dtype):
    a = (10 * numbers(3, 1025)).astype(dtype)
    np.testing.assert_array_equal(api(a, axis=1), np.argsort(a, axis=1, kind="stable"))


# --- hipFFT --------------------------------------------------------------------------------------


@check("jax.numpy.fft")
def fft(api, dtype):
    """The page names the module; these are its transforms."""
    a = numbers(6, 60, 128, dtype=dtype)
    near(api.fft(a), np.fft.fft(wide(a)), steps=128)
    near(api.ifft(api.fft(a)), wide(a).astype(np.complex128), steps=256)
    near(api.rfft(a), np.fft.rfft(wide(a)), steps=128)
    near(api.irfft(api.rfft(a)), wide(a), steps=256)
    near(api.fft2(a), np.fft.fft2(wide(a)), steps=128 * 60)
    near(api.fftn(a), np.fft.fftn(wide(a)), steps=a.size)
    near(api.rfftn(a), np.fft.rfftn(wide(a)), steps=a.size)
    prime = numbers(101, dtype=dtype)
    near(api.fft(prime), np.fft.fft(wide(prime)), steps=101)


# --- hipRAND (JAX's generators are its own) ------------------------------------------------------


def threefry(key: int, count: int) -> np.ndarray:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011) over a counter, as JAX lays it out."""
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    keys = np.array([key >> 32, key & 0xFFFFFFFF, 0], np.uint32)
    keys[2] = keys[0] ^ keys[1] ^ np.uint32(0x1BD11BDA)
    x = [np.zeros(count, np.uint32) + keys[0], np.arange(count, dtype=np.uint32) + keys[1]]
    for group in range(5):
        for rotation in rotations[group % 2]:
            x[0] = x[0] + x[1]
            x[1] = (x[1] << np.uint32(rotation)) | (x[1] >> np.uint32(32 - rotation))
            x[1] = x[1] ^ x[0]
        x[0] = x[0] + keys[(group + 1) % 3]
        x[1] = x[1] + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x[0] ^ x[1]


@check("jax.random.uniform")
def uniform(api, dtype):
    key = jax.random.key(42, impl="threefry2x32")
    draws = np.asarray(api(key, (20_000,), dtype=dtype))
    assert draws.min() >= 0
    assert draws.max() < 1
    assert scipy.stats.kstest(wide(draws), "uniform").pvalue > 1e-3
    np.testing.assert_array_equal(jax.random.bits(key, (999,), "uint32"), threefry(42, 999))


@check("jax.random.normal")
def normal(api, dtype):
    draws = wide(api(jax.random.key(1), (20_000,), dtype=dtype))
    assert scipy.stats.kstest(draws, "norm").pvalue > 1e-3


@check("jax.random.randint", "int32", "int64")
def randint(api, dtype):
    draws = np.asarray(api(jax.random.key(2), (20_000,), -3, 7, dtype=dtype))
    counts = np.bincount(draws + 3, minlength=10)
    assert counts.size == 10
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


@check("jax.random.split", "uint32")
def split(api, dtype):
    keys = jax.random.key_data(api(jax.random.key(3), 1000))
    assert keys.dtype == dtype
    assert len(np.unique(np.asarray(keys), axis=0)) == 1000


# --- hipSOLVER -----------------------------------------------------------------------------------


@check("jax.numpy.linalg.solve")
def solve(api, dtype):
    a = (numbers(3, 40, 40, dtype=dtype) + 40 * np.eye(40)).astype(dtype)
    b = numbers(3, 40, 2, seed=1, dtype=dtype)
    near(api(a, b), np.linalg.solve(wide(a), wide(b)), steps=40 * 40)


@check("jax.scipy.linalg.lu")
def factorizations(api, dtype):
    a = numbers(30, 30, dtype=dtype)
    p, low, up = (wide(part) for part in api(a))
    near((p @ low @ up).astype(dtype), wide(a), steps=30 * 30)
    spd = (wide(a) @ wide(a).T + 30 * np.eye(30)).astype(dtype)
    near(jnp.linalg.cholesky(spd), np.linalg.cholesky(wide(spd)), steps=30 * 30)
    q, r = (wide(part) for part in jnp.linalg.qr(a))
    near((q @ r).astype(dtype), wide(a), steps=30 * 30)
    near((q.T @ q).astype(dtype), np.eye(30), steps=30 * 30)
    values, vectors = jnp.linalg.eigh(spd)
    near(values, np.linalg.eigvalsh(wide(spd)), steps=30 * 30)
    near((wide(vectors) @ np.diag(wide(values)) @ wide(vectors).T).astype(dtype), wide(spd),
         steps=30 * 30)  # fmt: skip


@check("jax.numpy.linalg.svd")
def svd(api, dtype):
    a = numbers(40, 24, dtype=dtype)
    u, s, vt = api(a, full_matrices=False)
    near(s, np.linalg.svd(wide(a), compute_uv=False), steps=40 * 24)
    near((wide(u) * wide(s) @ wide(vt)).astype(dtype), wide(a), steps=40 * 24)


@check("jax.numpy.linalg.eig")
def eig(api, dtype):
    a = numbers(16, 16, dtype=dtype)
    values, vectors = (np.asarray(part) for part in api(a))
    order = lambda x: x[np.lexsort((x.imag.round(3), x.real.round(3)))]  # noqa: E731
    near(order(values), order(np.linalg.eigvals(wide(a))), steps=16**3)
    near(wide(a).astype(values.dtype) @ vectors, vectors * values, steps=16**3)


# --- hipSPARSE, hipSPARSELt ----------------------------------------------------------------------


def _sparse(dtype):
    dense = numbers(50, 70, dtype=dtype)
    dense[np.abs(wide(dense)) < 1] = 0
    return dense, numbers(70, 8, seed=1, dtype=dtype)


@check("jax.experimental.sparse.BCOO.__matmul__")
def sparse_matmul(api, dtype):
    dense, other = _sparse(dtype)
    expected = wide(dense) @ wide(other)
    near(jax.jit(api)(sparse.BCOO.fromdense(dense), other), expected, steps=70)
    near(jax.jit(api)(sparse.BCOO.fromdense(dense), other[:, 0]), expected[:, 0], steps=70)


@check("jax.experimental.sparse.bcoo_dot_general")
def sparse_dot(api, dtype):
    dense, other = _sparse(dtype)
    numbers_ = (((1,), (0,)), ((), ()))
    near(api(sparse.BCOO.fromdense(dense), other, dimension_numbers=numbers_),
         wide(dense) @ wide(other), steps=70)  # fmt: skip
    near(sparse.BCSR.fromdense(dense) @ other, wide(dense) @ wide(other), steps=70)


@check("jax.experimental.sparse.linalg.spsolve")
def spsolve(api, dtype):
    size = 60
    matrix = scipy.sparse.diags_array(
        [-np.ones(size - 1), 4 * np.ones(size), -np.ones(size - 1)], offsets=[-1, 0, 1]
    ).tocsr()
    b = numbers(size, dtype=dtype)
    arguments = (matrix.data.astype(dtype), matrix.indices, matrix.indptr, b)
    if jax.default_backend() == "gpu":
        # JAX lowers it for CUDA and for the CPU: on ROCm the answer comes from the CPU
        with jax.default_device(jax.devices("cpu")[0]):
            got = api(*arguments)
    else:
        got = api(*arguments)
    near(got, np.linalg.solve(matrix.toarray(), wide(b)), steps=size)


@check("jax.experimental.sparse.CSR")
def sparse_formats(api, dtype):
    dense, other = _sparse(dtype)
    for kind in (api, sparse.COO):
        matrix = kind.fromdense(dense)
        near(matrix.todense(), wide(dense))
        near(matrix @ other, wide(dense) @ wide(other), steps=70)
        near(matrix @ other[:, 0], wide(dense) @ wide(other[:, 0]), steps=70)
    reference = scipy.sparse.csr_array(wide(dense))
    np.testing.assert_array_equal(api.fromdense(dense).indptr, reference.indptr)


@check("jax.experimental.sparse.nm.nm_spmm", "bfloat16")
def nm_sparsity(api, dtype):
    from jax.experimental.sparse.nm import nm_pack

    mask = np.tile([True, False, False, True], (32, 16))
    dense, other = numbers(32, 64, dtype=dtype), numbers(64, 24, seed=1, dtype=dtype)
    metadata = np.asarray(nm_pack(mask))
    # within a group of four, elements 0 and 3 are kept: 0 + 3 * 4, four groups to a word
    np.testing.assert_array_equal(metadata, np.full((32, 4), 0xCCCC, np.uint16))
    if jax.default_backend() == "cpu":
        return  # JAX has no N:M product on the CPU; packing is all there is to see
    kept = dense[mask].reshape(32, 32)
    got = api(kept, other, metadata, (((1,), (0,)), ((), ())), output_dtype=jnp.float32)
    near(got, np.where(mask, wide(dense), 0) @ wide(other), steps=64, dtype=dtype)


# --- MIOpen --------------------------------------------------------------------------------------


@check("jax.lax.conv_general_dilated")
def convolution(api, dtype):
    image, kernel = numbers(2, 3, 20, 24, dtype=dtype), numbers(5, 3, 3, 3, seed=1, dtype=dtype)
    expected = np.stack([
        [sum(scipy.signal.correlate2d(wide(one[c]), wide(filter_[c]), "same") for c in range(3))
         for filter_ in kernel]
        for one in image
    ])  # fmt: skip
    near(api(image, kernel, (1, 1), "SAME"), expected, steps=27)
    near(api(image, kernel, (2, 2), ((1, 1), (1, 1))), expected[:, :, ::2, ::2], steps=27)
    weights = jax.grad(lambda k: jnp.sum(api(image, k, (1, 1), "SAME") ** 2))(kernel)
    step = 1e-4 if dtype == "float64" else 1e-2
    bump = np.zeros_like(kernel)
    bump[1, 2, 0, 1] = step
    both = [np.sum(wide(api(image, kernel + sign * bump, (1, 1), "SAME")) ** 2) for sign in (1, -1)]
    slope = (both[0] - both[1]) / (2 * step)
    assert abs(weights[1, 2, 0, 1] - slope) <= 1e-2 * abs(slope)


@check("jax.lax.reduce_window")
def pooling(api, dtype):
    image = numbers(2, 8, 12, 3, dtype=dtype)
    blocks = wide(image).reshape(2, 4, 2, 6, 2, 3)
    window = ((1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    low = np.array(-np.inf, dtype)
    near(api(image, low, jax.lax.max, *window), blocks.max(axis=(2, 4)))
    total = api(image, np.array(0, dtype), jax.lax.add, *window)
    near(total / 4, blocks.mean(axis=(2, 4)), steps=4)


@check("jax.nn.relu", "bfloat16", "float32", "float64")
def relu(api, dtype):
    a = numbers(1000, dtype=dtype)
    np.testing.assert_array_equal(wide(api(a)), np.maximum(wide(a), 0))
    slopes = jax.vmap(jax.grad(lambda x: api(x).astype(jnp.float32)))(a)
    np.testing.assert_array_equal(wide(slopes), (wide(a) > 0).astype(np.float64))


@check("jax.nn.standardize")
def normalization(api, dtype):
    a = numbers(64, 10, 10, 3, dtype=dtype)
    mean, variance = wide(a).mean(axis=(0, 1, 2)), wide(a).var(axis=(0, 1, 2))
    expected = (wide(a) - mean) / np.sqrt(variance + 1e-5)
    near(api(a, axis=(0, 1, 2), epsilon=1e-5), expected, steps=6400)


@check("jax.experimental.rnn.lstm_ref", "float32")
def lstm(api, dtype):
    """LSTM with double bias in float32 is what ROCm supports; on the CPU its reference runs."""
    from jax.experimental import rnn

    batch, length, inputs, hidden = 3, 7, 5, 4
    shape = (inputs, hidden, 1, False)
    flat = rnn.init_lstm_weight(jax.random.key(0), *shape)
    x = numbers(batch, length, inputs, dtype=dtype)
    start = np.zeros((1, batch, hidden), dtype)
    if jax.default_backend() == "gpu":
        lengths = np.full(batch, length, np.int32)
        got, _, _ = rnn.lstm(x, start, start, flat, lengths, *shape[:3], 0.0, shape[3])
    else:
        parts = rnn.unpack_lstm_weights(flat, *shape)
        lengths = np.full(batch, length, np.int32)
        got, _, _ = api(
            x, start, start, *parts, seq_lengths=lengths, input_size=inputs, hidden_size=hidden,
            num_layers=1, dropout=0.0, bidirectional=False,
        )  # fmt: skip
    parts = rnn.unpack_lstm_weights(flat, *shape)
    near(got, _lstm(wide(x), *(wide(part[0]) for part in parts)), steps=length * hidden)


def _lstm(x, w_ih, w_hh, b_ih, b_hh):
    """LSTM cell by cell (Hochreiter and Schmidhuber 1997), gates in the order i, f, g, o."""
    sigmoid = lambda z: 1 / (1 + np.exp(-z))  # noqa: E731
    h = c = np.zeros((x.shape[0], w_hh.shape[1]))
    outputs = []
    for step in range(x.shape[1]):
        gates = x[:, step] @ w_ih.T + b_ih + h @ w_hh.T + b_hh
        i, f, g, o = np.split(gates, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.stack(outputs, axis=1)


# --- RCCL ----------------------------------------------------------------------------------------


@check("jax.pmap")
def pmap(api, dtype):
    count = jax.local_device_count()
    a = numbers(count, 50, dtype=dtype)
    got = api(lambda x: x / jax.lax.psum(x, "i"), axis_name="i")(a)
    near(got, wide(a) / wide(a).sum(axis=0), steps=count * 100)


@check("jax.distributed.initialize", "float32")
def distributed(api, dtype):
    """One process that is its own coordinator; several need several machines or devices."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = (
        "import sys, jax\n"
        f"jax.distributed.initialize('127.0.0.1:{port}', 1, 0)\n"
        "assert jax.process_count() == 1\n"
        "total = jax.numpy.sum(jax.numpy.ones(8, sys.argv[1]))\n"
        "assert total == 8 and total.dtype == sys.argv[1]\n"
        "jax.distributed.shutdown()\n"
    )
    argv = [sys.executable, "-c", code, dtype]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert callable(api)


def _collective(function, array):
    kinds = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=kinds)
    spec = jax.sharding.PartitionSpec("x")
    mapped = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec)
    return jax.jit(mapped)(array)


@check("jax.lax.psum")
def all_reduce(api, dtype):
    count = jax.device_count()
    a = numbers(count, 33, dtype=dtype)
    got = _collective(lambda x: api(x, "x") + 0 * x, a)
    near(got, np.tile(wide(a).sum(axis=0), (count, 1)), steps=count)


@check("jax.lax.all_gather")
def gather(api, dtype):
    count = jax.device_count()
    a = numbers(count, 5, dtype=dtype)
    got = _collective(lambda x: api(x, "x", axis=0, tiled=True), a)
    near(got, np.tile(wide(a), (count, 1)))


@check("jax.lax.psum_scatter")
def scatter(api, dtype):
    count = jax.device_count()
    a = numbers(count * count, 5, dtype=dtype)
    got = _collective(lambda x: api(x, "x", tiled=True), a)
    near(got, wide(a).reshape(count, count, 5).sum(axis=0), steps=count)
