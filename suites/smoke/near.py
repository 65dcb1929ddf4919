"""Comparison with a float64 reference. The tolerances of the suite are these, and no others."""

from __future__ import annotations

import ml_dtypes
import numpy as np

# Relative to the largest magnitude of the expected array, for one rounding per element.
TOLERANCE = {
    "float64": 1e-13,
    "complex128": 1e-13,
    "float32": 2e-6,
    "complex64": 2e-6,
    "float16": 2e-3,
    "bfloat16": 1.6e-2,
}


def near(actual: object, expected: object, *, steps: float = 1, dtype: str = "") -> None:
    """Assert equality within the tolerance of a dtype, times the roundings that add up.

    `steps` is the number of dependent operations: the length of a sum, the size of a matrix that
    is factorised. Errors grow as its square root at least; the factor is generous, a wrong result
    is not near by any of these.
    """
    got = np.asarray(actual)
    name = dtype or str(got.dtype)
    want = np.asarray(expected)
    assert got.shape == want.shape, f"shape {got.shape}, expected {want.shape}"
    if name not in TOLERANCE:
        np.testing.assert_array_equal(got, want)
        return
    wide = np.complex128 if np.iscomplexobj(want) else np.float64
    scale = max(1.0, float(np.max(np.abs(want), initial=0.0)))
    error = np.max(np.abs(got.astype(wide) - want.astype(wide)), initial=0.0) / scale
    limit = TOLERANCE[name] * max(1.0, steps) ** 0.5 * 4
    assert error <= limit, f"relative error {error:.3g} exceeds {limit:.3g} for {name}"


def numbers(*shape: int, seed: int = 0, dtype: str = "float64") -> np.ndarray:
    """Reproducible numbers around zero, exactly representable in `dtype`."""
    found = np.random.default_rng(seed).standard_normal(shape)
    kind = getattr(ml_dtypes, dtype, None) if dtype == "bfloat16" else dtype
    return found.astype(kind)


def wide(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.float64)
