"""A real image registry (Debian's docker-registry) on loopback."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
from support.ports import free_port
from support.processes import DIES_WITH_US


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Its address; it keeps what it gets below the folder, and dies with the test."""
    port = free_port()
    (folder / "config.yml").write_text(
        "version: 0.1\nlog: {level: error}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}/registry}}}}\n"
        f"http: {{addr: 127.0.0.1:{port}}}\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*DIES_WITH_US, "docker-registry", "serve", str(folder / "config.yml")],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        until = time.monotonic() + 240
        while True:
            try:
                requests.get(f"http://127.0.0.1:{port}/v2/", timeout=240)
                break
            except requests.ConnectionError:
                assert time.monotonic() < until, (folder / "log").read_text()
                time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
