"""Channels: where wheels go, and what a channel asks beyond the GPU family matrix.

`ci/channels.yaml` as values. Whatever a channel says about suites may only tighten the matrix;
unknown keys, a loosened suite or a prefix used twice are errors with file, line and key.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import amdgpu_family_matrix as matrix
from rocwheel import files, located_yaml
from rocwheel.errors import ConfigError
from rocwheel.located_yaml import Field
from rocwheel.model import WheelKind, suggest
from rocwheel.places import OURS, Place
from rocwheel.store import Options, Store
from rocwheel.store.opening import open_store
from rocwheel.verdict import KnownSuite

FILE: Final = "ci/channels.yaml"
ANY_MAJOR: Final = 0
PAGE_CACHE: Final = "no-cache"  # copies are kept, and asked about each time (RFC 9111)
WHEEL_CACHE: Final = "public, max-age=31536000, immutable"
MIB: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Prefixes:
    """The staging and the release prefix of one ROCm major."""

    staging: str
    release: str


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How long wheels are kept; None is for ever. Pins and open operations overrule it."""

    staging_days: int | None = None
    release_days: int | None = None
    keep_newest: int = 3  # of each JAX version, however old
    pinned: tuple[str, ...] = ()  # manifests (SHA-256) that are never pruned


@dataclass(frozen=True, kw_only=True)
class Channel:
    """One channel: store, prefixes per ROCm major, policy, retention."""

    name: str
    store: str
    prefixes: Mapping[int, Prefixes]
    options: Options = field(default_factory=Options)
    public_url: str = ""
    # proxies and CA bundle on the way to that URL
    public_environ: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    page_cache: str = PAGE_CACHE
    wheel_cache: str = WHEEL_CACHE
    retention: Retention = Retention()
    size_budget: Mapping[WheelKind, int] = field(default_factory=dict)  # bytes per wheel
    policy: tuple[matrix.Rule, ...] = ()
    # where its nights build; "" is the machine itself
    executor: str = ""
    builder_image: str = ""
    # what the suites are here and now; a verdict of another suite counts for nothing
    suites: Mapping[str, KnownSuite] = field(default_factory=dict)

    @property
    def option(self) -> str:
        """How a command line names it."""
        return f"--channel {self.name}" if self.name else f"--store {self.store}"

    def open(self, *, probe_key: str = f"{OURS}/probe") -> Store:
        """Open the channel's store; nothing is asked of it yet."""
        return open_store(self.store, dataclasses.replace(self.options, probe_key=probe_key))

    def prefixes_of(self, rocm_major: int) -> Prefixes:
        """The prefixes of wheels for that ROCm major. Raises ConfigError."""
        found = self.prefixes.get(rocm_major) or self.prefixes.get(ANY_MAJOR)
        if found is None:
            raise ConfigError(
                f"channel {self.name}: no prefix for ROCm {rocm_major}",
                hint=f"add it below channels.{self.name}.prefixes in {FILE}",
            )
        return found

    def staging(self, store: Store, family: str, rocm_major: int) -> Place:
        return self._places(store, family, self.prefixes_of(rocm_major))[0]

    def release(self, store: Store, family: str, rocm_major: int) -> Place:
        return self._places(store, family, self.prefixes_of(rocm_major))[1]

    def pairs(self, store: Store, family: str) -> tuple[tuple[Place, Place], ...]:
        """Staging and release of each ROCm major, for commands that do not know which."""
        return tuple(self._places(store, family, item) for item in self.prefixes.values())

    def levels(self, family: matrix.Family, python: str) -> dict[str, matrix.Level]:
        """What each suite's verdict means for a release: the matrix, tightened by the channel."""
        suites = dict.fromkeys((*family.suites, *(rule.suite for rule in self.policy)))
        levels = {}
        for suite in suites:
            level = family.level(suite, python)
            for rule in self.policy:
                if rule.suite == suite and (not rule.pythons or python in rule.pythons):
                    level = rule.level if level is not matrix.Level.REQUIRED else level
            if level:
                levels[suite] = level
        return levels

    def _places(self, store: Store, family: str, prefixes: Prefixes) -> tuple[Place, Place]:
        staging = Place(
            store=store,
            root=f"{prefixes.staging}/{family}",
            family=family,
            is_staging=True,
            public_url=self.public_url,
            page_cache=self.page_cache,
            wheel_cache=self.wheel_cache,
            public_environ=self.public_environ,
        )
        root = f"{prefixes.release}/{family}"
        return staging, dataclasses.replace(staging, root=root, is_staging=False)


def of_store(url: str, options: Options | None = None) -> Channel:
    """The channel that `--store URL` means: today's prefixes, the matrix's policy, no pruning."""
    prefixes = {ANY_MAJOR: Prefixes(staging="v2-staging", release="v2")}
    return Channel(name="", store=url, prefixes=prefixes, options=options or Options())


def load(path: Path) -> dict[str, Channel]:
    """Read every channel. Raises ConfigError with file, line and key."""
    channels = located_yaml.load(path).record(required=("channels",))["channels"].mapping()
    beside = (item.stem for item in files.entries(path.parent / "suites"))
    suites = frozenset(
        [*beside, *(name for family in matrix.FAMILIES.values() for name in family.suites)]
    )
    return {name: _channel(name, entry, suites) for name, entry in channels.items()}


def channel(path: Path, name: str) -> Channel:
    """Read one channel. Raises ConfigError that names the nearest one."""
    channels = load(path)
    if name not in channels:
        raise ConfigError(
            f"{name!r}: no such channel in {path}", hint=suggest(name, frozenset(channels))
        )
    return channels[name]


def _channel(name: str, entry: Field, suites: frozenset[str]) -> Channel:
    fields = entry.record(
        required=("store", "prefixes"),
        optional=(
            "region", "endpoint", "public_url", "cache_control", "retention", "size_budget_mib",
            "policy", "build",
        ),
    )  # fmt: skip
    build = fields["build"].record(required=("executor", "image")) if "build" in fields else {}
    cache = (
        fields["cache_control"].record(required=("pages", "wheels"))
        if "cache_control" in fields
        else {}
    )
    return Channel(
        name=name,
        store=_url(fields["store"], r"(s3|file)://.+", "write s3://bucket or file:///folder"),
        prefixes=_prefixes(fields["prefixes"]),
        options=Options(
            region=fields["region"].string() if "region" in fields else "",
            endpoint=_url(fields["endpoint"], r"https?://.+", "write https://host")
            if "endpoint" in fields
            else "",
        ),
        public_url=_url(fields["public_url"], r"https?://.+", "write https://host")
        if "public_url" in fields
        else "",
        page_cache=cache["pages"].string() if cache else PAGE_CACHE,
        wheel_cache=cache["wheels"].string() if cache else WHEEL_CACHE,
        retention=_retention(fields["retention"]) if "retention" in fields else Retention(),
        size_budget=_budget(fields["size_budget_mib"]) if "size_budget_mib" in fields else {},
        policy=tuple(_rule(item, suites) for item in fields["policy"].sequence())
        if "policy" in fields
        else (),
        executor=build["executor"].choice(("docker", "podman")) if build else "",
        builder_image=build["image"].string() if build else "",
    )


def _url(entry: Field, pattern: str, hint: str) -> str:
    value = entry.string()
    if not re.fullmatch(pattern, value):
        entry.fail(f"{value!r} is not a URL of this kind", hint=hint)
    return value.rstrip("/")


def _prefixes(entry: Field) -> dict[int, Prefixes]:
    found: dict[int, Prefixes] = {}
    used: set[str] = set()
    for major, item in entry.mapping().items():
        if not major.isdecimal() or major == "0":
            item.fail("not a ROCm major", hint='write for example "7":')
        fields = item.record(required=("staging", "release"))
        for value in fields.values():
            prefix = value.string()
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]*[A-Za-z0-9]", prefix):
                value.fail(f"{prefix!r} is not a prefix", hint="write for example v2-staging")
            if prefix in used:
                value.fail(f"{prefix!r} is used twice", hint="every prefix has one purpose")
            used.add(prefix)
        found[int(major)] = Prefixes(
            staging=fields["staging"].string(), release=fields["release"].string()
        )
    if not found:
        entry.fail("no prefix", hint='add for example "7": {staging: v2-staging, release: v2}')
    return found


def _retention(entry: Field) -> Retention:
    fields = entry.record(
        required=(), optional=("staging_days", "release_days", "keep_newest", "pinned")
    )

    def days(name: str) -> int | None:
        if name not in fields or fields[name].null():
            return None
        value = fields[name].integer()
        if value < 1:
            fields[name].fail("must be 1 or more", hint="leave it out to keep for ever")
        return value

    pinned = fields["pinned"].sequence() if "pinned" in fields else ()
    return Retention(
        staging_days=days("staging_days"),
        release_days=days("release_days"),
        keep_newest=fields["keep_newest"].integer() if "keep_newest" in fields else 3,
        pinned=tuple(item.sha256() for item in pinned),
    )


def _budget(entry: Field) -> dict[WheelKind, int]:
    kinds = {kind.value: kind for kind in WheelKind}
    return {
        kinds[name]: value.integer() * MIB
        for name, value in entry.record(required=(), optional=kinds).items()
    }


def _rule(entry: Field, suites: frozenset[str]) -> matrix.Rule:
    """Read one rule. It may not make advisory what some family requires."""
    fields = entry.record(required=("suite", "level"), optional=("pythons",))
    level = matrix.Level(fields["level"].choice(item.value for item in matrix.Level))
    suite = fields["suite"].choice(suites)
    if level is matrix.Level.ADVISORY:
        for family in matrix.FAMILIES.values():
            if any(rule.suite == suite and rule.level is not level for rule in family.policy):
                fields["level"].fail(
                    f"{family.name} requires {suite}; a channel may only tighten",
                    hint="change amdgpu_family_matrix.py, where everybody sees it",
                )
    pythons = fields["pythons"].cpythons() if "pythons" in fields else ()
    return matrix.Rule(suite, level, tuple(map(str, pythons)))
