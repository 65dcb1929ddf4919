"""What a worker writes is a message of its form, or breaks the protocol."""

from __future__ import annotations

import json

import pytest

from rocwheel.gate.engine.protocol import BrokenProtocolError, parse

FINISHED = {
    "event": "finish", "test": "a::t", "batch": 0, "offset": 0, "outcome": "passed",
    "message": "", "detail": "", "seconds": 0.5, "evidence": [], "left": [], "going": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "number"),
    [("seconds", 1e308), ("seconds", 10**400), ("offset", 10**400), ("batch", 2**64)],
)
def test_a_number_beyond_all_measure_breaks_the_protocol(field: str, number: float) -> None:
    assert parse(json.dumps(FINISHED).encode()).seconds == 0.5
    with pytest.raises(BrokenProtocolError, match=field):
        parse(json.dumps({**FINISHED, field: number}).encode())
