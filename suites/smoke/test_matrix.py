"""Every cell of the input space of every family of operations."""

from __future__ import annotations

import pytest
from matrix import FAMILIES


def cells():
    for name, family in FAMILIES.items():
        for cell in family.cells():
            label = "-".join(str(value).replace(" ", "_") for value in cell.values())
            mark = pytest.mark.rocm(family.library)
            yield pytest.param(name, cell, marks=mark, id=f"{name}-{label}")


@pytest.mark.parametrize(("name", "cell"), cells())
def test_cell(name, cell):
    family = FAMILIES[name]
    family.judge(family.api, **cell)
