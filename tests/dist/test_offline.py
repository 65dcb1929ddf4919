"""`--fetch-only` and `--offline`: one folder with all that a build needs, and builds from it alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import bazel7
from support.tarballs import rocm_folder

from rocwheel import dist
from rocwheel.base import files
from rocwheel.base.errors import ConfigError, HostError
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion
from rocwheel.dist import offline
from rocwheel.dist.offline import BLOCK, BLOCKED, RECORD, Filled
from rocwheel.records.manifest import ON_DISK, RocmSource
from rocwheel.rocm.rocm_root import listing_digest
from tests.dist.test_dist import request

ROOT = Path(__file__).parents[2]
FILE = "bazel-repositories/content_addressable/sha256/00/file"
OURS = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def filled(tmp_path):
    """A folder as `--fetch-only` leaves it, and the request that it was filled for."""
    rocm = rocm_folder(tmp_path / "rocm")
    asked = request(
        tmp_path,
        therock=str(rocm),
        gfx_targets=("gfx942",),
        jax_source_dir=tmp_path / "jax",
        pythons=(PythonVersion(3, 12),),
    )
    for name, text in ((FILE, "an archive"), (f"bazel-repositories/{BLOCKED}", BLOCK)):
        path = asked.cache / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    record = Filled(
        asked=dict(offline._asked(asked, jax_ref="")),
        jax_commit="",
        pythons=("3.12",),
        rocm=RocmSource(
            version="7.10.0",
            header_version="7.10.0",
            sha256=listing_digest(rocm),
            origin="directory",
            name=str(rocm),
            delivery=ON_DISK,
        ),
        rocm_listing=listing_digest(rocm),
        bazel="7.7.0",
        files={FILE: files.sha256([b"an archive"])},
    )
    files.write(asked.cache / RECORD, record.to_bytes())
    return asked


def test_a_filled_folder_gives_the_plan_of_its_request(filled):
    planned = dist.plan_offline(replace(filled, pythons=()))
    assert planned.request.pythons == filled.pythons
    options = planned.request.machine_options
    assert (
        f"--experimental_downloader_config={filled.cache}/bazel-repositories/{BLOCKED}" in options
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pythons": (PythonVersion(3, 13),)}, "was filled for CPython 3.12, not 3.13"),
        ({"therock": "/opt/rocm"}, "was filled for --therock-path "),
        (
            {"jax_source_dir": None, "jax_version": "0.11.0"},
            "was filled for --jax-version (none), not 0.11.0",
        ),
        ({"bazel_options": ("--copt=-g",)}, "was filled for --bazel-options (none), not --copt=-g"),
        ({"cache": Path("/nowhere")}, "was never filled"),
    ],
)
def test_a_folder_for_another_request_is_refused(filled, changes, message):
    with pytest.raises(ConfigError) as caught:
        dist.plan_offline(replace(filled, **changes))
    assert message in str(caught.value)
    assert "--fetch-only" in caught.value.hint


def test_a_file_that_is_lost_or_changed_is_named(filled):
    for change in (Path.unlink, lambda path: path.write_text("another archive")):
        path = filled.cache / FILE
        change(path)
        with pytest.raises(HostError) as caught:
            dist.plan_offline(filled)
        assert str(caught.value).startswith(f"{path}: is not ")
        path.write_text("an archive")
    (Path(filled.therock) / "include" / "new.h").write_text("")
    with pytest.raises(HostError, match="is not the ROCm that was fetched"):
        dist.plan_offline(filled)


def with_modules(jax: Path, folder: Path) -> tuple[str, ...]:
    """Make it a tree in JAX's current form; return the options of Bazel 7.7 for it."""
    (jax / "WORKSPACE").unlink()
    (jax / "bazel7.bazelrc").write_text(bazel7.RC)
    rc = jax / ".bazelrc"
    rc.write_text(f"common --enable_bzlmod --noenable_workspace\n{rc.read_text()}")
    startup = ("--bazelrc=bazel7.bazelrc", bazel7.label(folder))
    return (
        f"--bazel-path={bazel7.program(folder)}",
        *(f"--bazel-startup-options={option}" for option in startup),
        f"--bazel-options={bazel7.registry(folder)}",
        "--bazel-options=--lockfile_mode=off",
    )


@pytest.mark.soak
@pytest.mark.integration
@pytest.mark.needs("mmdebstrap", "bazel", "clang-19", "ip", "unshare")
@pytest.mark.xdist_group("miniature")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to take the network away")
@pytest.mark.parametrize("form", ["WORKSPACE", "modules"])
def test_the_miniature_builds_offline_at_the_estimated_cost(form, miniature_tarball, tmp_path):
    jax = tmp_path / "jax"
    shutil.copytree(ROOT / "examples/miniature/workspace", jax)
    program = (sys.executable, str(ROOT / "build" / "ci_build"), "dist_wheels")
    python, bazel = (
        (OURS, ("--bazel-startup-options=--bazelrc=bazel/debian.bazelrc",))
        if form == "WORKSPACE"
        else (bazel7.PYTHON, with_modules(jax, tmp_path))
    )
    line = (
        *program, f"--therock-path={miniature_tarball}", f"--jax-source-dir={jax}",
        f"--python-versions={python}", "--jaxlib=built", "--allow-dirty", *bazel,
        f"--wheelhouse={tmp_path / 'wheelhouse'}",
    )  # fmt: skip

    def run(*more: str, before: tuple[str, ...] = ()) -> str:
        told = {"capture_output": True, "text": True, "cwd": tmp_path}
        done = subprocess.run([*before, *line, *more], check=False, **told)
        assert not done.returncode, done.stderr
        return done.stdout

    run(f"--fetch-only={tmp_path / 'filled'}")
    moved = tmp_path / "elsewhere"
    (tmp_path / "filled").rename(moved)
    cost = run(f"--offline={moved}", "--cost")
    most = 14 if form == "WORKSPACE" else 17  # three of Bazel 7's are inside other actions
    assert f"# plugin, pjrt for CPython {python}: at most {most} actions\n" in cost
    assert "no build of these wheels is known in it" in cost
    try:
        alone = 'ip link set lo up && exec "$@"'  # Bazel's client talks to its server by loopback
        manifest = run(f"--offline={moved}", before=("unshare", "--net", "sh", "-c", alone, "sh"))
        build = json.loads((Path(manifest.strip()).parent / "build.json").read_text())
        ran = [each["actions_executed"] for each in build["bazel"]["invocations"]]
        assert ran == [14, 3]
        assert "made from the same" in run(f"--offline={moved}", "--cost")
        other = run(f"--offline={moved}", "--cost", "--gfx-targets=gfx90a")
        assert "differs in gfx targets, so none of it can be reused" in other
        assert "  time: about " in other
    finally:
        for pid in moved.glob("bazel/*/server/server.pid.txt"):
            subprocess.run(["kill", pid.read_text()], check=False)
        subprocess.run(["chmod", "-R", "u+w", str(tmp_path)], check=False)
