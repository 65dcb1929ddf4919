"""Object storage behind one protocol: `s3://bucket/prefix` and `file:///folder`.

Keys are relative to the store's URL, separated by `/` and never percent-encoded. There are two
ways to write and no other: `create` writes once and never over other bytes; `replace` changes one
of the few keys that change, and only if it did not change since it was read. A store that cannot
do all of this is refused before the first write; one that only cannot copy has the bytes carried
(see `Abilities`). Every failure names the object.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Final, Protocol, TypeAlias
from urllib.parse import urlsplit

from rocwheel.base import ending
from rocwheel.base.errors import (
    ObjectDiffersError,
    ObjectMissingError,
    ObjectStaleError,
    StoreError,
)
from rocwheel.base.values import Plain, replace

Body: TypeAlias = "bytes | Path"
Counter: TypeAlias = "Callable[[int], None]"  # called with bytes that passed since the last call

BLOCK: Final = 1 << 20
LIMIT: Final = 256 << 20  # bytes of an object that is read as a whole
SWAPS: Final = 8  # attempts to replace an object that others replace, too
WHEEL: Final = "application/zip"
TEXT: Final = "text/plain; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"
JSON: Final = "application/json"
SIMPLE_JSON: Final = "application/vnd.pypi.simple.v1+json"


class HugeError(StoreError):
    """An object that is larger than anything we read as a whole."""


class ObjectInfo(Plain, frozen=True, kw_only=True):
    """What a store says about an object."""

    key: str
    size: int  # bytes
    etag: str  # opaque; two different contents never share one
    sha256: str  # as the store states it, "" when it keeps none; see `Store.digest`
    modified: datetime  # UTC
    now: datetime | None = None  # when the store said so, by the same clock; None: not known
    content_type: str = ""  # that it is served with, as cache_control; where the store says so
    cache_control: str = ""
    version: tuple[int, ...] = ()  # of a file's contents, as its file system counts


class Headers(Plain, frozen=True, kw_only=True):
    """How an object is served over HTTP; a file store has no use for it."""

    content_type: str
    cache_control: str = ""
    is_record: bool = False  # locked against deletion where the bucket has Object Lock


class Abilities(Plain, frozen=True, kw_only=True):
    """What a store that may be written to was seen to do, never what it says it does."""

    # What a copy that proves itself would need, by name; without it the bytes are carried:
    # downloaded, checked and put.
    copy_lacks: tuple[str, ...]
    folder_keys: bool  # keeps an object `a/` beside `a/b`: a page that answers for its folder


class Options(Plain, frozen=True, kw_only=True):
    """How to talk to a store; the limits are S3's own and smaller in tests."""

    endpoint: str = ""  # URL of an S3 server, "" for AWS or what boto3's configuration names
    region: str = ""
    connections: int = 16
    attempts: int = 0  # per request, the first included; 0: 5
    connect_seconds: float = 10.0
    read_seconds: float = 60.0
    put_limit: int = 5 << 30  # largest PUT and copy, bytes
    probe_key: str = "_rocwheel/probe"  # where abilities are tried; must be writable
    login: Mapping[str, str] = {}  # credentials of a client; {}: boto's own chain


class Store(Protocol):
    """Objects under one URL. Every method raises StoreError, naming the object."""

    url: str
    connections: int
    largest: int  # bytes that an object may have

    def locate(self, key: str, /) -> str:
        """Return the URL of a key for people: `s3://bucket/prefix/key`, `file:///folder/key`."""

    def http(self, key: str, /) -> str:
        """Return the URL an installer can read without credentials, percent-encoded."""

    def abilities(self) -> Abilities:
        """Try once what the store can do; writes only `Options.probe_key`.

        Raises RefusedError, with what is missing, for a store that must not be written to.
        """

    def info(self, key: str, /) -> ObjectInfo | None:
        """Return what is stored under `key`; None when nothing is."""

    def read(self, key: str, /) -> tuple[bytes, ObjectInfo]:
        """Content and info of a small object. Raises ObjectMissingError, HugeError."""

    def stream(self, key: str, sink: Callable[[bytes], object], /) -> ObjectInfo:
        """Hand the content to `sink` block by block; what broke off is continued.

        Raises ObjectMissingError; a connection that breaks is taken up where it broke, on the
        same content only.
        """

    def part(self, info: ObjectInfo, start: int, size: int, /) -> bytes:
        """Read some bytes of an object that still is what `info` says. Raises ObjectStaleError."""

    def digest(self, info: ObjectInfo, /, *, count: Counter | None = None) -> str:
        """Proven SHA-256: what the store states where that can be trusted, else by reading."""

    def create(
        self,
        key: str,
        body: Body,
        /,
        *,
        headers: Headers,
        sha256: str = "",
        count: Counter | None = None,
    ) -> bool:
        """Write once. False when the same bytes were there, ObjectDiffersError for other bytes.

        `sha256` is the body's, when it is known already.
        """

    def replace(
        self, key: str, body: bytes, /, *, previous: ObjectInfo | None, headers: Headers
    ) -> None:
        """Change what was read as `previous` (None: nothing). Raises ObjectStaleError."""

    def copy(
        self, source: ObjectInfo, target: str, /, *, sha256: str, count: Counter | None = None
    ) -> int:
        """Write once under `target` what `source` holds; return bytes that passed through here.

        It is served as `source` says, and without tags. Both are proven to have this SHA-256.
        Raises ObjectDiffersError when either has another, ObjectStaleError when the source changes
        meanwhile; neither leaves a target with other bytes.
        """

    def delete(self, key: str, /) -> None:
        """Remove; no error when nothing is there."""

    def keys(self, prefix: str = "", /) -> Iterator[ObjectInfo]:
        """Return everything whose key starts with `prefix`, in key order; without SHA-256."""

    def deleted(self, prefix: str, /) -> tuple[str, ...]:
        """Return the deleted keys below a prefix that a bucket with Object Lock lists."""

    def sweep(self, before: datetime, /) -> tuple[str, ...]:
        """Remove what writers killed before that time left unfinished; return its names."""


def bucket_of(url: str) -> tuple[str, str] | None:
    """Bucket and prefix of `s3://bucket/prefix`; None for anything else, such as credentials."""
    parts = urlsplit(url)
    plain = not (parts.query or parts.fragment)
    if parts.scheme == "s3" and re.fullmatch(r"[A-Za-z0-9._-]{3,63}", parts.netloc) and plain:
        return parts.netloc, parts.path.strip("/")
    return None


def whole(store: Store, key: str) -> tuple[bytes, ObjectInfo]:
    """Read an object of no more than LIMIT bytes. Raises ObjectMissingError, HugeError."""
    blocks: list[bytes] = []
    size = 0

    def keep(block: bytes) -> None:
        nonlocal size
        size += len(block)
        if size > LIMIT:
            raise HugeError(
                f"{store.locate(key)}: more than {LIMIT >> 20} MiB",
                hint="nothing of ours is that large: it is left alone; remove it",
            )
        blocks.append(block)

    info = store.stream(key, keep)
    return b"".join(blocks), info


def fetch(
    store: Store, key: str, file: IO[bytes] | None, count: Counter | None = None
) -> ObjectInfo:
    """Write an object to a file, if any; return its info with the SHA-256 of what came."""
    digest = hashlib.sha256()

    def keep(block: bytes) -> None:
        digest.update(block)
        if file:
            file.write(block)
        advance(count, len(block))

    info = store.stream(key, keep)
    if file:
        file.flush()
    return replace(info, sha256=digest.hexdigest())


def glance(store: Store, key: str) -> tuple[bytes, ObjectInfo | None]:
    """Read an object, where there is one; of one that is too large only its info."""
    try:
        return store.read(key)
    except ObjectMissingError:
        return b"", None
    except HugeError:
        return b"", store.info(key)


def swap(store: Store, key: str, change: Callable[[bytes], bytes], *, headers: Headers) -> None:
    """Replace an object by what `change` makes of it, while others may do so too.

    Raises ObjectStaleError where another writer was faster each time.
    """
    for _ in range(SWAPS):
        data, previous = glance(store, key)
        if (body := change(data)) == data:
            return
        with suppress(ObjectStaleError):
            store.replace(key, body, previous=previous, headers=headers)
            return
    raise stale(store.locate(key))


def pause(failures: int) -> None:
    """Wait before trying again: a random time below a limit that doubles with each failure.

    Raises CancelledError in a thread that is to end.
    """
    ending.sleep(random.uniform(0, min(20.0, 0.1 * 2**failures)))  # noqa: S311 (jitter)


def advance(count: Counter | None, size: int) -> None:
    if count and size:
        count(size)


def differs(where: str, there: str, expected: str) -> ObjectDiffersError:
    return ObjectDiffersError(
        f"{where}: other bytes are stored there: SHA-256 {there}, not {expected}",
        hint="a name is never used for other bytes: build with a new version (--wheel-suffix)",
    )


def replaced(where: str, there: str, expected: str) -> ObjectDiffersError:
    """Return the error for a source that does not hold what it should."""
    return ObjectDiffersError(
        f"{where}: {there} is stored, {expected} was expected",
        hint="it was replaced or damaged: stage the wheel set again under a new version",
    )


def stale(where: str) -> ObjectStaleError:
    return ObjectStaleError(f"{where}: changed by another writer", hint="run the command again")
