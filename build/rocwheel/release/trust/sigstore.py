"""Sigstore: a certificate for an OIDC identity in place of a key, and an entry in a public log.

A statement signed so is a Sigstore bundle (https://docs.sigstore.dev/about/bundle/), and each wheel
gets an attestation that an index can show (https://peps.python.org/pep-0740/). The packages that do
both, `sigstore` and `pypi-attestations`, come with `rocwheel[sigstore]`.
"""

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from rocwheel.base.errors import ConfigError, RocwheelError
from rocwheel.base.values import NonEmpty, Value
from rocwheel.release.trust import TrustError

# Fulcio's extensions: https://github.com/sigstore/fulcio/blob/main/docs/oid-info.md
_ISSUER: Final = "1.3.6.1.4.1.57264.1.8"
_RAN: Final = "1.3.6.1.4.1.57264.1.18"  # what ran: URL of its file, with the revision
_GITHUB: Final = re.compile(r"https://github\.com/([^/]+/[^/]+)/\.github/workflows/([^/@]+)@.+")
_GITLAB: Final = re.compile(r"https://gitlab\.com/(.+?)//([^@]+)@.+")
_MARGIN: Final = timedelta(minutes=1)  # certificates live for ten


class Identity(Value, frozen=True, kw_only=True):
    """An OIDC identity as certificates state it; a trust file has it instead of a public key."""

    identity: NonEmpty  # a workflow's URL with its revision, or an e-mail address
    issuer: NonEmpty  # URL of the OIDC provider that vouches for it

    @property
    def keyid(self) -> str:
        return self.sha256


class SigstoreSigner:
    """Signs with a certificate that is asked for when there is something to sign."""

    def __init__(self, config: str, token: str) -> None:
        """Take the file of a trust configuration, "" for Sigstore's public instance.

        `token` is an OIDC token; with "" the provider of this machine is asked for one whenever it
        takes one. Raises ConfigError, and TrustError where no identity is to be had.
        """
        self._config, self._given = config, token
        self._signer: Any = None
        self._until = datetime.min.replace(tzinfo=timezone.utc)
        with _failing("sign"):
            if config:
                _configuration(config)
        self._token()  # who has none hears of it before hours of work

    @property
    def public_key(self) -> Identity:
        """The identity that the certificate states. Raises TrustError."""
        return identity_of(self._certificate())

    def sign(self, payload: bytes) -> bytes:
        """Return a Sigstore bundle with a statement's bytes. Raises TrustError."""
        with _failing("sign"):
            from sigstore.dsse import Statement

            text: str = self._opened().sign_dsse(Statement(payload)).to_json()
            return text.encode()

    def provenances(self, wheels: Mapping[str, str]) -> dict[str, bytes]:
        """Sign that wheels, by their SHA-256, are published: return a provenance object for each.

        None where PEP 740's readers know no publisher like this identity. Raises TrustError.
        """
        publisher = _publisher(self._certificate())
        if publisher is None:
            return {}
        made = dict[str, bytes]()
        with _failing("sign"):
            from pypi_attestations import Attestation, AttestationBundle, Distribution, Provenance

            for name, sha256 in wheels.items():
                wheel = Distribution(name=name, digest=sha256)
                signed = [Attestation.sign(self._opened(), wheel)]
                about = AttestationBundle(publisher=publisher, attestations=signed)
                made[name] = Provenance(attestation_bundles=[about]).model_dump_json().encode()
        return made

    def _token(self) -> Any:
        with _failing("sign"):
            from sigstore.oidc import IdentityToken, detect_credential

            if token := self._given or detect_credential():
                return IdentityToken(token)
        hint = "in GitHub Actions give the job `id-token: write`; else set SIGSTORE_IDENTITY_TOKEN"
        raise TrustError("sigstore: no OIDC identity here", hint=hint)

    def _certificate(self) -> Any:
        with _failing("sign"):
            return self._opened()._signing_cert()  # noqa: SLF001 - it has no public name

    def _opened(self) -> Any:
        """Return what signs, with a certificate that is valid for a minute more."""
        if self._until < datetime.now(timezone.utc) + _MARGIN:
            from sigstore.sign import Signer, SigningContext

            config = _configuration(self._config)
            self._signer = Signer(self._token(), SigningContext.from_trust_config(config))
            self._until = self._signer._signing_cert().not_valid_after_utc  # noqa: SLF001
        return self._signer


def identity_of(certificate: Any) -> Identity:
    """Read the identity from a certificate. Raises ValueError unless it states exactly one."""
    from cryptography import x509

    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    kinds = (x509.UniformResourceIdentifier, x509.RFC822Name)
    (name,) = (value for kind in kinds for value in names.get_values_for_type(kind))
    return Identity(identity=name, issuer=_claim(certificate, _ISSUER))


def signed_by(material: Mapping[str, Any], *, name: str) -> Identity:
    """Read the identity from a bundle's certificate, unchecked. Raises TrustError."""
    from cryptography import x509

    try:
        data = b64decode(material["certificate"]["rawBytes"], validate=True)
        return identity_of(x509.load_der_x509_certificate(data))
    except Exception as exc:  # of ASN.1, and of fields that are of another kind
        what = f"{name}: no certificate of Sigstore: {exc}"
        raise TrustError(what, hint="the machine that did the work makes it again") from exc


def verify(bundle: bytes, who: Identity, config: str) -> datetime:
    """Check a bundle without a network; return since when its certificate is valid.

    It was signed within ten minutes from then on, as the log's entry proves. `config` is the file
    of a trust configuration, "" the roots that the package has. Raises TrustError, ConfigError.
    """
    with _failing("check"):
        from sigstore.models import Bundle
        from sigstore.verify import policy

        read = Bundle.from_json(bundle)
        named = (policy.Identity(identity=who.identity), policy.OIDCIssuerV2(who.issuer))
        _verifier(config).verify_dsse(read, policy.AllOf([*named]))
        return read.signing_certificate.not_valid_before_utc


@lru_cache(maxsize=1)
def _verifier(config: str) -> Any:
    from sigstore.verify import Verifier

    return Verifier(trusted_root=_configuration(config, offline=True).trusted_root)


def _configuration(path: str, *, offline: bool = False) -> Any:
    """Read a trust configuration as sigstore's own client does; "" is the public instance's."""
    from sigstore.models import ClientTrustConfig

    if not path:
        return ClientTrustConfig.production(offline=offline)
    try:
        return ClientTrustConfig.from_json(Path(path).read_text(encoding="utf-8"))
    except Exception as exc:  # pydantic's, and what a damaged certificate raises
        hint = "it is what `sigstore --trust-config` takes, a ClientTrustConfig"
        raise ConfigError(f"{path}: no trust configuration: {exc}", hint=hint) from exc


def _publisher(certificate: Any) -> Any:
    from pypi_attestations import GitHubPublisher, GitLabPublisher, GooglePublisher

    who = identity_of(certificate)
    ran = _claim(certificate, _RAN)
    if match := _GITHUB.fullmatch(ran):
        return GitHubPublisher(repository=match[1], workflow=match[2])
    if match := _GITLAB.fullmatch(ran):
        return GitLabPublisher(repository=match[1], workflow_filepath=match[2])
    is_google = who.issuer == "https://accounts.google.com"
    return GooglePublisher(email=who.identity) if is_google else None


def _claim(certificate: Any, oid: str) -> str:
    """Return a text that Fulcio wrote into a certificate; "" where it is not there."""
    from cryptography import x509
    from cryptography.hazmat import asn1

    try:
        extension = certificate.extensions.get_extension_for_oid(x509.ObjectIdentifier(oid))
    except x509.ExtensionNotFound:
        return ""
    return asn1.decode_der(str, extension.value.value)


@contextmanager
def _failing(to: str) -> Iterator[None]:
    """Turn the libraries' exceptions into an error of ours."""
    try:
        yield
    except RocwheelError:
        raise
    except ImportError as exc:
        hint = "in a checkout: python3 -m pip install '.[sigstore]'"
        raise ConfigError(f"sigstore: the package {exc.name} is not there", hint=hint) from exc
    except Exception as exc:  # of HTTP, ASN.1, JSON and Sigstore: they have no class in common
        said = str(exc) or str(exc.__cause__ or type(exc).__name__)
        hint = "Sigstore must be reachable, and the identity one that it knows"
        if to != "sign":
            hint = "a statement is made again by the machine that did the work"
        raise TrustError(f"sigstore: cannot {to}: {said}", hint=hint) from exc
