"""Nights on a real Slurm with made GPUs: rounds, GRES, and everything that goes wrong."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from contextlib import suppress
from copy import copy
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from night.test_bisect import probes, two_nights
from night.test_bisect import words as bisect_words
from night.test_local import BAD, planned, told
from support import slurm
from support.faultserver import FaultServer
from support.night import PROGRAM, World

from rocwheel.base.process import HostRunner
from rocwheel.base.store.opening import open_store
from rocwheel.night import slurm as engine
from rocwheel.night import standing, truth
from rocwheel.night.slurm import STUCK
from rocwheel.records.verdict import State
from rocwheel.release.ledger.nights import Nights

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.needs(*slurm.PROGRAMS),
    pytest.mark.xdist_group("slurm"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm.cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture
def world(tmp_path, cluster):
    return World(tmp_path, (tmp_path / "store").as_uri(), env=dict(cluster.env))


def submit(world: World, night: str = "one", *words: str, check: bool = False):
    program = f"--program={PROGRAM}"
    return world.nightly("run", night, "--engine=slurm", program, *words, check=check)


def book(world: World, night: str = "one"):
    return Nights(open_store(world.store)).book(night)


def begun(world: World, cell: str, seconds: float = 600) -> str:
    """Wait until an attempt at a cell began; its job."""
    deadline = time.monotonic() + seconds
    while True:
        attempts = book(world).attempts.get(cell, ())
        if attempts and attempts[-1].begun:
            return attempts[-1].begun.job
        assert time.monotonic() < deadline, cell
        time.sleep(0.3)


all_faults = pytest.mark.soak  # a merge tries the shortest of each kind
SMOKE = "gate.jax.gfx90a.3.12.smoke"


def test_a_night_goes_on_round_by_round_without_us(world, cluster):
    world.plan("one", check=True)
    shown = submit(world, "one", "--dry-run")
    assert shown.out.startswith("build.jax: waiting: dist_wheels ")
    assert not cluster.ask("squeue", "-h")
    done = submit(world)
    assert done.code == 0, done.err
    assert "nothing to submit" in submit(world).out, "nothing is submitted twice"
    cluster.idle()
    assert "nothing to submit" in world.nightly("run", "one").out, "it goes on where it ran"
    states = world.states("one")
    assert set(states.values()) == {"pass"}, states
    hosts = {a.ended.host for items in book(world).attempts.values() for a in items}
    assert hosts <= set(cluster.nodes)
    assert (world.folder / "store" / "v2" / "gfx90a" / "jaxlib").exists()


def test_a_cancelled_job_is_not_run_and_a_killed_one_infra(world, cluster):
    world.plan("one", check=True)
    world.script(gate={"*smoke*": "sleep:120", "*unit*": "kill"})
    submit(world, check=True)
    job = begun(world, SMOKE)
    cluster.ask("scancel", job)
    cluster.idle()
    states = world.states("one")
    assert states[SMOKE] == "not-run"
    unit = book(world).attempts["gate.jax.gfx90a.3.12.unit"][0].ended
    assert unit.state is State.INFRA
    assert "SIGKILL" in unit.reason


@all_faults
def test_a_bisect_runs_its_probes_as_jobs_and_shares_them_with_another_machine(world, cluster):
    two_nights(world)
    asked = ("nightly", "bisect", *bisect_words("test_a"), *world.target)
    nights = Nights(open_store(f"{world.store}/bisect"))
    engines = lambda: {  # noqa: E731
        item.begun.engine
        for name in nights.names()
        for tries in nights.book(name).attempts.values()
        for item in tries
    }
    started = [world.start(*asked, "--engine=slurm")]
    while "slurm" not in engines():
        assert started[0].poll() is None, started[0].communicate()
        time.sleep(0.3)
    other = copy(world)
    other.env = {**world.env, "XDG_CACHE_HOME": str(world.folder / "elsewhere")}
    started.append(other.start(*asked))
    for process in started:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        assert "found: ROCm (7.1.5 → 7.2.0)" in out
    assert {len(states) for states in probes(world).values()} == {1}, "none ran twice"
    assert engines() == {"local", "slurm"}


@all_faults
def test_a_preempted_job_is_another_attempt_and_the_first_says_why(world, cluster):
    world.plan("one", check=True)
    world.script(gate={"*smoke*": "sleep:15"})
    submit(world, check=True)
    begun(world, SMOKE)
    host = book(world).attempts[SMOKE][-1].begun.host
    cluster.ask(
        "sbatch", "--partition=urgent", f"--nodelist={host}", "--gres=gpu:mi250:4", "--mem=100M",
        "--output=/dev/null", "--wrap=sleep 2",
    )  # fmt: skip
    cluster.idle()
    first, *later = book(world).attempts[SMOKE]
    assert first.ended.state is State.INFRA
    assert first.ended.reason == "was preempted"
    assert later[-1].ended.state is State.PASS


@all_faults
def test_a_node_that_dies_is_infra_and_the_others_go_on(world, cluster):
    world.plan("one", check=True)
    world.script(gate={"*smoke*": "sleep:20"})
    submit(world, check=True)
    begun(world, SMOKE)
    host = book(world).attempts[SMOKE][-1].begun.host
    cluster.kill(host)
    cluster.ask("scontrol", "update", f"nodename={host}", "state=down", "reason=killed")
    cluster.start(host)
    cluster.resume(host)
    cluster.idle()
    attempts = book(world).attempts[SMOKE]
    assert attempts[-1].ended.state is State.PASS
    assert all(a.ended for a in attempts), "no attempt is forgotten"
    cluster.ready()


def silence(world: World, night: str = "one") -> None:
    """Let the store say that nothing gave a sign for four minutes."""
    for file in (world.folder / "store/_rocwheel/nights" / night / "cells").rglob("*.*"):
        then = file.stat().st_mtime - 240
        os.utime(file, (then, then))


@all_faults
def test_a_controller_that_lost_all_it_knew_leaves_a_night_that_check_names(world, cluster):
    world.plan("one", check=True)
    world.script(gate={"*smoke*": "sleep:60"})
    submit(world, check=True)
    begun(world, SMOKE)
    cluster.kill("slurmctld")
    cluster.forget()
    cluster.start("slurmctld")
    cluster.ready()
    cluster.idle()
    silence(world)
    checked = world.nightly("check", "--max-age=36h")
    assert checked.code == 8
    assert f"{SMOKE}: lost: " in checked.err
    world.script()
    submit(world, check=True)
    cluster.idle()
    assert set(world.states("one").values()) == {"pass"}
    assert [bool(a.ended) for a in book(world).attempts[SMOKE]] == [False, True]


def test_what_the_cluster_has_not_is_said_before_anything_is_submitted(world, cluster):
    world.settings(families="gfx1151")
    world.plan("one", check=True)
    done = submit(world)
    assert done.code == 8
    assert "Slurm has no partition gfx1151" in done.err
    world.settings(families="gfx90a")
    pools = world.folder / "pools.yaml"
    pools.write_text("gres: {'gpu:mi250': 'gpu:h100'}\n")
    world.plan("two", f"--pools={pools}", check=True)
    done = submit(world, "two")
    assert done.code == 8
    assert "has no gpu:h100" in done.err
    assert not cluster.ask("squeue", "-h")
    without = World(
        world.folder / "other", world.store, env={"PATH": "/nonexistent", **cluster.env}
    )
    done = without.nightly("run", "two", "--engine=slurm")
    assert done.code == 8
    assert "sinfo" in done.err


@pytest.mark.soak
@pytest.mark.parametrize(
    "name",
    ["a builder whose disk is full", "a tarball that is cut short", "a build that is killed each time",
     "tests that fail", "a test that crashes", "a gate that is killed each time", "a GPU that hangs",
     "an image that no engine can make"],
)  # fmt: skip
def test_a_bad_night_is_told_as_on_one_machine(world, cluster, name):
    with FaultServer() as server:
        first = planned(world, BAD[name], server)
        submit(world)
        cluster.idle()
    told(world, BAD[name], [first.code, BAD[name].codes[1]])


@pytest.mark.soak
def test_three_clients_at_once_run_no_cell_twice(world, cluster):
    world.plan("one", check=True)
    program = f"--program={PROGRAM}"
    words = ("nightly", "run", "one", "--engine=slurm", program, *world.target)
    clients = [world.start(*words) for _ in range(3)]
    said = [client.communicate(timeout=600)[1] for client in clients]
    assert [client.returncode for client in clients] == [0, 0, 0], said
    cluster.idle()
    assert set(world.states("one").values()) == {"pass"}
    twice = {n: len(a) for n, a in book(world).attempts.items() if len(a) > 1 and n != "page"}
    assert not twice


def test_a_job_that_slurm_holds_is_an_error_with_the_line_that_releases_it(world, cluster):
    world.plan("one", check=True)
    nodes = ",".join(cluster.nodes)
    cluster.ask("scontrol", "update", f"nodename={nodes}", "state=drain", "reason=test")
    try:
        submit(world)
        jobs = cluster.ask("squeue", "-h", "-o", "%A %j").splitlines()
        held = next(line.split()[0] for line in jobs if line.endswith("build.jax.1"))
        cluster.ask("scontrol", "hold", held)
    finally:
        cluster.resume(*cluster.nodes)
    done = submit(world)
    assert done.code == 8
    assert f"scontrol release {held}" in done.err
    checked = world.nightly("check", "--max-age=36h")
    assert checked.code == 8
    assert f"scontrol release {held}" in checked.err
    cluster.ask("scontrol", "release", held)
    cluster.idle()
    assert set(world.states("one").values()) == {"pass"}


def test_a_job_that_no_node_can_hold_is_an_error_with_the_line_that_shows_it(world, cluster):
    text = (world.folder / "nightly.yaml").read_text()
    world.settings(
        text.replace("build: {cpus: 1, memory_mib: 64", "build: {cpus: 9, memory_mib: 30000")
    )
    world.plan("one", check=True)
    submit(world)
    (job, *_) = cluster.ask("squeue", "-h", "-o", "%A").split()
    try:
        for done in (submit(world), world.nightly("check")):
            assert (done.code, f"scontrol show job {job}" in done.err) == (8, True), done.err
    finally:
        cluster.ask("scancel", "--user", os.environ.get("USER", "root"))
        cluster.idle()


def test_nodes_that_are_drained_are_named_with_the_lines_that_resume_them(world, cluster):
    """What a controller killed twice leaves: nothing can run, and no job of it is held."""
    world.plan("one", check=True)
    nodes = ",".join(cluster.nodes)
    cluster.ask("scontrol", "update", f"nodename={nodes}", "state=drain", "reason=killed twice")
    try:
        submit(world)
        deadline = time.monotonic() + 120
        while "DRAINED" not in (said := cluster.ask("squeue", "-h", "-o", "%r")):
            assert time.monotonic() < deadline, said
            time.sleep(0.3)
        lines = [f"scontrol update nodename={node} state=resume" for node in cluster.nodes]
        for done in (submit(world), world.nightly("check", "--max-age=36h")):
            assert done.code == 8, done.out
            assert all(line in done.err for line in lines), done.err
    finally:
        cluster.resume(*cluster.nodes)
    cluster.idle()
    assert set(world.states("one").values()) == {"pass"}


@all_faults
def test_the_time_limit_of_a_job_is_a_timeout_and_promotes_nothing(world, cluster):
    world.plan("one", check=True)
    world.script(gate={"*smoke*": "sleep:600"})
    submit(world, check=True)
    cluster.ask("scontrol", "update", f"jobid={begun(world, SMOKE)}", "timelimit=1")
    cluster.idle()
    (attempt,) = book(world).attempts[SMOKE]
    assert attempt.ended.state is State.TIMEOUT
    assert attempt.ended.reason == "ran past the job's time limit"
    assert world.states("one")["promote.jax.gfx90a"] == "fail"


def on_node(node: str, words: tuple[str, ...] = ()) -> list[int]:
    """Processes of jobs on a node, those whose command line has all of the words."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            env, line = (folder / "environ").read_bytes(), (folder / "cmdline").read_text()
            if f"SLURMD_NODENAME={node}\0".encode() in env and all(w in line for w in words):
                pids.append(int(folder.name))
    return pids


def kill(cluster, world: World, chance: random.Random) -> str:
    """Kill one thing, and start again what an administrator's system would; what it was."""
    what = chance.choice(("controller", "node", "cell", "client", "client"))
    node = chance.choice(cluster.nodes)
    if what == "controller":
        cluster.kill("slurmctld")
        time.sleep(chance.uniform(0, 2))
        cluster.start("slurmctld")
    elif what == "client":
        client = world.start(
            "nightly", "run", "--engine=slurm", f"--program={PROGRAM}", *world.target
        )
        time.sleep(chance.uniform(0, 4))
        client.kill()
        client.communicate()
    else:
        if what == "node":
            cluster.kill(node)
        for pid in on_node(node, () if what == "node" else ("nightly", "cell")):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if what == "node":
            time.sleep(chance.uniform(0, 3))
            cluster.start(node)
    return what if what in {"controller", "client"} else f"{what} {node}"


def quiet(cluster) -> None:
    """Wait until Slurm has nothing left to do for us, or only what it holds back."""
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline:
        env = {**os.environ, **cluster.env}
        done = subprocess.run(
            ["squeue", "-h", "-o", "%T %r"], env=env, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            lines = done.stdout.splitlines()
            first = [line for line in lines if not line.startswith("PENDING Depend")]
            stuck = [line for line in first if any(word in line.lower() for word in STUCK)]
            if not lines or (stuck and stuck == first):  # what depends on these waits with them
                return
        time.sleep(0.5)
    raise AssertionError(cluster.ask("squeue"))


def lines_of_check(world: World, cluster) -> list[str]:
    """The lines to type that `nightly check` prints a quarter of an hour later."""
    nights, runner = Nights(open_store(world.store)), HostRunner({**os.environ, **cluster.env})
    waits = engine.waiting(nights, "one", runner)
    later = datetime.now(tz=timezone.utc) + timedelta(minutes=16)
    said = "".join(truth.problems(nights, later, 36 * 3600, waits))
    lines = re.findall(r"`(nightly run one)`", said)
    return lines + engine.release_lines(engine.held(waits), runner)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(6))
def test_five_kills_at_random_moments_of_a_night_end_it_or_name_the_line_to_run(
    world, cluster, seed
):
    """Six nights, thirty kills. Only lines that a command printed are run by the person."""
    chance = random.Random(seed)
    world.plan("one", check=True)
    world.script(gate={"*": "sleep:4"}, build={"*": "sleep:3"})
    submit(world)
    killed = []
    for _ in range(5):
        time.sleep(chance.uniform(0, 5))
        killed.append(kill(cluster, world, chance))
    # a controller that had not saved a job launches it twice, and drains the node for that
    cluster.ready("drain", "drng")
    typed: list[str] = []
    for _ in range(6):
        quiet(cluster)
        silence(world)
        if set(world.states("one").values()) == {"pass"}:
            break
        if not all(item.settled for item in standing.stand(book(world)).values()):
            assert lines_of_check(world, cluster), "it stands still, and check prints no line"
        done = submit(world)
        typed.append(f"nightly run: {done.out.splitlines()[-1:]}")
        for line in re.findall(
            r"scontrol (?:update nodename=\S+ state=resume|release \S+)", done.err
        ):
            typed.append(line)
            subprocess.run(line.split(), env={**os.environ, **cluster.env}, check=False)
    states = world.states("one")
    print(f"seed {seed}: killed {killed}; typed {typed}; {states}")
    assert set(states.values()) == {"pass"}, states
    attempts = book(world).attempts
    assert all(items[-1].ended for items in attempts.values())
    shown = (world.folder / "store" / "status" / "index.html").read_text()
    assert "Nothing was built" not in shown
    cluster.resume(*cluster.nodes)  # one that stayed drained while the night went on elsewhere
    cluster.ready()
