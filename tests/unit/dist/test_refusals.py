"""What a build would refuse, its dry run refuses: the plan says so before anything begins."""

from __future__ import annotations

import pytest

from rocwheel import cli

LINE = (
    "dist_wheels", "--dry-run", "--compiler=hermetic", "--family=gfx94X-dcgpu", "--allow-dirty",
    "--rocm-version=7.10.0", "--python-versions=3.12",
    "--therock-path=https://example.com/therock-dist-linux-gfx94X-dcgpu-7.10.0.tar.gz",
)  # fmt: skip


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--xla-source-dir={tmp}/none", "--xla-source-dir: {tmp}/none: no such folder"),
        ("--xla-source-dir={tmp}/file", "--xla-source-dir: {tmp}/file: no such folder"),
        ("--bazel-options=--output_base=/x", "--output_base: a startup option of Bazel"),
        ("--bazel-options=--nosystem_rc", "--nosystem_rc: a startup option of Bazel"),
        ("--wheelhouse={tmp}/file", "--wheelhouse: {tmp}/file: is no folder"),
        ("--wheelhouse={tmp}/file/below", "--wheelhouse: {tmp}/file/below: is no folder"),
        ("--cache-dir={tmp}/file", "--cache-dir: {tmp}/file: is no folder"),
        ("--rocm-dir={tmp}/file", "--rocm-dir: {tmp}/file: is no folder"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would(option, said, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert cli.main([*LINE, option.format(tmp=tmp_path)]) == 3
    assert said.format(tmp=tmp_path) in capsys.readouterr().err


def test_a_cpython_that_jax_dropped_is_answered_with_those_of_the_pin(capsys):
    line = [word.replace("3.12", "3.9") for word in LINE]
    assert cli.main(line) == 3
    assert "JAX 0.11.0 accepts: 3.12, 3.13" in capsys.readouterr().err


def test_what_is_right_is_planned(tmp_path, capsys):
    right = ("--bazel-options=--nokeep_going", f"--cache-dir={tmp_path}/new")
    assert cli.main([*LINE, *right, f"--wheelhouse={tmp_path}/w"]) == 0
    assert "--nokeep_going" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("targets", "warned"),
    [("gfx942", False), ("gfx942,gfx1100", True), ("gfx1100", True)],
)
def test_targets_that_the_tarballs_family_lacks_are_warned_of(targets, warned, tmp_path, capsys):
    assert cli.main([*LINE, f"--gfx-targets={targets}", f"--cache-dir={tmp_path}/new"]) == 0
    warning = "its libraries have no code for gfx1100; gfx94X-dcgpu is gfx942"
    assert (warning in capsys.readouterr().err) == warned
