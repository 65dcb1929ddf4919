"""`doctor` looks at what a purpose needs, and at nothing else."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType

import pytest

from rocwheel import doctor
from rocwheel.store.file import FileStore


@pytest.fixture
def machine(tmp_path, runner):
    def make(environ=MappingProxyType({}), **kwargs):
        return doctor.Machine(
            environ={"PATH": os.environ["PATH"], "https_proxy": "http://proxy:1", **environ},
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
    place = machine({"no_proxy": "*"}, hosts=("no-such-host.invalid",))
    assert rows(place, "release")["no-such-host.invalid"].remedy


def test_names_are_those_that_the_purpose_needs(machine):
    place = machine({"PIP_INDEX_URL": "https://mirror.example.com/simple"}, hosts=("cdn.example",))
    assert {"github.com", "storage.googleapis.com"} <= rows(place, "build").keys()
    gate, release = rows(place, "gate"), rows(place, "release")
    assert gate["mirror.example.com"].found == "through the proxy"
    assert "storage.googleapis.com" not in gate
    assert "cdn.example" in release
    assert "github.com" not in release


def test_a_folder_says_whether_it_may_be_written(machine, tmp_path):
    store = FileStore(tmp_path / "store")
    found = rows(machine(store=store), "release")
    assert found[store.url].found == "may be written"
    assert "S3 credentials" not in found
    assert "store" in rows(machine(), "gate")
    assert "store" not in rows(machine(), "build")


def test_the_clock_is_shown_for_every_purpose(machine):
    for purpose in doctor.Purpose:
        assert (
            rows(machine(now=datetime(2026, 1, 2, 3, 4, tzinfo=timezone.utc)), purpose.value)[
                "clock"
            ].found
            == "2026-01-02 03:04 UTC"
        )


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
