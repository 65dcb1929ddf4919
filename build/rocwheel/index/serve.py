"""A store over local HTTP, as pip and uv see it behind a web server that negotiates content.

`<place>/` and `<place>/<project>/` answer with JSON (PEP 691) or HTML, whichever the client
prefers; everything else is the object of that name. For developers and tests: no TLS, no limits.
"""

from __future__ import annotations

import posixpath
import re
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, cast
from urllib.parse import quote, unquote, urlsplit

from rocwheel import __version__
from rocwheel.errors import StoreError
from rocwheel.store import HTML, JSON, SIMPLE_JSON, TEXT, WHEEL, ObjectInfo, Store

SIMPLE_HTML: Final = "application/vnd.pypi.simple.v1+html"
CHANGING: Final = {".json": JSON, ".html": HTML}
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+(:\d+)?|\[[0-9A-Fa-f:.]+\](:\d+)?")
TYPES: Final = {".whl": WHEEL, ".metadata": TEXT, **CHANGING}


class Site(ThreadingHTTPServer):
    """Serves a store at the root of `http://host:port/`."""

    daemon_threads = False  # closing waits for them, after it ended their connections

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

        Projects that the store lacks are redirected to `upstream`, the URL of another index;
        `say` gets one line per request.
        """
        self.store = store
        self.upstream = upstream.rstrip("/")
        self.indexes = tuple(indexes)
        self.say = say
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        """What the server listens on: `http://127.0.0.1:8000/`."""
        host, port = self.server_address[:2]
        return f"http://{host if isinstance(host, str) else host.decode()}:{port}/"

    def opened(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Stop listening and end what clients keep open."""
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        super().server_close()

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

    def setup(self) -> None:
        self.site.opened(self.request)
        super().setup()

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (its name upstream)
        if self.site.say:
            self.site.say(format % args)

    def _answer(self, *, body: bool) -> None:
        key = unquote(urlsplit(self.path).path).lstrip("/")
        try:
            if not key or key.endswith("/"):
                self._page(key, body=body)
            elif info := self._info(key):
                suffix = posixpath.splitext(key)[1]
                if suffix in CHANGING:
                    self._small(key, TYPES[suffix], body=body)
                else:
                    self._large(info, TYPES.get(suffix, TEXT), body=body)
            elif self._info(f"{key}/index.html"):
                self._redirect(HTTPStatus.MOVED_PERMANENTLY, f"/{quote(key)}/")
            else:
                self._nothing(key)
        except StoreError as exc:
            self._text(HTTPStatus.BAD_GATEWAY, f"{exc}\n{exc.hint}\n")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _page(self, key: str, *, body: bool) -> None:
        content_type = preferred(self.headers.get("Accept", ""))
        name = "index.json" if content_type == SIMPLE_JSON else "index.html"
        if self._info(key + name):
            self._small(key + name, content_type, body=body)
        elif not key:
            self._send(HTTPStatus.OK, HTML, root_page(self.site.indexes), body=body)
        elif self.site.upstream and posixpath.dirname(key.rstrip("/")):
            project = posixpath.basename(key.rstrip("/"))
            target = f"{self.site.upstream}/{quote(project)}/"
            self._redirect(HTTPStatus.TEMPORARY_REDIRECT, target)
        else:
            self._nothing(key)

    def _info(self, key: str) -> ObjectInfo | None:
        if any(part in {"", ".", ".."} for part in key.split("/")):
            return None
        return self.site.store.info(key)

    def _small(self, key: str, content_type: str, *, body: bool) -> None:
        """Send an object that may change at any moment: size and content are read as one.

        What a page says about its own address is true where it is read.
        """
        data, info = self.site.store.read(key)
        if content_type == HTML:
            data = data.replace(self.site.store.url.encode(), f"http://{self._host}".encode())
            info = replace(info, size=len(data), etag=f"{info.etag}-{self._host}")
        if self._head(info, content_type) and body:
            self.wfile.write(data)

    @property
    def _host(self) -> str:
        """Host and port as the client named them, else what is listened on."""
        said = self.headers.get("Host", "")
        return said if _HOST.fullmatch(said) else urlsplit(self.site.url).netloc

    def _large(self, info: ObjectInfo, content_type: str, *, body: bool) -> None:
        """Send an object that is written once."""
        if self._head(info, content_type) and body:
            self.site.store.stream(info.key, self.wfile.write)

    def _head(self, info: ObjectInfo, content_type: str) -> bool:
        """Send status and headers; False when the client has this content already."""
        etag = f'"{info.etag}"'
        is_known = self.headers.get("If-None-Match") == etag
        self.send_response(HTTPStatus.NOT_MODIFIED if is_known else HTTPStatus.OK)
        self.send_header("ETag", etag)
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Vary", "Accept")
        if not is_known:
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(info.size))
        self.end_headers()
        return not is_known

    def _redirect(self, status: HTTPStatus, target: str) -> None:
        self.send_response(status)
        self.send_header("Location", target)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _nothing(self, key: str) -> None:
        self._text(HTTPStatus.NOT_FOUND, f"{self.site.store.locate(key)}: nothing there\n")

    def _text(self, status: HTTPStatus, text: str) -> None:
        self._send(status, TEXT, text, body=self.command != "HEAD")

    def _send(self, status: HTTPStatus, content_type: str, text: str, *, body: bool) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)


def root_page(indexes: Sequence[str]) -> str:
    """Render what stands at `/`: where the indexes are."""
    items = "".join(f'<li><a href="/{quote(item)}/">{escape(item)}</a>' for item in indexes)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>rocwheel</title></head>'
        f"<body><h1>Indexes</h1><p>Each is one for pip and uv.</p><ul>{items}</ul></body></html>\n"
    )


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
