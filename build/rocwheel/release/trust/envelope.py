"""DSSE envelopes with in-toto statements: written in one spelling, read strictly.

https://github.com/secure-systems-lab/dsse and https://github.com/in-toto/attestation/tree/main/spec/v1.
What Sigstore signed is an envelope in a bundle of its own, with the certificate.
The bytes may come from any writer: their size is limited before they are parsed, and a key that is
twice in a JSON object is an error, since readers differ in which of the two they take.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from rocwheel.base import files
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import NonEmpty, Plain, Sha256, Value, decoded, replace
from rocwheel.release.trust import TrustError, sigstore
from rocwheel.release.trust.policy import Signer, Trust
from rocwheel.release.trust.sigstore import Identity, SigstoreSigner

PAYLOAD: Final = "application/vnd.in-toto+json"
LARGEST: Final = 4 << 20  # bytes of an envelope; ours have some thousand
_BUNDLED: Final = b'{"dsseEnvelope":'  # the first of a bundle's fields in their order
STARTS: Final = (b'{"payload"', _BUNDLED)  # of an envelope, and of one in a bundle
AGAIN: Final = "a statement is made again by the machine that did the work, with its own key"


class Sha256Digest(Value, frozen=True, kw_only=True):
    """The only kind of digest in our statements."""

    sha256: Sha256


class StatementSubject(Value, frozen=True, kw_only=True):
    name: NonEmpty
    digest: Sha256Digest


class Statement(Value, frozen=True, kw_only=True):
    predicate_type: NonEmpty = msgspec.field(name="predicateType")
    subject: Annotated[tuple[StatementSubject, ...], Meta(min_length=1)]
    predicate: Mapping[str, Any]
    kind: Literal["https://in-toto.io/Statement/v1"] = msgspec.field(
        name="_type", default="https://in-toto.io/Statement/v1"
    )

    def part(self, *names: str) -> Mapping[str, Any]:
        value: Any = self.predicate
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        return value if isinstance(value, dict) else {}

    @property
    def own(self) -> Mapping[str, Any]:
        return self.part("rocwheel")

    @property
    def subjects(self) -> dict[str, str]:
        """The SHA-256 of each subject, by name."""
        return {item.name: item.digest.sha256 for item in self.subject}


class _Unnamed(Value, frozen=True, kw_only=True):
    sig: bytes  # in base64, as the payload


class _Signature(_Unnamed, frozen=True, kw_only=True):
    keyid: Sha256


class _Content(Value, frozen=True, kw_only=True):
    payload: bytes
    payload_type: Literal["application/vnd.in-toto+json"] = msgspec.field(name="payloadType")


class _Envelope(_Content, frozen=True, kw_only=True):
    signatures: tuple[_Signature, ...]


class _Bundled(_Content, frozen=True, kw_only=True):
    signatures: tuple[_Unnamed, ...]  # the certificate names the signer


class _Bundle(Value, frozen=True, kw_only=True):
    media_type: Literal["application/vnd.dev.sigstore.bundle.v0.3+json"] = msgspec.field(
        name="mediaType"
    )
    material: Mapping[str, Any] = msgspec.field(name="verificationMaterial")
    envelope: _Bundled = msgspec.field(name="dsseEnvelope")


class Envelope(Plain, frozen=True, kw_only=True):
    """A statement, and signatures on it; `read` has checked them, `parse` has not."""

    name: str  # what errors call it
    sha256: str  # of the envelope's bytes
    statement: Statement
    payload: bytes
    signatures: Mapping[str, bytes]  # by the id of the key
    bundle: bytes = b""  # of Sigstore, with its one signature
    logged: datetime | None = None  # when that was made, give or take ten minutes

    @property
    def pae(self) -> bytes:
        """Return the signed bytes: the payload and its type."""
        from securesystemslib import dsse

        return dsse.Envelope(self.payload, PAYLOAD, {}).pae()


def parse(data: bytes, *, name: str) -> Envelope:
    """Read an envelope; its signatures stay unchecked. Raises TrustError."""
    if len(data) > LARGEST:
        raise TrustError(f"{name}: {len(data)} bytes are not a statement", hint=AGAIN)
    bundle = data if data.startswith(_BUNDLED) else b""
    outer: _Content
    if bundle:
        whole: _Bundle = _strict(data, _Bundle, name)
        outer, who = whole.envelope, sigstore.signed_by(whole.material, name=name)
        signed = [(who.keyid, item.sig) for item in outer.signatures]
    else:
        plain: _Envelope = _strict(data, _Envelope, name)
        outer, signed = plain, [(item.keyid, item.sig) for item in plain.signatures]
    signatures = dict(signed)
    if len(signatures) != len(signed):
        raise TrustError(f"{name}: two signatures of one key", hint=AGAIN)
    statement = _strict(outer.payload, Statement, f"{name}: payload")
    if len(statement.subjects) != len(statement.subject):
        raise TrustError(f"{name}: payload: a subject is named twice", hint=AGAIN)
    spelt = _line(json.loads(data)) if bundle else _written(outer.payload, signatures)
    if data != spelt:  # several statements in a file are a line each
        raise TrustError(f"{name}: not written as `trust sign` writes it", hint=AGAIN)
    return Envelope(
        name=name,
        sha256=files.sha256(data),
        statement=statement,
        payload=outer.payload,
        signatures=signatures,
        bundle=bundle,
    )


def read(data: bytes, trust: Trust, *, name: str) -> Envelope:
    """Read an envelope and check every signature; one bad one is an error. Raises TrustError."""
    envelope, logged = parse(data, name=name), None
    if not envelope.signatures:
        raise TrustError(f"{name}: signature: it has none", hint="`trust sign` signs it")
    for keyid in envelope.signatures:
        if keyid not in trust.keys:
            hint = "add the public key to ci/trust.yaml, if it is one of yours"
            raise TrustError(f"{name}: key: {keyid[:12]} is not in the trust file", hint=hint)
        try:
            logged = _check(envelope, keyid, trust)
        except TrustError as exc:
            raise TrustError(f"{name}: signature: {exc}", hint=exc.hint) from exc
    return replace(envelope, logged=logged)


def _check(envelope: Envelope, keyid: str, trust: Trust) -> datetime | None:
    """Check one signature; return when it was made, where another than its signer says so."""
    from securesystemslib.exceptions import UnverifiedSignatureError
    from securesystemslib.signer import Signature

    key = trust.keys[keyid].key
    if isinstance(key, Identity):
        return sigstore.verify(envelope.bundle, key, trust.sigstore)
    try:
        key.verify_signature(Signature(keyid, envelope.signatures[keyid].hex()), envelope.pae)
    except UnverifiedSignatureError as exc:
        what = f"that of {trust.name(keyid)} does not fit: it was changed"
        raise TrustError(what, hint=AGAIN) from exc
    return None


def unsigned(statement: Statement) -> bytes:
    return _written(statement.to_bytes(), {})


def sign(data: bytes, signer: Signer, *, name: str) -> bytes:
    """Return the envelope with the signature of one more key. Raises TrustError."""
    envelope = parse(data, name=name)
    if envelope.signatures and (envelope.bundle or isinstance(signer, SigstoreSigner)):
        what = "a bundle of Sigstore holds one signature alone"
        raise TrustError(f"{name}: {what}", hint="sign it with keys, or by Sigstore")
    if isinstance(signer, SigstoreSigner):
        return _line(json.loads(signer.sign(envelope.payload)))
    try:
        signature = signer.sign(envelope.pae)
    except Exception as exc:  # of boto3, a PKCS#11 module: neither has one class of errors
        hint = "make the key usable on this machine, then run the same command again"
        raise TrustError(f"{name}: its key does not sign: {exc}", hint=hint) from exc
    made = {signature.keyid: bytes.fromhex(signature.signature)}
    return _written(envelope.payload, {**envelope.signatures, **made})


def _written(payload: bytes, signatures: Mapping[str, bytes]) -> bytes:
    """Spell an envelope as one line, so that several of them in a file are a bundle."""
    made = (_Signature(keyid=keyid, sig=sig) for keyid, sig in sorted(signatures.items()))
    return _line(_Envelope(payload=payload, payload_type=PAYLOAD, signatures=tuple(made)))


def _line(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted") + b"\n"


def _strict(data: bytes, kind: type[Any], name: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise TrustError(f"{name}: a key stands twice in one object", hint=AGAIN)
        return dict(pairs)

    try:
        value = decoded(data, kind, name=name)
        json.loads(data, object_pairs_hook=once)
    except (ConfigError, ValueError, RecursionError) as exc:
        raise TrustError(f"{name}: {exc}".replace(f"{name}: {name}", name), hint=AGAIN) from exc
    return value
