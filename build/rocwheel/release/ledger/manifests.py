"""Manifests in a store, written once and read by their digest, and the wheels they name."""

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rocwheel.base import files
from rocwheel.base.errors import ConfigError, ObjectMissingError
from rocwheel.base.parallel import each
from rocwheel.base.store import fetch, glance, replaced
from rocwheel.records.manifest import Manifest
from rocwheel.records.places import BUNDLE, Place
from rocwheel.release.ledger import log
from rocwheel.release.ledger.log import small
from rocwheel.release.ledger.state import Known

THREADS: Final = 4  # wheels that are downloaded at once


def find(place: Place, sha256: str) -> Manifest | None:
    """Read the manifest with this SHA-256. Raises ObjectDiffersError for other bytes."""
    key = place.manifest(sha256)
    try:
        data = small(place, key, sha256=sha256)
    except ObjectMissingError:
        return None
    return Manifest.from_bytes(data, name=place.store.locate(key))


def released(release: Place, *, jax: str) -> tuple[Place, Manifest]:
    """Return the set that was released last, one of this JAX if there is any, and where it lies."""
    listed = log.read(release).of(release.family).listed
    known = max(listed, key=lambda known: (known.jax == jax, known.first), default=None)
    if known is None:
        raise ConfigError("nothing is released")
    place = release.at(known.home)
    if manifest := find(place, known.id):
        return place, manifest
    raise ConfigError(f"{place.store.locate(place.manifest(known.id))}: missing")


def bundle(place: Place, known: Known) -> bytes:
    """Read the signed statements about a set that the log names, as a family sees it.

    Of a promotion by 0.2 these are the public copy, to which later commands added theirs. None
    that the log does not name prove anything: then there are no bytes. Raises StoreError.
    """
    sha256, place = known.bundles.get(place.family, ""), place.at(known.home)
    for key in (place.bundle(sha256), place.attestation(known.id, BUNDLE)) if sha256 else ():
        data, _ = glance(place.store, key)
        if begins(data, sha256):
            return data
    return b""


def begins(data: bytes, sha256: str) -> bool:
    part = hashlib.sha256()
    for line in data.splitlines(keepends=True):
        part.update(line)
        if part.hexdigest() == sha256:
            return True
    return False


def bring(place: Place, wheels: Mapping[str, str], folder: Path) -> dict[Path, str]:
    """Download wheels (file name -> SHA-256) with the store's credentials; return path -> SHA-256.

    What is in the folder already is hashed and used again. Raises StoreError, and
    ObjectDiffersError where the stored bytes have another digest.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def one(name: str) -> Path:
        path, key = folder / name, place.wheel(name, wheels[name])
        if not (path.is_file() and files.sha256(path) == wheels[name]):
            part = path.with_name(f".unfinished-{secrets.token_hex(6)}-{name}")
            try:
                with part.open("wb") as file:
                    stored = fetch(place.store, key, file).sha256
                if stored != wheels[name]:
                    raise replaced(place.store.locate(key), stored, wheels[name])
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
        return path

    return dict(zip(each(one, wheels, threads=THREADS), wheels.values(), strict=True))
