"""HTTP caches for Bazel on loopback: a real nginx, and one that misbehaves on demand."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from support.certificates import Certificates
from support.ports import free_port
from support.processes import DIES_WITH_US

_NGINX = """
{user}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log {folder}/access.log;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port}{tls};
    client_max_body_size 0;
    location / {{
      root {folder}/store;
      dav_methods PUT;
      create_full_put_path on;
    }}
  }}
}}
"""

_TLS = """ ssl;
    ssl_certificate {certificates.server};
    ssl_certificate_key {certificates.server_key};
    ssl_client_certificate {certificates.authority};
    ssl_verify_client on"""


@contextmanager
def nginx(folder: Path, certificates: Certificates | None = None) -> Iterator[str]:
    """A real HTTP cache: nginx with DAV; yields its URL. Entries lie in `folder/store`.

    With certificates it speaks https, and wants to see a client's.
    """
    (folder / "store").mkdir(parents=True)
    port = free_port()
    user = "user root;" if os.geteuid() == 0 else ""  # else its workers cannot see our folder
    tls = _TLS.format(certificates=certificates) if certificates else ""
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, port=port, user=user, tls=tls))
    process = subprocess.Popen(
        [*DIES_WITH_US, "nginx", "-c", str(folder / "nginx.conf"), "-p", str(folder)],
        env={"PATH": os.environ["PATH"] + ":/usr/sbin"},
    )
    try:
        wait_for_port(port)
        yield f"{'https' if certificates else 'http'}://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


class Cache(ThreadingHTTPServer):
    """Keeps what is put; `mode` says how it misbehaves, `token` what it wants to see."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.store: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.mode = ""
        self.token = ""
        self.lives_for: int | None = None  # requests until it breaks, or is silent
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Cache
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.requests.append(f"GET {self.path}")
        body = self.server.store.get(self.path)
        if self._refused(b""):
            return
        if body is not None and "/cas/" in self.path and self.server.mode == "wrong bytes":
            body = b"X" * len(body)
        if "/cas/" in self.path and self.server.mode == "forgetful":
            body = None
        self._answer(404 if body is None else 200, body or b"")

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append(f"PUT {self.path}")
        if self._refused(body):
            return
        if self.server.mode == "full":
            self._answer(507, b"")
        else:
            self.server.store[self.path] = body
            self._answer(200, b"")

    def _refused(self, _body: bytes) -> bool:
        if self.server.mode == "slow":
            time.sleep(20)
        lives_for = self.server.lives_for
        is_dead = lives_for is not None and len(self.server.requests) > lives_for
        if is_dead and self.server.mode == "silent":
            self.server.over.wait()
        if is_dead or self.server.mode == "broken":
            self._answer(500, b"no")
            return True
        if self.server.token and self.headers.get("Authorization") != self.server.token:
            self._answer(401, b"")
            return True
        return False

    def _answer(self, status: int, body: bytes) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:  # the client did not wait
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def cache() -> Iterator[Cache]:
    server = Cache()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def wait_for_port(port: int, seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=240).close()
        except OSError:
            assert time.monotonic() < deadline, f"nothing listens on port {port}"
            time.sleep(0.05)
        else:
            return
