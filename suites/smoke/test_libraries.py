"""Every function that the page lists for a ROCm library, with numbers that are checked."""

from __future__ import annotations

import importlib

import jax
import pytest
from checks import found
from documented import BEYOND, LIBRARIES, Row


def resolve(name: str) -> object:
    """Import a dotted name, as deep as modules go, then by attributes."""
    parts = name.split(".")
    for depth in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:depth]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[depth:]:
            value = getattr(value, attribute)
        return value
    raise ModuleNotFoundError(name)


def cases():
    for library, rows in (*LIBRARIES.items(), *BEYOND.items()):
        for row in rows:
            name = row.name(jax.__version__)
            check = found(library, name) if name else None
            for dtype in check.dtypes if check else ("none",):
                yield pytest.param(
                    library,
                    row,
                    dtype,
                    marks=pytest.mark.rocm(library.partition(" ")[0]),
                    id=f"{library.replace(' ', '_')}-{row.documented.replace(' ', '_')}-{dtype}",
                )


@pytest.mark.parametrize(("library", "row", "dtype"), cases())
def test_function(library: str, row: Row, dtype: str) -> None:
    name = row.name(jax.__version__)
    if name is None:
        assert row.missing, f"{row.documented}: no name in JAX {jax.__version__}, and no reason"
        pytest.skip(row.missing)
    check = found(library, name)
    assert check, f"{name} has no check"
    check.run(resolve(name), dtype)
