"""The input space of each family of operations, declared axis by axis, and how a cell is judged.

A cell is one choice on every axis: dtype, shape, layout, sign, ties, NaN and infinities, axis,
parity, eager or compiled or differentiated. Its result is held against a float64 or exact oracle.
The cells of a family are so many that each two choices (or three) that go together do so in one.
`tests/support/smoke_cells.py` has broken versions of each family; every one must fail a cell.
"""

# ruff: noqa: ARG005, E501, PLR0917 - axes are arguments of whoever excludes a cell or judges it
from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.special
from near import SAFETY, UNIT, contracted, judge, near, numbers, solved, transformed, wide
from numpy.lib.stride_tricks import sliding_window_view

Cell = Mapping[str, Any]
EAGER, JIT, GRAD = "eager", "jit", "grad"


@dataclass(frozen=True)
class Family:
    """Operations that share an input space."""

    library: str
    api: Callable[..., Any]
    axes: Mapping[str, tuple[Any, ...]]
    judge: Callable[..., None]  # of the API and a cell
    excluded: Callable[..., bool]  # cells that are no question

    strength: int  # how many choices go together in a cell

    def cells(self) -> list[dict[str, Any]]:
        """Return few cells in which all choices that can meet do; the same ones each time."""
        every = [
            dict(zip(self.axes, values, strict=True)) for values in product(*self.axes.values())
        ]
        every = sorted(
            (cell for cell in every if not self.excluded(**cell)),
            key=lambda cell: seed_of(*cell.values()),
        )
        meeting = [frozenset(combinations(enumerate(c.values()), self.strength)) for c in every]
        unmet, chosen = set().union(*meeting), []
        for least in range(len(meeting[0]), 0, -1):
            for cell, meets in zip(every, meeting, strict=True):
                if len(new := meets & unmet) >= least:
                    unmet -= new
                    chosen.append(cell)
        return chosen


FAMILIES: dict[str, Family] = {}


def family(
    title: str, library: str, api: Callable[..., Any], /, *,
    excluded: Callable[..., bool] = lambda **_: False, strength: int = 2, **axes: tuple[Any, ...],
) -> Callable[[Callable[..., None]], Callable[..., None]]:  # fmt: skip
    """Declare a family by its title, and its axes; the function judges one cell."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        FAMILIES[title] = Family(library, api, axes, function, excluded, strength)
        return function

    return register


def mode_of(api: Callable[..., Any], mode: str) -> Callable[..., Any]:
    return jax.jit(api) if mode == JIT else api


def seed_of(*parts: object) -> int:
    return zlib.crc32(repr(parts).encode())


def exactly(got: object, want: object) -> None:
    """Judge equality, NaN for NaN."""
    assert np.shape(got) == np.shape(want), f"shape {np.shape(got)}, expected {np.shape(want)}"
    np.testing.assert_array_equal(wide(got), wide(want))


def specials(got: object, want: np.ndarray) -> np.ndarray:
    """Judge where NaN and infinities are; return where everything is finite."""
    found = wide(got)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(want))
    infinite = np.isinf(want)
    np.testing.assert_array_equal(found[infinite], want[infinite])
    return np.isfinite(want)


def weighed(got: object, want: np.ndarray, size: np.ndarray, bound: object) -> None:
    """Judge a sum that may be near zero beside the size of what was added up."""
    judge(wide(got) + 2 * size, want + 2 * size, bound)


def drawn(*shape: int, dtype: str, seed: int, sign: str = "mixed") -> np.ndarray:
    """Return numbers of a type, exactly representable; integers are small, complex ones are both."""
    if dtype.startswith(("int", "uint")):
        ends = {"u": (0, 256), "i": (0, 100) if sign == "positive" else (-99, 100)}
        low, high = ends[dtype[0]]
        found = np.random.default_rng(seed).integers(low, high, shape).astype(dtype)
        return -np.abs(found) if sign == "negative" else found
    if dtype.startswith("complex"):
        real = "float32" if dtype == "complex64" else "float64"
        parts = (numbers(*shape, seed=seed + n, dtype=real) for n in (0, 1))
        return (next(parts) + 1j * next(parts)).astype(dtype)
    found = numbers(*shape, seed=seed, dtype=dtype)
    return {"positive": np.abs(found) + 1, "negative": -np.abs(found) - 1}.get(sign, found).astype(
        found.dtype
    )


# --- products ------------------------------------------------------------------------------------

SHAPES = {
    "square": ((48, 48), (48, 48)), "odd": ((33, 65), (65, 17)), "vector": ((1, 77), (77, 1)),
    "one": ((1, 1), (1, 1)), "tall": ((257, 5), (5, 129)), "batch": ((3, 17, 33), (3, 33, 9)),
    "square batch": ((4, 16, 16), (4, 16, 16)),
}  # fmt: skip
HIGHEST = {"float32": "highest", "complex64": "highest"}


def _swapped(x: Any, *, yes: bool) -> Any:
    return x.swapaxes(-1, -2) if yes else x


@family(
    "matmul", "hipBLAS", jnp.matmul,
    dtype=("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "int32"),
    shape=tuple(SHAPES), layout=("NN", "NT", "TN", "TT"), values=("finite", "special"),
    mode=(EAGER, JIT, GRAD),
    excluded=lambda dtype, shape, layout, values, mode: (
        (mode == EAGER and layout != "NN")
        or (values == "special" and (dtype not in ("bfloat16", "float32", "float64") or mode == GRAD
            or layout != "NN"))
        or (mode == GRAD and (dtype not in ("float32", "float64") or layout == "TT"))
        or (dtype in ("float16", "int32", "complex64") and shape not in ("square", "odd", "batch"))
        or (dtype == "complex128" and shape not in ("square", "tall"))
    ),
)  # fmt: skip
def matmul(api, *, dtype, shape, layout, values, mode):
    a, b = (
        drawn(*size, dtype=dtype, seed=seed_of(shape, n)) for n, size in enumerate(SHAPES[shape])
    )
    if values == "special":
        a[(0,) * a.ndim], b[(-1,) * b.ndim] = np.nan, np.inf
    precision = {"precision": HIGHEST[dtype]} if dtype in HIGHEST else {}
    turned = [layout[0] == "T", layout[1] == "T"]

    def call(a, b):
        return api(_swapped(a, yes=turned[0]), _swapped(b, yes=turned[1]), **precision)

    given = [np.ascontiguousarray(_swapped(x, yes=t)) for x, t in zip((a, b), turned, strict=True)]
    given = [jnp.asarray(x) for x in given]
    terms = a.shape[-1] * (2 if dtype.startswith("complex") else 1)
    if mode == GRAD:
        g = numbers(*a.shape[:-1], b.shape[-1], seed=7, dtype=dtype)
        _, back = jax.vjp(call, *given)
        of_a, of_b = (_swapped(x, yes=t) for x, t in zip(back(jnp.asarray(g)), turned, strict=True))
        contracted(of_a, lambda g, b: g @ b.swapaxes(-1, -2), g, b, terms=b.shape[-1])
        contracted(of_b, lambda a, g: a.swapaxes(-1, -2) @ g, a, g, terms=a.shape[-2])
        return
    got = mode_of(call, mode)(*given)
    if dtype == "int32":
        exactly(got, a.astype(np.int64) @ b.astype(np.int64))
    elif values == "special":
        with np.errstate(invalid="ignore"):
            want = wide(a) @ wide(b)
        finite = specials(got, want)
        off = np.abs(wide(got)[finite] - want[finite])
        assert (off <= 2 * UNIT[dtype] * np.abs(want[finite]) + 256 * UNIT[dtype]).all()
    else:
        contracted(got, np.matmul, a, b, terms=terms)


@family(
    "attention", "hipBLASLt", jax.nn.dot_product_attention,
    dtype=("bfloat16", "float32"), mask=("none", "causal", "rows", "random", "bias"),
    lengths=((17, 17), (5, 23)), mode=(EAGER, JIT),
    excluded=lambda mask, lengths, **_: mask == "causal" and lengths[0] != lengths[1],
)  # fmt: skip
def attention(api, *, dtype, mask, lengths, mode):
    q, k, v = (numbers(2, lengths[n > 0], 3, 8, seed=n, dtype=dtype) for n in range(3))
    keep = np.random.default_rng(5).random((2, 3, *lengths)) < 0.6
    keep[..., 0] = True
    if mask == "rows":
        keep = np.broadcast_to(np.arange(lengths[1]) < lengths[1] // 2, keep.shape).copy()
    bias = numbers(2, 3, *lengths, seed=9, dtype=dtype)
    options = {"causal": {"is_causal": True}, "bias": {"bias": jnp.asarray(bias)}}.get(mask, {})
    if mask in ("rows", "random"):
        options = {"mask": jnp.asarray(keep)}
    with jax.default_matmul_precision("highest"):
        got = mode_of(partial(api, **options), mode)(*map(jnp.asarray, (q, k, v)))
    scores = np.einsum("bqhd,bkhd->bhqk", wide(q), wide(k)) / np.sqrt(8.0)
    if mask == "bias":
        scores = scores + wide(bias)
    if mask == "causal":
        keep = np.broadcast_to(np.tril(np.ones(lengths, bool)), keep.shape)
    if mask in ("causal", "rows", "random"):
        scores = np.where(keep, scores, -np.inf)
    weights = scipy.special.softmax(scores, axis=-1)
    want = np.einsum("bhqk,bkhd->bqhd", weights, wide(v))
    size = np.einsum("bhqk,bkhd->bqhd", weights, np.abs(wide(v)))
    # where there is a bias, scores are rounded to the type of it
    rounded = 4 * UNIT[dtype] if mask == "bias" else 0.0
    bound = (2 * UNIT[dtype] + 16 * SAFETY * 2.0**-24) * (np.abs(want) + size) + rounded * size
    judge(got, want, np.minimum(bound, 0.12 * np.sqrt((want**2).mean())))


# --- convolutions and windows --------------------------------------------------------------------

KERNELS = {
    "1x1": ((2, 6, 7, 7), (4, 6, 1, 1), {}),
    "1-D": ((2, 3, 19), (5, 3, 4), {}),
    "3-D": ((1, 2, 6, 5, 7), (3, 2, 2, 3, 2), {}),
    "even": ((2, 3, 9, 8), (4, 3, 2, 4), {}),
    "strided": ((2, 3, 11, 12), (4, 3, 3, 3), {"strides": (2, 3)}),
    "dilated": ((2, 3, 11, 12), (4, 3, 3, 2), {"rhs_dilation": (2, 3)}),
    "transposed": ((2, 3, 5, 6), (4, 3, 3, 3), {"lhs_dilation": (2, 2)}),
    "depthwise": ((2, 4, 8, 9), (8, 1, 3, 3), {"feature_group_count": 4}),
    "grouped": ((2, 6, 8, 9), (9, 2, 3, 3), {"feature_group_count": 3}),
    "square": ((3, 3, 6, 6), (3, 3, 3, 3), {}),
}


def pads(padding, sizes, kernel, strides, dilated):
    """Return what is put around each dimension, as TensorFlow defines SAME."""
    if not isinstance(padding, str):
        return padding
    if padding == "VALID":
        return [(0, 0)] * len(sizes)
    found = []
    for n, k, s, d in zip(sizes, kernel, strides, dilated, strict=True):
        total = max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
        found.append((total // 2, total - total // 2))
    return found


def windows(x, kernel, strides, padding, dilated, fill=0.0):
    """Return what lies below a kernel at each of its places: (n, c, *places, *kernel)."""
    around = pads(padding, x.shape[2:], kernel, strides, dilated)
    x = np.pad(x, ((0, 0), (0, 0), *around), constant_values=fill)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilated, strict=True)]
    views = sliding_window_view(x, reach, axis=tuple(range(2, x.ndim)))
    cut = [slice(None, None, s) for s in strides] + [slice(None, None, d) for d in dilated]
    return views[(slice(None), slice(None), *cut)]


def convolved(x, w, *, strides, padding, lhs_dilation, rhs_dilation, feature_group_count):
    spread = np.zeros((*x.shape[:2], *((n - 1) * d + 1 for n, d in zip(
        x.shape[2:], lhs_dilation, strict=True))))  # fmt: skip
    spread[(slice(None), slice(None), *(slice(None, None, d) for d in lhs_dilation))] = x
    views = windows(spread, w.shape[2:], strides, padding, rhs_dilation)
    parts = zip(
        np.split(views, feature_group_count, axis=1), np.split(w, feature_group_count), strict=True
    )
    axes = list(range(2 + x.ndim - 2, 2 + 2 * (x.ndim - 2)))
    each = [
        np.moveaxis(np.tensordot(v, k, ([1, *axes], [1, *range(2, k.ndim)])), -1, 1)
        for v, k in parts
    ]
    return np.concatenate(each, axis=1)


@family(
    "convolution", "MIOpen", jax.lax.conv_general_dilated,
    dtype=("float16", "bfloat16", "float32", "float64"), kernel=tuple(KERNELS),
    padding=("VALID", "SAME", "uneven"), mode=(EAGER, JIT, GRAD),
    excluded=lambda dtype, kernel, padding, mode: (
        (mode == GRAD and dtype != "float32") or (mode == EAGER and dtype != "float32")
        or (dtype in ("float16", "float64") and padding == "uneven" and kernel != "transposed")
        or (kernel == "transposed" and padding != "uneven")
        or (dtype == "bfloat16" and kernel in ("1-D", "even", "square"))
    ),
)  # fmt: skip
def convolution(api, *, dtype, kernel, padding, mode):
    shape, weights, more = KERNELS[kernel]
    ones = (1,) * (len(shape) - 2)
    around = [(2, 1)] + [(0, 1)] * (len(ones) - 1) if padding == "uneven" else padding
    full = {
        "lhs_dilation": ones, "rhs_dilation": ones, "feature_group_count": 1, **more,
    }  # fmt: skip
    strides = full.pop("strides", ones)
    x, w = numbers(*shape, dtype=dtype), numbers(*weights, seed=1, dtype=dtype)
    names = ("NCH", "OIH", "NCH") if len(ones) == 1 else None
    options = {"dimension_numbers": names} if names else {}
    if dtype == "float32":
        options["precision"] = "highest"
    call = lambda x, w: api(x, w, strides, around, **full, **options)  # noqa: E731
    oracle = partial(convolved, strides=strides, padding=around, **full)
    terms = int(np.prod(weights[1:]))
    if mode != GRAD:
        got = mode_of(call, mode)(jnp.asarray(x), jnp.asarray(w))
        contracted(got, oracle, x, w, terms=terms)
        return
    # a convolution is linear in each operand: its gradient along a direction is another one
    found, back = jax.vjp(call, jnp.asarray(x), jnp.asarray(w))
    g = numbers(*found.shape, seed=3, dtype=dtype)
    of_x, of_w = back(jnp.asarray(g))
    dx, dw = numbers(*shape, seed=4, dtype=dtype), numbers(*weights, seed=5, dtype=dtype)
    for slope, along, want, size in (
        (of_x, dx, oracle(wide(dx), wide(w)), oracle(np.abs(wide(dx)), np.abs(wide(w)))),
        (of_w, dw, oracle(wide(x), wide(dw)), oracle(np.abs(wide(x)), np.abs(wide(dw)))),
    ):
        bound = SAFETY**2 * UNIT[dtype] * np.sqrt(g.size * terms) * np.sqrt((size**2).mean())
        judge(np.sum(wide(slope) * wide(along)), np.sum(wide(g) * want), bound * 2)


@family(
    "pooling", "MIOpen", jax.lax.reduce_window,
    dtype=("bfloat16", "float32", "int32"), kind=("max", "min", "add"),
    window=((2, 2), (3, 3), (1, 4)), strides=((1, 1), (2, 2), (2, 1)), padding=("VALID", "SAME"),
    sign=("mixed", "negative", "positive"), mode=(JIT, GRAD),
    excluded=lambda dtype, kind, window, strides, padding, sign, mode: (
        (mode == GRAD and (dtype != "float32" or kind != "max" or sign != "mixed"))
        or (sign != "mixed" and (strides != (2, 2) or kind == "add"))
        or (dtype != "float32" and window == (1, 4))
    ),
)  # fmt: skip
def pooling(api, *, dtype, kind, window, strides, padding, sign, mode):
    x = drawn(2, 3, 9, 11, dtype=dtype, seed=2, sign=sign)
    function = {"max": jax.lax.max, "min": jax.lax.min, "add": jax.lax.add}[kind]
    info = jnp.iinfo if dtype == "int32" else jnp.finfo
    low, high = (info(dtype).min, info(dtype).max) if dtype == "int32" else (-np.inf, np.inf)
    start = {"max": low, "min": high, "add": 0}[kind]
    init = np.array(start, jnp.dtype(dtype))

    def call(x):
        return api(x, init, function, (1, 1, *window), (1, 1, *strides), padding)

    fill = {"max": -np.inf, "min": np.inf, "add": 0.0}[kind]
    views = windows(wide(x), window, strides, padding, (1, 1), fill)
    reduce = {"max": np.max, "min": np.min, "add": np.sum}[kind]
    if mode == GRAD:
        found, back = jax.vjp(call, jnp.asarray(x))
        g = numbers(*found.shape, seed=3, dtype=dtype)
        (slope,) = back(jnp.asarray(g))
        # each result's slope goes to the one element that it is
        want = np.zeros(x.shape)
        values = reduce(views, axis=(-2, -1))
        for at in np.ndindex(values.shape):
            where = np.argwhere(wide(x)[at[:2]] == values[at])
            want[(*at[:2], *where[0])] += wide(g)[at]
        near(slope, want, steps=9)
        return
    got, want = mode_of(call, mode)(jnp.asarray(x)), reduce(views, axis=(-2, -1))
    if kind == "add" and dtype != "int32":
        size = np.abs(views).sum(axis=(-2, -1))
        weighed(got, want, size, SAFETY * 9**0.5 * UNIT[dtype] * size)
    else:
        exactly(got, want)


# --- reductions, scans, order --------------------------------------------------------------------

FLOATS = ("float16", "bfloat16", "float32", "float64")
SIZES = {"one": (1, 1), "square": (33, 33), "odd": (7, 1001), "large": (3, 40_003)}


def reduce_api(name: str, x: Any, **options: Any) -> Any:
    return getattr(jax.lax if name in ("cummax", "cummin") else jnp, name)(x, **options)


@family(
    "reduction", "hipCUB", reduce_api,
    name=("sum", "mean", "max", "min", "prod", "argmax", "argmin", "all", "any"),
    dtype=(*FLOATS, "int8", "int32", "uint8"), size=tuple(SIZES), axis=(None, 0, 1),
    sign=("mixed", "negative", "positive"), values=("finite", "nan", "inf", "ties"),
    mode=(EAGER, JIT),
    excluded=lambda name, dtype, size, axis, sign, values, mode: (
        (values in ("nan", "inf") and (dtype not in FLOATS or name in ("prod", "all", "any")))
        or (dtype == "uint8" and (sign == "negative" or size == "one"))
        or (values != "finite" and (sign != "mixed" or size != "odd" or mode == EAGER))
        or (mode == EAGER and (dtype != "float32" or size != "odd"))
        or (size in ("one", "large") and (sign == "positive" or axis == 0))
        or (name == "mean" and "int" in dtype and size == "large") or (name == "prod" and (dtype not in ("float32", "float64") or sign != "mixed"
            or size == "large"))
        or (name in ("all", "any") and (sign != "mixed" or values != "ties"))
        or (name in ("argmax", "argmin") and (axis == 0 or sign == "positive"))
        or (dtype == "float16" and values != "finite")
        # XLA passes over NaN in a maximum on the CPU (0.11.0), against jax.numpy's documentation
        or (values == "nan" and name in ("max", "min") and jax.default_backend() == "cpu")
    ),
)  # fmt: skip
def reduction(api, *, name, dtype, size, axis, sign, values, mode):
    x = drawn(*SIZES[size], dtype=dtype, seed=3, sign=sign)
    if values == "ties":
        x = (x.astype("float64") // 2 * 2).astype(x.dtype)
    if values == "nan":
        x[2, 500] = np.nan
    if values == "inf":
        x[3, 77], x[4, 78] = np.inf, -np.inf
    if name == "prod":
        x = (1 + x / x.size).astype(x.dtype)
    got = mode_of(partial(api, name, axis=axis), mode)(jnp.asarray(x))
    number = x.size if axis is None else x.shape[axis]
    whole = x.dtype.kind in "iu"
    exact = wide(x) if not whole else x.astype(np.int64)
    with np.errstate(all="ignore"):
        want = getattr(np, name)(exact, axis=axis)
    if values in ("nan", "inf") and name in ("sum", "mean", "max", "min"):
        finite = specials(got, want)
        if not finite.any():
            return
        got, want = np.asarray(got)[finite], np.asarray(want)[finite]
        exact = np.moveaxis(exact, axis, -1)[finite] if axis is not None else exact
        axis = -1
    if name in ("max", "min", "argmax", "argmin", "all", "any") or (whole and name == "sum"):
        exactly(got, want)
    elif name == "prod":
        near(got, want, steps=number, scale=want)
    elif whole:
        near(got, want, steps=number, scale=np.abs(exact).max())
    else:
        out = np.asarray(got)
        want_, size_ = (
            getattr(np, name)(exact, axis=axis),
            getattr(np, name)(np.abs(exact), axis=axis),
        )
        inner = UNIT["float32" if dtype in ("float16", "bfloat16") else dtype]
        bound = 2 * UNIT[dtype] * np.abs(want_) + SAFETY * number**0.5 * inner * size_
        bound += 2.0**-24 if dtype == "float16" else 0.0
        weighed(out, want_, size_, bound + 4 * UNIT["float64"] * size_)


@family(
    "scan", "hipCUB", reduce_api,
    name=("cumsum", "cumprod", "cummax", "cummin"), dtype=("float32", "float64", "int32"),
    size=tuple(SIZES), axis=(0, 1), mode=(JIT,),
    excluded=lambda name, dtype, **_: name == "cumprod" and dtype == "int32",
)  # fmt: skip
def scan(api, *, name, dtype, size, axis, mode):
    x = drawn(*SIZES[size], dtype=dtype, seed=3)
    if name == "cumprod":
        x = (1 + x / x.size).astype(x.dtype)
    got = mode_of(partial(api, name, axis=axis), mode)(jnp.asarray(x))
    exact = wide(x)
    steps = np.arange(1, x.shape[axis] + 1).reshape((-1, 1) if axis == 0 else (1, -1))
    if name in ("cummax", "cummin"):
        which = np.maximum if name == "cummax" else np.minimum
        exactly(got, which.accumulate(exact, axis=axis))
    elif dtype == "int32":
        exactly(got, np.cumsum(exact, axis=axis))
    elif name == "cumprod":
        want = np.cumprod(exact, axis=axis)
        judge(got, want, SAFETY * steps**0.5 * UNIT[dtype] * np.abs(want))
    else:
        size_ = np.cumsum(np.abs(exact), axis=axis)
        want = np.cumsum(exact, axis=axis)
        weighed(got, want, size_, SAFETY * steps**0.5 * UNIT[dtype] * size_)


def order_api(name: str, x: Any, **options: Any) -> Any:
    if name == "top_k":
        return jax.lax.top_k(x, options["k"])
    return getattr(jnp, name)(x, **options)


@family(
    "order", "rocThrust", order_api,
    name=("sort", "argsort", "top_k"), dtype=("bfloat16", "float32", "float64", "int32", "uint8"),
    size=((1, 1), (2, 2), (33, 33), (3, 1025), (9, 4099)), axis=(0, 1),
    values=("mixed", "negative", "ties", "special", "signed zero"), descending=(False, True),
    mode=(JIT,),
    excluded=lambda name, dtype, size, axis, values, descending, mode: (
        (values in ("special", "signed zero") and dtype not in ("bfloat16", "float32", "float64"))
        or (values == "negative" and dtype == "uint8")
        or (name == "top_k" and (axis == 0 or descending or values == "special"))
        or (values in ("special", "signed zero", "negative") and size != (3, 1025))
        or (descending and size not in ((33, 33), (3, 1025)))
        or (dtype == "float64" and size == (9, 4099))
        or (size in ((1, 1), (2, 2)) and (dtype not in ("float32", "int32") or values != "mixed"))
    ),
)  # fmt: skip
def order(api, *, name, dtype, size, axis, values, descending, mode):
    x = drawn(*size, dtype=dtype, seed=8, sign="negative" if values == "negative" else "mixed")
    if values == "ties":
        x = (
            x.astype("float64") // (1 if x.dtype.kind == "f" or dtype == "bfloat16" else 9)
        ).astype(x.dtype)
    if values == "special":
        x[0, :3], x[1, 500], x[2, -1] = (np.nan, np.inf, -np.inf), np.nan, -np.inf
    if values == "signed zero":
        x[:, ::2] = 0.0
        x[:, 1::4] = x[1::2, ::4] = -0.0
    exact = wide(x)
    if name == "top_k":
        k = min(5, size[1])
        found, places = mode_of(partial(api, name, k=k), mode)(jnp.asarray(x))
        stable = np.argsort(-exact, axis=1, kind="stable")[:, :k]
        exactly(found, np.take_along_axis(exact, stable, axis=1))
        exactly(places, stable)
        return
    options = {"axis": axis, "descending": descending}
    got = mode_of(partial(api, name, **options), mode)(jnp.asarray(x))
    keys = np.where(np.isnan(exact), np.inf, exact)
    last = np.isnan(exact)  # NaN last, in both directions first when descending
    ranks = np.lexsort((-keys if descending else keys, ~last if descending else last), axis=axis)
    if name == "argsort":
        exactly(got, ranks)
    else:
        exactly(got, np.take_along_axis(exact, ranks, axis=axis))


@family(
    "scatter", "hipCUB", lambda x, at, y, kind: getattr(x.at[at], kind)(y),
    kind=("set", "add", "max", "min", "multiply"), dtype=("float32", "int32"),
    indices=("unique", "repeated", "negative", "outside"), mode=(EAGER, JIT),
    excluded=lambda kind, indices, **_: kind == "set" and indices == "repeated",
)  # fmt: skip
def scatter(api, *, kind, dtype, indices, mode):
    x, y = drawn(50, 3, dtype=dtype, seed=1), drawn(20, 3, dtype=dtype, seed=2)
    draw = np.random.default_rng(4)
    at = draw.permutation(50)[:20]
    at = {"repeated": draw.integers(0, 5, 20), "negative": at - 50, "outside": at * 2}.get(
        indices, at
    )
    got = mode_of(partial(api, kind=kind), mode)(*map(jnp.asarray, (x, at, y)))
    want = wide(x)
    which = {"add": np.add, "max": np.maximum, "min": np.minimum, "multiply": np.multiply}
    for row, value in zip(at, wide(y), strict=True):
        if -50 <= row < 50:
            want[row] = value if kind == "set" else which[kind](want[row], value)
    if dtype == "int32":
        exactly(got, want.astype(np.int64).astype(np.int32))
    else:
        near(got, want, steps=20, scale=np.abs(want) + 20)


# --- transforms ----------------------------------------------------------------------------------


def fft_api(name: str, x: Any, **options: Any) -> Any:
    return getattr(jnp.fft, name)(x, **options)


@family(
    "fft", "hipFFT", fft_api,
    name=("fft", "ifft", "rfft", "irfft", "fft2", "ifft2", "rfft2", "irfft2"),
    dtype=("float32", "float64"), length=(1, 2, 7, 8, 60, 101, 8192, 10_007),
    axis=(-1, 0), norm=(None, "ortho", "forward"), mode=(EAGER, JIT),
    excluded=lambda name, dtype, length, axis, norm, mode: (
        (name.endswith("2") and (axis == 0 or length > 101 or norm == "forward"))
        or (norm and (length not in (7, 8) or mode == EAGER)) or (mode == EAGER and length != 60)
        or (axis == 0 and length > 101) or (length > 8192 and (dtype == "float32"))
    ),
)  # fmt: skip
def fft(api, *, name, dtype, length, axis, norm, mode):
    shape = (length, 5) if axis == 0 else (5, length)
    kind = "complex64" if dtype == "float32" else "complex128"
    real = name.startswith("rfft")
    x = drawn(*shape, dtype=dtype if real else kind, seed=6)
    options: dict[str, Any] = {"norm": norm}
    if name == "irfft":
        half = length // 2 + 1
        x, options["n"] = np.take(x, range(half), axis=axis), length
    if name == "irfft2":
        options["s"] = (5, length)
        x = x[:, : length // 2 + 1]
    if not name.endswith("2"):
        options["axis"] = axis
    if length == 1 and name.startswith("irfft"):
        x = x.real.astype(x.dtype)
    got = mode_of(partial(api, name, **options), mode)(jnp.asarray(x))
    want = getattr(np.fft, name)(wide(x), **options)
    prime = 8 if length in (7, 101, 10_007) else 1
    transformed(got, want, length=prime * length * (5 if name.endswith("2") else 1))


# --- linear algebra ------------------------------------------------------------------------------

FIELDS = ("float32", "float64", "complex64", "complex128")
LINEAR = {
    "solve": jnp.linalg.solve, "cholesky": jnp.linalg.cholesky, "qr": jnp.linalg.qr,
    "eigh": jnp.linalg.eigh, "svd": jnp.linalg.svd, "lu": jax.scipy.linalg.lu,
    "triangular": jax.scipy.linalg.solve_triangular, "inv": jnp.linalg.inv, "det": jnp.linalg.det,
}  # fmt: skip


def linear_api(name: str, *arrays: Any, **options: Any) -> Any:
    return LINEAR[name](*arrays, **options)


def _adjoint(x: np.ndarray) -> np.ndarray:
    return x.conj().swapaxes(-1, -2)


def _made(product_: np.ndarray, a: np.ndarray, dtype: str) -> None:
    size = np.linalg.norm(wide(a), 2, axis=(-2, -1), keepdims=True)
    assert (
        np.abs(product_ - wide(a)).max(initial=0.0)
        <= (SAFETY * 2 * max(a.shape[-2:]) * UNIT[dtype] * size).max()
    )


def _unitary(q: np.ndarray, dtype: str) -> None:
    made = _adjoint(q) @ q
    off = np.abs(made - np.eye(q.shape[-1])).max(initial=0.0)
    assert off <= SAFETY * 2 * q.shape[-2] * UNIT[dtype], f"columns are off by {off:.3g}"


@family(
    "linear", "hipSOLVER", linear_api,
    name=("solve", "inv", "det", "cholesky", "eigh"), dtype=FIELDS, size=(1, 2, 5, 33, 65),
    batch=((), (3,)), pivots=("needed", "none"), mode=(JIT,),
    excluded=lambda name, size, batch, pivots, dtype, mode: (
        (pivots == "none" and name not in ("solve", "inv"))
        or (size == 1 and pivots == "needed" and name in ("solve", "inv", "det"))
        or (bool(batch) and size > 33)
        or (name in ("inv", "det") and size == 65)
        or (dtype == "complex128" and size in (2, 65))
    ),
)  # fmt: skip
def linear(api, *, name, dtype, size, batch, pivots, mode):
    def square(size):
        a = drawn(*batch, size, size, dtype=dtype, seed=size)
        if name not in ("solve", "inv", "det"):
            return a
        one = np.array(2 * size**0.5, dtype) * np.eye(size, dtype=dtype)
        if pivots == "needed":  # each first pivot is zero
            a = a + np.roll(one, 1, axis=1)
            a[..., np.arange(size), np.arange(size)] = 0
            return a
        return a + one

    a = square(size)
    hermitian = wide(a) @ _adjoint(wide(a)) + size * np.eye(size)
    go = mode_of(partial(api, name), mode)
    if name == "solve":
        # small systems have kernels of their own, which must exchange rows as well
        for n in {size, 5} if pivots == "needed" else {size}:
            a, b = square(n), drawn(*batch, n, 2, dtype=dtype, seed=1)
            solved(a, go(jnp.asarray(a), jnp.asarray(b)), b)
            one = np.ascontiguousarray(b[..., 0])
            if not batch:
                solved(a, go(jnp.asarray(a), jnp.asarray(one)), one)
    elif name == "inv":
        solved(a, go(jnp.asarray(a)), np.broadcast_to(np.eye(size), a.shape))
    elif name == "det":
        want = np.linalg.det(wide(a))
        judge(go(jnp.asarray(a)), want, 8 * SAFETY * size * UNIT[dtype] * np.abs(want) * 8)
    elif name == "cholesky":
        a = hermitian.astype(dtype)
        low = wide(go(jnp.asarray(a)))
        _made(low @ _adjoint(low), a, dtype)
        exactly(low, np.tril(low))
    else:
        a = (a + _adjoint(a)).astype(dtype)
        given = np.tril(a) + np.triu(np.full_like(a, 7), 1)  # only the lower half is to be read
        values, vectors = go(jnp.asarray(given), UPLO="L", symmetrize_input=False) if (
            mode == EAGER) else jax.jit(partial(api, name, UPLO="L", symmetrize_input=False))(
            jnp.asarray(given))  # fmt: skip
        values, vectors = wide(values), wide(vectors)
        _unitary(vectors, dtype)
        _made(vectors * values[..., None, :] @ _adjoint(vectors), a, dtype)
        exactly(values, np.sort(values, axis=-1))


@family(
    "factors", "hipSOLVER", linear_api,
    name=("qr", "svd", "lu"), dtype=FIELDS,
    shape=((1, 1), (7, 7), (65, 20), (20, 65), (3, 9, 5), (3, 5, 9), (40, 40)),
    full=(False, True), mode=(JIT,),
    excluded=lambda name, dtype, shape, full, mode: (
        (full and (name == "lu" or len(shape) == 3)) or (name == "lu" and len(shape) == 3)
        or (dtype == "complex128" and max(shape) > 9)
    ),
)  # fmt: skip
def factors(api, *, name, dtype, shape, full, mode):
    a = drawn(*shape, dtype=dtype, seed=7)
    m, n = shape[-2:]
    least = min(m, n)
    if name == "qr":
        q, r = map(wide, mode_of(partial(api, name, mode="complete" if full else "reduced"), mode)(
            jnp.asarray(a)))  # fmt: skip
        assert q.shape[-1] == (m if full else least)
        _unitary(q, dtype)
        _made(q @ r, a, dtype)
        exactly(r, np.triu(r))
    elif name == "svd":
        u, s, vt = map(wide, mode_of(partial(api, name, full_matrices=full), mode)(jnp.asarray(a)))
        assert (u.shape[-1], vt.shape[-2]) == ((m, n) if full else (least, least))
        _unitary(u, dtype)
        _unitary(_adjoint(vt), dtype)
        _made((u[..., :least] * s[..., None, :]) @ vt[..., :least, :], a, dtype)
        exactly(s, -np.sort(-np.abs(s), axis=-1))
    else:
        p, low, up = map(wide, mode_of(partial(api, name), mode)(jnp.asarray(a)))
        _made(p @ low @ up, a, dtype)
        exactly(low, np.tril(low))
        exactly(up, np.triu(up))
        assert np.abs(low).max() <= (2**0.5 if dtype.startswith("c") else 1) * (1 + 8 * UNIT[dtype])
        exactly(np.diagonal(low, axis1=-2, axis2=-1), np.ones((*shape[:-2], least)))


@family(
    "triangular", "hipBLAS", linear_api,
    dtype=FIELDS, size=(1, 33, 70), lower=(True, False), trans=("N", "T", "C"), unit=(False, True),
    mode=(JIT,),
    excluded=lambda dtype, size, trans, **_: dtype == "complex128" and (size != 33 or trans == "T"),
)  # fmt: skip
def triangular(api, *, dtype, size, lower, trans, unit, mode):
    a = drawn(size, size, dtype=dtype, seed=2) / np.array(size, dtype)
    a = a + np.array(2, dtype) * np.eye(size, dtype=dtype)
    b = drawn(size, 3, dtype=dtype, seed=3)
    options = {"lower": lower, "trans": trans, "unit_diagonal": unit}
    got = mode_of(partial(api, "triangular", **options), mode)(jnp.asarray(a), jnp.asarray(b))
    half = np.tril(wide(a)) if lower else np.triu(wide(a))  # the other half is not to be read
    if unit:
        half[np.arange(size), np.arange(size)] = 1
    solved({"N": half, "T": half.T, "C": half.conj().T}[trans], got, b)


# --- functions of one number, random numbers, collectives ----------------------------------------

FUNCTIONS = {
    "exp": np.exp, "log": np.log, "tanh": np.tanh, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos,
    "expm1": np.expm1, "log1p": np.log1p, "erf": scipy.special.erf, "sigmoid": scipy.special.expit,
    "abs": np.abs, "sign": np.sign, "floor": np.floor, "round": np.round,
}  # fmt: skip


def function_api(name: str, x: Any) -> Any:
    where = jax.scipy.special if name == "erf" else jax.nn if name == "sigmoid" else jnp
    return getattr(where, name)(x)


@family(
    "function", "hipCUB", function_api,
    name=tuple(FUNCTIONS), dtype=("bfloat16", "float32", "float64"),
    values=("near zero", "usual", "large", "special"), mode=(JIT,),
)  # fmt: skip
def function(api, *, name, dtype, values, mode):
    x = {
        "near zero": numbers(500, dtype="float64") * 1e-4, "usual": numbers(500) * 2,
        "large": numbers(500) * 30, "special": np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0]),
    }[values]  # fmt: skip
    x = np.abs(x) if name in ("log", "sqrt", "log1p") and values != "special" else x
    x = x.astype(jnp.dtype(dtype))
    got = mode_of(partial(api, name), mode)(jnp.asarray(x))
    with np.errstate(all="ignore"):
        want = FUNCTIONS[name](wide(x))
        want = want.astype(jnp.dtype(dtype)).astype(np.float64) if values == "special" else want
    finite = specials(got, want) & (np.abs(want) < 1e38)
    exact = name in ("abs", "sign", "floor", "round")
    # a compiler's sine reduces large arguments less well; log near 1 cancels
    slack = np.abs(want) + (1.0 if name in ("sin", "cos", "log") and values == "large" else 0.0)
    slack = slack + (np.abs(wide(x)) if name in ("sin", "cos") else 0.0) / 4
    bound = 0.0 if exact else 32 * UNIT[dtype] * slack + 1e-37
    bad = np.abs(wide(got)[finite] - want[finite]) > np.broadcast_to(bound, want.shape)[finite]
    assert not bad.any(), f"{name} of {wide(x)[finite][bad][0]!r} is {wide(got)[finite][bad][0]!r}"
    if values == "special" and name != "sign":
        assert np.signbit(wide(got)[4]) == np.signbit(want[4]), "the sign of zero"


def random_api(name: str, key: Any, shape: tuple[int, ...], dtype: str) -> Any:
    return getattr(jax.random, name)(key, shape, dtype=jnp.dtype(dtype))


@family(
    "random", "hipRAND", random_api,
    name=("normal", "uniform", "exponential", "gumbel", "laplace"), dtype=("float32", "float64"),
    mode=(EAGER, JIT),
)  # fmt: skip
def random(api, *, name, dtype, mode):
    """Moments, and the bits: a number that was rounded on its way has few values."""
    count = 30_000
    go = jax.jit(partial(api, name), static_argnums=(1, 2)) if mode == JIT else partial(api, name)
    draws = wide(go(jax.random.key(11, impl="threefry2x32"), (count,), dtype))
    mean, variance = {
        "normal": (0, 1), "uniform": (0.5, 1 / 12), "exponential": (1, 1),
        "gumbel": (np.euler_gamma, np.pi**2 / 6), "laplace": (0, 2),
    }[name]  # fmt: skip
    assert abs(draws.mean() - mean) < 5 * (variance / count) ** 0.5
    assert abs(draws.var() / variance - 1) < 0.1
    assert len(np.unique(draws)) > 0.99 * count - (count**2 / 2**24 if dtype == "float32" else 0)
    assert abs(np.corrcoef(draws[1:], draws[:-1])[0, 1]) < 0.05
    other = wide(go(jax.random.key(12, impl="threefry2x32"), (count,), dtype))
    assert abs(np.corrcoef(draws, other)[0, 1]) < 0.05


def collective_api(name: str, x: Any) -> Any:
    return {
        "psum": lambda: jax.lax.psum(x, "x"), "pmax": lambda: jax.lax.pmax(x, "x"),
        "pmin": lambda: jax.lax.pmin(x, "x"), "pmean": lambda: jax.lax.pmean(x, "x"),
        "all_gather": lambda: jax.lax.all_gather(x, "x", axis=0, tiled=True),
        "psum_scatter": lambda: jax.lax.psum_scatter(x, "x", scatter_dimension=0, tiled=True),
        "all_to_all": lambda: jax.lax.all_to_all(x, "x", 0, 0, tiled=True),
        "ppermute": lambda: jax.lax.ppermute(
            x, "x", [(n, (n + 1) % jax.device_count()) for n in range(jax.device_count())]),
    }[name]()  # fmt: skip


@family(
    "collective", "RCCL", collective_api,
    name=("psum", "pmax", "pmin", "pmean", "all_gather", "psum_scatter", "all_to_all", "ppermute"),
    dtype=("bfloat16", "float32", "int32"), bytes=(1 << 8, 1 << 12, 3 << 19),
    sign=("mixed", "negative"), mode=(JIT,),
    excluded=lambda name, dtype, bytes, sign, mode: (  # noqa: A006 - bytes of a device
        (bytes > 1 << 20 and (dtype == "float32" or sign == "negative" or name not in (
            "psum", "all_gather"))) or (sign == "negative" and name not in ("pmax", "pmin"))
        or (dtype == "int32" and name == "pmean")
    ),
)  # fmt: skip
def collective(api, *, name, dtype, bytes, sign, mode):  # noqa: A002 - of a device
    from jax.sharding import AxisType, PartitionSpec

    count = jax.device_count()
    rows = max(1, bytes // (2 if dtype == "bfloat16" else 4) // (8 * count)) * count
    x = drawn(count * rows, 8, dtype=dtype, seed=5, sign=sign)
    mesh = jax.make_mesh((count,), ("x",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("x")
    mapped = jax.shard_map(partial(api, name), mesh=mesh, in_specs=spec, out_specs=spec,
                           check_vma=False)  # fmt: skip
    got = mode_of(mapped, mode)(jnp.asarray(x))
    exact = wide(x).reshape(count, rows, 8)
    summed_ = exact.sum(axis=0)
    want = {
        "psum": lambda: np.tile(summed_, (count, 1)), "pmean": lambda: np.tile(summed_, (count, 1)) / count,
        "pmax": lambda: np.tile(exact.max(axis=0), (count, 1)),
        "pmin": lambda: np.tile(exact.min(axis=0), (count, 1)),
        "all_gather": lambda: np.tile(wide(x), (count, 1)), "psum_scatter": lambda: summed_,
        "all_to_all": lambda: exact.reshape(count, count, rows // count, 8).swapaxes(0, 1).reshape(-1, 8),
        "ppermute": lambda: np.roll(exact, 1, axis=0).reshape(-1, 8),
    }[name]()  # fmt: skip
    if name in ("psum", "pmean", "psum_scatter") and dtype != "int32":
        size = np.abs(exact).sum(axis=0)
        size = size if name == "psum_scatter" else np.tile(size, (count, 1))
        # bfloat16 is added step by step: each partial sum is rounded
        bound = (count if dtype == "bfloat16" else SAFETY * count**0.5) * UNIT[dtype] * size
        assert (np.abs(wide(got) - want) <= bound).all()
    else:
        exactly(got, want)
