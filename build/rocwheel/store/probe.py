"""Trying what an S3 server can do.

Servers exist that accept a condition or a checksum and ignore it, so each is tried on three
objects of our own whose content never changes. Nothing is deleted afterwards: several may try at
once, and a runner may not delete.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rocwheel import files
from rocwheel.errors import ObjectMissingError
from rocwheel.store import Abilities
from rocwheel.store.bucket import (
    BAD_REQUEST,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    Bucket,
    checksum,
    status,
)

BODY: Final = b"rocwheel tries here what this store can do; see docs/layout.md\n"
REFUSALS: Final = {BAD_REQUEST, PRECONDITION_FAILED, NOT_IMPLEMENTED}
OTHER_ETAG: Final = "0" * 32
# RFC 9110 8.8.3, and what Ceph's RGW takes: https://github.com/slatedb/slatedb/issues/1818
QUOTED, BARE = '"{}"', "{}"
TRIES: Final = 30  # where others try at the same time, and each write gives another ETag


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """What a server was seen to do, one by one; what that comes to is `refusal` and `abilities`.

    Without `create_only` or `swap` a second writer could be overwritten. Without `checksums`
    digests are computed by reading, and a copy is not proven.
    """

    create_only: bool  # refuses `If-None-Match: *` where something is stored
    swap: bool  # takes `If-Match` with the right ETag and refuses it with another
    checksums: bool  # refuses a body with another SHA-256, states the right one afterwards
    copy_create_only: bool
    copy_source_match: bool
    copy_checksums: bool  # a copy states its SHA-256
    folder_keys: bool
    write_etag: str  # how `If-Match` of a write wants an ETag spelt
    source_etag: str  # and the condition on a copy's source

    def refusal(self) -> str:
        """Return why nothing may be written to this server, with what it lacks; "" where it may."""
        if self.create_only and self.swap:
            return ""
        missing = (*self._lacking("create_only", "swap"), *self.abilities().copy_lacks)
        return (
            f"does not keep to the conditions of writes (it lacks {', '.join(missing)}): "
            "two writers could overwrite each other"
        )

    def abilities(self) -> Abilities:
        return Abilities(
            copy_lacks=self._lacking(
                "checksums", "copy_create_only", "copy_source_match", "copy_checksums"
            ),
            folder_keys=self.folder_keys,
        )

    def _lacking(self, *names: str) -> tuple[str, ...]:
        return tuple(name for name in names if not getattr(self, name))


def probe(bucket: Bucket, key: str) -> ProbeResult:
    """Try everything, writing `key`, `key-copy` and `key-folder/` at most.

    A condition is only trusted in a spelling in which the right ETag is taken and another refused.
    Raises StoreError when the server does not answer or these keys may not be written.
    """
    copied, folder = f"{key}-copy", f"{key}-folder/"
    sha256, wrong = checksum(files.sha256(BODY)), checksum(files.sha256(b"other bytes"))

    def accepts(call: Callable[..., object], *args: Any, **condition: str) -> bool:
        return _accepted(bucket, call, *args, **condition)

    def puts(body_sha256: str, **condition: str) -> bool:
        return accepts(bucket.put, key, BODY, ChecksumSHA256=body_sha256, **condition)

    # Of two create-only writes the first may find nothing; the second cannot.
    create_only = not all(puts(sha256, IfNoneMatch="*") for _ in range(2))
    if bucket.head(key) is None:  # the server knows no such condition at all
        puts(sha256)
    copy_create_only = not all(
        accepts(bucket.copies, key, copied, IfNoneMatch="*") for _ in range(2)
    )
    accepts(bucket.put, folder, BODY)
    listed = [(item.key, item.size) for item in bucket.keys(folder.rstrip("/"))]
    write = _spelling(bucket, key, lambda tag: puts(sha256, IfMatch=tag))
    source = _spelling(
        bucket, key, lambda tag: accepts(bucket.copies, key, copied, CopySourceIfMatch=tag)
    )
    # Read last: an object that an earlier run left without its SHA-256 has been written anew.
    stored, copy = bucket.head(key), bucket.head(copied)
    return ProbeResult(
        create_only=create_only,
        swap=bool(write),
        checksums=stored is not None and stored[0].sha256 == files.sha256(BODY) and not puts(wrong),
        copy_create_only=copy_create_only,
        copy_source_match=bool(source),
        copy_checksums=copy is not None and copy[0].sha256 == files.sha256(BODY),
        folder_keys=(folder, len(BODY)) in listed,
        write_etag=write or QUOTED,
        source_etag=source or QUOTED,
    )


def _spelling(bucket: Bucket, key: str, accepted: Callable[[str], bool]) -> str:
    """Find the spelling in which this condition is kept, "" when there is none.

    An ETag that is refused and is still the object's is refused for good; one that another writer
    replaced meanwhile says nothing.
    """
    for spelling in (QUOTED, BARE):
        if accepted(spelling.format(OTHER_ETAG)):
            continue
        refused = ""
        for _ in range(TRIES):
            found = bucket.head(key)
            if not found or found[0].etag == refused:
                break
            refused = found[0].etag
            if accepted(spelling.format(refused)):
                return spelling
    return ""


def _accepted(bucket: Bucket, call: Callable[..., object], *args: Any, **condition: str) -> bool:
    """Return whether the server did what it may decline; failures of other kinds are raised."""
    from botocore.exceptions import ClientError

    key, operation = (args[1], "CopyObject") if call == bucket.copies else (args[0], "PutObject")
    try:
        with bucket.translated(key, operation):
            try:
                call(*args, **condition)
            except ClientError as exc:
                if status(exc) in REFUSALS:
                    return False
                raise
    except ObjectMissingError:  # such as a copy of what could not be written
        bucket.see()
        return False
    return True
