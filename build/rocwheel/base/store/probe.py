"""Trying what an S3 server can do.

Servers exist that accept a condition or a checksum and ignore it, so each is tried on three
objects of our own whose content never changes. Nothing is deleted afterwards: several may try at
once, and a runner may not delete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rocwheel.base import files
from rocwheel.base.errors import ObjectMissingError
from rocwheel.base.store import TEXT, Abilities, Headers
from rocwheel.base.store.bucket import REFUSALS, Bucket, checksum, status
from rocwheel.base.values import Plain

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
