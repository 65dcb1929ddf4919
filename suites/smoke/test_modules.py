"""Every module and API of the page's tables can be imported, under the name it really has."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import scipy.stats
from documented import MODULES, STATS, Row
from near import near
from test_libraries import resolve


@pytest.mark.parametrize("row", MODULES, ids=lambda row: row.documented)
def test_import(row: Row) -> None:
    name = row.name(jax.__version__)
    if name is None:
        assert row.missing, f"{row.documented}: no name in JAX {jax.__version__}, and no reason"
        pytest.skip(row.missing)
    resolve(name)


GRID = np.linspace(0.05, 0.95, 19)
WHOLE = np.arange(0, 12)
COUNTS = np.array([2, 3, 5])
SHARES = np.array([0.2, 0.3, 0.5])
COVARIANCE = np.array([[2.0, 0.3], [0.3, 1.0]])

# distribution -> (function, points, parameters)
CASES = {
    "bernoulli": ("logpmf", np.array([0, 1, 1]), (0.3,)),
    "beta": ("logpdf", GRID, (2.0, 3.5)),
    "betabinom": ("logpmf", WHOLE, (12, 2.0, 3.0)),
    "binom": ("logpmf", WHOLE, (12, 0.4)),
    "cauchy": ("logpdf", GRID, (0.2, 1.5)),
    "chi2": ("logpdf", GRID * 9, (3.0,)),
    "dirichlet": ("logpdf", SHARES, (np.array([1.5, 2.5, 3.0]),)),
    "expon": ("logpdf", GRID * 5, (0.01, 2.0)),
    "gamma": ("logpdf", GRID * 5, (2.5,)),
    "gennorm": ("logpdf", GRID * 3, (1.7,)),
    "geom": ("logpmf", WHOLE + 1, (0.3,)),
    "laplace": ("logpdf", GRID * 4 - 2, (0.1, 1.3)),
    "logistic": ("logpdf", GRID * 4 - 2, ()),
    "multinomial": ("logpmf", COUNTS, (10, SHARES)),
    "multivariate_normal": ("logpdf", np.array([0.3, -0.7]), (np.zeros(2), COVARIANCE)),
    "nbinom": ("logpmf", WHOLE, (5, 0.4)),
    "norm": ("logpdf", GRID * 6 - 3, (0.5, 2.0)),
    "pareto": ("logpdf", GRID * 5 + 1, (2.2,)),
    "poisson": ("logpmf", WHOLE, (3.5,)),
    "t": ("logpdf", GRID * 6 - 3, (4.0,)),
    "truncnorm": ("logpdf", GRID, (-1.0, 2.0)),
    "uniform": ("logpdf", GRID, (0.0, 2.0)),
    "vonmises": ("logpdf", GRID * 6 - 3, (1.8,)),
    "wrapcauchy": ("logpdf", GRID * 6, (0.4,)),
}


@pytest.mark.parametrize("name", ["bernoulli", *STATS])
def test_distribution_agrees_with_scipy(name: str) -> None:
    function, points, parameters = CASES[name]
    got = getattr(resolve(f"jax.scipy.stats.{name}"), function)(points, *parameters)
    expected = getattr(getattr(scipy.stats, name), function)(points, *parameters)
    # Special functions lose digits. JAX (0.8 to 0.12) computes betaln to the precision of float32
    # only, also in float64.
    lost = 2.0**29 if name == "betabinom" else 1.0
    near(got, expected, steps=1e6, scale=lost * np.max(np.abs(expected)))
