"""A web server on loopback that fails on request: cuts, statuses, lies, redirects, stalls."""

from __future__ import annotations

import hashlib
import re
import ssl
import threading
import time
from collections import defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Served:
    """A file as the server offers it; with neither tag nor date it cannot be recognised again."""

    data: bytes
    etag: str = ""
    modified: str = ""
    ranges: bool = True


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong with one request; the first fault of a path meets its first request."""

    status: int = 0  # answer this, with `body`
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None  # close the connection after so many bytes of the body
    stall: float = 0.0  # seconds of silence before the rest of the body
    after: int = 0  # bytes before the silence
    flip: int | None = None  # change the byte of the file at this place
    replaced: Served | None = None  # from now on the path is this file


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked."""

    path: str
    headers: Mapping[str, str]

    @property
    def range(self) -> str:
        return self.headers.get("range", "")


@final
class FaultServer:
    """Serves `files`; `faults[path]` are used up one per request, `requests` remembers all."""

    def __init__(self, *, certificate: tuple[Path, Path] | None = None) -> None:
        """`certificate` is a chain and its key: with it the server speaks TLS."""
        self.files: dict[str, Served] = {}
        self.faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self.requests: list[Request] = []
        self.rate = 0  # bytes per second, 0 is unlimited
        self.closing = threading.Event()
        server = self

        class Handler(_Handler):
            owner = server

        self._http = _Quiet(("127.0.0.1", 0), Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._http.socket = context.wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False
            )
        self._scheme = "https" if certificate else "http"
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    def __enter__(self) -> FaultServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def url(self, path: str) -> str:
        return f"{self._scheme}://127.0.0.1:{self._http.server_address[1]}/{path}"

    def add(self, path: str, data: bytes, **kwargs: Any) -> str:
        """Offer `data` with a strong ETag and a date, unless told otherwise; returns its URL."""
        settings = {
            "etag": f'"{hashlib.sha256(data).hexdigest()[:16]}"',
            "modified": formatdate(1_700_000_000, usegmt=True),
            **kwargs,
        }
        self.files[path] = Served(data=data, **settings)
        return self.url(path)

    def asked(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path == path]


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that goes away is what these tests are about


class _Handler(BaseHTTPRequestHandler):
    owner: FaultServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        owner = self.owner
        path = self.path.lstrip("/").partition("?")[0]
        headers = {name.lower(): value for name, value in self.headers.items()}
        owner.requests.append(Request(path=path, headers=headers))
        fault = owner.faults[path].popleft() if owner.faults[path] else Fault()
        if fault.replaced:
            owner.files[path] = fault.replaced
        if fault.status:
            self._head(fault.status, {"Content-Length": str(len(fault.body)), **fault.headers})
            self.wfile.write(fault.body)
            return
        served = owner.files.get(path)
        if served is None:
            self._head(404, {"Content-Length": "0"})
            return
        self._file(served, fault, headers)

    def _file(self, served: Served, fault: Fault, headers: Mapping[str, str]) -> None:
        known = {"ETag": served.etag, "Last-Modified": served.modified}
        known = {name: value for name, value in known.items() if value}
        if self._unchanged(served, headers):
            self._head(304, known)
            return
        start, total = self._start(served, headers), len(served.data)
        if start is not None and start >= total:
            self._head(416, {"Content-Range": f"bytes */{total}", "Content-Length": "0"})
            return
        body = served.data[start or 0 :]
        if fault.flip is not None and fault.flip >= (start or 0):
            place = fault.flip - (start or 0)
            body = body[:place] + bytes([body[place] ^ 0xFF]) + body[place + 1 :]
        sized = {"Content-Length": str(len(body))}
        if start is not None:
            sized["Content-Range"] = f"bytes {start}-{total - 1}/{total}"
        self._head(200 if start is None else 206, {**known, **sized, **fault.headers})
        self._body(body, fault)

    def _unchanged(self, served: Served, headers: Mapping[str, str]) -> bool:
        if "if-none-match" in headers:
            return bool(served.etag) and headers["if-none-match"] == served.etag
        return bool(served.modified) and headers.get("if-modified-since") == served.modified

    def _start(self, served: Served, headers: Mapping[str, str]) -> int | None:
        """The first byte wanted; None when the whole file is to be sent (RFC 9110, 13.1.5)."""
        match = re.fullmatch(r"bytes=(\d+)-", headers.get("range", ""))
        if not match or not served.ranges:
            return None
        condition = headers.get("if-range")
        if condition and condition not in (served.etag, served.modified):
            return None
        return int(match[1])

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _body(self, body: bytes, fault: Fault) -> None:
        end = len(body) if fault.cut is None else min(fault.cut, len(body))
        sent = 0
        with suppress(OSError):
            while sent < end and not self.owner.closing.is_set():
                if fault.stall and sent >= fault.after:
                    self.owner.closing.wait(fault.stall)
                    fault = Fault(cut=fault.cut)
                step = min(1 << 16, end - sent)
                if fault.stall and sent < fault.after:
                    step = min(step, fault.after - sent)
                self.wfile.write(body[sent : sent + step])
                sent += step
                began = time.monotonic()
                while self.owner.rate and time.monotonic() < began + step / self.owner.rate:
                    self.owner.closing.wait(min(0.05, step / self.owner.rate))
            self.wfile.flush()
        if fault.cut is not None:
            self.close_connection = True
