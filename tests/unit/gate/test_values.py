"""Shards, installs, histories and preflights as values."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wheelset import make_set

from rocwheel.errors import ConfigError, SourceError, WheelError
from rocwheel.gate import environment
from rocwheel.gate.engine.plan import Lane
from rocwheel.gate.environment import Wheel, WheelSet
from rocwheel.gate.machine import preflight
from rocwheel.gate.machine.accelerators import Accelerator, Maker
from rocwheel.gate.refusals import BrokenError, InfraError, UnfitError
from rocwheel.gate.run import with_unmet_skips
from rocwheel.gate.suite import discovery
from rocwheel.gate.suite.discovery import Shard
from rocwheel.gate.suite.history import KEPT, History
from rocwheel.gate.suite.suites import Source
from rocwheel.gate.verdict.merge import merge_results
from rocwheel.host.machine import Interpreter
from rocwheel.model import PythonVersion
from rocwheel.process import Completed
from rocwheel.results import Attempt, Fault, LaneRecord, Outcome, Results, TestResult
from rocwheel.values import replace
from rocwheel.verdict import State

PYTHON = PythonVersion.parse("3.12")

# --- files and shards ----------------------------------------------------------------------------


@given(
    sizes=st.dictionaries(st.text("abc/", min_size=1), st.integers(0, 10**6), min_size=1),
    count=st.integers(1, 9),
)
def test_shards_hold_every_file_once(sizes, count):
    parts = [discovery.part(sizes, Shard(number=n, count=count)) for n in range(1, count + 1)]
    assert sorted(file for part in parts for file in part) == sorted(sizes)


def test_shards_are_about_equal():
    sizes = {f"f{n}": (n * 7919) % 5000 for n in range(200)}
    loads = [
        sum(sizes[file] for file in discovery.part(sizes, Shard(number=n, count=4)))
        for n in range(1, 5)
    ]
    assert max(loads) < 1.02 * min(loads)


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "1/0", "a/b", "-1/4", "1/4 "])
def test_a_wrong_shard_is_refused(text):
    with pytest.raises(ConfigError, match="not a shard"):
        Shard.parse(text)


def test_the_whole_suite_has_no_shard_name():
    assert str(Shard.parse("1/1")) == ""
    assert str(Shard.parse("2/4")) == "2/4"


@pytest.fixture
def jax(tmp_path):
    for name in ("tests/a_test.py", "tests/b_test.py", "tests/deep/c_test.py", "tests/data/x.txt",
                 "jax/__init__.py", "conftest.py", "tests/tpu_test.py"):  # fmt: skip
        path = tmp_path / "jax" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    return tmp_path / "jax"


SOURCE = Source(
    folder="",
    paths=("tests/*_test.py", "tests/**/*_test.py"),
    exclude=("tests/*tpu*",),
    support=("conftest.py", "tests/**"),
)


def test_files_are_found_by_globs_and_left_out_by_globs(jax):
    tests = discovery.find(SOURCE, jax, Shard())
    assert tests.files == ("tests/a_test.py", "tests/b_test.py", "tests/deep/c_test.py")


def test_jax_itself_is_not_beside_its_tests(jax, tmp_path):
    laid = discovery.lay_out(discovery.find(SOURCE, jax, Shard()), SOURCE.support, tmp_path / "out")
    assert (laid.root / "tests/deep/c_test.py").is_file()
    assert (laid.root / "tests/data/x.txt").is_file()
    assert (laid.root / "conftest.py").is_file()
    assert not (laid.root / "jax").exists()


def test_paths_that_meet_nothing_and_too_many_shards_are_errors(jax):
    with pytest.raises(SourceError, match="meets no file"):
        discovery.find(replace(SOURCE, paths=("test/*.py",)), jax, Shard())
    with pytest.raises(SourceError, match="too few for 9 shards"):
        discovery.find(SOURCE, jax, Shard(number=9, count=9))
    with pytest.raises(SourceError, match="no such folder"):
        discovery.find(SOURCE, jax / "nowhere", Shard())


# --- environments --------------------------------------------------------------------------------


def test_a_manifests_wheels_are_installed_by_url_and_hash(tmp_path):
    manifest = make_set(tmp_path, upstream_jaxlib=True)
    wheels = environment.of_manifest(manifest, PYTHON, lambda name: f"https://host/{name}")
    lines = [wheel.requirement for wheel in wheels.wheels]
    assert len(lines) == 3
    for wheel in manifest.wheels:
        if wheel.python in ("", "3.12"):
            assert any(line.endswith(f" --hash=sha256:{wheel.sha256}") for line in lines)
    assert any(line.startswith("jaxlib==0.9.1 --hash=") for line in lines)
    assert sum("@ https://host/" in line for line in lines) == 2
    with pytest.raises(WheelError, match=r"no CPython 3\.13"):
        environment.of_manifest(manifest, PythonVersion.parse("3.13"), str)


def test_a_folder_of_wheels_needs_no_manifest(tmp_path):
    manifest = make_set(tmp_path, pythons=("3.11", "3.12"))
    wheels = environment.of_folder(tmp_path, PYTHON)
    assert wheels.manifest == ""
    assert wheels.jax_version == "0.9.1"
    assert {wheel.sha256 for wheel in wheels.wheels} == {
        wheel.sha256 for wheel in manifest.wheels if wheel.python in ("", "3.12")
    }
    assert all(wheel.url.startswith("file:///") for wheel in wheels.wheels)
    with pytest.raises(WheelError, match=r"0 plugin wheels for CPython 3\.13"):
        environment.of_folder(tmp_path, PythonVersion.parse("3.13"))
    with pytest.raises(WheelError, match="no such folder"):
        environment.of_folder(tmp_path / "nowhere", PYTHON)


WHEELS = WheelSet(
    manifest="",
    jax_version="0.9.1",
    wheels=(
        Wheel(filename="p.whl", project="jax-x-plugin", version="0.9.1", sha256="a", url="u"),
        Wheel(filename="l.whl", project="jaxlib", version="0.9.1", sha256="b", url=""),
    ),
)
INTERPRETER = Interpreter(version=PYTHON, full="3.12.1", executable=Path("/py"), headers=True)


def test_a_plan_installs_the_set_alone_and_holds_everything_to_it():
    planned = environment.plan(
        WHEELS,
        interpreter=INTERPRETER,
        folder=Path("/w"),
        requirements=("pytest==8.4.2",),
        constraints=("numpy==2.0", "jaxlib==0.8.0"),
        with_jax=True,
    )
    texts = {path.name: text.splitlines() for path, text in planned.files}
    assert texts["others.txt"] == ["jax==0.9.1", "pytest==8.4.2"]
    assert texts["constraints.txt"] == ["jax-x-plugin==0.9.1", "jaxlib==0.9.1", "numpy==2.0"]
    first, second, third, last = planned.commands
    assert first.argv == ("/py", "-m", "venv", "/w/env")
    assert {"--no-deps", "--require-hashes"} <= set(second.argv)
    assert "-c" in third.argv
    assert last.argv[-1] == "check"


# --- preflight -----------------------------------------------------------------------------------

GPU = Accelerator(maker=Maker.AMD, index=0, target="gfx942", serial="s")
LANE = Lane(name="gpu0", devices=(GPU,), env={})
FACTS = {
    "error": "",
    "python": "3.12.1",
    "installed": {
        "jax-x-plugin": {"version": "0.9.1", "sha256": "a"},
        "jaxlib": {"version": "0.9.1", "sha256": ""},
    },
    "loaded": {"jax-x-plugin": ["jax_x_plugin"], "jaxlib": ["jaxlib"]},
    "jax": "0.9.1",
    "backend": "rocm",
    "devices": [{"kind": "AMD Instinct MI300X", "target": "gfx942:sramecc+:xnack-"}],
    "answer": 2048.0,
}


class Says:
    """A runner whose preflight writes these facts."""

    def __init__(self, facts, returncode=0):
        self.facts, self.returncode = facts, returncode

    def run(self, command, /, **_options):
        if self.facts is not None:
            Path(command.argv[-1]).write_text(json.dumps(self.facts))
        return Completed(
            command=command, returncode=self.returncode, output="said this", seconds=1.0
        )


def ask(tmp_path, facts, returncode=0, lane=LANE):
    command = preflight.command(Path("/py"), WHEELS, tmp_path / "facts.json", with_jax=True, env={})
    return preflight.ask(
        command, lane, WHEELS, runner=Says(facts, returncode), log=tmp_path / "l", with_jax=True
    )


def test_a_good_preflight_tells_backend_and_modules(tmp_path):
    facts = ask(tmp_path, FACTS)
    assert facts.backend == "rocm"
    assert facts.modules == ("jax_x_plugin", "jaxlib")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"backend": "cpu"}, InfraError, "JAX runs on cpu, not on rocm"),
        ({"devices": []}, InfraError, "JAX sees ; allotted was gfx942"),
        ({"devices": FACTS["devices"] * 2}, InfraError, "sees gfx942, gfx942; allotted was gfx942"),
        ({"devices": [{"target": "gfx950"}]}, InfraError, "sees gfx950; allotted was gfx942"),
        ({"answer": 0.0}, InfraError, "twice 1024 ones make 0.0"),
        ({"error": "RuntimeError: Unable to initialize backend 'rocm'"}, InfraError, "Unable to"),
        ({"jax": "0.9.2"}, UnfitError, "JAX 0.9.2 is installed, not 0.9.1"),
        ({"loaded": {"jax-x-plugin": [], "jaxlib": ["j"]}}, UnfitError, "nothing of jax-x-plugin"),
        (
            {"installed": {**FACTS["installed"], "jaxlib": {"version": "0.9.0", "sha256": ""}}},
            UnfitError,
            "jaxlib 0.9.0 is installed, not 0.9.1",
        ),
        (
            {"installed": {**FACTS["installed"],
                           "jax-x-plugin": {"version": "0.9.1", "sha256": "z"}}},
            UnfitError,
            "installed from other bytes",
        ),
    ],
)  # fmt: skip
def test_what_is_not_as_meant_ends_the_gate_with_a_state(tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        ask(tmp_path, {**FACTS, **changes})


def test_a_preflight_that_dies_is_a_crash_and_one_that_says_nothing_is_infra(tmp_path):
    with pytest.raises(BrokenError, match="signal 11"):
        ask(tmp_path, None, -11)
    with pytest.raises(InfraError, match="exit status 1"):
        ask(tmp_path, None, 1)


def test_an_nvidia_card_is_named_by_its_compute_capability(tmp_path):
    card = replace(GPU, maker=Maker.NVIDIA, target="sm_90")
    facts = {**FACTS, "backend": "cuda", "devices": [{"target": "9.0"}]}
    assert ask(tmp_path, facts, lane=replace(LANE, devices=(card,))).backend == "cuda"


def test_the_platform_is_named_so_that_jax_cannot_fall_back():
    assert preflight.platforms(Maker.AMD) == "rocm,cpu"
    assert preflight.platforms(Maker.CPU) == "cpu"


# --- history -------------------------------------------------------------------------------------


def result(name, outcome=Outcome.PASSED, ms=100, lane="gpu0"):
    attempt = Attempt(outcome=outcome, lane=lane, process=1, start_ms=0, duration_ms=ms)
    return TestResult(test=name, outcome=outcome, attempts=(attempt,))


def results(*tests, **changes):
    files = tuple(dict.fromkeys(test.file for test in tests))
    base = Results(suite="s", shard="", files=files, suite_files=files, tests=tests)
    return replace(base, **changes)


def test_a_history_keeps_durations_and_the_last_outcomes():
    past = History()
    for number in range(KEPT + 5):
        past = past.with_results(results(result("a::t", ms=100 + number)))
    past = past.with_results(results(result("a::t", Outcome.FAILED)))
    assert past.tests["a::t"].outcomes == "p" * (KEPT - 1) + "f"
    assert 100 <= past.tests["a::t"].milliseconds <= 115
    assert History.from_bytes(past.to_bytes()) == past
    estimates = past.estimates({"a": 7})
    assert estimates.files["a"] == estimates.tests["a::t"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"schema": 9}', b'{"schema":1,"tests":[1]}'])
def test_a_history_that_cannot_be_read_is_an_empty_one(data):
    assert History.from_bytes(data) == History()


# --- merging -------------------------------------------------------------------------------------


def shard(number, *tests, count=2, files=("a", "b")):
    mine = tuple(dict.fromkeys(test.file for test in tests))
    return results(
        *tests,
        shard=f"{number}/{count}",
        files=mine,
        suite_files=files,
        lanes=(LaneRecord(name="gpu0", devices=()),),
    )


def test_shards_become_one_suite_with_lanes_of_their_own():
    merged = merge_results({1: shard(1, result("a::t")), 2: shard(2, result("b::t"))}, 2)
    assert [test.test for test in merged.tests] == ["a::t", "b::t"]
    assert [lane.name for lane in merged.lanes] == ["1:gpu0", "2:gpu0"]
    assert merged.tests[1].attempts[0].lane == "2:gpu0"
    assert merged.shard == ""


def test_a_missing_shard_is_not_run_and_its_files_are_listed():
    merged = merge_results({1: shard(1, result("a::t"))}, 2)
    assert merged.faults == (Fault(state=State.NOT_RUN, message="shard 2 of 2 has no results"),)
    assert [(test.test, test.outcome) for test in merged.tests][1] == ("b", Outcome.NOT_RUN)


@pytest.mark.parametrize(
    "other",
    [
        shard(1, result("b::t")),
        shard(2, result("b::t"), count=3),
        shard(2, result("b::t"), files=("a", "b", "c")),
        replace(shard(2, result("b::t")), suite="other"),
    ],
)
def test_shards_that_do_not_fit_are_refused(other):
    with pytest.raises(ConfigError, match="not shard"):
        merge_results({1: shard(1, result("a::t")), 2: other}, 2)
    with pytest.raises(ConfigError, match="no shard"):
        merge_results({}, 2)


def test_skip_entries_are_counted_over_all_shards():
    one = replace(shard(1, result("a::t")), skips={"x:1": 0, "x:2": 1})
    two = replace(shard(2, result("b::t")), skips={"x:1": 0, "x:2": 0})
    merged = with_unmet_skips(merge_results({1: one, 2: two}, 2))
    assert [fault.message.partition(":  ")[0][:3] for fault in merged.faults] == ["x:1"]
    cut = merge_results({1: one}, 2)
    assert with_unmet_skips(cut) == cut, "what did not run cannot be said to meet nothing"


def test_hashes_of_the_fake_wheels_are_real(tmp_path):
    manifest = make_set(tmp_path)
    for wheel in manifest.wheels:
        data = (tmp_path / wheel.filename).read_bytes()
        assert hashlib.sha256(data).hexdigest() == wheel.sha256
