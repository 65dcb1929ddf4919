"""Keys that sign, named by URI: a file, AWS KMS, a PKCS#11 token, or Sigstore.

`file:/home/me/builder.pem` is PKCS#8 in PEM that its owner alone can read; `awskms:alias/builder` a
key that never leaves AWS; `hsm:2?label=TOKEN` one on a token whose module PYKCS11LIB names. Only
the signing library reads a private key.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

from rocwheel.base.errors import ConfigError, named
from rocwheel.release.trust import TrustError
from rocwheel.release.trust.policy import PublicKey, Signer, sslib_key
from rocwheel.release.trust.sigstore import SigstoreSigner

SCHEMES: Final = "file:/path/key.pem, awskms:alias/NAME, hsm:SLOT?label=TOKEN or sigstore:"
_REMOTE: Final = re.compile(r"awskms:.+|hsm:[0-9]{0,9}(\?label=.+)?")
_MARKS: Final = (".git", "MODULE.bazel")  # of a checkout, a workspace
OWNER_ONLY: Final = 0o600


def generate(path: Path) -> PublicKey:
    """Write a new Ed25519 key that its owner alone can read; return its public part."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    _check_folder(path)
    private = Ed25519PrivateKey.generate()
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
    except OSError as exc:
        is_there = isinstance(exc, FileExistsError)
        hint = "choose another " + ("name: a key is never written over" if is_there else "folder")
        if isinstance(exc, FileNotFoundError):
            hint = f"correct the path, or make its folder: mkdir -p -m 700 {path.parent}"
        raise ConfigError(f"{path}: {exc.strerror}", hint=hint) from exc
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
    return sslib_key(private.public_key(), "ed25519")


def signer(uri: str, *, pin: Path | None = None, token: str = "") -> Signer:
    """Open the key that a URI names; a PKCS#11 token's PIN is read from the file `pin`.

    `token` is an OIDC token for Sigstore, which else asks the provider of the machine.
    """
    scheme, _, rest = uri.partition(":")
    if scheme == "file" and rest:
        return _of_file(Path(rest.removeprefix("//")))
    if scheme == "sigstore":
        return SigstoreSigner(rest, token)
    if not _REMOTE.fullmatch(uri):
        raise ConfigError(f"--signer {scheme}: no such kind of key", hint=f"write {SCHEMES}")
    from securesystemslib import signer as sslib

    try:
        made: Signer
        if scheme == "awskms":
            _, public = sslib.AWSSigner.import_(rest)
            made = sslib.AWSSigner.from_priv_key_uri(uri, _own(public))
        else:
            slot, _, query = rest.partition("?")
            label = query.removeprefix("label=") or None
            _, public = sslib.HSMSigner.import_(int(slot or 2), label, lambda _: _pin_in(pin))
            made = sslib.HSMSigner.from_priv_key_uri(uri, _own(public), lambda _: _pin_in(pin))
        made.sign(b"a wrong PIN or a right that is missing is seen before hours of work")
    except ConfigError:  # of the file with the PIN
        raise
    except Exception as exc:  # of boto3, a PKCS#11 module: neither has one class of errors
        hint = "check the name of the key, and this machine's right to use it"
        raise TrustError(f"{scheme} key {rest}: {exc}", hint=hint) from exc
    return made


def _own(key: PublicKey) -> PublicKey:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    return sslib_key(load_pem_public_key(key.keyval["public"].encode()), key.scheme)


def _pin_in(pin: Path | None) -> str:
    if pin is None:
        raise ConfigError("the token asks for a PIN", hint="set ROCWHEEL_SIGNER_PIN_FILE")
    return _private(pin, "PIN", "set another").decode().strip()


def _of_file(path: Path) -> Signer:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.signer import CryptoSigner, SSlibKey

    try:
        private = load_pem_private_key(_private(path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as exc:
        hint = "a key is PKCS#8 in PEM without a passphrase, as `trust keygen` writes it"
        raise ConfigError(f"{path}: no private key", hint=hint) from exc
    try:
        public = private.public_key()
        return CryptoSigner(private, sslib_key(public, SSlibKey.from_crypto(public).scheme))
    except ValueError as exc:
        problem = f"{path}: a kind of key that signs nothing here"
        raise ConfigError(problem, hint="use Ed25519") from exc


def _private(path: Path, what: str = "key", replace: str = "make a new key") -> bytes:
    """Read a key or a PIN that its owner alone can read. Raises ConfigError."""
    _check_folder(path)
    option = "ROCWHEEL_SIGNER_PIN_FILE" if what == "PIN" else "--signer"
    with named(path, ConfigError, hint=f"check {option}"):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            mode = stat.S_IMODE(status.st_mode)
            if not stat.S_ISREG(status.st_mode) or mode & 0o077:
                hint = f"chmod 600 {path}, and {replace} if others have seen it"
                raise ConfigError(f"{path}: mode {mode:04o}: others can read the {what}", hint=hint)
            return file.read(1 << 16)


def _check_folder(path: Path) -> None:
    for folder in (*path.absolute().parents, *path.resolve().parents):
        if any((folder / name).exists() for name in _MARKS):
            hint = "keep keys outside of any workspace, such as in ~/.config/rocwheel"
            raise ConfigError(f"{path}: lies in the checkout {folder}", hint=hint)


def public_pem(key: PublicKey) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = key._crypto_key()  # noqa: SLF001 - the library has no public name for it
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
