"""The whole gate: staged wheels into a fresh environment, tests, verdict in the store, shards."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from datetime import date, datetime, timezone
from functools import partial
from pathlib import Path

import pytest
from support import tarballs
from support.gate import here
from support.report import FOUND, rich
from support.topology import Gpu, machine, mi300x
from support.wheelset import FAMILY, SUITES, Shop, make_set, make_verdict, ran

import amdgpu_family_matrix as matrix
from rocwheel import rocm
from rocwheel.base.errors import ConfigError
from rocwheel.base.home import Home
from rocwheel.base.process import HostRunner, base_env
from rocwheel.base.store.opening import open_store
from rocwheel.base.values import replace
from rocwheel.cli import main
from rocwheel.gate import environment, subject
from rocwheel.gate import run as room
from rocwheel.gate.engine.plan import Watcher
from rocwheel.gate.machine import accelerators
from rocwheel.gate.machine.devices import Slots
from rocwheel.gate.report import render
from rocwheel.gate.request import Choice, DeviceChoice, GateRequest
from rocwheel.gate.suite import history
from rocwheel.gate.suite.discovery import Shard
from rocwheel.gate.suite.skips import load
from rocwheel.gate.suite.suites import DEVICE_ERRORS, Deadlines, Suite, SuiteSource
from rocwheel.gate.verdict import storing
from rocwheel.gate.verdict.judge import (
    collected,
    drawn,
)
from rocwheel.records.results import Attempt, Outcome, Results
from rocwheel.records.verdict import Counts, Ran, RocmProvided, State, Verdict
from rocwheel.release.index import channels
from rocwheel.release.ledger import log, manifests, verdicts
from rocwheel.release.trust import envelope, signers

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.xdist_group("gate run")]

ROOT = Path(__file__).parents[2]

loadable = partial(make_set, loads=True)
TESTS = {
    "test_a.py": """
import importlib.metadata, jaxlib, os
def test_the_installed_wheel_is_used():
    assert importlib.metadata.version("jaxlib") == jaxlib.version
def test_no_gpu_is_seen():
    assert os.environ["HIP_VISIBLE_DEVICES"] == "-1"
def test_listed(): assert False
""",
    "test_b.py": "def test_b(): pass\n",
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """What uv fetched and unpacked for one test, and keeps for the next."""
    return tmp_path_factory.mktemp("packages")


@pytest.fixture
def host(tmp_path, packages, checkout, console):
    own = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    own["KUBE_CPU_REQUEST"] = "2"
    home = Home(root=checkout, ci=checkout / "ci", tests=checkout)
    machine = here(tmp_path, console, environ=own, home=home)
    kept = machine.cache / environment.CACHE
    kept.parent.mkdir(parents=True)
    kept.symlink_to(packages)
    return machine


SUITE = Suite(
    name="own",
    about="",
    source=SuiteSource(folder="suites/own", paths=("test_*.py",)),
    gpus=(0,),
    with_jax=False,
    select="",
    environment={"FROM": "the suite"},
    requirements=("pytest==9.1.1",),
    deadlines=Deadlines(test=300, shard=900, suite=900),
    must_run=1,
    may_skip=1,
    flaky_budget=0,
    retries=3,
    trace=False,
)


GPU = Gpu(version=90010, unique_id=7, minor=128)
GPU_SUITE = replace(SUITE, gpus=(1,))


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout" / "suites" / "own"
    folder.mkdir(parents=True)
    for name, text in TESTS.items():
        (folder / name).write_text(text)
    skips = tmp_path / "checkout" / "ci" / "skips"
    skips.mkdir(parents=True)
    shutil.copy(ROOT / "ci" / DEVICE_ERRORS, skips.parent)
    (skips.parent / "suites").mkdir()
    (skips.parent / "suites/own.yaml").touch()  # SUITE
    (skips / "own.yaml").write_text(
        'skips:\n  - {test: "test_a.py::test_listed", suites: [own], reason: known, '
        'issue: "https://example.org/1", owner: somebody, expires: "2999-01-01"}\n'
    )
    return tmp_path / "checkout"


@pytest.fixture
def staged(tmp_path, console, interpreter):
    """A set in a staging index: the place, the manifest."""
    shop = Shop((tmp_path / "store").as_uri(), console)
    loadable(tmp_path / "wh", pythons=(str(interpreter.version),))
    shop.stage(tmp_path / "wh")
    (sha256,) = log.read(shop.staging).sets
    return shop.staging, manifests.find(shop.staging, sha256)


@pytest.fixture
def request_(staged, checkout, tmp_path, interpreter):
    place, manifest = staged
    return GateRequest(
        suite=SUITE,
        family=FAMILY,
        python=interpreter.version,
        wheels=subject.of_manifest(manifest, interpreter.version, place),
        manifest=manifest,
        output=tmp_path / "out",
        skips=load(checkout / "ci", today=datetime.now(tz=timezone.utc).date()),
        rocm=str(tmp_path / "no-such-rocm"),
        device=DeviceChoice.CPU,
        lanes=1,
        slots=tmp_path / "slots",
        runner="linux-test",
        host="node1",
    )


def gate(request, host):
    return room.run(request, host, Watcher())


def test_a_staged_set_is_installed_by_hash_tested_and_its_verdict_kept(request_, host, staged):
    place, manifest = staged
    gated = gate(request_, host)
    assert gated.judged.state is State.PASS, gated
    assert gated.results.counts.passed == 3
    assert gated.results.counts.skipped == 1
    assert list(gated.results.skips.values()) == [1]
    verdict = gated.verdict
    assert verdict.wheels == {w.filename: w.sha256 for w in manifest.wheels}
    assert verdict.backend == "cpu", "without JAX only the CPU needs nobody's word"
    assert "pytest==9.1.1" in gated.results.environment["packages"].split()
    assert not list((host.cache / "gate/work").iterdir()), "what is the run's alone is gone"
    assert gated.results.environment["environment"].startswith("made in ")
    assert verdict.ran.pytest == "9.1.1"
    assert verdict.ran.unofficial == (
        "--device cpu",
        "this rocwheel does not know the commit it was built from",
    )

    key, stored = storing.put(place, verdict, render(gated.results, gated.judged, {}))
    (found,) = verdicts.find(place, manifest.sha256)
    assert (found.key, found.verdict) == (key, stored)
    assert found.tests == {test.test for test in gated.results.tests}
    assert set(stored.reports) == {"json", "junit", "html"}
    kept, _ = place.store.read(stored.reports["json"])
    assert Results.from_bytes(kept, name="kept") == gated.results

    history.add(place, "own", host.cache, gated.results)
    history.add(place, "own", host.cache, gated.results)
    past = history.read(place, "own", host.cache)
    assert "test_b.py::test_b" in past.tests
    assert len(verdicts.find(place, manifest.sha256)) == 1, "the history is no verdict"


GPU_TESTS = """
import json, os, sys, sysconfig
from pathlib import Path
SEEN = Path(os.environ["SEEN"])
def test_rocm_lies_where_the_wheels_look_for_it():
    root = Path(sysconfig.get_path("platlib"), "rocm")
    assert root.samefile(os.environ["ROCM_PATH"])
    assert (root / "lib/libamdhip64.so").is_file()
    assert os.environ["ROCWHEEL_ROCM_VERSION"] == "7.10.0"
def test_one_gpu_is_seen():
    SEEN.joinpath(os.environ["ROCR_VISIBLE_DEVICES"]).touch()
    assert os.environ["OMP_NUM_THREADS"] == "1"
"""


def test_two_gpus_get_a_process_each_and_rocm_comes_by_the_manifests_digest(
    request_, host, console, tmp_path, checkout
):
    """No GPU is here: the suite looks at what a process on one would be given."""
    name = f"therock-dist-linux-{FAMILY.name}-7.10.0.tar.gz"
    (tmp_path / name).write_bytes(data := tarballs.rocm_tarball())
    fetched = rocm.plan(name, sha256=None, version=None, cache=host.cache, cwd=tmp_path)
    rocm.fetch(fetched, console=host.console, env=host.environ)  # so that nobody asks the network
    sha256 = hashlib.sha256(data).hexdigest()
    source = replace(request_.manifest.rocm, name=name, sha256=sha256)
    for number in (1, 2):
        (checkout / f"suites/own/test_{number}.py").write_text(GPU_TESTS)
    seen = tmp_path / "seen"
    seen.mkdir()
    gpus = [Gpu(version=90010, unique_id=n, minor=128 + n) for n in (7, 8)]
    there = replace(host, root=machine(tmp_path / "machine", *gpus))
    asked = replace(
        request_,
        suite=replace(GPU_SUITE, environment={"SEEN": str(seen)}, source=SuiteSource(
            folder="suites/own", paths=("test_[12].py",)
        )),
        manifest=replace(request_.manifest, rocm=source),
        device=DeviceChoice.FAMILY,
        rocm="",
        skips=(),
        lanes=0,
    )  # fmt: skip
    assert sha256 in "\n".join(room.lines(asked, there))
    gated = gate(asked, there)
    assert gated.judged.state is State.PASS, gated
    assert {path.name for path in seen.iterdir()} == {"0", "1"}, "each lane has a GPU of its own"
    verdict = gated.verdict
    assert [device.target for device in verdict.devices] == ["gfx90a", "gfx90a"]
    assert verdict.rocm == RocmProvided(
        origin="tarball", version="7.10.0", sha256=sha256, name=name
    )
    assert (verdict.host, verdict.runner) == ("node1", "linux-test")
    assert len(list(asked.slots.glob("rocm-*.lock"))) == 2


def test_a_wheel_whose_bytes_are_others_is_never_installed(request_, host):
    place = request_.wheels.place
    for item in request_.wheels.stored.items():
        (place.store.root / place.wheel(*item)).write_bytes(b"others")
    gated = gate(request_, host)
    assert gated.judged.state is State.INFRA
    assert gated.verdict.wheels == {}
    assert "is stored, " in gated.judged.message
    assert any(
        f"{digest} was expected" in gated.judged.message
        for _, digest in request_.wheels.stored.items()
    )


def test_a_local_wheel_that_was_damaged_since_is_no_pass_with_a_kept_environment(
    request_, host, tmp_path
):
    local = subject.of_manifest(request_.manifest, request_.python, tmp_path / "wh")
    request_ = replace(request_, wheels=local)
    assert gate(request_, host).judged.state is State.PASS
    path = local.path(local.wheels[0], tmp_path)
    with path.open("ab") as file:
        file.write(b"x")
    assert gate(request_, host).judged.state is State.INFRA
    path.unlink()
    gated = gate(request_, host)
    assert gated.judged.state is State.INFRA
    assert path.name in gated.judged.message


def test_wheels_that_contradict_each_other_are_a_failure(tmp_path, request_, host):
    odd = loadable(tmp_path / "odd", pythons=(str(request_.python),), requires_pjrt="==9.9")
    wheels = subject.of_manifest(odd, request_.python, tmp_path / "odd")
    gated = gate(replace(request_, wheels=wheels, manifest=odd), host)
    assert gated.judged.state is State.FAIL
    assert "requirements are not met" in gated.judged.message


def test_skipped_tests_can_be_tried_and_named_tests_alone(request_, host):
    gated = gate(replace(request_, choice=Choice.SKIPPED), host)
    assert [test.test for test in gated.results.tests] == ["test_a.py::test_listed"]
    assert gated.judged.state is State.FAIL
    tests = frozenset({"test_b.py::test_b"})
    more = replace(request_.suite, must_run=3, may_skip=0)
    named = replace(request_, suite=more, choice=Choice.NAMED, tests=tests)
    gated = gate(named, host)
    assert [test.test for test in gated.results.tests] == ["test_b.py::test_b"]
    assert gated.judged.state is State.PASS, "it is not asked for more than was named"
    assert gated.results.files == ("test_b.py",), "no other file was imported"
    gone = "test_b.py::test_gone"
    gated = gate(replace(named, tests=tests | {gone}), host)
    assert gated.judged.state is State.NOTHING_RAN
    assert gated.judged.message == f"{gone}: own has no such test"
    gated = gate(replace(named, tests=frozenset({"test_c.py::test_c"})), host)
    assert gated.judged.state is State.NOTHING_RAN, (
        "which a bisect takes for a test that came later"
    )
    assert gated.judged.message == "test_c.py: own has no such file"
    assert "test_b.py" in gated.error.hint


def test_jaxs_tests_come_from_the_commit_that_the_wheels_were_built_of(request_, host, tmp_path):
    """Its sources lie beside its tests: imported is what was installed."""
    repository = tmp_path / "jax"
    for name, text in {
        "tests/a_test.py": "import jaxlib\ndef test_wheel(): assert 'site-packages' in jaxlib.__file__\n"
        "def test_support(): import helper\n",
        "tests/helper.py": "",
        "tests/gone_test.py": "def test_old(): assert False\n",
        "jaxlib/__init__.py": "raise ImportError('the sources, not the wheel')\n",
        "pyproject.toml": "[tool.pytest.ini_options]\npythonpath = ['tests']\n",
    }.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    git = ("git", "-C", str(repository), "-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", "init", "-q", repository], check=True)
    for arguments in (("add", "-A"), ("commit", "-qm", "one"), ("tag", "jax-v0.9.1")):
        subprocess.run([*git, *arguments], check=True)
    done = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    source = replace(
        request_.manifest.jax, repository=repository.as_uri(), commit=done.stdout.strip()
    )
    suite = replace(
        SUITE,
        source=SuiteSource(
            folder="",
            paths=("tests/*_test.py",),
            exclude=("tests/gone*",),
            support=("pyproject.toml", "tests/**"),
        ),
    )
    manifest = replace(request_.manifest, jax=source)
    asked = replace(request_, suite=suite, manifest=manifest, skips=())
    assert "git" in "\n".join(room.lines(asked, host))
    gated = gate(asked, host)
    assert gated.judged.state is State.PASS, gated
    assert [test.test for test in gated.results.tests] == [
        "tests/a_test.py::test_wheel",
        "tests/a_test.py::test_support",
    ]


def test_an_entry_of_the_skip_list_that_meets_nothing_fails_the_suite(request_, host, checkout):
    file = checkout / "ci/skips/own.yaml"
    file.write_text(
        file.read_text() + file.read_text().partition("\n")[2].replace("listed", "gone")
    )
    entries = load(checkout / "ci", today=datetime.now(tz=timezone.utc).date())
    gated = gate(replace(request_, skips=entries), host)
    assert gated.judged.state is State.FAIL
    assert "ci/skips/own.yaml:3: meets no test" in gated.judged.message


# --- what ends a gate before its first test: no environment is made ------------------------------


@pytest.mark.parametrize(
    "case",
    [
        ((), GPU_SUITE, {}, State.NO_RUNNER, "this machine has no gfx90a; it has no GPU"),
        (mi300x(1), GPU_SUITE, {}, State.NO_RUNNER, "it has gfx942"),
        (
            (Gpu(version=90010, unique_id=7, minor=128),),
            replace(SUITE, gpus=(8, 4, 2)),
            {},
            State.NO_RUNNER,
            "own needs 2 GPUs, this machine has 1",
        ),
        (
            (Gpu(version=90010, unique_id=7, minor=128),),
            GPU_SUITE,
            {"HIP_VISIBLE_DEVICES": ""},
            State.NO_RUNNER,
            "HIP_VISIBLE_DEVICES=''",
        ),
        (
            (Gpu(version=90010, unique_id=7, minor=0),),
            GPU_SUITE,
            {},
            State.INFRA,
            "a GPU without a render node",
        ),
    ],
)
def test_a_machine_that_will_not_do_is_a_verdict_with_a_reason(request_, host, tmp_path, case):
    gpus, suite, environ, state, reason = case
    there = replace(
        host, root=machine(tmp_path / "machine", *gpus), environ={**host.environ, **environ}
    )
    gated = gate(replace(request_, suite=suite, device=DeviceChoice.FAMILY), there)
    assert gated.judged.state is state
    assert reason in gated.judged.message
    assert gated.verdict.state is state
    assert gated.verdict.wheels == {}
    assert gated.error.exit_code == state.exit_code


def test_a_machine_without_the_cpython_is_infra(request_, host):
    bare = replace(host, environ={"PATH": "/nowhere", "HOME": "/nowhere"})
    gated = gate(request_, bare)
    assert gated.judged.state is State.INFRA
    assert "no CPython" in gated.judged.message


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"paths": ("no_such_*.py",)}, "no_such_*.py: matches no file"),
        ({"folder": "suites/nowhere"}, "suites/nowhere: no such folder"),
        ({"exclude": ("old_*.py",)}, "`exclude` old_*.py: matches no file"),
        (None, "--shard 9/9 would have none"),
    ],
)
def test_mistakes_in_data_are_no_word_on_the_machine(request_, host, changes, named):
    if changes is None:
        wrong = replace(request_, shard=Shard(number=9, count=9))
    else:
        suite = replace(SUITE, source=replace(SUITE.source, **changes))
        wrong = replace(request_, suite=suite)
    for asks in (lambda: room.check(wrong, host), lambda: gate(wrong, host)):
        with pytest.raises(ConfigError) as refused:
            asks()
        assert named in str(refused.value)
        assert refused.value.hint


def test_no_suite_begins_where_one_asks_for_what_cannot_be(at, interpreter, capsys):
    loadable(at / "wh", pythons=(str(interpreter.version),))
    common = ["--family", FAMILY.name, "--python", str(interpreter.version), "--wheels", "wh"]
    words = ["gate", *common, "--suite", "miniature", "--suite", "smoke", "--shard", "99/99"]
    assert main(words) == 3
    said = capsys.readouterr().err
    assert "--shard 99/99 would have none" in said
    assert "hint:  cut the suite into " in said
    assert not (at / "gate-results").exists()


def test_a_signal_while_the_environment_is_made_is_not_run(request_, host):
    def interrupted(command, /, **_options):
        raise KeyboardInterrupt

    class Runner(HostRunner):
        run = staticmethod(interrupted)

    gated = gate(replace(request_), replace(host, runner=Runner(base_env(os.environ))))
    assert gated.judged.state is State.NOT_RUN


def test_a_machine_whose_disk_will_not_do_is_infra(request_, host, tmp_path):
    (tmp_path / "file").touch()
    gated = gate(request_, replace(host, cache=tmp_path / "file"))
    assert gated.judged.state is State.INFRA
    assert "Not a directory" in gated.judged.message
    assert gated.verdict.state is State.INFRA


def test_a_dry_run_shows_devices_files_and_commands_and_makes_nothing(request_, host, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    text = "\n".join(room.lines(request_, host))
    assert "2 files below" in text
    for wheel in request_.wheels.wheels:
        assert wheel.sha256 in text
    assert sorted(tmp_path.rglob("*")) == before


def image(folder, wheels, **others):
    """Lay out what `--packages` names: what is known of packages, installed by no URL."""
    packages = {**{wheel.project: wheel.version for wheel in wheels.wheels}, **others}
    for name, version in packages.items():
        told = folder / f"{name.replace('-', '_')}-{version}.dist-info/METADATA"
        told.parent.mkdir(parents=True)
        told.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def test_of_an_image_the_packages_that_ran_are_recorded_and_what_was_not_compared(
    request_, host, tmp_path, checkout
):
    (checkout / "suites/own/test_a.py").write_text("def test_listed(): pass\n")
    beside = image(tmp_path / "beside", request_.wheels, pytest="9.1.1+beside")
    asked = replace(request_, installed=Path(sys.executable), folders=(beside,))
    gated = gate(asked, host)
    about = gated.results.environment
    pytests = [item for item in about["packages"].split() if item.startswith("pytest==")]
    assert (pytests, gated.verdict.ran.pytest) == (["pytest==9.1.1+beside"], "9.1.1+beside")
    names = ", ".join(wheel.project for wheel in request_.wheels.wheels)
    told = f"not compared with the set's digests: {names}"
    assert about["environment"] == f"that of {sys.executable}; {told}"
    assert told in gated.verdict.ran.unofficial


def test_keywords_leave_out_what_they_name_and_can_be_tried(request_, host, tmp_path, checkout):
    (checkout / "suites/own/test_a.py").write_text("def test_listed(): assert False\n")
    beside = image(tmp_path / "beside", request_.wheels)
    asked = replace(request_, installed=Path(sys.executable), folders=(beside,))
    (checkout / "ci/suites/other.yaml").touch()

    def listed(*entries):
        file = checkout / "ci/skips/own.yaml"
        more = 'reason: known, issue: "https://example.org/1", owner: o, expires: "2999-01-01"'
        lines = (f"  - {{keyword: {word}, suites: {named}, {more}}}\n" for word, named in entries)
        file.write_text("skips:\n" + "".join(lines))
        return replace(asked, skips=load(checkout / "ci", today=date(2027, 1, 1)))

    both = "[own, other]"
    ask = listed(("LISTED", both), ("of_another", both))  # which the suite `other` may have
    gated = gate(ask, host)
    assert (gated.judged.state, gated.results.counts.skipped) == (State.PASS, 1)
    gated = gate(replace(ask, choice=Choice.SKIPPED), host)
    assert [test.test for test in gated.results.tests] == ["test_a.py::test_listed"]
    gated = gate(listed(("LISTED", both), ("of_none", "[own]")), host)
    assert gated.judged.state is State.FAIL
    assert "ci/skips/own.yaml:3: meets no test" in gated.judged.message


def test_of_an_image_jaxs_tests_are_named_by_what_is_in_them(request_, host, tmp_path):
    jax = replace(SUITE, source=SuiteSource(folder="", paths=("tests/*_test.py",)))
    asked = replace(
        request_, suite=jax, installed=Path(sys.executable), skips=(), jax_tests=tmp_path / "jax",
        folders=(image(tmp_path / "beside", request_.wheels),),
    )  # fmt: skip
    named = []
    for text in ("def test_a(): pass", "def test_b(): pass"):
        (tmp_path / "jax/tests").mkdir(parents=True, exist_ok=True)
        (tmp_path / "jax/tests/a_test.py").write_text(text)
        gated = gate(asked, host)
        assert gated.judged.state is State.PASS, gated
        named.append(gated.results.environment["tests"])
    assert len(set(named)) == 2
    assert request_.manifest.jax.commit not in named


def test_deadlines_nest_up_to_the_whole_gate(request_, host, monkeypatch):
    part = replace(request_, shard=Shard(number=1, count=2))
    suite = replace(SUITE, deadlines=Deadlines(test=1, shard=2, suite=3))
    assert replace(part, suite=suite).run_seconds == 2
    assert replace(request_, suite=suite).run_seconds == 3
    assert replace(request_, suite=suite).seconds == 1803
    started = time.monotonic()
    monkeypatch.setattr("rocwheel.gate.request.BESIDE", 0.1 - request_.suite.deadlines.suite)
    gated = gate(request_, host)
    assert gated.judged.state is State.INFRA, "no environment within a second"
    assert gated.judged.message.startswith("the deadline of 0.1 s passed before the first test: ")
    assert "no end after 1 s" in gated.judged.message
    assert time.monotonic() - started < 600, "not the half hour of an environment"


def test_a_gate_waits_for_devices_no_longer_than_its_own_deadline(
    request_, host, tmp_path, monkeypatch
):
    monkeypatch.setattr("rocwheel.gate.request.BESIDE", 0.1 - GPU_SUITE.deadlines.suite)
    there = replace(host, root=machine(tmp_path / "machine", GPU))
    (device,) = accelerators.amd(there.root, {}).devices
    slots = Slots.of(request_.slots, there)
    ask = replace(request_, suite=GPU_SUITE, device=DeviceChoice.FAMILY, rocm="pip:rocm")
    with slots.take((device,), least=1, most=1, patience=0):
        gated = gate(ask, there)
    assert gated.judged.state is State.INFRA
    assert "0 of 1 devices came free" in gated.judged.message


# --- the command line ----------------------------------------------------------------------------


@pytest.fixture
def at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_the_command_stores_a_verdict_and_ends_with_its_state(
    at, tmp_path, console, interpreter, capsys
):
    shop = Shop((tmp_path / "store").as_uri(), console)
    loadable(tmp_path / "wh", pythons=(str(interpreter.version),))
    shop.stage(tmp_path / "wh")
    (sha256,) = log.read(shop.staging).sets
    status = main([
        "gate", "--manifest", sha256[:12], "--store", (tmp_path / "store").as_uri(),
        "--family", FAMILY.name, "--python", str(interpreter.version),
        "--suite", "smoke", "--json",
    ])  # fmt: skip
    assert status == State.NO_RUNNER.exit_code
    document = json.loads(capsys.readouterr().out)
    assert document["state"] == "no-runner"
    (found,) = verdicts.find(shop.staging, sha256)
    assert found.key == document["verdict"]
    assert found.verdict.state is State.NO_RUNNER
    assert Path(document["report"]).is_file()


TWO_SETS = """
import jaxlib
def test_x(): assert jaxlib.stamp != "new"
def test_y(): assert 0
def test_z(): pass
"""


def test_each_failure_of_a_stored_gate_says_whether_the_released_set_has_it(
    at, console, interpreter, capsys
):
    """In the terminal, JUnit, the page, the verdict, `status` and `promote`; it stays red."""
    ci, suite = at / "ours/ci", at / "ours/suites/own"
    shutil.copytree(ROOT / "ci", ci)
    suite.mkdir(parents=True)
    (suite / "test_a.py").write_text(TWO_SETS)
    lines = (
        "suite: smoke", "about: ours", "source: {folder: suites/own}", "gpus: [0]",
        "with_jax: false", "requirements: [pytest==9.1.1]", "must_run: 1",
        "deadlines: {test: 300, shard: 900, suite: 900}",
    )  # fmt: skip
    (ci / "suites/smoke.yaml").write_text("\n".join(lines))
    (at / "rocm.tar.gz").write_bytes(tarballs.rocm_tarball())
    store, python = (at / "store").as_uri(), str(interpreter.version)
    shop = Shop(store, console)
    target = [f"--store={store}", f"--family={FAMILY.name}", f"--ci-dir={ci}"]
    made = loadable(at / "new", pythons=(python,), stamp="new")
    shop.stage(at / "new")
    asked = ["gate", f"--manifest={made.sha256}", f"--python={python}", "--suite=smoke", *target]
    asked += [f"--rocm={at}/{(at / 'rocm.tar.gz').rename(at / made.rocm.name).name}"]
    assert main([*asked, "--output=first"]) == State.FAIL.exit_code
    assert "not looked at: nothing is released: test_a.py::test_x\n" in capsys.readouterr().out
    shop.released(at / "old", jax="0.9.0", pythons=(python,), stamp="old", loads=True)
    assert main([*asked, "--output=second"]) == State.FAIL.exit_code
    said = capsys.readouterr()
    assert "Control run: 2 failures with the released set " in said.err
    assert "new: test_a.py::test_x\nalso in the released set: test_a.py::test_y\n" in said.out
    reason = "2 tests failed (1 new, 1 also in the released set): test_a.py::test_x (new): "
    assert reason in said.out
    verdict = Verdict.from_bytes((at / "second/verdict.json").read_bytes(), name="v")
    words = {"test_a.py::test_x": "new", "test_a.py::test_y": "also in the released set"}
    assert (verdict.state, verdict.control) == (State.FAIL, words)
    assert 'message="also in the released set: assert 0"' in (at / "second/junit.xml").read_text()
    assert "also in the released set: assert 0<" in (at / "second/report.html").read_text()
    # of files that were not committed, as here, no verdict counts
    verdicts.add(shop.staging, replace(verdict, ran=replace(verdict.ran, unofficial=())))
    for words in (["status"], ["promote", f"--manifest={made.sha256}"]):
        main([*words, *target])
        both = capsys.readouterr()
        shown = " ".join((both.out + both.err).split())  # a table may break it anywhere
        assert reason.strip() in shown, shown


def test_a_set_for_several_families_is_gated_and_merged_for_each_by_itself(
    at, interpreter, capsys, monkeypatch
):
    """Below `all`, in the family's folder; another family, and one that went away, are refused."""
    python, names = str(interpreter.version), ("gfx1151", FAMILY.name)
    made = loadable(at / "wh", pythons=(python,), gfx=("gfx1151", "gfx90a"))
    made = replace(made, families=names)
    (at / "wh/manifest.json").write_bytes(made.to_bytes())
    (at / "store" / "v2-staging").mkdir(parents=True)
    url = (at / "store").as_uri()
    channel, store = channels.of_store(url), open_store(url)
    common = ["--manifest=wh", f"--store={url}", f"--python={python}", "--suite=smoke"]
    for number, name in enumerate(names, 1):
        staging, _ = channel.pair(store, made, name)
        assert main(["gate", *common, f"--family={name}"]) == State.NO_RUNNER.exit_code
        (one,) = verdicts.find(staging, made.sha256)
        assert one.verdict.family == name
        top = f"v2-staging/_rocwheel/verdicts/{made.sha256}/{name}/{python}/smoke"
        assert one.key == f"{top}/{one.sha256}.json"
        for part in (1, number):  # of the second family's both shards
            results = shard(part)
            results = replace(results, environment={**results.environment, "family": name})
            verdict = verdict_of(results, made, family=matrix.family(name), python=python)
            storing.put(staging, verdict, render(results, FOUND, {}))
    merging = ["gate", "merge", "--shards=2", *common]
    assert main([*merging, f"--family={names[0]}"]) == State.NOT_RUN.exit_code
    assert main([*merging, f"--family={names[1]}"]) == 0
    capsys.readouterr()
    fewer = {name: family for name, family in matrix.FAMILIES.items() if name != "gfx1151"}
    monkeypatch.setattr(matrix, "FAMILIES", fewer)
    for words, problem in (
        (["--family=gfx950-dcgpu"], "gfx950-dcgpu: the set is for gfx1151, gfx90a"),
        (["--family=gfx1151"], "'gfx1151': unknown GPU family"),
    ):
        for line in (["gate", *common], merging, ["gate", "--wheels=wh", *common[2:]]):
            assert main([*line, *words]) == 3
            said = capsys.readouterr().err
            assert said.count("error:") == 1
            assert problem in said


def test_reports_of_an_earlier_run_do_not_survive_the_start_of_another(at, interpreter, capsys):
    loadable(at / "wh", pythons=(str(interpreter.version),))
    (at / "out").mkdir()
    (at / "out/verdict.json").write_text("of another set")
    common = ["--family", FAMILY.name, "--python", str(interpreter.version), "--suite", "smoke"]
    status = main(["gate", "--wheels", "wh", "--output", "out", *common])
    assert status == State.NO_RUNNER.exit_code
    assert {path.name for path in (at / "out").iterdir()} == {
        ".lock", "junit.xml", "report.html", "results.json", "verdict.json"
    }  # fmt: skip
    assert "of another set" not in (at / "out/verdict.json").read_text()


def test_a_folder_that_another_gate_writes_to_is_left_as_it_is(at, interpreter, capsys):
    loadable(at / "wh", pythons=(str(interpreter.version),))
    common = ["--family", FAMILY.name, "--python", str(interpreter.version), "--wheels", "wh"]
    gates = ["gate", "--suite", "e2e", "--suite", "smoke", *common, "--output=out"]
    merging = ["gate", "merge", "--shards=2", "one", "two", "--output=out/smoke"]
    for number, name in ((1, "one"), (2, "two")):
        (at / name).mkdir()
        (at / name / "results.json").write_bytes(shard(number).to_bytes())
    with storing.alone(at / "out/smoke"):
        (at / "out/smoke/report.html").write_text("of the other")
        for words in (gates, merging):
            assert main(words) == 3
            assert f"{at}/out/smoke: another gate writes there now" in capsys.readouterr().err
    assert (at / "out/smoke/report.html").read_text() == "of the other"
    assert not (at / "out/e2e/report.html").exists(), "nothing begins where one folder is not free"
    assert main(gates) == State.NO_RUNNER.exit_code
    assert "no-runner" in (at / "out/smoke/report.html").read_text()


def test_several_suites_are_one_command_each_with_its_own_reports(
    at, tmp_path, interpreter, capsys
):
    loadable(tmp_path / "wh", pythons=(str(interpreter.version),))
    common = ["--family", FAMILY.name, "--python", str(interpreter.version), "--wheels", "wh"]
    words = ["gate", *common, "--suite", "smoke", "--suite", "e2e"]
    assert main([*words, "--output", "out", "--json"]) == State.NO_RUNNER.exit_code
    told = json.loads(capsys.readouterr().out)["gates"]
    assert [(item["suite"], item["state"]) for item in told] == [
        ("smoke", "no-runner"), ("e2e", "no-runner"),
    ]  # fmt: skip
    for item in told:
        results = storing.results_in(at / "out" / item["suite"])
        again = results.environment["command"]
        assert f"--suite={item['suite']}" in again, "run again alone"
        assert again.count("--suite") == 1
    for wrong in (["--test", "a.py::b"], ["--failed-of", "x"]):
        assert main([*words, *wrong]) == 2


WRITES = {  # what a test does to a file: where, what it is a file of, its name, and what is said
    "adds a conftest": ("Path(__file__).with_name('conftest.py')", "the tests", "conftest.py"),
    "adds a module to a package": (
        "Path(jaxlib.__file__).with_name('more.py')", "the environment", "jaxlib/more.py",
    ),
    "adds what Python runs at its start": (
        "Path(jaxlib.__file__).parents[1] / 'odd.pth'", "the environment", "odd.pth",
    ),
    "adds bytecode of another test": (
        "(f := Path(__file__).with_name('__pycache__')).mkdir() or f / 'test_b.cpython-312.pyc'",
        "the tests", "test_b.cpython-312.pyc",
    ),
    "changes a package": ("Path(jaxlib.__file__)", "the environment", "jaxlib/__init__.py"),
    "changes another test": ("Path(__file__).with_name('test_b.py')", "the tests", "test_b.py"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRITES)
def test_a_file_that_a_test_adds_or_changes_is_infra_and_the_test_is_named(
    request_, host, checkout, what
):
    where, of, name = WRITES[what]
    (checkout / "suites/own/test_a.py").write_text(
        "import jaxlib\nfrom pathlib import Path\n"
        f"def test_a(): ({where}).write_text('def test_b(): pass')\n"
        "def test_data(): Path(__file__).with_name('x.txt').touch()\n"
    )
    gated = gate(replace(request_, skips=()), host)
    assert gated.judged.state is State.INFRA
    how = "appeared" if what.startswith("adds") else "changed"
    assert f"a file of {of} {how} while tests ran: " in gated.judged.message
    assert f"{name}, during test_a.py::test_a" in gated.judged.message


def test_data_that_a_test_leaves_beside_others_is_named_where_one_fails(request_, host, checkout):
    (checkout / "suites/own/test_a.py").write_text(
        "from pathlib import Path\nDATA = Path(__file__).with_name('x.txt')\n"
        "def test_leaves(): DATA.touch()\ndef test_meets(): assert not DATA.exists()\n"
    )
    gated = gate(replace(request_, skips=()), host)
    assert gated.judged.state is State.FAIL
    (note,) = gated.results.dropped
    assert note.startswith("x.txt appeared beside the tests, during test_a.py::test_leaves")


def test_a_file_that_another_environment_links_has_not_changed(tmp_path):
    (tmp_path / "a.py").touch()
    before = environment.states(tmp_path)
    (tmp_path.parent / f"{tmp_path.name}-elsewhere").hardlink_to(tmp_path / "a.py")
    assert not [*environment.altered(tmp_path, before)]
    (tmp_path / "a.py").write_text("1")
    assert [found[:2] for found in environment.altered(tmp_path, before)] == [("a.py", "changed")]


def test_what_failed_runs_again_with_the_same_packages(at, tmp_path, capsys):
    results = rich()
    line = ["gate", f"--wheels={tmp_path}", "--family=gfx90a", "--python=3.12", "--suite=smoke"]
    line += ["--failed-of=before"]
    about = {**results.environment, "packages": "numpy==2.0\npytest==9.1.1"}
    (tmp_path / "before").mkdir()
    (tmp_path / "before/results.json").write_bytes(replace(results, environment=about).to_bytes())
    loadable(tmp_path, pythons=("3.12",))
    assert main(line) == State.NO_RUNNER.exit_code
    assert "no-runner" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "gate-results")
    assert main([*line, "--dry-run"]) == State.NO_RUNNER.exit_code
    assert "smoke on gfx90a, CPython 3.12: no-runner" in capsys.readouterr().out
    assert not (tmp_path / "gate-results").exists()


def test_the_line_that_runs_a_test_again_names_the_data_in_use_and_no_shard(at, interpreter):
    loadable(at / "wh", pythons=(str(interpreter.version),))
    shutil.copytree(ROOT / "ci", at / "ours/ci")
    suite = (at / "ours/ci/suites/smoke.yaml").read_text().replace("suite: smoke", "suite: ours")
    (at / "ours/ci/suites/ours.yaml").write_text(suite)
    common = ["--family", FAMILY.name, "--python", str(interpreter.version), "--wheels", "wh"]
    words = ["gate", *common, "--suite=ours", "--ci-dir=ours/ci", "--shard=1/2", "--output=out"]
    assert main(words) == State.NO_RUNNER.exit_code
    results = storing.results_in(at / "out")
    assert f"--ci-dir={at}/ours/ci" in results.environment["command"].split()
    assert "--shard" not in results.environment["command"]


def shard(number):
    """Results of one of two shards of the smoke suite, all passing."""
    results = rich(passing=360)
    tests = tuple(
        replace(test, test=f"test_{number}.py::{n}", libraries=())
        for n, test in enumerate(results.tests[:355])
    )
    return replace(
        results, shard=f"{number}/2", tests=tests, collect_errors=(), faults=(),
        files=(f"test_{number}.py",), suite_files=("test_1.py", "test_2.py"),
        environment={**results.environment, "family": FAMILY.name},
    )  # fmt: skip


def verdict_of(results, manifest, **changes):
    """The verdict that a runner would have drawn from results of the smoke suite."""
    demand = replace(SUITES["smoke"].demands.of(manifest.jax_version), must_run=0)
    said = drawn(results, room.judge(results, demand), demand)
    what = ran("smoke", manifest, collected=collected(results))
    return make_verdict(manifest, **{**said, "ran": what, **changes})


def test_shards_become_one_result_and_a_missing_one_is_not_run(at, capsys):
    for number, name in ((1, "one"), (2, "two")):
        (at / name).mkdir()
        (at / name / "results.json").write_bytes(shard(number).to_bytes())
    assert main(["gate", "merge", "--shards", "2", "one", "two"]) == 0
    assert "710 passed" in capsys.readouterr().out
    assert (at / "gate-results/merged/report.html").is_file()
    assert main(["gate", "merge", "--shards", "2", "one", "two", "--output", "/proc/nowhere"]) == 8
    assert "710 passed" in capsys.readouterr().out, "it is told all the same"
    assert main(["gate", "merge", "--shards", "2", "two"]) == State.NOT_RUN.exit_code
    assert "shard 1 of 2 has no results" in capsys.readouterr().out
    assert main(["gate", "merge", "--shards", "3", "one", "two"]) == 3, "cut in another way"


def test_stored_shards_become_a_verdict_in_the_store(at, console, capsys):
    shop = Shop((at / "store").as_uri(), console)
    loadable(at / "wh")
    shop.stage(at / "wh")
    (sha256,) = log.read(shop.staging).sets
    manifest = manifests.find(shop.staging, sha256)
    merging = [
        "gate", "merge", "--shards=2", f"--manifest={sha256[:8]}", "--suite=smoke", "--python=3.12",
        f"--store={(at / 'store').as_uri()}", f"--family={FAMILY.name}",
    ]  # fmt: skip
    for number, state in ((1, State.NOT_RUN), (2, State.PASS)):
        verdict = verdict_of(shard(number), manifest)
        storing.put(shop.staging, verdict, render(shard(number), FOUND, {}))
        assert main([*merging, "--dry-run"]) == 0
        assert len(whole(shop, sha256)) == number - 1, "nothing was stored"
        for _ in range(2):  # what is new since the last merge is another page
            assert main(merging) == state.exit_code
        assert state in whole(shop, sha256)
    assert whole(shop, sha256)[State.PASS].counts.passed == 710

    bad = replace(shard(1), tests=(failing(shard(1).tests[0]), *shard(1).tests[1:]))
    failed = verdict_of(bad, manifest, host="other")
    storing.put(shop.staging, failed, render(bad, FOUND, {}))
    capsys.readouterr()
    assert main([*merging, "--output=/proc/nowhere"]) == State.FLAKY.exit_code
    assert State.FLAKY in whole(shop, sha256), "a folder that cannot be written to costs no verdict"
    assert "/proc/nowhere: the reports could not be written" in capsys.readouterr().err
    assert main(merging) == State.FLAKY.exit_code, "another run of a shard hides no failure"
    assert "shard 1/2 was run again after fail" in capsys.readouterr().out


def test_a_gate_and_a_merge_sign_what_they_store(at, console, interpreter, capsys):
    """Numbered in their cell; a merged verdict names the shards; the line to repeat has no key."""
    shop = Shop((at / "store").as_uri(), console)
    manifest = loadable(at / "wh", pythons=("3.12",))
    shop.stage(at / "wh")
    signers.generate(at / "runner.pem")
    common = [
        f"--manifest={manifest.sha256[:8]}", "--suite=smoke", "--python=3.12",
        f"--store={(at / 'store').as_uri()}", f"--family={FAMILY.name}", f"--signer=file:{at}/runner.pem",
    ]  # fmt: skip
    for number in (1, 2):
        verdict = verdict_of(shard(number), manifest)
        signer = signers.signer(f"file:{at}/runner.pem")
        storing.put(shop.staging, verdict, render(shard(number), FOUND, {}), signer=signer)
    assert main(["gate", "merge", "--shards=2", *common]) == 0
    assert (
        main(["gate", f"--slots={at}/slots", "--patience=1", *common]) == State.NO_RUNNER.exit_code
    )
    found = sorted(verdicts.find(shop.staging, manifest.sha256), key=lambda item: item.number)
    assert [item.number for item in found] == [1, 2, 3, 4]
    said = [envelope.parse(item.line, name=item.key).statement.own for item in found]
    assert [own["verdict"]["shard"] for own in said] == ["1/2", "2/2", "", ""]
    assert [own["verdict"]["state"] for own in said] == ["pass", "pass", "pass", "no-runner"]
    assert said[2]["parts"] == [item.sha256 for item in found if item.verdict.shard]
    results = json.loads((at / "gate-results/smoke-3.12/results.json").read_text())
    assert "signer" not in results["environment"]["command"]
    assert "signed " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"counts": Counts(passed=151)}, "counts of its verdict is not what"),
        ({"shard": "2/2"}, "shard of its verdict"),
        ({"family": "gfx1201"}, "family of its verdict"),
        ({"ran": Ran()}, "ran.collected of its verdict"),
        (None, "results of a manifest's wheels without their verdict"),
    ],
)
def test_a_shard_whose_verdict_is_not_that_of_its_results_is_refused(at, capsys, changes, named):
    manifest = loadable(at / "wh")
    for number, name in ((1, "one"), (2, "two")):
        results = shard(number)
        about = {**results.environment, "manifest": manifest.sha256}
        results = replace(results, environment=about)
        storing.write(at / name, render(results, FOUND, {}), verdict_of(results, manifest))
    merging = ["gate", "merge", "--shards=2", "one", "two"]
    assert main(merging) == 0
    capsys.readouterr()
    file = at / "one/verdict.json"
    verdict = Verdict.from_bytes(file.read_bytes(), name="v")
    if changes is None:
        file.unlink()
    else:
        file.write_bytes(replace(verdict, **changes).to_bytes())
    assert main(merging) == 3
    assert f"shard 1/2 of smoke: {named}" in capsys.readouterr().err


def whole(shop, sha256):
    """Verdicts of whole suites, by state."""
    found = [item.verdict for item in verdicts.find(shop.staging, sha256)]
    return {verdict.state: verdict for verdict in found if not verdict.shard}


def failing(test):
    attempt = Attempt(outcome=Outcome.FAILED, lane="gpu0", process=1, start_ms=0, duration_ms=1)
    return replace(test, outcome=Outcome.FAILED, attempts=(attempt,))


def test_a_suite_without_skips_has_nothing_to_verify(at, tmp_path, interpreter, capsys):
    loadable(tmp_path / "wh", pythons=(str(interpreter.version),))
    common = ["--family", FAMILY.name, "--python", str(interpreter.version), "--suite", "miniature"]
    assert main(["skips", "verify", "--wheels", "wh", *common]) == 0
    assert "no entry for the suite miniature" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_with_not_run_and_its_reports(tmp_path, interpreter, number):
    loadable(tmp_path / "wh", pythons=(str(interpreter.version),))
    rocm_tree = tmp_path / "therock-dist-linux-gfx90a-7.10.0.tar.gz"
    rocm_tree.write_bytes(tarballs.rocm_tarball())
    gate_ = subprocess.Popen(
        [
            sys.executable, ROOT / "build/ci_build", "gate", "--wheels=wh", "--suite=miniature",
            f"--rocm={rocm_tree}", f"--family={FAMILY.name}", f"--python={interpreter.version}",
            "--suite=smoke",
        ],
        cwd=tmp_path,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    said = ""
    for line in gate_.stderr:
        said += line
        if "The environment" in line:
            gate_.send_signal(number)
            break
    said += gate_.communicate(timeout=240)[1]
    assert gate_.returncode == State.NOT_RUN.exit_code, said
    assert "interrupted: not begun: smoke; run the same command again" in said
    assert "gate smoke on" not in said
    results = (tmp_path / f"gate-results/miniature-{interpreter.version}/results.json").read_bytes()
    assert Results.from_bytes(results, name="r").faults[0].state is State.NOT_RUN
    kept = tmp_path / "cache/rocwheel/gate"
    assert not list((kept / "work").iterdir())
    assert not list(kept.glob("environments/*/environment.json")), "half an environment is none"


def test_github_gets_outputs_summary_and_annotation(at, tmp_path, interpreter, monkeypatch, capsys):
    loadable(tmp_path / "wh", pythons=(str(interpreter.version),))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
        monkeypatch.setenv(name, str(tmp_path / name))
    common = ["--family", FAMILY.name, "--python", str(interpreter.version), "--suite", "smoke"]
    assert main(["gate", "--wheels", "wh", *common]) == State.NO_RUNNER.exit_code
    assert "state=no-runner" in (tmp_path / "GITHUB_OUTPUT").read_text()
    assert ": no-runner" in (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
    assert "::error title=smoke on gfx90a" in capsys.readouterr().err


def test_suites_are_listed_for_people_and_programs(at, capsys):
    assert main(["gate", "list"]) == 0
    assert re.search(r"multi_gpu +8 or 4 or 2", capsys.readouterr().out)
    assert main(["gate", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["suites"]
    assert {suite["suite"] for suite in listed} >= {"smoke", "unit", "multi_gpu", "e2e"}
