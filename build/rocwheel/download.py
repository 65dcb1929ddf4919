"""HTTP requests for files: never silently insecure, patient within bounds.

TLS certificates are always verified; an https source never follows a redirect to http. A broken
connection, a time-out and a 5xx are tried again, a bounded number of times and with growing
pauses; any other failure is final. Proxies and CA bundle come from the mapping that is given.
"""

from __future__ import annotations

import ipaddress
import random
import re
import threading
from contextlib import suppress
from dataclasses import dataclass
from http.client import IncompleteRead
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urljoin, urlsplit, urlunsplit

from rocwheel import __version__
from rocwheel.console import size
from rocwheel.errors import ConfigError, FetchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import requests

T = TypeVar("T")

BLOCK: Final = 1 << 18
TIMEOUT: Final = (20.0, 60.0)  # seconds to connect, and between two packets
REDIRECTS: Final = 10
TEXT_BYTES: Final = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How patient to be: attempts without progress, and pauses that double in between."""

    attempts: int = 6
    pause: float = 0.5  # seconds
    longest: float = 30.0
    timeout: tuple[float, float] = TIMEOUT


@dataclass(frozen=True, kw_only=True)
class Remote:
    """What identifies a file at its source, now: what a server says, or a local file's state."""

    size: int | None
    etag: str = ""
    modified: str = ""

    @property
    def validator(self) -> str:
        """What If-Range takes: a strong ETag, else the date; "" when the server gives neither."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.modified

    def same(self, other: Remote) -> bool:
        """Whether both are certainly the same file."""
        if self.size != other.size:
            return False
        if self.etag and other.etag:
            return self.etag.removeprefix("W/") == other.etag.removeprefix("W/")
        return bool(self.modified) and self.modified == other.modified


class ChangedError(Exception):
    """The file at the source is another one than when its download began."""


class LostError(Exception):
    """Something that may work when tried again."""

    def __init__(self, problem: str, *, after: float = 0.0) -> None:
        super().__init__(problem)
        self.after = after  # seconds the server asked for


class UnreachableError(FetchError):
    """The network failed more often than `Retry` allows; what has come is good."""


class _MissingError(FetchError):
    """The server has no such file for us: 4xx, or an answer that makes no sense."""


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
        self.remote = Remote(
            size=total, etag=headers.get("ETag", ""), modified=headers.get("Last-Modified", "")
        )

    def blocks(self) -> Iterator[bytes]:
        """The body as it was sent. Raises LostError when the connection breaks."""
        import requests
        import urllib3

        raw = self._response.raw
        try:
            while block := raw.read(BLOCK, decode_content=False):
                yield block
        except (urllib3.exceptions.HTTPError, requests.RequestException, OSError) as exc:
            raise LostError(reason(exc)) from exc

    def interrupt(self) -> None:
        """Wake a thread that waits for the body."""
        with suppress(AttributeError, OSError, RuntimeError, ValueError):
            self._response.raw.shutdown()

    def close(self) -> None:
        self._response.close()


class Client:
    """Requests to one source, with its retries."""

    def __init__(
        self,
        env: Mapping[str, str],
        *,
        retry: Retry,
        note: Callable[[str], None],
        hint: str = "check the address",
    ) -> None:
        """`env` gives proxies and CA bundle, `note` is told about every retry.

        `hint` is what to do when the server does not have the file.
        """
        import requests

        self._env = env
        self._retry = retry
        self._note = note
        self._hint = hint
        self._cancelled = threading.Event()
        self._failures = 0
        self._session = requests.Session()
        self._session.trust_env = False  # the environment is what we were given
        self._session.headers.update(
            {"User-Agent": f"rocwheel/{__version__}", "Accept-Encoding": "identity"}
        )
        bundle = env.get("REQUESTS_CA_BUNDLE") or env.get("CURL_CA_BUNDLE")
        self._session.verify = bundle or env.get("SSL_CERT_FILE") or True

    def close(self) -> None:
        self._session.close()

    def cancel(self) -> None:
        """End all waiting, from another thread."""
        self._cancelled.set()

    def get(self, url: str, *, start: int = 0, only_if: Remote | None = None) -> Answer:
        """Ask for a file, from byte `start` on if it is still `only_if`. Raises FetchError.

        Status 200, or 206 from some byte on, or 416.
        """
        headers: dict[str, str] = {}
        if start and only_if:
            headers = {"Range": f"bytes={start}-", "If-Range": only_if.validator}
        return self._patiently(url, lambda: self._ask(url, headers), kept=start)

    def is_still(self, url: str, known: Remote) -> bool:
        """Whether the file is the one it was, by one conditional request without a body."""
        headers: dict[str, str] = {}
        if known.etag:
            headers = {"If-None-Match": known.etag}
        elif known.modified:
            headers = {"If-Modified-Since": known.modified}
        answer = self._patiently(url, lambda: self._ask(url, headers))
        answer.close()
        return answer.status == 304 or answer.remote.same(known)  # noqa: PLR2004

    def text(self, url: str) -> str | None:
        """A small text file; None where the server says that there is none (any 4xx)."""

        def attempt() -> str | None:
            try:
                answer = self._ask(url, {})
            except _MissingError:
                return None
            data = b""
            for block in answer.blocks():
                data += block
                if len(data) > TEXT_BYTES:
                    break
            answer.close()
            return data[:TEXT_BYTES].decode("utf-8", "replace")

        return self._patiently(url, attempt)

    def _patiently(self, url: str, attempt: Callable[[], T], *, kept: int = 0) -> T:
        while True:
            try:
                done = attempt()
            except LostError as exc:
                self.failed(url, exc, kept=kept)
            else:
                return done

    def failed(self, url: str, error: LostError, *, kept: int = 0) -> None:
        """Wait before the next attempt; `kept` bytes are here already.

        Raises UnreachableError after enough attempts.
        """
        self._failures += 1
        if self._failures >= self._retry.attempts or self._cancelled.is_set():
            again = f"; the next run continues after {size(kept)}" if kept else ""
            raise UnreachableError(
                f"{without_secrets(url)}: {error} ({self._failures} attempts)",
                hint=f"check the network and try again{again}",
            ) from error
        pause = min(self._retry.longest, self._retry.pause * 2 ** (self._failures - 1))
        pause = max(pause * random.uniform(0.5, 1.0), min(error.after, 2 * self._retry.longest))  # noqa: S311
        self._note(f"{without_secrets(url)}: {error}; again in {pause:.1f} s")
        self._cancelled.wait(pause)

    def progressed(self) -> None:
        self._failures = 0

    def _ask(self, url: str, headers: Mapping[str, str]) -> Answer:
        """One attempt, redirects followed. Raises LostError where another may help."""
        first, secure = url, False
        for _ in range(REDIRECTS):
            secure = secure or urlsplit(url).scheme.lower() == "https"
            response = self._send(url, headers)
            location = response.headers.get("Location")
            if response.status_code not in (301, 302, 303, 307, 308) or not location:
                return self._checked(url, response)
            response.close()
            url = urljoin(url, location)
            scheme = urlsplit(url).scheme.lower()
            if scheme not in ("http", "https") or (secure and scheme != "https"):
                raise FetchError(
                    f"{without_secrets(first)}: redirects from https to {without_secrets(url)}",
                    hint="that would be unprotected: give an address that stays on https",
                )
        raise FetchError(
            f"{without_secrets(first)}: redirected more than {REDIRECTS} times",
            hint="check the address",
        )

    def _send(self, url: str, headers: Mapping[str, str]) -> requests.Response:
        import requests

        try:
            return self._session.get(
                url,
                headers=dict(headers),
                stream=True,
                allow_redirects=False,
                timeout=self._retry.timeout,
                proxies=proxies(url, self._env),
            )
        except requests.exceptions.SSLError as exc:
            if "CERTIFICATE_VERIFY_FAILED" not in str(exc):
                raise LostError(reason(exc)) from exc
            raise FetchError(
                f"{without_secrets(url)}: its TLS certificate is not trusted: {reason(exc)}",
                hint="check the address; name your own CA with REQUESTS_CA_BUNDLE",
            ) from exc
        except (
            requests.ConnectionError,
            requests.Timeout,
            requests.exceptions.ChunkedEncodingError,
        ) as exc:
            raise LostError(reason(exc)) from exc
        except requests.RequestException as exc:
            raise FetchError(f"{without_secrets(url)}: {exc}", hint="check the address") from exc
        except OSError as exc:  # so says requests of a CA bundle that is not there
            raise ConfigError(str(exc), hint="check REQUESTS_CA_BUNDLE") from exc

    def _checked(self, url: str, response: requests.Response) -> Answer:
        status = response.status_code
        if status in (200, 206, 304, 416):
            return Answer(response)
        response.close()
        problem = f"{status} {response.reason}".strip()
        if status >= 500:  # noqa: PLR2004
            after = response.headers.get("Retry-After", "")
            raise LostError(problem, after=float(after) if after.isdigit() else 0.0)
        raise _MissingError(
            f"{without_secrets(url)}: {problem}",
            hint=self._hint,
        )


def proxies(url: str, env: Mapping[str, str]) -> dict[str, str]:
    """The proxy for `url` by the usual variables, lower case first, NO_PROXY respected."""

    def variable(name: str) -> str:
        return env.get(name) or env.get(name.upper()) or ""

    parts = urlsplit(url)
    proxy = variable(f"{parts.scheme.lower()}_proxy") or variable("all_proxy")
    host = (parts.hostname or "").rstrip(".")
    exceptions = (item.strip() for item in variable("no_proxy").split(","))
    if not proxy or any(_excepted(host, parts.port, item) for item in exceptions if item):
        return {}
    return {parts.scheme.lower(): proxy}


def _excepted(host: str, port: int | None, item: str) -> bool:
    """Whether one entry of NO_PROXY means `host`: `*`, a domain, an address or a network."""
    if item == "*":
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(item, strict=False)
    except ValueError:
        pass
    domain, _, wanted = item.lower().partition(":")
    if wanted and wanted != str(port):
        return False
    domain = domain.removeprefix("*").lstrip(".")
    return host == domain or host.endswith(f".{domain}")


def without_secrets(url: str) -> str:
    """A URL without user, password, query and fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def reason(error: BaseException) -> str:
    """The innermost cause in a few words: libraries wrap it in many."""
    chain: list[BaseException] = [error]
    while len(chain) < 10:  # noqa: PLR2004
        inner = [item for item in chain[-1].args if isinstance(item, BaseException)]
        named = getattr(chain[-1], "reason", None)
        following = named if isinstance(named, BaseException) else None
        following = following or (inner[0] if inner else None) or chain[-1].__cause__
        if following is None or following in chain:
            break
        chain.append(following)
    for item in reversed(chain):
        if isinstance(item, TimeoutError):
            return "no answer in time"
        if isinstance(item, IncompleteRead):
            return "the connection was cut"
        if isinstance(item, OSError) and item.strerror:
            return item.strerror
    return re.sub(r"<[^>]*>(: )?", "", str(chain[-1])) or type(chain[-1]).__name__
