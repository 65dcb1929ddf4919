"""What a run leaves in a folder and in a store: whole, its own, and with the logs its page links to."""

from __future__ import annotations

import os

import pytest
from support.report import FOUND, rich
from support.wheelset import Shop, make_set, make_verdict

from rocwheel.base.values import replace
from rocwheel.gate.report import render
from rocwheel.gate.report.gate_page import Trails
from rocwheel.gate.verdict import storing
from rocwheel.gate.verdict.judge import merge_results
from rocwheel.records.results import Outcome, ProcessRecord
from rocwheel.records.verdict import Demand

DEMAND = Demand(must_run=1)


def run(number=1):
    """A shard in which tests failed in processes 1 and 2, with a log each."""
    results = rich()
    processes = tuple(
        ProcessRecord(number=n, lane=f"gpu{n - 1}", start_ms=0, end_ms=9, ended=f"in {number}",
                      log=f"00{n}.log")
        for n in (1, 2)
    )  # fmt: skip
    names = {test.test: test.test.replace("test_", f"test_{number}", 1) for test in results.tests}
    tests = tuple(replace(test, test=names[test.test]) for test in results.tests)
    files = ("test_1.py", "test_2.py")
    return replace(
        results, shard=f"{number}/2", processes=processes, tests=tests, collect_errors=(),
        faults=(), files=(f"test_{number}.py",), suite_files=files,
    )  # fmt: skip


@pytest.fixture
def shop(tmp_path, console):
    return Shop((tmp_path / "store").as_uri(), console)


@pytest.fixture
def manifest(tmp_path, shop):
    found = make_set(tmp_path / "wh")
    shop.stage(tmp_path / "wh")
    return found


@pytest.fixture
def logs(tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    for number in (1, 2, 3):
        (folder / f"00{number}.log").write_bytes(b"said %d" % number)
    return folder


def stored_logs(tmp_path):
    return sorted((tmp_path / "store").rglob("*.log"))


def test_the_logs_of_processes_in_which_tests_failed_are_stored_beside_the_page(
    shop, manifest, logs, tmp_path
):
    (logs / "001.log").write_bytes(b"first\n" + b"x" * (4 << 20) + b"\nlast")
    results = run()
    storing.put(shop.staging, make_verdict(manifest), render(results, FOUND, {}), logs)
    one, two = stored_logs(tmp_path)
    assert two.read_bytes() == b"said 2"
    assert one.read_bytes().startswith(b"first\n")
    assert one.read_bytes().endswith(b"\nlast")
    assert one.stat().st_size < 2 << 20, "of a long one both ends"
    assert one.parent.name == "logs"
    assert (one.parents[1] / "report.html").is_file()


def test_a_log_that_is_gone_stops_nothing(shop, manifest, logs, tmp_path):
    (logs / "002.log").unlink()
    storing.put(shop.staging, make_verdict(manifest), render(run(), FOUND, {}), logs)
    assert [path.name for path in stored_logs(tmp_path)] == ["001.log"]


def test_the_page_of_merged_shards_leads_to_the_logs_of_each(shop, manifest, logs, tmp_path):
    """Both have a process 1 on a gpu0."""
    shards = []
    for number in (1, 2):
        verdict = make_verdict(manifest, shard=f"{number}/2")
        _, stored = storing.put(shop.staging, verdict, render(run(number), FOUND, {}), logs)
        shards.append(storing.shard_of(shop.staging, stored))
    merged = merge_results(shards, 2, DEMAND)
    _, verdict = storing.put(shop.staging, make_verdict(manifest), render(merged, FOUND, {}), logs)
    page = (tmp_path / "store" / verdict.reports["html"]).parent
    assert not (page / "logs").exists(), "they are there already"
    trails = Trails(merged, None)
    for test in (test for test in merged.tests if test.outcome is Outcome.FAILED):
        for attempt in test.attempts:
            log = page / os.path.normpath(f"logs/{trails.place(test.test, attempt).log}")
            assert log.read_bytes() == b"said %d" % attempt.process
            assert f"shards/{attempt.lane[0]}-of-2" in str(log.resolve())
        own = {f"in {test.attempts[0].lane[0]}", ""}  # of the last test of a process alone
        assert {trails.place(test.test, item).ended for item in test.attempts} <= own


def test_the_page_of_folders_that_were_merged_leads_to_their_logs(tmp_path, logs):
    storing.write(logs.parent, {"results.json": run().to_bytes()}, None)
    _, results = storing.shard_in(logs.parent, seen_from=tmp_path / "some/where")
    assert (tmp_path / "some/where/logs" / results.processes[0].log).resolve() == logs / "001.log"
