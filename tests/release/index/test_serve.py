"""A store over local HTTP, for as long as a block runs."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest

from rocwheel.base.download import Client, Retry
from rocwheel.base.store.file import FileStore
from rocwheel.release.index.serve import Site


def test_a_folder_is_served_while_the_block_runs_and_no_longer(tmp_path):
    (tmp_path / "rocm.tar.gz").write_bytes(b"\x1f\x8b" * 10_000)
    with Site(FileStore(tmp_path)).running() as site:
        there = Client({}, retry=Retry(), note=print).read(f"{site.url}rocm.tar.gz")
    assert there == b"\x1f\x8b" * 10_000
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", urlsplit(site.url).port), timeout=5)
