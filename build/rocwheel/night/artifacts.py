"""What a build leaves for the cells after it: the wheelhouse in the store, named by its inputs.

`_rocwheel/builds/<inputs>/` holds the wheels and, written last, their manifest: where that is, the
same inputs were built, and no night builds them again.
"""

from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from rocwheel.base.errors import ObjectDiffersError, WheelError
from rocwheel.base.parallel import each
from rocwheel.base.store import JSON, WHEEL, Headers, Store, fetch, glance
from rocwheel.records.build_record import BUILD_RECORD
from rocwheel.records.manifest import MANIFEST, Manifest
from rocwheel.records.places import OURS
from rocwheel.release.trust.evidence import PROVENANCE

ROOT: Final = f"{OURS}/builds/"


def key(inputs: str, name: str = "") -> str:
    """Return where in the store a file of the build with these inputs lies."""
    return f"{ROOT}{inputs}/{name}"


def find(store: Store, inputs: str) -> Manifest | None:
    """Return the manifest of what was built from these inputs. Raises ConfigError, StoreError."""
    name = key(inputs, MANIFEST)
    data, info = glance(store, name)
    return Manifest.from_bytes(data, name=store.locate(name)) if info else None


def keep(store: Store, inputs: str, wheelhouse: Path) -> str:
    """Store a wheelhouse, its manifest last; return the SHA-256 of the one that is kept.

    Who built the same inputs first keeps the name: another build of them is not stored.
    """
    if there := find(store, inputs):
        return there.sha256
    manifest = Manifest.load(wheelhouse)

    def put(name: str) -> None:
        kind = WHEEL if name.endswith(".whl") else JSON
        # below the set's own digest: two builds of one set of inputs may differ, and never mix
        target = key(inputs, f"{manifest.sha256}/{name}")
        store.create(target, wheelhouse / name, headers=Headers(content_type=kind))

    stated = [PROVENANCE] if (wheelhouse / PROVENANCE).exists() else []
    each(put, [*(wheel.filename for wheel in manifest.built), BUILD_RECORD, *stated], threads=4)
    with suppress(ObjectDiffersError):
        store.create(key(inputs, MANIFEST), manifest.to_bytes(), headers=Headers(content_type=JSON))
    return (find(store, inputs) or manifest).sha256


def bring(store: Store, inputs: str, folder: Path) -> Path:
    """Bring a kept wheelhouse here and prove it. Raises WheelError, StoreError."""
    manifest = find(store, inputs)
    if manifest is None:
        raise WheelError(
            f"{store.locate(key(inputs, MANIFEST))}: nothing was built from these inputs",
            hint="run the build cell of this set first",
        )
    folder.mkdir(parents=True, exist_ok=True)

    def get(name: str) -> str:
        with (folder / name).open("wb") as file:
            return fetch(store, key(inputs, f"{manifest.sha256}/{name}"), file).sha256

    came = each(get, [*(wheel.filename for wheel in manifest.built), BUILD_RECORD], threads=4)
    if store.info(key(inputs, f"{manifest.sha256}/{PROVENANCE}")):
        get(PROVENANCE)
    for wheel, digest in zip(manifest.built, came, strict=False):
        if digest != wheel.sha256:
            raise WheelError(
                f"{wheel.filename}: SHA-256 is {digest}, the manifest says {wheel.sha256}",
                hint="the object was changed in the store: build again under a new version",
            )
    (folder / MANIFEST).write_bytes(manifest.to_bytes())
    return folder


def forget(store: Store, before: datetime) -> int:
    """Delete builds whose manifest is older; the manifest first, so that none is half there."""
    objects = list(store.keys(ROOT))
    old = {
        info.key.split("/")[2]
        for info in objects
        if info.key.endswith(f"/{MANIFEST}") and info.key.count("/") == 3 and info.modified < before  # noqa: PLR2004
    }
    doomed = [info.key for info in objects if info.key.split("/")[2] in old]
    doomed.sort(key=lambda name: not name.endswith(f"/{MANIFEST}"))
    for name in doomed:
        store.delete(name)
    return len(doomed)
