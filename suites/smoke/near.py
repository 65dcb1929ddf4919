"""Judges: a result against a float64 oracle, element by element, within a bound that is derived.

Bounds follow from the precision of inputs, accumulation and output, relative to what was added up
(Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 3.5): a sum of n
terms errs by at most n*u*sum|terms|, and with rounding errors that are independent by about
sqrt(n)*u*sum|terms| (Higham and Mary 2019), which is taken here with the factor `SAFETY`. Nothing
is judged absolutely, and a bound that is not small beside the result is an error of the test.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

SAFETY = 4.0
COARSEST = 1 / 8  # of the root mean square of what is expected: a bound above it proves nothing
TF32 = 2.0**-11  # what a GPU may round float32 inputs to where nobody asks for more

# unit roundoff
UNIT = {
    "float64": 2.0**-53,
    "complex128": 2.0**-53,
    "float32": 2.0**-24,
    "complex64": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}
# what a sum is accumulated in, where it is not the type of its terms
ACCUMULATED = dict.fromkeys(("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"), "float32")


def judge(got: object, want: object, bound: object) -> None:
    """Assert that every element is within its bound; NaN never is."""
    actual, expected = wide(got), wide(want)
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    limit = np.broadcast_to(np.asarray(bound, np.float64), expected.shape)
    size = np.sqrt(np.mean(np.abs(expected) ** 2))
    coarse = np.max(limit, initial=0.0)
    assert coarse <= COARSEST * size, f"a bound of {coarse:.3g} beside {size:.3g} proves nothing"
    error = np.abs(actual - expected)
    bad = ~(error <= limit)
    if bad.any():
        where = tuple(int(index) for index in np.argwhere(bad)[0])
        raise AssertionError(
            f"{int(bad.sum())} of {bad.size} elements are off, the first at {where}: "
            f"{actual[where]:.9g}, expected {expected[where]:.9g} within {limit[where]:.3g}"
        )


def unit(array: object) -> float:
    """Return the unit roundoff of an array's type."""
    return UNIT[str(np.asarray(array).dtype)]


def near(got: object, want: object, *, steps: float = 1, scale: object = None) -> None:
    """Judge `steps` dependent roundings, relative to `scale`: by default the largest magnitude.

    Integers must be equal.
    """
    name = str(np.asarray(got).dtype)
    if name not in UNIT:
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
        return
    size = np.max(np.abs(wide(want)), initial=0.0) if scale is None else np.abs(wide(scale))
    judge(got, want, SAFETY * max(1.0, steps) ** 0.5 * UNIT[name] * size)


def contracted(
    got: object,
    contract: Callable[..., np.ndarray],
    a: object,
    b: object,
    *,
    terms: int,
    rounded: float = 0.0,
    also: object = 0.0,
) -> None:
    """Judge a sum of products of two arrays, such as a matrix product or a convolution.

    `rounded` is the unit roundoff that inputs may be rounded to first. `also` is what an epilogue
    adds. Rounding the output counts twice: long sums may be split and their parts rounded.
    """
    out = unit(got)
    inputs = str(np.asarray(a).dtype)
    accumulated = UNIT[ACCUMULATED.get(inputs, inputs)]
    left, right = wide(a), wide(b)
    want = contract(left, right) + wide(also)
    absolute = contract(np.abs(left), np.abs(right)) + np.abs(wide(also))
    typical = np.sqrt(contract(np.abs(left) ** 2, np.abs(right) ** 2))  # of a partial sum
    bound = 2 * out * (np.abs(want) + typical + np.abs(wide(also)))
    bound += SAFETY * (2**0.5 * rounded * typical + terms**0.5 * accumulated * absolute)
    judge(got, want, bound)


def summed(
    got: object,
    sum_: Callable[[np.ndarray], np.ndarray],
    terms: object,
    *,
    number: int,
    kind: str = "",
) -> None:
    """Judge a sum of `number` terms."""
    name = kind or str(np.asarray(got).dtype)
    want, absolute = sum_(wide(terms)), sum_(np.abs(wide(terms)))
    judge(got, want, UNIT[name] * (np.abs(want) + SAFETY * number**0.5 * absolute))


def transformed(got: object, want: object, *, length: int) -> None:
    """Judge a Fourier transform of `length` points: its error spreads evenly (Higham, 24.1)."""
    size = np.sqrt(np.mean(np.abs(wide(want)) ** 2))
    judge(got, want, 2 * SAFETY * np.log2(max(2, length)) * unit(got) * size)


def solved(a: object, x: object, b: object) -> None:
    """Judge the solution of a linear system by its residual (Higham, 7.1)."""
    left, right, found = wide(a), wide(b), wide(x)
    size = np.abs(left) @ np.abs(found) + np.abs(right)
    judge(left @ found, right, SAFETY * left.shape[-1] ** 0.5 * unit(x) * size)


def rebuilt(product: object, a: object, *, kind: str) -> None:
    """Judge a factorisation by what its factors make: backward stable by norm (Higham, 19.3)."""
    want = wide(a)
    size = np.linalg.norm(want, 2, axis=(-2, -1), keepdims=True)
    judge(product, want, SAFETY * max(want.shape[-2:]) * UNIT[kind] * size)


def orthonormal(q: object) -> None:
    """Judge that columns are orthonormal."""
    found = wide(q)
    made = np.swapaxes(found.conj(), -1, -2) @ found
    want = np.broadcast_to(np.eye(found.shape[-1]), made.shape)
    judge(made, want, SAFETY * found.shape[-2] * unit(q))


def numbers(*shape: int, seed: int = 0, dtype: str = "float64") -> np.ndarray:
    """Return reproducible numbers around zero, exactly representable in `dtype`."""
    found = np.random.default_rng(seed).standard_normal(shape)
    return found.astype(getattr(ml_dtypes, dtype, None) or dtype)


def wide(array: object) -> np.ndarray:
    """Return an array in the precision of the oracle."""
    found = np.asarray(array)
    return found.astype(np.complex128 if np.iscomplexobj(found) else np.float64)
