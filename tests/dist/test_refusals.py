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


NIGHTLY, PACKAGES = "https://rocm.nightlies.amd.com", "whl-multi-arch/"
BY_PIP = "'--therock-path=pip:rocm[libraries,devel,device-gfx942]==7.15.0a20260630'"


@pytest.mark.parametrize(
    ("options", "fetched"),
    [
        (["--therock-path={page}therock-dist-linux-gfx94X-dcgpu-{version}.tar.gz"], "{options[0]}"),
        (["--therock-path={page}therock-dist-linux-multiarch-{version}.tar.gz",
          "--family=gfx94X-dcgpu"], "{options[0]}"),
        (["--therock-index-url=nightly", "--rocm-version={version}", "--rocm-devices=gfx942",
          "--gfx-targets=gfx942"], BY_PIP),
    ],
    ids=["per family", "multiarch", "pip"],
)  # fmt: skip
def test_each_way_therock_publishes_is_planned_with_its_version(options, fetched, tmp_path, capsys):
    names = {"page": f"{NIGHTLY}/tarball-multi-arch/", "version": "7.15.0a20260630"}
    options = [option.format(**names) for option in options]
    line = ("dist_wheels", "--dry-run", "--compiler=hermetic", "--allow-dirty",
            "--python-versions=3.12", f"--cache-dir={tmp_path}")  # fmt: skip
    assert cli.main([*line, *options]) == 0
    shown = capsys.readouterr().out
    rocm = next(line for line in shown.splitlines() if line.startswith("ROCM_ROOT="))
    assert f" rocm fetch {fetched.format(options=options)} --cache-dir={tmp_path}" in rocm
    assert (f"--therock-index-url={NIGHTLY}/{PACKAGES})" in rocm) == (fetched == BY_PIP)
    assert "--repo_env=TF_ROCM_AMDGPU_TARGETS=gfx942 " in shown
    for wheel in ("plugin-{}-cp312-cp312", "pjrt-{}-py3-none"):
        assert f"/jax_rocm7_{wheel.format('0.11.0+rocm7.15.0a20260630')}-" in shown


@pytest.mark.parametrize(
    ("targets", "warned"),
    [("gfx942", False), ("gfx942,gfx1100", True), ("gfx1100", True)],
)
def test_targets_that_the_tarballs_family_lacks_are_warned_of(targets, warned, tmp_path, capsys):
    line = [word for word in LINE if not word.startswith("--family")]
    assert cli.main([*line, f"--gfx-targets={targets}", f"--cache-dir={tmp_path}/new"]) == 0
    warning = "its libraries have no code for gfx1100; gfx94X-dcgpu is gfx942"
    assert (warning in capsys.readouterr().err) == warned
