"""Taking over a store of an earlier version, which then attacks it.

The store is a recorded one (`MAKE` made it). The version that wrote it comes out of the history of
this repository; where a shallow clone lacks it, what needs that version is left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.wheelset import FAMILY, WHO, Shop, make_set, pass_gate

from rocwheel.cli import main
from rocwheel.errors import StoreError
from rocwheel.index.page import links
from rocwheel.ledger import log
from rocwheel.ledger.state import Action, Standing
from rocwheel.places import FOREIGN
from rocwheel.release import audit, migrate
from rocwheel.values import replace

ROOT = Path(__file__).parents[3]
EARLIER = "e17cb67da8184c652c498b488fb732b5eb797c97"  # the last with intents and records
RECORDED = ROOT / "tests/data/earlier_store.tar.gz"
PROJECTS = ("jax-rocm7-pjrt", "jaxlib", "jax-rocm7-plugin")

MAKE = """
import sys
from pathlib import Path
from datetime import timedelta
from dataclasses import replace
from support.wheelset import *
from rocwheel.console import Console
from rocwheel.index.channels import Retention
from rocwheel.ledger.records import Action
from rocwheel.release import operations, rebuild, retention, withdraw
import time
url, work = sys.argv[1], Path(sys.argv[2])
shop = Shop(url, Console(sys.stderr, clock=time.monotonic, verbosity=-1))
old = make_wheel(work, project="jaxlib", version="0.7.0", tag="py3-none-any", module="jaxlib")
shop.store.create(shop.release.key(old.name), old, headers=shop.release.wheel_headers)
rebuild.apply_adoption(rebuild.plan_adoption(shop.release), who=WHO)
listed = shop.released(work / "listed", pythons=("3.12",))
held = shop.released(work / "held", jax="0.9.2", pythons=("3.12",))
gone = make_set(work / "gone", jax="0.9.3", pythons=("3.12",))
shop.stage(work / "gone", replace(WHO, now=NOW - timedelta(days=9)))
who = withdraw.with_reason(WHO, "slow")
withdraw.apply(withdraw.plan_yank(shop.release, set_id=listed.sha256), who=who)
withdraw.apply(withdraw.plan_rollback(shop.release, held.sha256), who=who)
shop.channel = replace(shop.channel, retention=Retention(staging_days=5))
plan = retention.plan(shop.staging, shop.release, shop.channel, now=NOW)
retention.apply(plan, who=who)
cut = make_set(work / "cut", jax="0.9.4", pythons=("3.12",))
shop.stage(work / "cut")
pass_gate(shop.staging, cut)
plan = shop.plan(cut)
operations.begin(shop.release, plan.history, Action.PROMOTE, [c.entry for c in plan.copies],
                 who=WHO, manifest=cut)
make_set(work / "new", jax="0.9.5", pythons=("3.12",))
print(listed.sha256, held.sha256, gone.sha256, cut.sha256)
"""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory) -> Path:
    """The tree of the earlier version, from this repository's history."""
    folder = tmp_path_factory.mktemp("earlier")
    packed = subprocess.run(
        ["git", "-C", str(ROOT), "archive", EARLIER], capture_output=True, check=False
    )
    if packed.returncode:
        pytest.skip("the history of this checkout does not reach back that far")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
    return folder


def run_earlier(earlier: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(earlier / name) for name in ("build", "", "tests"))
    return subprocess.run(
        [sys.executable, *argv],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def taken_over(tmp_path, console):
    """A store that version wrote, before it is migrated."""
    subprocess.run(["tar", "-xf", str(RECORDED), "-C", str(tmp_path)], check=True)
    return Shop((tmp_path / "store").as_uri(), console), (tmp_path / "sets").read_text().split()


@pytest.mark.needs("git")
def test_the_recorded_store_is_what_that_version_writes(
    taken_over, earlier, tmp_path, console
) -> None:
    recorded, sets = taken_over
    (tmp_path / "again").mkdir()
    url = (tmp_path / "made").as_uri()
    done = run_earlier(earlier, "-c", MAKE, url, str(tmp_path / "again"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sets
    made = Shop(url, console)
    for place, same in ((recorded.release, made.release), (recorded.staging, made.staging)):
        kinds = [
            [re.sub(r"[0-9a-f]{32,}", "x", key) for key, _, _ in shop.listing(at)]
            for shop, at in ((recorded, place), (made, same))
        ]
        assert kinds[0] == kinds[1]


def apply(shop: Shop) -> None:
    for place in (shop.staging, shop.release):
        migrate.apply(migrate.plan(place, who=WHO), who=WHO)


def test_what_an_earlier_version_released_is_taken_over(taken_over, tmp_path) -> None:
    shop, (listed, held, gone, cut) = taken_over
    with pytest.raises(StoreError, match="written by a version before the log") as caught:
        log.read(shop.release)
    assert "index migrate" in caught.value.hint
    before = {
        project: {
            (link.filename, link.sha256, link.yanked)
            for link in links(shop.store.read(shop.release.key(f"{project}/index.html"))[0])
        }
        for project in PROJECTS
    }
    planned = migrate.plan(shop.release, who=WHO)
    assert [text.partition(" by ")[0] for text in planned.unfinished] == [f"promote of {cut[:12]}"]
    apply(shop)
    found = log.load(shop.release, log.read(shop.release), None)
    standing = {name: known.standing for name, known in found.sets.items()}
    assert standing == {
        listed: Standing.LISTED, held: Standing.HELD, FOREIGN: Standing.LISTED,
    }  # fmt: skip
    assert {
        project: {(e.filename, e.sha256, e.yanked) for e in found.shown(project)}
        for project in PROJECTS
    } == before
    for place in (shop.staging, shop.release):
        assert audit.check(place).problems == ()
        assert not migrate.plan(place, who=WHO).is_needed
    staged = log.load(shop.staging, log.read(shop.staging), None)
    assert set(staged.sets) == {listed, held, cut}
    assert len(staged.doomed(since=0)) == 3  # names of the pruned set
    assert gone not in staged.sets
    manifest = make_set(tmp_path / "again", jax="0.9.4", pythons=("3.12",))
    assert shop.plan(manifest).state == "blocked"  # a verdict of that version does not count
    pass_gate(shop.staging, manifest)
    shop.promote(manifest)  # what was cut short
    shop.change(Action.RESTORE, make_set(tmp_path / "b", jax="0.9.2", pythons=("3.12",)))
    assert audit.check(shop.release).problems == ()


def test_a_migration_that_was_stopped_is_finished_by_the_next(taken_over) -> None:
    shop, _ = taken_over
    place = shop.release
    planned = migrate.plan(place, who=WHO)
    for key in planned.stops[:1]:
        shop.store.create(key, migrate.STOP, headers=place.record_headers)
    apply(shop)
    assert audit.check(place).problems == ()


@pytest.mark.needs("git")
def test_the_earlier_version_writes_no_more(taken_over, earlier, tmp_path) -> None:
    shop, (listed, held, _, _) = taken_over
    apply(shop)
    where = ["--family", FAMILY.name, "--store", shop.store.url]
    cli = ["-c", "import sys; from rocwheel.cli import main; sys.exit(main())"]
    before = shop.listing(shop.release), shop.listing(shop.staging)
    work = tmp_path / "work"
    for argv in (
        ["stage", str(work / "new")],
        ["stage", str(work / "listed")],
        ["promote", "--manifest", str(work / "cut")],
        ["yank", "--manifest", listed, "--reason", "x"],
        ["unyank", "--manifest", listed, "--reason", "x"],
        ["rollback", "--manifest", listed, "--reason", "x"],
        ["restore", "--manifest", held, "--reason", "x"],
        ["prune"],
        ["index", "rebuild"],
        ["index", "rebuild", "--staging"],
        ["index", "adopt"],
    ):
        done = run_earlier(earlier, *cli, *argv, *where)
        assert done.returncode != 0, argv
        assert "Traceback" not in done.stderr, done.stderr
        assert (shop.listing(shop.release), shop.listing(shop.staging)) == before, argv


def test_a_new_place_needs_no_migration(tmp_path, console) -> None:
    shop = Shop((tmp_path / "store").as_uri(), console)
    assert not migrate.plan(shop.release, who=WHO).is_needed
    manifest = make_set(tmp_path / "a", pythons=("3.12",))
    shop.stage(tmp_path / "a")
    pass_gate(shop.staging, manifest)
    shop.promote(manifest, who=replace(WHO, by="ann"))
    assert not migrate.plan(shop.release, who=WHO).is_needed


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        (
            "intents/x/notes.txt",
            b"x",
            0,
        ),  # no record's name: stopped `stage`, and migrated to nothing
        ("intents/x/1.json", b"x", 3),
        ("intents/x/1.json", b'{"schema": 1, "action": "stage", "entries": [{}]}', 3),
    ],
)
def test_what_is_no_record_of_an_earlier_version_is_told_or_stops_nobody(
    tmp_path, console, capsys, *, name, body, status
) -> None:
    shop = Shop((tmp_path / "store").as_uri(), console)
    for kind in ("intents", "releases"):
        path = shop.store.root / shop.staging.key(f"_rocwheel/{name.replace('intents', kind)}")
        path.parent.mkdir(parents=True)
        done = (
            b'{"schema": 1, "done": true}' if body.startswith(b"{") and kind == "releases" else body
        )
        path.write_bytes(done)
    make_set(tmp_path / "wh", pythons=("3.12",))
    target = ("--family", FAMILY.name, "--store", shop.store.url)
    assert main(["index", "migrate", "--dry-run", *target]) == status
    assert ("move it away" in capsys.readouterr().err) == bool(status)
    assert main(["stage", str(tmp_path / "wh"), *target]) == (7 if status else 0)
