"""Every benchmark runs to its end and prints its figures, small: nothing is concluded from the times."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from importlib import util
from pathlib import Path

import pytest
from support import engines

from rocwheel.base.values import replace
from rocwheel.gate.machine.accelerators import Allotment, Maker
from rocwheel.records.results import Attempt, Outcome, Results, TestResult

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"

# Benchmark: options of a small run, and what its last figure, or one that no clock decides, is.
RUNS = {
    "bazel.py": (("--work={work}", "--pairs=1"), r"the bare Bazel command +\d+\.\d+ s"),
    "bisection.py": (("--work={work}", "kills-jax:1"), r"\| found: JAX 7 \|"),
    "container.py": (
        ("--image={builder}", "--work={work}", "--pairs=1"), r"memory: host .* container \d+",
    ),
    "families.py": (("--work={work}", "--families=2"), r"kept by Bazel \| \d+\.\d KiB"),
    "fetch.py": (
        ("--work={work}", "--pairs=1", "--others=1", "--size=0.05"), r"median ratio \d+\.\d+",
    ),
    "gate.py": (("--small", "--repeat=1"), r"(?s)overhead per empty test.*\| \d+\.\d+ s "),
    "nightly.py": (("page", "graph", "idle"), r"\d+ requests \(900\)"),
    "release.py": (
        ("--small", "--pairs=1", "--work={work}"),
        r"(?s)wheel bytes through the client \| 0 \|.*",
    ),
    "runtime_images.py": (
        ("--base-image={base}", "--work={work}", "--pairs=1"), r"pushed: \d+\.\d+ MB",
    ),
    "startup.py": (("2",), r"\| `compat` \| \d+\.\d ms \| \d"),
    "trust.py": (("--small",), r"trust verify of one wheel \| S3 \| \d\.\d+ s"),
    "wheel.py": (("--rounds=1", "--slow-rounds=1", "--folder={work}"), r"peak MiB.*\n.*\n.*\d"),
    "wheel_sets.py": (("--rounds=1",), r"patchelf's own peak: \d+ MiB"),
}  # fmt: skip
NEEDS = {
    "bazel.py": ("bazel", "clang-19"), "bisection.py": ("bazel", "clang-19"),
    "container.py": ("dockerd", "mmdebstrap"),
    "families.py": ("bazel", "clang-19"), "fetch.py": ("curl", "igzip"), "release.py": ("aws",),
    "runtime_images.py": ("dockerd", "mmdebstrap", "docker-registry"),
}  # fmt: skip
BY_HAND = {"jax_tests.py"}  # needs a JAX checkout with its wheels, and hours


def test_every_benchmark_has_a_small_run():
    assert {path.name for path in BENCHMARKS.glob("*.py")} == {*RUNS, *BY_HAND}


@pytest.mark.parametrize("name", [*RUNS, *sorted(BY_HAND)])
def test_a_benchmark_finds_what_it_measures_in_its_own_checkout(name):
    """As `python benchmarks/…` of their README: nothing of the checkout is installed."""
    load = f"import runpy; runpy.run_path({str(BENCHMARKS / name)!r}, run_name='looked at')"
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", load], env=env, check=True, timeout=60)


def gate_benchmark(monkeypatch):
    spec = util.spec_from_file_location("gate_benchmark", BENCHMARKS / "gate.py")
    module = util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_processes_on_a_device_keep_to_cpus_of_their_own_as_those_of_a_gate(monkeypatch):
    """A worker that sees all CPUs starts a thread for each: upstream counted 1,021 of them."""
    module = gate_benchmark(monkeypatch)
    monkeypatch.setattr(module.cgroup, "cpus", lambda: 16)
    gpus = tuple(
        replace(module.accelerators.cpu().devices[0], maker=Maker.NVIDIA, index=n, node=n, serial=f"{n}")
        for n in range(2)
    )  # fmt: skip
    monkeypatch.setattr(module.accelerators, "nvidia", lambda *_: Allotment(devices=gpus))
    for device, number in (("cpu", 4), ("nvidia", 8), ("nvidia", 1)):
        lanes = module.lanes_on(device, number)
        assert [len(lane.cpus) for lane in lanes] == [16 // number] * number
        assert len({cpu for lane in lanes for cpu in lane.cpus}) == 16
        assert {lane.env["OMP_NUM_THREADS"] for lane in lanes} == {str(16 // number)}
    assert {lane.env["CUDA_VISIBLE_DEVICES"] for lane in module.lanes_on("nvidia", 8)} == {"0", "1"}


def test_what_gates_recorded_tells_the_time_on_eight_gpus_and_where_it_goes(tmp_path, monkeypatch):
    module = gate_benchmark(monkeypatch)
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, number, took in ((paths[0], 512, 1_000), (paths[1], 1, 40_000)):
        file = f"{path.stem}.py"
        attempt = Attempt(outcome=Outcome.PASSED, lane="0", process=1, start_ms=0, duration_ms=took)
        tests = tuple(
            TestResult(test=f"{file}::t{n}", outcome=Outcome.PASSED, attempts=(attempt,))
            for n in range(number)
        )
        files = {"files": (file,), "suite_files": (file,)}
        path.write_bytes(Results(suite="unit", shard="", tests=tests, **files).to_bytes())
    whole, *slowest = module.recorded(paths)
    # 512 tests of a second on 127 processes, which are five at most, beside one of 40 seconds
    assert whole.rocwheel == module.START_SECONDS + 40
    assert whole.why == "4 s are tests, 20 s the start; the longest test takes 40 s"
    assert [(line.what, line.why) for line in slowest] == [
        ("tests of a.py", "93% of all"), ("tests of b.py", "7% of all"),
    ]  # fmt: skip


@pytest.mark.soak
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.needs(*NEEDS.get(name, ()))) for name in RUNS],
)
def test_a_benchmark_runs_to_its_end_and_prints_its_figures(name):
    """Status 1 stands for a requirement that is missed, which a busy machine may do to a time."""
    options, figure = RUNS[name]
    work = tempfile.mkdtemp(prefix="rocwheel-benchmark-")  # engines may not pass pytest's folders
    wants_engine = re.search(r"\{(builder|base)\}", " ".join(options))
    try:
        with engines.docker() if wants_engine else nullcontext() as engine:
            given = {"work": work, "base": engines.BASE, "builder": ""}
            if engine:
                engines.with_image(engine)
                given["builder"] = engines.with_builder(engine) if "container" in name else ""
            done = subprocess.run(
                [sys.executable, str(BENCHMARKS / name), *(o.format(**given) for o in options)],
                env={**os.environ, **(engine.env if engine else {})},
                capture_output=True, text=True, check=False, timeout=3600,
            )  # fmt: skip
    finally:
        shutil.rmtree(work, ignore_errors=True)
    assert done.returncode in {0, 1}, done.stderr[-4000:]
    assert "Traceback" not in done.stderr
    assert re.search(figure, done.stdout), done.stdout[-2000:] + done.stderr[-4000:]


def test_figures_in_the_readme_name_the_commit_they_are_of():
    sections = re.split(r"(?m)^## ", (BENCHMARKS / "README.md").read_text())[1:]
    measured = [text for text in sections if re.search(r"(?m)^\|.*\d\.\d", text)]
    assert len(measured) > 5
    for text in measured:
        assert re.search(r"Figures of commit `[0-9a-f]{8}`", text), text.partition("\n")[0]
