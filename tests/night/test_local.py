"""Nights on one machine, through the command line: what runs, what is held back, what survives."""

from __future__ import annotations

import html
import json
import os
import pty
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from support import engines, s3
from support.faults import KINDS, Fault
from support.faultserver import FaultServer
from support.forked import Done
from support.night import PROGRAM, ROOT, World
from support.processes import called
from support.tiers import merge_tries

from rocwheel.base.container.leftovers import owner
from rocwheel.base.errors import ConfigError
from rocwheel.base.store.opening import open_store
from rocwheel.base.values import canonical_json
from rocwheel.base.versions import timestamp
from rocwheel.cli import main
from rocwheel.night import standing
from rocwheel.night.local import LocalScheduler
from rocwheel.records.verdict import State
from rocwheel.release.ledger.nights import Begun, Nights, Phase

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]
AWAY = int(os.environ.get("NIGHT_AWAY", "30"))  # seconds that a store is
OWN = """
families:
  - name: ours
    about: any machine
    targets: [gfx90a]
    suites: {{{suite}: required}}
    runners: [any]
    proof: {{backend: cpu, devices: false, rocm: true, official: false}}
"""
KILLS = int(os.environ.get("NIGHT_KILLS", "2"))  # 30 in the whole campaign


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, (tmp_path / "store").as_uri())


def released(world: World, family: str = "gfx90a") -> bool:
    return (world.path / "v2" / family / "jaxlib").exists()


def page(world: World) -> str:
    return (world.path / "status" / "index.html").read_text()


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
    words = ("nightly", "retry", "one", cell, "--reason=node repaired", *world.target)
    said, _ = world.start(*words, stderr=subprocess.STDOUT).communicate()
    line = f" nightly run --ci-dir={world.folder}/ci --store={world.store} one"
    assert re.search(rf"one: retry {cell} by .*\nnow: .*{re.escape(line)}", said), said
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
    assert '"brightgreen"' in (world.path / "status/badge.json").read_text()
    assert world.local("one").code == 0, "and nothing again"
    assert len(Nights(open_store(world.store)).book("one").attempts["page"]) == 2


def test_what_another_users_engine_runs_here_is_not_told_as_killed(world):
    """Its lock lies in its own cache: only the process says whether the attempt goes on."""
    world.plan("one", check=True)
    nights = Nights(open_store(world.store))
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    gate = "gate.jax.gfx90a.3.12.e2e"
    marks = {"build.jax": owner(), "prune": owner().replace(":", ":1", 1)}
    marks[gate] = owner().replace(boot, "of-before-a-reboot")
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
    for name in ("prune", gate):
        assert attempts[name][0].ended.reason == "its process was killed"


def test_a_set_built_again_is_tested_and_promoted_only_if_it_is_another(world):
    gate, promote = "gate.jax.gfx90a.3.12.unit", "promote.jax.gfx90a"
    world.plan("one", check=True)
    world.local("one", check=True)
    for words in (("drop", "one", gate), ("stop", "one")):
        refused = world.nightly(*words, "--reason=late")
        assert (refused.code, "there is nothing to" in refused.err) == (3, True), refused.err
    assert set(world.states("one").values()) == {"pass"}, "what passed stays true"
    for suffix, times in (("", 1), ("+rocm7.1.9", 2)):
        world.script(build={"*": "sleep:4"}, suffix=suffix)
        for cell in ("build.jax", *([promote] if suffix else [])):
            world.nightly("retry", "one", cell, "--reason=again", check=True)
        assert {world.states("one")[name] for name in ("build.jax", gate, promote)} == {"waiting"}
        done = world.local("one", check=True)
        assert done.err.count(f"{promote}: done") == times - 1, "it waits for build and gates"
        book = Nights(open_store(world.store)).book("one")
        assert [len(book.attempts[name]) for name in (gate, promote)] == [times, times]
        assert set(world.states("one").values()) == {"pass"}
    built = stood(world)["build.jax"].manifest
    assert book.attempts[gate][-1].begun.sets == (built,)
    assert built[:12] in page(world), "the set that the gates saw is the one that users have"


def test_a_retry_is_refused_where_the_cell_runs_and_hides_no_lost_one(world):
    world.plan("one", check=True)
    nights = Nights(open_store(world.store))
    begun = Begun(
        token="a", cell="build.jax", plan=nights.plan("one")[1], host="far", engine="local",
        time=timestamp(datetime.now(tz=timezone.utc)),
    )  # fmt: skip
    nights.begin("one", begun)
    retry = ("retry", "one", "build.jax", "--reason=x")
    refused = world.nightly(*retry)
    assert (refused.code, "build.jax: runs on far" in refused.err) == (3, True), refused.err
    file = world.path / "_rocwheel/nights/one/cells/build.jax/1.begun.json"
    os.utime(file, (time.time() - 181,) * 2)
    world.nightly(*retry, check=True)
    status = world.nightly("status", "one")
    assert (status.code, "1 lost" in status.out) == (5, True), status.out
    assert "build.jax: lost: " in world.nightly("check").err
    world.local("one", check=True)


def test_a_verdict_that_the_store_lost_is_the_stores_fault_and_its_gate_is_run_again(world):
    gates = [f"gate.jax.gfx90a.3.12.{suite}" for suite in ("smoke", "unit", "e2e")]
    world.plan("one", check=True)
    for name in ("build.jax", *gates):
        world.nightly("cell", "one", name, f"--program={PROGRAM}", check=True)
    (lost,) = world.path.glob("v2-staging/**/verdicts/**/unit/*.json")
    lost.unlink()
    assert world.local("one").code == 5
    (cell,) = [c for c in json.loads(world.nightly("status", "one", "--json").out)["cells"]
               if not c["passed"]]  # fmt: skip
    assert (cell["cell"], cell["cause"]) == ("promote.jax.gfx90a", "store")
    line = f"nightly retry one {gates[1]} --reason=WHY"
    assert f"repair the store, then `rocwheel {line}" in world.nightly("changes", "one").out
    world.nightly(*line.split()[1:], check=True)
    world.local("one", check=True)
    assert released(world)


def test_a_stopped_night_does_not_run_and_a_dropped_cell_bars_what_needs_it(world):
    world.plan("one", check=True)
    assert "no reason given" in world.nightly("stop", "one").err
    world.nightly("stop", "one", "--reason=maintenance", "--by=me", check=True)
    refused = world.local("one")
    assert refused.code == 3
    assert "was stopped by me: maintenance" in refused.err
    late = world.nightly("cell", "one", "build.jax", f"--program={PROGRAM}")  # as Slurm starts it
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
        (["plan", "--night=bad name", "--dry-run"], "not the name of a night", 3),
        (["plan", "--from=nothing", "--night=two"], "no such night", 3),
        (["clear", "nowhere", "--reason=x"], "is not held back", 3),
        (["retry", "one", "gate.jax.gfx90a.3.12.unitt", "--reason=x"], "no such cell", 3),
        (["check", "--max-age=²h"], "not a time", 3),
        (["plan", "--night="], "not the name of a night", 3),
        (["retry", "one", "--reason=x"], "is not stopped, and no cell to retry is named", 3),
        (["run", "one", "--engine=github", "--only=gfx90b"], "did you mean gfx90a", 3),
        (["plan", "--from=one", "--night=two", "--pools=x.yaml"], "as it was planned", 3),
    ],
)
def test_one_error_each_and_nothing_written(world, words, problem, code):
    world.plan("one", check=True)
    before = sorted(world.path.rglob("*"))
    done = world.nightly(*words)
    assert done.code == code, done.err
    assert problem in done.err
    assert "Traceback" not in done.err
    assert sorted(world.path.rglob("*")) == before


def test_the_newest_night_is_repeated_whole_and_a_cell_is_shown_as_lines_to_paste(world):
    world.plan("one", check=True)
    again = world.nightly("plan", "--from=latest", "--night=two", check=True)
    assert "7 cells to run, 0 kept" in again.out
    assert world.local("two").code == 0
    gate = "gate.jax.gfx90a.3.12.unit"
    shown = world.nightly("cell", "latest", gate, "--dry-run", check=True)
    assert re.search(r" gate --suite=unit --python=3.12 --manifest=[0-9a-f]{64} ", shown.out)
    told = world.path / "_rocwheel" / "nights"
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


def test_an_edited_plan_or_one_of_another_version_is_refused(world):
    world.plan("one", check=True)
    file = world.path / "_rocwheel" / "nights" / "one" / "plan.json"
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
    assert not (world.path / "_rocwheel" / "nights" / "one").exists()
    world.plan("one", check=True)
    words = ("cell", "one", "build.jax", f"--program={PROGRAM}")
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
    before = sorted(world.path.rglob("*"))
    words = ("prune", "--keep=1", "--channel=own", "--channels-file=channels.yaml")
    done = ahead(world, *words, days=4)  # by which a night that is not over is nobody's any more
    assert done.returncode == 3, done.stdout
    assert "this machine's clock says" in done.stderr
    assert (
        "hint:  set the clock: the log keeps times, and what is pruned is gone for ever"
        in done.stderr
    )
    assert sorted(world.path.rglob("*")) == before


@pytest.mark.soak
@pytest.mark.xdist_group("seaweedfs")
def test_a_server_that_is_down_for_a_while_ends_neither_engine_nor_cells(tmp_path, monkeypatch):
    """`NIGHT_AWAY=600` is ten minutes."""
    cell = "gate.jax.gfx90a.3.12.smoke"
    with s3.seaweedfs(tmp_path) as server:
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        world = World(tmp_path / "world", f"s3://{server.bucket('nights')}/here")
        world.plan("one", check=True)
        world.script(gate={"*smoke*": f"sleep:{AWAY + 30}"})
        process = world.start("nightly", "run", "one", f"--program={PROGRAM}", *world.target)
        while stood(world)[cell].phase is not Phase.RUNNING:
            time.sleep(1)
        argv = Path(f"/proc/{server.pid}/cmdline").read_text().split("\0")[:-1]
        os.killpg(server.pid, signal.SIGKILL)
        down = time.monotonic()
        for words in (("status", "one"), ("check",), ("changes", "one")):
            done = world.nightly(*words)
            assert (done.code, "check network and endpoint" in done.err) == (7, True), done.err
        time.sleep(max(0.0, down + AWAY - time.monotonic()))
        log = tmp_path / "again.log"
        with s3.running(argv, f"{server.endpoint}/healthz", log, cwd=server.folder):
            _, err = process.communicate(timeout=600)
            assert process.returncode == 0, err
            assert "asking again in 15 s" in err
            assert set(world.states("one").values()) == {"pass"}
            assert [len(items) for name, items in attempts(world, "one") if name == cell] == [1]
            assert world.nightly("check").code == 0


def test_the_machine_restarts_in_a_gate_and_check_names_it_three_minutes_later(world):
    """By the store's clock: whatever machine looks, and however long a gate may take."""
    world.env["TMPDIR"] = str(world.folder / "tmp")
    (world.folder / "tmp").mkdir()
    world.plan("one", check=True)
    world.script(gate={"*": "sleep:900"})
    process = world.start("nightly", "run", "one", f"--program={PROGRAM}", *world.target)
    cell = "gate.jax.gfx90a.3.12.smoke"
    wait_for(world, cell)
    lease = world.path / "_rocwheel/nights/one/cells" / cell / "1.lease"
    deadline = time.monotonic() + 120
    while not lease.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(world.folder).encode() in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
    process.communicate(timeout=240)
    shutil.rmtree(world.folder / "tmp")
    (world.folder / "tmp").mkdir()
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
    assert "**lost**: " in world.nightly("changes", "one", check=True).out
    world.script()
    assert world.local("one").code == 0


def test_ctrl_c_drains_twice_stops_and_the_night_continues(world):
    world.plan("one", check=True)
    world.script(gate={"*": "sleep:900"})
    process = world.start("nightly", "run", "one", f"--program={PROGRAM}", *world.target)
    wait_for(world, "gate.jax.gfx90a.3.12.smoke")
    os.kill(process.pid, signal.SIGINT)
    asked = "may finish, nothing new starts; Ctrl-C again stops at once"
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
    words = ("nightly", "run", "one", f"--program={PROGRAM}", *world.target)
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


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("options: [", "options: [--nope, ", "No such option '--nope'"),
        ("--wheel-suffix=", "--wheel-suffix=k", "not a PEP 440 version"),
        ("options: [", "options: [--wheel-suffix=+x, ", "--wheel-suffix is given twice: "),
        ("options: [", "options: [--python-versions=3.13, ", "--python-versions is given twice: "),
        ("options: [", "options: [--executor=lxc, ", "'lxc' is not one of"),
        ("options: [", "options: [--help, ", "an option that builds nothing"),
        ("options: [", "options: [--dry-run, ", "an option that builds nothing"),
        ("options: [", "options: [--compiler=gcc, ", "'gcc': unknown compiler"),
        ("options: [", "options: [--remote-cache=ftp://x, ", "ftp://x"),
        ("options: [", "options: [--container-cpus=0, ", "'0': no number of CPUs"),
        ("hours: 1}", "hours: 0}", "expected a whole number >= 1"),
    ],
)
def test_a_build_that_could_not_start_is_refused_when_its_night_is_planned(world, old, new, said):
    path = world.folder / "nightly.yaml"
    world.settings(path.read_text().replace(old, new, 1))
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if new in text)
    done = world.plan("one")
    assert done.code == 3
    assert f"nightly.yaml:{line}:" in done.err
    assert said in done.err
    assert not [*world.folder.glob("store/**/plan.json")]


def test_status_is_no_wider_than_its_terminal(world):
    world.plan("one", check=True)
    ours, its = pty.openpty()
    world.env["COLUMNS"] = "80"
    with world.start("nightly", "status", "one", *world.target, stdout=its) as process:
        assert process.wait(60) == 0
    lines = os.read(ours, 1 << 16).decode().splitlines()
    for end in (ours, its):
        os.close(end)
    assert max(map(len, lines)) == 80, lines


def test_a_plan_warns_of_an_excuse_that_ended(world):
    ended = 'excused: [{cells: "*.gfx90c.*", owner: ann, reason: "old", until: 2020-01-01}]\n'
    world.settings((world.folder / "nightly.yaml").read_text() + ended)
    done = world.plan("one", check=True)
    assert "the excuse of ann for *.gfx90c.* ended on 2020-01-01: remove it, or" in done.err


def nights(world: World) -> list[str]:
    folder = world.path / "_rocwheel" / "nights"
    return sorted(path.parent.name for path in folder.glob("*/plan.json"))


def refused(done, code: int, *said: str) -> None:
    assert done.code == code, done.err
    assert "Traceback" not in done.err
    lines = [line for line in done.err.splitlines() if not line.startswith("warning: ")]
    assert lines[-2].startswith("error: "), done.err
    assert lines[-1].startswith("hint:  "), done.err
    for text in said:
        assert text in done.err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("gfx90a]", "gfx90b]", ("'gfx90b': unknown GPU family", "did you mean gfx90")),
        ("gfx90a]", "gfx942]", ("jax: 'gfx942': unknown GPU", "did you mean gfx94X-dcgpu?")),
        (
            "source_dir: source",
            "source_dir: nowhere",
            ("nowhere: no such folder", "correct `source"),
        ),
    ],
)
def test_what_is_not_there_is_refused_by_the_plan(world, old, new, said):
    world.settings((world.folder / "nightly.yaml").read_text().replace(old, new))
    refused(world.plan("one"), 3, *said)
    assert nights(world) == []


def test_an_unknown_suite_of_ones_own_family_is_refused_by_the_plan(world):
    file = world.folder / "families.yaml"
    file.write_text(OWN.format(suite="smok"))
    world.settings(families="ours")
    done = world.plan("one", f"--family-file={file}")
    refused(done, 3, "ours: its policy names the suite 'smok'", "did you mean smoke")
    assert nights(world) == []
    file.write_text(OWN.format(suite="smoke"))
    done = world.plan("one", f"--family-file={file}", "--explain", check=True)
    assert "gate.jax.ours.3.12.smoke" in done.out
    file.unlink()  # without it nothing true can be said of what the family has
    for words in (("status", "one"), ("changes", "one"), ("report",)):
        refused(world.nightly(*words), 3, f"{file}: no such file", "put it back there")


def test_ones_own_families_stay_on_this_machine(world):
    file = world.folder / "families.yaml"
    file.write_text(OWN.format(suite="smoke"))
    away = World(world.folder / "away", "file:///nowhere")
    away.store = "s3://bucket/prefix"
    done = away.plan("one", f"--family-file={file}")
    refused(done, 3, "go into a store of this machine only")


def test_a_store_without_conditions_is_refused_before_anything_is_planned(world, servers):
    server = servers["rclone"]
    world.env |= server.environ()
    world.store = servers.fresh_url("rclone")
    done = world.plan("one")
    refused(done, 7, world.store)
    kept = server.folder / world.store.removeprefix("s3://")
    assert not list(kept.rglob("plan.json"))


def test_a_night_of_another_format_says_so_once_and_holds_up_no_other(world):
    """A plan and summaries as rocwheel wrote them at ce4dd45, before the summary had a number."""
    world.plan("zero", check=True)
    world.plan("one", check=True)
    for name in ("zero", "one"):
        record = world.path / f"_rocwheel/nights/{name}/plan.json"
        old = {**json.loads(record.read_text()), "absent": [], "repeats": "", "schema": 1}
        record.write_bytes(canonical_json(old))
        old = {"night": name, "made": old["made"], "written": old["made"], "by": "me", "tool": "0",
               "cells": [], "families": [], "builds": [], "sources": [], "absent": []}  # fmt: skip
        (record.parent / "summary.json").write_bytes(canonical_json(old))
    for words in (("run", "one"), ("status", "one"), ("check",), ("changes", "one")):
        done = world.nightly(*words)
        refused(
            done,
            3,
            "one/plan.json: schema: is 1, and this rocwheel reads 3",
            "nightly plan --",
            " --night NAME`",
        )
        assert len(done.err.splitlines()) == 2, done.err
    done = world.plan("two", check=True)
    assert len(done.err.splitlines()) == 1, done.err
    assert "/summary.json: schema: is 1, and this rocwheel reads 3 (and 1 more): pages" in done.err
    world.nightly("cell", "two", "build.jax", f"--program={PROGRAM}", check=True)
    done = world.run("nightly", "report", "--night=two", *world.target, check=True)
    assert done.err.count("schema: is 1") == 1, done.err
    assert " (and 1 more): pages leave it out" in done.err


def test_cells_read_the_data_that_the_night_was_run_with(world, monkeypatch):
    world.plan("one", check=True)
    programs = []

    def begin(scheduler):
        programs.append(scheduler.worker.here.program)
        raise ConfigError("it began")

    monkeypatch.setattr(LocalScheduler, "run", begin)
    for name, value in world.env.items():
        monkeypatch.setenv(name, value)
    data = f"--ci-dir={ROOT / 'ci'}"
    for words in ((), ("--program=there",), (f"--program=there {data}",)):
        assert main(["nightly", "run", "one", data, *words, *world.target]) == 3
    assert programs == [(*programs[0][:-1], data), ("there", data), ("there", data)]
    assert programs[0][-2].endswith("ci_build")


def test_a_cell_that_cannot_begin_is_not_started_for_ever(world):
    world.plan("one", check=True)
    done = world.nightly("run", "one", "--program=sh -c 'echo out of order >&2; exit 9'")
    refused(done, 8, "build.jax: its process ended before an attempt began", "cells.log")
    log = re.search(r"what it printed is in (\S+);", done.err)
    assert Path(log[1]).read_text().count("out of order") == 2, "as often as the plan says"


@dataclass(frozen=True, kw_only=True)
class Bad:
    """A bad night: what is played, and what every command and the page say of it."""

    words: str  # that name its cause
    codes: tuple[int, int, int, int] = (0, 5, 5, 0)  # of plan, run, status and check
    cause: str = ""  # its class; "" where there is none
    tries: int = 1  # at the cell, by the last of its name
    cell: str = "unit"
    plays: dict[str, dict[str, str]] = field(default_factory=dict)
    rocm: str = ""
    families: str = "gfx90a"
    more: str = ""  # settings


def gate(what: str, **more) -> Bad:
    return Bad(plays={"gate": {"gfx90a*unit*": what}}, **more)


def build(what: str, **more) -> Bad:
    return Bad(plays={"build": {"*": what}}, cell="build", codes=(0, 5, 5, 8), **more)


HANG = "HW Exception by GPU node-4 (Agent handle: 0x55d) reason :GPU Hang"
IMAGES = "images: [{recipe: jax, push: here.io}]\nimage: {cpus: 1, memory_mib: 64, disk_mib: 1}\n"
BAD = {
    "no ROCm for anybody": Bad(
        words="lists nothing to build with", rocm="tarballs: ./empty", codes=(5, 5, 5, 8),
        cause="absent", tries=0),
    "a page of tarballs that is a login page": Bad(
        words="cannot be read", rocm="tarballs: {login}", codes=(5, 5, 5, 8), cause="absent", tries=0),
    "no ROCm, which is excused": Bad(
        words="othing was built", rocm="tarballs: ./empty", codes=(5, 5, 5, 8), tries=0,
        more='excused: [{cells: "*", owner: ann, reason: "not yet", until: 2999-01-01}]\n'),
    "a stream that went quiet": Bad(
        words="8 days old, and 7 are allowed", rocm="tarballs: {old}", codes=(0, 5, 5, 8),
        cause="absent", cell="source", tries=0),
    "a build that fails": build("fail", words="played: fail", cause="wheels"),
    "a builder whose disk is full": build(
        "says:8:/scratch: No space left on device", words="No space left", cause="machine", tries=2),
    "a tarball that is cut short": build(
        "says:9:therock-dist-linux-gfx90a-7.1.0.tar.gz: truncated", words="truncated", cause="inputs"),
    "a tarball that a gate finds cut short": gate(
        "infra:therock-dist-linux-gfx90a-7.1.0.tar.gz: truncated", words="truncated", cause="inputs"),
    "a tarball of another digest": build(
        f"says:9:https://rocm/a.tar.gz: SHA-256 is {'0' * 64}, not {'1' * 64}", words="SHA-256 is",
        cause="inputs"),
    "names that are taken by other bytes": build(
        "says:7:jaxlib.whl: 7078 bytes are stored, not 7081", words="7078 bytes", cause="wheels"),
    "a build that is killed each time": build(
        "kill", words="ended by SIGKILL", cause="machine", tries=2),
    "tests that fail": gate("fail", words="fail", cause="tests"),
    "a test that crashes": gate("crash", words="crash", cause="tests"),
    "flaky tests": gate("flaky", words="flaky", cause="tests"),
    "a family that fails beside one that passes": gate(
        "fail", families="gfx90a, gfx1151", words="1 of 2 families released", cause="tests"),
    "a gate that is killed each time": gate(
        "kill", words="ended by SIGKILL", cause="machine", tries=2),
    "a GPU that hangs": gate(f"says:23:{HANG}", words="GPU Hang", cause="machine", tries=2),
    "a machine without a GPU": gate(
        "says:8:/dev/kfd: no such device", words="/dev/kfd", cause="machine", tries=2),
    "a store that a gate cannot reach": gate(
        "says:7:s3://bucket: no answer", words="s3://bucket: no answer", cause="store", tries=2),
    "an image that no engine can make": Bad(
        plays={"image": {"*": "says:8:docker: no such program"}}, words="docker: no such program",
        cause="machine", tries=2, cell="image", more=IMAGES),
    "a registry that is away": Bad(
        plays={"image": {"*": "says:7:here.io: no answer"}}, words="here.io: no answer",
        cause="store", tries=2, cell="image", more=IMAGES),
}  # fmt: skip


def planned(world: World, bad: Bad, server: FaultServer) -> Done:
    """Plan the night with what is wrong in it."""
    (world.folder / "empty").mkdir()
    day = (datetime.now(tz=timezone.utc) - timedelta(days=8)).date()
    name = f"therock-dist-linux-gfx90a-7.1.0a{day:%Y%m%d}.tar.gz"
    listed = f'const files = [{{"name": "{name}", "mtime": 1}}]'.encode()
    pages = {
        "login": server.add("login/", b"<html><title>Sign in</title><form></form></html>"),
        "old": server.add("tarball/", listed),
    }
    server.add(f"tarball/{name}", b"ROCm")
    world.settings(families=bad.families)
    text = (world.folder / "nightly.yaml").read_text() + bad.more
    if bad.rocm:
        source = "source: therock-dist-linux-gfx90a-7.1.0.tar.gz"
        text = text.replace(source, bad.rocm.format(**pages))
    world.settings(text)
    world.script(**bad.plays)
    return world.plan("one")


def told(world: World, bad: Bad, codes: list[int]) -> None:
    """Status, check, the message and the page say what happened, at once."""
    status, check = world.nightly("status", "one"), world.nightly("check")
    message = world.nightly("changes", "one", check=True).out
    assert (*codes, status.code, check.code) == bad.codes[: len(codes)] + bad.codes[2:]
    shown = [status.out, message, html.unescape(page(world))]
    assert all(bad.words in text for text in shown), (bad.words, shown)
    assert message.startswith(f"# Night one: {status.out.partition(': ')[2].splitlines()[0]}")
    badge = json.loads((world.path / "status/badge.json").read_bytes())
    assert badge["color"] != "brightgreen"
    assert all(item.reason for item in stood(world).values() if item.settled and not item.green)
    assert "Traceback" not in status.err + check.err
    assert bool(check.code) == bool(check.err)
    assert f"**{bad.cause}**" in message or not bad.cause
    if bad.cause == "inputs":
        assert all("epair the inputs that the plan names, then" in text for text in shown), shown
    if bad.cell == "unit" and bad.tries:
        said = " ".join(status.out.split("\n", 1)[1].split())
        state = re.search(r"gate\.jax\.gfx90a\.3\.12\.unit (\S+) ", said)[1]
        assert f"gate.jax.gfx90a.3.12.unit: {state}" in said, "its promotion calls it the same"
        assert status.out.startswith(("one: 1 red", "one: yellow")), "its promotion is not another"
        assert message.count("new failure") + message.count("fails") <= 1
    if bad.cell == "source":
        assert bad.words in world.run("doctor", "--for=release", *world.target).out
    last = [a for name, a in attempts(world, "one") if bad.cell in name.split(".")]
    assert max((len(items) for items in last), default=0) == bad.tries


@pytest.mark.parametrize(
    "name",
    merge_tries(
        "no ROCm for anybody", "tests that fail", "a tarball that a gate finds cut short", of=BAD
    ),
)
def test_a_bad_night_is_told_by_page_message_and_commands_with_their_exit_statuses(world, name):
    with FaultServer() as server:
        first = planned(world, BAD[name], server)
        done = world.local("one")
    assert "Traceback" not in first.err + done.err
    told(world, BAD[name], [first.code, done.code])


def test_the_lines_for_a_flaky_set_release_it(world):
    world.plan("one", check=True)
    world.script(gate={"*unit*": "flaky"})
    assert world.local("one").code == 5
    (cause,) = json.loads(world.run("--json", "nightly", "changes", "one", *world.target).out)[
        "causes"
    ]
    for line in cause["lines"]:
        words = shlex.split(line.replace("NAME", "ann").replace("WHY", "known"))[1:]
        program = [f"--program={PROGRAM}"] if "run" in words else []
        world.run(*words, *program, check=True)
    status = world.nightly("status", "one", check=True)
    assert status.out.startswith("one: yellow")
    assert "promote --" not in status.out, "that is done"


def test_a_night_is_run_in_the_store_that_it_was_planned_for(world):
    world.plan("one", check=True)
    copy = shutil.copytree(world.path, world.folder / "copy")
    done = world.run("nightly", "run", "one", f"--store={copy.as_uri()}")
    assert (done.code, "was planned for another store: " in done.err) == (3, True)


def test_a_night_that_is_planned_already_is_no_error_for_a_timer(world):
    world.plan("one", check=True)
    assert world.plan("one").code == 3
    again = world.plan("one", "--keep-going", check=True)
    assert again.out.startswith("one nothing-to-do: ")


def test_nights_are_found_without_their_index_and_not_in_a_folder_that_is_gone(world):
    nights = ["one", "two", "three"]
    index = world.path / "_rocwheel/nights/index.json"
    for night, hurt in zip(
        nights, (str, index.unlink, lambda: index.write_text('{"nigh')), strict=True
    ):
        hurt()
        world.plan(night, check=True)
    assert json.loads(index.read_text())["nights"] == nights
    index.unlink()
    assert world.nightly("status").out.startswith("three: ")
    world.path.rename(world.folder / "moved")
    for words in (["status"], ["check"], ["run"], ["changes"]):
        done = world.nightly(*words)
        assert (done.code, "no such folder" in done.err) == (7, True), words


@pytest.mark.soak
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_store_that_fills_up_in_a_gate_is_told_within_minutes_and_the_night_goes_on(world):
    world.plan("one", check=True)
    world.script(gate={"*": "sleep:900"})
    store, kept = world.folder / "store", world.folder / "kept"
    store.rename(kept)
    store.mkdir()
    engines.mount(store, "4m")
    try:
        shutil.copytree(kept, store, dirs_exist_ok=True)
        process = world.start("nightly", "run", "one", f"--program={PROGRAM}", *world.target)
        wait_for(world, "gate.jax.gfx90a.3.12.smoke/1.lease")
        with suppress(OSError), (store / "filler").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        full = time.monotonic()
        _, err = process.communicate(timeout=240)
        assert (process.returncode, time.monotonic() - full < 120) == (7, True), err
        status, check = world.nightly("status", "one"), world.nightly("check")
        assert (status.code, check.code) == (5, 8)
        message = world.nightly("changes", "one", check=True).out
        for text in (err, status.out, check.err, message):
            assert "No space left on device" in text, text
        assert "**store**: " in message
        assert "nightly run" in check.err
        causes = {item.cause.value for item in stood(world).values() if item.cause}
        assert causes == {"store"}
        (store / "filler").unlink()
        world.script()
        assert world.local("one").code == 0
        assert set(world.states("one").values()) == {"pass"}
    finally:
        engines.unmount(store)


@pytest.mark.soak
@pytest.mark.xdist_group("seaweedfs")
@pytest.mark.parametrize("kind", ["500", "lost"])
def test_a_night_whose_kth_request_fails_is_known_and_goes_on(tmp_path, front, servers, kind):
    """Engine and cells meet the fault, whoever asks first, and each time they ask again."""
    world = World(tmp_path, servers.fresh_url("seaweedfs"))
    world.plan("one", check=True)
    front.faults.arm(None)
    world.local("one", check=True)
    total = len(front.faults.seen)
    for number in range(1 + KINDS.index(kind), total, total // 3):
        night = f"night-{number}"
        world.settings(suffix=f"+rocm7.1.{number}")
        world.plan(night, check=True)
        front.faults.arm(Fault(number, kind))
        world.local(night)
        front.faults.arm(None)
        for name, item in stood(world, night).items():
            if item.settled and not item.passed:
                world.nightly("retry", night, name, "--reason=a fault", check=True)
        done = world.local(night)
        assert done.code == 0, (number, done.err)
        for _, items in attempts(world, night):
            assert [item.number for item in items] == list(range(1, len(items) + 1))
            assert all(item.ended for item in items), "none is forgotten"


@pytest.mark.soak
def test_two_nights_at_once_on_one_machine_both_end_and_the_page_is_of_the_newest(world):
    for night in ("one", "two"):
        world.plan(night, check=True)
    words = (f"--program={PROGRAM}", *world.target)
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
        process = world.start("nightly", "run", nights[-1], f"--program={PROGRAM}", *world.target)
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
        if items and not stood(world, nights[-1])[name].passed:
            world.nightly("retry", nights[-1], name, "--reason=killed", check=True)
    done = world.local(nights[-1])
    assert done.code == 0, done.err
    assert released(world)
    for night in nights:
        assert all(a.ended for _, items in attempts(world, night) for a in items), "none forgotten"
    assert not alive(world)


def attempts(world: World, night: str):
    return Nights(open_store(world.store)).book(night).attempts.items()


def stood(world: World, night: str = "one") -> dict[str, standing.CellStanding]:
    return standing.stand(Nights(open_store(world.store)).book(night))


def wait_for(world: World, cell: str, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    folder = world.path / "_rocwheel" / "nights" / "one" / "cells" / cell
    while not folder.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def alive(world: World) -> list[str]:
    """Processes that still work in this world; a cell may need a moment to go."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        found = [" ".join(words) for words in called(str(world.folder)).values()]
        if not found:
            return []
        time.sleep(0.2)
    return found
