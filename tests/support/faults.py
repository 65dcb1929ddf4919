"""A proxy before an S3 server that counts, and makes the k-th request fail in one of several ways."""

from __future__ import annotations

import contextlib
import http.client
import re
import select
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest

# What the proxy does to a request. `lost` carries it out and says nothing: the cruellest of all.
KINDS = ("500", "503", "403", "cut", "lost", "timeout")
CODES = {"500": "InternalError", "503": "SlowDown", "403": "AccessDenied",
         "409": "ConditionalRequestConflict", "skew": "RequestTimeTooSkewed"}  # fmt: skip


@dataclass
class Fault:
    """Which request fails and how; with `sticky` its repetitions fail as well."""

    number: int
    kind: str
    sticky: bool = True
    only: str = ""  # a pattern: other requests do not count
    hit: str = ""  # "PUT /bucket/key" once it happened
    seconds: float = 6  # of silence, for `timeout`: longer than hasty clients wait

    def matches(self, seen: list[str]) -> bool:
        """Whether the newest of these requests fails."""
        name = seen[-1]
        counts = bool(re.match(self.only, name))
        if counts and sum(1 for item in seen if re.match(self.only, item)) == self.number:
            self.hit = name
            return True
        return self.sticky and name == self.hit


@dataclass
class Faults:
    """What happened so far, and what is to happen."""

    fault: Fault | None = None
    seen: list[str] = field(default_factory=list)
    answered: int = 0  # bytes of bodies that went to the client
    lock: threading.Lock = field(default_factory=threading.Lock)

    def arm(self, fault: Fault | None) -> Fault | None:
        """Count from one again."""
        with self.lock:
            self.seen.clear()
            self.answered = 0
            self.fault = fault
        return fault

    def next(self, name: str) -> Fault | None:
        with self.lock:
            self.seen.append(name)
            fault = self.fault
            return fault if fault and fault.matches(self.seen) else None


class Proxy(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, endpoint: str) -> None:
        self.target = urlsplit(endpoint).netloc
        self.faults = Faults()
        super().__init__(("127.0.0.1", 0), _Handler)
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address) -> None:
        """Clients that give up are what this is about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_args) -> None:
        pass

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        fault = self.server.faults.next(f"{self.command} {unquote(self.path)}")
        kind = fault.kind if fault else ""
        if kind == "timeout":
            self.rfile.read(length)
            select.select([self.connection], [], [], fault.seconds)  # until the client gives up
            self.close_connection = True
            return
        if kind == "cut" and length:
            self.rfile.read(length // 2)
            self.close_connection = True
            return
        body = self.rfile.read(length)
        if kind in CODES:
            self._refuse(kind)
            return
        connection = http.client.HTTPConnection(self.server.target, timeout=240)
        try:
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() != "expect":
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            data = answer.read()
            # Half of a HEAD or of an error is as good as the whole: nothing is said instead.
            if kind == "lost" or (
                kind == "cut" and (self.command == "HEAD" or answer.status >= 400)
            ):
                self.close_connection = True
                return
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in {"transfer-encoding", "connection", "content-length"}:
                    self.send_header(name, value)
            size = answer.getheader("Content-Length") if self.command == "HEAD" else len(data)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            if kind == "cut":
                self.wfile.write(data[: len(data) // 2])
                self.close_connection = True
                return
            self.wfile.write(data)
            with self.server.faults.lock:
                self.server.faults.answered += len(data)
        finally:
            connection.close()

    def _refuse(self, kind: str) -> None:
        status = 403 if kind == "skew" else int(kind)
        text = f"<Error><Code>{CODES[kind]}</Code><Message>made up</Message></Error>".encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _serve  # noqa: N815


@contextlib.contextmanager
def before(endpoint: str) -> Iterator[Proxy]:
    with Proxy(endpoint) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()


@pytest.fixture
def front(servers, monkeypatch):
    """A proxy in front of SeaweedFS, which the environment names as the S3 server."""
    server = servers["seaweedfs"]
    with before(server.endpoint) as proxy:
        for key, value in server.environ().items():
            monkeypatch.setenv(key, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
        yield proxy
