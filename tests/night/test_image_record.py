"""Records and verdicts in a store: written once, and read back as they were."""

from __future__ import annotations

import pytest
from support.states import image_record
from support.wheelset import make_set, make_verdict

from rocwheel.base.errors import ObjectDiffersError
from rocwheel.base.store.file import FileStore
from rocwheel.base.values import replace
from rocwheel.night import image_record as record
from rocwheel.night.image_record import ImageVerdict
from rocwheel.records.places import Place
from rocwheel.records.verdict import State


@pytest.fixture
def place(tmp_path):
    return Place(store=FileStore(tmp_path), root="v2", family="gfx94X-dcgpu")


def digest(letter: str) -> str:
    return f"sha256:{letter * 64}"


def image(letter: str, **changes: object):
    made = {name: digest(letter) for name in ("digest", "config")}
    time = f"2026-01-0{ord(letter) - 96}T00:00:00+00:00"
    return image_record(**made, reference=f"here/rocm/jax:{letter}", time=time, **changes)


@pytest.fixture(scope="module")
def verdict(tmp_path_factory):
    """What makes the verdict of `smoke` on an image."""
    manifest = make_set(tmp_path_factory.mktemp("set"))

    def make(state: State, config: str = "b") -> ImageVerdict:
        return ImageVerdict(image=digest(config), verdict=make_verdict(manifest, state=state))

    return make


def test_a_record_comes_back_as_it_was_and_is_never_overwritten(place):
    record.put(place, image("b"))
    record.put(place, image("b"))
    assert record.records(place) == (image("b"),)
    with pytest.raises(ObjectDiffersError):
        record.put(place, replace(image("b"), by="eve"))


def test_an_image_may_lie_in_two_registries(place):
    mirror = replace(image("b"), reference="there/rocm/jax:b", digest=digest("7"))
    record.put(place, image("b"))
    record.put(place, mirror)
    assert record.records(place) == (image("b"), mirror)


def test_records_are_listed_the_oldest_first(place):
    for letter in "dbc":
        record.put(place, image(letter))
    assert [item.reference[-1] for item in record.records(place)] == ["b", "c", "d"]


def test_a_push_needs_a_pass_of_each_suite_and_no_failure(place, verdict):
    assert list(record.refusals({}, ("smoke",))) == ["smoke: never ran in this image"]
    record.add_verdict(place, verdict(State.PASS))
    found = record.verdicts(place, digest("b"))
    assert not list(record.refusals(found, ("smoke",)))
    record.add_verdict(place, verdict(State.CRASH))
    found = record.verdicts(place, digest("b"))
    assert list(record.refusals(found, ("smoke",))) == ["smoke: crash"]


def test_a_verdict_on_another_image_says_nothing_of_this_one(place, verdict):
    record.add_verdict(place, verdict(State.PASS, config="c"))
    assert not record.verdicts(place, digest("b"))


def test_a_verdict_that_was_changed_is_no_verdict(place, verdict, tmp_path):
    record.add_verdict(place, verdict(State.FAIL))
    (file,) = tmp_path.rglob("verdicts/smoke/*.json")
    file.write_bytes(verdict(State.PASS).to_bytes())
    with pytest.raises(ObjectDiffersError, match="was expected"):
        record.verdicts(place, digest("b"))


def test_a_list_has_what_a_user_pulls_and_where_its_set_stands(place):
    made = image("b", layers={"base": 3 << 20}, blobs=((digest("1"), 5),), packages={"a": "2" * 64})
    record.put(place, made)
    (shown,) = record.listed(place)
    assert shown["pull"] == f"here/rocm/jax@{digest('b')}"
    assert (shown["size"], shown["download"], shown["state"]) == (3 << 20, 5, "")
    assert shown["packages"] == {"a": "2" * 64}
