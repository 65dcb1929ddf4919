"""A git server on loopback: the smart HTTP protocol, by git's own `http-backend`."""

from __future__ import annotations

import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from support.certificates import Certificates


class _Handler(BaseHTTPRequestHandler):
    root: Path
    seen: list[str]
    old: bool

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _serve(self, body: bytes) -> None:
        url = urlsplit(self.path)
        self.seen.append(url.path)
        done = subprocess.run(
            ["git", "http-backend"],
            input=body,
            env={
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(self.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_PROTOCOL": "" if self.old else self.headers.get("Git-Protocol", ""),
                "REQUEST_METHOD": self.command,
                "PATH_INFO": url.path,
                "QUERY_STRING": url.query,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            },
            capture_output=True,
            check=False,
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = [line.split(": ", 1) for line in head.decode().splitlines() if ": " in line]
        status = next((text for name, text in headers if name == "Status"), "200 OK")
        self.send_response(int(status.split()[0]))
        for name, text in headers:
            if name != "Status":
                self.send_header(name, text)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve(
    root: Path, *, old: bool = False, tls: Certificates | None = None
) -> Iterator[tuple[str, list[str]]]:
    """Serve the repositories below `root`; yields the base URL and the paths asked for.

    An `old` server gives only what a branch or tag points at. With `tls` it speaks https.
    """
    seen: list[str] = []
    handler = type("Handler", (_Handler,), {"root": root, "seen": seen, "old": old})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.server, tls.server_key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def repository(path: Path, files: dict[str, str]) -> str:
    """Make a repository with one commit on `main`; its commit."""
    path.mkdir(parents=True)
    git(path, "init", "--quiet", "--initial-branch=main")
    return commit(path, files)


def commit(path: Path, files: dict[str, str], message: str = "a change") -> str:
    for name, text in files.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    git(path, "add", "--all")
    git(path, "commit", "--quiet", "--allow-empty", "-m", message)
    return git(path, "rev-parse", "HEAD")


def git(path: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=path, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()
