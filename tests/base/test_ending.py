"""Ctrl-C, or a signal, ends what threads wait for: requests under way end, and nothing follows."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import botocore.endpoint
import pytest

from rocwheel.base import ending
from rocwheel.base.parallel import each
from rocwheel.base.store import Options, pause
from rocwheel.base.store.s3 import S3Store

HANG = 120.0  # seconds; only what is broken waits so long
BLOCK = 1 << 20


@pytest.fixture
def interrupt():
    """Ctrl-C, as the main thread meets it: the first call, and no other."""
    left = iter((signal.SIGINT,))

    def press() -> None:
        for number in left:
            signal.pthread_kill(threading.main_thread().ident, number)

    return press


@pytest.fixture
def told(monkeypatch):
    """Set once the main thread was interrupted and waits for its threads."""
    event, real = threading.Event(), ThreadPoolExecutor.shutdown

    def shutdown(pool, *args, **kwargs):
        event.set()
        return real(pool, *args, **kwargs)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", shutdown)
    return event


class Server(ThreadingHTTPServer):
    """An S3 server whose every answer is what `answer` says, once it has returned."""

    daemon_threads = True

    def __init__(self, answer) -> None:
        self.answer, self.asked = answer, []
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_args) -> None:
        pass

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        code, body = self.server.answer(len(self.server.asked))
        self.send_response(code)
        for name, value in (
            ("Content-Length", str(len(body))),
            ("ETag", '"1"'),
            ("Last-Modified", "Fri, 01 May 2026 00:00:00 GMT"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def serve(monkeypatch):
    """A store on a server that answers so."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    running: list[Server] = []

    def start(answer) -> tuple[S3Store, Server]:
        server = Server(answer)
        running.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = Options(
            endpoint=f"http://127.0.0.1:{server.server_address[1]}", region="us-east-1",
            attempts=4, connect_seconds=HANG, read_seconds=HANG,
        )  # fmt: skip
        return S3Store("bucket", "", options), server

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


def test_threads_end_when_the_main_one_is_interrupted(interrupt):
    together, waited = threading.Barrier(2), []

    def work(number: int) -> None:
        if together.wait(HANG) == 0:
            interrupt()
        ending.sleep(HANG)
        waited.append(number)

    with pytest.raises(KeyboardInterrupt):
        each(work, range(2), threads=2)
    assert not waited
    ending.check()  # the main thread heeds nobody


def test_threads_of_threads_end_with_the_main_one(interrupt):
    together, ended = threading.Barrier(4), []

    def inner(number: int) -> None:
        if together.wait(HANG) == 0:
            interrupt()
        try:
            ending.sleep(HANG)
        except CancelledError:
            ended.append(number)
            raise

    with pytest.raises(KeyboardInterrupt):
        each(lambda n: each(inner, (n, n + 1), threads=2), (0, 2), threads=2)
    assert sorted(ended) == [0, 1, 2, 3]


def test_the_failure_of_one_item_ends_no_other_that_has_begun():
    failed = threading.Event()
    done = []

    def work(number: int) -> None:
        if number == 0:
            failed.set()
            raise ValueError("the first")
        failed.wait(HANG)
        ending.check()
        pause(1)
        done.append(number)

    together = threading.Barrier(2)

    def begun(number: int) -> None:
        together.wait(HANG)
        work(number)

    with pytest.raises(ValueError, match="the first"):
        each(begun, range(2), threads=2)
    assert done == [1]


def test_a_request_that_fails_after_ctrl_c_is_not_asked_again(serve, told, interrupt):
    both = threading.Barrier(2)

    def answer(_: int) -> tuple[int, bytes]:
        if both.wait(HANG) == 0:
            interrupt()
        assert told.wait(HANG)
        return 503, b"<Error><Code>SlowDown</Code></Error>"

    store, server = serve(answer)
    with pytest.raises(KeyboardInterrupt):
        each(store.read, ("a", "b", "c"), threads=2)
    assert sorted(server.asked) == ["/bucket/a", "/bucket/b"]


def test_a_request_that_waits_to_be_asked_again_is_not(serve, told, interrupt, monkeypatch):
    def sleep(_seconds: float) -> None:
        interrupt()
        assert told.wait(HANG)

    monkeypatch.setattr(botocore.endpoint, "time", SimpleNamespace(sleep=sleep))
    store, server = serve(lambda _: (503, b"<Error><Code>SlowDown</Code></Error>"))

    def work(key: str) -> None:
        if key == "a":
            store.read(key)

    with pytest.raises(KeyboardInterrupt):
        each(work, ("a", "b"), threads=2)
    assert server.asked == ["/bucket/a"]


def test_a_body_that_is_under_way_is_read_no_further(serve, told, interrupt):
    store, _ = serve(lambda _: (200, bytes(4 * BLOCK)))
    came = []

    def take(block: bytes) -> None:
        came.append(len(block))
        interrupt()
        assert told.wait(HANG)

    def work(key: str) -> None:
        if key == "a":
            store.stream(key, take)

    with pytest.raises(KeyboardInterrupt):
        each(work, ("a", "b"), threads=2)
    assert came == [BLOCK]


def test_an_answer_that_came_before_the_end_is_kept(serve, told, interrupt):
    """A write that was carried out and answered is done, and is known to be."""
    known = []

    def answer(_: int) -> tuple[int, bytes]:
        interrupt()
        assert told.wait(HANG)
        return 200, b""

    store, _ = serve(answer)

    def work(key: str) -> None:
        if key == "a":
            known.append(store.get(key)[0].key)

    with pytest.raises(KeyboardInterrupt):
        each(work, ("a", "b"), threads=2)
    assert known == ["a"]
