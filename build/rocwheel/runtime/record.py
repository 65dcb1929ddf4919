"""What the store remembers of runtime images: a record each, verdicts, and moves of tags.

All is written once below `_rocwheel/images/` of the release prefix, under the digest of the image's
configuration: a record for each reference it was pushed to, its SBOM, verdicts under their own
digests; and beside them moves of a tag, under numbers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Final, Literal

from msgspec import Meta

from rocwheel import files
from rocwheel.errors import ObjectDiffersError, StoreError
from rocwheel.ledger.log import small
from rocwheel.places import OURS, Place
from rocwheel.values import Count, NonEmpty, Sha256, Sha256OrNone, Value
from rocwheel.verdict import Counts, State

SCHEMA: Final = 1
Digest = Annotated[str, Meta(pattern=r"\Asha256:[0-9a-f]{64}\Z")]


class ImageVerdict(Value, frozen=True, kw_only=True):
    """What a suite said of one image. It says nothing of the wheels elsewhere."""

    image: Digest  # of the configuration
    manifest: Sha256
    python: NonEmpty
    family: NonEmpty
    suite: NonEmpty
    state: State
    reason: str
    first_failure: str = ""
    counts: Counts
    backend: str
    devices: tuple[str, ...]
    host: str
    ended: str
    tool: str
    kind: Literal["image"] = "image"
    schema: Literal[1] = SCHEMA


class ImageRecord(Value, frozen=True, kw_only=True):
    """A runtime image that was pushed."""

    reference: NonEmpty  # repository:tag
    digest: Digest  # of the registry's manifest: what a pull by digest names
    config: Digest
    inputs: Sha256
    manifest: Sha256
    released: bool
    recipe: NonEmpty
    profile: NonEmpty
    python: NonEmpty
    base: NonEmpty  # reference, with the digest that was used
    base_config: Digest
    rocm: NonEmpty  # version
    rocm_sha256: Sha256OrNone
    layers: Mapping[str, Count]  # base, rocm, cpython, wheels -> bytes, unpacked
    blobs: tuple[tuple[Digest, Count], ...]  # of the registry: digest, compressed bytes
    packages: Mapping[str, str]  # wheel -> SHA-256
    sbom: Sha256
    verdicts: tuple[Sha256, ...]
    time: str
    by: str
    tool: str
    schema: Literal[1] = SCHEMA

    @property
    def repository(self) -> str:
        return self.reference.rpartition(":")[0]

    @property
    def pinned(self) -> str:
        """Reference and digest: what was pushed under that name, and nothing that came later."""
        return f"{self.reference}@{self.digest}"

    @property
    def base_name(self) -> str:
        """The base without its digest, which each of its releases has anew."""
        return self.base.partition("@")[0]

    @property
    def size(self) -> int:
        """Bytes, unpacked."""
        return sum(self.layers.values())


class TagMove(Value, frozen=True, kw_only=True):
    """A moving tag was pointed at an image, or away from one."""

    repository: NonEmpty
    tag: NonEmpty
    number: Count
    config: Digest
    digest: Digest
    by: str
    reason: str
    time: str
    schema: Literal[1] = SCHEMA


def _root(place: Place) -> str:
    return place.key(f"{OURS}/images/")


def _folder(place: Place, config: str) -> str:
    return f"{_root(place)}{config.removeprefix('sha256:')}/"


def sbom_key(place: Place, config: str) -> str:
    return f"{_folder(place, config)}sbom.json"


def put(place: Place, record: ImageRecord, sbom: bytes) -> None:
    """Store a record and its SBOM, once. Raises ObjectDiffersError when others are there."""
    place.store.create(sbom_key(place, record.config), sbom, headers=place.record_headers)
    key = f"{_folder(place, record.config)}{_plain(record.reference)}/record.json"
    place.store.create(key, record.to_bytes(), headers=place.record_headers)


def records(place: Place, references: Collection[str] | None = None) -> tuple[ImageRecord, ...]:
    """All records, the oldest first; with `references`, those of these alone, others unread."""
    names = None if references is None else {_plain(name) for name in references}
    found = []
    for item in place.store.keys(_root(place)):
        folder, _, file = item.key.rpartition("/")
        if file != "record.json" or not (names is None or folder.rpartition("/")[2] in names):
            continue
        data = place.store.read(item.key)[0]
        found.append(ImageRecord.from_bytes(data, name=place.store.locate(item.key)))
    if references is not None:
        found = [item for item in found if item.reference in references]
    return tuple(sorted(found, key=lambda item: (item.time, item.reference)))


def add_verdict(place: Place, verdict: ImageVerdict) -> str:
    """Store a verdict under its own digest; return that."""
    data = verdict.to_bytes()
    sha256 = files.sha256(data)
    key = f"{_folder(place, verdict.image)}verdicts/{verdict.suite}/{sha256}.json"
    place.store.create(key, data, headers=place.record_headers)
    return sha256


def verdicts(place: Place, config: str) -> Mapping[str, ImageVerdict]:
    """All verdicts on an image, by digest. Raises ObjectDiffersError for one that was changed."""
    found = {}
    for item in place.store.keys(f"{_folder(place, config)}verdicts/"):
        sha256 = item.key.rpartition("/")[2].removesuffix(".json")
        data = small(place, item.key, sha256=sha256)
        verdict = ImageVerdict.from_bytes(data, name=place.store.locate(item.key))
        if verdict.image == config:
            found[sha256] = verdict
    return found


def refusals(found: Mapping[str, ImageVerdict], suites: tuple[str, ...]) -> Iterator[str]:
    """Yield why an image must not be pushed: of each suite, a pass and no failure."""
    for suite in suites:
        states = [item.state for item in found.values() if item.suite == suite]
        bad = [state.value for state in states if state is not State.PASS]
        if bad:
            yield f"{suite}: {', '.join(dict.fromkeys(bad))}"
        elif not states:
            yield f"{suite}: never ran in this image"


def _moves_key(place: Place, repository: str, tag: str) -> str:
    return f"{_root(place)}tags/{_plain(repository)}/{tag}/"


def _plain(name: str) -> str:
    """Return a repository or reference as one part of a key."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def moves(place: Place, repository: str, tag: str) -> tuple[TagMove, ...]:
    """Return where a moving tag has pointed, the first move first."""
    return tuple(_latest_first(place, repository, tag))[::-1]


def came(place: Place, record: ImageRecord, tag: str) -> bool:
    """Return whether a moving tag pointed at an image once, wherever it does now."""
    past = _latest_first(place, record.repository, tag)
    return any(item.config == record.config for item in past)


def _latest_first(place: Place, repository: str, tag: str) -> Iterator[TagMove]:
    """Yield the moves of a tag, each read when it is asked for."""
    keys = sorted(item.key for item in place.store.keys(_moves_key(place, repository, tag)))
    for key in reversed(keys):
        yield TagMove.from_bytes(place.store.read(key)[0], name=place.store.locate(key))


def moved_tags(place: Place) -> tuple[TagMove, ...]:
    """Return where every moving tag points now."""
    last: dict[tuple[str, str], TagMove] = {}
    for item in place.store.keys(f"{_root(place)}tags/"):
        move = TagMove.from_bytes(place.store.read(item.key)[0], name=place.store.locate(item.key))
        key = (move.repository, move.tag)
        if key not in last or last[key].number < move.number:
            last[key] = move
    return tuple(last[key] for key in sorted(last))


def add_move(place: Place, move: TagMove) -> None:
    """Note a move. Raises StoreError when another process moved the tag meanwhile."""
    key = f"{_moves_key(place, move.repository, move.tag)}{move.number:06}.json"
    try:
        place.store.create(key, move.to_bytes(), headers=place.record_headers)
    except ObjectDiffersError as exc:
        raise StoreError(
            f"{move.repository}:{move.tag}: somebody else moved it at the same time",
            hint="run the command again",
        ) from exc
