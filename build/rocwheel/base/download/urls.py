"""Rules about addresses: which proxy serves one, how one is shown, why a request failed."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit, urlunsplit


def proxies(url: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the proxy for `url` by the usual variables, lower case first, NO_PROXY respected.

    The rules are those of requests: https://requests.readthedocs.io/en/latest/user/advanced/#proxies.
    """
    from requests.utils import select_proxy, should_bypass_proxies

    lower = {name.lower(): value for name, value in sorted(env.items()) if value}
    by_scheme = {name.removesuffix("_proxy"): lower[name] for name in lower if "_proxy" in name}
    excepted = by_scheme.pop("no", "")
    proxy = select_proxy(url, by_scheme)
    if not proxy or should_bypass_proxies(url, excepted):
        return {}
    return {urlsplit(url).scheme.lower(): proxy}


def is_loopback(url: str) -> bool:
    """Return whether a URL, or a registry without a scheme, is on this machine."""
    host = urlsplit(url if "//" in url else f"//{url}").hostname
    return host in {"localhost", "127.0.0.1", "::1"}


def without_secrets(url: str) -> str:
    """Return a URL without user, password, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:  # `http://[bad`: show nothing of what may hold a password
        return url.rpartition("@")[2].partition("?")[0]
    host = parts.netloc.rpartition("@")[2]
    if url[len(parts.scheme) :].startswith("://"):  # urlunsplit makes unix:///a to unix:/a
        return f"{parts.scheme}://{host}{parts.path}"
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def has_password(url: str) -> bool:
    """Return whether a URL carries credentials before its host."""
    return "@" in url.partition("://")[2].partition("/")[0]


# Bazel's options whose value is a header: https://bazel.build/reference/command-line-reference
_HEADER: Final = re.compile(r"(--(?:remote(?:_cache|_exec|_downloader)?|bes)_header)(?:=|\s+)\S.*")
_USER: Final = re.compile(r"(\w[\w+.-]*://)[^/@\s'\"]+@")
_URL: Final = re.compile(r"\w[\w+.-]*://\S+")
_SECRET: Final = re.compile(
    r"(\w*(?:token|secret|passw(?:or)?d|credentials?|authorization|api_?key))=\S+", re.IGNORECASE
)
_SECRET_NAME: Final = re.compile(
    r"token|secret|passw(or)?d|credential|authorization|api[-_]?key|headers?\Z", re.IGNORECASE
)


def has_secret(option: str) -> bool:
    """Return whether an option carries credentials: a header, or a URL with a user or token."""
    return bool(_HEADER.search(option) or _USER.search(option))


def shown_setting(name: str, value: str) -> str:
    """Return a setting as it may be shown: without what gives access.

    That is all of a value whose name says that it is a secret, otherwise credentials in URLs,
    queries, headers (up to the end: a header's value may have blanks) and `TOKEN=…`.
    """
    if value and _SECRET_NAME.search(name):
        return "[redacted]"
    text = _HEADER.sub(r"\1=[redacted]", value.replace("\n", " "))
    text = _URL.sub(lambda match: without_secrets(match[0]), _USER.sub(r"\1", text))
    return _SECRET.sub(r"\1=[redacted]", text)


def reason(error: BaseException) -> str:
    """Return the innermost cause in a few words: libraries wrap it in many."""
    from http.client import IncompleteRead  # loads ssl, which only a failed request needs

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
