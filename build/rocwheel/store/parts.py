"""Objects above S3's limit for one request: written in parts, visible all at once.

Nothing appears under the key before the last step, which is create-only. S3 states no SHA-256 of
the whole for such objects, so they are proven by reading them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from rocwheel import files
from rocwheel.store import BLOCK, Counter, Headers, ObjectInfo
from rocwheel.store.bucket import Bucket, Window, checksum, served


@dataclass(frozen=True, kw_only=True)
class Parts:
    """How to write in parts to one server."""

    bucket: Bucket
    part_size: int
    checksums: bool
    source_etag: str  # how the server wants the ETag of a copy's source spelt
    create_only: bool  # whether the last step honours `If-None-Match: *`; see `honours_condition`

    def put(self, key: str, path: Path, headers: Headers, count: Counter | None) -> bool:
        """Upload a file. False when something was stored under `key` meanwhile."""

        def part(upload: str, number: int, start: int, length: int) -> dict[str, Any]:
            check: dict[str, Any] = {}
            with path.open("rb") as file:
                if self.checksums:
                    with Window(file, start, length, None) as window:
                        check["ChecksumSHA256"] = checksum(
                            files.sha256(iter(partial(window.read, BLOCK), b""))
                        )
                with Window(file, start, length, count) as window:
                    found = self.bucket.client.upload_part(
                        **self.bucket.at(key),
                        UploadId=upload,
                        PartNumber=number,
                        Body=window.as_io(),
                        **check,
                    )
            return {"ETag": found["ETag"], "PartNumber": number, **check}

        algorithm = {"ChecksumAlgorithm": "SHA256"} if self.checksums else {}
        return self._written(key, path.stat().st_size, {**served(headers), **algorithm}, part)

    def copy(self, source: ObjectInfo, target: str, headers: Headers) -> bool:
        """Copy on the server. False when something was stored under `target` meanwhile."""

        def part(upload: str, number: int, start: int, length: int) -> dict[str, Any]:
            found = self.bucket.client.upload_part_copy(
                **self.bucket.at(target),
                UploadId=upload,
                PartNumber=number,
                CopySource=self.bucket.at(source.key),
                CopySourceIfMatch=self.source_etag.format(source.etag),
                CopySourceRange=f"bytes={start}-{start + length - 1}",
            )
            return {"ETag": found["CopyPartResult"]["ETag"], "PartNumber": number}

        # No checksum algorithm: servers differ in what they state for copied parts.
        return self._written(target, source.size, served(headers), part)

    def _written(
        self,
        key: str,
        size: int,
        extra: dict[str, Any],
        part: Callable[[str, int, int, int], dict[str, Any]],
    ) -> bool:
        with self.bucket.translated(key, "MultipartUpload"):
            started = self.bucket.client.create_multipart_upload(**self.bucket.at(key), **extra)
            upload = started["UploadId"]
            done = False
            try:
                parts = [
                    part(upload, number, start, min(self.part_size, size - start))
                    for number, start in enumerate(range(0, size, self.part_size), 1)
                ]
                done = _complete(self.bucket, key, upload, parts, condition=self.create_only)
            finally:
                if not done:
                    self.bucket.abort(key, upload)
        return done


def honours_condition(bucket: Bucket, key: str, body: bytes) -> bool:
    """Try on an existing object, which has this body, whether completing an upload is create-only.

    If it is not, the object is written again as it was.
    """
    with bucket.translated(key, "MultipartUpload"):
        upload = bucket.client.create_multipart_upload(**bucket.at(key))["UploadId"]
        found = bucket.client.upload_part(
            **bucket.at(key), UploadId=upload, PartNumber=1, Body=body
        )
        parts = [{"ETag": found["ETag"], "PartNumber": 1}]
        written = _complete(bucket, key, upload, parts, condition=True)
        if not written:
            bucket.abort(key, upload)
    return not written


def _complete(
    bucket: Bucket, key: str, upload: str, parts: list[dict[str, Any]], *, condition: bool
) -> bool:
    extra: Any = {"IfNoneMatch": "*"} if condition else {}
    done = bucket.conditional(
        lambda: bucket.client.complete_multipart_upload(
            **bucket.at(key),
            UploadId=upload,
            MultipartUpload=cast("Any", {"Parts": parts}),
            **extra,
        )
    )
    return done is not None
