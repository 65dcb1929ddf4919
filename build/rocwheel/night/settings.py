"""Reads `ci/nightly.yaml`: what a night builds, for which families, and how much it may take.

It names pins, channels, families and suites that are defined elsewhere, and decides no policy.
`pools` may rename runner labels, partitions and generic resources of `amdgpu_family_matrix.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

import amdgpu_family_matrix as matrix
from rocwheel.base import yaml_file
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import NonEmpty, Value, matching, replace
from rocwheel.base.versions import suggest
from rocwheel.base.yaml_file import CPythons, FieldError
from rocwheel.records import families

FILE: Final = "nightly.yaml"
EXAMPLE: Final = matrix.RunnerPool("any", partition="any")
ONE: Final = {"labels": "label", "partitions": "partition", "gres": "gres"}  # a runner's field
Name = Annotated[
    str, matching(r"\A[a-z0-9][a-z0-9._-]*\Z", "a name", "write for example jax-0.9.1")
]
Registry = Annotated[
    str,
    matching(
        r"\A[A-Za-z0-9][A-Za-z0-9.-]*(:\d+)?(/[a-z0-9][a-z0-9._-]*)*\Z",
        "a registry",
        "write a host, or host/organisation: ghcr.io/rocm",
    ),
]
Tag = Annotated[
    str,
    matching(
        r"\A([A-Za-z0-9_]|\{(family|python)\})([A-Za-z0-9_.-]|\{(family|python)\}){0,99}\Z",
        "a tag",
        "write for example nightly-{family}-py{python}",
    ),
]
Engine = Literal["docker", "podman"]
Some = Annotated[int, Meta(ge=1, le=100_000)]


class Branch(Value, frozen=True, kw_only=True):
    """A branch of JAX: its commit is looked up once per night."""

    repository: str
    name: str = msgspec.field(name="branch")
    pin: str  # the pin whose layout, CPythons and jaxlib it has
    quiet_days: Some = 60  # its newest commit may be so old


class Rocm(Value, frozen=True, kw_only=True):
    """Where ROCm comes from: a page of tarballs, the newest per family, or one source for all."""

    tarballs: str = ""  # a stream, the URL of a page or a folder that lists tarballs
    quiet_days: Some | None = None  # the newest build may be so old; None: as the stream says
    source: str = ""
    sha256: str = ""
    version: str = ""  # of a source whose name has none

    def __post_init__(self) -> None:
        if bool(self.tarballs) == bool(self.source):
            raise FieldError(
                "must have exactly one of tarballs and source", hint="name a page, or one source"
            )
        for key in ("sha256", "version"):
            if getattr(self, key) and self.tarballs:
                raise FieldError("belongs to source", key, hint="tarballs of a page have their own")


class SetSettings(Value, frozen=True, kw_only=True):
    """One wheel set, or one per family where each family has a tarball of its own."""

    name: Name
    jax: str | Branch | None = None  # a pin, a branch, or None for `source_dir`
    source_dir: str = ""
    rocm: Rocm
    families: tuple[str, ...] = ()  # names; () for those of the trigger
    pythons: CPythons = CPythons()
    options: tuple[str, ...] = ()  # further options of dist_wheels
    image: str = ""  # to build in; "" builds on the host
    executor: Engine | None = None  # the engine that runs it

    def __post_init__(self) -> None:
        if bool(self.jax) == bool(self.source_dir):
            raise FieldError(
                "must have exactly one of jax and source_dir", hint="name a pin: jax: default"
            )
        if self.executor and not self.image:
            hint = "name the image to build in"
            raise FieldError("belongs to image", "executor", hint=hint)
        yaml_file.each_once(self.families, "families")


class Cost(Value, frozen=True, kw_only=True):
    """The resources of one kind of cell, and its time limit."""

    cpus: Some = 8
    memory_mib: Some = 32 << 10
    disk_mib: Annotated[int, Meta(ge=0)] = 40 << 10
    hours: Some = 5


class BuildCost(Cost, frozen=True, kw_only=True):
    """The resources of a build, and the label of its runners on GitHub."""

    cpus: Some = 32
    memory_mib: Some = 64 << 10
    disk_mib: Annotated[int, Meta(ge=0)] = 150 << 10
    label: str = ""


class ImageCost(Cost, frozen=True, kw_only=True):
    """The resources of making and testing a runtime image."""

    disk_mib: Annotated[int, Meta(ge=0)] = 120 << 10
    hours: Some = 3


class ImageSettings(Value, frozen=True, kw_only=True):
    """Runtime images of released sets: of which recipe, and where they are pushed."""

    name: Name = ""  # cells carry it; "" for the recipe
    recipe: str  # of ci/images.yaml
    push: Registry  # host, or host/organisation
    sets: tuple[str, ...] = ()  # names; () for all
    families: tuple[str, ...] = ()  # names; () for those of a set
    pythons: CPythons = CPythons()  # () for those of a set that the base has
    base: str = ""  # of ci/images.yaml; "" for the recipe's first
    profile: Literal["runtime", "devel"] = "runtime"
    executor: Engine = "docker"
    tags: tuple[Tag, ...] = ()  # that move; {family} and {python} are filled in

    @property
    def label(self) -> str:
        """The name of its cells."""
        return self.name or self.recipe

    def wants(self, wheels: str, family: str) -> bool:
        """Return whether images are made of a wheel set of that recipe, for that family."""
        own = not self.sets or any(wheels in {item, f"{item}-{family}"} for item in self.sets)
        return own and family in (self.families or (family,))


class Excuse(Value, frozen=True, kw_only=True):
    """Permission for cells to be absent, or without a runner, until a day."""

    cells: NonEmpty  # a pattern of names: "*.gfx90c.*"
    owner: NonEmpty
    reason: NonEmpty
    until: date


class NightSettings(Value, frozen=True, kw_only=True):
    """Everything that `ci/nightly.yaml` says: sets, costs, attempts, what is kept and shown."""

    trigger: matrix.Trigger = matrix.Trigger.NIGHTLY
    quiet_days: Some = 7  # the newest build of a page may be so old, where nothing else says it
    sets: tuple[SetSettings, ...]
    build: BuildCost = BuildCost()
    gate: Cost = Cost()
    image: ImageCost = ImageCost()
    images: tuple[ImageSettings, ...] = ()
    shard_minutes: Some = 30
    attempts: Some = 2
    quarantine: Some = 3
    keep_nights: Some = 60
    shown_nights: Some = 30
    excused: tuple[Excuse, ...] = ()

    def __post_init__(self) -> None:
        names = [item.name for item in self.sets]
        labels = [item.label for item in self.images]
        for kind, all_, hint in (
            ("sets", names, "every set has a name of its own"),
            ("images", labels, "give one of them a `name`"),
        ):
            if again := next((n for n, name in enumerate(all_) if name in all_[:n]), 0):
                raise FieldError(f"{all_[again]!r} is there twice", kind, again, hint=hint)
        for number, image in enumerate(self.images):
            for name in image.sets:
                if name not in names:
                    raise FieldError(
                        f"{name!r}: no such set", "images", number, "sets",
                        hint=suggest(name, tuple(names)),
                    )  # fmt: skip

    def check_families(self, known: Mapping[str, matrix.Family]) -> None:
        """Raise ConfigError for an unknown family of a set or an image."""
        wanted = [(item.name, item.families) for item in self.sets]
        wanted += [(f"images: {item.label}", item.families) for item in self.images]
        for label, names in wanted:
            if unknown := next((name for name in names if name not in known), ""):
                hint = f"`trigger: {self.trigger}` leaves it out"
                try:
                    families.named(unknown, known)
                except ConfigError as exc:
                    hint = exc.hint
                raise ConfigError(f"{label}: {unknown!r}: unknown GPU family", hint=hint)

    def excuse(self, cell: str, today: date) -> tuple[str, str]:
        """Return the excuse that holds for a cell, and a note about one that ended."""
        ended = ""
        for item in self.excused:
            if fnmatchcase(cell, item.cells):
                if today <= item.until:
                    return f"(excused by {item.owner} until {item.until}: {item.reason})", ""
                ended = f"(the excuse of {item.owner} ended on {item.until})"
        return "", ended

    def built_in(self, executor: str, image: str) -> NightSettings:
        """Return the same with sets that name no image built in this one; "" changes nothing."""
        if not image:
            return self
        sets = (
            item if item.image else replace(item, executor=executor, image=image)
            for item in self.sets
        )
        return replace(self, sets=tuple(sets))


class Pools(Value, frozen=True, kw_only=True):
    """A place's own names for labels, partitions and generic resources of the matrix."""

    labels: Mapping[str, str] = {}
    partitions: Mapping[str, str] = {}
    gres: Mapping[str, str] = {}

    def of(self, runner: matrix.RunnerPool) -> matrix.RunnerPool:
        """Return a runner under the names this place has for it. Raises ValueError."""
        return replace(
            runner,
            label=self.labels.get(runner.label, runner.label),
            partition=self.partitions.get(runner.partition, runner.partition),
            gres=self.gres.get(runner.gres, runner.gres),
        )


def load(path: Path) -> NightSettings:
    """Read the settings of a night. Raises ConfigError with file, line and key."""
    return yaml_file.read(path, NightSettings)


def load_pools(path: Path | None, settings: NightSettings) -> Pools:
    """Read the names of a place; no file, no other names. Raises ConfigError for unknown ones."""
    if path is None:
        return Pools()
    document = yaml_file.load(path)
    pools = document.to(Pools)
    runners = [runner for family in matrix.FAMILIES.values() for runner in family.runners]
    runners += [matrix.RunnerPool(settings.build.label)] if settings.build.label else []
    for kind, field in ONE.items():
        names = {getattr(runner, field) for runner in runners} - {""}
        for old, new in getattr(pools, kind).items():
            if old not in names:
                hint = suggest(old, tuple(sorted(names)))
                raise document.error(f"{old!r}: the matrix has no such name", kind, old, hint=hint)
            try:
                replace(EXAMPLE, **{field: new})
            except ValueError as exc:
                hint = "write a name GitHub or Slurm accepts"
                raise document.error(str(exc), kind, old, hint=hint) from exc
    return pools
