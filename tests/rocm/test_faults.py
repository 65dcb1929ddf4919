"""`fetch_rocm` as a process: full and read-only disks, Ctrl-C, kill, two runs at once."""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest
from support import tarballs
from support.faultserver import Fault, FaultServer
from support.tarballs import NAME

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
MAIN = "import sys; from rocwheel.cli import main; sys.exit(main())"
TARBALL = tarballs.rocm_tarball(extra=3_000_000)
SHA256 = hashlib.sha256(TARBALL).hexdigest()
ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "PYTHONPATH": f"{ROOT / 'build'}:{ROOT}",
}


def argv(*arguments: str) -> list[str]:
    return [sys.executable, "-c", MAIN, "fetch_rocm", *arguments]


def run(*arguments: str, command: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command or argv(*arguments),
        env=ENV,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture
def start():
    """Starts a run in a process group of its own; none outlives the test."""
    with ExitStack() as stack:

        def begin(
            *arguments: str, stderr: IO[str] | int = subprocess.PIPE
        ) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                argv(*arguments),
                env=ENV,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield begin


def fetched(cache: Path) -> int:
    """Bytes of partial downloads on the disk."""
    return sum(path.stat().st_size for path in (cache / "rocm/partial").glob("*.part"))


def two_lines(stderr: str) -> tuple[str, str]:
    """The error and its hint, which end the output; no traceback anywhere."""
    assert "Traceback" not in stderr
    error, hint = stderr.rstrip().splitlines()[-2:]
    assert error.startswith("error: ")
    assert hint.startswith("hint:  ")
    return error, hint


def files(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    )


@pytest.fixture
def server():
    with FaultServer() as running:
        yield running


@pytest.fixture
def url(server):
    return server.add(NAME, TARBALL)


def wait_for(condition, *, seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def test_the_root_is_all_that_stdout_holds(url, tmp_path):
    done = run(f"--therock-path={url}", f"--cache-dir={tmp_path}")
    assert done.returncode == 0
    assert done.stdout == f"{tmp_path}/rocm/trees-3/{SHA256}/tree\n"
    assert SHA256 in done.stderr


def test_a_dry_run_writes_and_asks_nothing(url, server, tmp_path):
    done = run(f"--therock-path={url}", f"--cache-dir={tmp_path / 'cache'}", "--dry-run")
    assert done.returncode == 0
    assert done.stdout.startswith(f"fetch ROCm 7.10.0a20251120 from {url}")
    assert server.requests == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("end", [".gone", " --therock-sha256=" + "0" * 64])
def test_a_failed_fetch_is_two_lines_and_a_status(end, url, tmp_path):
    done = run(*f"--therock-path={url}{end}".split(), f"--cache-dir={tmp_path / 'cache'}")
    assert done.returncode == 4
    two_lines(done.stderr)
    assert done.stdout == ""


# Ctrl-C and worse. The server falls silent near the end: however late we come, it goes on.

NEARLY = Fault(stall=900, after=len(TARBALL) - 100_000)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_fetch_leaves_no_tree_and_is_continued(number, start, url, server, tmp_path):
    """While it waits for a silent server, and while bytes come."""
    server.rate = 0 if number == signal.SIGINT else 1_000_000
    server.faults[NAME].append(NEARLY)
    process = start(f"--therock-path={url}", f"--cache-dir={tmp_path}")
    wait_for(lambda: list((tmp_path / "rocm/staging").glob("*/tree/lib")))
    os.killpg(process.pid, number)
    _, stderr = process.communicate(timeout=240)
    assert process.returncode == 130
    two_lines(stderr)
    assert [name.rpartition(".")[2] for name in files(tmp_path)] == ["json", "part"]
    server.rate = 0
    server.requests.clear()
    done = run(f"--therock-path={url}", f"--cache-dir={tmp_path}")
    assert done.returncode == 0
    assert server.asked(NAME)[0].range.startswith("bytes=")


def test_a_killed_fetch_is_cleaned_up_and_continued(start, url, server, tmp_path):
    server.rate = 1_000_000
    server.faults[NAME].append(NEARLY)
    process = start(f"--therock-path={url}", f"--cache-dir={tmp_path}")
    wait_for(lambda: fetched(tmp_path) > 1_000_000)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not list((tmp_path / "rocm/trees-3").iterdir())
    server.rate = 0
    done = run(f"--therock-path={url}", f"--cache-dir={tmp_path}")
    assert done.returncode == 0
    assert "continuing after" in done.stderr
    assert not list((tmp_path / "rocm/staging").iterdir())


WAITS = "another run fetches"


def test_two_runs_at_once_fetch_once(start, url, server, tmp_path):
    server.rate = 20_000  # until one of them waits for the other
    arguments = (f"--therock-path={url}", f"--cache-dir={tmp_path / 'cache'}")
    said = [tmp_path / "first", tmp_path / "second"]
    with said[0].open("w") as one, said[1].open("w") as other:
        both = [start(*arguments, stderr=stderr) for stderr in (one, other)]
        wait_for(lambda: any(WAITS in path.read_text() for path in said))
        server.rate = 0
        results = [process.communicate(timeout=240)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert results == [f"{tmp_path}/cache/rocm/trees-3/{SHA256}/tree\n"] * 2
    assert sum(WAITS in path.read_text() for path in said) == 1
    bodies = [request for request in server.asked(NAME) if "if-none-match" not in request.headers]
    assert len(bodies) == 1


def test_the_second_of_two_runs_takes_over_when_the_first_is_killed(start, url, server, tmp_path):
    server.faults[NAME].append(NEARLY)
    arguments = (f"--therock-path={url}", f"--cache-dir={tmp_path / 'cache'}")
    first = start(*arguments)
    wait_for(lambda: list((tmp_path / "cache/rocm/staging").glob("*/tree/lib")))
    said = tmp_path / "second"
    with said.open("w") as stderr:
        second = start(*arguments, stderr=stderr)
        wait_for(lambda: WAITS in said.read_text())
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()
        stdout, _ = second.communicate(timeout=240)
    assert second.returncode == 0
    assert Path(stdout.strip()).is_dir()


# Disks. A namespace of its own lets a test mount without leaving anything.


def in_namespace(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script that may mount; as another user than root, where the kernel allows that."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "-Ur"]
    return run(command=[*unshare, "sh", "-euc", script])


def tmpfs(folder: Path, size: str) -> str:
    return f"mount -t tmpfs -o size={size} tmpfs {shlex.quote(str(folder))}"


def list_files(folder: Path) -> str:
    return f"find {shlex.quote(str(folder))} -type f ! -name '*.lock'"


def kept(listing: str) -> set[str]:
    """The suffixes of what lies in the cache, all of it a partial download."""
    assert all("/partial/" in line for line in listing.splitlines())
    return {Path(line).suffix for line in listing.splitlines()}


def test_too_small_a_disk_is_refused_before_anything_is_fetched(url, server, tmp_path):
    command = shlex.join(argv(f"--therock-path={url}", f"--cache-dir={tmp_path}"))
    done = in_namespace(
        f"{tmpfs(tmp_path, '4m')}; status=0; {command} || status=$?;"
        f"{list_files(tmp_path)}; exit $status"
    )
    assert done.returncode == 8
    error, hint = two_lines(done.stderr)
    assert "are needed" in error
    assert "--cache-dir" in hint
    assert done.stdout == ""
    assert len(server.asked(NAME)) == 1


def test_a_disk_that_fills_up_halfway_ends_in_two_lines_and_keeps_the_download_alone(
    server, tmp_path
):
    """Zeros pack so well that the estimate is far too low."""
    zeros = {f"lib/{number}.a": tarballs.File(data=bytes(4 << 20)) for number in range(10)}
    url = server.add(NAME, tarballs.gz(tarballs.tar({**tarballs.rocm_files(), **zeros})))
    command = shlex.join(argv(f"--therock-path={url}", f"--cache-dir={tmp_path}"))
    done = in_namespace(
        f"{tmpfs(tmp_path, '16m')}; status=0; {command} || status=$?;"
        f"{list_files(tmp_path)}; exit $status"
    )
    assert done.returncode == 8
    error, hint = two_lines(done.stderr)
    assert "No space left" in error
    assert "free some space" in hint
    assert kept(done.stdout) == {".json", ".part"}


def test_a_download_that_fills_the_disk_goes_the_same_way(server, tmp_path):
    """Without a length nothing can be refused early."""
    url = server.add(NAME, TARBALL)
    server.faults[NAME].append(Fault(headers={"Content-Length": ""}))
    command = shlex.join(argv(f"--therock-path={url}", f"--cache-dir={tmp_path}"))
    done = in_namespace(
        f"{tmpfs(tmp_path, '4m')}; status=0; {command} || status=$?;"
        f"{list_files(tmp_path)}; exit $status"
    )
    assert done.returncode == 8
    assert "No space left" in two_lines(done.stderr)[0]
    assert kept(done.stdout) == {".json", ".part"}


def test_unused_trees_make_room_for_a_new_one(url, server, tmp_path):
    old = server.add("old.tar.gz", tarballs.rocm_tarball(extra=9_000_000))
    before = shlex.join(argv(f"--therock-path={old}", f"--cache-dir={tmp_path}"))
    after = shlex.join(argv(f"--therock-path={url}", f"--cache-dir={tmp_path}"))
    # 9 MB need five times that to be accepted; then 60 MB are left of 70, and 15 MB are enough.
    done = in_namespace(
        f"{tmpfs(tmp_path, '70m')}; {before}; mount -o remount,size=22m {tmp_path}; {after};"
        f"ls {tmp_path}/rocm/trees-3"
    )
    assert done.returncode == 0, done.stderr
    assert "cache: removed" in done.stderr
    assert done.stdout.splitlines()[-1] == SHA256


def test_a_read_only_cache_is_named_but_what_it_holds_can_be_used(url, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    fill = shlex.join(argv(f"--therock-path={url}", f"--cache-dir={cache}"))
    use = shlex.join(
        argv(f"--therock-path={url}", f"--therock-sha256={SHA256}", f"--cache-dir={cache}")
    )
    done = in_namespace(
        f"{tmpfs(cache, '30m')}; {fill}; mount -o remount,ro {cache};"
        f"{use} --rocm-version 7.10; status=0; {fill} || status=$?; exit $status"
    )
    assert done.returncode == 8
    assert done.stdout.splitlines() == [f"{cache}/rocm/trees-3/{SHA256}/tree"] * 2
    error, hint = two_lines(done.stderr)
    assert "Read-only file system" in error
    assert "--cache-dir" in hint


def test_a_cache_that_cannot_be_made_is_named(url, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    done = run(f"--therock-path={url}", f"--cache-dir={tmp_path / 'file'}")
    assert done.returncode == 8
    error, _ = two_lines(done.stderr)
    assert str(tmp_path / "file") in error


def test_a_source_that_cannot_be_read_is_named(tmp_path):
    """The first page of a process's memory: a file that nobody can read, root neither."""
    done = run("--therock-path=/proc/self/mem", f"--cache-dir={tmp_path}")
    assert done.returncode == 8
    error, _ = two_lines(done.stderr)
    assert "Input/output error" in error
    assert "/mem" in error
    assert files(tmp_path) == []
