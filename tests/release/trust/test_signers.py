"""Keys that never leave where they are: AWS KMS (moto's) and a PKCS#11 token (softhsm2's)."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from datetime import date
from pathlib import Path

import pkcs11
import pytest
from securesystemslib.signer import Signature
from support.wheelset import make_set

from rocwheel.base.errors import ConfigError
from rocwheel.release.trust import TrustError, envelope, signers, statements
from rocwheel.release.trust.policy import KeyRole, Trust, TrustedKey

MODULE = Path("/usr/lib/softhsm/libsofthsm2.so")


def made(tmp_path) -> envelope.Statement:
    """A statement to sign."""
    manifest = make_set(tmp_path / "wh", pythons=("3.12",))
    about = {"time": "2026-05-01T12:00:00Z", "url": "", "policy": {}, "inputs": (), "own": {}}
    return statements.summary(manifest, **about)


def round_trip(tmp_path, signer) -> None:
    """Sign a statement, and check it with the public part as a trust file has it."""
    signed = envelope.sign(envelope.unsigned(made(tmp_path)), signer, name="x")
    public = signer.public_key
    key = TrustedKey(
        public=signers.public_pem(public),
        algorithm=public.scheme,
        role=KeyRole.PROMOTER,
        since=date(2026, 1, 1),
        until=date(2027, 1, 1),
    )
    assert key.key.keyid == public.keyid
    trust = Trust(keys={public.keyid: key})
    assert envelope.read(signed, trust, name="x").statement.subjects
    with pytest.raises(TrustError):
        envelope.read(signed.replace(b'"sig":"', b'"sig":"AAAA'), trust, name="x")


@pytest.mark.parametrize("spec", ["ECC_NIST_P256", "ECC_NIST_P384", "RSA_2048"])
def test_aws_kms_signs(tmp_path, monkeypatch, spec) -> None:
    import boto3
    from moto import mock_aws

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        client = boto3.client("kms")
        key = client.create_key(KeyUsage="SIGN_VERIFY", KeySpec=spec)["KeyMetadata"]["KeyId"]
        client.create_alias(AliasName="alias/builder", TargetKeyId=key)
        signer = signers.signer("awskms:alias/builder")
        data = envelope.sign(envelope.unsigned(made(tmp_path)), signer, name="x")
        signed = envelope.parse(data, name="x")
        ((keyid, signature),) = signed.signatures.items()
        assert keyid == signer.public_key.keyid
        # moto hashes a digest once more: https://docs.getmoto.org/en/latest/docs/services/kms.html
        size = "384" if spec.endswith("384") else "256"
        twice = hashlib.new(f"sha{size}", signed.pae).digest()
        signer.public_key.verify_signature(Signature(keyid, signature.hex()), twice)
        with pytest.raises(TrustError, match="awskms key alias/nobody"):
            signers.signer("awskms:alias/nobody")


@pytest.mark.needs("softhsm2-util")
def test_a_pkcs11_token_signs(tmp_path, monkeypatch) -> None:
    (tmp_path / "tokens").mkdir()
    (tmp_path / "softhsm2.conf").write_text(f"directories.tokendir = {tmp_path}/tokens\n")
    monkeypatch.setenv("SOFTHSM2_CONF", str(tmp_path / "softhsm2.conf"))
    monkeypatch.setenv("PYKCS11LIB", str(MODULE))
    words = ("--init-token", "--free", "--label", "rocwheel", "--pin", "1234", "--so-pin", "4321")
    argv = [shutil.which("softhsm2-util"), *words]
    subprocess.run(argv, check=True, capture_output=True, env={**os.environ})
    with (
        pkcs11.lib(str(MODULE))
        .get_token(token_label="rocwheel")
        .open(user_pin="1234", rw=True) as session
    ):
        curve = pkcs11.util.ec.encode_named_curve_parameters("secp256r1")
        parameters = session.create_domain_parameters(
            pkcs11.KeyType.EC, {pkcs11.Attribute.EC_PARAMS: curve}, local=True
        )
        parameters.generate_keypair(store=True, id=b"\x02", label="builder")
    pin = tmp_path / "pin"
    pin.write_text("1234\n")
    pin.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read the PIN") as told:
        signers.signer("hsm:2?label=rocwheel", pin=pin)
    assert "and set another if others have seen it" in told.value.hint
    with pytest.raises(ConfigError, match="the token asks for a PIN"):
        signers.signer("hsm:2?label=rocwheel")
    with pytest.raises(ConfigError, match="none: No such file"):
        signers.signer("hsm:2?label=rocwheel", pin=tmp_path / "none")
    pin.write_text("4711\n")
    pin.chmod(0o600)
    with pytest.raises(TrustError, match=r"hsm key 2.label=rocwheel"):
        signers.signer("hsm:2?label=rocwheel", pin=pin)
    pin.write_text("1234\n")
    signer = signers.signer("hsm:2?label=rocwheel", pin=pin)
    round_trip(tmp_path, signer)
    pin.write_text("4711\n")  # changed while a gate ran
    with pytest.raises(TrustError, match="it: its key does not sign"):
        envelope.sign(envelope.unsigned(made(tmp_path)), signer, name="it")
    pin.write_text("1234\n")
    for uri in ("hsm:3?label=rocwheel", "hsm:2?label=other"):
        with pytest.raises(TrustError, match="hsm key"):
            signers.signer(uri, pin=pin)


def test_a_token_that_asks_for_a_pin_says_how_it_gets_one(monkeypatch) -> None:
    monkeypatch.delenv("PYKCS11LIB", raising=False)
    with pytest.raises(TrustError, match="hsm key"):
        signers.signer("hsm:")
