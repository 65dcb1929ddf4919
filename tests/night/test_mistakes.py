"""What is wrong with a night, at the command: one error, nothing half-written, the rest goes on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.night import ROOT, World

from rocwheel.base.errors import ConfigError
from rocwheel.base.values import canonical_json
from rocwheel.cli import main
from rocwheel.night.local import LocalScheduler

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]
OWN = """
families:
  - name: ours
    about: any machine
    targets: [gfx90a]
    suites: {{{suite}: required}}
    runners: [any]
    proof: {{backend: cpu, devices: false, rocm: true, official: false}}
"""


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, (tmp_path / "store").as_uri())


def nights(world: World) -> list[str]:
    folder = world.folder / "store" / "_rocwheel" / "nights"
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
    for words in (("status", "one"), ("changes", "one"), ("report", "state")):
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
        record = world.folder / f"store/_rocwheel/nights/{name}/plan.json"
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
    world.nightly("cell", "two", "build.jax", f"--program={program()}", check=True)
    done = world.run("report", "state", "--night=two", *world.target, check=True)
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


def program() -> str:
    from support.night import PROGRAM

    return PROGRAM
