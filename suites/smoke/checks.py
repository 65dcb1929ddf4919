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
import scipy.sparse
import scipy.special
import scipy.stats
from jax.experimental import sparse
from near import (
    SAFETY,
    TF32,
    contracted,
    judge,
    near,
    numbers,
    orthonormal,
    rebuilt,
    solved,
    summed,
    transformed,
    unit,
    wide,
)
from numpy.lib.stride_tricks import sliding_window_view

FLOATS = ("float32", "float64")
DEFAULT = "float32-default"  # float32 in the precision that the backend takes where none is named


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


def precision(dtype):
    """Return the type's own name, the option that has it computed in itself, and the rounding."""
    if dtype == DEFAULT:
        return "float32", {}, TF32
    return dtype, {"precision": "highest"} if dtype in ("float32", "complex64") else {}, 0.0


def _products(api, dtype, *shapes, **more):
    """Judge products of (m, k) and (k, n); odd sizes have tails, large ones are split."""
    name, options, rounded = precision(dtype)
    for seed, (m, k, n) in enumerate(shapes):
        a, b = numbers(m, k, seed=seed, dtype=name), numbers(k, n, seed=seed + 9, dtype=name)
        contracted(api(a, b, **options, **more), np.matmul, a, b, terms=k, rounded=rounded)


@check("jax.numpy.matmul", "float16", "bfloat16", "float32", DEFAULT, "float64")
def matmul(api, dtype):
    _products(api, dtype, (96, 160, 64), (1, 7, 1), (255, 8193, 33), (8191, 65, 129))
    name, options, rounded = precision(dtype)
    a, b = numbers(5, 1, 17, 33, dtype=name), numbers(4, 33, 9, seed=1, dtype=name)
    contracted(api(a, b, **options), np.matmul, a, b, terms=33, rounded=rounded)
    a = numbers(64, 64, dtype=name)
    contracted(api(a.T, a, **options), np.matmul, a.T, a, terms=64, rounded=rounded)


@check("jax.numpy.matmul", "int8", "bfloat16", "float32", library="hipBLASLt")
def matmul_with_epilogue(api, dtype):
    """What hipBLASLt adds: integers, wider accumulation, bias and activation in one kernel."""
    if dtype == "int8":
        a, b = (np.random.default_rng(n).integers(-99, 99, (64, 64), np.int8) for n in (0, 1))
        got = api(a, b, preferred_element_type=jnp.int32)
        near(got, a.astype(np.int32) @ b.astype(np.int32))
        return
    _, options, _ = precision(dtype)
    a, b = numbers(128, 256, dtype=dtype), numbers(256, 64, seed=1, dtype=dtype)
    bias = numbers(64, seed=2, dtype="float32")

    def biased(a, b, bias):
        return api(a, b, preferred_element_type=jnp.float32, **options) + bias

    contracted(jax.jit(biased)(a, b, bias), np.matmul, a, b, terms=256, also=bias)
    positive = jax.jit(lambda *each: jax.nn.relu(biased(*each)))(a, b, bias)
    near(positive, np.maximum(wide(jax.jit(biased)(a, b, bias)), 0))


@check("jax.lax.dot", "float16", "bfloat16", "float32", DEFAULT, "float64")
def lax_dot(api, dtype):
    _products(api, dtype, (33, 65, 17), (130, 1024, 66))
    name, options, rounded = precision(dtype)
    a, b = numbers(33, 65, dtype=name), numbers(65, seed=1, dtype=name)
    contracted(api(a, b, **options), np.matmul, a, b, terms=65, rounded=rounded)


@check("jax.lax.dot", "float8_e4m3fn", "float16", "bfloat16", "float32", library="hipBLASLt")
def lax_dot_mixed(api, dtype):
    _products(api, dtype, (64, 512, 64), (48, 4096, 80), preferred_element_type=jnp.float32)


@check("jax.lax.dot_general", "bfloat16", "float32", "float64")
def dot_general(api, dtype):
    _, options, _ = precision(dtype)
    a, b = numbers(6, 37, 111, dtype=dtype), numbers(6, 111, 25, seed=1, dtype=dtype)
    got = api(a, b, (((2,), (1,)), ((0,), (0,))), **options)
    contracted(got, lambda a, b: np.einsum("bij,bjk->bik", a, b), a, b, terms=111)


@check("jax.numpy.dot", "float32", "float64", "complex64", "complex128")
def numpy_dot(api, dtype):
    _, options, _ = precision(dtype)
    real = "float32" if dtype in ("float32", "complex64") else "float64"
    a, b = numbers(7, 301, dtype=real), numbers(301, seed=1, dtype=real)
    if dtype.startswith("complex"):
        a, b = (a + 1j * a[::-1]).astype(dtype), (b - 1j * b[::-1]).astype(dtype)
    contracted(api(a, b, **options), np.matmul, a, b, terms=2 * 301)
    contracted(api(a[0], b, **options), np.dot, a[0], b, terms=2 * 301)


@check("jax.numpy.einsum")
def einsum(api, dtype):
    _, options, _ = precision(dtype)
    a, b = numbers(8, 12, 16, dtype=dtype), numbers(8, 16, 10, seed=1, dtype=dtype)
    for subscripts, terms in (("bij,bjk->bik", 16), ("bij,bjk->ik", 8 * 16), ("bij,bjk->j", 960)):
        got = api(subscripts, a, b, **options)
        contracted(got, lambda a, b, s=subscripts: np.einsum(s, a, b), a, b, terms=terms)
    np.testing.assert_array_equal(api("bij->ji", a[:1]), a[0].T)


@check("jax.scipy.linalg.solve_triangular", library="hipBLAS")
def triangular(api, dtype):
    """The solver that XLA itself takes from BLAS."""
    for lower in (True, False):
        a = numbers(65, 65, dtype=dtype) + 30 * np.eye(65, dtype=dtype)
        a, b = (np.tril if lower else np.triu)(a), numbers(65, 7, seed=1, dtype=dtype)
        solved(a, api(a, b, lower=lower), b)


@check("jax.nn.dot_product_attention", "bfloat16", "float32", library="hipBLASLt")
def attention(api, dtype):
    """Softmax(Q K^T) V, causal and not; weights are rounded to the type of the values."""
    q, k, v = (numbers(2, 33, 4, 16, seed=n, dtype=dtype) for n in range(3))
    for causal in (False, True):
        scores = np.einsum("bqhd,bkhd->bhqk", wide(q), wide(k)) / 4.0
        scores = np.where(np.tril(np.ones((33, 33), bool)) | (not causal), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        want = np.einsum("bhqk,bkhd->bqhd", weights, wide(v))
        size = np.einsum("bhqk,bkhd->bqhd", weights, np.abs(wide(v)))
        with jax.default_matmul_precision("highest"):
            got = api(q, k, v, is_causal=causal)
        judge(got, want, (2 * unit(got) + 8 * SAFETY * 2.0**-24) * (np.abs(want) + size))


# --- hipCUB, rocThrust ---------------------------------------------------------------------------


def _reduction(name):
    @check(f"jax.numpy.{name}")
    def reduce(api, dtype):
        a = numbers(37, 1000, dtype=dtype)
        reference = getattr(np, name)
        for axis in (None, 0, 1, (0, 1)):
            got, number = api(a, axis=axis), {0: 37, 1: 1000}.get(axis, 37000)
            if name in ("max", "min"):
                np.testing.assert_array_equal(got, reference(a, axis=axis))
            else:
                summed(got, lambda x, axis=axis: reference(x, axis=axis), a, number=number)


for _name in ("sum", "mean", "max", "min"):
    _reduction(_name)


@check("jax.numpy.prod")
def product(api, dtype):
    a = (1 + numbers(37, 1000, dtype=dtype) / 100).astype(dtype)
    for axis, number in ((None, 37000), (0, 37), (1, 1000)):
        want = np.prod(wide(a), axis=axis)
        near(api(a, axis=axis), want, steps=number, scale=want)


@check("jax.numpy.cumsum")
def cumsum(api, dtype):
    a = numbers(11, 3001, dtype=dtype)
    number = np.arange(1, 3002)
    want, size = np.cumsum(wide(a), axis=1), np.cumsum(np.abs(wide(a)), axis=1)
    got = api(a, axis=1)
    judge(got, want, SAFETY * number**0.5 * unit(got) * size)
    near(api(np.arange(100_000)), np.cumsum(np.arange(100_000)))


@check("jax.numpy.cumprod")
def cumprod(api, dtype):
    a = (1 + numbers(11, 301, dtype=dtype) / 300).astype(dtype)
    want = np.cumprod(wide(a), axis=1)
    near(api(a, axis=1), want, steps=301, scale=want)


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
    """The page names the module; these are its transforms, of lengths with small and large primes.

    What they invert is made by NumPy: a round trip of two wrong transforms proves nothing.
    """
    a = numbers(6, 60, 128, dtype=dtype)
    kind = np.complex64 if dtype == "float32" else np.complex128
    spectrum, half = np.fft.fft(wide(a)).astype(kind), np.fft.rfft(wide(a)).astype(kind)
    for name, x, length in (
        ("fft", a, 128), ("ifft", spectrum, 128), ("rfft", a, 128), ("irfft", half, 128),
        ("fft2", a, 128 * 60), ("fftn", a, a.size), ("rfftn", a, a.size),
    ):  # fmt: skip
        transformed(getattr(api, name)(x), getattr(np.fft, name)(wide(x)), length=length)
    for size in (101, 210, 1009, 2187, 4096):
        x = numbers(3, size, dtype=dtype)
        transformed(api.fft(x), np.fft.fft(wide(x)), length=4 * size)  # a prime needs more points


# --- hipRAND (JAX's generators are its own) ------------------------------------------------------


def threefry(key: int, count: int) -> list[np.ndarray]:
    """Return both words of Threefry-2x32, 20 rounds (Salmon et al. 2011), as JAX counts."""
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
    return x


def words(key: jax.Array, count: int, bits: int) -> np.ndarray:
    """Return the random words of a key, made by NumPy."""
    high, low = (int(part) for part in np.asarray(jax.random.key_data(key)))
    first, second = threefry(high << 32 | low, count)
    if bits == 32:
        return first ^ second
    return first.astype(np.uint64) << np.uint64(32) | second


def fractions(key: jax.Array, count: int, dtype: str) -> np.ndarray:
    """Return numbers in [0, 1): the words as the mantissa of a number in [1, 2), less one."""
    bits, mantissa = (32, 23) if dtype == "float32" else (64, 52)
    drawn = words(key, count, bits) >> type(words(key, 1, bits)[0])(bits - mantissa)
    return drawn.astype(np.float64) / 2.0**mantissa


THREEFRY = "threefry2x32"


@check("jax.random.uniform")
def uniform(api, dtype):
    key = jax.random.key(42, impl=THREEFRY)
    draws = api(key, (20_000,), dtype=dtype)
    np.testing.assert_array_equal(wide(draws), fractions(key, 20_000, dtype))
    assert scipy.stats.kstest(wide(draws), "uniform").pvalue > 1e-3
    np.testing.assert_array_equal(jax.random.bits(key, (999,), "uint32"), words(key, 999, 32))


@check("jax.random.normal")
def normal(api, dtype):
    key = jax.random.key(1, impl=THREEFRY)
    draws = api(key, (20_000,), dtype=dtype)
    low = np.nextafter(np.array(-1, dtype), np.array(0, dtype))
    spread = fractions(key, 20_000, dtype) * (1 - np.float64(low)) + np.float64(low)
    spread = np.maximum(spread.astype(dtype), low)
    want = 2**0.5 * scipy.special.erfinv(wide(spread))
    # the slope of its inverse, and an approximation that is good to some units in the last place
    slope = np.exp(want**2 / 2) * (np.pi / 2) ** 0.5
    judge(draws, want, 16 * SAFETY * unit(draws) * (np.abs(want) + slope * 2.0**-2))
    assert scipy.stats.kstest(wide(draws), "norm").pvalue > 1e-3


@check("jax.random.randint", "int32", "int64")
def randint(api, dtype):
    key, bits = jax.random.key(2, impl=THREEFRY), 32 if dtype == "int32" else 64
    draws = np.asarray(api(key, (20_000,), -3, 7, dtype=dtype))
    high, low = (words(part, 20_000, bits) for part in jax.random.split(key))
    carry = pow(2, bits // 2, 10) ** 2 % 10
    want = (high % 10 * type(high[0])(carry) + low % 10) % 10
    np.testing.assert_array_equal(draws, want.astype(np.int64) - 3)
    assert scipy.stats.chisquare(np.bincount(draws + 3, minlength=10)).pvalue > 1e-3


@check("jax.random.split", "uint32")
def split(api, dtype):
    keys = jax.random.key_data(api(jax.random.key(3, impl=THREEFRY), 1000))
    assert keys.dtype == dtype
    np.testing.assert_array_equal(keys, np.stack(threefry(3, 1000), axis=1))


# --- hipSOLVER -----------------------------------------------------------------------------------


@check("jax.numpy.linalg.solve")
def solve(api, dtype):
    for batch, size in ((3, 40), (64, 5), (1, 129)):
        a = numbers(batch, size, size, dtype=dtype) + (2 * size**0.5 * np.eye(size)).astype(dtype)
        b = numbers(batch, size, 2, seed=1, dtype=dtype)
        solved(a, api(a, b), b)


@check("jax.scipy.linalg.lu")
def lu(api, dtype):
    for shape in ((30, 30), (45, 30), (17, 41), (6, 16, 16)):
        a = numbers(*shape, dtype=dtype)
        p, low, up = (wide(part) for part in (api if a.ndim == 2 else jax.vmap(api))(a))
        rebuilt(p @ low @ up, a, kind=dtype)
        np.testing.assert_array_equal(np.sort(p, axis=-1)[..., -1], np.ones(p.shape[:-1]))
        np.testing.assert_array_equal(low, np.tril(low))
        np.testing.assert_array_equal(up, np.triu(up))
        np.testing.assert_array_equal(np.diagonal(low, axis1=-2, axis2=-1), 1)


@check("jax.numpy.linalg.cholesky")
def cholesky(api, dtype):
    for shape in ((30, 30), (7, 16, 16)):
        a = numbers(*shape, dtype=dtype)
        a = (wide(a) @ wide(a).swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])).astype(dtype)
        low = wide(api(a))
        rebuilt(low @ low.swapaxes(-1, -2), a, kind=dtype)
        np.testing.assert_array_equal(low, np.tril(low))


@check("jax.numpy.linalg.qr")
def qr(api, dtype):
    for shape in ((30, 30), (65, 20), (4, 12, 12)):
        a = numbers(*shape, dtype=dtype)
        q, r = api(a)
        orthonormal(q)
        rebuilt(wide(q) @ wide(r), a, kind=dtype)
        np.testing.assert_array_equal(wide(r), np.triu(wide(r)))


@check("jax.numpy.linalg.eigh")
def eigh(api, dtype):
    for shape in ((30, 30), (4, 12, 12)):
        a = numbers(*shape, dtype=dtype)
        a = a + a.swapaxes(-1, -2)
        values, vectors = api(a)
        orthonormal(vectors)
        made = wide(vectors) * wide(values)[..., None, :] @ wide(vectors).swapaxes(-1, -2)
        rebuilt(made, a, kind=dtype)
        near(values, np.linalg.eigvalsh(wide(a)), steps=shape[-1] ** 2)


@check("jax.numpy.linalg.svd")
def svd(api, dtype):
    for shape in ((40, 24), (3, 9, 9)):
        a = numbers(*shape, dtype=dtype)
        u, s, vt = api(a, full_matrices=False)
        near(s, np.linalg.svd(wide(a), compute_uv=False), steps=shape[-2] ** 2)
        orthonormal(u)
        orthonormal(np.swapaxes(vt, -1, -2))
        rebuilt(wide(u) * wide(s)[..., None, :] @ wide(vt), a, kind=dtype)


@check("jax.numpy.linalg.eig")
def eig(api, dtype):
    for shape in ((16, 16), (3, 16, 16)):
        a = numbers(*shape, dtype=dtype)
        values, vectors = (wide(part) for part in api(a))
        size = np.linalg.norm(wide(a), 2, axis=(-2, -1), keepdims=True)
        bound = SAFETY * 16 * unit(np.zeros(1, dtype)) * size
        judge(wide(a) @ vectors, vectors * values[..., None, :], bound)
        lengths = np.linalg.norm(vectors, axis=-2)
        judge(lengths, np.ones_like(lengths), bound[..., 0])
        assert np.linalg.svd(vectors, compute_uv=False).min() > 1e-3, "two vectors are one"


# --- hipSPARSE, hipSPARSELt ----------------------------------------------------------------------


def _sparse(dtype):
    dense = numbers(50, 70, dtype=dtype)
    dense[np.abs(wide(dense)) < 1] = 0
    return dense, numbers(70, 8, seed=1, dtype=dtype)


@check("jax.experimental.sparse.BCOO.__matmul__")
def sparse_matmul(api, dtype):
    dense, other = _sparse(dtype)
    with jax.default_matmul_precision("highest"):
        got = jax.jit(api)(sparse.BCOO.fromdense(dense), other)
        column = jax.jit(api)(sparse.BCOO.fromdense(dense), other[:, 0])
    contracted(got, np.matmul, dense, other, terms=70)
    contracted(column, np.matmul, dense, other[:, 0], terms=70)


@check("jax.experimental.sparse.bcoo_dot_general")
def sparse_dot(api, dtype):
    dense, other = _sparse(dtype)
    numbers_ = (((1,), (0,)), ((), ()))
    with jax.default_matmul_precision("highest"):
        got = api(sparse.BCOO.fromdense(dense), other, dimension_numbers=numbers_)
    contracted(got, np.matmul, dense, other, terms=70)


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
    solved(matrix.toarray(), got, b)


def _sparse_format(name):
    @check(f"jax.experimental.sparse.{name}")
    def sparse_format(api, dtype):
        dense, other = _sparse(dtype)
        matrix = api.fromdense(dense)
        np.testing.assert_array_equal(matrix.todense(), dense)
        with jax.default_matmul_precision("highest"):
            contracted(matrix @ other, np.matmul, dense, other, terms=70)
            contracted(matrix @ other[:, 0], np.matmul, dense, other[:, 0], terms=70)
        if name != "COO":
            reference = scipy.sparse.csr_array(wide(dense))
            np.testing.assert_array_equal(matrix.indptr, reference.indptr)


for _name in ("CSR", "BCSR", "COO"):
    _sparse_format(_name)


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
    held = np.where(mask, dense, np.zeros_like(dense))
    contracted(got, np.matmul, held, other, terms=64)


# --- MIOpen --------------------------------------------------------------------------------------


def _windows(x, shape, stride, pad, dilate):
    """Return the part of `x` below each element of a kernel: (n, c, h, w, i, j)."""
    x = np.pad(x, ((0, 0), (0, 0), *pad))
    size = [(n - 1) * d + 1 for n, d in zip(shape, dilate, strict=True)]
    views = sliding_window_view(x, size, axis=(2, 3))
    return views[:, :, :: stride[0], :: stride[1], :: dilate[0], :: dilate[1]]


def convolved(x, w, *, stride=(1, 1), pad=((0, 0), (0, 0)), dilate=(1, 1), groups=1):
    """Convolve images (n, c, h, w) with kernels (o, c, i, j), as deep learning means it."""
    views = _windows(x, w.shape[2:], stride, pad, dilate)
    parts = zip(np.split(views, groups, axis=1), np.split(w, groups, axis=0), strict=True)
    return np.concatenate([np.einsum("nchwij,ocij->nohw", v, k) for v, k in parts], axis=1)


CONVOLUTIONS = (
    {"pad": ((1, 1), (1, 1))},
    {"stride": (2, 2), "pad": ((1, 1), (1, 1))},
    {"dilate": (2, 1), "pad": ((0, 2), (1, 0))},
    {"groups": 3},
)


@check("jax.lax.conv_general_dilated", "bfloat16", "float32", DEFAULT, "float64")
def convolution(api, dtype):
    name, options, rounded = precision(dtype)
    for number, case in enumerate(CONVOLUTIONS):
        groups = case.get("groups", 1)
        x = numbers(2, 6, 20, 23, seed=number, dtype=name)
        w = numbers(9, 6 // groups, 3, 3, seed=number + 9, dtype=name)
        got = api(
            x, w, case.get("stride", (1, 1)), case.get("pad", ((0, 0), (0, 0))),
            rhs_dilation=case.get("dilate"), feature_group_count=groups, **options,
        )  # fmt: skip
        want = lambda x, w, case=case: convolved(x, w, **case)  # noqa: E731
        contracted(got, want, x, w, terms=9 * 6 // groups, rounded=rounded)
    x, w = numbers(2, 14, 15, 5, dtype=name), numbers(3, 3, 5, 8, seed=1, dtype=name)
    got = api(x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"), **options)
    want = lambda x, w: convolved(  # noqa: E731
        x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1)
    ).transpose(0, 2, 3, 1)
    contracted(got, want, x, w, terms=45, rounded=rounded)


@check("jax.lax.conv_general_dilated", "float32", "float64", library="MIOpen backward")
def convolution_backward(api, dtype):
    """Both gradients of a sum of a convolution's results with fixed weights."""
    _, options, _ = precision(dtype)
    x, w = numbers(2, 3, 12, 13, dtype=dtype), numbers(5, 3, 3, 3, seed=1, dtype=dtype)
    g = numbers(2, 5, 10, 11, seed=2, dtype=dtype)
    total = lambda x, w: jnp.sum(api(x, w, (1, 1), "VALID", **options) * g)  # noqa: E731
    of_x, of_w = jax.grad(total, argnums=(0, 1))(x, w)
    whole = ((0, 0), (0, 0))
    weights = lambda x, g: np.einsum(  # noqa: E731
        "nchwij,nohw->ocij", _windows(x, (3, 3), (1, 1), whole, (1, 1)), g
    )
    contracted(of_w, weights, x, g, terms=2 * 10 * 11)
    back = lambda g, w: convolved(  # noqa: E731
        g, w.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1], pad=((2, 2), (2, 2))
    )
    contracted(of_x, back, g, w, terms=5 * 9)


@check("jax.lax.reduce_window")
def pooling(api, dtype):
    image = numbers(2, 8, 12, 3, dtype=dtype)
    blocks = wide(image).reshape(2, 4, 2, 6, 2, 3)
    window = ((1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    low = np.array(-np.inf, dtype)
    np.testing.assert_array_equal(api(image, low, jax.lax.max, *window), blocks.max(axis=(2, 4)))
    total = api(image, np.array(0, dtype), jax.lax.add, *window)
    summed(total, lambda x: x.sum(axis=(2, 4)), blocks, number=4)


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
    want = (wide(a) - mean) / np.sqrt(variance + 1e-5)
    got = api(a, axis=(0, 1, 2), epsilon=1e-5)
    near(got, want, steps=6400, scale=1 + np.abs(want))


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
    want = _lstm(wide(x), *(wide(part[0]) for part in parts))
    near(got, want, steps=length * (inputs + hidden))


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
    want, total = wide(a) / wide(a).sum(axis=0), wide(a).sum(axis=0)
    near(got, want, steps=count, scale=want * (1 + np.abs(wide(a)).sum(axis=0) / np.abs(total)))


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
    summed(got, lambda x: np.tile(x.sum(axis=0), (count, 1)), a, number=count)


@check("jax.lax.all_gather")
def gather(api, dtype):
    count = jax.device_count()
    a = numbers(count, 5, dtype=dtype)
    got = _collective(lambda x: api(x, "x", axis=0, tiled=True), a)
    np.testing.assert_array_equal(got, np.tile(a, (count, 1)))


@check("jax.lax.psum_scatter")
def scatter(api, dtype):
    count = jax.device_count()
    a = numbers(count * count, 5, dtype=dtype)
    got = _collective(lambda x: api(x, "x", tiled=True), a)
    summed(got, lambda x: x.reshape(count, count, 5).sum(axis=0), a, number=count)
