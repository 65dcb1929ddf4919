"""What of a demo's night is an error: a cell that failed, but not one family's own of several."""

from __future__ import annotations

import pytest

from rocwheel.base.store.opening import open_store
from rocwheel.night.standing import CellStanding
from rocwheel.records.verdict import State
from rocwheel.release.ledger.nights import Cell, Phase
from rocwheel.tools import demo

CELLS = (
    ("build.x", ""), ("gate.x.a", "a"), ("promote.x.a", "a"),
    ("gate.x.b", "b"), ("promote.x.b", "b"), ("page", ""),
)  # fmt: skip


def stood(*failed: str, cells: tuple[tuple[str, str], ...] = CELLS) -> dict[str, CellStanding]:
    """Cells that ended, these of them with a failure."""
    return {
        name: CellStanding(
            cell=Cell(name=name, kind=name.partition(".")[0], argv=(), family=family),
            phase=Phase.ENDED,
            state=State.FAIL if name in failed else State.PASS,
            reason="because" if name in failed else "",
            attempts=(),
        )
        for name, family in cells
    }


@pytest.mark.parametrize(
    ("failed", "said"),
    [
        ((), ""),
        (("gate.x.b", "promote.x.b"), ""),
        (("gate.x.b", "promote.x.b", "page"), "page"),
        (("gate.x.a", "promote.x.b"), "gate.x.a"),
        (("build.x", "gate.x.b"), "build.x"),
    ],
)
def test_what_one_family_of_several_failed_is_no_error(tmp_path, failed, said):
    error = demo.failure(stood(*failed), open_store(tmp_path.as_uri()))
    assert (str(error) if error else "") == (f"{said}: fail: because" if said else "")


def test_the_only_familys_failure_is_one(tmp_path):
    alone = tuple(cell for cell in CELLS if cell[1] != "b")
    error = demo.failure(stood("gate.x.a", cells=alone), open_store(tmp_path.as_uri()))
    assert str(error) == "gate.x.a: fail: because"
