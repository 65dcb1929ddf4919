"""What a night asks of its store: all it must, and nothing twice that cannot have changed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from support.shared import SharedShop, X, Y
from support.states import RECIPE, image_record, summary
from support.wheelset import FAMILY, NOW, WHO, Shop, make_set, pass_gate

from rocwheel.base.console import silent
from rocwheel.base.store.file import FileStore
from rocwheel.base.values import replace
from rocwheel.base.versions import timestamp
from rocwheel.cli import main
from rocwheel.image.recipe import ImagedSet
from rocwheel.night import image_record as record
from rocwheel.night import planning, truth
from rocwheel.night import settings as settings_file
from rocwheel.night.image_record import ImageRecord
from rocwheel.night.settings import ImageSettings
from rocwheel.records.manifest import BUILD_RECORD
from rocwheel.records.verdict import State
from rocwheel.release import retention
from rocwheel.release.ledger.nights import Begun, Book, Cell, Ended, NightPlan, Nights
from rocwheel.release.ledger.state import Action
from rocwheel.release.operations import Who

ROOT = Path(__file__).parents[2]
TOMORROW = NOW + timedelta(days=1)
OWN = replace(RECIPE, families=(FAMILY.name,), pythons=("3.11", "3.12"))
TWO = replace(RECIPE, families=(X.name, Y.name), pythons=("3.12",))


def input_of(channel, *families) -> planning.PlanInput:
    return planning.PlanInput(
        night="two", settings=settings_file.load(ROOT / "ci" / "nightly.yaml"), ci=ROOT / "ci",
        families={item.name: item for item in families}, channel=channel, target=(), by="me", now=NOW,
    )  # fmt: skip


class Nightly:
    """One family's set in a store, built and staged by an earlier night."""

    def __init__(self, folder: Path, **changes) -> None:
        self.shop = Shop((folder / "store").as_uri(), silent(), **changes)
        self.house = folder / "house"
        self.manifest = make_set(self.house)
        (self.house / BUILD_RECORD).write_bytes(b"{}\n")
        self.shop.stage(self.house)

    def release(self) -> None:
        pass_gate(self.shop.staging, self.manifest)
        self.shop.promote(self.manifest)

    def sum_up(self, before=None, *, now=NOW):
        plan = NightPlan(
            night="one", made=timestamp(NOW), by="me", tool="0", target=(), cells=(),
            recipes=(replace(OWN, manifest=self.manifest.sha256),),
        )  # fmt: skip
        book = Book(plan=plan, sha256="", attempts={}, orders=(), quarantined={})
        return truth._summary(
            book, {FAMILY.name: FAMILY}, self.shop.channel, self.shop.store, now=now, before=before
        )

    def setting(self, now, made_of=()) -> planning.PlanInput:
        return replace(input_of(self.shop.channel, FAMILY), now=now, images=made_of)

    def look(self, last, *, now=TOMORROW, made_of=()) -> planning.StoreContents:
        return planning.look(self.setting(now, made_of), [OWN], self.shop.store, last)


@pytest.fixture
def night(tmp_path):
    return Nightly(tmp_path)


@pytest.fixture
def asked(monkeypatch):
    """Every request from here on, by its key: what reads an object or asks about it ends in one."""
    keys: list[str] = []
    for name in ("stream", "keys"):
        real = getattr(FileStore, name)

        def seen(store, key, *rest, real=real):
            keys.append(key)
            return real(store, key, *rest)

        monkeypatch.setattr(FileStore, name, seen)
    return keys


def state_of(night: Nightly, seen: planning.StoreContents) -> str:
    return seen.sets[FAMILY.name, night.manifest.sha256].state


def test_what_happened_since_is_on_the_page(night):
    night.release()
    last = night.sum_up()
    assert last.families[0].green == night.manifest.sha256
    night.shop.change(Action.ROLLBACK, night.manifest)
    assert night.sum_up(last).families[0].green == ""


def test_released_sets_are_built_again_in_turn_and_so_many_a_week(night, tmp_path):
    night.release()
    other = make_set(tmp_path / "other", suffix="+rocm7.10.0.b")
    night.shop.stage(tmp_path / "other")
    last = night.sum_up()
    unreleased = replace(OWN, inputs="2" * 64, manifest=other.sha256)
    last = replace(last, builds=(*last.builds, unreleased))
    assert not night.look(last).again
    night.shop.channel = replace(night.shop.channel, rebuilds_a_week=1)
    assert night.look(last).again == ((FAMILY.name, last.builds[0]),), "the other is not released"
    pass_gate(night.shop.staging, other)
    night.shop.promote(other)
    built = []
    for day in range(22):
        now = NOW + timedelta(days=day)
        seen = night.look(last, now=now)
        plan = planning.plan(night.setting(now), [], [], seen)
        Nights(night.shop.store).add(replace(plan, night=f"day-{day}"))
        cells = [cell for cell in plan.cells if cell.kind == "rebuild"]
        built += [(day, cell.argv[2]) for cell in cells]
        assert all(cell in plan.cells[-1].settled for cell in (c.name for c in cells)), "the page"
    first, second = sorted((night.manifest.sha256, other.sha256))
    assert built == [(0, first), (7, second), (14, first), (21, second)]


def test_a_set_older_than_the_released_one_holds_nothing_up(night, tmp_path):
    for days, name in ((-1, "older"), (1, "younger")):
        house = tmp_path / name
        made = make_set(house, suffix=f"+{name}")
        (house / BUILD_RECORD).write_bytes(b"{}\n")
        night.shop.stage(house, replace(WHO, now=NOW + timedelta(days=days)))
        if days < 0:
            night.release()
        family = night.sum_up(now=TOMORROW + timedelta(days=1)).families[0]
        assert family.blocked_set == ("" if days < 0 else made.sha256)


def test_a_set_was_built_where_each_of_its_families_has_it_staged(night):
    """What is staged is what counts: the summary only says which set these inputs made."""
    night.release()
    last = night.sum_up()
    seen = night.look(last)
    assert seen.manifests == {OWN.inputs: night.manifest.sha256}
    assert state_of(night, seen) == "released"
    assert night.look(None).manifests == {}, "without a summary nobody knows it"
    took = truth.CellSummary(name="a", kind="gate", state=State.PASS, milliseconds=3_060_000)
    assert night.look(replace(last, cells=(took,))).seconds == {"a": 3060}
    other = replace(last.builds[0], manifest="f" * 64)  # built, and staged nowhere
    assert night.look(replace(last, builds=(other,))).manifests == {}


def test_what_a_night_built_that_left_no_page_is_known_to_the_next(night):
    nights = Nights(night.shop.store)
    build = Cell(name="build.jax", kind="build", argv=(), inputs=OWN.inputs)
    plan = NightPlan(
        night="one", made=timestamp(NOW), by="me", tool="0", target=(), cells=(build,),
        recipes=(OWN,),
    )  # fmt: skip
    nights.add(plan)
    said = {"cell": "build.jax", "plan": nights.plan("one")[1], "host": "h", "engine": "local"}
    nights.begin("one", Begun(token="t", time=timestamp(NOW), **said))
    ended = Ended(
        state=State.PASS, began=timestamp(NOW), time=timestamp(NOW), milliseconds=1,
        manifest=night.manifest.sha256, **said,
    )  # fmt: skip
    nights.end("one", 1, ended)
    last = truth.newest(nights, [].append)
    assert night.look(last).manifests == {OWN.inputs: night.manifest.sha256}


def test_what_another_set_was_built_as_is_remembered_beside_this_nights(night):
    last = night.sum_up()
    other = replace(last.builds[0], name="other", inputs="2" * 64)
    again = night.sum_up(replace(last, builds=(other, *last.builds)))
    assert {item.name for item in again.builds} == {"jax", "other"}


# --- runtime images ------------------------------------------------------------------------------


def wanted_images() -> tuple[record.NightImage, ...]:
    entry = ImageSettings(name="jax", recipe="jax", push="here.io")
    base = settings_file.load(ROOT / "ci" / "nightly.yaml")
    settings = replace(base, images=(entry,))
    return record.of_night(settings, ROOT / "ci", (FAMILY.name,))


def pushed(night: Nightly, **changes) -> ImageRecord:
    """The record that `runtime_images --push here.io` leaves of that set."""
    own = {"manifest": night.manifest.sha256, "config": f"sha256:{'2' * 64}", **changes}
    made = image_record(**own)
    record.put(night.shop.release, made)
    return made


def images_of(night: Nightly, made_of) -> Mapping[tuple[str, str], str]:
    seen = night.look(night.sum_up(), made_of=made_of)
    return seen.sets[FAMILY.name, night.manifest.sha256].images


def test_an_image_is_there_once_its_record_names_that_very_set(night):
    night.release()
    assert not images_of(night, wanted_images())
    other = "rocm7.10.0-jax0.9.1-py3.12"
    pushed(night, manifest="f" * 64, config=f"sha256:{'6' * 64}")
    pushed(night, reference=f"there.io/rocm/jax:{other}", config=f"sha256:{'7' * 64}")
    assert not images_of(night, wanted_images()), "another set's, and another registry's"
    made = pushed(night)
    where = f"here.io/rocm/jax:{other}@{made.digest}"
    assert images_of(night, wanted_images()) == {("jax", "3.12"): where}


def test_images_are_asked_for_only_of_a_released_set_and_read_only_by_their_name(night, asked):
    last = night.sum_up()
    asked.clear()
    night.look(last, made_of=wanted_images())
    assert not [key for key in asked if "/images/" in key]
    night.release()
    pushed(night, reference="here.io/rocm/jax:of-another-day", config=f"sha256:{'6' * 64}")
    pushed(night)
    last = night.sum_up()
    asked.clear()
    night.look(last, made_of=wanted_images())
    folder = night.shop.release.images()
    name = "here.io_rocm_jax_rocm7.10.0-jax0.9.1-py3.12"
    assert list(dict.fromkeys(key for key in asked if key.startswith(folder))) == [
        folder, f"{folder}{'2' * 64}/{name}/record.json",
    ]  # fmt: skip


def test_the_plan_looks_for_the_very_name_that_the_command_pushes_to(night, capsys):
    night.release()
    status = main(
        ["runtime_images", "--store", night.shop.store.url, "--family", FAMILY.name, "--manifest",
         night.manifest.sha256, "--python", "3.12", "--dry-run"]
    )  # fmt: skip
    said = capsys.readouterr()
    assert status == 0, said.err
    (image,) = wanted_images()
    found = night.look(night.sum_up()).sets[FAMILY.name, night.manifest.sha256]
    assert found.state == "released"
    wheels = ImagedSet(set_id=night.manifest.sha256, jax="0.9.1", rocm="7.10.0", family=FAMILY.name)
    reference = image.reference(wheels, "3.12").removeprefix("here.io/")
    assert f"image: {reference}" in said.out.splitlines()


# --- one set for several families ----------------------------------------------------------------


class OneSet:
    """A set for two families in a store, of which one has passed and released it."""

    def __init__(self, folder) -> None:
        self.shop = SharedShop((folder / "store").as_uri(), silent())
        self.manifest = self.shop.made(folder / "house", X, Y, pythons=("3.12",))
        (folder / "house" / BUILD_RECORD).write_bytes(b"{}\n")
        self.shop.gate(self.manifest, X)
        self.shop.release_for(self.manifest)
        self.setting = input_of(self.shop.channel, X, Y)

    def plan(self):
        built = replace(TWO, manifest=self.manifest.sha256)
        last = replace(summary(0, families=1), builds=(built,))
        seen = planning.look(self.setting, [TWO], self.shop.store, last)
        return seen, planning.plan(self.setting, [TWO], [], seen)


@pytest.fixture
def one(tmp_path):
    return OneSet(tmp_path)


def test_a_family_that_has_it_is_left_alone_and_the_other_goes_on(one):
    seen, plan = one.plan()
    states = {name: seen.sets[name, one.manifest.sha256].state for name in TWO.families}
    assert states == {X.name: "released", Y.name: "staged"}
    runs = [cell.name for cell in plan.cells if cell.is_to_run]
    assert not [name for name in runs if name.startswith("build")]
    assert {plan.cell(name).family for name in runs if name.startswith("promote")} == {Y.name}
    one.shop.gate(one.manifest, Y)
    seen, _ = one.plan()
    assert seen.sets[Y.name, one.manifest.sha256].state == "gated"
    one.shop.release_for(one.manifest)
    one.shop.take(Action.ROLLBACK, one.manifest, X)
    seen, plan = one.plan()
    assert seen.sets[X.name, one.manifest.sha256].state == "rolled back"
    assert seen.sets[Y.name, one.manifest.sha256].state == "released"
    assert {c.kind for c in plan.cells if c.is_to_run} == {"prune", "page"}


def test_the_summary_says_of_each_family_what_its_users_have(one):
    plan = NightPlan(
        night="one", made=timestamp(NOW), by="me", tool="0", target=(), cells=(),
        recipes=(replace(TWO, manifest=one.manifest.sha256),),
    )  # fmt: skip
    book = Book(plan=plan, sha256="", attempts={}, orders=(), quarantined={})
    made = truth._summary(
        book, one.setting.families, one.shop.channel, one.shop.store, now=NOW, before=None
    )
    green, held = made.families
    assert (green.family, green.green, green.blocked) == (X.name, one.manifest.sha256, "")
    assert green.install.index.endswith(f"/v2/{X.name}/")
    assert (held.family, held.green, held.blocked_set) == (Y.name, "", one.manifest.sha256)
    assert "not-run" in held.blocked


def test_what_is_for_several_families_is_pruned_once_for_all(one):
    store = one.shop.store
    who = Who(by="me", now=datetime.now(tz=timezone.utc))  # the store's clock is this one
    pairs = [pair for name in (X.name, Y.name) for pair in one.shop.channel.pairs(store, name)]
    sets = retention.plans(pairs, one.shop.channel, who=who, orphans=False)
    places = [plan.place for plan in sets]
    roots = [place.root for place in places]
    assert len(roots) == len(set(roots))
    assert set(roots) == {"v2", "v2-staging"}


def test_an_image_is_made_for_a_family_that_has_the_set_and_refused_for_others(one, capsys):
    words = [
        "runtime_images", "--dry-run", f"--manifest={one.manifest.sha256}", "--python=3.12",
        f"--store={one.shop.store.url}",
    ]  # fmt: skip
    assert main([*words, f"--family={X.name}"]) == 0
    assert f"set: {one.manifest.sha256[:12]}" in capsys.readouterr().out
    for family, problem in (
        (Y.name, "not released"),
        ("gfx950-dcgpu", f"gfx950-dcgpu: the set is for {Y.name}, {X.name}"),
    ):
        assert main([*words, f"--family={family}"]) == 3
        said = capsys.readouterr().err
        assert problem in said
        assert said.count("error:") == 1
