"""A store in an S3 bucket, with credentials from boto3's own chain only.

What to do is decided here, from what the server was seen to do (`probe`): a wheel is put in one
request, so that its checksum attribute is the SHA-256 of the whole object; where the server keeps
no trustworthy checksum, digests are computed by reading; where it cannot prove a copy, the bytes
are carried; a server that ignores the conditions of writes is refused.

Servers exist that accept a condition or a checksum and ignore it, so `probe` tries each on three
objects of our own whose content never changes. Nothing is deleted afterwards: several may try at
once, and a runner may not delete.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

from rocwheel.base import files
from rocwheel.base.errors import ObjectMissingError, RefusedError, StoreError
from rocwheel.base.store import (
    TEXT,
    Abilities,
    Body,
    Counter,
    Headers,
    ObjectInfo,
    Options,
    advance,
    differs,
    fetch,
    pause,
    replaced,
    stale,
    whole,
)
from rocwheel.base.store.bucket import REFUSALS, BrokenError, Bucket, checksum, status
from rocwheel.base.values import Plain

KEPT: Final = timedelta(days=90)  # a record, where the bucket has no rule for its Object Lock


class S3Store(Bucket):
    """Objects below one prefix of a bucket. Its methods may be called from many threads."""

    def __init__(self, bucket: str, base: str, options: Options) -> None:
        super().__init__(bucket, base, options)
        self.connections = options.connections
        self.largest = options.put_limit
        self._lock = threading.Lock()
        self._seen: ProbeResult | None = None

    def abilities(self) -> Abilities:
        return self._writable("").abilities

    # Reading

    def read(self, key: str, /) -> tuple[bytes, ObjectInfo]:
        return whole(self, key)

    def stream(self, key: str, sink: Callable[[bytes], object], /) -> ObjectInfo:
        info, blocks = self.get(key)
        done = failures = 0
        while True:
            try:
                for block in blocks:
                    done += len(block)
                    sink(block)
            except BrokenError as exc:
                failures += 1
                if failures >= self.attempts:
                    raise StoreError(
                        f"{self.locate(key)}: the download broke {failures} times: {exc}",
                        hint="run the same command again; check the network if it stays",
                    ) from exc
                pause(failures)
                _, blocks = self.get(key, start=done, etag=info.etag)
                continue
            if done != info.size:
                raise StoreError(
                    f"{self.locate(key)}: {done} of {info.size} bytes came",
                    hint="run the same command again",
                )
            return info

    def digest(self, info: ObjectInfo, /, *, count: Counter | None = None) -> str:
        if info.sha256 and self._seen and self._seen.checksums:
            return info.sha256
        return fetch(self, info.key, None, count).sha256

    # Writing

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
        self._writable(key)
        sha256 = sha256 or files.sha256(body)
        size = len(body) if isinstance(body, bytes) else body.stat().st_size
        if size > self.largest:
            raise RefusedError(
                f"{self.locate(key)}: {size} bytes, S3 takes {self.largest} at once",
                hint="make it smaller: an object in parts would have no SHA-256 of the whole",
            )
        created = self._put(
            key, body, sha256, headers=headers, condition={"IfNoneMatch": "*"}, count=count
        )
        if not created:
            advance(count, size)
            self._same(key, body, sha256)
        return created

    def replace(
        self, key: str, body: bytes, /, *, previous: ObjectInfo | None, headers: Headers
    ) -> None:
        spelling = self._writable(key).write_etag
        condition = (
            {"IfMatch": spelling.format(previous.etag)} if previous else {"IfNoneMatch": "*"}
        )
        try:
            done = self._put(key, body, files.sha256(body), headers=headers, condition=condition)
        except ObjectMissingError as exc:  # it was deleted meanwhile
            raise stale(self.locate(key)) from exc
        if not done:
            raise stale(self.locate(key))

    def copy(
        self, source: ObjectInfo, target: str, /, *, sha256: str, count: Counter | None = None
    ) -> int:
        seen, moved = self._writable(target), list[int]()
        if seen.abilities.copy_lacks:
            self._carry(source, target, sha256, moved.append)
            advance(count, source.size)
            return sum(moved)
        if (digest := self.digest(source, count=moved.append)) != sha256:
            raise replaced(self.locate(source.key), digest, sha256)
        conditions = {
            "CopySourceIfMatch": seen.source_etag.format(source.etag),
            "IfNoneMatch": "*",
            "ContentType": source.content_type,
        }
        if source.cache_control:
            conditions["CacheControl"] = source.cache_control
        with self.translated(target, "CopyObject"):
            created = self.conditional(lambda: self.copies(source.key, target, **conditions))
        there = self.info(target)
        if there is None:  # then the condition that did not hold was the source's ETag
            raise stale(self.locate(source.key))
        if (digest := self.digest(there, count=moved.append)) != sha256:
            if created:
                self.delete(target)
            raise differs(self.locate(target), digest, sha256)
        advance(count, source.size)
        return sum(moved)

    def sweep(self, before: datetime, /) -> tuple[str, ...]:  # noqa: ARG002
        return ()  # nothing stays of a PUT that was cut

    def _tried(self) -> ProbeResult:
        with self._lock:
            if self._seen is None:
                self._seen = probe(self, self._options.probe_key)
            return self._seen

    def _writable(self, key: str) -> ProbeResult:
        seen = self._tried()
        if seen.lacks:
            lacks = ", ".join((*seen.lacks, *seen.abilities.copy_lacks))
            raise RefusedError(
                f"{self.locate(key)}: this server does not keep to the conditions of writes (it "
                f"lacks {lacks}): two writers could overwrite each other",
                hint="use another server: docs/how-to/buckets.md lists those that can",
            )
        return seen

    def _put(
        self,
        key: str,
        body: Body,
        sha256: str,
        *,
        headers: Headers,
        condition: dict[str, str],
        count: Counter | None = None,
    ) -> bool:
        """Return one PUT, proven to have arrived. False when the condition did not hold."""
        checksums, locks = self._tried().checksums, self._tried().locks
        extra: dict[str, Any] = dict(condition)
        if checksums or locks is not None:
            extra["ChecksumSHA256"] = checksum(sha256)
        if locks is not None:
            extra["ChecksumAlgorithm"] = "SHA256"
        if locks is False and headers.is_record:
            until = datetime.now(timezone.utc) + KEPT
            extra |= {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": until}
        with self.translated(key, "PutObject"):
            etag = self.conditional(
                lambda: self.put(key, body, headers=headers, count=count, **extra)
            )
        if etag is None:
            return False
        if not checksums and etag != _md5(body):
            there = self.info(key)
            digest = self.digest(there) if there else "nothing"
            if digest != sha256:
                self.delete(key)
                raise StoreError(
                    f"{self.locate(key)}: {digest} was stored instead of SHA-256 {sha256}",
                    hint="it was removed; run the same command again",
                )
        return True

    def _carry(self, source: ObjectInfo, target: str, sha256: str, moved: Counter) -> None:
        with tempfile.NamedTemporaryFile(prefix="rocwheel-") as file:
            came = fetch(self, source.key, file, moved)
            if came.etag != source.etag:
                raise stale(self.locate(source.key))
            if came.sha256 != sha256:
                raise replaced(self.locate(source.key), came.sha256, sha256)
            headers = Headers(content_type=source.content_type, cache_control=source.cache_control)
            if self.create(target, Path(file.name), headers=headers, sha256=sha256):
                moved(source.size)

    def _same(self, key: str, body: Body, sha256: str) -> None:
        there = self.info(key)
        if there is None:
            raise stale(self.locate(key))
        if not self._tried().checksums and there.etag == _md5(body):
            return
        if (digest := self.digest(there)) != sha256:
            raise differs(self.locate(key), digest, sha256)


def _md5(body: Body) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    for block in files.blocks(body):
        digest.update(block)
    return digest.hexdigest()


BODY: Final = b"rocwheel tries here what this store can do; see docs/layout.md\n"
HEADERS: Final = Headers(content_type=TEXT)
OTHER_ETAG: Final = "0" * 32
# RFC 9110 8.8.3, and what Ceph's RGW takes: https://github.com/slatedb/slatedb/issues/1818
QUOTED, BARE = '"{}"', "{}"
TRIES: Final = 30  # where others try at the same time, and each write gives another ETag


class ProbeResult(Plain, frozen=True, kw_only=True):
    # Of `create_only` (it refuses `If-None-Match: *` where something is stored) and `swap` (it
    # takes `If-Match` with the right ETag and refuses it with another): without them a second
    # writer could be overwritten, so that nothing may be written.
    lacks: tuple[str, ...]
    abilities: Abilities
    locks: bool | None  # it has Object Lock, and a rule for all objects; None: it has none
    checksums: bool  # without, digests are computed by reading, and a copy is not proven
    write_etag: str  # how `If-Match` of a write wants an ETag spelt
    source_etag: str  # and the condition on a copy's source


def probe(bucket: Bucket, key: str) -> ProbeResult:
    """Try everything, writing `key`, `key-copy` and `key-folder/` at most.

    A condition is only trusted in a spelling that accepts the right ETag and refuses another.
    Raises StoreError when the server does not answer or these keys may not be written.
    """
    copied, folder = f"{key}-copy", f"{key}-folder/"
    sha256, wrong = checksum(files.sha256(BODY)), checksum(files.sha256(b"other bytes"))
    locks = bucket.locks
    # a put into a locked bucket needs a checksum, and the name of its kind on some servers
    kind = {} if locks is None else {"ChecksumAlgorithm": "SHA256"}

    def copies(**condition: str) -> bool:
        return _accepted(
            bucket, copied, "CopyObject", lambda: bucket.copies(key, copied, **condition)
        )

    def puts(body_sha256: str, **condition: str) -> bool:
        extra: Any = {"headers": HEADERS, "ChecksumSHA256": body_sha256, **kind, **condition}
        return _accepted(bucket, key, "PutObject", lambda: bucket.put(key, BODY, **extra))

    # Of two create-only writes the first may find nothing; the second cannot.
    create_only = not all(puts(sha256, IfNoneMatch="*") for _ in range(2))
    if bucket.info(key) is None:  # the server knows no such condition at all
        puts(sha256)
    copy_create_only = not all(copies(IfNoneMatch="*") for _ in range(2))
    sums: Any = {"headers": HEADERS, "ChecksumSHA256": sha256, **kind}
    _accepted(bucket, folder, "PutObject", lambda: bucket.put(folder, BODY, **sums))
    listed = [(item.key, item.size) for item in bucket.keys(folder.rstrip("/"))]
    write = _spelling(bucket, key, lambda tag: puts(sha256, IfMatch=tag))
    source = _spelling(bucket, key, lambda tag: copies(CopySourceIfMatch=tag))
    # Read last: an object that an earlier run left without its SHA-256 is rewritten by now.
    stored, copy = bucket.info(key), bucket.info(copied)
    copying = {
        # refuses a body with another SHA-256, states the right one afterwards
        "checksums": stored is not None and stored.sha256 == files.sha256(BODY) and not puts(wrong),
        "copy_create_only": copy_create_only,
        "copy_source_match": bool(source),
        "copy_checksums": copy is not None and copy.sha256 == files.sha256(BODY),
    }
    writing = {"create_only": create_only, "swap": bool(write)}
    return ProbeResult(
        lacks=tuple(name for name, is_kept in writing.items() if not is_kept),
        abilities=Abilities(
            copy_lacks=tuple(name for name, is_kept in copying.items() if not is_kept),
            folder_keys=(folder, len(BODY)) in listed,
        ),
        locks=locks,
        checksums=copying["checksums"],
        write_etag=write or QUOTED,
        source_etag=source or QUOTED,
    )


def _spelling(bucket: Bucket, key: str, accepted: Callable[[str], bool]) -> str:
    """Find the spelling in which the server keeps this condition, "" when there is none.

    A refused ETag that is still the object's is refused for good; one that another writer replaced
    meanwhile proves nothing.
    """
    for spelling in (QUOTED, BARE):
        if accepted(spelling.format(OTHER_ETAG)):
            continue
        refused = ""
        for _ in range(TRIES):
            info = bucket.info(key)
            if not info or info.etag == refused:
                break
            refused = info.etag
            if accepted(spelling.format(refused)):
                return spelling
    return ""


def _accepted(bucket: Bucket, key: str, operation: str, call: Callable[[], object]) -> bool:
    from botocore.exceptions import ClientError

    try:
        with bucket.translated(key, operation):
            try:
                call()
            except ClientError as exc:
                if status(exc) in REFUSALS:
                    return False
                raise
    except ObjectMissingError:  # such as a copy of what could not be written
        bucket.see()
        return False
    return True
