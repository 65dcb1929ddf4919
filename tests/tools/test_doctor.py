"""`doctor` looks at what a purpose needs, and at nothing else."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from types import MappingProxyType

import pytest
from click.testing import CliRunner

from rocwheel.base import home
from rocwheel.base.console import silent
from rocwheel.base.here import Here
from rocwheel.base.process import HostRunner, base_env
from rocwheel.base.store import Options
from rocwheel.base.store.file import FileStore
from rocwheel.base.store.s3 import S3Store
from rocwheel.cli import ci_build
from rocwheel.cli.app import App
from rocwheel.tools import doctor

pytestmark = pytest.mark.integration


@pytest.fixture
def machine(tmp_path):
    def make(environ=MappingProxyType({}), **kwargs):
        environ = {"PATH": os.environ["PATH"], "https_proxy": "http://proxy:1", **environ}
        here = Here(
            environ=environ, cwd=tmp_path, cache=tmp_path / "cache", home=home.find(None),
            console=silent(), runner=HostRunner(base_env(environ)), root=tmp_path,
            now=lambda: datetime(2026, 1, 2, 3, 4, tzinfo=timezone.utc),
        )  # fmt: skip
        return partial(doctor.examine, here, **kwargs)

    return make


def rows(place, purpose):
    return {row.name: row for row in place(doctor.Purpose(purpose))}


def test_each_purpose_has_its_own_rows_and_the_clock(machine):
    place = machine()
    build, gate, release, everything = (
        rows(place, name) for name in ("build", "gate", "release", "all")
    )
    assert {"clang", "git", "patchelf"} <= build.keys()
    assert "/dev/kfd" in gate
    assert not {"clang", "git", "patchelf"} & gate.keys()
    assert not {"clang", "/dev/kfd"} & release.keys()
    assert "S3 credentials" in release
    assert {*build, *gate, *release} == everything.keys()
    for shown in (build, gate, release, everything):
        assert shown["clock"].found == "2026-01-02 03:04 UTC"


def test_a_machine_without_gpus_says_what_a_gate_lacks(machine):
    found = rows(machine(), "gate")
    assert found["amdgpu driver"].remedy.startswith("modprobe amdgpu")
    assert found["/dev/kfd"].found == "not there"
    assert "the gate brings" in found["ROCm"].found
    assert found["ROCm"].remedy == ""


def test_a_machine_with_gpus_lacks_nothing(machine, tmp_path):
    for name in ("dev/kfd", "dev/dri/renderD128", "sys/module/amdgpu/version"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("6.16.6\n")
    found = rows(machine(), "gate")
    assert found["amdgpu driver"].found == "6.16.6"
    assert all(not found[name].remedy for name in ("/dev/kfd", "/dev/dri/renderD128"))


def test_a_name_that_does_not_resolve_has_a_remedy(machine):
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


def test_an_engine_that_does_not_answer_is_reported(machine, tmp_path):
    client = tmp_path / "bin" / "docker"
    client.parent.mkdir()
    client.write_text(
        "#!/bin/sh\necho 'Cannot connect to the Docker daemon, says a fake' >&2\nexit 1\n"
    )
    client.chmod(0o755)
    row = rows(machine({"PATH": f"{client.parent}:{os.environ['PATH']}"}), "build")["docker"]
    assert "does not answer: Cannot connect to the Docker daemon, says a fake" in row.found
    assert row.remedy
    assert row.is_optional


@pytest.mark.parametrize(("is_optional", "status"), [(True, 0), (False, 8)])
def test_the_state_comes_first_and_what_to_do_has_a_line(
    tmp_path, monkeypatch, is_optional, status
):
    found = (
        doctor.Row(name="git", found="/usr/bin/git"),
        doctor.Row(name="docker", found="x" * 200, remedy="start it", is_optional=is_optional),
    )
    monkeypatch.setattr(doctor, "examine", lambda *_, **__: found)
    done = CliRunner().invoke(ci_build, ["doctor"], obj=App({}, tmp_path), standalone_mode=False)
    state = "optional" if is_optional else "bad"
    assert [line.split() for line in done.stdout.splitlines()[1:]] == [
        ["ok", "git", "/usr/bin/git"],
        [state, "docker", "x" * 200],
        ["to", "do:", "start", "it"],
    ]
    assert done.return_value == status
    done = CliRunner().invoke(ci_build, ["doctor", "--json"], obj=App({}, tmp_path))
    assert json.loads(done.stdout)["ok"] is is_optional


def test_remedies_name_the_program_as_it_was_called(tmp_path, monkeypatch):
    asked = []

    def examine(here, _purpose, **_):
        asked.append(here.cache)
        return (doctor.Row(name="docker", found="left over: x", remedy="`image prune`"),)

    monkeypatch.setattr(doctor, "examine", examine)
    monkeypatch.setattr("sys.argv", ["/checkout/build/ci_build"])
    for options in ((), ("--json",)):
        arguments = ["doctor", "--cache-dir=there", *options]
        done = CliRunner().invoke(ci_build, arguments, obj=App({}, tmp_path))
        assert "`/checkout/build/ci_build image prune`" in done.stdout
    assert asked == [tmp_path / "there"] * 2


def test_credentials_are_missed_only_where_a_bucket_is_named(machine, monkeypatch):
    """Without a store it is not known whether any are needed: what lacks stops nothing."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    bucket = S3Store("bucket", "", Options(attempts=1, endpoint="http://127.0.0.1:9"))
    assert rows(machine(), "release")["S3 credentials"].state == "optional"
    assert rows(machine(store=bucket), "release")["S3 credentials"].state == "bad"
