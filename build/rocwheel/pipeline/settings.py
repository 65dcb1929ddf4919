"""`ci/nightly.yaml`: what a night builds, for whom, and how much it may take.

It names pins, channels, families and suites that are defined elsewhere, and decides nothing of
policy. `pools` may rename runner labels, partitions and generic resources of
`amdgpu_family_matrix.py`, and nothing else of it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

import amdgpu_family_matrix as matrix
from rocwheel import located_yaml
from rocwheel.choices import IMAGE_PROFILES
from rocwheel.located_yaml import Field
from rocwheel.model import PythonVersion, suggest

FILE: Final = "nightly.yaml"
ENGINES: Final = ("docker", "podman")
NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]*\Z")
REGISTRY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(:\d+)?(/[a-z0-9][a-z0-9._-]*)*\Z")
TAG: Final = re.compile(r"(\w|\{(family|python)\})([\w.-]|\{(family|python)\}){0,99}\Z", re.ASCII)
LISTS: Final = ("sets", "families", "pythons", "tags")
NUMBERS: Final = ("shard_minutes", "attempts", "quarantine", "keep_nights", "shown_nights")
EXAMPLE: Final = matrix.RunnerPool("any", partition="any")
ONE: Final = {"labels": "label", "partitions": "partition", "gres": "gres"}  # a runner's field


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A branch of JAX: its commit is looked up once per night."""

    repository: str
    name: str
    pin: str  # the pin whose layout, CPythons and jaxlib it has


@dataclass(frozen=True, kw_only=True)
class Rocm:
    """Where ROCm comes from: a page of tarballs, the newest per family, or one source for all."""

    tarballs: str = ""  # URL of a page or folder that lists tarballs
    source: str = ""
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class SetSettings:
    """One wheel set, or one per family where each family has a tarball of its own."""

    name: str
    jax: str | Branch | None  # a pin, a branch, or None for `source_dir`
    source_dir: str
    rocm: Rocm
    families: tuple[str, ...]  # names; () for those of the trigger
    pythons: tuple[str, ...]
    options: tuple[str, ...]  # further options of dist_wheels
    image: str  # to build in; "" builds on the host
    executor: str = "docker"  # the engine that runs it


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one kind of cell takes and how long it is given."""

    cpus: int = 1
    memory_mib: int = 1024
    disk_mib: int = 1024
    hours: int = 1


IMAGE_COST: Final = Cost(cpus=8, memory_mib=32 << 10, disk_mib=120 << 10, hours=3)


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """Runtime images of released sets: of which recipe, and where they are pushed."""

    name: str  # cells carry it
    recipe: str  # of ci/images.yaml
    push: str  # a registry: host, or host/organisation
    sets: tuple[str, ...] = ()  # names; () for all
    families: tuple[str, ...] = ()  # names; () for those of a set
    pythons: tuple[str, ...] = ()  # () for those of a set that the base has
    base: str = ""  # of ci/images.yaml; "" for the recipe's first
    profile: str = IMAGE_PROFILES[0]
    executor: str = "docker"
    tags: tuple[str, ...] = ()  # that move; {family} and {python} are filled in

    def wants(self, wheels: str, family: str) -> bool:
        """Whether images are made of a wheel set of that recipe, for that family."""
        own = not self.sets or wheels in {
            name for item in self.sets for name in (item, f"{item}-{family}")
        }
        return own and family in (self.families or (family,))


@dataclass(frozen=True, kw_only=True)
class Notify:
    """Who is told when a night differs from the one before."""

    url: str = ""
    secret: str = ""  # name of the environment variable with the key for signing
    file: str = ""
    deadline: int = 60  # seconds


@dataclass(frozen=True, kw_only=True)
class NightSettings:
    """Everything that `ci/nightly.yaml` says: sets, costs, attempts, what is kept and shown."""

    trigger: matrix.Trigger
    sets: tuple[SetSettings, ...]
    build: Cost
    gate: Cost
    image: Cost = IMAGE_COST
    images: tuple[ImageSettings, ...] = ()
    shard_minutes: int = 30
    attempts: int = 2
    quarantine: int = 3
    keep_nights: int = 60
    shown_nights: int = 30
    notify: Notify = Notify()
    pools: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def built_in(self, executor: str, image: str) -> NightSettings:
        """The same with sets that name no image built in this one; "" changes nothing."""
        if not image:
            return self
        sets = (
            item if item.image else dataclasses.replace(item, executor=executor, image=image)
            for item in self.sets
        )
        return dataclasses.replace(self, sets=tuple(sets))


def load(path: Path, pools: Path | None = None) -> NightSettings:
    """Read the settings of a night. Raises ConfigError with file, line and key."""
    fields = located_yaml.load(path).record(
        required=("sets",),
        optional=(
            "trigger", "build", "gate", "image", "images", "notify", *NUMBERS,
        ),
    )  # fmt: skip

    sets = tuple(_set(item) for item in fields["sets"].sequence())
    names = [item.name for item in sets]
    _refuse_twice(fields["sets"], names, "every set has a name of its own")
    trigger = (
        fields["trigger"].choice([t.value for t in matrix.Trigger])
        if "trigger" in fields
        else "nightly"
    )
    return NightSettings(
        trigger=matrix.Trigger(trigger),
        sets=sets,
        build=_cost(
            fields.get("build"), Cost(cpus=32, memory_mib=64 << 10, disk_mib=150 << 10, hours=6)
        ),
        gate=_cost(
            fields.get("gate"), Cost(cpus=8, memory_mib=32 << 10, disk_mib=40 << 10, hours=5)
        ),
        image=_cost(fields.get("image"), IMAGE_COST),
        images=_images(fields.get("images"), names),
        **{name: _whole(fields[name], least=1) for name in NUMBERS if name in fields},
        notify=_notify(fields.get("notify"), path.parent),
        pools=_pools(pools) if pools else {},
    )


def _set(entry: Field) -> SetSettings:
    fields = entry.record(
        required=("name", "rocm"),
        optional=("jax", "source_dir", "families", "pythons", "options", "image", "executor"),
    )
    if ("jax" in fields) == ("source_dir" in fields):
        entry.fail("has not exactly one of jax and source_dir", hint="name a pin: jax: default")
    name = _name(fields["name"])
    if "executor" in fields and "image" not in fields:
        fields["executor"].fail("belongs to image", hint="name the image to build in")

    def several(key: str) -> tuple[str, ...]:
        return fields[key].strings() if key in fields else ()

    for python in several("pythons"):
        PythonVersion.parse(python)
    jax: str | Branch | None = None
    if "jax" in fields:
        scalar = isinstance(fields["jax"].node, yaml.ScalarNode)
        jax = fields["jax"].string() if scalar else _branch(fields["jax"])
    return SetSettings(
        name=name,
        jax=jax,
        source_dir=fields["source_dir"].string() if "source_dir" in fields else "",
        rocm=_rocm(fields["rocm"]),
        families=several("families"),
        pythons=several("pythons"),
        options=several("options"),
        image=fields["image"].string() if "image" in fields else "",
        executor=fields["executor"].choice(ENGINES) if "executor" in fields else "docker",
    )


def _name(entry: Field) -> str:
    name = entry.string()
    if not NAME.match(name):
        entry.fail(f"{name!r} is not a name", hint="write for example jax-0.9.1")
    return name


def _refuse_twice(entries: Field, names: Sequence[str], hint: str) -> None:
    for name, entry in zip(names, entries.sequence(), strict=True):
        if names.count(name) > 1:
            entry.fail(f"{name!r} is there twice", hint=hint)


def _images(entries: Field | None, sets: Sequence[str]) -> tuple[ImageSettings, ...]:
    if entries is None:
        return ()
    found = tuple(_image(item, sets) for item in entries.sequence())
    _refuse_twice(entries, [item.name for item in found], "give one of them a `name`")
    return found


def _image(entry: Field, sets: Sequence[str]) -> ImageSettings:
    fields = entry.record(
        required=("recipe", "push"),
        optional=(*LISTS, "name", "base", "profile", "executor"),
    )
    lists = {name: fields[name].strings() for name in LISTS if name in fields}
    for name in lists.get("sets", ()):
        if name not in sets:
            fields["sets"].fail(f"{name!r}: no such set", hint=suggest(name, tuple(sets)))
    for python in lists.get("pythons", ()):
        PythonVersion.parse(python)
    for tag in lists.get("tags", ()):
        if not TAG.match(tag):
            fields["tags"].fail(
                f"{tag!r} is not a tag", hint="write for example nightly-{family}-py{python}"
            )
    push = fields["push"].string()
    if not REGISTRY.match(push):
        fields["push"].fail(
            f"{push!r} is not a registry", hint="write a host, or host/organisation: ghcr.io/rocm"
        )
    return ImageSettings(
        name=_name(fields.get("name", fields["recipe"])),
        recipe=fields["recipe"].string(),
        push=push,
        base=fields["base"].string() if "base" in fields else "",
        profile=fields["profile"].choice(IMAGE_PROFILES)
        if "profile" in fields
        else IMAGE_PROFILES[0],
        executor=fields["executor"].choice(ENGINES) if "executor" in fields else "docker",
        **lists,
    )


def _whole(entry: Field, least: int = 0) -> int:
    value = entry.integer()
    if value < least:
        entry.fail(f"{value} is less than {least}", hint="write a larger number")
    return value


def _branch(entry: Field) -> Branch:
    fields = entry.record(required=("repository", "branch", "pin"))
    return Branch(
        repository=fields["repository"].string(),
        name=fields["branch"].string(),
        pin=fields["pin"].string(),
    )


def _rocm(entry: Field) -> Rocm:
    fields = entry.record(required=(), optional=("tarballs", "source", "sha256"))
    if ("tarballs" in fields) == ("source" in fields):
        entry.fail("has not exactly one of tarballs and source", hint="name a page, or one source")
    if "sha256" in fields and "tarballs" in fields:
        fields["sha256"].fail("belongs to source", hint="tarballs of a page have their own digests")
    return Rocm(**{name: item.string() for name, item in fields.items()})


def _cost(entry: Field | None, default: Cost) -> Cost:
    if entry is None:
        return default
    fields = entry.record(required=(), optional=("cpus", "memory_mib", "disk_mib", "hours"))
    return dataclasses.replace(default, **{n: _whole(f) for n, f in fields.items()})


def _notify(entry: Field | None, folder: Path) -> Notify:
    if entry is None:
        return Notify()
    fields = entry.record(required=(), optional=("url", "secret", "file", "deadline"))
    number = fields.pop("deadline", None)
    found = Notify(
        **{name: item.string() for name, item in fields.items()},
        deadline=_whole(number, least=1) if number else Notify.deadline,
    )
    if found.url and not found.url.startswith(("https://", "http://127.0.0.1", "http://localhost")):
        fields["url"].fail(f"{found.url!r} is not https", hint="what is sent is signed, not secret")
    # not relative to where it is written from: a cell runs in a folder that goes with it
    file = str(folder.absolute() / found.file) if found.file else ""
    return dataclasses.replace(found, file=file)


def _pools(path: Path) -> dict[str, dict[str, str]]:
    """Read the overlay. Raises ConfigError for anything but names the matrix has."""
    fields = located_yaml.load(path).record(required=(), optional=("labels", "partitions", "gres"))
    runners = [runner for family in matrix.FAMILIES.values() for runner in family.runners]
    known = {
        "labels": {runner.label for runner in runners},
        "partitions": {runner.partition for runner in runners if runner.partition},
        "gres": {runner.gres for runner in runners},
    }
    found: dict[str, dict[str, str]] = {}
    for kind, entry in fields.items():
        found[kind] = {}
        for old, new in entry.mapping().items():
            if old not in known[kind]:
                new.fail(
                    f"{old!r}: the matrix has no such name",
                    hint=suggest(old, tuple(sorted(known[kind]))),
                )
            found[kind][old] = new.string()
            try:
                _rename(EXAMPLE, {kind: {getattr(EXAMPLE, ONE[kind]): found[kind][old]}})
            except ValueError as exc:
                new.fail(str(exc), hint="write a name GitHub or Slurm accepts")
    return found


def _rename(runner: matrix.RunnerPool, pools: Mapping[str, Mapping[str, str]]) -> matrix.RunnerPool:
    return dataclasses.replace(
        runner,
        label=pools.get("labels", {}).get(runner.label, runner.label),
        partition=pools.get("partitions", {}).get(runner.partition, runner.partition),
        gres=pools.get("gres", {}).get(runner.gres, runner.gres),
    )


def overlaid(runner: matrix.RunnerPool, settings: NightSettings) -> matrix.RunnerPool:
    """The runner under the names this place has for it."""
    return _rename(runner, settings.pools)
