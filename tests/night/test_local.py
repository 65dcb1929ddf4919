"""Nights on one machine, through the command line: what runs, what is held back, what survives."""

from __future__ import annotations

import os
import pty
import random
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import pytest
from support.faultserver import FaultServer
from support.night import World

from rocwheel.base.container.leftovers import owner
from rocwheel.base.store.opening import open_store
from rocwheel.base.versions import timestamp
from rocwheel.night import standing
from rocwheel.records.verdict import State
from rocwheel.release.ledger.nights import Begun, Nights

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]
KILLS = int(os.environ.get("NIGHT_KILLS", "2"))  # 30 in the whole campaign


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, (tmp_path / "store").as_uri())


def released(world: World, family: str = "gfx90a") -> bool:
    return (Path(world.store.removeprefix("file://")) / "v2" / family / "jaxlib").exists()


def page(world: World) -> str:
    return (Path(world.store.removeprefix("file://")) / "status" / "index.html").read_text()


def test_an_infra_end_is_tried_again_and_a_retry_leads_to_the_promotion_and_a_new_page(world):
    cell = "gate.jax.gfx90a.3.12.smoke"
    world.plan("one", check=True)
    world.script(gate={"*smoke*": f"count:{world.folder}/left"})
    (world.folder / "left").write_text("2")
    assert world.local("one").code == 5
    assert not released(world)
    assert "infra" in page(world)
    forgotten = world.nightly("retry", "one", "--reason=node repaired")
    assert forgotten.code == 3
    assert f" --store={world.store} one`" in forgotten.err
    retried = world.nightly("retry", "one", cell, "--reason=node repaired", check=True)
    assert f" nightly run --ci-dir={world.folder}/ci --store={world.store} one" in retried.err
    waiting = world.nightly("status", "one")
    assert re.search(rf"{cell} +waiting .*for the retry that", waiting.out)
    assert re.search(r"promote.jax.gfx90a +waiting .*to be done again after gate", waiting.out)
    done = world.local("one")
    assert done.code == 0, done.err
    book = Nights(open_store(world.store)).book("one")
    assert [a.ended.state.value for a in book.attempts[cell]] == ["infra", "infra", "pass"]
    assert [a.ended.state.value for a in book.attempts["promote.jax.gfx90a"]] == ["fail", "pass"]
    assert released(world)
    assert "Released: JAX" in page(world)
    assert world.local("one").code == 0, "and nothing again"
    assert len(Nights(open_store(world.store)).book("one").attempts["page"]) == 2


def test_what_another_users_engine_runs_here_is_not_told_as_killed(world):
    """Its lock lies in its own cache: only the process says whether the attempt goes on."""
    world.plan("one", check=True)
    nights = Nights(open_store(world.store))
    marks = {"build.jax": owner(), "prune": owner().replace(":", ":1", 1)}
    for name, mark in marks.items():
        begun = Begun(
            token=name, cell=name, plan=nights.plan("one")[1], host=socket.gethostname(),
            engine="local", job=mark, time=timestamp(datetime.now(tz=timezone.utc)),
        )  # fmt: skip
        nights.begin("one", begun)
    done = world.local("one")
    assert "build.jax: running: on" in done.err
    attempts = Nights(open_store(world.store)).book("one").attempts
    assert [item.ended for item in attempts["build.jax"]] == [None]
    assert attempts["prune"][0].ended.reason == "its process was killed"


def test_a_stopped_night_does_not_run_and_a_dropped_cell_bars_what_needs_it(world):
    world.plan("one", check=True)
    assert "no reason given" in world.nightly("stop", "one").err
    world.nightly("stop", "one", "--reason=maintenance", "--by=me", check=True)
    refused = world.local("one")
    assert refused.code == 3
    assert "was stopped by me: maintenance" in refused.err
    late = world.nightly("cell", "one", "build.jax", f"--program={program()}")  # as Slurm starts it
    assert late.code == State.NOT_RUN.exit_code
    assert "not run: the night was stopped by me" in late.err
    assert not Nights(open_store(world.store)).book("one").attempts
    world.nightly("retry", "one", "--reason=done", check=True)
    drop = ("drop", "one", "gate.jax.gfx90a.3.12.e2e", "--reason=known")
    assert (
        f" nightly run --ci-dir={world.folder}/ci --store={world.store} one"
        in world.nightly(*drop, check=True).err
    )
    done = world.local("one")
    assert "gate.jax.gfx90a.3.12.e2e: barred: dropped by" in done.err
    assert released(world), "an advisory suite that was dropped holds nothing up"


@pytest.mark.parametrize(
    ("words", "problem", "code"),
    [
        (["run", "nothing"], "no such night", 3),
        (["cell", "one", "build.jaxx"], "did you mean build.jax", 3),
        (["run", "bad name"], "not the name of a night", 3),
        (["plan", "--night=bad name", "--dry-run"], "not the name of a night", 3),
        (["plan", "--from=nothing", "--night=two"], "no such night", 3),
        (["clear", "nowhere", "--reason=x"], "is not held back", 3),
        (["retry", "one", "gate.jax.gfx90a.3.12.unitt", "--reason=x"], "no such cell", 3),
        (["check", "--max-age=soon"], "not an age", 3),
        (["check", "--max-age=²h"], "not an age", 3),
        (["changes", "nothing"], "no such night", 3),
        (["plan", "--night="], "not the name of a night", 3),
        (["retry", "one", "--reason=x"], "is not stopped, and no cell to retry is named", 3),
        (["run", "one", "--engine=github", "--only=gfx90b"], "did you mean gfx90a", 3),
        (["plan", "--from=one", "--night=two", "--pools=x.yaml"], "as it was planned", 3),
    ],
)
def test_one_error_each_and_nothing_written(world, words, problem, code):
    world.plan("one", check=True)
    before = sorted((world.folder / "store").rglob("*"))
    done = world.nightly(*words)
    assert done.code == code, done.err
    assert problem in done.err
    assert "Traceback" not in done.err
    assert sorted((world.folder / "store").rglob("*")) == before


def test_the_newest_night_is_repeated_whole_and_a_cell_is_shown_as_lines_to_paste(world):
    world.plan("one", check=True)
    again = world.nightly("plan", "--from=latest", "--night=two", check=True)
    assert "7 cells to run, 0 kept" in again.out
    assert world.local("two").code == 0
    gate = "gate.jax.gfx90a.3.12.unit"
    shown = world.nightly("cell", "latest", gate, "--dry-run", check=True)
    assert re.search(r" gate --suite=unit --python=3.12 --manifest=[0-9a-f]{64} ", shown.out)
    told = world.folder / "store" / "_rocwheel" / "nights"
    (told / "two" / "summary.json").unlink()
    world.nightly("plan", "--from=latest", "--night=three", check=True)
    world.nightly("retry", "two", "page", "--reason=again", check=True)
    assert world.local("two").code == 0
    assert (told / "two" / "summary.json").exists(), "a night's page is about that night"
    assert not (told / "three" / "summary.json").exists()
    assert "night two" in page(world)
    done = world.nightly("prune", "--keep=1", check=True)
    assert "one: is not over, stays" in done.err
    assert sorted(path.parent.name for path in told.glob("*/plan.json")) == ["one", "three"]


def test_two_plans_for_one_night_are_refused(world):
    world.plan("one", check=True)
    time.sleep(1.1)
    again = world.plan("one")
    assert again.code == 3
    assert "has another plan" in again.err


def test_an_edited_plan_or_one_of_another_version_is_refused(world):
    world.plan("one", check=True)
    file = world.folder / "store" / "_rocwheel" / "nights" / "one" / "plan.json"
    text = file.read_text()
    file.write_text(text.replace('"tool": "', '"tool": "9.'))
    other = world.local("one")
    assert other.code == 3
    assert "planned by rocwheel 9." in other.err
    file.write_text(text.replace('"attempts": 2', '"attempts":  2'))
    edited = world.local("one")
    assert edited.code == 3
    assert "edited" in edited.err


def ahead(world, *words, days):
    """The command line on a machine whose clock is so many days ahead of the store's."""
    code = (
        "import sys; from datetime import timedelta; from rocwheel.cli import app, main\n"
        f"now = app.App.now; app.App.now = lambda self: now(self) + timedelta(days={days})\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, "nightly", *words], env=world.environ(),
        cwd=world.folder, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_clock_a_day_off_is_refused_by_the_plan_and_the_machines_fault_in_a_cell(world):
    settings = f"--config={world.folder}/nightly.yaml"
    done = ahead(world, "plan", "--night=one", settings, *world.target, days=1)
    assert done.returncode == 3, done.stderr
    assert "clock is" in done.stderr
    assert not (world.folder / "store" / "_rocwheel" / "nights" / "one").exists()
    world.plan("one", check=True)
    words = ("cell", "one", "build.jax", f"--program={program()}")
    done = ahead(world, *words, *world.target, days=1)
    assert done.returncode == State.INFRA.exit_code, done.stderr
    assert "clock is" in done.stdout
    (attempt,) = Nights(open_store(world.store)).book("one").attempts["build.jax"]
    assert attempt.ended.state is State.INFRA


def test_nothing_of_a_night_is_pruned_by_a_clock_that_is_off(world):
    (world.folder / "channels.yaml").write_text(
        f"channels:\n  own:\n    store: {world.store}\n    retention: {{staging_days: 1}}\n"
        '    prefixes:\n      "7": {staging: v2-staging, release: v2}\n'
    )
    for night in ("one", "two"):
        world.plan(night, check=True)
    before = sorted((world.folder / "store").rglob("*"))
    words = ("prune", "--keep=1", "--channel=own", "--channels-file=channels.yaml")
    done = ahead(world, *words, days=4)  # by which a night that is not over is nobody's any more
    assert done.returncode == 3, done.stdout
    assert "this machine's clock says" in done.stderr
    assert (
        "hint:  set the clock: the log keeps times, and what is pruned is gone for ever"
        in done.stderr
    )
    assert sorted((world.folder / "store").rglob("*")) == before


@pytest.mark.soak
def test_a_store_that_is_away_for_a_while_ends_neither_engine_nor_cells(world):
    world.plan("one", check=True)
    world.script(gate={"*smoke*": "sleep:60"})
    process = world.start("nightly", "run", "one", f"--program={program()}", *world.target)
    wait_for(world, "gate.jax.gfx90a.3.12.smoke")
    store, away = world.folder / "store", world.folder / "away"
    store.rename(away)
    time.sleep(30)
    away.rename(store)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert "asking again in 15 s" in err
    assert set(world.states("one").values()) == {"pass"}


def test_everything_is_killed_in_a_gate_and_check_names_it_three_minutes_later(world):
    """By the store's clock: whatever machine looks, and however long a gate may take."""
    world.plan("one", check=True)
    world.script(gate={"*": "sleep:900"})
    process = world.start("nightly", "run", "one", f"--program={program()}", *world.target)
    cell = "gate.jax.gfx90a.3.12.smoke"
    wait_for(world, cell)
    lease = world.folder / "store/_rocwheel/nights/one/cells" / cell / "1.lease"
    deadline = time.monotonic() + 120
    while not lease.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(world.folder).encode() in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
    process.communicate(timeout=240)
    status = world.nightly("status", "one")
    assert f"{cell}  running" in status.out
    for file in lease.parent.parent.rglob("*.*"):
        then = file.stat().st_mtime - 181
        os.utime(file, (then, then))
    status = world.nightly("status", "one")
    assert (status.code, status.out.splitlines()[0][:23]) == (5, "one: 1 lost, not finish")
    checked = world.nightly("check")
    assert checked.code == 8
    assert f"{cell}: lost: " in checked.err
    assert "nightly run" in checked.err
    world.script()
    assert world.local("one").code == 0


def test_ctrl_c_drains_twice_stops_and_the_night_continues(world):
    world.plan("one", check=True)
    world.script(gate={"*": "sleep:900"})
    process = world.start("nightly", "run", "one", f"--program={program()}", *world.target)
    wait_for(world, "gate.jax.gfx90a.3.12.smoke")
    os.kill(process.pid, signal.SIGINT)
    asked = "may end, nothing new begins; Ctrl-C again stops at once"
    assert any(asked in line for line in process.stderr)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130
    assert f" nightly run --ci-dir={world.folder}/ci --store={world.store} one`" in err
    assert not alive(world)
    world.script()
    done = world.local("one")
    assert done.code == 0, done.err
    book = Nights(open_store(world.store)).book("one")
    assert all(item.ended for items in book.attempts.values() for item in items)


def test_a_terminal_shows_what_runs_and_for_how_long(world):
    world.plan("one", check=True)
    world.script(build={"*": "sleep:900"})
    ours, its = pty.openpty()
    words = ("nightly", "run", "one", f"--program={program()}", *world.target)
    world.env["TERM"] = "xterm"
    process = world.start(*words, stderr=its)
    os.close(its)
    shown, deadline = "", time.monotonic() + 240
    while not re.search(r"one .*0/\d+.*build\.\S+ \d+ s", shown):
        assert time.monotonic() < deadline, shown
        shown = (shown + os.read(ours, 4096).decode(errors="replace"))[-20_000:]
    for _ in range(2):
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.5)
    with suppress(OSError):  # it has ended
        while os.read(ours, 4096):
            pass
    os.close(ours)
    process.communicate(timeout=240)
    assert process.returncode == 130


def test_an_image_that_no_engine_can_make_is_infra_and_leaves_the_release_as_it_is(world):
    """What `runtime_images` says is played here; a real engine is in tests/e2e."""
    image = "image.jax.gfx90a.3.12.jax"
    settings = (world.folder / "nightly.yaml").read_text()
    world.settings(settings + "images: [{recipe: jax, push: here.io}]\n")
    world.script(image={"*": "no-engine"})
    world.plan("one", check=True)
    done = world.local("one")
    assert done.code == 5
    assert f"{image}: infra: docker: no such program" in done.err
    assert released(world)
    assert "docker: no such program" in page(world)
    states = world.states("one")
    assert {name for name, state in states.items() if state != "pass"} == {image}
    book = Nights(open_store(world.store)).book("one")
    assert len(book.attempts[image]) == book.plan.attempts, "as often as any cell that is infra"
    assert not book.quarantined

    world.script()
    world.nightly("retry", "one", image, "--reason=engine installed", check=True)
    assert world.local("one").code == 0
    world.plan("two", check=True)
    assert world.states("two")[image] == "kept: pushed"


# name -> ROCm of the settings, families, what is played; exit statuses of plan, run, status and
# check; the words that name the cause
BAD = {
    "no ROCm for anybody": (
        "tarballs: ./empty", "gfx90a", {}, (5, 5, 5, 8), "lists nothing to build with"),
    "a page that is a login page": (
        "tarballs: {page}", "gfx90a", {}, (5, 5, 5, 8), "cannot be read"),
    "a family that fails": (
        "", "gfx90a, gfx1151", {"gate": {"gfx1151*unit*": "fail"}}, (0, 5, 5, 0),
        "1 of 2 families released"),
    "a gate that is killed each time": (
        "", "gfx90a", {"gate": {"*unit*": "kill"}}, (0, 5, 5, 0), "ended by SIGKILL"),
}  # fmt: skip


@pytest.mark.soak
@pytest.mark.parametrize("name", BAD)
def test_a_bad_night_is_told_by_every_command_with_its_exit_status(world, name):
    """What `test_bad_nights.py` writes down, by real commands; other kinds have tests above."""
    rocm, families, plays, expected, words = BAD[name]
    with FaultServer() as server:
        page = server.add("tarball/", b"<html><title>Sign in</title><form></form></html>")
        (world.folder / "empty").mkdir()
        world.settings(families=families)
        if rocm:
            text = (world.folder / "nightly.yaml").read_text()
            source = "source: therock-dist-linux-gfx90a-7.1.0.tar.gz"
            world.settings(text.replace(source, rocm.format(page=page)))
        world.script(**plays)
        shown = [world.plan("one"), world.local("one")]
        shown += [world.nightly("status", "one"), world.nightly("check")]
    said = "".join(done.out + done.err for done in shown)
    assert tuple(done.code for done in shown) == expected, said
    assert all(words in done.out + done.err for done in shown[1:3]), said
    assert "Traceback" not in said


@pytest.mark.soak
def test_two_nights_at_once_on_one_machine_both_end_and_the_page_is_of_the_newest(world):
    for night in ("one", "two"):
        world.plan(night, check=True)
    words = (f"--program={program()}", *world.target)
    both = [world.start("nightly", "run", night, *words) for night in ("one", "two")]
    said = [process.communicate(timeout=600) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert set(world.states("one").values()) == set(world.states("two").values()) == {"pass"}
    assert "night two" in page(world)
    assert world.nightly("check").code == 0


@pytest.mark.soak
def test_killed_at_random_moments_no_attempt_is_lost_and_the_night_ends_green(world):
    """`NIGHT_KILLS=30 pytest tests/night/test_local.py -k killed` is all of them."""
    world.settings(quarantine=1000)
    world.plan("one", check=True)
    chance = random.Random(os.environ.get("NIGHT_SEED", "1"))
    nights, kills = ["one"], 0
    while kills < KILLS:
        process = world.start("nightly", "run", nights[-1], f"--program={program()}", *world.target)
        try:
            process.wait(chance.uniform(1.0, 14.0))
        except subprocess.TimeoutExpired:
            process.kill()
            kills += 1
        else:  # it is over, and there is nothing to kill in it any more
            nights.append(f"again-{len(nights)}")
            world.nightly("plan", "--from=one", f"--night={nights[-1]}", check=True)
        process.communicate()
        seen = {name: [a.number for a in items] for name, items in attempts(world, nights[-1])}
        assert all(numbers == [*range(1, len(numbers) + 1)] for numbers in seen.values()), seen
    assert not alive(world), "what a killed engine left tells its end by itself"
    for name, items in attempts(world, nights[-1]):
        if items and not settled_pass(world, nights[-1], name):
            world.nightly("retry", nights[-1], name, "--reason=killed", check=True)
    done = world.local(nights[-1])
    assert done.code == 0, done.err
    assert released(world)
    for night in nights:
        assert all(a.ended for _, items in attempts(world, night) for a in items), "none forgotten"
    assert not alive(world)


def attempts(world: World, night: str):
    return Nights(open_store(world.store)).book(night).attempts.items()


def settled_pass(world: World, night: str, cell: str) -> bool:
    book = Nights(open_store(world.store)).book(night)
    found = standing.stand(book)[cell]
    return found.passed


def program() -> str:
    from support.night import PROGRAM

    return PROGRAM


def wait_for(world: World, cell: str, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    folder = world.folder / "store" / "_rocwheel" / "nights" / "one" / "cells" / cell
    while not folder.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def alive(world: World) -> list[str]:
    """Processes that still work in this world; a cell may need a moment to go."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if str(world.folder) in line and int(entry.name) != os.getpid():
                    found.append(line)
        if not found:
            return []
        time.sleep(0.2)
    return found
