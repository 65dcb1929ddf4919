"""A message about a night is posted: a busy server is asked again, a refusal is an error."""

from __future__ import annotations

import hashlib
import hmac
import http.server
import threading
from contextlib import contextmanager

import pytest

from rocwheel.base.errors import ConfigError, FetchError
from rocwheel.night import notify

MESSAGE = notify.Message(json='{"night": "one"}\n', markdown="")


@contextmanager
def server(*answers):
    """Gives these answers, the last one for ever."""
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = answers[min(len(got), len(answers) - 1)]
            got.append((body, self.headers.get("X-Rocwheel-Signature")))
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


def post(url: str) -> None:
    notify.post(url, MESSAGE, secret="key", environ={})


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


@pytest.mark.parametrize("url", ["hook", "ftp://host/hook", "http:///hook", ""])
def test_what_is_no_address_is_an_error_with_the_form_of_one(url):
    with pytest.raises(ConfigError, match="no address to POST to") as caught:
        post(url)
    assert caught.value.hint == "write https://host/path"
