"""Single requests to an S3 bucket: the client, what its failures mean, and nothing decided.

Retries are botocore's standard mode: 5xx, throttling and connection errors, jittered and bounded,
no other 4xx. Two things it does not do are done here: a 409 on a conditional write is tried again,
and a thread that is to end (`rocwheel.base.ending`) begins no request, a retry included, so that
an interrupted command waits for the requests under way and for nothing else.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import quote

from rocwheel.base import ending
from rocwheel.base.errors import FullError, ObjectMissingError, RefusedError, StoreError
from rocwheel.base.store import (
    BLOCK,
    Body,
    Counter,
    Headers,
    ObjectInfo,
    Options,
    advance,
    pause,
    stale,
)

if TYPE_CHECKING:
    from botocore.exceptions import ClientError
    from mypy_boto3_s3 import S3Client

Result = TypeVar("Result")

ATTEMPTS: Final = 5
BAD_REQUEST, FORBIDDEN, NOT_FOUND = 400, 403, 404
CONFLICT, PRECONDITION_FAILED = 409, 412
SERVER_ERROR, NOT_IMPLEMENTED, FULL = 500, 501, 507
# The right that an operation needs, where it is called otherwise:
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-with-s3-policy-actions.html
RIGHTS: Final = {
    "CopyObject": "PutObject",
    "GetObjectLockConfiguration": "GetBucketObjectLockConfiguration",
    "HeadBucket": "ListBucket",
    "HeadObject": "GetObject",
    "ListObjectVersions": "ListBucketVersions",
    "ListObjectsV2": "ListBucket",
}
REFUSALS: Final = frozenset({BAD_REQUEST, PRECONDITION_FAILED, NOT_IMPLEMENTED})  # of a condition
PASSING: Final = frozenset({408, CONFLICT, 429})  # a retry may be answered otherwise


class BrokenError(Exception):
    """A connection broke while a body was read."""


class Bucket:
    """Requests below one prefix of a bucket; safe to use from many threads."""

    def __init__(self, name: str, base: str, options: Options) -> None:
        self.name = name
        self.url = f"s3://{name}/{base}".rstrip("/")
        self._base = f"{base}/" if base else ""
        self._options = options
        self.attempts = options.attempts or ATTEMPTS  # requests per call
        self._exists = False

    @cached_property
    def client(self) -> S3Client:
        from botocore.exceptions import BotoCoreError

        options = self._options
        try:
            client: S3Client = self._client_of(
                "s3",
                options.login,
                signature_version="s3v4",
                connect_timeout=options.connect_seconds,
                read_timeout=options.read_seconds,
                max_pool_connections=options.connections,
                retries={"mode": "standard", "total_max_attempts": self.attempts},
                # The SHA-256 of every object is sent; a CRC beside it only costs time.
                request_checksum_calculation="when_required",
            )
        except (BotoCoreError, ValueError) as exc:
            raise StoreError(
                f"{self.url}: {exc}", hint="check the endpoint and the AWS configuration"
            ) from exc
        client.meta.events.register_first("before-send.s3", lambda **_: ending.check())
        client.meta.events.register_first("needs-retry.s3", _before_retry)
        client.meta.events.register_first("before-sign.s3.PutObject", _before_signing)
        return client

    def _client_of(self, service: Any, login: Mapping[str, str], **config: Any) -> Any:
        from botocore.config import Config
        from botocore.session import get_session  # what boto3 adds takes 30 ms, and is not used

        session = get_session()
        loader = session.get_component("data_loader")  # looks into the folders of 400 services
        loader.list_available_services = lambda type_name: [service]  # noqa: ARG005
        return session.create_client(
            service,
            endpoint_url=self._options.endpoint or None,
            region_name=self._options.region or None,
            config=Config(**config),
            **cast("Any", login),
        )

    def locate(self, key: str) -> str:
        return f"{self.url}/{key}" if key else self.url

    def http(self, key: str) -> str:
        endpoint = self.client.meta.endpoint_url.rstrip("/")
        return f"{endpoint}/{self.name}/{quote(self._base + key, safe='/')}"

    def at(self, key: str) -> Any:
        """Return the two parameters that name an object in any request."""
        return {"Bucket": self.name, "Key": self._base + key}

    # Requests

    def clock(self) -> datetime | None:
        return _now(self._ask())

    def _ask(self) -> Any:
        """Ask for the bucket; 403 is an answer: it is there. Raises StoreError."""
        from botocore.exceptions import ClientError

        with self.translated("", "HeadBucket"):
            try:
                return self.client.head_bucket(Bucket=self.name)
            except ClientError as exc:
                if status(exc) == NOT_FOUND:
                    raise self._no_bucket() from exc
                if status(exc) != FORBIDDEN:
                    raise
                return exc.response

    @cached_property
    def locks(self) -> bool | None:
        """Whether Object Lock has a rule for every object; None where the bucket has none.

        None as well where the server does not say, to these credentials. Raises StoreError.
        """
        from botocore.exceptions import ClientError

        with self.translated("", "GetObjectLockConfiguration"):
            try:
                said = self.client.get_object_lock_configuration(Bucket=self.name)
            except ClientError as exc:
                if status(exc) >= SERVER_ERROR and status(exc) != NOT_IMPLEMENTED:
                    raise
                return None
        return "Rule" in said["ObjectLockConfiguration"]

    def who(self) -> str:
        """Return the identity of these credentials, "" where the server does not say.

        Raises StoreError where there is no such bucket.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        self.see()
        once = {"connect_timeout": 5, "read_timeout": 5, "retries": {"total_max_attempts": 1}}
        with suppress(BotoCoreError, ClientError, KeyError):
            sts = self._client_of("sts", {}, **once)
            return str(sts.get_caller_identity()["Arn"])
        return ""

    def info(self, key: str, /) -> ObjectInfo | None:
        try:
            with self.translated(key, "HeadObject"):
                answer = self.client.head_object(**self.at(key), ChecksumMode="ENABLED")
        except ObjectMissingError:
            # HEAD has no body, so a missing object looks like a missing bucket:
            # https://docs.aws.amazon.com/AmazonS3/latest/API/API_HeadObject.html
            self.see()
            return None
        return _info(key, answer)

    def get(
        self, key: str, *, start: int = 0, end: str = "", etag: str = ""
    ) -> tuple[ObjectInfo, Iterator[bytes]]:
        """Open an object, from `start` to the byte `end` while it still has `etag`.

        The blocks end with BrokenError when the connection does.
        """
        extra = {"Range": f"bytes={start}-{end}", "IfMatch": f'"{etag}"'} if etag else {}
        with self.translated(key, "GetObject"):
            answer = self.client.get_object(**self.at(key), **cast("Any", extra))
        return _info(key, answer), _blocks(answer["Body"], self.locate(key))

    def part(self, info: ObjectInfo, start: int, size: int) -> bytes:
        end = str(start + size - 1)
        try:
            return b"".join(self.get(info.key, start=start, end=end, etag=info.etag)[1])
        except BrokenError as exc:
            raise StoreError(
                f"{self.locate(info.key)}: the download broke: {exc}",
                hint="run the same command again; check the network if it stays",
            ) from exc

    def put(
        self, key: str, body: Body, *, headers: Headers, count: Counter | None = None, **extra: Any
    ) -> str:
        """Return one PUT, untranslated; return the ETag."""
        kwargs: Any = {**self.at(key), "ContentType": headers.content_type, **extra}
        if headers.cache_control:
            kwargs["CacheControl"] = headers.cache_control
        if isinstance(body, bytes):
            answer = self.client.put_object(Body=body, **kwargs)
            advance(count, len(body))
        else:
            with body.open("rb") as file:
                upload = _Upload(file, count)
                try:
                    answer = self.client.put_object(Body=cast("IO[bytes]", upload), **kwargs)
                except BaseException:
                    upload.seek(0)
                    raise
        return answer["ETag"].strip('"')

    def copies(self, source: str, target: str, **extra: str) -> bool:
        """Return one server-side copy that asks for a SHA-256, untranslated; return True."""
        self.client.copy_object(
            **self.at(target),
            CopySource=self.at(source),
            ChecksumAlgorithm="SHA256",
            MetadataDirective="REPLACE",
            TaggingDirective="REPLACE",
            **cast("Any", extra),
        )
        return True

    def delete(self, key: str) -> None:
        with self.translated(key, "DeleteObject"):
            self.client.delete_object(**self.at(key))

    def keys(self, prefix: str = "") -> Iterator[ObjectInfo]:
        pages = iter(
            self.client.get_paginator("list_objects_v2").paginate(
                Bucket=self.name, Prefix=self._base + prefix
            )
        )
        while True:
            with self.translated(prefix, "ListObjectsV2"):
                page = next(pages, None)
            if page is None:
                return
            for item in page.get("Contents", ()):
                yield ObjectInfo(
                    key=item["Key"][len(self._base) :],
                    size=item["Size"],
                    etag=item.get("ETag", "").strip('"'),
                    sha256="",
                    modified=item["LastModified"],
                )

    def deleted(self, prefix: str, /) -> tuple[str, ...]:
        if self.locks is None:
            return ()
        base = self._base + prefix
        pages = self.client.get_paginator("list_object_versions")
        with self.translated(prefix, "ListObjectVersions"):
            markers = pages.paginate(Bucket=self.name, Prefix=base).search("DeleteMarkers[]")
            keys = [item["Key"] for item in markers if item and item["IsLatest"]]
        return tuple(key[len(self._base) :] for key in keys)

    def see(self) -> None:
        """Ask once whether the bucket exists. Raises StoreError."""
        if not self._exists:
            self._ask()
            self._exists = True

    def conditional(self, call: Callable[[], Result]) -> Result | None:
        """Make a conditional write: None when the condition does not hold; 409 is tried again.

        https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html
        """
        from botocore.exceptions import ClientError

        failures = 0
        while True:
            try:
                return call()
            except ClientError as exc:
                if status(exc) == PRECONDITION_FAILED:
                    return None
                failures += 1
                if status(exc) != CONFLICT or failures >= self.attempts:
                    raise
                pause(failures)

    # Failures

    @contextmanager
    def translated(self, key: str, operation: str) -> Iterator[None]:
        """Turn boto's failures into ours: what was refused, by name, and what to do."""
        from botocore.exceptions import BotoCoreError, ClientError

        where = self.locate(key)
        try:
            yield
        except ClientError as exc:
            raise self._meaning(where, operation, exc) from exc
        except BotoCoreError as exc:
            name = type(exc).__name__
            if any(word in name for word in ("Credential", "Profile", "SSO", "Token")):
                raise StoreError(
                    f"{where}: no usable AWS credentials: {exc}",
                    hint="set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                ) from exc
            raise StoreError(
                f"{where}: {operation}: {exc}",
                hint="check network and endpoint, then run the same command again; it continues",
            ) from exc

    def _meaning(self, where: str, operation: str, exc: ClientError) -> StoreError:
        number, error = status(exc), exc.response.get("Error", {})
        code, said = error.get("Code", ""), error.get("Message", "")
        if code == "NoSuchBucket":
            return self._no_bucket()
        if number == NOT_FOUND:
            return ObjectMissingError(
                f"{where}: no such object", hint="check the store and the channel"
            )
        if number == PRECONDITION_FAILED:
            return stale(where)
        if code in {"RequestTimeTooSkewed", "RequestExpired"}:
            hint = "this machine's clock is wrong: set it, for example with timedatectl"
        elif code in {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"}:
            hint = "these AWS credentials are wrong or expired: get new ones"
        elif number == FORBIDDEN:
            right = RIGHTS.get(operation, operation)
            hint = f"these AWS credentials may not do that: they need s3:{right} there"
        elif number >= SERVER_ERROR:
            hint = "the server's fault: run the same command again, it continues"
        else:
            hint = "the server refused it for good; trying again will not help"
        kind = StoreError if number >= SERVER_ERROR or number in PASSING else RefusedError
        text = f"{number} {code or 'Error'} for {where}: {operation}"
        # Ceph names a quota; MinIO has the system's own words in some of its 500s
        if number == FULL or "Quota" in code or "no space left" in said.lower():
            kind, hint = FullError, "free some space in the store, or raise its quota"
            text += f": {said}" if said else ""
        return kind(text, hint=hint)

    def _no_bucket(self) -> StoreError:
        return StoreError(
            f"s3://{self.name}: no such bucket",
            hint="check the store, the channel and the endpoint; buckets are not created here",
        )


class _Upload:
    """An open file as botocore wants a body; reports how far it was read.

    Going back (a retry, a failure) counts back.
    """

    def __init__(self, file: IO[bytes], count: Counter | None) -> None:
        self._file, self._count = file, count
        self.tell = file.tell

    def __len__(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def read(self, size: int = -1) -> bytes:
        ending.check()
        block = self._file.read(size)
        advance(self._count, len(block))
        return block

    def seek(self, offset: int, whence: int = 0) -> int:
        before = self._file.tell()
        advance(self._count, self._file.seek(offset, whence) - before)
        return self._file.tell()


def _before_retry(
    response: tuple[Any, object] | None = None, caught_exception: object = None, **_: object
) -> None:
    if caught_exception or response is None or response[0].status_code >= BAD_REQUEST:
        ending.check()


def _before_signing(request: Any, **_: object) -> None:
    """Read no body twice: its SHA-256 is in a header, which is signed and checked.

    botocore would otherwise hash the body to sign it, over TLS too.
    """
    from botocore.config import Config

    if "x-amz-checksum-sha256" in request.headers:
        unsigned, context = Config(s3={"payload_signing_enabled": False}), request.context
        context["client_config"] = context["client_config"].merge(unsigned)


def status(exc: ClientError) -> int:
    return int(exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def checksum(sha256: str) -> str:
    return base64.b64encode(bytes.fromhex(sha256)).decode()


def _blocks(body: Any, where: str) -> Iterator[bytes]:
    from botocore.exceptions import FlexibleChecksumError, HTTPClientError, IncompleteReadError

    with body:
        while True:
            ending.check()
            try:
                block = body.read(BLOCK)
            except FlexibleChecksumError as exc:
                raise StoreError(
                    f"{where}: {exc}",
                    hint="run the same command again; if it stays, what is stored is damaged",
                ) from exc
            except (HTTPClientError, IncompleteReadError, OSError) as exc:
                raise BrokenError(str(exc)) from exc
            if not block:
                return
            yield block


def _info(key: str, answer: Any) -> ObjectInfo:
    stated = answer.get("ChecksumSHA256", "")
    # `…-7` is the checksum of seven parts' checksums, which says nothing about the whole
    whole = stated and "-" not in stated and answer.get("ChecksumType") != "COMPOSITE"
    if not {"ContentLength", "ETag", "LastModified"} <= answer.keys():  # such as a login page
        raise StoreError(f"{key}: the answer is none of an object store", hint="check the endpoint")
    return ObjectInfo(
        key=key,
        size=answer["ContentLength"],
        etag=answer["ETag"].strip('"'),
        sha256=base64.b64decode(stated).hex() if whole else "",
        modified=answer["LastModified"],
        now=_now(answer),
        content_type=answer.get("ContentType", ""),
        cache_control=answer.get("CacheControl", ""),
    )


def _now(answer: Any) -> datetime | None:
    said = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        return parsedate_to_datetime(said)
    except (TypeError, ValueError):  # TypeError: Python 3.10's for what is no date
        return None
