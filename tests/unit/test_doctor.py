"""`doctor` looks at what a purpose needs, and at nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocwheel import doctor


@pytest.fixture
def machine(tmp_path, runner):
    def make(**kwargs):
        return doctor.Machine(
            environ={"PATH": os.environ["PATH"]},
            cache=tmp_path / "cache",
            runner=runner,
            groups=frozenset({"users"}),
            root=tmp_path,
            **kwargs,
        )

    return make


def rows(place, purpose):
    return {row.name: row for row in doctor.examine(place, doctor.Purpose(purpose))}


def test_each_purpose_has_its_own_rows(machine):
    build, gate, release = (rows(machine(), name) for name in ("build", "gate", "release"))
    assert {"clang", "git", "auditwheel"} <= build.keys()
    assert "/dev/kfd" in gate
    assert not {"clang", "git", "auditwheel"} & gate.keys()
    assert not {"clang", "/dev/kfd"} & release.keys()
    assert "S3 credentials" in release
    assert {*build, *gate, *release} == rows(machine(), "all").keys()


def test_a_machine_without_gpus_says_what_a_gate_lacks(machine):
    found = rows(machine(), "gate")
    assert found["amdgpu driver"].remedy == "load it: modprobe amdgpu"
    assert found["/dev/kfd"].found == "none"
    assert "the gate brings" in found["ROCm"].found
    assert found["ROCm"].remedy == ""


def test_a_machine_with_gpus_lacks_nothing(machine, tmp_path):
    for name in ("dev/kfd", "dev/dri/renderD128", "sys/module/amdgpu/version"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("6.16.6\n")
    found = rows(machine(), "gate")
    assert found["amdgpu driver"].found == "6.16.6"
    assert all(not found[name].remedy for name in ("/dev/kfd", "/dev/dri/renderD128"))


def test_a_name_that_does_not_resolve_is_said(machine):
    found = rows(machine(hosts=("no-such-host.invalid",)), "release")
    assert found["no-such-host.invalid"].remedy


def test_headers_matter_for_building_only(machine, tmp_path, monkeypatch):
    bare = doctor.machine.Interpreter(
        version=doctor.machine.PythonVersion(3, 12),
        full="3.12.1",
        executable=Path("/p"),
        headers=False,
    )
    monkeypatch.setattr(doctor.machine, "pythons", lambda *_args, **_kwargs: (bare,))
    assert rows(machine(), "build")["CPython 3.12"].remedy
    assert not rows(machine(), "gate")["CPython 3.12"].remedy
