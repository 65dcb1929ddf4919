"""nginx with the configuration that `docs/how-to/buckets.md` gives, in front of an S3 server."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from support.ports import free_port
from support.s3 import running

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "buckets.md"


@contextlib.contextmanager
def in_front_of(endpoint: str, folder: Path) -> Iterator[str]:
    """The URL of a running nginx that serves `endpoint`."""
    (block,) = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    port = free_port()
    block = block.replace("s3.example.org:80", urlsplit(endpoint).netloc)
    block = block.replace("127.0.0.1:8080", f"127.0.0.1:{port}")
    paths = "".join(
        f"{name}_temp_path {folder}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    config.write_text(
        f"pid {folder}/nginx.pid; error_log {folder}/error.log; daemon off;\n"
        f"events {{}}\nhttp {{ access_log {folder}/access.log; {paths}\n{block}}}\n"
    )
    argv = ["nginx", "-e", f"{folder}/error.log", "-p", str(folder), "-c", str(config)]
    with running(argv, f"http://127.0.0.1:{port}/", folder / "nginx.log"):
        yield f"http://127.0.0.1:{port}"
