"""Locks, digests and writes that several processes share."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
import tracemalloc
from pathlib import Path

import pytest

from rocwheel.base import files

NOBODY = 65534


def test_a_lock_is_held_by_one_and_let_go_of_with_its_value(tmp_path):
    path = tmp_path / "deep" / "lock"
    with files.locked(path):
        assert files.try_locked(path) is None
        assert files.try_locked(path, shared=True) is None
    lock = files.try_locked(path)
    assert lock
    del lock
    assert files.try_locked(path)


def test_a_shared_lock_is_held_by_many_and_keeps_the_exclusive_one_away(tmp_path):
    path = tmp_path / "lock"
    with files.locked(path, shared=True), files.locked(path, shared=True):
        assert files.try_locked(path) is None


def test_who_has_to_wait_says_so_once(tmp_path):
    told, path = [], tmp_path / "lock"
    held = files.locked(path)

    def waiting() -> None:
        told.append(1)
        threading.Timer(0.05, held.close).start()

    files.locked(path, waiting=waiting).close()
    assert told == [1]


def test_a_shared_lock_works_where_nothing_can_be_written():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "lock"
        path.touch()
        path.chmod(0o444)
        user = os.geteuid()
        os.seteuid(user or NOBODY)  # root may write everywhere
        try:
            with files.locked(path, shared=True), pytest.raises(PermissionError):
                path.write_bytes(b"")
        finally:
            os.seteuid(user)


def test_a_write_that_fails_leaves_the_old_bytes_and_nothing_beside_them(tmp_path):
    path = tmp_path / "file"
    files.write(path, b"old", mode=0o600)
    with pytest.raises(TypeError):
        files.write(path, object())  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert path.stat().st_mode & 0o777 == 0o600
    assert files.entries(tmp_path) == (path,)


def test_a_digest_is_that_of_the_bytes_wherever_they_are(tmp_path):
    (tmp_path / "file").write_bytes(b"ab")
    expected = hashlib.sha256(b"ab").hexdigest()
    assert files.sha256(tmp_path / "file") == files.sha256([b"a", b"b"]) == expected


def test_what_vanished_meanwhile_is_no_error(tmp_path):
    (tmp_path / "folder" / "closed").mkdir(parents=True)
    (tmp_path / "folder" / "closed" / "file").touch()
    (tmp_path / "folder" / "closed").chmod(0o500)
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    files.remove(tmp_path / "link")
    assert (tmp_path / "folder" / "closed").is_dir()
    for _ in range(2):
        files.remove(tmp_path / "folder")
    assert files.entries(tmp_path / "folder") == ()
    assert files.status(tmp_path / "folder") is None


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    folder = tmp_path / "folder"
    (tmp_path / "folder.part").mkdir()
    (tmp_path / "folder.part" / "of a killed run").touch()
    source = tmp_path / "source"
    source.mkdir()
    (source / "fine").touch()
    (source / "dangling").symlink_to("nowhere")
    with pytest.raises(shutil.Error), files.whole_folder(folder) as aside:
        shutil.copytree(source, aside)  # what a killed run left is gone: else FileExistsError
    assert list(tmp_path.iterdir()) == [source]
    for text in ("one", "two"):
        with files.whole_folder(folder) as aside:
            aside.mkdir()
            (aside / "whole").write_text(text)
        assert (folder / "whole").read_text() == text
        assert files.entries(tmp_path) == (folder, source)


def test_it_is_known_before_it_is_tried_whether_something_can_be_written(tmp_path):
    (tmp_path / "file").touch()
    assert files.is_writable(tmp_path / "a" / "b")
    assert not files.is_writable(tmp_path / "file" / "b")
    (tmp_path / "nowhere").symlink_to(tmp_path / "none")
    assert not files.is_writable(tmp_path / "nowhere" / "b")


def test_who_asks_whether_a_lock_is_held_changes_nothing(tmp_path):
    with files.locked(tmp_path / "lock", shared=True):
        assert files.is_held(tmp_path / "lock")
    assert not files.is_held(tmp_path / "lock")
    assert files.try_locked(tmp_path / "lock")


def test_reading_a_small_file_takes_no_memory_for_the_largest(tmp_path):
    (tmp_path / "small").write_bytes(b"x" * 100)
    tracemalloc.start()
    try:
        assert files.read(tmp_path / "small", most=1 << 30) == b"x" * 100
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(OSError, match="larger than"):
        files.read(tmp_path / "small", most=99)


@pytest.mark.parametrize("held", [b"null", b"3", b"[1]", b"{", b"\xff"])
def test_a_file_of_ours_that_holds_no_object_is_as_if_it_were_not_there(held, tmp_path):
    (tmp_path / "kept.json").write_bytes(held)
    assert files.read_json(tmp_path / "kept.json") == {}
