"""The certificates that Bazel's JVM trusts: the CA bundle that this machine's programs use.

A JVM reads no `SSL_CERT_FILE`: behind a proxy with its own CA, Bazel's downloads end with "PKIX
path building failed" where curl, git and pip work. So the bundle becomes a trust store, and Bazel's
server gets it as a startup option (https://bazel.build/docs/user-manual#startup-options).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocwheel.base import files
from rocwheel.base.errors import ConfigError
from rocwheel.base.process import GuestPath
from rocwheel.base.values import Plain

if TYPE_CHECKING:
    from cryptography import x509

VARIABLES: Final = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
PASSWORD: Final = "changeit"  # noqa: S105 - the JVM wants one; certificates are public
OPTION: Final = "--host_jvm_args=-Djavax.net.ssl.trustStore"


class Certificates(Plain, frozen=True, kw_only=True):
    """A CA bundle of this machine, in PEM."""

    bundle: Path
    digest: str

    @property
    def name(self) -> str:
        return f"certificates-{self.digest[:16]}.p12"

    def startup(self, folder: GuestPath) -> tuple[str, ...]:
        """Return Bazel's startup options, with the trust store in `folder`."""
        return (
            f"{OPTION}={folder}/{self.name}",
            f"{OPTION}Type=PKCS12",
            f"{OPTION}Password={PASSWORD}",
        )

    def write(self, folder: Path) -> None:
        """Write the trust store, once. Raises ConfigError for a bundle that changed meanwhile."""
        path = folder / self.name
        if path.is_file():
            return
        from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

        found = _parsed(self.bundle, self.bundle.read_bytes())
        entries = [
            pkcs12.PKCS12Certificate(item, f"ca-{number}".encode())
            for number, item in enumerate(found)
        ]
        encryption = BestAvailableEncryption(PASSWORD.encode())
        files.write(path, pkcs12.serialize_java_truststore(entries, encryption))


def in_use(environ: Mapping[str, str], *, options: tuple[str, ...] = ()) -> Certificates | None:
    """Return the CA bundle that the environment names; None where it names none.

    A trust store among the user's own startup `options` is left alone. Raises ConfigError for a
    bundle that is missing or holds no certificate.
    """
    named = next(((name, environ[name]) for name in VARIABLES if environ.get(name)), None)
    if named is None or any(option.startswith(OPTION) for option in options):
        return None
    bundle = Path(named[1])
    try:
        data = bundle.read_bytes()
    except OSError as exc:
        raise ConfigError(
            f"{named[0]}={bundle}: {exc.strerror or exc}",
            hint="name a CA bundle in PEM, or unset the variable",
        ) from exc
    _parsed(bundle, data)
    return Certificates(bundle=bundle, digest=files.sha256(data))


def _parsed(bundle: Path, data: bytes) -> list[x509.Certificate]:
    from cryptography import x509

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of roots older than RFC 5280, which every bundle has
            return x509.load_pem_x509_certificates(data)
    except ValueError as exc:
        raise ConfigError(
            f"{bundle}: holds no certificates in PEM",
            hint="name a CA bundle, such as /etc/ssl/certs/ca-certificates.crt",
        ) from exc
