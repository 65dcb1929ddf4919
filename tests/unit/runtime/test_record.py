"""Records, verdicts and moving tags in a store: written once, and read back as they were."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from rocwheel.errors import ConfigError, ObjectDiffersError, StoreError
from rocwheel.places import Place
from rocwheel.release.operations import Who
from rocwheel.runtime import listing, publishing, record
from rocwheel.runtime.record import ImageRecord, ImageVerdict, TagMove
from rocwheel.store.file import FileStore
from rocwheel.values import replace as changed
from rocwheel.verdict import Counts, State

NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)
WHO = Who(by="ann", now=NOW, reason="because")


@pytest.fixture
def place(tmp_path):
    return Place(store=FileStore(tmp_path), root="v2/gfx94X-dcgpu", family="gfx94X-dcgpu")


def digest(letter: str) -> str:
    return f"sha256:{letter * 64}"


def image(letter: str, manifest: str = "a", *, released: bool = True, size: int = 100):
    return ImageRecord(
        reference=f"here/rocm/jax:{letter}",
        digest=digest(letter),
        config=digest(letter),
        inputs=letter * 64,
        manifest=manifest * 64,
        released=released,
        recipe="jax",
        profile="runtime",
        python="3.12",
        base="ubuntu",
        base_config=digest("0"),
        rocm="7.2.0",
        rocm_sha256="",
        layers={"base": size, "rocm": 0, "cpython": 0, "wheels": 0},
        blobs=((digest("1"), 5),),
        packages={"a.whl": "2" * 64},
        sbom="3" * 64,
        verdicts=(),
        time=f"2026-01-0{ord(letter) - 96}T00:00:00+00:00",
        by="ann",
        tool="",
    )


def verdict(state: State, suite: str = "smoke", config: str = "b"):
    return ImageVerdict(
        image=digest(config),
        manifest="a" * 64,
        python="3.12",
        family="gfx94X-dcgpu",
        suite=suite,
        state=state,
        reason="",
        counts=Counts(passed=1),
        backend="rocm",
        devices=(),
        host="h",
        ended=NOW.isoformat(),
        tool="",
    )


def move(number: int, letter: str) -> TagMove:
    return TagMove(
        repository="here/rocm/jax",
        tag="latest",
        number=number,
        config=digest(letter),
        digest=digest(letter),
        by="ann",
        reason="",
        time=NOW.isoformat(),
    )


def test_a_record_comes_back_as_it_was_and_is_never_overwritten(place):
    record.put(place, image("b"), b"{}")
    record.put(place, image("b"), b"{}")
    assert record.records(place) == (image("b"),)
    with pytest.raises(ObjectDiffersError):
        record.put(place, changed(image("b"), by="eve"), b"{}")


def test_an_image_may_lie_in_two_registries(place):
    mirror = changed(image("b"), reference="there/rocm/jax:b", digest=digest("7"))
    record.put(place, image("b"), b"{}")
    record.put(place, mirror, b"{}")
    assert record.records(place) == (image("b"), mirror)


def test_records_are_listed_the_oldest_first(place):
    for letter in "dbc":
        record.put(place, image(letter), b"{}")
    assert [item.reference[-1] for item in record.records(place)] == ["b", "c", "d"]


def test_a_push_needs_a_pass_of_each_suite_and_no_failure(place):
    assert list(record.refusals({}, ("smoke",))) == ["smoke: never ran in this image"]
    record.add_verdict(place, verdict(State.PASS))
    found = record.verdicts(place, digest("b"))
    assert not list(record.refusals(found, ("smoke",)))
    record.add_verdict(place, verdict(State.CRASH))
    found = record.verdicts(place, digest("b"))
    assert list(record.refusals(found, ("smoke",))) == ["smoke: crash"]


def test_a_verdict_on_another_image_says_nothing_of_this_one(place):
    record.add_verdict(place, verdict(State.PASS, config="c"))
    assert not record.verdicts(place, digest("b"))


def test_a_verdict_that_was_changed_is_no_verdict(place, tmp_path):
    record.add_verdict(place, verdict(State.FAIL))
    (file,) = tmp_path.rglob("verdicts/smoke/*.json")
    file.write_bytes(verdict(State.PASS).to_bytes())
    with pytest.raises(ObjectDiffersError, match="was expected"):
        record.verdicts(place, digest("b"))


def test_two_people_do_not_move_a_tag_at_once(place):
    record.add_move(place, move(0, "b"))
    with pytest.raises(StoreError, match="somebody else moved it"):
        record.add_move(place, move(0, "c"))
    assert record.moved_tags(place) == (move(0, "b"),)


def test_a_tag_goes_back_to_the_newest_image_of_another_set(place):
    for letter, manifest in (("b", "a"), ("c", "e"), ("d", "f"), ("e", "f")):
        record.put(place, image(letter, manifest), b"{}")
    for number, letter in enumerate("bcde"):
        record.add_move(place, move(number, letter))
    listed = {letter * 64 for letter in "aef"}
    found = publishing.withdrawal(place, "f" * 64, listed=listed)
    assert [(last.config, to.config) for last, to in found.moves] == [(digest("e"), digest("c"))]
    assert [item.config for item in found.images] == [digest("d"), digest("e")]
    assert not found.stuck


def test_a_tag_goes_back_to_no_set_that_was_taken_back_too(place):
    for letter, manifest in (("b", "a"), ("c", "e"), ("d", "f")):
        record.put(place, image(letter, manifest), b"{}")
    for number, letter in enumerate("bcd"):
        record.add_move(place, move(number, letter))
    found = publishing.withdrawal(place, "f" * 64, listed={"a" * 64, "f" * 64})
    assert [to.config for _, to in found.moves] == [digest("b")]


def test_a_tag_that_was_never_elsewhere_has_nowhere_to_go(place):
    record.put(place, image("b", "f"), b"{}")
    record.add_move(place, move(0, "b"))
    found = publishing.withdrawal(place, "f" * 64, listed={"f" * 64})
    assert not found.moves
    assert found.stuck == (move(0, "b"),)


def test_a_moving_tag_takes_no_image_of_a_staged_set(place):
    to = publishing.Registry(name="here", environ={})
    with pytest.raises(ConfigError, match="not released"):
        publishing.move(place, to, "latest", image("b", released=False), WHO)
    assert not record.moved_tags(place)


def test_growth_is_told_against_the_last_of_its_kind(place):
    assert publishing.trend(place, image("b")) == ""
    record.put(place, image("b", size=100), b"{}")
    assert publishing.trend(place, image("c", size=125)) == "+25.0 % against here/rocm/jax:b"
    monthly = changed(image("b", size=100), reference="here/rocm/jax:f", config=digest("f"),
                      base="ubuntu@sha256:new", time="2026-01-09")  # fmt: skip
    record.put(place, monthly, b"{}")
    assert publishing.trend(place, image("c", size=125)) == "+25.0 % against here/rocm/jax:f"
    other = changed(image("d", size=125), profile="devel")
    assert publishing.trend(place, other) == ""


def test_the_page_says_of_each_image_what_the_record_does_and_needs_nothing_else(place):
    record.put(place, image("b", size=3 << 20), b"{}")
    sha256 = record.add_verdict(place, verdict(State.PASS))
    odd = changed(image("c"), verdicts=(sha256,), by="<script>alert(1)</script>")
    record.put(place, odd, b"{}")
    record.add_move(place, move(0, "c"))
    record.add_move(place, changed(move(0, "c"), tag="nightly"))
    found = listing.listed(place)
    assert [item["tags"] for item in found] == [[], ["latest", "nightly"]]
    page = listing.page(found, title="Images", now=NOW).decode()
    for text in (
        f"docker pull here/rocm/jax@{digest('b')}", "3.0 MiB", "nightly", "a.whl", "a" * 64,
        found[0]["sbom"],
    ):  # fmt: skip
        assert text in page
    assert page.index("here/rocm/jax:c") < page.index("here/rocm/jax:b")
    assert "<script" not in page
    assert "http" not in page.replace(found[0]["sbom"], "").replace(found[1]["sbom"], "")
