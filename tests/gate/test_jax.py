"""JAX itself: the smoke suite on the CPU, and published ROCm wheels where no AMD GPU is."""

from __future__ import annotations

import csv
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import gate, published
from support.topology import machine, mi300x
from support.wheelset import make_set

import amdgpu_family_matrix as matrix
from rocwheel.base import files
from rocwheel.base.host import machine as machines
from rocwheel.base.process import HostRunner, base_env
from rocwheel.base.values import replace
from rocwheel.cli import main
from rocwheel.gate import run as room
from rocwheel.gate import subject
from rocwheel.gate.engine import loop
from rocwheel.gate.engine.child import WorkerSpec
from rocwheel.gate.engine.plan import RunPlan, Watcher
from rocwheel.gate.report import gate_page
from rocwheel.gate.request import DeviceChoice, GateRequest
from rocwheel.gate.subject import WheelsUnderTest
from rocwheel.gate.suite import discovery, suites
from rocwheel.gate.suite.suites import Deadlines
from rocwheel.gate.verdict import storing
from rocwheel.gate.verdict.judge import judge
from rocwheel.records.manifest import MANIFEST, Manifest
from rocwheel.records.verdict import State
from rocwheel.tools import compat

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.xdist_group("gate jax"),
    pytest.mark.timeout(1800),
]

ROOT = Path(__file__).parents[2]
JAX = "0.9.1"
BOTH = "manylinux_2_27_x86_64.manylinux_2_28_x86_64"


@pytest.fixture(scope="module")
def interpreter():
    """A CPython that JAX and its ROCm wheels were published for."""
    found = machines.pythons(os.environ, runner=HostRunner(base_env(os.environ)))
    usable = [i for i in found if i.version.minor in (11, 12, 13) and not i.version.free_threaded]
    if not usable:
        pytest.fail("JAX needs CPython 3.11 or newer: apt-get install python3-venv")
    return usable[0]


def unhurried(name):
    """A suite whose tests may take as long as a busy machine needs."""
    return replace(
        suites.load(ROOT / "ci", name), deadlines=Deadlines(test=1400, shard=1500, suite=1500)
    )


def asked(interpreter, tmp_path, *, manifest, wheels, device, **more):
    return GateRequest(
        suite=unhurried("smoke"),
        family=matrix.family("gfx94X-dcgpu"),
        python=interpreter.version,
        wheels=wheels,
        manifest=manifest,
        output=tmp_path / "out",
        libraries=suites.libraries(ROOT / "ci"),
        device=device,
        lanes=2,
        rocm="pip:pytest==9.1.1",  # no ROCm is needed to be refused
        **more,
    )


@pytest.fixture(scope="module")
def smoke(interpreter, tmp_path_factory):
    """The smoke suite gated on the CPU, with JAX from the index; its environment is kept."""
    folder = tmp_path_factory.mktemp("smoke")
    request = asked(
        interpreter, folder, manifest=make_set(folder / "set", jax=JAX), device=DeviceChoice.CPU,
        wheels=WheelsUnderTest(jax_version=JAX, wheels=(), origin=folder),
    )  # fmt: skip
    here = gate.here(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_args, **_options: None)
        gated = room.run(request, here, Watcher())
    (env,) = (here.cache / "gate/work").glob("*/environment/env")
    yield request, gated, env / "bin/python"
    shutil.rmtree(here.cache / "gate")


@pytest.mark.soak  # a merge holds honest answers to its bounds: test_smoke_mutants.py
def test_the_smoke_suite_passes_on_the_cpu_with_jax_from_the_index(smoke, monkeypatch):
    """Its tests name every ROCm library; on the CPU all of them are nominal."""
    request, gated, _ = smoke
    assert gated.judged.state is State.PASS, (gated.judged, gated.results.failures)
    assert gated.results.counts.passed >= request.suite.demands.expected.must_run
    assert gated.results.counts.skipped <= 3, "TF32 and recurrent networks; jax_triton"
    used = {item["name"]: item for item in gate_page.libraries_of(gated.results, {})}
    assert set(used) == {library.name for library in request.libraries}
    assert {item["status"] for item in used.values()} == {"nominal"}
    assert all(item["passed"] for item in used.values())
    monkeypatch.setattr(storing, "shard_of", lambda _place, _verdict: gated.results)
    passed = SimpleNamespace(suite="smoke", reports={"json": ""})
    looked = [(None, SimpleNamespace(jax=JAX, rocm="7.1"), [passed])]
    listed = {table.title: table.rows for table in compat.tried(looked)}
    with (ROOT / "tests" / "data" / "jax_compatibility.csv").open(encoding="utf-8") as file:
        page = [(row["section"], row["name"]) for row in csv.DictReader(file)]
    for section, name in page:
        if section == "module":
            assert any(row[0] == name for row in listed["JAX modules"]), name
        elif section != "unsupported":
            row = (section, name.replace(" ", "_"), JAX, "7.1", "")
            assert row in listed["ROCm libraries"], name
    assert {row[0] for row in listed["JAX features"]} == {"tf32", "rnn", "int4", "sparsify"}


@pytest.mark.soak
def test_the_loss_of_small_models_falls_on_the_cpu(smoke, tmp_path):
    request, _, python = smoke
    suite = unhurried("e2e")
    tests = discovery.find(suite.source, ROOT / suite.source.folder, request.shard)
    worker = WorkerSpec(
        python=python, root=tests.root, arguments=tests.arguments, logs=tmp_path / "logs",
        env={**suite.environment, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    plan = RunPlan(
        suite=suite.name, shard="", files=tests.files, suite_files=tests.suite_files,
        worker=worker, lanes=gate.lanes(2), test_deadline=suite.deadlines.test,
        deadline=suite.deadlines.suite, retry_limit=suite.retries, backend="cpu",
    )  # fmt: skip
    results = loop.TestRunner(plan, gate.machine(), Watcher()).run()
    assert judge(results, suite.demands.expected).state is State.PASS, results.failures


@pytest.fixture(scope="module")
def rocm_wheels(interpreter, tmp_path_factory):
    """The published plugin and pjrt, as a wheelhouse."""
    folder = tmp_path_factory.mktemp("wheels")
    python, tag = str(interpreter.version), interpreter.version.interpreter
    names = {
        "plugin": f"jax_rocm7_plugin-{JAX}-{tag}-{tag}-{BOTH}.whl",
        "pjrt": f"jax_rocm7_pjrt-{JAX}-py3-none-{BOTH}.whl",
    }
    made = make_set(folder / "made", jax=JAX, suffix="", pythons=(python,), gfx=("gfx942",))
    wheels = []
    for wheel in (item for item in made.wheels if item.kind in names):
        path = published.wheel(names[wheel.kind], python=python)
        (folder / path.name).symlink_to(path)
        wheels.append(replace(wheel, filename=path.name, sha256=files.sha256(path)))
    (folder / MANIFEST).write_bytes(replace(made, wheels=tuple(wheels)).to_bytes())
    return folder


@pytest.mark.soak
def test_real_rocm_wheels_on_a_machine_without_a_gpu_are_no_runner(
    rocm_wheels, interpreter, tmp_path, monkeypatch, capsys
):
    if Path("/dev/kfd").exists():
        pytest.skip("this machine has an AMD GPU")
    monkeypatch.chdir(tmp_path)
    status = main([
        "gate", "--wheels", str(rocm_wheels), "--family", "gfx94X-dcgpu", "--suite", "smoke",
        "--python", str(interpreter.version),
    ])  # fmt: skip
    assert status == State.NO_RUNNER.exit_code
    assert "no-runner" in capsys.readouterr().out


@pytest.mark.soak
def test_real_rocm_wheels_that_cannot_start_are_infra_and_never_fall_back_to_the_cpu(
    rocm_wheels, interpreter, tmp_path, console
):
    """The machine claims a GPU that does not work, as after a driver's failure."""
    there = gate.here(tmp_path, console, root=machine(tmp_path / "machine", *mi300x(1)))
    manifest = Manifest.load(rocm_wheels)
    wheels = subject.of_manifest(manifest, interpreter.version, rocm_wheels)
    request = asked(
        interpreter, tmp_path, manifest=manifest, wheels=wheels, device=DeviceChoice.FAMILY
    )
    gated = room.run(request, there, Watcher())
    assert gated.judged.state is State.INFRA, gated.judged
    assert "gpu0" in gated.judged.message
    assert gated.results.counts.collected == 0, "not one test ran on the CPU"
