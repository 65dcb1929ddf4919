"""The preflight: what an environment says of itself, held against what is meant."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocwheel.base.process import Completed, HostRunner, base_env
from rocwheel.base.values import replace
from rocwheel.gate import CrashingWheelsError, InfraError, WrongWheelsError, run
from rocwheel.gate.engine.plan import Lane, Watcher
from rocwheel.gate.machine import preflight
from rocwheel.gate.machine.accelerators import Accelerator, Maker
from rocwheel.gate.subject import WheelsUnderTest

WHEELS = WheelsUnderTest(
    jax_version="0.9.1",
    wheels=(
        SimpleNamespace(filename="p.whl", project="jax-x-plugin", version="0.9.1", sha256="a"),
        SimpleNamespace(filename="l.whl", project="jaxlib", version="0.9.1", sha256="b"),
    ),
    origin=Path("/wheels"),
)

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
        self.facts, self.returncode, self.output = facts, returncode, "said this"

    def run(self, command, /, **_options):
        if self.facts is not None:
            Path(command.argv[-1]).write_text(json.dumps(self.facts))
        return Completed(returncode=self.returncode, output=self.output)


def ask(tmp_path, facts, returncode=0, lane=LANE):
    command = preflight.command(Path("/py"), WHEELS, tmp_path / "facts.json", with_jax=True, env={})
    return preflight.ask(
        command, lane, WHEELS, runner=Says(facts, returncode), log=tmp_path / "l", with_jax=True
    )


def test_a_good_preflight_tells_backend_and_modules(tmp_path):
    facts = ask(tmp_path, FACTS)
    assert facts.backend == "rocm"
    assert facts.modules == ("jax_x_plugin", "jaxlib")
    assert facts.uncompared == ("jaxlib",)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"backend": "cpu"}, InfraError, "JAX runs on cpu, not on rocm"),
        ({"devices": []}, InfraError, "JAX sees ; allotted was gfx942"),
        ({"devices": FACTS["devices"] * 2}, InfraError, "sees gfx942, gfx942; allotted was gfx942"),
        ({"devices": [{"target": "gfx950"}]}, InfraError, "sees gfx950; allotted was gfx942"),
        ({"answer": 0.0}, InfraError, "twice 1024 ones make 0.0"),
        ({"error": "RuntimeError: Unable to initialize backend 'rocm'"}, InfraError, "Unable to"),
        ({"jax": "0.9.2"}, WrongWheelsError, "JAX 0.9.2 is installed, not 0.9.1"),
        ({"loaded": {"jax-x-plugin": [], "jaxlib": ["j"]}}, WrongWheelsError, "nothing of jax-x-plugin"),
        (
            {"installed": {**FACTS["installed"], "jaxlib": {"version": "0.9.0", "sha256": ""}}},
            WrongWheelsError,
            "jaxlib 0.9.0 is installed, not 0.9.1",
        ),
        (
            {"installed": {**FACTS["installed"],
                           "jax-x-plugin": {"version": "0.9.1", "sha256": "z"}}},
            WrongWheelsError,
            "installed from other bytes",
        ),
    ],
)  # fmt: skip
def test_what_is_not_as_meant_ends_the_gate_with_a_state(tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        ask(tmp_path, {**FACTS, **changes})


class AtOnce(Says):
    """A runner that answers when as many ask at once as there are devices."""

    def __init__(self, number):
        super().__init__(FACTS)
        self.barrier, self.asked = threading.Barrier(number, timeout=20), list[str]()

    def run(self, command, /, **options):
        self.asked.append(command.argv[-1])
        self.barrier.wait()
        return super().run(command, **options)


def test_128_processes_on_8_devices_ask_each_device_once_and_all_at_the_same_time(tmp_path):
    """On one H100 sixteen lanes asked one after another, which took 39 s."""
    lanes = tuple(
        Lane(name=f"gpu{gpu}.{number}", devices=(replace(GPU, index=gpu, serial=f"{gpu}"),), env={})
        for gpu in range(8)
        for number in range(16)
    )
    request = SimpleNamespace(suite=SimpleNamespace(with_jax=True), wheels=WHEELS, logs=tmp_path)
    runner, environment = AtOnce(8), SimpleNamespace(python=Path("/py"))
    gate = run._Gate(
        request=request, here=SimpleNamespace(runner=runner), lanes=lanes, work=tmp_path,
        watcher=Watcher(), until=0,
    )  # fmt: skip
    facts = gate.ask(environment)
    assert sorted(Path(name).name for name in runner.asked) == [
        f"preflight-gpu{gpu}.0.json" for gpu in range(8)
    ]
    assert [lane.name for lane in gate.lanes] == [lane.name for lane in lanes]
    assert all(lane.probe for lane in gate.lanes)  # it is asked again after a crash
    assert facts.backend == "rocm"


def test_a_preflight_that_dies_is_a_crash_and_one_that_says_nothing_is_infra(tmp_path):
    with pytest.raises(CrashingWheelsError, match="signal 11"):
        ask(tmp_path, None, -11)
    with pytest.raises(InfraError, match="exit status 1"):
        ask(tmp_path, None, 1)


@pytest.mark.parametrize(
    ("error", "output"),
    [
        ("OSError: libamdhip64.so.7: cannot open shared object file: No such file", ""),
        ("RuntimeError: no rocm", "E: failed to open: libamdhip64.so.7: cannot open shared object"),
    ],
)
def test_without_rocm_the_machine_is_to_blame_and_it_is_said_what_to_do(tmp_path, error, output):
    says = Says({**FACTS, "error": error}, 3)
    says.output = output
    command = preflight.command(Path("/py"), WHEELS, tmp_path / "facts", with_jax=True, env={})
    with pytest.raises(
        InfraError, match=r"libamdhip64\.so\.7, which the wheels need, is not"
    ) as told:
        preflight.ask(command, LANE, WHEELS, runner=says, log=tmp_path / "l", with_jax=True)
    assert "--rocm" in told.value.hint


@pytest.mark.needs("cc")
@pytest.mark.parametrize("there", ["beside", "by pip", ""])
def test_the_libraries_of_wheels_without_jax_are_loaded(tmp_path, there):
    """A real extension that needs a real library, which is there or is not."""
    compile_ = ["cc", "-shared", "-nostdlib", "-x", "c", os.devnull]
    subprocess.run([*compile_, "-o", "librocm97.so"], cwd=tmp_path, check=True)
    needs = ["-Wl,--no-as-needed", "-L.", "-lrocm97", "-Wl,-rpath,$ORIGIN"]
    subprocess.run([*compile_, "-o", "extension.so", *needs], cwd=tmp_path, check=True)
    (tmp_path / "broken.so").write_text("no library, which is for other checks to find")
    about = tmp_path / "jax_x_plugin-0.9.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: jax-x-plugin\nVersion: 0.9.1\n")
    (about / "RECORD").write_text("broken.so,,\nextension.so,,\n")
    if there != "beside":
        (tmp_path / "librocm97.so").unlink()
    if there == "by pip":  # a process that imports the wheel loads it from there
        (tmp_path / "_rocm_sdk_core").mkdir()
    wheels = replace(WHEELS, wheels=WHEELS.wheels[:1])
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    asked = preflight.command(
        Path(sys.executable), wheels, tmp_path / "facts.json", with_jax=False, env=env
    )
    runner, log = HostRunner(base_env(env)), tmp_path / "log"
    if there:
        facts = preflight.ask(asked, LANE, wheels, runner=runner, log=log, with_jax=False)
        assert facts.uncompared == ("jax-x-plugin",)
        return
    with pytest.raises(InfraError, match=r"librocm97\.so, which the wheels need"):
        preflight.ask(asked, LANE, wheels, runner=runner, log=log, with_jax=False)


def test_an_nvidia_card_is_named_by_its_compute_capability(tmp_path):
    card = replace(GPU, maker=Maker.NVIDIA, target="sm_90")
    facts = {**FACTS, "backend": "cuda", "devices": [{"target": "9.0"}]}
    assert ask(tmp_path, facts, lane=replace(LANE, devices=(card,))).backend == "cuda"
