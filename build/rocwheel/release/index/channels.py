"""Channels: where wheels go, and what a channel demands beyond the GPU family matrix.

These are the values of `ci/channels.yaml`. A channel may only tighten the matrix's suites; unknown
keys, a loosened suite or a prefix used twice are errors with file, line and key.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec.structs import asdict

import amdgpu_family_matrix as matrix
from rocwheel.base import files, yaml_file
from rocwheel.base.choices import ALL
from rocwheel.base.errors import ConfigError
from rocwheel.base.store import Options, Store
from rocwheel.base.store.opening import absolute, open_store
from rocwheel.base.values import Sha256, Value, matching, replace
from rocwheel.base.versions import RocmVersion, WheelKind, suggest
from rocwheel.base.yaml_file import CPythons, FieldError
from rocwheel.records.manifest import Manifest
from rocwheel.records.places import OURS, Place
from rocwheel.records.verdict import KnownSuite
from rocwheel.release.trust.policy import Case, KeyRole, Trust

FILE: Final = "ci/channels.yaml"
ANY_MAJOR: Final = 0
PAGE_CACHE: Final = "no-cache"  # copies are kept, and asked about each time (RFC 9111)
WHEEL_CACHE: Final = "public, max-age=31536000, immutable"
MIB: Final = 1 << 20
# Whether a person names how many of JAX's tests ran on the first set of a family; a store without a
# channel is for trials.
FirstSets: TypeAlias = Literal["approved", "free"]
# Which suites are asked again of a set that was derived from one that passed.
Derived: TypeAlias = Literal["smoke", "all"]


Prefix: TypeAlias = Annotated[
    str,
    matching(
        r"\A[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?\Z", "a prefix", "write for example v2-staging"
    ),
]
Url: TypeAlias = Annotated[
    str, matching(r"\Ahttps?://.", "a URL of this kind", "write https://host")
]
StoreUrl: TypeAlias = Annotated[
    str, matching(r"\A(s3|file)://.", "a URL of this kind", "write s3://bucket or file:///folder")
]
FromOne: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
FromNone: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class Prefixes(Value, frozen=True, kw_only=True):
    staging: Prefix
    release: Prefix


class Retention(Value, frozen=True, kw_only=True):
    """How long wheels are kept; None is for ever. Pins and open operations overrule it."""

    staging_days: FromOne | None = None
    release_days: FromOne | None = None
    keep_newest: int = 3  # of each JAX version, however old
    pinned: tuple[Sha256, ...] = ()  # manifests that are never pruned


@dataclass(frozen=True, kw_only=True)
class Channel:
    name: str
    store: str
    prefixes: Mapping[int, Prefixes]
    one_build: bool = False  # its nights build one set for all families, where they may
    bisect_gpu_hours: int = 0  # that a night may spend on bisects of its new failures
    rebuilds_a_week: int = 0  # of released sets, as cells of its nights
    must: tuple[str, ...] = ()  # families that list a set before `all` does; none: all of the set's
    options: Options = field(default_factory=Options)
    public_url: str = ""
    # proxies and CA bundle on the way to that URL
    public_environ: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    page_cache: str = PAGE_CACHE
    wheel_cache: str = WHEEL_CACHE
    retention: Retention = field(default_factory=Retention)  # keeps all
    size_budget: Mapping[WheelKind, int] = field(default_factory=dict)  # bytes per wheel
    policy: tuple[matrix.Rule, ...] = ()
    first_sets: FirstSets = "free"
    derived: Derived = "smoke"
    # where its nights build; "" is the machine itself
    executor: str = ""
    builder_image: str = ""
    # what the suites are here and now; a verdict of another suite counts for nothing
    suites: Mapping[str, KnownSuite] = field(default_factory=dict)
    trust: Trust = field(default_factory=Trust)  # whose signatures a promotion believes

    @property
    def option(self) -> str:
        return f"--channel {self.name}" if self.name else f"--store {self.store}"

    def requires(self, role: KeyRole) -> bool:
        return role in self.trust.rule(self.name).required

    def case(self, family: str, now: datetime) -> Case:
        return Case(trust=self.trust, channel=self.name, family=family, now=now)

    def open(self, *, probe_key: str = f"{OURS}/probe") -> Store:
        """Open the channel's store, without a request."""
        return open_store(self.store, replace(self.options, probe_key=probe_key))

    def prefixes_of(self, rocm_major: int) -> Prefixes:
        """Return the prefixes of wheels for that ROCm major. Raises ConfigError."""
        prefixes = self.prefixes.get(rocm_major) or self.prefixes.get(ANY_MAJOR)
        if prefixes is None:
            hint = f"add it below channels.{self.name}.prefixes in {FILE}"
            raise ConfigError(f"channel {self.name}: no prefix for ROCm {rocm_major}", hint=hint)
        return prefixes

    def pair(self, store: Store, manifest: Manifest, family: str = ALL) -> tuple[Place, Place]:
        """Return staging and release of a set, as a family or `all` sees them."""
        if family != ALL:
            manifest.check_family(family)
        elif not manifest.families:
            raise ConfigError(
                f"{manifest.sha256[:12]} is a set of one family",
                hint="add --family: the one it was built for",
            )
        return self.pairs(store, family, RocmVersion.parse(manifest.rocm.version).major)[0]

    def pairs(
        self, store: Store, family: str, major: int | None = None
    ) -> tuple[tuple[Place, Place], ...]:
        """Staging and release of a ROCm major, or of each for commands that do not know which."""
        prefixes = self.prefixes.values() if major is None else (self.prefixes_of(major),)
        same = ("public_url", "page_cache", "wheel_cache", "public_environ")
        about: Any = {"store": store, "family": family, **{n: getattr(self, n) for n in same}}
        return tuple(
            (Place(root=p.staging, is_staging=True, **about), Place(root=p.release, **about))
            for p in prefixes
        )

    @property
    def keys(self) -> tuple[tuple[str, ...], ...]:
        """Where its prefixes are, independent of the spelling of its store."""
        pairs = self.prefixes.values()
        return tuple(
            absolute(self.store, prefix) for p in pairs for prefix in (p.staging, p.release)
        )

    def shares(self, other: Channel) -> bool:
        return any(one[: len(two)] == two[: len(one)] for one in self.keys for two in other.keys)

    def with_rules_of(self, others: Collection[Channel]) -> Channel:
        """Return the channel with the demands of the others added, but for signatures."""
        policy, budget, first = [*self.policy], {**self.size_budget}, self.first_sets
        derived: Derived = "all" if "all" in {x.derived for x in (self, *others)} else "smoke"
        for other in others:
            policy += (rule for rule in other.policy if rule not in policy)
            first = other.first_sets if first == "free" else first
            for kind, size in other.size_budget.items():
                budget[kind] = min(size, budget.get(kind, size))
        return replace(
            self, policy=tuple(policy), size_budget=budget, first_sets=first, derived=derived
        )

    def levels(self, family: matrix.Family, python: str) -> dict[str, matrix.Level]:
        """Return the level of each suite: the matrix, tightened by the channel."""
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


def of_store(url: str) -> Channel:
    """Return what `--store URL` means: today's prefixes, the matrix's policy, no pruning."""
    prefixes = {ANY_MAJOR: Prefixes(staging="v2-staging", release="v2")}
    return Channel(name="", store=url, prefixes=prefixes)


class _Cache(Value, frozen=True, kw_only=True):
    pages: str
    wheels: str


class _Build(Value, frozen=True, kw_only=True):
    executor: Literal["docker", "podman"]
    image: str


class _Rule(Value, frozen=True, kw_only=True):
    suite: str
    level: matrix.Level
    pythons: CPythons = CPythons()

    def __post_init__(self) -> None:
        rules = ((item, rule) for item in matrix.FAMILIES.values() for rule in item.policy)
        for family, rule in rules:
            if rule.suite == self.suite and rule.level is not self.level is matrix.Level.ADVISORY:
                what = f"{family.name} requires {self.suite}; a channel may only tighten"
                hint = "change amdgpu_family_matrix.py, where every user sees it"
                raise FieldError(what, "level", hint=hint)


class _Entry(Value, frozen=True, kw_only=True):
    store: StoreUrl
    prefixes: Mapping[FromOne, Prefixes]
    one_build: bool = False
    bisect_gpu_hours: FromNone = 0
    rebuilds_a_week: FromNone = 0
    must: tuple[str, ...] = ()
    region: str = ""
    endpoint: Url = ""
    public_url: Url = ""
    cache_control: _Cache = _Cache(pages=PAGE_CACHE, wheels=WHEEL_CACHE)
    retention: Retention = Retention()
    size_budget_mib: Mapping[WheelKind, int] = {}
    policy: tuple[_Rule, ...] = ()
    first_sets: FirstSets = "approved"
    derived: Derived = "smoke"
    build: _Build | None = None

    def __post_init__(self) -> None:
        if not self.prefixes:
            hint = 'add for example "7": {staging: v2-staging, release: v2}'
            raise FieldError("no prefix", "prefixes", hint=hint)
        yaml_file.each_once(self.must, "must")
        for number, name in enumerate(self.must):
            if name not in matrix.FAMILIES:
                hint = matrix.nearest(name, matrix.FAMILIES)
                raise FieldError(f"{name!r}: no such family", "must", number, hint=hint)
        used = set[str]()
        for major, prefixes in self.prefixes.items():
            for name, prefix in asdict(prefixes).items():
                if prefix in used:
                    hint = "every prefix has one purpose"
                    at = ("prefixes", str(major), name)
                    raise FieldError(f"{prefix!r} is used twice", *at, hint=hint)
                used.add(prefix)

    def channel(self, name: str) -> Channel:
        whole = ("prefixes", "one_build", "retention", "first_sets", "derived")
        same = (*whole, "bisect_gpu_hours", "rebuilds_a_week")
        return Channel(
            **{field: getattr(self, field) for field in same},
            name=name,
            store=self.store.rstrip("/"),
            must=tuple(sorted(self.must)),
            options=Options(region=self.region, endpoint=self.endpoint.rstrip("/")),
            public_url=self.public_url.rstrip("/"),
            page_cache=self.cache_control.pages,
            wheel_cache=self.cache_control.wheels,
            size_budget={kind: size * MIB for kind, size in self.size_budget_mib.items()},
            policy=tuple(
                matrix.Rule(rule.suite, rule.level, tuple(map(str, rule.pythons)))
                for rule in self.policy
            ),
            executor=self.build.executor if self.build else "",
            builder_image=self.build.image if self.build else "",
        )


class _File(Value, frozen=True, kw_only=True):
    channels: Mapping[str, _Entry]


def load(path: Path) -> dict[str, Channel]:
    """Read every channel. Raises ConfigError with file, line and key."""
    document = yaml_file.load(path)
    channels = document.to(_File).channels
    suites = {item.stem for item in files.entries(path.parent / "suites")}
    suites.update(*(family.suites for family in matrix.FAMILIES.values()))
    for name, entry in channels.items():
        for number, rule in enumerate(entry.policy):
            if rule.suite not in suites:
                at = ("channels", name, "policy", number, "suite")
                hint = suggest(rule.suite, suites)
                raise document.error(f"unknown value {rule.suite!r}", *at, hint=hint)
    return {name: entry.channel(name) for name, entry in channels.items()}


def channel(path: Path, name: str) -> Channel:
    """Read one channel. Raises ConfigError that names the nearest one."""
    channels = load(path)
    if name not in channels:
        hint = suggest(name, frozenset(channels))
        raise ConfigError(f"{name!r}: no such channel in {path}", hint=hint)
    return channels[name]
