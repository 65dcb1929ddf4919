"""Runs the cells of the smoke matrix honestly and with each mutant; run where JAX is installed.

    python smoke_cells.py SUITE [FAMILY…]

A mutant is an API that is broken in one way, which another version of a library could be. Prints
JSON: `honest` names cells that fail without one, `caught` the first cell that each mutant fails,
`survivors` the mutants that pass them all, `seconds` of CPU by family.
"""

# ruff: noqa: ARG005, E741, PLR0917, PLW0108 - functions that take what those they stand for take
from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(
    0, sys.argv[1] if len(sys.argv) > 1 else str(Path(__file__).parents[2] / "suites/smoke")
)

import conftest  # noqa: F401 - sets flags before JAX is imported
import jax
import jax.numpy as jnp
import matrix
import numpy as np


def tracing(*arrays) -> bool:
    return any(isinstance(x, jax.core.Tracer) for x in arrays)


def outwards(change):
    """A mutant whose answer is changed."""

    def mutant(api):
        def broken(*args, **more):
            found = api(*args, **more)
            return jax.tree.map(lambda y: change(y, *args, **more), found)

        return broken

    return mutant


def inwards(change):
    """A mutant whose arrays are changed."""

    def mutant(api):
        def broken(*args, **more):
            return api(*(change(x) if hasattr(x, "dtype") else x for x in args), **more)

        return broken

    return mutant


def without(option, value=None):
    """A mutant that does not know an option."""

    def mutant(api):
        def broken(*args, **more):
            if option in more:
                more = {**more, option: value}
            return api(*args, **more)

        return broken

    return mutant


def of(name, other):
    """A mutant of one function of a family: `other` is given the true one of the same arguments."""

    def mutant(api):
        def broken(which, *args, **more):
            if which != name:
                return api(which, *args, **more)
            return other(partial(api, which), *args, **more)

        return broken

    return mutant


def no_gradient(api):
    def broken(*args, **more):
        @jax.custom_vjp
        def call(*arrays):
            return api(*arrays, *args[len(arrays) :], **more)

        arrays = [x for x in args if hasattr(x, "dtype")]
        number = len(arrays) if len(arrays) < 3 else 2
        call.defvjp(lambda *a: (call(*a), a), lambda a, _g: tuple(map(jnp.zeros_like, a)))
        return call(*args[: 1 if number == 1 else 2])

    return broken


def rounded(x, to="bfloat16"):
    return x.astype(to).astype(x.dtype) if x.dtype == "float32" else x


def tail(x, block=32, axis=-1):
    """Lose what is beyond the last whole block."""
    if not x.ndim or x.shape[axis] <= block or not x.shape[axis] % block:
        return x
    keep = x.shape[axis] // block * block
    at = [slice(None)] * x.ndim
    at[axis] = slice(keep, None)
    return x.at[tuple(at)].set(0)


def square(a, b):
    return a.shape[-1] == a.shape[-2] == b.shape[-1] == b.shape[-2]


def stable_lost(f, x, **more):
    """argsort from the other end: ties in the other order."""
    axis = more.get("axis", -1)
    size = x.shape[axis]
    return size - 1 - f(jnp.flip(x, axis), **more)


def without_pivots(f, a, b):
    def lu(a):
        for k in range(a.shape[-1] - 1):
            a = a.at[..., k + 1 :, k].divide(a[..., k, k][..., None])
            step = a[..., k + 1 :, k, None] * a[..., k, None, k + 1 :]
            a = a.at[..., k + 1 :, k + 1 :].add(-step)
        return a

    if a.shape[-1] > 6:
        return f(a, b)
    made = lu(a)
    solve = partial(jax.lax.linalg.triangular_solve, left_side=True)
    column = b.ndim == a.ndim - 1
    y = solve(made, b[..., None] if column else b, lower=True, unit_diagonal=True)
    found = solve(made, y, lower=False)
    return found[..., 0] if column else found


def conj(x):
    return x.conj() if jnp.iscomplexobj(x) else x


def reduce_as(dtype):
    def other(f, x, **more):
        return f(x.astype(dtype), **more).astype(f(x, **more).dtype)

    return other


def identity_zero(f, x, **more):
    return jnp.maximum(f(x, **more), jnp.zeros((), x.dtype))


def nan_ignored(f, x, **more):
    return f(jnp.where(jnp.isnan(x), jnp.array(-jnp.inf, x.dtype), x), **more) if jnp.issubdtype(
        x.dtype, jnp.floating) else f(x, **more)  # fmt: skip


def blocks_of(number):
    """A scan whose carry is lost at the end of a block."""

    def other(f, x, **more):
        if x.shape[more["axis"]] <= number:
            return f(x, **more)
        axis = more["axis"]
        first, rest = jnp.split(x, [number], axis=axis)
        return jnp.concatenate([f(first, **more), f(rest, **more)], axis=axis)

    return other


def axis_lost(f, x, **more):
    return f(x, **{**more, "axis": -1})


def where_square(other):
    return lambda f, x, **more: (
        other(f, x, **more) if x.ndim == 2 and x.shape[0] == x.shape[1] else f(x, **more)
    )


def turned(f, x, **more):
    return f(x.T, **more)


def pads_after(api):
    """SAME that puts more before than behind."""

    def broken(x, w, strides, padding, **more):
        if padding == "SAME":
            around = matrix.pads("SAME", x.shape[2:], w.shape[2:], strides, more["rhs_dilation"])
            padding = [(after, before) for before, after in around]
        return api(x, w, strides, padding, **more)

    return broken


def conv_of(change):
    def mutant(api):
        def broken(x, w, strides, padding, **more):
            return api(*change(x, w, strides, padding, more), **more)

        return broken

    return mutant


def conv_without(option):
    def mutant(api):
        def broken(x, w, strides, padding, **more):
            true = jax.eval_shape(
                partial(api, window_strides=strides, padding=padding, **more), x, w
            )
            found = api(x, w, strides, padding, **{**more, option: (1,) * (x.ndim - 2)})
            fit = found[tuple(slice(0, n) for n in true.shape)]
            return jnp.pad(fit, [(0, n - m) for n, m in zip(true.shape, fit.shape, strict=True)])

        return broken

    return mutant


def strides_after(api):
    """Strides of the other dimension."""

    def broken(x, w, strides, padding, **more):
        true = jax.eval_shape(partial(api, window_strides=strides, padding=padding, **more), x, w)
        found = api(x, w, strides[::-1], padding, **more)
        fit = found[tuple(slice(0, n) for n in true.shape)]
        return jnp.pad(fit, [(0, n - m) for n, m in zip(true.shape, fit.shape, strict=True)])

    return broken


def pool_from_zero(api):
    def broken(x, init, function, *window):
        return api(x, np.zeros((), x.dtype), function, *window)

    return broken


def window_of(change):
    def mutant(api):
        def broken(x, init, function, size, strides, padding):
            return api(x, init, function, *change(x, init, function, size, strides, padding))

        return broken

    return mutant


def mask_of(change):
    def mutant(api):
        def broken(q, k, v, **more):
            if "mask" in more:
                more = {**more, "mask": change(more["mask"])}
            return api(q, k, v, **more)

        return broken

    return mutant


def causal_off_by_one(api):
    def broken(q, k, v, **more):
        if not more.pop("is_causal", False):
            return api(q, k, v, **more)
        size = q.shape[1]
        return api(q, k, v, mask=jnp.tril(jnp.ones((size, size), bool), 1)[None, None], **more)

    return broken


def index_of(change):
    def mutant(api):
        return lambda x, at, y, kind: api(x, change(at, x), y, kind)

    return mutant


def repeated_once(api):
    """A scatter without atomic additions: the last of several wins."""

    def broken(x, at, y, kind):
        if kind != "add":
            return api(x, at, y, kind)
        return api(x, at, x.at[at].get(mode="fill", fill_value=0) + y, "set")

    return broken


def low_bits(keep):
    def other(f, *args):
        found = f(*args)
        return found.astype(keep).astype(found.dtype)

    return other


def each(names, other):
    """One mutant of several functions of a family."""

    def mutant(api):
        for name in names:
            api = of(name, other)(api)
        return api

    return mutant


EIGH_LARGE = 33


def large_only(other, size=EIGH_LARGE):
    return lambda f, a, *b, **more: (
        other(f, a, *b, **more) if a.shape[-1] >= size else f(a, *b, **more)
    )


def swap(where):
    """Exchange two results."""

    def other(f, *args, **more):
        found = f(*args, **more)
        return type(found)(*where(*found)) if hasattr(found, "_fields") else where(*found)

    return other


def summed_in_half(api):
    """Partial sums in the type of what is multiplied, one term after the other."""

    def broken(a, b, **more):
        if a.dtype != "bfloat16":
            return api(a, b, **more)
        start = jnp.zeros(jax.eval_shape(api, a, b).shape, a.dtype)
        terms = jnp.moveaxis(a, -1, 0)[..., :, None], jnp.moveaxis(b, -2, 0)[..., None, :]
        return jax.lax.scan(lambda sum_, ab: (sum_ + ab[0] * ab[1], None), start, terms)[0]

    return broken


SORTS, SUMS = ("sort", "argsort", "top_k"), ("sum", "mean")
TRANSFORMS = matrix.FAMILIES["fft"].axes["name"]
MUTANTS = {
    "matmul": {
        "transposed when square": lambda api: lambda a, b, **m: (
            api(a, b, **m).swapaxes(-1, -2) if square(a, b) else api(a, b, **m)),
        "left transposed when square": lambda api: lambda a, b, **m: (
            api(a.swapaxes(-1, -2) if square(a, b) else a, b, **m)),
        "operands exchanged when square": lambda api: lambda a, b, **m: (
            api(b, a, **m) if square(a, b) else api(a, b, **m)),
        "wrong when compiled": lambda api: lambda a, b, **m: (
            api(a, b, **m) * (1 + 0.01 * tracing(a, b)) if a.dtype != np.int32 else api(a, b, **m)),
        "lower precision": inwards(rounded),
        "accumulated in half": summed_in_half,
        "tail of k lost": lambda api: lambda a, b, **m: api(tail(a), b, **m),
        "tail of n lost": outwards(lambda y, *_a, **_m: tail(y)),
        "tail of m lost": outwards(lambda y, *_a, **_m: tail(y, axis=-2) if y.ndim > 1 else y),
        "conjugated": inwards(conj),
        "imaginary part lost": outwards(lambda y, *_a, **_m: y.real.astype(y.dtype)),
        "integers as floats of 16 bits": lambda api: lambda a, b, **m: (
            api(a.astype("float16"), b.astype("float16")).astype("int32")
            if a.dtype == np.int32 else api(a, b, **m)),
        "NaN as zero": inwards(lambda x: jnp.nan_to_num(x, posinf=jnp.inf, neginf=-jnp.inf)),
        "batches exchanged": outwards(lambda y, *_a, **_m: y[::-1] if y.ndim > 2 else y),
        "no gradient": no_gradient,
        "a row of the result lost": outwards(lambda y, *_a, **_m: y.at[..., -1, :].set(0)),
    },
    "attention": {
        "no mask": without("mask"), "no bias": without("bias"), "not causal": without("is_causal", False),
        "mask inverted": mask_of(lambda m: ~m), "causal by one more": causal_off_by_one,
        "mask of the first head": mask_of(lambda m: jnp.broadcast_to(m[:, :1], m.shape)),
        "mask of the first row": mask_of(lambda m: jnp.broadcast_to(m[:, :, :1], m.shape)),
        "scale": lambda api: lambda q, k, v, **m: api(q * 2, k, v, **m),
        "keys and values exchanged": lambda api: lambda q, k, v, **m: api(q, v, k, **m),
    },
    "convolution": {
        "kernel turned": conv_of(lambda x, w, s, p, m: (jnp.asarray(x), jnp.flip(w, tuple(range(2, w.ndim))), s, p)),
        "SAME the other way": pads_after,
        "no dilation": conv_without("rhs_dilation"), "not transposed": conv_without("lhs_dilation"),
        "strides exchanged": strides_after,
        "channels exchanged": conv_of(lambda x, w, s, p, m: (x[:, ::-1], w, s, p)),
        "groups exchanged": conv_of(lambda x, w, s, p, m: (
            (jnp.roll(x, x.shape[1] // m["feature_group_count"], 1) if m["feature_group_count"] > 1 else x), w, s, p)),
        "outputs and inputs exchanged when square": conv_of(lambda x, w, s, p, m: (
            x, w.swapaxes(0, 1) if w.shape[0] == w.shape[1] else w, s, p)),
        "depth turned": conv_of(lambda x, w, s, p, m: (x[:, :, ::-1] if x.ndim == 5 else x, w, s, p)),
        "1x1 as identity": lambda api: lambda x, w, s, p, **m: (
            api(x, jnp.ones_like(w), s, p, **m) if w.shape[2:] == (1, 1) else api(x, w, s, p, **m)),
        "1-D shifted": lambda api: lambda x, w, s, p, **m: (
            jnp.roll(api(x, w, s, p, **m), 1, -1) if x.ndim == 3 else api(x, w, s, p, **m)),
        "half in half": lambda api: lambda x, w, s, p, **m: (
            api(x.astype("float8_e4m3fn").astype(x.dtype), w, s, p, **m) if x.dtype == "float16" else api(x, w, s, p, **m)),
        "no gradient": lambda api: lambda x, w, s, p, **m: no_gradient(
            lambda x, w: api(x, w, s, p, **m))(x, w),
        "lower precision": lambda api: lambda x, w, s, p, **m: api(rounded(x), rounded(w), s, p, **m),
    },
    "pooling": {
        "begins at zero": pool_from_zero,
        "does not overlap": window_of(lambda x, i, f, size, strides, p: (
            tuple(map(min, size, strides)), strides, p) if p == "SAME" else (size, strides, p)),
        "SAME shifted": lambda api: lambda x, i, f, size, strides, p: (
            jnp.roll(api(x, i, f, size, strides, p), 1, -1) if p == "SAME" else api(x, i, f, size, strides, p)),
        "windows turned": window_of(lambda x, i, f, size, strides, p: (
            (*size[:2], *size[:1:-1]), strides, p) if p == "SAME" else (size, strides, p)),
        "no gradient": lambda api: lambda x, *more: no_gradient(lambda x: api(x, *more))(x),
        "integers lose bits": lambda api: lambda x, *more: api(x & ~1 if x.dtype == np.int32 else x, *more),
    },
    "reduction": {
        "max from zero": of("max", identity_zero),
        "min from zero": of("min", lambda f, x, **m: jnp.minimum(f(x, **m), jnp.zeros((), x.dtype))),
        "NaN passed over by max": of("max", nan_ignored),
        "NaN passed over by argmax": of("argmax", nan_ignored),
        "bf16 added in bf16": of("sum", lambda f, x, **m: f(x, **m) if x.dtype != "bfloat16" else jax.lax.reduce(
            x, np.zeros((), "bfloat16"), jax.lax.add, tuple(range(x.ndim)) if m["axis"] is None else (m["axis"] % x.ndim,)) * jnp.bfloat16(1.03)),
        "int8 added in int8": of("sum", lambda f, x, **m: f(x, **m).astype(x.dtype).astype(f(x, **m).dtype)),
        "float32 added in half": of("sum", lambda f, x, **m: reduce_as("float16")(f, x, **m) if x.dtype == "float32" else f(x, **m)),
        "tail lost": each((*SUMS, "max", "min"), lambda f, x, **m: f(tail(x, 512), **m)),
        "axes exchanged when square": each((*SUMS, "max", "min"), where_square(lambda f, x, **m: f(x.T, **m))),
        "mean of one more": of("mean", lambda f, x, **m: f(x, **m) * (x.size / (x.size + 1)) if jnp.issubdtype(x.dtype, jnp.floating) else f(x, **m)),
        "last of equals by argmax": of("argmax", lambda f, x, **m: (x.size if m["axis"] is None else x.shape[m["axis"]]) - 1 - f(jnp.flip(x, m["axis"]), **m)),
        "by magnitude": each(("max", "argmax"), lambda f, x, **m: f(jnp.abs(x), **m)),
        "unsigned as signed": of("max", lambda f, x, **m: f(x.astype("int8"), **m).astype(x.dtype) if x.dtype == np.uint8 else f(x, **m)),
        "infinity as the largest": of("max", lambda f, x, **m: jnp.minimum(f(x, **m), jnp.finfo(x.dtype).max) if jnp.issubdtype(x.dtype, jnp.floating) else f(x, **m)),
        "any is all": of("any", lambda f, x, **m: jnp.all(x, **m)),
        "prod of the first half": of("prod", lambda f, x, **m: f(x.at[..., x.shape[-1] // 2 :].set(1), **m)),
    },
    "scan": {
        "carry lost": each(("cumsum", "cumprod", "cummax", "cummin"), blocks_of(1024)),
        "carry lost after a warp": of("cumsum", blocks_of(32)),
        "without its own": of("cumsum", lambda f, x, **m: f(x, **m) - x),
        "axes exchanged when square": of("cumsum", where_square(lambda f, x, **m: f(x.T, **m).T)),
        "max from zero": of("cummax", lambda f, x, **m: jnp.maximum(f(x, **m), 0)),
        "lower precision": of("cumsum", lambda f, x, **m: f(rounded(x), **m)),
    },
    "order": {
        "by magnitude": of("sort", lambda f, x, **m: jnp.take_along_axis(x, jnp.argsort(jnp.abs(x.astype("float64")), **m), m["axis"])),
        "not stable": of("argsort", stable_lost),
        "descending is ascending": each(("sort", "argsort"), lambda f, x, **m: f(x, **{**m, "descending": False})),
        "axis passed over when square": of("sort", where_square(axis_lost)),
        "axis 0 passed over": of("argsort", lambda f, x, **m: f(x, axis=m["axis"], descending=m["descending"]).at[0].add(m["axis"] == 0)),
        "unsigned as signed": of("sort", lambda f, x, **m: f(x.astype("int8"), **m).astype(x.dtype) if x.dtype == np.uint8 else f(x, **m)),
        "NaN first": of("sort", lambda f, x, **m: f(jnp.nan_to_num(x, nan=-jnp.inf, posinf=jnp.inf, neginf=-jnp.inf), **m) if jnp.issubdtype(x.dtype, jnp.floating) else f(x, **m)),
        "beyond a block": of("sort", lambda f, x, **m: jnp.concatenate([f(x[:, :1024], **m), f(x[:, 1024:], **m)], axis=1) if m["axis"] == 1 and x.shape[1] > 1024 else f(x, **m)),
        "the lowest k": of("top_k", lambda f, x, **m: f(-x if x.dtype != np.uint8 else 255 - x, **m)),
        "signs of zero ordered": of("argsort", lambda f, x, **m: f(jnp.where((x == 0) & jnp.signbit(x), jnp.array(-1e-30, x.dtype), x) if jnp.issubdtype(x.dtype, jnp.floating) else x, **m)),
        "a value twice": of("sort", lambda f, x, **m: f(x, **m).at[-1, -1].set(f(x, **m)[-1, -2 if x.shape[1] > 1 else -1])),
    },
    "scatter": {
        "not atomic": repeated_once,
        "last index lost": lambda api: lambda x, at, y, kind: api(x, at[:-1], y[:-1], kind),
        "negative as outside": index_of(lambda at, x: jnp.where(at < 0, 99, at)),
        "outside as the last": index_of(lambda at, x: jnp.clip(at, -50, 49)),
        "add as set": lambda api: lambda x, at, y, kind: api(x, at, y, "set" if kind == "add" else kind),
    },
    "fft": {
        "ifft without its imaginary part": of("ifft", lambda f, x, **m: f(x, **m).real.astype(f(x, **m).dtype)),
        "ifft not scaled": of("ifft", lambda f, x, **m: f(x, **m) * x.shape[m["axis"]]),
        "ifft is fft": of("ifft", lambda f, x, **m: jnp.fft.fft(x, axis=m["axis"], norm="forward" if m["norm"] is None else m["norm"])),
        "conjugated": each(TRANSFORMS, lambda f, x, **m: conj(f(x, **m))),
        "axis passed over": each(("fft", "rfft", "ifft"), lambda f, x, **m: jnp.fft.fft(x, axis=-1)[: f(x, **m).shape[0]] if m["axis"] == 0 else f(x, **m)),
        "odd irfft as even": of("irfft", lambda f, x, **m: jnp.pad(f(x, **{**m, "n": m["n"] - 1}), [(0, int(d == m["axis"] % 2)) for d in range(2)]) if m["n"] % 2 and m["n"] > 1 else f(x, **m)),
        "norm passed over": each(TRANSFORMS, lambda f, x, **m: f(x, **{**m, "norm": None})),
        "large ones cut": each(("fft", "ifft"), lambda f, x, **m: f(x.at[..., 4096:].set(0), **m) if x.shape[-1] > 4096 else f(x, **m)),
        "primes wrong": each(("fft",), lambda f, x, **m: f(x, **m) * (1.001 if x.shape[m["axis"]] in (7, 101, 10_007) else 1)),
        "two dimensions as one": of("fft2", lambda f, x, **m: jnp.fft.fft(x)),
        "Nyquist lost": of("rfft", lambda f, x, **m: f(x, **m).at[..., -1].set(0) if m["axis"] == -1 and x.shape[-1] % 2 == 0 and x.shape[-1] > 2 else f(x, **m)),
        "lower precision": each(("fft", "rfft"), lambda f, x, **m: f((x * (1 + 2.0**-9)).astype(x.dtype), **m)),
        "double in single": of("fft", lambda f, x, **m: f(x.astype("complex64"), **m).astype(x.dtype)),
    },
    "linear": {
        "no pivots": of("solve", without_pivots),
        "conjugated": of("solve", lambda f, a, b: f(conj(a), b)),
        "transposed": of("solve", lambda f, a, b: f(a.swapaxes(-1, -2), b)),
        "one column": of("solve", lambda f, a, b: f(a, b).at[..., -1].set(f(a, b)[..., 0])),
        "upper Cholesky": of("cholesky", lambda f, a: f(a).swapaxes(-1, -2)),
        "Cholesky without conjugation": of("cholesky", lambda f, a: conj(f(a))),
        "inverse transposed": of("inv", lambda f, a: f(a).swapaxes(-1, -2)),
        "sign of the determinant": of("det", lambda f, a: jnp.abs(f(a)) if not jnp.iscomplexobj(a) else f(a)),
        "values not in order": of("eigh", lambda f, a, **m: tuple(x[..., ::-1] for x in f(a, **m))),
        "large ones wrong": of("eigh", large_only(lambda f, a, **m: tuple(x * 1.001 for x in f(a, **m)))),
        "vectors in rows": of("eigh", lambda f, a, **m: (f(a, **m)[0], f(a, **m)[1].swapaxes(-1, -2))),
        "the other half": of("eigh", lambda f, a, **m: tuple(f(a, **{**m, "UPLO": "U"}))),
        "vectors conjugated": of("eigh", lambda f, a, **m: (f(a, **m)[0], conj(f(a, **m)[1]))),
        "single for double": each(("solve", "inv"), lambda f, a, *b: f(*(x.astype({"float64": "float32", "complex128": "complex64"}.get(str(x.dtype), x.dtype)) for x in (a, *b))).astype(a.dtype)),
        "a batch as its first": each(("inv", "cholesky"), lambda f, a: jnp.broadcast_to(f(a)[:1], a.shape) if a.ndim > 2 else f(a)),
    },
    "factors": {
        "R of wide ones cut": of("qr", lambda f, a, **m: swap(lambda q, r: (q, r.at[..., q.shape[-1]:].set(0)))(f, a, **m)),
        "Q transposed": of("qr", lambda f, a, **m: swap(lambda q, r: (q.swapaxes(-1, -2) if q.shape[-1] == q.shape[-2] else q, r))(f, a, **m)),
        "V conjugated": of("svd", swap(lambda u, s, v: (u, s, conj(v)))),
        "V in columns": of("svd", swap(lambda u, s, v: (u, s, v.swapaxes(-1, -2) if v.shape[-1] == v.shape[-2] else v))),
        "values ascending": of("svd", swap(lambda u, s, v: (u[..., ::-1] if u.shape[-1] == s.shape[-1] else u, s[..., ::-1], v[..., ::-1, :] if v.shape[-2] == s.shape[-1] else v))),
        "full is reduced": of("svd", lambda f, a, full_matrices: f(a, full_matrices=False)),
        "permutation transposed": of("lu", swap(lambda p, l, u: (p.swapaxes(-1, -2), l, u))),
        "no pivots": of("lu", lambda f, a: (jnp.broadcast_to(jnp.eye(a.shape[-2], dtype=f(a)[0].dtype), f(a)[0].shape), f(a)[1], f(a)[2])),
        "a column's sign": of("qr", lambda f, a, **m: swap(lambda q, r: (q.at[..., 0].multiply(-1), r))(f, a, **m)),
        "wide U cut": of("lu", lambda f, a: (f(a)[0], f(a)[1], f(a)[2].at[..., f(a)[2].shape[-2]:].set(0) if f(a)[2].shape[-1] > f(a)[2].shape[-2] else f(a)[2])),
        "single for double": of("qr", lambda f, a, **m: tuple(x.astype(a.dtype) for x in f(a.astype({"float64": "float32", "complex128": "complex64"}.get(str(a.dtype), a.dtype)), **m))),
    },
    "triangular": {
        "upper is lower": of("triangular", lambda f, a, b, **m: f(a, b, **{**m, "lower": True})),
        "never transposed": of("triangular", lambda f, a, b, **m: f(a, b, **{**m, "trans": "N"})),
        "never conjugated": of("triangular", lambda f, a, b, **m: f(a, b, **{**m, "trans": "T" if m["trans"] == "C" else m["trans"]})),
        "diagonal read": of("triangular", lambda f, a, b, **m: f(a, b, **{**m, "unit_diagonal": False})),
        "diagonal not read": of("triangular", lambda f, a, b, **m: f(a, b, **{**m, "unit_diagonal": True})),
        "tail of a block": of("triangular", lambda f, a, b, **m: f(a, b, **m).at[64:].multiply(1.001)),
    },
    "function": {
        **{f"{name} off by 1/1000": of(name, lambda f, x: f(x) * jnp.array(1.001, x.dtype) if x.dtype != "bfloat16" else f(x)) for name in ("exp", "log", "tanh", "sqrt", "sin", "cos", "expm1", "log1p", "erf", "sigmoid")},
        "expm1 by exp": of("expm1", lambda f, x: jnp.exp(x) - 1),
        "log1p by log": of("log1p", lambda f, x: jnp.log(x + 1)),
        "tanh without limits": of("tanh", lambda f, x: jnp.where(jnp.abs(x) > 9, x, f(x))),
        "NaN as zero": each(tuple(matrix.FUNCTIONS), lambda f, x: f(jnp.nan_to_num(x, posinf=jnp.inf, neginf=-jnp.inf))),
        "halves away from zero": of("round", lambda f, x: jnp.sign(x) * jnp.floor(jnp.abs(x) + 1)),
        "sign of zero lost": of("sqrt", lambda f, x: jnp.where(f(x) == 0, jnp.zeros((), x.dtype), f(x))),
        "floor towards zero": of("floor", lambda f, x: jnp.trunc(x)),
    },
    "random": {
        "normal without its low bits": of("normal", low_bits("bfloat16")),
        "uniform without its low bits": of("uniform", low_bits("float16")),
        "double from single": of("normal", lambda f, k, s, d: f(k, s, "float32").astype(d) * 1.2),
        "numbers twice": of("uniform", lambda f, k, s, d: jnp.repeat(f(k, (s[0] // 2,), d), 2)),
        "one key for all": each(("normal", "uniform"), lambda f, k, s, d: f(jax.random.key(1), s, d)),
        "scale of Laplace": of("laplace", lambda f, k, s, d: f(k, s, d) * 1.1),
        "mean of the exponential": of("exponential", lambda f, k, s, d: f(k, s, d) * 1.1),
        "Gumbel turned": of("gumbel", lambda f, k, s, d: -f(k, s, d)),
    },
    "collective": {
        "the last device lost": of("psum", lambda f, x: f(jnp.where(jax.lax.axis_index("x") == jax.device_count() - 1, jnp.zeros_like(x), x))),
        "mean for sum": of("psum", lambda f, x: jax.lax.pmean(x, "x").astype(x.dtype)),
        "max from zero": of("pmax", lambda f, x: jnp.maximum(f(x), 0)),
        "beyond a MiB lost": of("psum", lambda f, x: f(x).at[(1 << 20) // (8 * x.dtype.itemsize) :].set(0)),
        "integers as floats": of("psum", lambda f, x: f(x.astype("bfloat16")).astype(x.dtype) if x.dtype == np.int32 else f(x)),
        "the other way round": of("ppermute", lambda f, x: jax.lax.ppermute(x, "x", [((n + 1) % jax.device_count(), n) for n in range(jax.device_count())])),
        "parts not exchanged": of("all_to_all", lambda f, x: x),
        "gathered in another order": of("all_gather", lambda f, x: f(x)[::-1]),
        "the first part for all": of("psum_scatter", lambda f, x: jax.lax.psum(x[: x.shape[0] // jax.device_count()], "x")),
        "gathered too little": of("all_gather", lambda f, x: f(x).at[-1].set(0)),
    },
}  # fmt: skip


# Mutants that no cell can tell from an honest answer on a backend, and why.
CANNOT_MATTER = {
    "cpu": {"reduction: NaN passed over by max": "XLA does so itself on the CPU (JAX 0.11.0)"},
}


def fails(family, api, cell) -> str:
    try:
        family.judge(api, **cell)
    except Exception as exc:  # noqa: BLE001 - however a broken library shows, it shows
        return f"{type(exc).__name__}: {exc}".partition("\n")[0][:200] or type(exc).__name__
    return ""


def main() -> None:
    honest, caught, survivors, seconds = {}, {}, [], {}
    for title, family in matrix.FAMILIES.items():
        if sys.argv[2:] and title not in sys.argv[2:]:
            continue
        cells, began = family.cells(), time.process_time()
        for cell in cells:
            if why := fails(family, family.api, cell):
                honest[f"{title} {cell}"] = why
        seconds[title] = round(time.process_time() - began, 1)
        for name, mutant in MUTANTS[title].items():
            first = next((cell for cell in cells if fails(family, mutant(family.api), cell)), None)
            if first is None:
                excused = CANNOT_MATTER.get(jax.default_backend(), {})
                survivors += [f"{title}: {name}"] if f"{title}: {name}" not in excused else []
            else:
                caught[f"{title}: {name}"] = " ".join(map(str, first.values()))
            jax.clear_caches()
    print(json.dumps({
        "cells": {t: len(f.cells()) for t, f in matrix.FAMILIES.items()},
        "honest": honest, "caught": caught, "survivors": survivors, "seconds": seconds,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
