"""Serves a store over local HTTP, as a web server with content negotiation would.

`<place>/` and `<place>/<project>/` answer with JSON (PEP 691) or HTML, whichever the client
prefers; everything else is the object of that name. For developers and tests: no TLS, no limits.
"""

from __future__ import annotations

import posixpath
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, cast
from urllib.parse import quote, unquote, urlsplit

from rocwheel import __version__
from rocwheel.base.errors import StoreError
from rocwheel.base.store import HTML, JSON, SIMPLE_JSON, TEXT, WHEEL, Store

SIMPLE_HTML: Final = "application/vnd.pypi.simple.v1+html"
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+(:\d+)?|\[[0-9A-Fa-f:.]+\](:\d+)?")
ROOT_PAGE: Final = (
    '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>rocwheel</title></head>'
    "<body><h1>Indexes</h1><p>Each is one for pip and uv.</p><ul>{}</ul></body></html>\n"
)
TYPES: Final = {".whl": WHEEL, ".metadata": TEXT, ".json": JSON, ".html": HTML}


class Site(ThreadingHTTPServer):
    """Serves a store at the root of `http://host:port/`."""

    def __init__(
        self,
        store: Store,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        upstream: str = "",
        indexes: Sequence[str] = (),
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Listen; port 0 takes a free one. `indexes` are the places that the root page lists.

        Requests for projects that the store lacks are redirected to `upstream`, the URL of another
        index; `say` gets one line per request.
        """
        self.store = store
        self.upstream = upstream.rstrip("/")
        self.indexes = tuple(indexes)
        self.say = say
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host if isinstance(host, str) else host.decode()}:{port}/"

    @contextmanager
    def running(self) -> Iterator[Site]:
        thread = threading.Thread(target=self.serve_forever, daemon=True)
        with self:
            thread.start()
            try:
                yield self
            finally:
                self.shutdown()
                thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over a client that went away; anything else is a bug, and its thread ends."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two writes
    server_version = f"rocwheel/{__version__}"

    @property
    def site(self) -> Site:
        return cast("Site", self.server)

    def do_GET(self) -> None:
        try:
            self._answer(unquote(urlsplit(self.path).path).lstrip("/"))
        except StoreError as exc:
            self._send(HTTPStatus.BAD_GATEWAY, f"{exc}\n{exc.hint}\n".encode(), TEXT)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_HEAD = do_GET  # noqa: N815 (its name upstream)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name upstream)
        if self.site.say:
            self.site.say(format % args)

    def _answer(self, key: str) -> None:
        store, upstream, name = self.site.store, self.site.upstream, key
        content_type = TYPES.get(posixpath.splitext(key)[1], TEXT)
        if not key or key.endswith("/"):
            content_type = preferred(self.headers.get("Accept", ""))
            name += "index.json" if content_type == SIMPLE_JSON else "index.html"
        is_plain = not {"", ".", ".."} & set(name.split("/"))
        if is_plain and (info := store.info(name)):
            if not name.endswith((".json", ".html")):  # written once
                if self._send(HTTPStatus.OK, info.size, content_type):
                    try:
                        store.stream(name, self.wfile.write)
                    except StoreError as exc:  # after the headers nothing can be said to the client
                        self.close_connection = True
                        self.log_message("%s", exc)
                return
            # It may change at any moment: size and content are read as one.
            data, _ = store.read(name)
            if content_type == HTML:  # what it says about its own address is true where it is read
                said = self.headers.get("Host", "")  # as the client named it, or as it is
                host = said if _HOST.fullmatch(said) else urlsplit(self.site.url).netloc
                data = data.replace(store.url.encode(), f"http://{host}".encode())
            self._send(HTTPStatus.OK, data, content_type)
        elif not key:
            items = (f'<li><a href="/{quote(i)}/">{escape(i)}</a>' for i in self.site.indexes)
            self._send(HTTPStatus.OK, ROOT_PAGE.format("".join(items)).encode(), HTML)
        elif upstream and key.endswith("/") and "/" in key.rstrip("/"):
            target = f"{upstream}/{quote(posixpath.basename(key.rstrip('/')))}/"
            self._send(HTTPStatus.TEMPORARY_REDIRECT, b"", TEXT, Location=target)
        else:
            self._send(HTTPStatus.NOT_FOUND, f"/{key}: nothing there\n".encode(), TEXT)

    def _send(
        self, status: HTTPStatus, body: bytes | int, content_type: str, **headers: str
    ) -> bool:
        """Send headers and a body, or the size of one; return whether one is asked for."""
        self.send_response(status)
        size = body if isinstance(body, int) else len(body)
        headers |= {"Content-Type": content_type, "Content-Length": str(size), "Vary": "Accept"}
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Cache-Control", "no-cache")
        self.end_headers()
        if self.command != "HEAD" and isinstance(body, bytes):
            self.wfile.write(body)
        return self.command != "HEAD"


def preferred(accept: str) -> str:
    """Return the form of a page that an Accept header asks for (PEP 691), HTML by default."""
    best, chosen = 0.0, HTML
    for part in accept.split(","):
        media, _, parameters = part.strip().partition(";")
        name, _, value = parameters.strip().partition("=")
        try:
            quality = float(value) if name.strip() == "q" else 1.0
        except ValueError:
            continue
        forms = {
            SIMPLE_JSON: SIMPLE_JSON,
            "application/vnd.pypi.simple.latest+json": SIMPLE_JSON,
            SIMPLE_HTML: SIMPLE_HTML,
            "text/html": HTML,
            "*/*": HTML,
        }
        if media.strip() in forms and quality > best:
            best, chosen = quality, forms[media.strip()]
    return chosen
