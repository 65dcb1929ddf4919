"""The whole way of a wheel set through real stores: staged, gated, released, withdrawn, pruned."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import sys
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from support.mutants import Draft
from support.s3 import BUCKET, READER, READER_SECRET
from support.schedule import REQUESTS, Counted
from support.serving import serving
from support.tiers import merge_tries
from support.wheelset import (
    FAMILY,
    NOW,
    WHO,
    Shop,
    make_set,
    make_verdict,
    make_wheel,
    pass_gate,
    wheel_key,
)

import amdgpu_family_matrix as matrix
from rocwheel.base import files
from rocwheel.base.errors import (
    ObjectDiffersError,
    ObjectMissingError,
    PromotionError,
    StoreError,
    WheelError,
)
from rocwheel.base.parallel import each
from rocwheel.base.store.file import FileStore
from rocwheel.base.values import replace
from rocwheel.base.versions import WheelKind
from rocwheel.cli import main
from rocwheel.cli.app import App
from rocwheel.records.manifest import MANIFEST
from rocwheel.records.verdict import State
from rocwheel.release import audit, operations, promote, stage, status, withdraw
from rocwheel.release.index.channels import Retention
from rocwheel.release.index.page import links
from rocwheel.release.index.serve import Site
from rocwheel.release.ledger import log, verdicts
from rocwheel.release.ledger.state import Action
from rocwheel.release.trust.statements import Approval
from rocwheel.wheel.zip_reader import ZipArchive

pytestmark = pytest.mark.integration

GOLDEN = Path(__file__).parents[1] / "data" / "release_layout.txt"
PROJECTS = ("jax-rocm7-pjrt", "jaxlib", "jax-rocm7-plugin")


def open_shop(name, servers, tmp_path, monkeypatch, console, **changes) -> Shop:
    if name == "file":
        return Shop((tmp_path / "store").as_uri(), console, **changes)
    for key, value in servers[name].environ().items():
        monkeypatch.setenv(key, value)
    return Shop(servers.fresh_url(name), console, **changes)


@pytest.fixture(params=merge_tries("file", of=["file", "seaweedfs"]))
def shop_twice(request, servers, tmp_path, monkeypatch, console) -> Shop:
    return open_shop(request.param, servers, tmp_path, monkeypatch, console)


@pytest.fixture(params=merge_tries("file", "seaweedfs", of=["file", "moto", "seaweedfs"]))
def any_shop(request, servers, tmp_path, monkeypatch, console) -> Shop:
    return open_shop(request.param, servers, tmp_path, monkeypatch, console)


def files_of(place) -> set[str]:
    """What an installer sees at a place."""
    found = set()
    if place.store.info(place.json("")) is None:
        return found
    for project in (
        item["name"] for item in json.loads(place.store.read(place.json(""))[0])["projects"]
    ):
        for key in place.views(project, folder_keys=place.store.abilities().folder_keys):
            found |= {link.filename for link in links(place.store.read(key)[0])}
    return found


def files_below(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def built(manifest) -> set[str]:
    return {wheel.filename for wheel in manifest.built}


# The way of a set


def test_a_set_is_staged_gated_and_released_byte_for_byte(any_shop, tmp_path) -> None:
    shop = any_shop
    manifest = make_set(tmp_path / "wh", upstream_jaxlib=True)
    plan = shop.stage(tmp_path / "wh")
    assert not plan.is_done
    assert files_of(shop.staging) == built(manifest)
    assert files_of(shop.release) == set()
    pass_gate(shop.staging, manifest)
    moved = shop.promote(manifest)
    assert (moved == 0) == (not (shop.store.abilities().copy_lacks))
    assert files_of(shop.release) == built(manifest)
    for wheel in manifest.built:
        data, _ = shop.store.read(wheel_key(shop.release, wheel.filename))
        assert data == (tmp_path / "wh" / wheel.filename).read_bytes()
        metadata, _ = shop.store.read(f"{wheel_key(shop.release, wheel.filename)}.metadata")
        assert metadata.startswith(b"Metadata-Version: 2.4")
    assert audit.check(shop.staging).problems == ()
    assert audit.check(shop.release).problems == ()


def test_wheels_are_carried_only_where_a_store_cannot_copy_and_that_is_a_warning(
    any_shop, tmp_path, console, talk
) -> None:
    """Stage and promote are processes of their own: the promoter probes a used bucket."""
    manifest = any_shop.gated(tmp_path / "wh", pythons=("3.12",))
    later = Shop(any_shop.store.url, console)
    moved = later.promote(manifest)
    warned = "warning: " in talk.getvalue() and "cannot be proven (it lacks" in talk.getvalue()
    can_copy = not later.store.abilities().copy_lacks
    assert (moved == 0, warned) == (can_copy, not can_copy)


def test_doing_it_again_is_nothing_to_do(shop_twice, tmp_path) -> None:
    shop = shop_twice
    manifest = shop.released(tmp_path / "wh")
    before = shop.listing(shop.release), shop.listing(shop.staging)
    assert shop.staging_plan(tmp_path / "wh").is_done
    assert shop.plan(manifest).state == "nothing-to-do"
    shop.stage(tmp_path / "wh")
    shop.promote(manifest)
    assert (shop.listing(shop.release), shop.listing(shop.staging)) == before


def test_the_layout_of_a_store_is_what_the_documentation_promises(
    servers,
    tmp_path,
    monkeypatch,
    console,
) -> None:
    shop = open_shop("moto", servers, tmp_path, monkeypatch, console)
    manifest = shop.released(tmp_path / "wh", pythons=("3.12",))
    keys = [
        re.sub(r"[0-9a-f]{64}", "<sha256>", item.key.replace(manifest.sha256, "<manifest>"))
        for item in shop.store.keys("")
    ]
    keys = [re.sub(r"/files/[0-9a-f]{16}/", "/files/<digits>/", key) for key in keys]
    text = "\n".join(sorted(keys)) + "\n"
    assert text == GOLDEN.read_text(), "if this change is meant, write it to docs/layout.md too"


def test_the_release_record_says_what_allowed_it(shop, tmp_path) -> None:
    manifest = shop.released(tmp_path / "wh")
    record = shop.entry(shop.release, Action.PROMOTE)
    assert (record.by, record.time) == ("tester", "2026-05-01T12:00:00Z")
    cells = record.evidence["families"][FAMILY.name]["cells"]
    assert {(c["suite"], c["python"], c["state"]) for c in cells if c["level"] == "required"} == {
        (suite, python, "pass") for suite in ("smoke", "unit") for python in ("3.11", "3.12")
    }
    kept = verdicts.find(shop.release, manifest.sha256)
    assert {item.sha256 for item in kept} == {c["sha256"] for c in cells if c["sha256"]}


# R1, R2: what blocks changes nothing


@pytest.mark.parametrize(
    "spoil", ["missing", "failing", "timed out", "unreadable", "of other bytes", "cpu"]
)
def test_a_blocked_promotion_leaves_the_release_as_it_was(shop_twice, tmp_path, spoil: str) -> None:
    shop = shop_twice
    shop.released(tmp_path / "old", suffix="+rocm7.9.0", rocm="7.9.0")
    before = shop.listing(shop.release)
    manifest = shop.staged(tmp_path / "wh")
    pass_gate(shop.staging, manifest, suites=("smoke",))
    for python in manifest.pythons:
        verdict = make_verdict(manifest, suite="unit", python=python)
        if spoil == "failing":
            verdict = replace(verdict, state=State.FAIL, reason="a test failed")
        elif spoil == "timed out":
            verdict = replace(verdict, state=State.TIMEOUT, reason="no end")
        elif spoil == "of other bytes":
            verdict = replace(verdict, wheels=dict.fromkeys(verdict.wheels, "0" * 64))
        elif spoil == "cpu":
            verdict = replace(verdict, backend="cpu")
        if spoil == "unreadable":
            key = shop.staging.verdict(manifest.sha256, python, "unit", "f" * 64)
            shop.store.create(key, b"{", headers=shop.staging.record_headers)
        elif spoil != "missing":
            verdicts.add(shop.staging, verdict)
    plan = shop.plan(manifest)
    assert plan.state == "blocked"
    assert {(cell.suite, cell.python) for cell in plan.judged[0].decision.blocking} == {
        ("unit", "3.11"),
        ("unit", "3.12"),
    }
    with pytest.raises(PromotionError, match=r"unit on CPython 3\.11 is"):
        shop.promote(manifest)
    assert shop.listing(shop.release) == before


def test_an_approval_for_a_cell_that_is_not_flaky_is_refused(shop, tmp_path) -> None:
    manifest = shop.gated(tmp_path / "wh")
    for suite in ("smoke", "smok"):
        approval = Approval(suite=suite, python="3.12", by="ann", reason="x")
        with pytest.raises(PromotionError, match=f"--approve {suite}:3.12"):
            shop.plan(manifest, approvals=(approval,))


def test_what_was_not_staged_is_not_promoted(shop, tmp_path) -> None:
    manifest = make_set(tmp_path / "wh")
    with pytest.raises(PromotionError, match="is not staged") as caught:
        shop.plan(manifest)
    assert caught.value.hint.startswith("stage")


def test_status_names_the_cell_that_blocks_and_old_sets_are_listed(shop, tmp_path) -> None:
    released = shop.released(tmp_path / "a", suffix="+rocm7.9.0", rocm="7.9.0")
    waiting = shop.staged(tmp_path / "b")
    verdicts.add(shop.staging, make_verdict(waiting, state=State.CRASH))
    now = NOW + timedelta(hours=30)
    found = shop.status(now)
    by_set = {item.set_id: item for item in found.sets}
    assert by_set[released.sha256].state == "released"
    item = by_set[waiting.sha256]
    assert (item.state, item.first.first) == ("staged", "2026-05-01T12:00:00Z")
    assert item.blocked_by.startswith("smoke on 3.11: not-run: no verdict (+3)")
    assert [s.set_id for s in status.waiting(found.sets, hours=24)] == [waiting.sha256]
    assert status.waiting(found.sets, hours=31) == []
    pass_gate(shop.staging, waiting)  # flaky now: after a crash
    approved = shop.gated(tmp_path / "c", jax="0.9.2")
    found = shop.status(now)
    states = {item.set_id: item.state for item in found.sets}
    assert (states[waiting.sha256], states[approved.sha256]) == ("staged", "gated")
    few = shop.status(now, look=0)
    assert {item.blocked_by for item in few.sets if item.state == "staged"} == {status.NOT_LOOKED}
    assert {s.set_id for s in status.waiting(found.sets, hours=24)} == {
        waiting.sha256,
        approved.sha256,
    }


def test_commands_ask_as_much_however_many_sets_were_released(tmp_path, shop, monkeypatch) -> None:
    """`promote` asked for 1,412 at 439 sets, and for four times as much beside others."""
    asked: list[str] = []
    inner = threading.local()

    def counting(name: str):
        plain = getattr(FileStore, name)

        def request(self, *args, **options):
            if is_outer := not getattr(inner, "is_running", False):
                asked.append(name)
            inner.is_running = True
            try:
                return plain(self, *args, **options)
            finally:
                inner.is_running = not is_outer

        return request

    for name in REQUESTS:
        monkeypatch.setattr(FileStore, name, counting(name))

    def gated(number: int):
        return shop.gated(tmp_path / str(number), jax=f"0.9.{number}", pythons=("3.12",))

    def cost(*line: str) -> int:
        asked.clear()
        assert main([*line, "--family", FAMILY.name, "--store", shop.store.url]) == 0
        return len(asked)

    costs = [cost("promote", "--manifest", gated(n).sha256, f"--night={n}") for n in range(9)]
    assert costs == [89, *[88] * 8], "the first makes the pages, the others read one set before"
    assert cost("status") == 9
    assert cost("index", "check") == len(costs) + 25, "one for each entry, whatever was released"
    assert cost("prune", "--dry-run") == 2 * len(costs) + 8, "what deletes believes no snapshot"
    page = shop.store.read(shop.release.compat)[0].decode()
    assert page.count("smoke, unit") == 9
    more = [gated(10)]
    assert [cost("status", f"--look={look}") for look in (0, 1)] == [9, 9 + 2 + 2 + 3]
    more += [gated(number) for number in range(11, 16)]
    asked.clear()
    each(shop.promote, more, threads=6)
    assert len(asked) <= 2 * 6 * costs[-1]


def test_a_change_asks_for_no_more_than_eight_requests_per_project(shop, tmp_path) -> None:
    """Before the commit each page is read once, and it is not read again to be written."""
    manifest = shop.released(tmp_path / "a", pythons=("3.12",))
    place = replace(shop.release, store=Counted(shop.store))
    who = replace(WHO, reason="x")
    operations.perform(withdraw.plan(place, Action.YANK, who=who, set_id=manifest.sha256))
    asked = place.store.asked
    pages = [text for text in asked if "/index." in text and "/last-good/" not in text]
    assert sorted(pages) == sorted(
        f"{what} {place.index}/{project}/index.{form}"
        for what in ("read", "replace") for project in PROJECTS for form in ("html", "json")
    )  # fmt: skip
    assert len(asked) == 21 + 12, "and those of the last good set"


def test_a_page_that_others_change_before_the_commit_shows_it_all_the_same(
    shop, tmp_path, monkeypatch
) -> None:
    """Bytes are copied between the look at a page and its put: hours, in which much happens."""
    first = shop.released(tmp_path / "a", pythons=("3.11",))
    shop.released(tmp_path / "b", pythons=("3.11", "3.12"))  # the same pjrt, whose page stays
    page = Path(shop.store.root) / shop.release.index

    prepare = withdraw.Change.prepare

    def slow(self, state, entry):
        for project in PROJECTS:
            (page / project / "index.html").write_bytes(b"another tool's")
        return prepare(self, state, entry)

    monkeypatch.setattr(withdraw.Change, "prepare", slow)
    shop.change(Action.ROLLBACK, first)
    for project in PROJECTS:
        listed = {link.filename for link in links((page / project / "index.html").read_bytes())}
        assert listed == {entry.filename for entry in shop.shown(shop.release, project)}


def test_entries_that_come_while_the_log_is_listed_are_not_missing(shop, tmp_path) -> None:
    """A long list comes in pages: of two commits in between only the second was on one of them."""
    first = shop.released(tmp_path / "a", pythons=("3.12",))
    shop.change(Action.YANK, first)

    class Paged(Counted):
        def keys(self, prefix: str):
            if prefix != shop.release.logs:
                return shop.store.keys(prefix)
            for action in (Action.UNYANK, Action.ROLLBACK):
                shop.change(action, first)
            return [item for item in shop.store.keys(prefix) if item.key != shop.release.log(3)]

    place = replace(shop.release, store=Paged(shop.store))
    state = log.read(place)
    assert (state.number, dict(state.damage)) == (4, {})


def test_a_wheel_that_breaks_off_while_it_is_served_ends_the_connection(shop, tmp_path) -> None:
    """The error came as a second answer, within the wheel, and the client waited for the rest."""
    manifest = shop.released(tmp_path / "a", pythons=("3.12",))

    class Broken(Counted):
        def stream(self, key: str, sink) -> None:
            sink(b"PK")
            raise StoreError(f"{key}: the download broke", hint="")

    with serving(Broken(shop.store)) as site:
        connection = http.client.HTTPConnection(*site.server_address[:2], timeout=10)
        connection.request("GET", f"/{wheel_key(shop.release, manifest.built[0].filename)}")
        with (
            closing(connection),
            connection.getresponse() as answer,
            pytest.raises(http.client.IncompleteRead) as caught,
        ):
            answer.read()
    assert caught.value.partial == b"PK"


# R9: same name, other bytes


@pytest.mark.parametrize("name", merge_tries("file", of=["file", "seaweedfs", "moto"]))
def test_other_bytes_under_a_staged_name_change_nothing(
    servers,
    tmp_path,
    monkeypatch,
    console,
    name: str,
) -> None:
    shop = open_shop(name, servers, tmp_path, monkeypatch, console)
    shop.staged(tmp_path / "one", stamp="one")
    before = shop.listing(shop.staging)
    make_set(tmp_path / "two", stamp="two")
    with pytest.raises(ObjectDiffersError, match=r"rocm7\.10\.0"):
        shop.stage(tmp_path / "two")
    assert shop.listing(shop.staging) == before


def test_a_name_is_not_reused_after_a_prune_either(shop, tmp_path) -> None:
    shop.staged(tmp_path / "one", stamp="one")
    shop.channel = replace(shop.channel, retention=Retention(staging_days=1))
    shop.prune(days=3)
    assert files_of(shop.staging) == set()
    make_set(tmp_path / "two", stamp="two")
    for folder in ("one", "two"):  # neither other bytes nor the same
        with pytest.raises(PromotionError, match="spent for ever"):
            shop.stage(tmp_path / folder)
    assert files_of(shop.staging) == set()


def test_a_staged_wheel_replaced_behind_our_back_is_not_released(any_shop, tmp_path) -> None:
    shop = any_shop
    manifest = shop.gated(tmp_path / "wh")
    plan = shop.plan(manifest)
    key = wheel_key(shop.staging, plan.copies[0].entry.filename)
    data, _ = shop.store.read(key)
    shop.store.delete(key)
    shop.store.create(key, data[:-1] + b"x", headers=shop.staging.wheel_headers)
    with pytest.raises(StoreError, match=r"jaxlib|pjrt|plugin"):
        promote.apply(plan, console=shop.console)
    with pytest.raises(StoreError, match=r"jaxlib|pjrt|plugin"):
        shop.promote(manifest)
    assert files_of(shop.release) == set()
    assert plan.copies[0].entry.filename not in {
        item.key.rpartition("/")[2] for item in shop.store.keys(shop.release.key(""))
    }


# R4, R5, R35


def test_a_build_that_sorts_below_a_released_one_is_not_released(shop, tmp_path) -> None:
    shop.released(tmp_path / "new", suffix="+rocm7.10.0a20251120")
    old = shop.gated(tmp_path / "old", suffix="+rocm7.10.0a20251119")
    before = shop.listing(shop.release)
    with pytest.raises(PromotionError, match="sorts below"):
        shop.promote(old)
    assert shop.listing(shop.release) == before


def test_an_incomplete_or_open_set_is_not_staged(shop, tmp_path) -> None:
    make_set(tmp_path / "open", requires_pjrt="==9")
    with pytest.raises(WheelError, match="the set has"):
        shop.stage(tmp_path / "open")
    assert list(shop.store.keys("")) == []


def test_a_wheel_over_its_size_budget_is_not_uploaded_and_the_trend_is_shown(
    shop, tmp_path
) -> None:
    shop.released(tmp_path / "a", suffix="+rocm7.9.0", rocm="7.9.0", padding=100_000)
    make_set(tmp_path / "b", padding=200_000)
    plan = shop.staging_plan(tmp_path / "b")
    assert any(", +97." in line and "since 0.9.1+rocm7.9.0" in line for line in plan.lines())
    channel = replace(shop.channel, size_budget={WheelKind.PJRT: 150_000})
    with pytest.raises(WheelError, match=r"pjrt.*198\.\d KiB, the budget is 146\.5 KiB"):
        stage.plan(tmp_path / "b", FAMILY, channel, shop.store, who=WHO)


def test_a_wheel_above_what_the_store_takes_is_refused_before_the_first_upload(
    shop, tmp_path, monkeypatch
) -> None:
    """The upload was refused, when others of the set were there already."""
    make_set(tmp_path / "a", padding=200_000)
    monkeypatch.setattr(shop.store, "largest", 150_000)
    with pytest.raises(WheelError, match=r"209\.\d KiB, .* takes 146\.5 KiB at once"):
        shop.staging_plan(tmp_path / "a")
    assert list(shop.store.keys("")) == []


# R18: yank, rollback, restore


def test_a_set_is_yanked_and_unyanked_with_a_reason(shop_twice, tmp_path) -> None:
    shop = shop_twice
    manifest = shop.released(tmp_path / "wh")
    shop.change(Action.YANK, manifest, reason="segfaults")
    for project in PROJECTS:
        assert {item.yanked for item in shop.shown(shop.release, project)} == {"segfaults"}
    assert shop.change_plan(Action.YANK, manifest).is_done
    assert audit.check(shop.release).problems == ()
    shop.change(Action.UNYANK, manifest)
    assert yanked_at(shop) == set()
    assert audit.check(shop.release).problems == ()


def yanked_at(shop) -> set[str]:
    """The yanked files an installer sees at the release."""
    found = set()
    for project in PROJECTS:
        for key in shop.release.views(project, folder_keys=False):
            shown = links(shop.store.read(key)[0])
            found |= {link.filename for link in shown if link.yanked is not None}
    return found


def test_a_single_file_is_yanked_by_its_name(shop, tmp_path) -> None:
    manifest = shop.released(tmp_path / "wh")
    name = min(built(manifest))
    shop.change(Action.YANK, files=[name])
    assert yanked_at(shop) == {name}
    with pytest.raises(PromotionError, match=r"no_such-1-py3-none-any\.whl is not in the index"):
        shop.change_plan(Action.YANK, files=["no_such-1-py3-none-any.whl"])
    shop.change(Action.UNYANK, files=[name])
    assert yanked_at(shop) == set()


def test_a_file_that_stays_yanked_counts_when_its_set_is_unyanked(shop, tmp_path) -> None:
    manifest = shop.released(tmp_path / "wh")
    shop.change(Action.YANK, files=[min(built(manifest))])
    shop.change(Action.UNYANK, manifest)
    assert yanked_at(shop) == {min(built(manifest))}
    assert log.read(shop.release).sets[manifest.sha256].yanked == 1


def test_unyanking_one_set_leaves_the_yank_of_another_that_shares_files(shop, tmp_path) -> None:
    both = shop.released(tmp_path / "both", pythons=("3.11", "3.12"))
    less = shop.released(tmp_path / "less", pythons=("3.12",))
    shop.change(Action.YANK, both, reason="a")
    shop.change(Action.YANK, less, reason="b")
    shop.change(Action.UNYANK, less)
    assert yanked_at(shop) == built(both)
    shop.change(Action.UNYANK, both)
    assert yanked_at(shop) == set()


def test_what_comes_back_must_not_sort_below_what_is_released(shop, tmp_path) -> None:
    old = shop.released(tmp_path / "old", suffix="+rocm7.10.0a20251119")
    shop.change(Action.ROLLBACK, old)
    new = shop.released(tmp_path / "new", suffix="+rocm7.10.0a20251120")
    with pytest.raises(PromotionError, match="sorts below"):
        shop.change_plan(Action.RESTORE, old)
    shop.change(Action.YANK, new)
    shop.change(Action.RESTORE, old)
    shop.change(Action.YANK, old)
    shop.change(Action.UNYANK, new)
    with pytest.raises(PromotionError, match="sorts below"):
        shop.change_plan(Action.UNYANK, old)


def test_a_rollback_takes_the_set_out_and_restore_puts_it_back(any_shop, tmp_path) -> None:
    shop = any_shop
    kept = shop.released(tmp_path / "a", suffix="+rocm7.9.0", rocm="7.9.0")
    manifest = shop.released(tmp_path / "b")
    shop.change(Action.ROLLBACK, manifest, reason="wrong numbers")
    assert files_of(shop.release) == built(kept)
    assert shop.change_plan(Action.ROLLBACK, manifest).is_done
    assert audit.check(shop.release).problems == ()
    with pytest.raises(PromotionError, match="rolled back by tester: wrong numbers"):
        shop.plan(manifest)
    shop.change(Action.RESTORE, manifest)
    assert files_of(shop.release) == built(kept) | built(manifest)
    assert shop.change_plan(Action.RESTORE, manifest).is_done
    assert audit.check(shop.release).problems == ()
    assert not log.read(shop.release).is_whole, "what is listed is what the snapshot says"
    entry, _ = shop.store.read(shop.release.log(2))
    there = shop.store.info(shop.release.log(2))
    shop.store.replace(there.key, entry[:-9], previous=there, headers=shop.release.record_headers)
    with pytest.raises(StoreError, match=r"the log is damaged: .*/log/2\.json: not JSON"):
        shop.change(Action.YANK, manifest)


def test_a_rolled_back_wheel_that_changed_since_is_not_restored(shop, tmp_path) -> None:
    manifest = shop.released(tmp_path / "a")
    shop.change(Action.ROLLBACK, manifest)
    key = wheel_key(shop.release, manifest.built[0].filename)
    shop.store.delete(key)
    with pytest.raises(ObjectMissingError):
        shop.change(Action.RESTORE, manifest)
    shop.store.create(key, b"forged", headers=shop.release.wheel_headers)
    with pytest.raises(ObjectDiffersError):
        shop.change(Action.RESTORE, manifest)
    assert files_of(shop.release) == set()


def test_a_rollback_keeps_the_files_that_another_release_shares(shop, tmp_path) -> None:
    both = shop.released(tmp_path / "both", pythons=("3.11", "3.12"))
    more = shop.released(tmp_path / "more", pythons=("3.12",))  # the same wheels, fewer cells
    assert built(more) < built(both)
    shop.change(Action.ROLLBACK, both)
    assert files_of(shop.release) == built(more)
    assert audit.check(shop.release).problems == ()


def test_a_prune_keeps_the_bytes_that_a_rolled_back_set_holds(shop, tmp_path) -> None:
    """Its restore would list what is gone."""
    old = shop.released(tmp_path / "old", pythons=("3.11", "3.12"))
    young = make_set(tmp_path / "young", pythons=("3.12",))
    who = replace(WHO, now=NOW + timedelta(days=9))
    shop.stage(tmp_path / "young", who)
    pass_gate(shop.staging, young)
    shop.promote(young, who)
    change = withdraw.plan(
        shop.release, Action.ROLLBACK, set_id=young.sha256, who=replace(who, reason="x")
    )
    operations.perform(change)
    shop.channel = replace(shop.channel, retention=Retention(release_days=5, keep_newest=0))
    assert shop.prune(days=10) == [old.sha256]
    shop.change(Action.RESTORE, young)
    assert files_of(shop.release) == built(young)
    assert audit.check(shop.release).problems == ()
    for action, message in ((Action.ROLLBACK, "was pruned"), (Action.RESTORE, "was pruned")):
        with pytest.raises(PromotionError, match=message):
            shop.change_plan(action, old)


def committed_only(shop, operation) -> None:
    """A run that was killed right after its commit: no page shows it."""
    state = operations.read(operation.place)
    assert log.commit(operation.place, operation.prepare(state, operation.decide(state)))


def test_what_was_committed_and_not_shown_is_completed_by_any_command(shop, tmp_path) -> None:
    manifest = shop.gated(tmp_path / "wh")
    committed_only(shop, shop.plan(manifest))
    assert files_of(shop.release) == set()
    found = shop.status()
    assert "`index repair`" in found.problems[0]
    assert shop.plan(manifest, who=replace(WHO, by="another")).state == "ready"  # to complete
    shop.promote(manifest, who=replace(WHO, by="another"))
    assert files_of(shop.release) == built(manifest)
    assert [item.by for item in shop.entries(shop.release)] == ["tester"]
    committed_only(shop, shop.change_plan(Action.ROLLBACK, manifest))
    other = shop.released(tmp_path / "other", jax="0.9.2")
    assert files_of(shop.release) == built(other)
    committed_only(shop, shop.change_plan(Action.RESTORE, manifest))
    audit.repair(shop.release, WHO)
    assert files_of(shop.release) == built(other) | built(manifest)
    assert audit.check(shop.release).problems == ()


def test_an_operation_decides_again_when_another_was_faster(shop, tmp_path) -> None:
    manifest = shop.gated(tmp_path / "wh")
    held = [shop.plan(manifest) for _ in range(2)]  # runs that have read everything and stand still
    promote.apply(held[0], console=shop.console)
    promote.apply(held[1], console=shop.console)
    assert len(shop.entries(shop.release)) == 1
    late = shop.change_plan(Action.YANK, manifest)
    shop.change(Action.ROLLBACK, manifest)
    with pytest.raises(PromotionError, match="was rolled back"):
        operations.perform(late)
    assert files_of(shop.release) == set()


# R17, R31: the index is a function of the records


@pytest.mark.parametrize("damage", ["deleted", "emptied", "garbage", "one file dropped"])
def test_every_page_can_be_made_again_from_the_records(shop_twice, tmp_path, damage: str) -> None:
    shop = shop_twice
    kept = shop.released(tmp_path / "a", suffix="+rocm7.9.0", rocm="7.9.0")
    rolled = shop.released(tmp_path / "b")
    shop.change(Action.YANK, kept)
    shop.change(Action.ROLLBACK, rolled)
    before = set(pages_of(shop).items())
    place, folder_keys = shop.release, shop.store.abilities().folder_keys
    for project in PROJECTS:
        for key in (place.json(project), *place.views(project, folder_keys=folder_keys)):
            data, info = shop.store.read(key)
            if damage == "deleted":
                shop.store.delete(key)
            elif damage == "one file dropped" and key.endswith(".json"):
                document = json.loads(data)
                del document["files"][0]
                body = (json.dumps(document, sort_keys=True) + "\n").encode()
                shop.store.replace(key, body, previous=info, headers=place.json_headers)
            elif damage != "one file dropped":
                body = b"garbage" if damage == "garbage" else b"{}"
                shop.store.replace(key, body, previous=info, headers=place.json_headers)
    if damage == "deleted":
        for key in (place.json(""), *place.views("", folder_keys=folder_keys)):
            shop.store.delete(key)
    assert audit.check_pages(place, log.read(place, files=True))
    audit.repair(place, WHO)
    after = pages_of(shop)
    assert after.keys() == {key for key, _ in before}
    assert all(links(after[key]) == links(data) for key, data in before)
    assert audit.check_pages(place, log.read(place, files=True)) == []
    assert audit.check(place).problems == ()


def pages_of(shop) -> dict[str, bytes]:
    """Every form of every page of the release."""
    found = (item.key for item in shop.store.keys(shop.release.key("")))
    ends = ("/", "index.html", "index.json")
    return {key: shop.store.read(key)[0] for key in found if key.endswith(ends)}


def test_the_check_names_every_kind_of_damage(shop, tmp_path) -> None:
    manifest = shop.released(tmp_path / "a")
    one, two, three = sorted(built(manifest))[:3]
    first, second, third = (shop.store.root / wheel_key(shop.release, n) for n in (one, two, three))
    first.write_bytes(first.read_bytes()[:-1] + b"x")
    second.with_name(f"{two}.metadata").write_bytes(b"Metadata-Version: 2.1\n")
    third.unlink()
    page = tmp_path / "store" / shop.release.index / "jaxlib" / "index.html"
    page.write_text(page.read_text().replace("%2B", "+", 1).replace("&gt;=3.10", "&gt;=3.9", 1))
    problems = "\n".join(audit.check(shop.release).problems)
    for expected in (
        f"{one}: SHA-256 is",
        f"{two}.metadata: not the wheel's METADATA",
        f"{three}: missing",
        "jaxlib/index.html: not what the log says",
    ):
        assert expected in problems


def test_a_nights_index_shows_what_became_of_its_sets_until_they_are_pruned(shop, tmp_path) -> None:
    place, sets = shop.release, {}
    for number, night in enumerate(("one", "two", "two", "")):
        manifest = shop.gated(tmp_path / str(number), jax=f"0.9.{number}", pythons=("3.12",))
        shop.promote(manifest, night=night)
        sets[number] = manifest
    one, two, good = (
        place.of(f"{FAMILY.name}/{name}") for name in ("nights/one", "nights/two", "last-good")
    )
    assert files_of(one) == built(sets[0])
    assert files_of(two) == built(sets[1]) | built(sets[2])
    assert files_of(good) == set().union(*map(built, sets.values())), "the last of each JAX release"
    shop.change(Action.YANK, sets[0], reason="slow")
    (link, *_) = links(shop.store.read(one.views("jaxlib", folder_keys=False)[0])[0])
    assert link.yanked == "slow"
    shop.change(Action.ROLLBACK, sets[1])
    assert (files_of(two), files_of(good) & built(sets[1])) == (built(sets[2]), set())
    shop.change(Action.RESTORE, sets[1])
    assert files_of(two) == built(sets[1]) | built(sets[2])
    page = tmp_path / "store" / two.views("jaxlib", folder_keys=False)[0]
    for damaged in (b"", b"x" * page.stat().st_size):
        page.write_bytes(damaged)
        assert str(page) in "".join(audit.check(place).problems)
        audit.repair(place, WHO)
    page.unlink()
    assert f"{page}: missing" in "".join(audit.check(place, download=False).problems)
    audit.repair(place, WHO)
    assert audit.check(place).problems == audit.check(place, download=False).problems == ()
    shop.channel = replace(shop.channel, retention=Retention(release_days=1, keep_newest=0))
    shop.prune(days=2)
    assert files_of(one) == files_of(two) == files_of(good) == set()
    assert audit.check(place, download=False).problems == ()


# Prune


def test_retention_prunes_what_is_old_and_nothing_that_is_needed(shop_twice, tmp_path) -> None:
    shop = shop_twice
    sets = []
    for number in range(4):
        who = replace(WHO, now=NOW + timedelta(days=number))
        manifest = make_set(tmp_path / str(number), suffix=f"+rocm7.10.0a{number}")
        shop.stage(tmp_path / str(number), who)
        pass_gate(shop.staging, manifest)
        shop.promote(manifest, who)
        sets.append(manifest)
    keep = Retention(staging_days=2, release_days=2, keep_newest=1, pinned=(sets[0].sha256,))
    shop.channel = replace(shop.channel, retention=keep)
    at_release = shop.prune_plan(shop.release, days=10)
    assert {known.id for known, _ in at_release.expired(at_release.start)} == {
        sets[1].sha256,
        sets[2].sha256,
    }
    shop.prune(days=10)
    assert files_of(shop.release) == built(sets[0]) | built(sets[3])
    assert files_of(shop.staging) == built(sets[0])
    stored = {item.key.rpartition("/")[2] for item in shop.store.keys("")}
    assert not stored & built(sets[1])
    assert audit.check(shop.release).problems == ()
    assert shop.prune(days=10) == []


@pytest.mark.parametrize(("days", "left"), [(-2, "log"), (2, "log"), (2, "snapshot")])
def test_a_prune_by_a_clock_that_is_off_removes_nothing(
    shop, capsys, monkeypatch, days: int, left: str
) -> None:  # fmt: skip
    """Two days ahead it took what was being staged for an orphan; that there is nothing else to
    prune, or no snapshot to ask for the time, is no reason to go on."""
    shop.released(shop.store.root.parent / "a", pythons=("3.12",))
    name = "jaxlib-0.9.9-cp312-cp312-manylinux_2_28_x86_64.whl"
    orphan = shop.store.root / wheel_key(shop.staging, name)
    orphan.parent.mkdir()
    orphan.write_bytes(b"on its way")
    part = shop.store.root / "_rocwheel" / "upload.part"
    part.parent.mkdir(exist_ok=True)
    part.write_bytes(b"on its way")
    if left == "log":
        for place in (shop.staging, shop.release):
            shop.store.delete(place.state)
    before = files_below(shop.store.root)
    where = ("--family", FAMILY.name, "--store", shop.store.url)
    argv = ["prune", "--orphans", *where]
    with monkeypatch.context() as patch:
        now = App.now
        patch.setattr(App, "now", lambda app: now(app) + timedelta(days=days))
        for line in (argv, [*argv, "--dry-run"], ["nightly", "prune", *where]):
            assert main(line) == 3
            told = capsys.readouterr().err.splitlines()[-2:]
            assert "this machine's clock says" in told[0]
            assert (
                told[1]
                == "hint:  set the clock: the log keeps times, and what is pruned is gone for ever"
            )
    assert files_below(shop.store.root) == before
    assert main(argv) == 0  # by the right clock both are young
    assert orphan.exists()
    assert part.exists()


def test_a_released_set_stays_released_when_staging_lets_go_of_it(shop, tmp_path) -> None:
    manifest = shop.released(tmp_path / "a")
    shop.channel = replace(shop.channel, retention=Retention(staging_days=2))
    assert shop.prune(days=3) == [manifest.sha256]
    assert shop.plan(manifest).state == "nothing-to-do"
    assert files_of(shop.release) == built(manifest)
    shop.change(Action.ROLLBACK, manifest)
    with pytest.raises(PromotionError, match="was rolled back"):
        shop.plan(manifest)


def test_without_retention_nothing_is_pruned(shop, tmp_path) -> None:
    shop.released(tmp_path / "a")
    before = shop.listing(shop.release), shop.listing(shop.staging)
    assert shop.prune(days=10_000) == []
    assert (shop.listing(shop.release), shop.listing(shop.staging)) == before


def test_what_a_killed_staging_left_is_removed_when_it_is_old_and_asked_for(shop, tmp_path) -> None:
    make_set(tmp_path / "a")
    plan = shop.staging_plan(tmp_path / "a")
    plan.prepare(plan.start, None)  # killed before its commit
    name = plan.uploads[0].entry.filename
    path = tmp_path / "store" / wheel_key(shop.staging, name)
    for days, orphans in ((0.5, True), (3, False)):
        shop.prune(days=days, orphans=orphans)
        assert shop.store.info(wheel_key(shop.staging, name))
    os.utime(path, (NOW.timestamp(), NOW.timestamp()))
    shop.prune(days=3, orphans=True)
    assert shop.store.info(wheel_key(shop.staging, name)) is None
    assert shop.store.info(
        wheel_key(shop.staging, plan.uploads[1].entry.filename)
    )  # as young as this test
    with pytest.raises(PromotionError, match="spent for ever"):
        shop.stage(tmp_path / "a")


def test_a_prune_that_was_cut_short_is_finished(shop, tmp_path) -> None:
    shop.channel = replace(shop.channel, retention=Retention(staging_days=2))
    manifest = shop.staged(tmp_path / "a")
    operation = shop.prune_plan(shop.staging, days=3)
    committed_only(shop, operation)
    assert any("spent before" in line for line in shop.prune_plan(shop.staging, days=3).lines())
    shop.prune(days=3)
    assert files_of(shop.staging) == set()
    assert not {item.key.rpartition("/")[2] for item in shop.store.keys("")} & built(manifest)
    wheel = manifest.built[0]  # a late write, or one of another tool
    late = shop.staging.wheel(wheel.filename, wheel.sha256)
    shop.store.create(late, b"x", headers=shop.staging.wheel_headers)
    assert audit.repair(shop.staging, WHO) == (late,)


# Adopt


def test_files_that_were_there_before_are_adopted_and_never_dropped(any_shop, tmp_path) -> None:
    shop = any_shop
    place = shop.release
    old = make_set(tmp_path / "old", jax="0.8.0", suffix="+rocm7.1.0", rocm="7.1.0")
    for name in built(old):
        path = tmp_path / "old" / name
        shop.store.create(f"{place.index}/{name}", path, headers=place.wheel_headers)
    page = "".join(f'<a href="../{n}">{n}</a>' for n in built(old) if n.startswith("jaxlib"))
    shop.store.create(f"{place.index}/jaxlib/index.html", page.encode(), headers=place.view_headers)
    new = shop.gated(tmp_path / "new")
    with pytest.raises(StoreError, match="made by another tool") as caught:
        shop.promote(new)
    assert "index adopt" in caught.value.hint
    plan = audit.plan_adoption(place, who=WHO)
    assert {item.filename for item in plan.entries} == built(old)
    operations.perform(plan)
    shop.promote(new)
    assert files_of(place) == built(old) | built(new)
    assert audit.plan_adoption(place, who=WHO).entries == ()
    assert audit.check(place).problems == ()
    before = shop.listing(place)
    audit.repair(place, WHO)
    assert shop.listing(place) == before


def test_an_adoption_that_would_lose_a_listed_file_is_refused(shop) -> None:
    page = b'<a href="https://elsewhere/jaxlib-1-cp312-cp312-any.whl">x</a>'
    key = f"{shop.release.index}/jaxlib/index.html"
    shop.store.create(key, page, headers=shop.release.view_headers)
    with pytest.raises(PromotionError, match="lists jaxlib-1-cp312-cp312-any"):
        audit.plan_adoption(shop.release, who=WHO)


# The command line


def run(capsys, *argv: str) -> tuple[int, dict, str]:
    code = main([*argv, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out), err


def test_the_commands_tell_what_they_did(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    manifest = make_set(tmp_path / "wh", pythons=("3.12",))
    where = ("--family", FAMILY.name, "--store", (tmp_path / "store").as_uri())
    code, said, _ = run(capsys, "stage", "wh", *where, "--dry-run")
    assert (code, said["state"], (tmp_path / "store").exists()) == (0, "planned", False)
    code, said, _ = run(capsys, "stage", "wh", *where)
    assert (code, said["state"]) == (0, "staged")
    assert run(capsys, "stage", "wh", *where)[1]["state"] == "nothing-to-do"

    code, said, err = run(capsys, "promote", "--manifest", manifest.sha256[:8], *where)
    assert (code, said["state"]) == (9, "blocked")
    assert {(c["suite"], c["python"]) for c in said["families"][FAMILY.name]["blocked_by"]} == {
        ("smoke", "3.12"),
        ("unit", "3.12"),
    }
    assert "error: " in err
    assert re.search(r"run it: `.* gate --.* --manifest ", err)
    own = Path(__file__).parents[2] / "examples/miniature/families.yaml"
    err = run(capsys, "promote", "--manifest", "wh", *where, "--family-file", str(own))[2]
    assert f" --family-file={own} --store={where[3]} --manifest " in err
    argv = ["promote", "--manifest", "wh", *where, "--approve"]
    with monkeypatch.context() as called:
        called.setattr(sys, "argv", ["rocwheel", *argv])
        assert main(argv) == 2
    assert "hint:  see rocwheel promote --help" in capsys.readouterr().err

    shop = Shop((tmp_path / "store").as_uri(), None)
    pass_gate(shop.staging, manifest)
    code, said, _ = run(capsys, "promote", "--manifest", "wh", *where, "--dry-run")
    assert (code, said["state"]) == (0, "ready")
    assert {w["destination"] for w in said["wheels"]} == {
        f"{(tmp_path / 'store').as_uri()}/v2/files/{w.sha256[:16]}/{w.filename}"
        for w in manifest.built
    }
    code, said, _ = run(capsys, "promote", "--manifest", "wh/manifest.json", *where)
    assert (code, said["state"], said["bytes_through_client"]) == (0, "published", 0)
    code, said, _ = run(capsys, "promote", "--manifest", manifest.sha256, *where)
    assert (code, said["state"]) == (0, "nothing-to-do")

    code, said, _ = run(capsys, "status", *where)
    assert [item["state"] for item in said["sets"]] == ["released"]
    assert run(capsys, "status", *where, "--older-than", "1")[1] == {"sets": [], "problems": []}
    for command, state in (("yank", "yanked"), ("unyank", "unyanked"), ("rollback", "rolled-back"),
                           ("restore", "restored"), ("restore", "nothing-to-do")):  # fmt: skip
        argv = (command, "--manifest", manifest.sha256, *where, "--reason", "just so")
        dry = run(capsys, *argv, "--dry-run")[1]["state"]
        assert dry == ("planned" if state != "nothing-to-do" else state)
        code, said, _ = run(capsys, *argv)
        assert (code, said["state"]) == (0, state)
    code, said, _ = run(capsys, "index", "check", *where)
    assert (code, said["files"], said["problems"]) == (0, 3, [])
    assert run(capsys, "index", "check", "--staging", *where)[0] == 0
    assert run(capsys, "index", "repair", *where, "--dry-run")[1]["places"][0]["found"] == []
    assert run(capsys, "index", "repair", *where)[1]["places"][0]["state"] == "nothing-to-do"
    assert run(capsys, "index", "adopt", *where)[1]["places"][0]["state"] == "nothing-to-do"
    assert run(capsys, "prune", *where)[1]["places"][0]["state"] == "nothing-to-do"


@pytest.mark.parametrize(("member", "rule"), [("", "set.manifest"), ("_prng.so", "layout.req")])
def test_what_may_not_ship_is_not_staged(member: str, rule: str, tmp_path, capsys) -> None:
    folder = tmp_path / "wh"
    manifest = make_set(folder, pythons=("3.12",))
    if member:
        path = next(folder.glob("*plugin*.whl"))
        with ZipArchive(path) as archive:
            draft = Draft(archive)
            draft.drop(member)
            made = draft.write(tmp_path)
        made.replace(path)
        sound = {"sha256": files.sha256(path), "size": path.stat().st_size}
        now = (replace(w, **sound) if w.kind == "plugin" else w for w in manifest.wheels)
        manifest = replace(manifest, wheels=tuple(now))
    else:
        manifest = replace(manifest, jax_version="0.9.2")
    (folder / MANIFEST).write_bytes(manifest.to_bytes())
    where = ("--family", FAMILY.name, "--store", (tmp_path / "store").as_uri())
    for more in ((), ("--dry-run",)):
        assert main(["stage", str(folder), *where, *more]) == 6
        assert rule in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_a_check_of_an_index_without_files_does_not_pass(tmp_path, capsys) -> None:
    """Also where another family has files, or everything is staged."""
    (tmp_path / "store" / "v2").mkdir(parents=True)
    store = (tmp_path / "store").as_uri()

    def check(*more: str) -> tuple[int, str]:
        code, said, err = run(capsys, "index", "check", "--store", store, *more)
        assert "hint:  " in err or not code
        return code, said["error"]["message"] if code else said["problems"]

    none = (7, f"{store}: nothing is released for {FAMILY.name}")
    assert check("--family", FAMILY.name) == none
    make_set(tmp_path / "wh", pythons=("3.12",))
    line = ("stage", str(tmp_path / "wh"), "--store", store, "--family", FAMILY.name)
    assert run(capsys, *line)[0] == 0
    assert check() == (7, f"{store}: nothing is released for any family")
    assert check("--staging") == (0, [])
    assert check("--staging", "--family=gfx908") == (7, f"{store}: nothing is staged for gfx908")
    assert check("--family", FAMILY.name) == none


def test_serve_says_of_each_newest_set_what_status_says(tmp_path, capsys, monkeypatch) -> None:
    def interrupted(_site: Site) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Site, "serve_forever", interrupted)
    manifest = make_set(tmp_path / "wh", pythons=("3.12",))
    shop = Shop((tmp_path / "store").as_uri(), None)
    where = ("--family", FAMILY.name, "--store", shop.store.url)

    def served() -> list[str]:
        assert main(["serve", *where, "--port=0"]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if line[:1] == "#"]

    assert run(capsys, "stage", str(tmp_path / "wh"), *where)[0] == 0
    assert "# staged, not released:" in served()
    pass_gate(shop.staging, manifest)
    assert run(capsys, "promote", "--manifest", manifest.sha256, *where)[1]["state"] == "published"
    assert served() == ["# released:", "# staged, and released:"]


def test_an_approval_has_a_name(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.delenv("GITHUB_ACTOR", raising=False)
    manifest = make_set(tmp_path / "wh", pythons=("3.12",))
    shop = Shop((tmp_path / "store").as_uri(), None)
    where = ("--family", FAMILY.name, "--store", shop.store.url)
    assert run(capsys, "stage", str(tmp_path / "wh"), *where)[0] == 0
    verdicts.add(shop.staging, make_verdict(manifest, state=State.FAIL))
    pass_gate(shop.staging, manifest)
    argv = ("promote", "--manifest", manifest.sha256, *where, "--approve", "smoke:3.12")
    assert main([*argv, "--reason", "known race"]) == 2
    assert "--approve needs --by" in capsys.readouterr().err
    assert main([*argv, "--by", "ann"]) == 3
    assert "--reason" in capsys.readouterr().err
    assert run(capsys, *argv, "--by", "ann", "--reason", "known race")[1]["state"] == "published"
    said = shop.entry(shop.release, Action.PROMOTE).evidence["families"][FAMILY.name]
    assert said["approvals"][0]["by"] == "ann"


def test_every_record_says_who(tmp_path, capsys, monkeypatch) -> None:
    """A runner has no USER; the system knows who runs."""
    for name in ("USER", "LOGNAME", "GITHUB_ACTOR"):
        monkeypatch.delenv(name, raising=False)
    make_set(tmp_path / "wh", pythons=("3.12",))
    shop = Shop((tmp_path / "store").as_uri(), None)
    argv = ("stage", str(tmp_path / "wh"), "--family", FAMILY.name, "--store", shop.store.url)
    monkeypatch.chdir(tmp_path)
    assert run(capsys, *argv)[0] == 0
    monkeypatch.setenv("GITHUB_ACTOR", "octocat")
    make_set(tmp_path / "other", jax="0.9.2", pythons=("3.12",))
    assert run(capsys, "stage", str(tmp_path / "other"), *argv[2:])[0] == 0
    said = [item.by for item in shop.entries(shop.staging)]
    assert "octocat" in said
    assert all(said)


def test_channels_are_found_from_any_folder(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert main(["status", "--family", FAMILY.name, "--channel", "nightly"]) == 7
    assert "s3://therock-nightly-python/v2-staging/" in capsys.readouterr().err


READ_ONLY = {"AWS_ACCESS_KEY_ID": READER, "AWS_SECRET_ACCESS_KEY": READER_SECRET}


@pytest.mark.parametrize(
    ("changes", "bucket", "said", "remedy"),
    [
        ({}, "no-such-bucket", "s3://no-such-bucket: no such bucket", "check the store"),
        (dict.fromkeys(READ_ONLY), BUCKET, "no usable AWS credentials", "AWS_PROFILE"),
        (READ_ONLY, BUCKET, "403 AccessDenied for ", "s3:PutObject"),
    ],
)
@pytest.mark.parametrize(
    "command", ["stage", "promote", "yank", "rollback", "restore", "prune", "repair", "adopt"]
)
def test_a_store_that_refuses_is_told_in_two_lines_by_every_command_that_writes(
    *, servers, tmp_path, monkeypatch, console, capsys, changes, bucket, said, remedy, command
) -> None:  # fmt: skip
    shop = open_shop("seaweedfs", servers, tmp_path, monkeypatch, console)
    shop.channel = replace(shop.channel, retention=Retention(staging_days=1))
    manifest = make_set(tmp_path / "wh", pythons=("3.12",))
    if command != "stage":
        shop.stage(tmp_path / "wh")
        pass_gate(shop.staging, manifest)
    if command not in {"stage", "promote", "adopt"}:
        shop.promote(manifest)
    if command == "restore":
        shop.change(Action.ROLLBACK, manifest)
    if command == "adopt":
        path = make_wheel(
            tmp_path, project="jaxlib", version="1", tag="py3-none-any", module="jaxlib"
        )
        shop.store.create(
            f"{shop.release.index}/{path.name}", path, headers=shop.release.wheel_headers
        )
    for name, value in changes.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    channels = tmp_path / "channels.yaml"
    base = shop.store.url.partition(f"s3://{BUCKET}")[2]
    channels.write_text(
        f"channels:\n  try:\n    store: s3://{bucket}{base}\n    first_sets: free\n    retention: {{staging_days: 1, "
        'release_days: 1, keep_newest: 0}\n    prefixes:\n      "7": {staging: v2-staging, '
        "release: v2}\n"
    )
    named = ["--manifest", str(tmp_path / "wh")]
    argv = {
        "stage": ["stage", str(tmp_path / "wh")],
        "promote": ["promote", *named],
        "restore": ["index", "restore", *named, "--reason", "x"],
        "prune": ["index", "prune"],
        "repair": ["index", "repair"],
        "adopt": ["index", "adopt"],
    }.get(command, [command, *named, "--reason", "x"])
    argv += ["--family", FAMILY.name, "--channel", "try", "--channels-file", str(channels)]
    assert main([*argv, "--quiet"]) == 7
    error, hint = capsys.readouterr().err.strip().splitlines()
    assert re.match(r"error: (403 AccessDenied for )?s3://", error)
    assert said in error
    assert remedy in hint


def test_a_dry_run_prints_every_source_and_destination(tmp_path, capsys) -> None:
    manifest = make_set(tmp_path / "wh")
    store = (tmp_path / "store").as_uri()
    where = ("--family", FAMILY.name, "--store", store, "--dry-run")
    assert main(["stage", str(tmp_path / "wh"), *where]) == 0
    out = capsys.readouterr().out
    for wheel in manifest.built:
        target = f"{store}/v2-staging/files/{wheel.sha256[:16]}/{wheel.filename}"
        assert f"{tmp_path}/wh/{wheel.filename} -> {target} (" in out
        assert f"METADATA -> {target}.metadata" in out


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["promote", "--manifest", "abc", "--family", "gfx90a", "--store", "file:///tmp"], 3, "no such file, and not a SHA-256"),
        (["promote", "--manifest", "abcdef12", "--family", "gfx90a", "--store", "file:///tmp"], 3, "no manifests of gfx90a begin with these digits"),
        (["stage", "/nowhere", "--family", "gfx90a", "--store", "file:///nowhere"], 3, "No such file"),
        (["status", "--family", "gfx94x", "--store", "file:///nowhere"], 3, "unknown GPU family"),
        (["status", "--family", "gfx90a", "--channel", "nightlies"], 3, "no such channel"),
        (["status", "--family", "gfx90a", "--store", "ftp://x"], 3, "not a store"),
        (["status", "--family", "gfx90a"], 2, "give --store URL, or --channel"),
        (["status", "--store", "file:///tmp/nowhere"], 7, "no such folder"),
        (["status", "--store", "file:///tmp/v2/gfx90a"], 7, "--store is the folder above it: file:///"),
        (["stage", "--store", "file:///tmp/v2/gfx90a"], 7, "--store is the folder above it: file:///"),
        (["nightly", "status", "--store", "file:///tmp/status"], 7, "--store is the folder above it: file:///"),
        (["rollback", "--manifest", "abcdef", "--family", "gfx90a", "--store", "file:///tmp"], 3, "--reason"),
        (["yank", "--family", "gfx90a", "--store", "file:///tmp", "--reason", "x"], 2, "--manifest, --file or both"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_two_lines(capsys, tmp_path, argv, code, said) -> None:
    for folder in ("v2/_rocwheel", "v2/gfx90a", "_rocwheel/nights", "status"):
        (tmp_path / folder).mkdir(parents=True)
    assert main([word.replace("file:///tmp", tmp_path.as_uri()) for word in argv]) == code
    err = capsys.readouterr().err
    assert said in err
    if code != 2:
        error, hint = err.strip().splitlines()
        assert error.startswith("error: ")
        assert hint.startswith("hint:  ")


def test_families_of_one_build_are_released_each_for_itself(tmp_path, shop, console) -> None:
    """One manifest may serve several families; copies, verdicts and records are per family."""
    other = matrix.family("gfx1151")
    manifest = shop.gated(tmp_path / "wh", gfx=("gfx90a", *other.targets))
    shop.promote(manifest)
    assert promote.plan(manifest, other, shop.channel, shop.store, who=WHO).state == "blocked"
    planned = stage.plan(tmp_path / "wh", other, shop.channel, shop.store, who=WHO)
    stage.apply(planned, console=console)
    pass_gate(shop.staging.of(other.name), manifest, family=other)
    plan = promote.plan(manifest, other, shop.channel, shop.store, who=WHO)
    promote.apply(plan, console=console)
    for place, name in itertools.product((shop.staging, shop.release), (FAMILY.name, other.name)):
        (known,) = log.read(place).of(name).listed
        assert known.id == manifest.sha256
