"""A wheelhouse appears whole under its identity, or not at all."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys

import pytest
from support.trust import make_record

from rocwheel.base.errors import HostError, WheelError
from rocwheel.base.values import replace
from rocwheel.dist import wheelhouse
from rocwheel.records.manifest import BuildRecord, Manifest
from tests.records.test_manifest import example

CONTENT = b"not really a wheel"
NAME = "jax_rocm7_pjrt-0.11.0-py3-none-manylinux_2_27_x86_64.whl"


def manifest() -> Manifest:
    plain = example()
    wheel = replace(plain.wheels[0], size=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest())
    return replace(plain, wheels=(wheel,))


def record() -> BuildRecord:
    return make_record(manifest())


def make(folder):
    with wheelhouse.assembling(folder) as scratch:
        (scratch / NAME).write_bytes(CONTENT)
        return wheelhouse.publish(scratch, manifest(), record())


def test_a_set_is_published_whole_and_current_points_to_it(tmp_path):
    path, is_new = make(tmp_path / "house")
    assert is_new
    assert path.name == manifest().sha256[:12]
    assert sorted(item.name for item in path.iterdir()) == [
        "build.json", NAME, "manifest.json", "requirements.txt",
    ]  # fmt: skip
    assert (tmp_path / "house" / "current").resolve() == path
    assert Manifest.load(tmp_path / "house" / "current") == manifest()
    assert json.loads((path / "build.json").read_bytes())["manifest"] == manifest().sha256
    assert path.stat().st_mode & 0o777 == 0o755


def test_the_same_set_again_changes_nothing(tmp_path):
    path, _ = make(tmp_path)
    before = {item.name: item.stat().st_mtime_ns for item in path.iterdir()}
    again, is_new = make(tmp_path)
    assert (again, is_new) == (path, False)
    assert {item.name: item.stat().st_mtime_ns for item in path.iterdir()} == before
    assert sorted(item.name for item in tmp_path.iterdir()) == sorted(
        [".unfinished", path.name, "current"]
    )
    assert list((tmp_path / ".unfinished").iterdir()) == []


def test_a_changed_wheel_in_an_existing_set_is_found(tmp_path):
    path, _ = make(tmp_path)
    (path / NAME).write_bytes(b"other bytes")
    with pytest.raises(WheelError, match="the manifest says"):
        make(tmp_path)
    (path / NAME).unlink()
    with pytest.raises(WheelError, match="No such file"):
        make(tmp_path)


def test_a_failure_leaves_the_old_state(tmp_path):
    path, _ = make(tmp_path)
    house = wheelhouse.assembling(tmp_path)
    scratch = house.__enter__()
    (scratch / NAME).write_bytes(b"half")
    house.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert sorted(item.name for item in tmp_path.iterdir()) == sorted(
        [".unfinished", path.name, "current"]
    )
    assert list((tmp_path / ".unfinished").iterdir()) == []


def test_the_next_one_removes_what_killed_ones_left_and_nothing_of_living_ones(tmp_path):
    code = f"""if True:
        import os, pathlib
        from rocwheel.dist import wheelhouse
        with wheelhouse.assembling(pathlib.Path({str(tmp_path)!r})) as scratch:
            (scratch / "raw").mkdir()
            (scratch / "raw/half.whl").write_bytes(b"half")
            os.kill(os.getpid(), 9)
    """
    for _ in range(2):
        killed = subprocess.run([sys.executable, "-c", code], check=False)
        assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.rglob("half.whl"))) == 1, "the second removed what the first left"
    with wheelhouse.assembling(tmp_path) as living:
        path, _ = make(tmp_path)
        assert living.is_dir()
        left = {item.name for item in (tmp_path / ".unfinished").iterdir()}
        assert left == {living.name, f"{living.name}.owner"}
    assert path.is_dir(), "finished sets stay, however old"


def test_current_moves_only_after_the_set_is_complete(tmp_path):
    first, _ = make(tmp_path)
    with wheelhouse.assembling(tmp_path) as scratch:
        (scratch / "stray.whl").write_bytes(b"")
        with pytest.raises(WheelError, match=r"unexpected \['stray.whl'\]"):
            wheelhouse.publish(scratch, manifest(), record())
    assert (tmp_path / "current").resolve() == first


def test_a_build_record_that_breaks_its_schema_is_never_written(tmp_path):
    bad = replace(record(), executor="cloud")
    with wheelhouse.assembling(tmp_path) as scratch:
        (scratch / NAME).write_bytes(CONTENT)
        with pytest.raises(Exception, match="executor"):
            wheelhouse.publish(scratch, manifest(), bad)
    assert list(tmp_path.rglob("*")) == [tmp_path / ".unfinished"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(HostError, match="file/house"),
        wheelhouse.assembling(tmp_path / "file/house"),
    ):
        pass
