"""One contract, every backend: a folder and three real S3 servers that can do different things."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import random
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError
from support import certificates
from support.s3 import BUCKET, READER, READER_SECRET, seaweedfs
from support.tiers import merge_tries

from rocwheel.base import files, home
from rocwheel.base import store as store_room
from rocwheel.base.console import silent
from rocwheel.base.errors import (
    FullError,
    ObjectDiffersError,
    ObjectMissingError,
    ObjectStaleError,
    RefusedError,
    StoreError,
)
from rocwheel.base.here import Here
from rocwheel.base.parallel import each
from rocwheel.base.store import JSON, Headers, ObjectInfo, Options, Store, bucket, s3
from rocwheel.base.store.opening import open_store
from rocwheel.base.values import replace
from rocwheel.tools import doctor

pytestmark = pytest.mark.integration

HEADERS = Headers(content_type="text/plain", cache_control="max-age=60")
# A wheel's name in a store: `+` must survive, and so must `!` of an epoch.
WHEEL = "v2/gfx94X-dcgpu/jax_rocm7_plugin-1!0.9.1+rocm7.10.0-cp312-cp312-any.whl"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def s3_store(servers, monkeypatch, name: str, **options) -> Store:
    for key, value in servers[name].environ().items():
        monkeypatch.setenv(key, value)
    return open_store(servers.fresh_url(name), Options(**options))


@pytest.fixture(params=merge_tries("file", "seaweedfs", of=["file", "moto", "seaweedfs"]))
def store(request, servers, tmp_path, monkeypatch):
    if request.param == "file":
        return open_store((tmp_path / "a store").as_uri())
    return s3_store(servers, monkeypatch, request.param)


def info(store: Store, key: str) -> ObjectInfo:
    found = store.info(key)
    assert found is not None
    return found


def test_what_was_created_is_read_back(store):
    assert store.create(WHEEL, b"some bytes", headers=HEADERS)
    data, found = store.read(WHEEL)
    assert (data, found.key, found.size) == (b"some bytes", WHEEL, 10)
    assert store.digest(info(store, WHEEL)) == sha(b"some bytes")
    assert abs(datetime.now(tz=timezone.utc) - found.modified) < timedelta(minutes=5)


def test_a_file_streams_in_and_its_progress_adds_up(store, tmp_path):
    path = tmp_path / "wheel"
    path.write_bytes(b"x" * 3_000_000)
    seen: list[int] = []
    assert store.create(WHEEL, path, headers=HEADERS, count=seen.append)
    assert sum(seen) == 3_000_000
    assert store.digest(info(store, WHEEL)) == sha(path.read_bytes())


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_what_is_uploaded_is_read_once_and_arrives_as_it_was_hashed_or_not_at_all(
    servers, monkeypatch, tmp_path, scheme
):
    """botocore read each file once more to sign it, over TLS as well."""
    (path := tmp_path / "file").write_bytes(random.Random(1).randbytes(3_000_000))
    with ExitStack() as stack:
        server = servers["seaweedfs"]
        if scheme == "https":
            made = certificates.make(tmp_path / "certificates")
            server = stack.enter_context(seaweedfs(tmp_path, certificates=made))
            server.bucket(BUCKET)
        for key, value in server.environ().items():
            monkeypatch.setenv(key, value)
        store = open_store(f"s3://{BUCKET}/place-{scheme}")
        counted = list[int]()
        assert store.create("a", path, headers=HEADERS, count=counted.append)
        assert (sum(counted), min(counted)) == (3_000_000, min(map(abs, counted))), "not gone back"
        assert store.digest(info(store, "a")) == files.sha256(path)
        assert store.copy(info(store, "a"), "b", sha256=files.sha256(path)) == 0
        with pytest.raises(StoreError, match="400"):
            store.create("c", path, headers=HEADERS, sha256=sha(b"what it was"))
        assert store.info("c") is None
        if scheme == "https":
            monkeypatch.delenv("AWS_CA_BUNDLE")
            with pytest.raises(StoreError, match="CERTIFICATE_VERIFY_FAILED"):
                open_store(store.url).info("a")


def test_a_stored_name_is_never_given_other_bytes(store):
    store.create(WHEEL, b"first", headers=HEADERS)
    seen: list[int] = []
    assert store.create(WHEEL, b"first", headers=HEADERS, count=seen.append) is False
    assert sum(seen) == 5
    with pytest.raises(ObjectDiffersError, match=r"1!0\.9\.1\+rocm7\.10\.0"):
        store.create(WHEEL, b"second", headers=HEADERS)
    assert store.read(WHEEL)[0] == b"first"
    assert [item.key for item in store.keys("v2/")] == [WHEEL]


def test_a_page_changes_only_as_it_was_read(store):
    store.replace("v2/page/index.html", b"one", previous=None, headers=HEADERS)
    _, one = store.read("v2/page/index.html")
    with pytest.raises(ObjectStaleError, match=r"page/index\.html"):
        store.replace("v2/page/index.html", b"two", previous=None, headers=HEADERS)
    store.replace("v2/page/index.html", b"two", previous=one, headers=HEADERS)
    with pytest.raises(ObjectStaleError):
        store.replace("v2/page/index.html", b"three", previous=one, headers=HEADERS)
    assert store.read("v2/page/index.html")[0] == b"two"


def test_a_page_that_was_deleted_cannot_be_replaced(store):
    store.replace("page", b"one", previous=None, headers=HEADERS)
    _, one = store.read("page")
    store.delete("page")
    with pytest.raises(ObjectStaleError):
        store.replace("page", b"two", previous=one, headers=HEADERS)
    assert store.info("page") is None


def test_a_copy_has_the_same_bytes_and_is_written_once(store):
    store.create("staging/a+b.whl", b"wheel", headers=HEADERS)
    source = info(store, "staging/a+b.whl")
    moved = store.copy(source, "release/a+b.whl", sha256=sha(b"wheel"))
    able = store.abilities()
    assert (moved == 0) == (not (able.copy_lacks)) or store.url.startswith("file:")
    assert store.read("release/a+b.whl")[0] == b"wheel"
    store.copy(source, "release/a+b.whl", sha256=sha(b"wheel"))
    store.create("release/other.whl", b"other", headers=HEADERS)
    with pytest.raises(ObjectDiffersError, match=r"release/other\.whl"):
        store.copy(source, "release/other.whl", sha256=sha(b"wheel"))
    assert store.read("release/other.whl")[0] == b"other"


@pytest.mark.parametrize("name", ["moto", "seaweedfs"])
def test_how_a_copy_is_served_does_not_come_from_who_wrote_the_source(servers, monkeypatch, name):
    """A stager may put the same bytes as `gzip`, which clients would unpack, or with tags."""
    store = s3_store(servers, monkeypatch, name)
    client = servers[name].client()
    at = {"Bucket": store.name, "Key": store.at("staging/a.whl")["Key"]}
    odd = {"ContentEncoding": "gzip", "ContentType": "text/html", "CacheControl": "no-store"}
    odd |= {"ContentDisposition": "inline", "Metadata": {"a": "b"}, "Tagging": "expire=now"}
    client.put_object(**at, Body=b"wheel", **odd)
    how = {"content_type": "application/zip", "cache_control": "max-age=9"}
    source = replace(info(store, "staging/a.whl"), **how)
    store.copy(source, "release/a.whl", sha256=sha(b"wheel"))
    at["Key"] = store.at("release/a.whl")["Key"]
    head = client.head_object(**at)
    assert {"content_type": head["ContentType"], "cache_control": head["CacheControl"]} == how
    assert not {"ContentEncoding", "ContentDisposition"} & head.keys()
    assert head["Metadata"] == {}
    assert client.get_object_tagging(**at)["TagSet"] == []


def test_a_source_that_was_replaced_is_not_copied(store):
    store.create("staging/a.whl", b"tested", headers=HEADERS)
    source = info(store, "staging/a.whl")
    store.delete("staging/a.whl")
    store.create("staging/a.whl", b"forged", headers=HEADERS)
    for seen in (source, info(store, "staging/a.whl")):
        with pytest.raises((ObjectDiffersError, ObjectStaleError), match=r"a\.whl"):
            store.copy(seen, "release/a.whl", sha256=sha(b"tested"))
    assert store.info("release/a.whl") is None


@pytest.mark.parametrize("name", merge_tries("seaweedfs", of=["moto", "seaweedfs"]))
def test_doctor_says_who_we_are_to_a_bucket_and_whether_we_may_write(
    servers, monkeypatch, tmp_path, runner, name
):
    store = s3_store(servers, monkeypatch, name)

    def rows(**changes: str) -> dict[str, doctor.Row]:
        for variable, value in changes.items():
            monkeypatch.setenv(variable, value)
        here = Here(
            environ=os.environ, cwd=tmp_path, cache=tmp_path, home=home.find(None),
            console=silent(), runner=runner,
        )  # fmt: skip
        asked = doctor.examine(here, doctor.Purpose.RELEASE, store=open_store(store.url))
        return {row.name: row for row in asked}

    found = rows()
    assert found["S3 credentials"].found == "rocw…, by env"
    assert found["who we are there"].found
    assert found[store.url] == doctor.Row(name=store.url, found="may be written")
    assert "s from the store's" in found["clock"].found
    assert not found["clock"].remedy
    if name == "seaweedfs":  # moto lets everybody write
        reader = {"AWS_ACCESS_KEY_ID": READER, "AWS_SECRET_ACCESS_KEY": READER_SECRET}
        refused = rows(**reader)[store.url]
        assert "403 AccessDenied" in refused.found
        assert "s3:PutObject" in refused.remedy


# those of IAM that a store may need: docs.aws.amazon.com/service-authorization, Amazon S3
ACTIONS = {
    "GetObject", "PutObject", "DeleteObject", "ListBucket", "GetBucketObjectLockConfiguration", "ListBucketVersions",
}  # fmt: skip


def test_the_right_that_a_refusal_names_is_one_that_iam_has(servers, monkeypatch):
    sources = Path(store_room.__file__).parent.glob("*.py")
    asked = {
        name
        for file in sources
        for name in re.findall(r'translated\([^,()]+, "(\w+)"\)', file.read_text())
    }
    assert {"HeadObject", "ListObjectsV2", "CopyObject"} <= asked
    store = s3_store(servers, monkeypatch, "seaweedfs")
    for operation in asked:
        refused = ClientError(
            {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}},
            operation,
        )
        with pytest.raises(RefusedError) as caught, store.translated("a", operation):
            raise refused
        (right,) = re.findall(r"s3:(\w+)", caught.value.hint)
        assert right in ACTIONS, operation
    for code, status, said in (  # of Ceph, and of MinIO
        ("QuotaExceeded", 403, ""), ("XMinioStorageFull", 507, "has reached its minimum"),
        ("InternalError", 500, "cause(no space left on device)"),
    ):  # fmt: skip
        error = {"Code": code, "Message": said}
        about = {"Error": error, "ResponseMetadata": {"HTTPStatusCode": status}}
        match = f"{code} .*{re.escape(said)}"
        with pytest.raises(FullError, match=match), store.translated("a", "PutObject"):
            raise ClientError(about, "PutObject")


def test_what_is_not_there_is_named(store):
    store.create("some", b"thing", headers=HEADERS)
    assert store.info("no/such+key") is None
    with pytest.raises(ObjectMissingError, match=r"no/such\+key"):
        store.read("no/such+key")
    store.delete("no/such+key")


def test_a_listing_has_every_key_below_a_prefix_in_order(store):
    keys = [f"p/{number:04}" for number in range(1001 if store.url.startswith("file:") else 21)]
    each(lambda key: store.create(key, b"x", headers=HEADERS), ["q", *keys], threads=8)
    assert [item.key for item in store.keys("p/")] == keys
    assert [item.key for item in store.keys("p/000")] == keys[:10]
    assert list(store.keys("nothing/")) == []


def test_a_listing_goes_on_after_a_thousand_keys(servers, monkeypatch):
    store = s3_store(servers, monkeypatch, "seaweedfs")
    keys = [f"p/{number:04}" for number in range(1003)]
    each(lambda key: store.create(key, b"x", headers=HEADERS), keys, threads=8)
    assert [item.key for item in store.keys("p/")] == keys


def test_one_of_many_writers_wins_and_the_others_fail(store):
    store.abilities()
    told: list[str] = []

    def write(number: int) -> bool:
        try:
            return store.create("one", b"%d" % number, headers=HEADERS)
        except ObjectDiffersError as exc:
            told.append(str(exc))
            return False

    created = each(write, range(16), threads=16)
    assert created.count(True) == 1
    assert len(told) == 15
    assert store.read("one")[0] == b"%d" % created.index(True)


def test_no_change_is_lost_when_many_change_one_page(store):
    store.replace("page", b"", previous=None, headers=HEADERS)

    def add(number: int) -> None:
        while True:
            body, seen = store.read("page")
            try:
                store.replace("page", body + b"%d\n" % number, previous=seen, headers=HEADERS)
            except ObjectStaleError:
                continue
            return

    each(add, range(24), threads=8)
    assert sorted(store.read("page")[0].split()) == sorted(b"%d" % n for n in range(24))


def test_a_wheel_above_what_s3_takes_at_once_is_refused_before_it_is_sent(
    servers, monkeypatch, tmp_path
):
    store = s3_store(servers, monkeypatch, "seaweedfs", put_limit=100)
    path = tmp_path / "big.whl"
    for size, is_taken in ((100, True), (101, False)):
        path.write_bytes(bytes(size))
        if is_taken:
            assert store.create(f"v2/{size}.whl", path, headers=HEADERS)
            continue
        with pytest.raises(RefusedError, match=r"101\.whl: 101 bytes, S3 takes 100 at once"):
            store.create(f"v2/{size}.whl", path, headers=HEADERS)
    assert [item.key for item in store.keys("v2/")] == ["v2/100.whl"]
    # https://docs.aws.amazon.com/AmazonS3/latest/userguide/upload-objects.html
    assert open_store(store.url).largest == 5 << 30


def test_a_full_disk_is_an_error_with_the_folder(tmp_path, monkeypatch):
    store = open_store((tmp_path / "store").as_uri())

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as fsync says it: of no file

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FullError) as caught:
        store.create("page", b"text", headers=Headers(content_type=JSON))
    assert str(caught.value).endswith(f"/page: No space left on device ({tmp_path / 'store'})")


def test_what_a_killed_writer_left_in_a_folder_is_no_key_and_is_swept(tmp_path):
    store = open_store(tmp_path.as_uri())
    store.create("a", b"a", headers=HEADERS)
    left = tmp_path / ".rocwheel" / "0123.part"
    left.write_bytes(b"half")
    assert [item.key for item in store.keys("")] == ["a"]
    now = datetime.now(tz=timezone.utc)
    assert store.sweep(now - timedelta(days=1)) == ()
    assert store.sweep(now + timedelta(seconds=1)) == ("0123.part",)
    assert not left.exists()


def test_abilities_are_what_each_server_does_not_what_it_says(servers, monkeypatch):
    seaweedfs, moto = (
        s3_store(servers, monkeypatch, name).abilities() for name in ("seaweedfs", "moto")
    )
    assert seaweedfs.copy_lacks == ()
    assert moto.copy_lacks == ("checksums", "copy_create_only", "copy_source_match")
    assert (seaweedfs.folder_keys, moto.folder_keys) == (False, True)
    rclone = s3_store(servers, monkeypatch, "rclone")
    with pytest.raises(RefusedError, match=r"lacks create_only, swap, checksums") as caught:
        rclone.abilities()
    assert str(caught.value).startswith(f"{rclone.url}: this server ")
    assert "docs/how-to/buckets.md" in caught.value.hint
    with pytest.raises(StoreError, match="does not keep to the conditions"):
        rclone.create("v2/a.whl", b"a", headers=HEADERS)
    assert list(rclone.keys("v2/")) == []


@pytest.mark.parametrize("name", merge_tries("seaweedfs", of=["seaweedfs", "moto"]))
def test_every_process_on_a_bucket_sees_what_the_first_one_saw(servers, monkeypatch, name):
    """Each process probes the objects that earlier ones left; a bucket is used for years."""
    first = s3_store(servers, monkeypatch, name)
    first.abilities()
    later = [open_store(first.url) for _ in range(2)]
    assert [store.abilities() for store in later] == [first.abilities()] * 2


def test_a_probe_object_that_lacks_its_checksum_does_not_cost_the_bucket_its_copies(
    servers, monkeypatch
):
    """Earlier versions left their probe objects so on every bucket they wrote to."""
    store = s3_store(servers, monkeypatch, "seaweedfs")
    _, _, bucket, base = store.url.split("/")
    for name in ("probe", "probe-copy"):
        servers["seaweedfs"].client().put_object(
            Bucket=bucket, Key=f"{base}/_rocwheel/{name}", Body=s3.BODY
        )
    found = store.abilities()
    assert found.copy_lacks == ()
    store.create("a", b"a", headers=HEADERS)
    assert store.copy(info(store, "a"), "b", sha256=sha(b"a")) == 0


def test_a_condition_is_not_called_unknown_because_others_write_at_the_same_time():
    """Each write gives another ETag; one that is refused although nobody wrote is refused."""

    def tried(etags: Iterator[str], taken: str) -> tuple[str, list[str]]:
        asked: list[str] = []
        bucket = SimpleNamespace(info=lambda _key: SimpleNamespace(etag=next(etags)))

        def accepted(tag: str) -> bool:
            asked.append(tag)
            return tag == taken

        return s3._spelling(bucket, "key", accepted), asked

    found, asked = tried(map(str, itertools.count(1)), '"12"')
    assert (found, len(asked)) == (s3.QUOTED, 13)
    found, asked = tried(itertools.repeat("a"), "a")
    assert (found, len(asked)) == (s3.BARE, 4)


@pytest.mark.skipif(not os.environ.get("ROCWHEEL_RGW"), reason="opt-in: ROCWHEEL_RGW=1")
@pytest.mark.needs("ceph-mon", "ceph-osd", "radosgw")
def test_ceph_takes_the_right_etag_in_its_own_spelling_and_keeps_conditions(servers, monkeypatch):
    store = s3_store(servers, monkeypatch, "rgw")
    able = store.abilities()
    assert able.copy_lacks
    store.replace("page", b"one", previous=None, headers=HEADERS)
    _, first = store.read("page")
    store.replace("page", b"two", previous=first, headers=HEADERS)
    with pytest.raises(ObjectStaleError):
        store.replace("page", b"three", previous=first, headers=HEADERS)
    assert store.read("page")[0] == b"two"
    store.create("v2/a.whl", b"a" * 1000, headers=HEADERS)
    with pytest.raises(ObjectDiffersError):
        store.create("v2/a.whl", b"b", headers=HEADERS)
    moved = store.copy(store.info("v2/a.whl"), "v2/b.whl", sha256=files.sha256(b"a" * 1000))
    assert moved > 0, "its copies keep no condition, so the bytes pass through here"


@pytest.mark.parametrize(
    "operation",
    ["PutObject", "CopyObject"],
)
def test_a_server_that_takes_no_etag_at_all_lacks_the_condition(servers, monkeypatch, operation):
    store = s3_store(servers, monkeypatch, "seaweedfs")
    header = {"PutObject": "If-Match", "CopyObject": "x-amz-copy-source-if-match"}[operation]

    def spoil(request, **_):
        if header in request.headers:
            del request.headers[header]
            request.headers[header] = '"another"'

    store.client.meta.events.register_first(f"before-sign.s3.{operation}", spoil)
    if operation == "CopyObject":
        assert store.abilities().copy_lacks == ("copy_source_match",)
        return
    with pytest.raises(RefusedError, match=r"\(it lacks swap\)"):
        store.abilities()
    lacking = r"does not keep to the conditions of writes \(it lacks swap\)"
    with pytest.raises(RefusedError, match=lacking):
        store.replace("page", b"one", previous=None, headers=HEADERS)
    with pytest.raises(RefusedError, match=lacking):
        store.create("v2/a.whl", b"a", headers=HEADERS)
    assert list(store.keys("v2/")) == []


def test_a_server_that_answers_501_to_conditional_writes_is_called_incapable(servers, monkeypatch):
    store = s3_store(servers, monkeypatch, "seaweedfs")
    met = []

    def refused(params, **_):
        if {"IfNoneMatch", "IfMatch"} & params.keys():
            met.append(params)
            raise ClientError(
                {"Error": {"Code": "NotImplemented"}, "ResponseMetadata": {"HTTPStatusCode": 501}},
                "PutObject",
            )

    events = store.client.meta.events
    events.register_first("before-parameter-build.s3.PutObject", refused)
    with pytest.raises(RefusedError, match="does not keep to the conditions of writes"):
        store.create("v2/a.whl", b"a", headers=HEADERS)
    assert met
    assert list(store.keys("v2/")) == []


def test_a_probe_leaves_only_its_own_objects(servers, monkeypatch):
    store = s3_store(servers, monkeypatch, "seaweedfs", probe_key="mine/probe")
    store.abilities()
    assert {item.key for item in store.keys("")} <= {
        "mine/probe",
        "mine/probe-copy",
        "mine/probe-folder/",
    }


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "no usable AWS credentials", "AWS_PROFILE"),
        ({"AWS_ACCESS_KEY_ID": READER, "AWS_SECRET_ACCESS_KEY": READER_SECRET}, "403 AccessDenied", "s3:PutObject"),
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "403 SignatureDoesNotMatch", "wrong or expired"),
        ({"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}, "Could not connect", "run the same command again"),
    ],
)  # fmt: skip
def test_a_refusal_has_a_name_and_a_remedy(servers, monkeypatch, changes, message, hint):
    store = s3_store(servers, monkeypatch, "seaweedfs", attempts=1)
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
        if not value:
            monkeypatch.delenv(name)
    with pytest.raises(StoreError, match=message) as caught:
        store.create("a", b"a", headers=HEADERS)
    assert hint in caught.value.hint
    assert store.url in str(caught.value)


def test_a_bucket_that_does_not_exist_is_named(servers, monkeypatch):
    s3_store(servers, monkeypatch, "seaweedfs")
    store = open_store("s3://no-such-bucket/base")
    for call in (
        lambda: store.info("a"),
        lambda: store.read("a"),
        lambda: list(store.keys()),
        lambda: store.create("a", b"a", headers=HEADERS),
    ):
        with pytest.raises(StoreError, match="s3://no-such-bucket: no such bucket"):
            call()


@pytest.mark.parametrize("name", ["file", "/proc/nowhere"])
def test_a_folder_that_cannot_be_made_is_no_missing_object(tmp_path, name):
    (tmp_path / "file").touch()
    store = open_store((tmp_path / name).as_uri())
    for write in (
        lambda: store.create("key", b"x", headers=HEADERS),
        lambda: store.replace("key", b"x", previous=None, headers=HEADERS),
    ):
        with pytest.raises(StoreError, match="this folder cannot be made") as refused:
            write()
        assert not isinstance(refused.value, ObjectMissingError)
        assert "--store" in refused.value.hint


def test_a_folder_that_cannot_be_listed_is_no_empty_one(tmp_path, monkeypatch):
    """The refusal is made up: root, as which CI runs, may list every folder."""
    store = open_store((tmp_path / "store").as_uri())
    store.create("v2/a/x.txt", b"x", headers=HEADERS, sha256=sha(b"x"))
    scandir = os.scandir

    def refuses(folder):
        if str(folder).endswith("/a"):
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuses)
    with pytest.raises(RefusedError, match="v2: Permission denied"):
        list(store.keys("v2/"))
    assert list(store.keys("v3/")) == []


def test_a_key_cannot_leave_the_folder(tmp_path):
    store = open_store((tmp_path / "in").as_uri())
    for key in ("../out", "a/../../out", "/etc/passwd", "a//b", ".rocwheel/lock", "a/"):
        with pytest.raises(StoreError):
            store.create(key, b"x", headers=HEADERS)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_first_failure_of_many_threads_is_raised_and_the_rest_is_not_started():
    started = []
    gate = threading.Event()

    def work(number: int) -> int:
        started.append(number)
        if number == 1:
            gate.set()
            raise ValueError("number one")
        gate.wait(240)
        return number

    with pytest.raises(ValueError, match="number one"):
        each(work, range(1000), threads=2)
    assert len(started) < 20
    assert each(lambda number: number * 2, range(5), threads=3) == [0, 2, 4, 6, 8]


RECORD = Headers(content_type=JSON, is_record=True)


def locked_store(servers, monkeypatch, name: str, *, days: int = 0) -> Store:
    """A new bucket with Object Lock; with `days` for every object, as its owner's rule says."""
    bucket, client = f"locked-{days}", servers[name].client()
    where = {"LocationConstraint": "us-east-2"}
    client.create_bucket(
        Bucket=bucket, ObjectLockEnabledForBucket=True, CreateBucketConfiguration=where
    )
    rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": days}}
    if days:
        lock = {"ObjectLockEnabled": "Enabled", "Rule": rule}
        client.put_object_lock_configuration(Bucket=bucket, ObjectLockConfiguration=lock)
    for key, value in servers[name].environ().items():
        monkeypatch.setenv(key, value)
    return open_store(f"s3://{bucket}/x", Options())


def kept_days(servers, name: str, store: Store, key: str) -> int:
    """How long this version of an object cannot be deleted, by the server's word and by trying."""
    client, at = servers[name].client(), {"Bucket": store.name, "Key": f"x/{key}"}
    head = client.head_object(**at)
    until = head.get("ObjectLockRetainUntilDate")
    if until is None:
        client.delete_object(**at, VersionId=head["VersionId"])
        return 0
    with pytest.raises(ClientError, match="AccessDenied"):
        client.delete_object(**at, VersionId=head["VersionId"])
    assert head["ObjectLockMode"] == "GOVERNANCE"
    return round((until - datetime.now(tz=timezone.utc)) / timedelta(days=1))


@pytest.mark.parametrize("name", ["moto", "seaweedfs"])
def test_records_outlive_who_deletes_them_where_the_bucket_has_object_lock(
    servers, monkeypatch, name
):
    store = locked_store(servers, monkeypatch, name)
    store.create("record", b"{}", headers=RECORD)
    store.create("page", b"{}", headers=Headers(content_type=JSON))
    store.replace("bundle", b"1", previous=None, headers=RECORD)
    store.replace("bundle", b"2", previous=store.info("bundle"), headers=RECORD)
    kept = [kept_days(servers, name, store, key) for key in ("record", "bundle", "page")]
    assert kept == [90, 90, 0]
    store.delete("record")  # is a marker over it
    client = servers[name].client()
    versions = client.list_object_versions(Bucket=store.name, Prefix="x/record")["Versions"]
    assert len(versions) == 1


@pytest.mark.parametrize("name", ["moto", "seaweedfs"])
def test_a_buckets_own_rule_for_object_lock_is_kept_to(servers, monkeypatch, name):
    """Such a bucket takes no put without a checksum, the probe's neither."""
    store = locked_store(servers, monkeypatch, name, days=3)
    assert store.abilities().folder_keys is (name == "moto")
    store.create("record", b"{}", headers=RECORD)
    store.create("wheel", b"PK", headers=HEADERS)
    assert [kept_days(servers, name, store, key) for key in ("record", "wheel")] == [3, 3]


# What a bucket's answers are taken for.


ANSWER = {"ContentLength": 3, "ETag": '"x"', "LastModified": datetime.now(tz=timezone.utc)}


@pytest.mark.parametrize("name", ANSWER)
def test_an_answer_of_no_store_is_an_error(name):
    """Such as the login page of a network, with the status 200."""
    with pytest.raises(StoreError, match="a/b: the answer is none of an object store") as caught:
        bucket._info("a/b", {key: value for key, value in ANSWER.items() if key != name})
    assert caught.value.hint == "check the endpoint"
