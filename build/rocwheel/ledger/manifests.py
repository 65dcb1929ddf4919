"""Manifests in a store: written once, read by their digest."""

from __future__ import annotations

from rocwheel.errors import ObjectMissingError
from rocwheel.ledger.log import small
from rocwheel.manifest import Manifest
from rocwheel.model import is_sha256
from rocwheel.places import Place


def put(place: Place, manifest: Manifest) -> None:
    """Store a manifest; the same one again is nothing to do."""
    place.store.create(
        place.manifest(manifest.sha256),
        manifest.to_bytes(),
        headers=place.record_headers,
        sha256=manifest.sha256,
    )


def find(place: Place, sha256: str) -> Manifest | None:
    """The manifest with this SHA-256. Raises ObjectDiffersError where something else is stored."""
    key = place.manifest(sha256)
    try:
        data = small(place, key, sha256=sha256)
    except ObjectMissingError:
        return None
    return Manifest.from_bytes(data, name=place.store.locate(key))


def names(place: Place, prefix: str = "") -> list[str]:
    """SHA-256 of the stored manifests, those that start with `prefix`."""
    start = place.manifest("").removesuffix(".json")
    keys = (item.key for item in place.store.keys(start + prefix))
    found = (key.removeprefix(start).removesuffix(".json") for key in keys)
    return [name for name in found if is_sha256(name)]
