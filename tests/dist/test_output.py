"""Lines of a dry run: they do the same when they are pasted, whatever the shell they meet has."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from support import generations, tarballs
from support.faultserver import FaultServer
from support.generations import GENERATIONS

from rocwheel import bazel, dist
from rocwheel.base import home
from rocwheel.base.errors import RocmError
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion
from rocwheel.records.build_options import RemoteOptions

ROOT = Path(__file__).parents[2]
URL = "https://example.com/therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz"


@pytest.fixture
def program(tmp_path):
    """A Bazel that says what it was given: its words and its environment."""
    program = tmp_path / "bin" / "bazel"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo bazel 7.7.0 && exit\nenv | sort\n'
        'for word in "$@"; do echo "word $word"; done\n'
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def lines(tmp_path, here, program):
    def show(**changes):
        root = generations.write(tmp_path / "jax", GENERATIONS["0.11.0"])
        asked = dist.Request(
            allow_dirty=True,  # of the checkout that the tests stand in
            therock=URL,
            jax_source_dir=root,
            compiler="hermetic",
            jaxlib="built",
            bazel_path=str(program),
            wheelhouse=tmp_path / "wheelhouse",
            cache=tmp_path / "cache",
            home=home.find(None),
            cwd=tmp_path,
            environ={"PATH": "/usr/bin:/bin", "HOME": "/home/somebody"},
        )
        return list(dist.dry_run(dist.plan(replace(asked, **changes)), here))

    return show


def paste(line, **shell):
    env = {"PATH": os.environ["PATH"], **shell}
    done = subprocess.run(["sh", "-c", line], env=env, capture_output=True, text=True, check=True)
    return done.stdout


def invocations(lines):
    assert not any("run()" in line for line in lines)  # a line needs nothing of another one
    return [line for line in lines if "env -i " in line and "=" not in line.split("env -i")[0]]


def test_no_variable_of_the_shell_reaches_the_bazel_that_is_pasted(lines):
    jaxlib = next(line for line in invocations(lines()) if "jaxlib_wheel" in line)
    said = paste(jaxlib, ROCM_PATH="/opt/rocm", TF_NEED_ROCM="1", CC="/x")
    assert "HOME=/home/somebody" in said.splitlines()
    assert not any(name in said for name in ("ROCM_PATH", "TF_NEED_ROCM", "CC=/x"))


def test_a_rocm_that_is_not_here_is_a_variable_that_a_line_of_ours_sets(lines):
    shown = lines()
    setter = next(line for line in shown if line.startswith("ROCM_ROOT="))
    words = shlex.split(setter.partition('"$(')[2].removesuffix(')"'))
    start = words.index(str(ROOT / "build" / "ci_build"))
    assert words[:4] == ["env", "-i", "HOME=/home/somebody", "PATH=/usr/bin:/bin"]
    assert words[start + 1 : start + 3] == ["rocm", "fetch"]
    assert f"--therock-path={URL}" in words
    plugin = next(line for line in invocations(shown) if "jax_rocm_plugin_wheel" in line)
    assert "word --repo_env=ROCM_PATH=/r o/ot" in paste(f'ROCM_ROOT="/r o/ot"; {plugin}')
    assert shown.index(setter) < shown.index(plugin)


@pytest.mark.needs("curl")
def test_a_bazel_that_is_not_here_is_brought_by_a_line_to_where_later_lines_start_it(
    lines, program, tmp_path
):
    """Whole and with the digest it must have, or not at all: the cache asks for it no more."""
    release = program.read_bytes()
    ours = home.find(None)
    ci = shutil.copytree(ours.ci, tmp_path / "ci")
    table = ci / "bazel_binaries.yaml"
    known = re.search(r'"7\.7\.0":\s+linux-x86_64:\s+sha256: (\w+)', table.read_text())[1]
    table.write_text(table.read_text().replace(known, hashlib.sha256(release).hexdigest()))
    with FaultServer() as server:
        mirror = server.url("bazel")
        shown = lines(bazel_path=None, bazel_mirror=mirror, home=replace(ours, ci=ci))
        fetching = next(line for line in shown if " sh -c " in line and mirror in line)
        plugin = next(line for line in invocations(shown) if "jax_rocm_plugin_wheel" in line)
        path = Path(next(word for word in shlex.split(plugin) if word.endswith("/bazel-7.7.0")))
        assert shown.index(fetching) < shown.index(plugin)
        server.add("bazel/7.7.0/bazel-7.7.0-linux-x86_64", b"another file")
        with pytest.raises(subprocess.CalledProcessError):
            paste(fetching)
        assert not path.exists()
        server.add("bazel/7.7.0/bazel-7.7.0-linux-x86_64", release)
        paste(fetching)
        assert path.read_bytes() == release
        assert "word //jaxlib/tools:jax_rocm_plugin_wheel" in paste(f"ROCM_ROOT=/r; {plugin}")
    again = lines(bazel_path=None, bazel_mirror=mirror, home=replace(ours, ci=ci))
    assert fetching not in again


def test_a_rocm_that_is_here_stands_in_the_line(lines, tmp_path):
    folder = tarballs.rocm_folder(tmp_path / "rocm")
    shown = lines(therock=str(folder), gfx_targets=("gfx942",))
    assert not any("ROCM_ROOT" in line for line in shown)
    plugin = next(line for line in invocations(shown) if "jax_rocm_plugin_wheel" in line)
    assert f"word --repo_env=ROCM_PATH={folder}" in paste(plugin)


def test_a_dry_run_shows_the_targets_of_each_family(lines):
    shown = lines(
        therock=URL.replace("gfx94X-dcgpu", "multiarch"), families=("gfx1151", "gfx120X-all")
    )
    at = shown.index("# gfx targets gfx1151, gfx1200, gfx1201")
    assert shown[at + 1 : at + 3] == ["#   gfx1151: gfx1151", "#   gfx120X-all: gfx1200, gfx1201"]
    plugin = next(line for line in invocations(shown) if "jax_rocm_plugin_wheel" in line)
    assert "TF_ROCM_AMDGPU_TARGETS=gfx1151,gfx1200,gfx1201" in plugin


def test_a_dry_run_says_that_a_cache_without_its_credentials_is_left_out(lines):
    asked = RemoteOptions(cache="https://cache.example", header_file=Path("/nowhere/headers"))
    shown = lines(remote=bazel.read_remote(asked))
    assert "# remote cache not used: /nowhere/headers: no such file" in shown
    assert not any("cache.example" in line for line in shown)


def test_a_cpython_that_is_named_twice_is_built_for_once(lines):
    shown = lines(pythons=(PythonVersion(3, 12), PythonVersion(3, 12)))
    written = [line for line in shown if line.startswith("# write") and line.endswith(".whl")]
    assert len(written) == len({*written}) == 3  # plugin, pjrt, jaxlib


def test_a_dry_run_refuses_the_rocm_that_the_build_would_refuse(lines, tmp_path):
    folder = tarballs.rocm_folder(tmp_path / "rocm")
    (folder / "include/miopen/version.h").unlink()
    with pytest.raises(RocmError, match="lacks 1 of the files"):
        lines(therock=str(folder), gfx_targets=("gfx942",))


def test_a_proxy_with_a_password_is_named_not_shown(lines):
    environ = {"PATH": "/usr/bin:/bin", "HTTPS_PROXY": "http://me:s3cret@proxy:1"}
    shown = lines(environ=environ)
    assert not any("s3cret" in line for line in shown)
    assert "HTTPS_PROXY=x" in paste(invocations(shown)[-1], HTTPS_PROXY="x").splitlines()
