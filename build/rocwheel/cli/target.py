"""Options that name a channel or store, a family, a wheel set, a person."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

import amdgpu_family_matrix as matrix
from rocwheel.base.choices import ALL
from rocwheel.base.download import is_loopback
from rocwheel.base.errors import ConfigError, StoreError
from rocwheel.base.store import Store
from rocwheel.base.store.file import FileStore
from rocwheel.base.versions import is_sha256, suggest
from rocwheel.cli import known
from rocwheel.cli.app import App
from rocwheel.cli.options import PATH, F, option, option_set
from rocwheel.gate.suite import suites
from rocwheel.records import families
from rocwheel.records.manifest import Manifest
from rocwheel.records.places import OURS, Place
from rocwheel.release.index import channels
from rocwheel.release.index.channels import Channel
from rocwheel.release.ledger import log, manifests
from rocwheel.release.operations import Who
from rocwheel.release.trust import policy
from rocwheel.release.trust.policy import Signer

_store = partial(option, section="Store")
_target = partial(option, section="Target")
_person = partial(option, section="Who and why")
MAKES_STORE = "check --store; `stage WHEELHOUSE` makes a new one"
PAGES = "status"  # the folder of the night's page, below a store
SHORTEST = 6  # digits of a manifest's SHA-256 that may stand for it


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """A channel or a store."""

    channel: str = ""
    store: str = ""
    channels_file: Path | None = None

    def open(self, app: App) -> channels.Channel:
        """Return the channel they name; its store is not opened. Raises UsageError, ConfigError."""
        if self.store and self.channel:
            raise click.UsageError("give --store or --channel, not both")
        if not (self.store or self.channel):
            raise known.lacking("--store URL, or --channel", known.channels)
        named = _channels(app)
        if not self.channel:
            chosen = channels.of_store(self.store)
            known_ones = owners(named, chosen).values()
            same = [item for item in known_ones if {*chosen.keys} <= {*item.keys}]
            if len(same) == 1:  # a channel by its address: statements have to name the channel
                chosen = replace(same[0], public_environ=app.environ)
        else:
            path = self.channels_file or app.home.ci / "channels.yaml"
            chosen = replace(channels.channel(path, self.channel), public_environ=app.environ)
        return chosen.with_rules_of(owners(named, chosen).values())


@dataclass(frozen=True, kw_only=True)
class FamiliesOptions(StoreOptions):
    """A channel or a store, and a file of further GPU families."""

    family_file: Path | None = None

    def own_families(self, app: App) -> dict[str, matrix.Family]:
        """Families of --family-file; none without it. Raises ConfigError where they may not go."""
        if self.family_file is None:
            return {}
        chosen = self.open(app) if self.channel or self.store else None
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        named = (chosen.options.endpoint if chosen else "", *map(app.environ.get, names))
        endpoint = next(filter(None, named), "")
        is_folder = chosen is None or chosen.store.startswith("file:")
        # a bucket of a server on loopback is on this machine, too
        if not (is_folder or is_loopback(endpoint)):
            what = f"{self.family_file}: families of a file go into a store of this machine only"
            hint = "give --store file:///folder, or a channel whose store is on this machine"
            raise ConfigError(what, hint=hint)
        own, there = families.load(self.family_file), [s.name for s in suites.load_all(app.home.ci)]
        for name, suite in ((f.name, rule.suite) for f in own.values() for rule in f.policy):
            if suite not in there:
                what = f"{name}: its policy names the suite {suite!r}, and there is none"
                raise ConfigError(f"{self.family_file}: {what}", hint=suggest(suite, there))
        return own


@dataclass(frozen=True, kw_only=True)
class TargetOptions(FamiliesOptions):
    """An index: a channel or a store, and the GPU family."""

    family: str = ""


@dataclass(frozen=True, kw_only=True)
class ManifestOptions(FamiliesOptions):
    """A wheel set in an index, and for which families."""

    family: tuple[str, ...] = ()
    manifest: str = ""


@dataclass(frozen=True, kw_only=True)
class PersonOptions:
    """Who acts, and why."""

    by: str = ""
    reason: str = ""

    def who(self, app: App, *, reason: str = "") -> Who:
        """Return who acts: --by, else GitHub's actor, else the user."""
        name = self.by.strip() or app.environ.get("GITHUB_ACTOR") or app.user
        return Who(by=name, now=app.now(), reason=self.reason or reason, is_checked=True)


STORE = (
    _store(
        "--channel",
        metavar="NAME",
        type=known.OneOf(known.channels),
        default="",
        help="A channel of ci/channels.yaml, such as nightly.",
    ),
    _store(
        "--store",
        metavar="URL",
        help="A store without a channel: s3://bucket/prefix or file:///folder.",
    ),
    _store(
        "--channels-file",
        type=PATH,
        rare=True,
        help="Where the channels are defined; default: channels.yaml of the data in use.",
    ),
)
FAMILIES = (
    *STORE,
    _store(
        "--family-file",
        metavar="FILE",
        type=PATH,
        rare=True,
        help="A file of further GPU families; only with a --store of this machine.",
    ),
)


def family_option(text: str) -> Callable[[Any], Any]:
    """Return --family of a command that takes one, with its help."""
    family = known.OneOf(known.families)
    return _target("--family", metavar="NAME", type=family, default="", help=text)


def _manifest(*, family: tuple[tuple[str, ...], ...], **given: Any) -> ManifestOptions:
    names = tuple(dict.fromkeys(name for each in family for name in each))
    return ManifestOptions(family=names, **given)


store_options = option_set("target", StoreOptions, *STORE)
families_options = option_set("target", FamiliesOptions, *FAMILIES)


def target_of(family: str) -> Callable[[F], F]:
    """Return `target_options` whose --family has this help."""
    return option_set("target", TargetOptions, *FAMILIES, family_option(family))


target_options = target_of("GPU family; default: all.")
manifest_options = option_set(
    "target",
    _manifest,
    *FAMILIES,
    _target(
        "--family",
        metavar="LIST",
        type=known.ListOf(known.families_or_all),
        multiple=True,
        help="GPU families; default: all of the set's. A one-family set needs it.",
    ),
    _target(
        "--manifest",
        metavar="SHA|PATH",
        type=known.MANIFEST,
        required=True,
        help="The wheel set: SHA-256 of its manifest (6 digits or more), or the file or "
        "wheelhouse.",
    ),
)
person_options = option_set(
    "person",
    PersonOptions,
    _person("--by", metavar="NAME", help="Who does this; default: GitHub's actor, or the user."),
    _person("--reason", metavar="WHY", help="Why it is done; kept in the record."),
)
signer_option = _person(
    "--signer",
    metavar="URI",
    envvar="ROCWHEEL_SIGNER",
    rare=True,
    help="Key that signs, or is shown: file:/path/key.pem, awskms:alias/NAME, "
    "hsm:SLOT?label=TOKEN or sigstore: (an OIDC identity).",
)

ON_DEVICES = (  # of suites that run here
    option(
        "--jax-tests",
        metavar="DIR",
        type=PATH,
        rare=True,
        help="A JAX checkout with the tests; default: the commit the wheels were built from.",
    ),
    option(
        "--slots",
        type=PATH,
        default="/run/lock/rocwheel",
        rare=True,
        help="Folder with the lock files of the devices, one for the whole machine.",
    ),
)


def key_of(app: App, signer: str) -> Signer | None:
    """Open the key that --signer names; None without it. Raises ConfigError, TrustError."""
    if not signer:
        return None
    from rocwheel.release.trust import signers

    scheme, _, rest = signer.partition(":")
    path = f"{scheme}:{app.cwd / rest.removeprefix('//')}"
    pin = app.environ.get("ROCWHEEL_SIGNER_PIN_FILE", "")
    return signers.signer(
        path if scheme in {"file", "sigstore"} and rest else signer,
        pin=app.cwd / pin if pin else None,
        token=app.environ.get("SIGSTORE_IDENTITY_TOKEN", ""),
    )


class Target:
    """What the target options mean: channel, families and an open store."""

    def __init__(
        self, app: App, options: TargetOptions | ManifestOptions, *, makes_store: bool = False
    ) -> None:
        """Raise UsageError, ConfigError, or StoreError where a folder does not exist."""
        self.channel = options.open(app)
        named = (options.family,) if isinstance(options.family, str) else options.family
        names = [name for name in named if name] or [ALL]
        self.own = options.own_families(app)
        self.names = tuple(name for name in names if name != ALL)
        # A set is also taken back for a family that the matrix has no more.
        is_one = isinstance(options, TargetOptions)
        self.families = tuple(map(self._named, self.names)) if is_one else ()
        self.view = names[0] if len(names) == 1 else ALL
        self.store = self.channel.open()
        if makes_store:
            must_hold(self.channel, self.store, may_be_new=True)
        else:
            must_exist(self.channel, self.store)

    def _named(self, name: str) -> matrix.Family:
        return families.named(name, self.own)

    @property
    def family(self) -> matrix.Family:
        """The one family of --family. Raises ConfigError for `all`."""
        if len(self.families) != 1:
            raise known.lacking("--family", known.families)
        return self.families[0]

    def families_of(self, manifest: Manifest) -> tuple[matrix.Family, ...]:
        """Return the families of --family; without one those of a set. Raises ConfigError."""
        if not (self.names or manifest.families):
            raise known.lacking("--family", known.families)
        for name in () if self.names else manifest.families:
            if name not in self.own.keys() | matrix.FAMILIES.keys():
                what = f"{manifest.sha256[:12]} is for {name}: no family (any more)"
                hint = "name with --family those that are; your own need --family-file FILE"
                raise ConfigError(what, hint=hint)
        return tuple(map(self._named, self.names or manifest.families))

    def pairs(self) -> tuple[tuple[Place, Place], ...]:
        """Return the staging and the release place of every ROCm major."""
        return self.channel.pairs(self.store, self.view)

    def manifest(self, app: App, text: str) -> Manifest:
        """Return the manifest that --manifest names. Raises ConfigError."""
        path = app.cwd / text
        if path.exists():
            return Manifest.load(path)
        digits = text.lower()
        hint = f"copy it from `status`: {SHORTEST} digits or more"
        if len(digits) < SHORTEST or set(digits) - set("0123456789abcdef"):
            raise ConfigError(f"{text}: no such file, and not a SHA-256", hint=hint)
        found = dict[str, Place]()
        for place in (place for pair in self.pairs() for place in pair):
            state = log.read(place)
            named = (n for n in state.sets if is_sha256(n) and n.startswith(digits))
            found |= {name: state.at(place, name) for name in named if name not in found}
        if len(found) != 1:
            tuple(map(self._named, self.names))  # of a name that is none no set is expected
            of = "any family" if self.view == ALL else self.view
            what = f"{text}: {len(found) or 'no'} manifests of {of} begin with these digits"
            hint = "give more digits" if found else "`status` lists those that are staged"
            raise ConfigError(what, hint=hint)
        sha256, place = found.popitem()
        if manifest := manifests.find(place, sha256):
            return manifest
        raise ConfigError(f"{place.store.locate(place.manifest(sha256))}: missing", hint=hint)

    def staged(self, app: App, text: str) -> tuple[Place, Manifest]:
        """Staging place and manifest that --manifest names, for a runner.

        What the store can do is tried where runners may write.
        """
        manifest = self.manifest(app, text)
        place, _ = self.channel.pair(self.store, manifest, self.family.name)
        place = log.read(place).at(place, manifest.sha256)
        store = self.channel.open(probe_key=place.runners_probe)
        return replace(place, store=store), manifest

    def release_of(self, app: App, text: str) -> tuple[Place, str]:
        """Release place and SHA-256 of the manifest that --manifest names.

        The log is enough: a lost manifest does not keep a set in an index.
        """
        path = app.cwd / text
        digits = Manifest.load(path).sha256 if path.exists() else text.lower()
        if len(digits) >= SHORTEST:
            releases = {name: place for _, place in self.pairs() for name in log.read(place).sets}
            named = [name for name in releases if is_sha256(name) and name.startswith(digits)]
            if len(named) == 1:
                return releases[named[0]], named[0]
        manifest = self.manifest(app, text)
        return self.channel.pair(self.store, manifest, self.view)[1], manifest.sha256


def must_be_there(channel: Channel, store: Store) -> None:
    """Refuse a folder that is not there. Raises StoreError.

    A bucket says itself that it is not there, at the first request.
    """
    if isinstance(store, FileStore) and not (store.root.is_dir() or _above(channel, store)):
        raise StoreError(f"{store.url}: no such folder", hint=MAKES_STORE)


def must_exist(channel: Channel, store: Store) -> None:
    """Refuse a folder that is not there, or holds nothing. Raises StoreError."""
    must_be_there(channel, store)
    if isinstance(store, FileStore):
        must_hold(channel, store)


def must_hold(channel: Channel, store: Store, *, may_be_new: bool = False) -> None:
    """Refuse a store with neither an index nor a night; a new one only where it is an index.

    Raises StoreError.
    """

    def holds(name: str) -> bool:
        if isinstance(store, FileStore):
            return (store.root / name).exists()
        return any(store.keys(f"{name}/"))

    indexes, above = _indexes(channel), _above(channel, store)
    parent, _, last = store.url.rstrip("/").rpartition("/")
    if may_be_new and not above and not (last in indexes and holds(OURS)):
        return
    if any(map(holds, (*indexes, f"{OURS}/nights"))):  # an index has a folder of ours, too
        return
    above = parent if last in indexes else above
    hint = f"--store is the folder above it: {above}" if above else MAKES_STORE
    raise StoreError(f"{store.url}: holds neither wheels nor nights", hint=hint)


def _indexes(channel: Channel) -> set[str]:
    return {name for each in channel.prefixes.values() for name in (each.staging, each.release)}


def _above(channel: Channel, store: Store) -> str:
    """Return the store that a folder is an index of, a part of one, or the page of; "" for none."""
    indexes = _indexes(channel)
    for path in (store.root, *store.root.parents) if isinstance(store, FileStore) else ():
        is_part = path.name in indexes and (path / OURS).is_dir()
        if is_part or (path.name == PAGES and (path.parent / OURS / "nights").is_dir()):
            return path.parent.as_uri()
    return ""


def judging(app: App, channel: Channel) -> Channel:
    """Return a channel with the suites of this checkout: verdicts of other suites do not count."""
    known_suites = suites.load_known(app.home, today=app.now().date())
    return replace(trusting(app, channel), suites=known_suites)


def trusting(app: App, channel: Channel) -> Channel:
    """Return a channel with this checkout's trust file.

    A key of a channel needs that channel's signatures, under any name of the store.
    """
    named = _channels(app)
    own, least = (folder / policy.FILE for folder in (app.home.ci, app.home.root / "ci"))
    trust = policy.load(own, channels=named.keys() | {channel.name}, least=least)
    for name in owners(named, channel):
        trust = trust.with_rule_of(name, channel.name)
    return replace(channel, trust=trust)


def _channels(app: App) -> dict[str, Channel]:
    return channels.load(app.home.ci / "channels.yaml")


def owners(named: Mapping[str, Channel], channel: Channel) -> dict[str, Channel]:
    """Return the channels that own keys of this one, under any name.

    A command that names a store, or a file of channels, follows their rules there.
    """
    return {name: item for name, item in named.items() if item.shares(channel)}


def family_of(app: App, options: TargetOptions) -> matrix.Family:
    """Return the family of --family: one of --family-file, or of the matrix. Raises ConfigError."""
    return families.named(options.family, options.own_families(app))
