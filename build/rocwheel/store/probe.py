"""Trying what an S3 server can do.

Servers exist that accept a condition or a checksum and ignore it, so each ability is tried on
three objects of our own whose content never changes. Nothing is deleted afterwards: several may
try at once, and a runner may not delete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rocwheel.errors import ObjectMissingError
from rocwheel.store import Abilities, sha256_of
from rocwheel.store.bucket import (
    BAD_REQUEST,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    checksum,
    status,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocwheel.store.bucket import Bucket

BODY: Final = b"rocwheel tries here what this store can do; see docs/layout.md\n"
REFUSALS: Final = {BAD_REQUEST, PRECONDITION_FAILED, NOT_IMPLEMENTED}
OTHER_ETAG: Final = f'"{"0" * 32}"'


def probe(bucket: Bucket, key: str) -> Abilities:
    """Find the abilities, writing `key`, `key-copy` and `key-folder/` at most.

    Raises StoreError when the server does not answer or these keys may not be written.
    """
    copied, folder = f"{key}-copy", f"{key}-folder/"
    sha256, wrong = checksum(sha256_of(BODY)), checksum(sha256_of(b"other bytes"))

    def accepts(call: Callable[..., object], *args: Any, **condition: str) -> bool:
        return _accepted(bucket, call, *args, **condition)

    # Of two create-only writes the first may find nothing; the second cannot.
    create_only = not all(
        accepts(bucket.put, key, BODY, ChecksumSHA256=sha256, IfNoneMatch="*") for _ in range(2)
    )
    if bucket.head(key) is None:  # the server knows no such condition at all
        accepts(bucket.put, key, BODY, ChecksumSHA256=sha256)
    stored = bucket.head(key)
    copy_create_only = not all(accepts(bucket.copy, key, copied, IfNoneMatch="*") for _ in range(2))
    copy = bucket.head(copied)
    accepts(bucket.put, folder, BODY)
    listed = [(item.key, item.size) for item in bucket.keys(folder.rstrip("/"))]
    return Abilities(
        create_only=create_only,
        swap=not accepts(bucket.put, key, BODY, IfMatch=OTHER_ETAG),
        checksums=stored is not None
        and stored[0].sha256 == sha256_of(BODY)
        and not accepts(bucket.put, key, BODY, ChecksumSHA256=wrong),
        copy_create_only=copy_create_only,
        copy_source_match=not accepts(bucket.copy, key, copied, CopySourceIfMatch=OTHER_ETAG),
        copy_checksums=copy is not None and copy[0].sha256 == sha256_of(BODY),
        folder_keys=(folder, len(BODY)) in listed,
    )


def _accepted(bucket: Bucket, call: Callable[..., object], *args: Any, **condition: str) -> bool:
    """Whether the server did what it may decline; failures of other kinds are raised."""
    from botocore.exceptions import ClientError

    key, operation = (args[1], "CopyObject") if call == bucket.copy else (args[0], "PutObject")
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
