"""What goes wrong in a build: one error, nothing half-written, no process left, next run works."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from e2e.conftest import PATH, ROOT, World, interpreter
from support.git_server import repository
from support.tiers import merge_tries

from rocwheel.base.host import machine

pytestmark = [
    pytest.mark.needs("bazel", "clang-19", "cc"),
    pytest.mark.xdist_group("demo"),
]

WORKSPACE = ROOT / "examples" / "miniature" / "workspace"


@pytest.fixture
def world(demo, tmp_path):
    """A wheelhouse of its own that shares the cache of the demo, and the arguments of a build."""
    shared, _ = demo
    own = World(tmp_path, env={"XDG_CACHE_HOME": str(shared.folder / "cache")})
    own.arguments = arguments(shared, WORKSPACE)
    return own


def arguments(shared: World, workspace: Path) -> list[str]:
    tarball = next((shared.cache / "demo").glob("*/therock-dist-*.tar.gz"))
    version = "3.11"  # the demo's
    return [
        "dist_wheels",
        f"--therock-path={tarball}",
        "--gfx-targets=gfx90a,gfx942,gfx1100,gfx1201",
        f"--python-versions={version}",
        f"--jax-source-dir={workspace}",
        "--jaxlib=built",
        "--allow-dirty",
        "--bazel-startup-options=--bazelrc=bazel/debian.bazelrc",
        f"--bazel-options=--repo_env=MINIATURE_PYTHON_3_11={interpreter(version)}",
    ]


def copied(target: Path) -> Path:
    shutil.copytree(WORKSPACE, target, ignore=shutil.ignore_patterns("bazel-*"))
    return target


def error_of(done) -> str:
    """The two lines of an error, which must be the last thing that was said."""
    lines = done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    assert lines[-2].startswith("error: "), done.stderr[-2000:]
    assert lines[-1].startswith("hint:  "), done.stderr[-2000:]
    return lines[-2]


def nothing_made(world: World) -> None:
    assert world.unfinished() == []
    assert not world.wheelhouse.exists() or list(world.wheelhouse.glob("[!.]*")) == []


def test_a_failing_compile_shows_the_compilers_words_first(demo, world, tmp_path):
    shared, _ = demo
    workspace = copied(tmp_path / "workspace")
    source = workspace / "jax_plugins" / "rocm" / "pjrt_c_api.cc"
    source.write_text(source.read_text() + "\nint broken = no_such_name;\n")
    failed = world.run(*arguments(shared, workspace))
    assert failed.returncode == 12
    assert "no_such_name" in failed.stderr
    assert failed.stderr.index("no_such_name") < failed.stderr.rindex("error: ")
    assert "//jax_plugins/rocm:" in failed.stderr
    error_of(failed)
    nothing_made(world)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small tmpfs")
def test_a_full_disk_leaves_nothing_half_written(world, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(small)], check=True)
    try:
        failed = world.run(*world.arguments, f"--wheelhouse={small}/wheels")
        assert failed.returncode == 8, failed.stderr[-3000:]
        assert "No space left on device" in error_of(failed)
        left = [path for path in (small / "wheels").rglob("*") if path.name != ".unfinished"]
        assert left == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_gfx_target_the_rocm_does_not_know_is_refused_before_bazel_starts(world):
    line = [item for item in world.arguments if not item.startswith("--gfx")]
    failed = world.run(*line, "--gfx-targets=gfx1250")
    assert failed.returncode == 10
    assert "gfx1250: " in failed.stderr
    error_of(failed)
    nothing_made(world)


def test_dirty_sources_need_a_word(demo, world, tmp_path):
    shared, _ = demo
    workspace = copied(tmp_path / "workspace")
    git = ["git", "-C", str(workspace), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    (workspace / "jax" / "note.py").write_text("# new\n")
    line = [item for item in arguments(shared, workspace) if item != "--allow-dirty"]
    failed = world.run(*line)
    assert failed.returncode == 3
    assert "changes that are in no commit" in error_of(failed)
    xla = repository(tmp_path / "xla", {"xla/BUILD": ""})
    made = world.run(*line, "--allow-dirty", f"--xla-source-dir={tmp_path / 'xla'}", "--json")
    assert made.returncode == 0, made.stderr[-2000:]
    mark = f".xla{xla[:9]}.dirty-"
    assert all(mark in wheel["filename"] for wheel in made.document["wheels"])
    sources = json.loads(Path(made.document["manifest"]).read_bytes())
    assert (sources["jax"]["dirty"], sources["xla"]["dirty"]) == (True, False)
    assert sources["xla"]["commit"] == xla


def test_a_remote_cache_that_is_down_costs_a_note_that_is_kept(world):
    made = world.run(*world.arguments, "--remote-cache=http://127.0.0.1:9", "--json")
    assert made.returncode == 0, made.stderr[-2000:]
    note = "remote cache not used: http://127.0.0.1:9: Connection refused"
    assert f"warning: {note}" in made.stderr
    record = json.loads(Path(made.document["build"]).read_bytes())
    assert all(run["notes"] == [note] for run in record["bazel"]["invocations"])


@pytest.mark.parametrize("source", merge_tries("directory", of=["tarball", "directory"]))
def test_every_kind_of_rocm_source_gives_the_same_wheels(demo, world, source):
    """The demo took a URL; a local tarball and a directory are the other two kinds."""
    shared, done = demo
    line = list(world.arguments)
    if source == "directory":
        tree = next((shared.cache / "rocm" / "trees-3").glob("*/tree"))
        line[1] = f"--therock-path={tree}"
    line.append(f"--bazel-options=--repo_env=CC={machine.newest('clang', {'PATH': PATH})}")
    made = world.run(*line, "--rocm-version=7.10.0a20251120", "--json")
    assert made.returncode == 0, made.stderr[-2000:]
    known = {wheel["filename"]: wheel["sha256"] for wheel in done.document["wheels"]}
    assert made.document["wheels"]
    for wheel in made.document["wheels"]:
        assert wheel["sha256"] == known[wheel["filename"]]


def test_two_runs_at_once_share_one_cache_and_one_wheelhouse(world):
    both = [world.start("--json", *world.arguments) for _ in range(2)]
    ended = [process.communicate(timeout=500) for process in both]
    assert [process.returncode for process in both] == [0, 0], (
        ended[0][1][-1500:] + ended[1][1][-1500:]
    )
    folders = [path for path in world.wheelhouse.glob("[!.]*") if path.name != "current"]
    assert len(folders) == 1
    assert (world.wheelhouse / "current").resolve() == folders[0]
    assert world.unfinished() == []


def slow_compiler(folder: Path) -> Path:
    """A clang that takes a quarter of an hour when it compiles something."""
    folder.mkdir()
    (folder / "sleep").symlink_to("/bin/sleep")
    for name in ("clang", "clang++"):
        script = folder / name
        script.write_text(
            f'#!/bin/sh\ncase "$*" in *" -c "*) {folder}/sleep 900;; esac\n'
            f'exec /usr/bin/{name}-19 "$@"\n'
        )
        script.chmod(0o755)
    return folder / "clang"


@pytest.mark.parametrize("number", merge_tries(signal.SIGINT, of=[signal.SIGINT, signal.SIGTERM]))
def test_ctrl_c_while_bazel_compiles_leaves_no_process_and_no_wheel(demo, tmp_path, number):
    """Output root, and so the Bazel server, are this run's own."""
    shared, _ = demo
    world = World(tmp_path).share(rocm=shared.cache / "rocm")
    compiler = slow_compiler(tmp_path / "slow")
    process = world.start(*arguments(shared, WORKSPACE), f"--compiler-path={compiler}")
    wait_for(lambda: compiling(world), process)
    process.send_signal(number)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 130
    lines = err.splitlines()
    assert lines[-2] == "error: interrupted"
    wait_for(lambda: world.processes() == [], None)
    nothing_made(world)


def compiling(world: World) -> bool:
    return any("slow/sleep 900" in line for line in world.processes())


def wait_for(condition, process, seconds=300) -> None:
    for _ in range(seconds * 5):
        if condition():
            return
        assert process is None or process.poll() is None, process.communicate()[1][-3000:]
        time.sleep(0.2)
    raise AssertionError("it did not happen in time")


@pytest.mark.parametrize("seconds", merge_tries(0.6, of=[0.0, 0.6, 1.2, 1.8, 2.4, 3.0]))
def test_ctrl_c_at_any_moment_keeps_the_wheelhouse_whole_and_the_next_run_finishes(world, seconds):
    process = world.start(*world.arguments)
    assert process.stderr.readline()  # before that Python may not be up
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    # once all is done, Python gives signals back to the system while it ends
    late = (-signal.SIGINT,) if "manifest " in err else ()
    assert process.returncode in (0, 130, *late), err[-2000:]
    assert world.unfinished() == []
    again = world.run(*world.arguments)
    assert again.returncode == 0, again.stderr[-2000:]
    assert len(list(world.wheelhouse.glob("[!.]*"))) == 2, "the set and `current`"
