"""Runs every check of the smoke suite honestly and with each mutant; run where JAX is installed.

    python smoke_mutants.py SUITE [I/N]

Prints JSON: `honest` maps each check to the largest share of its bound that an honest answer takes,
`coarsest` to its largest bound beside what is expected; `killed` counts mutants by kind;
`survivors` names those that passed, `uncalled` checks that never call their function here.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

SUITE = Path(sys.argv[1])
sys.path.insert(0, str(SUITE))

import checks  # noqa: E402
import conftest  # noqa: E402, F401 - sets flags before JAX is imported
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import near  # noqa: E402
import numpy as np  # noqa: E402
from test_libraries import cases, resolve  # noqa: E402

LOWER = {
    "float64": "float32", "float32": "bfloat16", "float16": "bfloat16",
    "bfloat16": "float8_e4m3fn", "float8_e4m3fn": "float8_e5m2",
}  # fmt: skip
NUMBERLESS = {"jax.distributed.initialize"}  # a process of its own, which counts to eight


def is_key(x) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def each(change: Callable, tree):
    """Change every array of a result, or what a function that is the result returns."""
    if callable(tree):
        return lambda *args, **more: each(change, tree(*args, **more))

    def leaf(x):
        if is_key(x):
            return jax.random.wrap_key_data(change(jax.random.key_data(x)), impl="threefry2x32")
        return change(x) if hasattr(x, "dtype") else x

    return jax.tree.map(leaf, tree, is_leaf=is_key)


def zeros(y):
    return jnp.zeros_like(y)


def half(y):
    return y // 2 if jnp.issubdtype(y.dtype, jnp.integer) else (y * 0.5).astype(y.dtype)


def tile_lost(y):
    return y.at[..., -(-3 * y.shape[-1] // 4) :].set(0) if y.ndim and y.shape[-1] > 3 else zeros(y)


def row_swapped(y):
    if not y.ndim:
        return y
    axis = -2 if y.ndim > 1 and y.shape[-2] > 1 else -1
    order = np.arange(y.shape[axis])
    order[:2] = order[:2][::-1]
    return jnp.take(y, order, axis=axis)


def nan_in_a_lane(y):
    if jnp.issubdtype(y.dtype, jnp.integer):
        return y
    return y.at[(0,) * y.ndim].set(jnp.nan)


def element(y):
    first = y[(0,) * y.ndim]
    more = first + 1 if jnp.issubdtype(y.dtype, jnp.integer) else jnp.nextafter(
        first.astype("float32"), jnp.float32(jnp.inf)).astype(y.dtype) + 2 * near.UNIT[
        str(y.dtype)] * abs(first)  # fmt: skip
    return y.at[(0,) * y.ndim].set(more)


def lowered(x):
    if is_key(x) or not hasattr(x, "dtype"):
        return x
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return (lowered(x.real) + 1j * lowered(x.imag)).astype(x.dtype)
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.asarray(x).astype(LOWER[str(x.dtype)]).astype(x.dtype)
    return (x & ~np.array(1, x.dtype)) if x.dtype == np.int8 else x


def cut(x):
    floats = hasattr(x, "dtype") and not is_key(x) and jnp.issubdtype(x.dtype, jnp.inexact)
    if not (floats or getattr(x, "dtype", None) == np.int8) or not np.ndim(x):
        return x
    return jnp.asarray(x).at[..., 3 * x.shape[-1] // 4 :].set(0)


def other(x):
    """What lay in the buffer before: the answer to another question."""
    if is_key(x):
        return jax.random.fold_in(x, 1)
    if not hasattr(x, "dtype") or not (
        jnp.issubdtype(x.dtype, jnp.inexact) or x.dtype in (np.int8, np.uint8, np.int32, np.int64)
    ):
        return x
    x = jnp.asarray(x)
    return (jnp.flip(x, -1) if x.ndim else x) * np.array(2, x.dtype)


def counting(calls, api):
    def call(*args, **more):
        calls.append(1)
        return api(*args, **more)

    return call


def on_output(change, api):
    return lambda *args, **more: each(change, api(*args, **more))


def on_inputs(change, api, *, first=False):
    def call(*args, **more):
        if args and callable(args[0]) and not hasattr(args[0], "dtype"):  # pmap(function)(array)
            inner = api(*args, **more)
            return lambda *arrays: inner(*map(change, arrays))
        places = [n for n, x in enumerate(args) if isinstance(x, (np.ndarray, jax.Array))]
        chosen = places[:1] if first else places
        return api(*(change(x) if n in chosen else x for n, x in enumerate(args)), **more)

    return call


def lower_output(y):
    if jnp.issubdtype(y.dtype, jnp.integer):
        return y & ~np.array(1, y.dtype)
    return lowered(y)


MUTANTS = {
    "zeros": partial(on_output, zeros),
    "half scale": partial(on_output, half),
    "one tile lost": partial(on_output, tile_lost),
    "K cut": partial(on_inputs, cut, first=True),
    "one row swapped": partial(on_output, row_swapped),
    "one element off": partial(on_output, element),
    "lower precision inside": partial(on_inputs, lowered),
    "NaN in one lane": partial(on_output, nan_in_a_lane),
    "stale output": partial(on_inputs, other),
}


class Wrapped:
    """A module of functions, or a sparse format, with every result mutated."""

    def __init__(self, api, wrap):
        self._api, self._wrap = api, wrap

    def __getattr__(self, name):
        value = getattr(self._api, name)
        if name == "fromdense":
            return lambda dense: Wrapped(value(dense), self._wrap)
        return self._wrap(value) if callable(value) and name != "todense" else value

    def __matmul__(self, other_):
        return self._wrap(lambda x: self._api @ x)(other_)


def wrapped(api, wrap):
    plain = callable(api) and not isinstance(api, type)
    return wrap(api) if plain else Wrapped(api, wrap)


def applies(kind: str, dtype: str, name: str) -> bool:
    """Whether a mutant is another program at all."""
    random = name.startswith("jax.random")
    whole = "int" in dtype
    if kind == "NaN in one lane":
        return not whole and "arg" not in name
    if kind == "K cut":
        return not random and dtype in checks_floats and "sort" not in name
    return kind != "lower precision inside" or dtype == "int8" or not whole or random


checks_floats = {
    "float8_e4m3fn", "float16", "bfloat16", "float32", "float32-default", "float64", "complex64",
    "complex128", "int8",
}  # fmt: skip


def judging(replacement):
    """Put another judge in place of the suite's; return the one it had."""
    before = near.judge
    near.judge = replacement
    if hasattr(checks, "judge"):
        checks.judge = replacement
    return before


def recording(true, noted, got, want, bound) -> None:
    """Judge, and note the share of the bound that was taken and the bound beside the result."""
    true(got, want, bound)
    limit = np.broadcast_to(bound, np.shape(want))
    error = np.abs(near.wide(got) - near.wide(want))
    noted[0].append(float(np.max(error[limit > 0] / limit[limit > 0], initial=0)))
    size = np.sqrt(np.mean(np.abs(near.wide(want)) ** 2))
    noted[1].append(float(np.max(limit) / size))


def run(check, api, dtype) -> bool | str:
    try:
        check.run(api, dtype)
    except (AssertionError, jax.errors.JaxRuntimeError):
        return False
    except Exception as exc:  # noqa: BLE001 - a mutant must be judged, not break its check
        return f"{type(exc).__name__}: {str(exc)[:100]}"
    return True


def main() -> None:
    number, count = map(int, (sys.argv[2] if len(sys.argv) > 2 else "1/1").split("/"))
    honest, coarsest, survivors, uncalled, killed = {}, {}, [], [], Counter()
    true = near.judge
    for index, case in enumerate(cases()):
        if index % count != number - 1:
            continue
        library, row, dtype = case.values
        name = row.name(jax.__version__)
        if name is None or name in NUMBERLESS:
            continue
        check, api, label = checks.found(library, name), resolve(name), case.id
        shares, bounds = [0.0], [0.0]
        judging(partial(recording, true, (shares, bounds)))
        calls: list[int] = []
        check.run(wrapped(api, partial(counting, calls)), dtype)
        if not calls:
            uncalled.append(label)
            judging(true)
            continue
        honest[label], coarsest[label] = round(max(shares), 3), max(bounds)
        judged = len(shares) > 1
        judging(true)
        for kind, wrap in MUTANTS.items():
            if not applies(kind, dtype, name):
                continue
            mutant = wrapped(api, wrap)
            if kind == "lower precision inside" and name.startswith("jax.random"):
                mutant = wrapped(api, partial(on_output, lower_output))
            if kind == "one element off" and judged:  # by three bounds, whatever they are
                mutant = api

                def off(got, want, bound):
                    got = np.array(near.wide(got))
                    where = np.unravel_index(got.size // 2, got.shape)
                    limit = np.broadcast_to(bound, got.shape)[where]
                    got[where] = near.wide(want)[where] + 3 * limit
                    true(got, want, bound)

                judging(off)
            if how := run(check, mutant, dtype):
                print(label, kind, how, file=sys.stderr, flush=True)
                survivors.append(f"{label}: {kind}{'' if how is True else f': {how}'}")
            else:
                killed[kind] += 1
            judging(true)
    print(json.dumps({
        "honest": honest, "coarsest": coarsest, "killed": killed, "survivors": survivors,
        "uncalled": uncalled,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
