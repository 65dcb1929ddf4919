"""The environment of a gate as a plan: what is installed, in which order, held to which versions."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from support.wheelset import make_set

from rocwheel.base.errors import WheelError
from rocwheel.base.host.machine import Interpreter
from rocwheel.base.store.opening import open_store
from rocwheel.base.versions import PythonVersion
from rocwheel.gate import environment, subject
from rocwheel.gate.subject import WheelsUnderTest, WheelUnderTest
from rocwheel.records.places import Place

PYTHON = PythonVersion.parse("3.12")


@pytest.mark.parametrize("stored", [True, False])
def test_a_manifests_wheels_are_installed_from_files_by_hash(tmp_path, stored):
    manifest = make_set(tmp_path, upstream_jaxlib=True)
    place = Place(store=open_store(tmp_path.as_uri()), root="v2-staging/x", family="x")
    wheels = subject.of_manifest(manifest, PYTHON, place if stored else tmp_path)
    brought = Path("/env/wheels")
    lines = [wheel.requirement(brought) for wheel in wheels.wheels]
    built = {w.filename for w in manifest.built if w.python in ("", "3.12")}
    assert set(wheels.stored) == (built if stored else set())
    assert len(lines) == 3
    for wheel in manifest.wheels:
        if wheel.python in ("", "3.12"):
            assert any(line.endswith(f" --hash=sha256:{wheel.sha256}") for line in lines)
    assert any(line.startswith("jaxlib==0.9.1 --hash=") for line in lines)
    folder = brought if stored else tmp_path
    assert sum(f"@ {folder.as_uri()}/" in line for line in lines) == 2
    with pytest.raises(WheelError, match=r"no CPython 3\.13"):
        subject.of_manifest(manifest, PythonVersion.parse("3.13"), tmp_path)


WHEELS = WheelsUnderTest(
    jax_version="0.9.1",
    wheels=(
        WheelUnderTest(filename="p.whl", project="jax-x-plugin", version="0.9.1", sha256="a"),
        WheelUnderTest(filename="l.whl", project="jaxlib", version="0.9.1", sha256="b"),
    ),
)
INTERPRETER = Interpreter(version=PYTHON, full="3.12.1", executable=Path("/py"), headers=True)


def test_a_plan_installs_the_set_alone_and_holds_everything_to_it():
    planned = environment.plan(
        WHEELS,
        interpreter=INTERPRETER,
        folder=Path("/w"),
        cache=Path("/c"),
        requirements=("pytest==8.4.2",),
        constraints=("numpy==2.0", "jaxlib==0.8.0"),
        with_jax=True,
    )
    texts = {path.name: text.splitlines() for path, text in planned.files}
    assert texts["others.txt"] == ["jax==0.9.1", "pytest==8.4.2"]
    assert texts["constraints.txt"] == ["jax-x-plugin==0.9.1", "jaxlib==0.9.1", "numpy==2.0"]
    venv, compiled, synced, check, listed = (command for _, command in planned.commands)
    assert venv.argv[-3:] == ("--python", "/py", "/w/env")
    files = ["/w/constraints.txt", "-o", "/w/all.txt", "/w/wheels.txt", "/w/others.txt"]
    assert list(compiled.argv[-5:]) == files
    assert {"--require-hashes", "--link-mode", "copy", "/w/all.txt"} <= set(synced.argv)
    assert ("check" in check.argv, "list" in listed.argv) == (True, True)
    assert {command.env["UV_CACHE_DIR"] for _, command in planned.commands} == {"/c/gate/uv"}


def test_hashes_of_the_fake_wheels_are_real(tmp_path):
    manifest = make_set(tmp_path)
    for wheel in manifest.wheels:
        data = (tmp_path / wheel.filename).read_bytes()
        assert hashlib.sha256(data).hexdigest() == wheel.sha256
