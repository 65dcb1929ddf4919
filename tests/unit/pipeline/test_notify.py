"""Who is told of a night: an answer that is none is none, and the deadline holds."""

from __future__ import annotations

import hashlib
import hmac
import http.server
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from rocwheel.errors import FetchError
from rocwheel.pipeline import notify

MESSAGE = notify.Message(json='{"night": "one"}\n', markdown="")


@contextmanager
def server(*answers):
    """Gives these answers, the last one for ever; `drip` sends headers without an end."""
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = answers[min(len(got), len(answers) - 1)]
            got.append((body, self.headers.get("X-Rocwheel-Signature")))
            if answer == "drip":
                self.wfile.write(b"HTTP/1.1 200 OK\r\n")
                with suppress(OSError):
                    while True:
                        self.wfile.write(b"X: y\r\n")
                        time.sleep(0.5)
                return
            self.send_response(answer)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.daemon_threads = True
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://user:secret@127.0.0.1:{made.server_port}/hook", got
        made.shutdown()


def post(url: str, deadline: float = 240) -> None:
    notify.post(url, MESSAGE, secret="key", deadline=deadline, environ={})


def test_a_server_that_is_busy_is_asked_again_and_the_body_is_signed():
    with server(503, 200) as (url, got):
        post(url)
    signature = hmac.new(b"key", MESSAGE.json.encode(), hashlib.sha256).hexdigest()
    assert got == [(MESSAGE.json.encode(), f"sha256={signature}")] * 2


@pytest.mark.parametrize("status", [302, 307, 404])
def test_an_answer_that_took_nothing_is_an_error_without_the_password(status):
    with server(status) as (url, got), pytest.raises(FetchError, match=f"HTTP {status}") as caught:
        post(url)
    assert len(got) == 1
    assert "secret" not in str(caught.value)


def test_a_server_that_sends_headers_for_ever_is_given_up_at_the_deadline():
    with server("drip") as (url, _), pytest.raises(FetchError, match="no answer"):
        post(url, deadline=1)  # else it would never end
