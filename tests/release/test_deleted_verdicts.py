"""Signed sets in a bucket with Object Lock: what was deleted leaves a marker, which is seen."""

from __future__ import annotations

import secrets

import pytest
from support.trust import Keyring, SignedShop

from rocwheel.records.verdict import State
from rocwheel.release.trust import TrustError

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("servers")]


@pytest.fixture(params=["moto", "seaweedfs"])
def locked(servers, monkeypatch, tmp_path, console, request):
    """A shop with a signed set in a new bucket with Object Lock; the bucket's client and name."""
    server, bucket = servers[request.param], f"kept-{secrets.token_hex(4)}"
    client, where = server.client(), {"LocationConstraint": "us-east-2"}
    client.create_bucket(
        Bucket=bucket, ObjectLockEnabledForBucket=True, CreateBucketConfiguration=where
    )
    for key, value in server.environ().items():
        monkeypatch.setenv(key, value)
    shop = SignedShop(tmp_path, console, Keyring(tmp_path / "keys"), f"s3://{bucket}/x")
    return shop, shop.ready(), client, bucket


def test_the_newest_failure_cannot_be_deleted_unseen(locked) -> None:
    """No gap tells of it: nothing came after."""
    shop, manifest, client, bucket = locked
    before = {item.key for item in shop.store.keys("")}
    shop.add(manifest, suite="unit", state=State.FAIL)
    (newest,) = {item.key for item in shop.store.keys("")} - before
    client.delete_object(Bucket=bucket, Key=f"x/{newest}")
    with pytest.raises(TrustError, match="was deleted"):
        shop.promote(manifest)
    for kept in client.list_object_versions(Bucket=bucket)["DeleteMarkers"]:
        client.delete_object(Bucket=bucket, Key=kept["Key"], VersionId=kept["VersionId"])
    assert shop.plan(manifest).families("blocked"), "it is flaky, as the runner said"


def test_logs_and_pages_may_go(locked) -> None:
    """A bucket's own rules may expire what no decision rests on."""
    shop, manifest, _, _ = locked
    log = shop.staging.report(manifest.sha256, "3.12", "unit", "runs/1/report.html")
    shop.store.create(log, b"x", headers=shop.staging.view_headers)
    shop.store.delete(log)
    shop.promote(manifest)
    assert shop.shown(shop.release, "jax-rocm7-pjrt")
