"""Bazel's rc files: read as Bazel reads them, configs in place, the last value of a variable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rocwheel.base.errors import SourceError
from rocwheel.source import bazelrc

if TYPE_CHECKING:
    from pathlib import Path


def read(folder: Path, text: str, *names: str) -> bazelrc.RcFiles:
    (folder / ".bazelrc").write_text(text)
    return bazelrc.read_rc(folder, names)


def test_configs_are_those_of_the_command_and_of_what_it_inherits(tmp_path):
    rc = read(
        tmp_path, "common:a --x\nbuild:b --x\nrun:c --x\ntest:d --x\nalways:e --x\nbuild --y\n"
    )
    assert rc.configs == {"a", "b", "e"}


def test_nested_configs_stand_where_they_are_asked_for(tmp_path):
    rc = read(
        tmp_path,
        "build --first\n"
        "build:outer --before\n"
        "build:outer --config=inner\n"
        "build:outer --after\n"
        "common:inner --deep --config innermost\n"
        "build:innermost --deepest\n",
    )
    words = rc.flatten(["--own", "--config=outer", "--last"])
    assert [word for word in words if not word.startswith("--config")] == [
        *("--first", "--own", "--before", "--deep", "--deepest", "--after", "--last"),
    ]


def test_quotes_comments_continued_lines_and_values_in_the_next_word(tmp_path):
    rc = read(
        tmp_path,
        "# a comment\n"
        'build --action_env=PATH_OF="/a b/clang" # and another\n'
        "build --copt=-O2 \\\n  --copt=-g\n"
        "build --repo_env NAME=1\n"
        "\n",
    )
    assert rc.flatten(()) == (
        *("--action_env=PATH_OF=/a b/clang", "--copt=-O2", "--copt=-g", "--repo_env=NAME=1"),
    )
    assert [line.where.rpartition(":")[2] for line in rc.lines] == ["2", "3", "5"]


def test_imports_are_read_in_place_and_only_try_import_may_fail(tmp_path):
    (tmp_path / "more.rc").write_text("build --more\n")
    rc = read(
        tmp_path,
        "build --a\nimport %workspace%/more.rc\ntry-import %workspace%/none.rc\nbuild --b\n",
    )
    assert rc.flatten(()) == ("--a", "--more", "--b")
    with pytest.raises(SourceError, match=r"none\.rc"):
        read(tmp_path, "import %workspace%/none.rc\n")
    (tmp_path / "more.rc").write_text("import %workspace%/more.rc\n")
    with pytest.raises(SourceError, match="imports itself"):
        read(tmp_path, "import %workspace%/more.rc\n")


def test_rc_files_named_at_start_come_after_the_workspaces_own(tmp_path):
    (tmp_path / "rocm.rc").write_text("build:rocm --late\n")
    rc = read(tmp_path, "build:rocm --early\n", "rocm.rc")
    assert rc.flatten(["--config=rocm"]) == ("--config=rocm", "--early", "--late")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("build:a --config=b\n", r"\.bazelrc:1: --config=b: no rc file"),
        ("build:a --config=a\n", "contains itself"),
        ("build:a --config=b\nbuild:b --config=a\n", "contains itself"),
    ],
)
def test_a_config_that_cannot_be_is_located(tmp_path, text, problem):
    with pytest.raises(SourceError, match=problem):
        read(tmp_path, text).flatten(["--config=a"])


def test_a_line_that_is_none_is_located(tmp_path):
    with pytest.raises(SourceError, match=r"\.bazelrc:2: No closing quotation"):
        read(tmp_path, 'build --a\nbuild --b="x\n')


def test_repo_env_goes_before_action_env_and_the_last_of_each_counts():
    options = (
        "--action_env=A=1",
        "--repo_env=B=1",
        "--repo_env=A=2",
        "--action_env=A=3",
        "--repo_env=B=2",
    )
    assert bazelrc.variables(options) == {"A": "2", "B": "2"}
    assert bazelrc.variables(["--action_env=HOME", "--copt=-O2"]) == {}
