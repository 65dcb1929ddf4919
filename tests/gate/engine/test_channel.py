"""What a worker's threads emit at once reaches the engine: each event once, on a line of its own."""

import json
import os
import threading

import pytest

from rocwheel.base import values
from rocwheel.gate.engine.worker import channel


@pytest.fixture
def pipe():
    """The engine's end of the events, and the writer at the other."""
    reading, writing = os.pipe()
    writer = channel.EventWriter(writing)
    with os.fdopen(reading, "rb") as events:
        yield events, writer


def arrived(events, writer) -> list[str]:
    os.close(writer._descriptor)
    return [json.loads(line)["event"] for line in events]


def test_what_is_held_meanwhile_is_not_lost(pipe, monkeypatch) -> None:
    """The worker holds an event while a thread of an earlier test is about to emit one."""
    events, writer = pipe

    def dumps(message: dict[str, object]) -> str:
        if message["event"] == "stray":
            writer.emit("held", hold=True)
        return json.dumps(message)

    monkeypatch.setattr(channel, "_dumps", dumps)
    writer.emit("stray")
    writer.flush()
    assert sorted(arrived(events, writer)) == ["held", "stray"]


def test_a_line_that_is_written_in_pieces_has_no_other_inside(pipe, monkeypatch) -> None:
    events, writer = pipe
    other = threading.Thread(target=lambda: writer.emit("other"))

    def write(descriptor: int, data: bytes) -> int:
        monkeypatch.undo()
        written = os.write(descriptor, data[:10])
        other.start()
        other.join(0.1)  # it waits for the rest of the line
        return written

    monkeypatch.setattr(channel, "_write", write)
    writer.emit("first")
    other.join()
    assert arrived(events, writer) == ["first", "other"]


def test_worker_and_engine_have_one_limit_for_figures() -> None:
    assert channel.MOST_FIGURE == values.MOST
