"""What of a push is done first: a record says that all of it is done."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime, timezone
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from rocwheel.base.errors import StoreError
from rocwheel.night import runtime_job as job
from rocwheel.night import runtime_record as record
from rocwheel.release.operations import Who

NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)


@pytest.fixture
def steps(monkeypatch):
    """The steps of a push in the order they were taken; none of them is really taken."""
    taken: list[str] = []
    image = SimpleNamespace(reference="here/jax:1", digest="sha256:1")
    monkeypatch.setattr(record, "verdicts", lambda *_: {})
    monkeypatch.setattr(record, "refusals", lambda *_: ())
    monkeypatch.setattr(job, "ImageRecord", lambda **_: image)
    monkeypatch.setattr(job.registry, "push", lambda *_, **__: (MagicMock(), True))
    monkeypatch.setattr(record, "put", lambda *_: taken.append("record"))
    return taken


def push(tags):
    asked = SimpleNamespace(
        request=SimpleNamespace(who=Who(by="ann", now=NOW, reason="")),
        options=SimpleNamespace(tags=tags), place=None, repository="here/jax",
        subject=MagicMock(tag="1"),
    )  # fmt: skip
    console = SimpleNamespace(step=lambda *_, **__: nullcontext(), info=lambda _: None)
    here = SimpleNamespace(now=lambda: NOW, console=console, environ={}, runner=None)
    return job._pushed(asked, here, MagicMock(), MagicMock(), engine=None)


def test_an_image_is_recorded_once_its_moving_tags_name_it(steps, monkeypatch):
    moved = {"latest": True, "nightly": False}
    monkeypatch.setattr(
        job.registry, "point", lambda _, tag, __, **___: steps.append(tag) or moved[tag]
    )
    document = push(("latest", "nightly"))
    assert steps == ["latest", "nightly", "record"]
    assert document == {
        "reference": "here/jax:1", "pull": "here/jax@sha256:1", "tags": ["latest"], "pushed": True,
    }  # fmt: skip


def test_an_image_whose_tag_cannot_be_moved_has_no_record_so_that_it_is_tried_again(
    steps, monkeypatch
):
    def refuse(*_, **__):
        raise StoreError("away", hint="")

    monkeypatch.setattr(job.registry, "point", refuse)
    with pytest.raises(StoreError):
        push(("latest",))
    assert steps == []
