"""Records of runtime images in the store, and the images that a night wants.

All is written once below `_rocwheel/images/` of the release prefix, under the digest of the image's
configuration: a record for each reference it was pushed to, and verdicts under their own digests.
An image is there when its record is, which is written last: no registry has to answer for a plan.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, to_builtins

import amdgpu_family_matrix as matrix
from rocwheel.base import files
from rocwheel.base.values import Count, NonEmpty, Plain, Sha256, Sha256OrNone, Value
from rocwheel.base.versions import PythonVersion
from rocwheel.image import recipe as image_recipe
from rocwheel.image.recipe import ImagedSet, RuntimeBase, RuntimeRecipe
from rocwheel.night.settings import ImageSettings, NightSettings
from rocwheel.records.places import Place
from rocwheel.records.verdict import State, Verdict
from rocwheel.release.ledger import log
from rocwheel.release.ledger.nights import WheelRecipe

Digest = Annotated[str, Meta(pattern=r"\Asha256:[0-9a-f]{64}\Z")]


class ImageVerdict(Value, frozen=True, kw_only=True):
    """A suite's verdict on one image. It says nothing about the wheels outside of it."""

    image: Digest  # of the configuration
    verdict: Verdict
    kind: Literal["image"] = "image"
    schema: Literal[2, 3] = 3


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
    layers: Mapping[str, Count]  # bytes, unpacked: of all; by layer in older records
    blobs: tuple[tuple[Digest, Count], ...]  # of the registry: digest, compressed bytes
    packages: Mapping[str, str]  # wheel -> SHA-256
    verdicts: tuple[Sha256, ...]
    time: str
    by: str
    tool: str
    schema: Literal[1] = 1

    @property
    def repository(self) -> str:
        return self.reference.rpartition(":")[0]

    @property
    def pinned(self) -> str:
        """Reference and digest: what was pushed under that name, not what came later."""
        return f"{self.reference}@{self.digest}"

    @property
    def size(self) -> int:
        """Bytes, unpacked."""
        return sum(self.layers.values())


def _folder(place: Place, config: str) -> str:
    return place.images(f"{config.removeprefix('sha256:')}/")


def put(place: Place, record: ImageRecord) -> None:
    """Store a record, once. Raises ObjectDiffersError when another is there."""
    key = f"{_folder(place, record.config)}{_plain(record.reference)}/record.json"
    place.keep(key, record.to_bytes())


def records(place: Place, references: Collection[str] | None = None) -> tuple[ImageRecord, ...]:
    """Return all records, the oldest first; with `references`, read those of these alone."""
    names = None if references is None else {_plain(name) for name in references}
    kept = []
    for item in place.store.keys(place.images()):
        folder, _, file = item.key.rpartition("/")
        if file != "record.json" or not (names is None or folder.rpartition("/")[2] in names):
            continue
        data = place.store.read(item.key)[0]
        kept.append(ImageRecord.from_bytes(data, name=place.store.locate(item.key)))
    if references is not None:
        kept = [item for item in kept if item.reference in references]
    return tuple(sorted(kept, key=lambda item: (item.time, item.reference)))


def listed(place: Place) -> list[dict[str, Any]]:
    """Return what `--json` shows of the recorded images of a place, the newest last."""
    sets = log.read(place).of(place.family).sets
    return [
        to_builtins(item)
        | {
            "pull": f"{item.repository}@{item.digest}",
            "size": item.size,
            "download": sum(amount for _, amount in item.blobs),
            "state": sets[item.manifest].standing.value if item.manifest in sets else "",
        }
        for item in records(place)
    ]


def add_verdict(place: Place, verdict: ImageVerdict) -> str:
    """Store a verdict under its own digest; return that."""
    data = verdict.to_bytes()
    sha256 = files.sha256(data)
    key = f"{_folder(place, verdict.image)}verdicts/{verdict.verdict.suite}/{sha256}.json"
    place.keep(key, data)
    return sha256


def verdicts(place: Place, config: str) -> Mapping[str, ImageVerdict]:
    """Return all verdicts on an image, by digest. Raises ObjectDiffersError for a changed one."""
    by_digest = {}
    for item in place.store.keys(f"{_folder(place, config)}verdicts/"):
        sha256 = item.key.rpartition("/")[2].removesuffix(".json")
        data = log.small(place, item.key, sha256=sha256)
        verdict = ImageVerdict.from_bytes(data, name=place.store.locate(item.key))
        if verdict.image == config:
            by_digest[sha256] = verdict
    return by_digest


def refusals(verdicts: Mapping[str, ImageVerdict], suites: tuple[str, ...]) -> Iterator[str]:
    """Yield why an image must not be pushed: of each suite, a pass and no failure."""
    for suite in suites:
        about = (item.verdict for item in verdicts.values())
        states = [verdict.state for verdict in about if verdict.suite == suite]
        bad = [state.value for state in states if state is not State.PASS]
        if bad:
            yield f"{suite}: {', '.join(dict.fromkeys(bad))}"
        elif not states:
            yield f"{suite}: never ran in this image"


def _plain(name: str) -> str:
    """Return a repository or reference as one part of a key."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


class NightImage(Plain, frozen=True, kw_only=True):
    """An entry of `images` in the settings of a night, with its recipe and its base."""

    settings: ImageSettings
    recipe: RuntimeRecipe
    base: RuntimeBase

    @property
    def repository(self) -> str:
        return f"{self.settings.push}/{self.recipe.repository}"

    def reference(self, wheels: ImagedSet, python: str) -> str:
        """Return where the image of a set is pushed: registry, repository and tag."""
        version, profile = PythonVersion.parse(python), self.settings.profile
        return f"{self.repository}:{self.recipe.tag_of(wheels, version, self.base, profile)}"

    def lacks(self, wheels: WheelRecipe, python: str) -> str:
        """Return why there cannot be an image of that set with this CPython; "" if there can."""
        if python not in wheels.pythons:
            return f"{wheels.name} has no CPython {python}"
        return "" if python in self.base.pythons else f"{self.base.name} has no CPython {python}"


def of_night(
    settings: NightSettings, ci: Path, families: Mapping[str, matrix.Family]
) -> tuple[NightImage, ...]:
    """Return every entry with its recipe. Raises ConfigError for an unknown name."""
    settings.check_families(families)
    made = []
    for entry in settings.images:
        recipe = image_recipe.runtime(ci, entry.recipe)
        base = recipe.base(entry.base)
        for python in entry.pythons:
            base.python(python)
        made.append(NightImage(settings=entry, recipe=recipe, base=base))
    return tuple(made)


def wanted(
    images: Iterable[NightImage], wheels: WheelRecipe, family: str
) -> Iterator[tuple[NightImage, str]]:
    """Yield the images that are wanted of one set for one family, each with its CPython."""
    for image in images:
        if image.settings.wants(wheels.name, family):
            for python in map(str, image.settings.pythons or wheels.pythons):
                yield image, python


def recorded(
    place: Place, wheels: ImagedSet, asked: Iterable[tuple[NightImage, str]]
) -> Mapping[tuple[str, str], str]:
    """Return those of these images that were made of this very set: name, CPython -> reference.

    A record is written after the moving tags were pointed at its image.
    """
    names = {image.reference(wheels, python): (image, python) for image, python in asked}
    return {
        (names[item.reference][0].settings.label, names[item.reference][1]): item.pinned
        for item in (records(place, names) if names else ())
        if item.manifest == wheels.set_id
    }
