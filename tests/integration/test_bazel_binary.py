"""Which Bazel is used: named, found, of the wanted version, or a reason why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocwheel import bazel
from rocwheel.errors import HostError


@pytest.fixture
def place(tmp_path):
    """Put a program that answers `--version` into a folder; the folder's path."""

    def make(name: str, says: str, folder: str = "bin") -> Path:
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] || exit 9\n{says}\n')
        path.chmod(0o755)
        return path

    return make


def locate(tmp_path, runner, flag=None, wanted="", search_path=None):
    return bazel.locate(
        flag,
        wanted=wanted,
        search_path=search_path or str(tmp_path / "bin"),
        workspace=tmp_path,
        runner=runner,
    )


def test_the_bazel_on_path_is_taken_with_its_version(place, tmp_path, runner):
    path = place("bazel", "echo bazel 7.7.0")
    found = locate(tmp_path, runner, wanted="7.7.0")
    assert (found.path, found.version, found.origin) == (path, "7.7.0", "PATH")
    assert found.release == (7, 7, 0)


def test_debians_bazel_does_not_know_its_version_and_is_taken_all_the_same(place, tmp_path, runner):
    place("bazel", "echo bazel no_version")
    found = locate(tmp_path, runner)
    assert (found.version, found.release) == ("unknown", ())


def test_another_version_than_the_tree_wants_is_shown_and_refused(place, tmp_path, runner):
    path = place("bazel", "echo bazel 6.5.0")
    with pytest.raises(HostError, match=rf"Bazel 7\.7\.0: {path} is 6\.5\.0") as caught:
        locate(tmp_path, runner, wanted="7.7.0")
    assert "--bazel" in caught.value.hint


def test_a_bazel_named_by_flag_is_used_whatever_its_version(place, tmp_path, runner):
    path = place("my-bazel", "echo bazel 8.0.0-pre.20240101", folder="elsewhere")
    found = locate(tmp_path, runner, flag=str(path), wanted="7.7.0")
    assert (found.path, found.version, found.origin) == (path, "8.0.0-pre.20240101", "flag")


def test_bazelisk_is_taken_where_bazel_is_not_the_wanted_one(place, tmp_path, runner):
    place("bazel", "echo bazel no_version")
    path = place("bazelisk", "echo bazel 7.7.0")
    assert locate(tmp_path, runner, wanted="7.7.0").path == path


def test_a_program_that_is_no_bazel_is_refused(place, tmp_path, runner):
    path = place("bazel", "echo GNU Make 4.3")
    with pytest.raises(HostError, match=rf"{path}: is no Bazel, it says 'GNU Make"):
        locate(tmp_path, runner)


def test_a_bazel_that_does_not_run_is_refused(place, tmp_path, runner):
    place("bazel", "exit 1")
    with pytest.raises(HostError, match="does not run"):
        locate(tmp_path, runner)


def test_no_bazel_at_all_says_how_to_get_one(tmp_path, runner):
    with pytest.raises(HostError, match="no such program") as caught:
        locate(tmp_path, runner, search_path=str(tmp_path))
    assert "bazel-bootstrap" in caught.value.hint
    with pytest.raises(HostError, match="nowhere: no such program"):
        locate(tmp_path, runner, flag="nowhere")
