"""BuildGrid, a real remote execution server, in an environment of its own.

0.0.97 is the newest that keeps its state in SQLite; later ones want a PostgreSQL server.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.cache_server import wait_for_port
from support.ports import free_port
from support.processes import DIES_WITH_US

REQUIREMENTS = (
    "BuildGrid==0.0.97",
    "grpcio==1.85.1",
    "grpcio-reflection==1.85.1",
    "protobuf==7.36.2",
    "SQLAlchemy==1.4.54",
)
_CONFIG = """
server:
  - !channel
    address: "127.0.0.1:{port}"
    insecure-mode: true
storages:
  - !lru-storage &cas
    size: 256M
caches:
  - !lru-action-cache &cache
    storage: *cas
    max-cached-refs: 1000
    allow-updates: true
    cache-failed-actions: false
schedulers:
  - !sql-scheduler &scheduler
    storage: *cas
    action-cache: *cache
    connection-string: sqlite:///{folder}/state.db
    automigrate: yes
    poll-interval: 0.1
instances:
  - name: ""
    services:
      - !action-cache
        cache: *cache
      - !execution
        storage: *cas
        action-cache: *cache
        scheduler: *scheduler
      - !bots
        scheduler: *scheduler
      - !cas
        storage: *cas
      - !bytestream
        storage: *cas
thread-pool-size: 20
"""


class Grid:
    """A server with one worker; `actions` are the outputs of each action it ran."""

    def __init__(self, folder: Path, python: Path) -> None:
        port = free_port()
        self.url = f"grpc://127.0.0.1:{port}"
        self._folder = folder
        config = folder / "config.yml"
        config.write_text(_CONFIG.format(port=port, folder=folder))
        self._log = (folder / "log").open("w")
        self._server = self._start(python.with_name("bgd"), "server", "start", config)
        wait_for_port(port)
        worker = Path(__file__).with_name("remote_worker.py")
        self._worker = self._start(python, worker, f"127.0.0.1:{port}", folder)
        deadline = time.monotonic() + 240
        while not (folder / "ready").exists():
            assert self._worker.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "the worker does not come up"
            time.sleep(0.05)

    @property
    def actions(self) -> list[str]:
        path = self._folder / "actions"
        return path.read_text().splitlines() if path.exists() else []

    def stop(self) -> None:
        for process in (self._worker, self._server):
            process.kill()
            process.wait(60)
        self._log.close()

    def _start(self, *argv: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*DIES_WITH_US, *map(str, argv)],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=self._folder,
        )


@contextmanager
def serve(folder: Path) -> Iterator[Grid]:
    folder.mkdir(parents=True, exist_ok=True)
    grid = Grid(folder, environment())
    try:
        yield grid
    finally:
        grid.stop()


def environment() -> Path:
    """The Python of an environment with BuildGrid, made when it is missing."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "rocwheel" / "tests" / f"{REQUIREMENTS[0]}-py{sys.version_info.minor}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    python = folder / "bin" / "python"
    with folder.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*install, *REQUIREMENTS], check=True)
            (folder / "complete").touch()
    return python
