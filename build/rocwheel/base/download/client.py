"""Requests to one server: what it answers, how often it is asked again, which redirects count."""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final, TypeVar, final
from urllib.parse import urljoin, urlsplit

from rocwheel import __version__
from rocwheel.base import files
from rocwheel.base.console import count, size
from rocwheel.base.download.urls import proxies, reason, without_secrets
from rocwheel.base.errors import ConfigError, FetchError
from rocwheel.base.process import ca_bundle
from rocwheel.base.values import Plain

if TYPE_CHECKING:
    import requests

T = TypeVar("T")

BLOCK: Final = 1 << 18
TIMEOUT: Final = (20.0, 60.0)  # seconds to connect, and between two packets
REDIRECTS: Final = 10
SMALL_BYTES: Final = 1 << 16
# Of the 4xx these say "not now": RFC 9110 15.5.9, RFC 8470 5.2, RFC 6585 4.
BUSY: Final = frozenset({408, 425, 429})
GONE: Final = frozenset({404, 410})


class DownloadError(FetchError):
    """A file that did not come; `temporary` where the same request may work later."""

    def __init__(self, message: str, *, hint: str, temporary: bool = True) -> None:
        super().__init__(message, hint=hint)
        self.temporary = temporary


class AbsentError(DownloadError):
    """A file that the server does not have: 404, 410, and S3's 403."""


class Retry(Plain, frozen=True, kw_only=True):
    attempts: int = 6
    pause: float = 0.5  # seconds
    longest: float = 30.0
    timeout: tuple[float, float] = TIMEOUT
    contact: float = 4.0  # seconds after which a server that never answered is out of reach


class Fingerprint(Plain, frozen=True, kw_only=True):
    """What identifies a file at its source, now: what a server says, or a local file's state."""

    size: int | None
    etag: str = ""
    modified: str = ""

    @property
    def validator(self) -> str:
        """What If-Range takes: a strong ETag, else the date; "" when the server gives neither."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.modified

    def same(self, other: Fingerprint) -> bool:
        """Return whether both are certainly the same file."""
        if self.size != other.size:
            return False
        if self.etag and other.etag:
            return self.etag.removeprefix("W/") == other.etag.removeprefix("W/")
        return bool(self.modified) and self.modified == other.modified


class LostError(Exception):
    """A request that failed in a way that may work when it is made again."""

    def __init__(self, problem: str, *, after: float = 0.0) -> None:
        super().__init__(problem)
        self.after = after  # seconds the server asked for


def session(env: Mapping[str, str]) -> requests.Session:
    """Return a session of requests that trusts the certificates of `env` and obeys nothing else.

    The proxy of each address is `proxies`'s; what this process has in its environment or in a
    `.netrc` does not count.
    """
    import requests

    made = requests.Session()
    made.trust_env = False
    made.headers["User-Agent"] = f"rocwheel/{__version__}"
    made.verify = ca_bundle(env) or True
    return made


class Answer:
    """A response whose body may be read once."""

    def __init__(self, response: requests.Response) -> None:
        self._response = response
        headers = response.headers
        self.status = response.status_code
        self.start = 0
        length = headers.get("Content-Length", "")
        total = int(length) if length.isdigit() else None
        if self.status == 206:  # noqa: PLR2004
            ranged = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", headers.get("Content-Range", ""))
            self.start = int(ranged[1]) if ranged else -1
            total = int(ranged[2]) if ranged and ranged[2] != "*" else None
        self.fingerprint = Fingerprint(
            size=total, etag=headers.get("ETag", ""), modified=headers.get("Last-Modified", "")
        )

    def blocks(self) -> Iterator[bytes]:
        """Yield the body as it was sent. Raises LostError when the connection breaks."""
        import urllib3

        raw = self._response.raw
        try:
            while block := raw.read(BLOCK, decode_content=False):
                yield block
        except (urllib3.exceptions.HTTPError, OSError) as exc:
            raise LostError(reason(exc)) from exc

    def interrupt(self) -> None:
        """Wake a thread that waits for the body."""
        with suppress(AttributeError, OSError, RuntimeError, ValueError):
            self._response.raw.shutdown()

    def close(self) -> None:
        self._response.close()


@final
class Client:
    """Requests to one source, with its retries; a context manager that closes connections."""

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        retry: Retry,
        note: Callable[[str], None],
        hint: str = "check the address",
        unreachable: str = "check the network and try again",
    ) -> None:
        """`env` gives proxies and CA bundle, `note` gets a line for every retry.

        `hint` is what to do when the server does not have the file, `unreachable` when the server
        cannot be asked.
        """
        self._env = env
        self._retry = retry
        self._note = note
        self._hint = hint
        self._unreachable = unreachable
        self._cancelled = threading.Event()
        self._failures, self._failing = 0, ""
        self._answered = False
        self._deadline = time.monotonic() + retry.contact
        self._session = session(env)
        self._session.headers["Accept-Encoding"] = "identity"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def cancel(self) -> None:
        """End all waiting, from another thread."""
        self._cancelled.set()

    def get(self, url: str, *, start: int = 0, only_if: Fingerprint | None = None) -> Answer:
        """Ask for a file, from byte `start` on if it is still `only_if`. Raises DownloadError.

        Status 200, or 206 from some byte on, or 416.
        """
        headers: dict[str, str] = {}
        if start and only_if:
            headers = {"Range": f"bytes={start}-", "If-Range": only_if.validator}
        return self._patiently(url, lambda: self._ask(url, headers), kept=start)

    def is_still(self, url: str, known: Fingerprint) -> bool:
        """Return whether the file is the one it was, by one conditional request without a body."""
        headers: dict[str, str] = {}
        if known.etag:
            headers = {"If-None-Match": known.etag}
        elif known.modified:
            headers = {"If-Modified-Since": known.modified}
        answer = self._patiently(url, lambda: self._ask(url, headers))
        answer.close()
        return answer.status == 304 or answer.fingerprint.same(known)  # noqa: PLR2004

    def read(
        self, url: str, *, limit: int = SMALL_BYTES, fresh: bool = False, beside: str = ""
    ) -> bytes:
        """Return a file of at most `limit` bytes as a whole.

        With `fresh` caches on the way ask the origin first (RFC 9111 5.2.1.4). Errors name
        `beside`, the address a person gave, when `url` was made from it. Raises AbsentError where
        the server has none, and DownloadError otherwise: a busy server has not said so.
        """
        headers = {"Cache-Control": "no-cache"} if fresh else {}

        def attempt() -> bytes:
            data = bytearray()
            with closing(self._ask(url, headers, named=beside)) as answer:
                for block in answer.blocks():
                    data += block
                    if len(data) > limit:
                        raise DownloadError(
                            f"{without_secrets(beside or url)}: larger than {size(limit)}",
                            hint="check the address: this is not what was expected there",
                        )
            return bytes(data)

        return self._patiently(beside or url, attempt)

    def digest(self, url: str) -> tuple[str, Fingerprint]:
        """Return the SHA-256 of a file of any size, which is not stored, and its fingerprint."""

        def attempt() -> tuple[str, Fingerprint]:
            with closing(self._ask(url, {})) as answer:
                return files.sha256(answer.blocks()), answer.fingerprint

        return self._patiently(url, attempt)

    def _patiently(self, url: str, attempt: Callable[[], T], *, kept: int = 0) -> T:
        while True:
            try:
                return attempt()
            except LostError as exc:
                self.failed(url, exc, kept=kept)

    def failed(self, url: str, error: LostError, *, kept: int = 0) -> None:
        """Wait before the next attempt; `kept` bytes are here already.

        Raises DownloadError after enough attempts, or when the server was never reached.
        """
        if url != self._failing:  # each address has its own count
            self._failing, self._failures = url, 0
        self._failures += 1
        pause = min(self._retry.longest, self._retry.pause * 2 ** (self._failures - 1))
        pause = max(pause * random.uniform(0.5, 1.0), min(error.after, 2 * self._retry.longest))  # noqa: S311
        late = not self._answered and time.monotonic() + pause >= self._deadline
        if late or self._failures >= self._retry.attempts or self._cancelled.is_set():
            self._failing = ""
            again = f"; the next run continues after {size(kept)}" if kept else ""
            raise DownloadError(
                f"{without_secrets(url)}: {error} ({count(self._failures, 'attempt')})",
                hint=f"{self._unreachable}{again}",
            ) from error
        self._note(f"{without_secrets(url)}: {error}; again in {pause:.1f} s")
        self._cancelled.wait(pause)

    def progressed(self) -> None:
        """Reset the failure count: bytes arrived."""
        self._failures = 0

    def _ask(self, url: str, headers: Mapping[str, str], *, named: str = "") -> Answer:
        first = named or url
        try:
            secure = urlsplit(url).scheme.lower() == "https"
        except ValueError as exc:
            what = f"{without_secrets(first)}: not a URL: {exc}"
            raise DownloadError(what, temporary=False, hint="check the address") from exc
        for _ in range(REDIRECTS):
            secure = secure or urlsplit(url).scheme.lower() == "https"
            response = self._send(first, url, headers)
            location = response.headers.get("Location")
            if response.status_code not in (301, 302, 303, 307, 308) or not location:
                return self._checked(first, url, response)
            response.close()
            url = _redirected(first, url, location, secure=secure)
        raise DownloadError(
            f"{without_secrets(first)}: redirected more than {REDIRECTS} times",
            hint="check the address",
        )

    def _send(self, first: str, url: str, headers: Mapping[str, str]) -> requests.Response:
        import requests

        through = proxies(url, self._env)
        connect, read = self._retry.timeout
        if not self._answered:
            connect = min(connect, max(0.1, self._deadline - time.monotonic()))
            if not through:
                _resolve(urlsplit(url).hostname or "", connect)
        try:
            response = self._session.get(
                url,
                headers=dict(headers),
                stream=True,
                allow_redirects=False,
                timeout=(connect, read),
                proxies=through,
            )
        except requests.exceptions.SSLError as exc:
            if "CERTIFICATE_VERIFY_FAILED" not in str(exc):
                raise LostError(reason(exc)) from exc
            raise DownloadError(
                f"{_with_redirect(first, url)}: its TLS certificate is not trusted: {reason(exc)}",
                temporary=False,
                hint="check the address; name your own CA with REQUESTS_CA_BUNDLE",
            ) from exc
        except (requests.ConnectionError, requests.Timeout) as exc:
            proxy = next(iter(through.values()), "")
            refused = isinstance(exc, requests.exceptions.ProxyError)
            by = f"the proxy {without_secrets(proxy)}: " if refused else ""
            raise LostError(f"{by}{reason(exc)}") from exc
        except (requests.RequestException, ValueError) as exc:
            raise DownloadError(
                f"{_with_redirect(first, url)}: {reason(exc)}", hint="check the address"
            ) from exc
        except OSError as exc:  # so says requests of a CA bundle that is not there
            hint = "check REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE, SSL_CERT_FILE"
            raise ConfigError(str(exc), hint=hint) from exc
        self._answered = True
        return response

    def _checked(self, first: str, url: str, response: requests.Response) -> Answer:
        import urllib3

        status = response.status_code
        if status in (200, 206, 304, 416):
            return Answer(response)
        said = None
        with closing(response), suppress(OSError, urllib3.exceptions.HTTPError):
            said = re.search(rb"<Error>\s*<Code>(\w+)", response.raw.read(BLOCK))  # of a bucket
        problem = f"{status} {response.reason}{f' ({said[1].decode()})' if said else ''}".strip()
        if status in BUSY or status >= 500:  # noqa: PLR2004
            raise LostError(problem, after=_retry_after(response))
        # S3 answers 403 for a missing object to who may not list the bucket:
        # https://docs.aws.amazon.com/AmazonS3/latest/API/API_GetObject.html
        s3 = "x-amz-request-id" in response.headers or response.headers.get("Server") == "AmazonS3"
        absent = status in GONE or (status == 403 and s3)  # noqa: PLR2004
        kind = AbsentError if absent else DownloadError
        raise kind(f"{_with_redirect(first, url)}: {problem}", temporary=False, hint=self._hint)


def _resolve(host: str, seconds: float) -> None:
    """Look a name up, within `seconds`: a dead name server holds a request for minutes.

    Raises LostError; a name that cannot be found is left to the request, which says why.
    """
    done = threading.Event()

    def look() -> None:
        with suppress(OSError, UnicodeError):
            socket.getaddrinfo(host, None)
        done.set()

    threading.Thread(target=look, name="look up", daemon=True).start()
    if not done.wait(seconds):
        raise LostError(f"{host}: no name server answers")


def _with_redirect(first: str, url: str) -> str:
    shown, led = without_secrets(first), without_secrets(url)
    return shown if shown == led else f"{shown} ({led})"


def _redirected(first: str, url: str, location: str, *, secure: bool) -> str:
    url = urljoin(url, location)
    scheme = urlsplit(url).scheme.lower()
    if scheme not in ("http", "https") or (secure and scheme != "https"):
        raise DownloadError(
            f"{without_secrets(first)}: redirects from https to {without_secrets(url)}",
            temporary=False,
            hint="that would be unprotected: give an address that stays on https",
        )
    return url


def _retry_after(response: requests.Response) -> float:
    import urllib3

    try:
        return urllib3.Retry().get_retry_after(response.raw) or 0.0
    except urllib3.exceptions.InvalidHeader:
        return 0.0
