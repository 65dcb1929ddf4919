"""The real code under forced interleavings of every pair of operations, at every storage request.

One operation is stopped before its k-th request (and stands still, is killed, is answered with an
error after its write was carried out, or has its write carried out later), another runs, the first
goes on. At every instant no plugin is listed without its pjrt and jaxlib, and what is listed is
there with its hash; afterwards reports are true, pages show the log, and `index repair` finds nothing
left to do. Of two families and `all` on one log holds beside that (docs/release-protocol.md, "Several
indexes of one log"): an index shows a set only after an entry that made it pass for it. This is a
seeded spread (`ROCWHEEL_SEED`); tests/campaign.py plays all of them.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
from contextlib import ExitStack

import pytest
from model.protocol import RULES
from model.test_protocol import OF_SHARED
from support.s3 import BUCKET
from support.scene import (
    JAXLIB,
    STOPS,
    Schedule,
    SharedWorlds,
    Worlds,
    play,
    shuffled,
    unwaiting,
)
from support.shared import X, Y
from support.tiers import merge_tries

from rocwheel.base.choices import ALL
from rocwheel.base.errors import PromotionError, RocwheelError, StoreError
from rocwheel.base.values import replace
from rocwheel.release import operations, retention
from rocwheel.release.index import page, publish
from rocwheel.release.index.page import Page
from rocwheel.release.ledger import log, state
from rocwheel.release.ledger.state import Action, Known, Standing

pytestmark = pytest.mark.integration

SEED = int(os.environ.get("ROCWHEEL_SEED", "20261121"))
FILES, OBJECTS, CHANCE, HARMED = 200, 12, 50, 60  # schedules of the whole spread
KINDS = {"one family": Worlds, "several": SharedWorlds}


@pytest.fixture(scope="module")
def every():
    with ExitStack() as stack:
        yield {name: stack.enter_context(unwaiting(kind)) for name, kind in KINDS.items()}


@pytest.fixture
def worlds(every, request):
    """Start states of one family, or of the kind that a test is given."""
    return every[getattr(request, "param", "one family")]


each_kind = pytest.mark.parametrize("worlds", KINDS, indirect=True)


def spread(worlds, number: int) -> list[Schedule]:
    return random.Random(SEED).sample(list(worlds.schedules()), number)


@pytest.mark.slow
@each_kind
@pytest.mark.parametrize("number", merge_tries(22, of=[22, FILES]))
def test_pairs_of_operations_hold_wherever_one_is_stopped(worlds, number: int) -> None:
    for schedule in spread(worlds, number):
        play(worlds.on_files(schedule.start), schedule)


@pytest.mark.slow
@each_kind
@pytest.mark.parametrize("number", merge_tries(8, of=[8, CHANCE]))
def test_three_operations_at_once_hold_in_orders_of_chance(worlds, number: int) -> None:
    dice = random.Random(SEED)
    for _ in range(number):
        shuffled(worlds, dice.randrange(1 << 30))


@pytest.mark.slow
@pytest.mark.parametrize("number", merge_tries(2, of=[2, OBJECTS]))
def test_pairs_hold_on_object_storage_too(worlds, servers, monkeypatch, number: int) -> None:
    server = servers["seaweedfs"]
    for key, value in server.environ().items():
        monkeypatch.setenv(key, value)
    for schedule in spread(worlds, number):
        play(worlds.on_objects(server.client(), BUCKET, schedule.start), schedule)


# Without any one of its rules the code fails


def unsettled(patch) -> None:
    patch.setattr(operations, "complete", lambda _place, state, _views=None: state)


def two_directions(patch) -> None:
    bring = state._CHANGES[Action.PROMOTE]

    def change(now, entry):
        after = bring(now, entry)
        out = {
            name: replace(known, families=dict.fromkeys(known.families, Standing.HELD))
            for name, known in now.sets.items()
            if name not in entry.sets
        }
        return replace(after, sets={**after.sets, **out})

    patch.setitem(state._CHANGES, Action.PROMOTE, change)


def plugins_first(patch) -> None:
    patch.setattr(publish, "rank", lambda project: int(not project.endswith("-plugin")))


def always_adding(patch) -> None:
    settle = publish.settle
    patch.setattr(
        operations,
        "settle",
        lambda place, pages, **how: settle(place, pages, **{**how, "removing": False}),
    )


def no_mark(patch) -> None:
    for name in ("to_html", "to_json"):
        render = getattr(Page, name)

        def same(self, *, render=render, **options):
            return render(replace(self, number=1), **options)

        patch.setattr(Page, name, same)


def over_newer(patch) -> None:
    mark = publish.mark
    patch.setattr(publish, "mark", lambda *args: None if mark(*args) is None else 0)


def deletes_empty_pages(patch) -> None:
    put = publish._put

    def change(place, seen):
        ends, form = put(place, seen), seen.form
        data = form.render(form.number)
        if seen.is_behind and form.key.count("/") > 2 and b".whl" not in data:
            place.store.delete(form.key)
        return ends

    patch.setattr(publish, "_put", change)


def errors_are_losses(patch) -> None:
    def commit(place, entry):
        body = entry.to_bytes()
        try:
            place.store.create(place.log(entry.number), body, headers=place.record_headers)
        except StoreError as exc:
            raise PromotionError(f"refused: {exc}", hint="made up") from exc
        return hashlib.sha256(body).hexdigest()

    patch.setattr(log, "commit", commit)


def delete(place, paths) -> None:
    for path in paths:
        place.store.delete(place.key(path))


def deletes_first(patch) -> None:
    def prepare(self, now, entry):
        for paths in self.leaving(now).values():
            delete(self.place, paths)
        return entry

    patch.setattr(retention.Prune, "prepare", prepare)


def deletes_unsettled(patch) -> None:
    repair = operations.show

    def change(place, now, **how):
        delete(place, now.spent_paths())
        return repair(place, now, **how)

    patch.setattr(operations, "show", change)


def names_come_back(patch) -> None:
    patch.setattr(state.IndexState, "check_names", lambda *_args, **_options: None)


def rolled_back_lets_go(patch) -> None:
    prune = state._CHANGES[Action.PRUNE]

    def change(now, entry):
        listed = {name for name, known in now.sets.items() if known.standing is Standing.LISTED}
        listings = {
            project: replace(
                listing,
                files=tuple(
                    replace(file, sets=tuple(s for s in file.sets if s in listed))
                    for file in listing.files
                ),
            )
            for project, listing in now.listings.items()
        }
        return prune(replace(now, listings=listings), entry)

    patch.setitem(state._CHANGES, Action.PRUNE, change)


def saves_first(patch) -> None:
    repair = operations.show

    def change(place, now, **how):
        log.save(place, now)
        return repair(place, now, **how)

    patch.setattr(operations, "show", change)


def snapshot_is_the_head(patch) -> None:
    folded = log._folded

    def change(place, now, **how):
        return now if now.saved else folded(place, now, **how)

    patch.setattr(log, "_folded", change)


def any_snapshot(patch) -> None:
    patch.setattr(log, "_has", lambda *_: True)


def any_mark(patch) -> None:
    patch.setattr(publish, "_checked_ahead", lambda _place, _forms, seen, _end, **_how: seen)


def lost_end(scene) -> None:
    """The log lost its last entry."""
    place = scene.shop.release
    scene.shop.store.delete(place.log(len(scene.shop.entries(place))))


def ahead(scene) -> None:
    """Somebody put pages there with the lists they have, and marks above the log."""
    place, store = scene.shop.release, scene.shop.store
    for key in (place.json(JAXLIB), *place.views(JAXLIB, folder_keys=False)):
        data, info = store.read(key)
        number = str(page.mark(data)).encode()
        for before in (b'rocwheel-entry":', b'rocwheel-entry" content="'):
            data = data.replace(before + number, before + b"9")
        assert page.mark(data) == 9
        store.replace(key, data, previous=info, headers=place.view_headers)


def listed_by_any(view: str):
    """Let an index list what any family lists."""

    def change(patch) -> None:
        of = Known.of

        def any_of(self, asked: str):
            is_meant = (asked == ALL) == (view == ALL) and (self.must or asked != ALL)
            if not is_meant:
                return of(self, asked)
            return replace(self, families={asked: self.standing})

        patch.setattr(Known, "of", any_of)

    return change


def must_of_the_last(patch) -> None:
    bring = state._CHANGES[Action.PROMOTE]

    def change(now, entry):
        after = bring(now, entry)
        if not entry.sets:
            return after
        sets = {name: replace(after.sets[name], must=(X.name, Y.name, "z")) for name in entry.sets}
        return replace(after, sets={**after.sets, **sets})

    patch.setitem(state._CHANGES, Action.PROMOTE, change)


def all_is_left_out(patch) -> None:
    concerned = operations.concerned

    def change(now, entry):
        return concerned(now, entry) - {ALL}

    patch.setattr(operations, "concerned", change)
    patch.setattr(state, "concerned", change)


def prunes_for_one(patch) -> None:
    prune = state._CHANGES[Action.PRUNE]

    def change(now, entry):
        after = prune(now, entry)
        sets = dict(after.sets)
        for name in entry.sets:
            kept = {**sets[name].families, Y.name: Standing.LISTED}
            sets[name] = replace(sets[name], families=kept, standing=Standing.LISTED)
        listings = {
            name: replace(listing, spent=after.listings[name].spent)
            for name, listing in now.listings.items()
        }
        return replace(after, sets=sets, listings=listings)

    patch.setitem(state._CHANGES, Action.PRUNE, change)


def all_lists_the_alone(patch) -> None:
    of, views = Known.of, Known.views

    def any_of(self, asked: str):
        return of(self if self.must else replace(self, must=(*self.families,)), asked)

    patch.setattr(Known, "of", any_of)
    patch.setattr(Known, "views", property(lambda self: (*views.fget(self), ALL)))


# What somebody did to a start before operations are played on it.
HARMS = {
    "a snapshot is proven": (lost_end, "A rolled back", ("restore A", "prune A", "promote B")),
    "a mark has its entry": (ahead, "A", ("promote B", "rollback A", "prune A")),
}

MUTANTS = {
    "settle before commit": (unsettled, "A", "promote B", "rollback A"),
    "one direction": (two_directions, "A", "promote C", "repair"),
    "order of projects": (plugins_first, "staged", "promote A", "promote B"),
    "order when removing": (always_adding, "A", "rollback A", "repair"),
    "mark in the bytes": (no_mark, "A", "promote B", "rollback A"),
    "never over a newer mark": (over_newer, "A", "promote B", "rollback A"),
    "keep empty pages": (deletes_empty_pages, "A", "rollback A", "repair"),
    "the id decides": (errors_are_losses, "A", "rollback A", "repair"),
    "mark before delete": (deletes_first, "A", "prune A", "repair"),
    "delete when settled": (deletes_unsettled, "A", "prune A", "repair"),
    "spent for ever": (names_come_back, "A", "prune A", "promote B"),
    "rolled back holds": (rolled_back_lets_go, "A rolled back, B", "prune B", "repair"),
    "a snapshot is shown": (saves_first, "A", "rollback A", "promote B"),
    "the record is the commit": (snapshot_is_the_head, "A", "rollback A", "promote B"),
    "a snapshot is proven": (any_snapshot, "A rolled back", "restore A", "repair"),
    "a mark has its entry": (any_mark, "A", "promote B", "repair"),
    "a family lists its own": (listed_by_any("x"), "A of x", "promote B y", "repair"),
    "all waits for each that must": (listed_by_any(ALL), "staged", "promote A x", "promote A y"),
    "must is fixed": (must_of_the_last, "A of x, which leads", "promote A y", "repair"),
    "all is touched": (all_is_left_out, "A", "rollback A x", "rollback A y"),
    "a prune is of all families": (prunes_for_one, "A", "prune A", "yank A"),
    "all lists sets for several": (all_lists_the_alone, "nothing", "promote O x", "repair"),
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", MUTANTS)
def test_without_the_rule_the_code_fails(every, rule: str) -> None:
    change, start, first, second = MUTANTS[rule]
    worlds = every["several" if rule in OF_SHARED else "one family"]
    total = len(worlds.length(start, first))
    with pytest.MonkeyPatch.context() as patch:
        change(patch)
        # From the end: what a rule is about comes late in an operation.
        for stop, at in itertools.product(STOPS, range(total, -1, -1)):
            scene = worlds.on_files(start)
            if rule in HARMS:
                HARMS[rule][0](scene)
                scene.is_harmed = True
            try:
                play(scene, Schedule(start, first, second, at, stop))
            except AssertionError as exc:
                if isinstance(exc.__cause__, (AssertionError, RocwheelError)):
                    return  # something does not hold, and not for a mistake in the mutant
                raise
    raise AssertionError(f"the code holds without the rule: {rule}")


@pytest.mark.slow
@pytest.mark.parametrize("rule", HARMS)
@pytest.mark.parametrize("number", merge_tries(20, of=[20, HARMED]))
def test_beside_a_repair_operations_hold_on_what_somebody_damaged(
    worlds, rule: str, number: int
) -> None:
    """One is stopped before some request, the other runs, the first goes on; both ways."""
    harm, start, names = HARMS[rule]
    pairs = [pair for name in names for pair in ((name, "repair"), ("repair", name))]
    schedules = [
        Schedule(start, first, second, at, stop)
        for first, second in pairs
        # Of the same on what nobody damaged; where it makes fewer here, it is over at the later ones.
        for at in range(len(worlds.length(start, first)) + 1)
        for stop in ("stand", "kill", "lost")
    ]
    for schedule in random.Random(SEED).sample(schedules, number):
        scene = worlds.on_files(start)
        harm(scene)
        scene.is_harmed = True
        play(scene, schedule)


def test_every_rule_of_the_model_that_the_code_keeps_has_a_mutant_of_the_code() -> None:
    waits = {rule for rule in RULES if rule.startswith("wait")}  # test_caches.py
    assert MUTANTS.keys() == RULES.keys() - waits
