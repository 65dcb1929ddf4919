"""A real Bazel 7.7 on the small workspace, with a WORKSPACE and with modules.

It is Debian sid's, in a root of its own (tests/support/bazel7.py).
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import replace as changed
from pathlib import Path

import pytest
from support import bazel7, bazel_bench, toy
from support.bazel_bench import SOURCES, Bench

from rocwheel import bazel
from rocwheel.base.errors import BazelError
from rocwheel.base.process import GuestPath
from rocwheel.base.values import replace
from rocwheel.base.versions import WheelKind
from rocwheel.bazel import BazelBinary
from rocwheel.dist.build_request import BOTH, STARTUP_OPTIONS

pytestmark = [
    pytest.mark.integration,
    pytest.mark.needs("bazel", "mmdebstrap", "unshare", "chroot"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for mounts and chroot"),
    pytest.mark.soak,
    pytest.mark.xdist_group("bazel 7"),
]

WORKSPACE = ("--noenable_bzlmod", "--enable_workspace")
MODULE = """
module(name = "toy")
settings_of = use_extension("//:extension.bzl", "settings_of")
use_repo(settings_of, "settings")
"""
EXTENSION = """
load("//:repository.bzl", "settings")

def _impl(_ctx):
    settings(name = "settings")

settings_of = module_extension(implementation = _impl)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One server for the module: starting one takes seconds."""
    folder = tmp_path_factory.mktemp("bazel7")
    yield folder
    bazel_bench.stop(folder)


@pytest.fixture
def bench(folder, runner, console):
    made = bazel_bench.make(folder, runner, console)
    (made.workspace / "bazel7.bazelrc").write_text(bazel7.RC)
    use_a_file_of(made.workspace, "settings")
    binary = BazelBinary(
        path=GuestPath(bazel7.program(folder)), version=bazel7.VERSION, origin="flag"
    )
    return changed(
        made,
        spec=replace(
            made.spec,
            bazel=binary,
            startup_options=("--bazelrc=bazel7.bazelrc", bazel7.label(folder)),
            options=WORKSPACE,
        ),
    )


def use_a_file_of(workspace: Path, repository: str) -> None:
    """Let the plugin depend on an external repository."""
    rules = workspace / "repository.bzl"
    rules.write_text(
        rules.read_text().replace(
            'repository_ctx.file("BUILD.bazel", "")',
            'repository_ctx.file("f.txt", "external = 1\\n")\n'
            '    repository_ctx.file("BUILD.bazel", "exports_files([\\"f.txt\\"])")',
        )
    )
    build = workspace / "jaxlib" / "tools" / "BUILD.bazel"
    own = f'toy_object(name = "external", src = "@{repository}//:f.txt")\n'
    build.write_text(
        build.read_text().replace('["kernels", "shared"]', '["external", "kernels", "shared"]')
        + own
    )


@pytest.fixture
def with_modules(bench, folder):
    (bench.workspace / "WORKSPACE").unlink()
    (bench.workspace / "MODULE.bazel").write_text(MODULE)
    (bench.workspace / "extension.bzl").write_text(EXTENSION)
    options = (bazel7.registry(folder), "--lockfile_mode=off")
    return changed(bench, spec=replace(bench.spec, options=options))


def check_builds(bench: Bench) -> None:
    bench.write("kernels.txt", f"kernels {time.time()}\n")
    first = bench.build(wants_release=True)
    assert {kind: path.name for kind, path in first.outputs.items()} == {
        WheelKind.PLUGIN: "jax_rocm7_plugin-0.11.0+rocm7.10.0-cp312-cp312-linux_x86_64.whl",
        WheelKind.PJRT: "jax_rocm7_pjrt-0.11.0+rocm7.10.0-py3-none-linux_x86_64.whl",
    }
    kernels = (bench.workspace / SOURCES / "kernels.txt").read_text()
    assert toy.text_of(first.outputs[WheelKind.PLUGIN]) == f"external = 1\n{kernels}shared = 1\n"
    assert first.record.actions_executed >= 2
    (settings,) = first.repositories[WheelKind.PLUGIN]
    assert settings.role == "configured"
    assert re.fullmatch(r"(\+settings_of\+)?settings|_main~settings_of~settings", settings.name)

    again = bench.build(wants_release=True)
    assert (again.record.actions_executed, again.record.cache_hits) == (0, 0)
    assert again.repositories == first.repositories

    bench.wipe()
    cached = bench.build(wants_release=True)
    assert cached.record.actions_executed == 0
    assert cached.record.cache_hits == 6


def test_a_workspace_builds(bench):
    check_builds(bench)


def test_modules_build(with_modules):
    check_builds(with_modules)


def test_modules_that_were_fetched_build_without_a_network(with_modules):
    def define(call):
        module = with_modules.workspace / "MODULE.bazel"
        rule = 'use_repo_rule("@bazel_tools//tools/build_defs/repo:http.bzl", "http_file")'
        module.write_text(f"{module.read_text()}http_file = {rule}\n{call}")

    bazel_bench.check_offline(with_modules, define)


def test_a_failed_action_is_explained_without_colours(bench, talk):
    bench.write("kernels.txt", f"FAIL {time.time()}\n")
    with pytest.raises(BazelError) as caught:
        bench.build()
    assert "error: told to fail" in caught.value.detail
    assert "\x1b" not in f"{caught.value} {caught.value.detail} {talk.getvalue()}"


def test_its_server_ends_when_asked(bench, runner):
    bench.build()
    base = bench.invocation().spec.output_base
    pid = int((runner.host(base) / "server" / "server.pid.txt").read_text())
    bazel.shutdown(bench.invocation(), runner=runner)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()


def test_its_startup_options_are_known(bench, folder):
    binary, *startup = bench.invocation().ask().argv
    line = [binary, *startup, "help", "startup_options"]
    done = subprocess.run(line, cwd=bench.workspace, capture_output=True, text=True, check=True)
    options = set(re.findall(r"(?m)^  --(?:\[no\])?(\w+)", done.stdout))
    assert len(options) >= 20
    assert {name for name in options - STARTUP_OPTIONS if not BOTH.fullmatch(name)} == set()
