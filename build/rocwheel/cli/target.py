"""Where and as whom: options that name a channel or store, a family, a wheel set, a person."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import click

import amdgpu_family_matrix as matrix
from rocwheel import families
from rocwheel.cli.app import App
from rocwheel.cli.command import once, option, section, together
from rocwheel.errors import ConfigError
from rocwheel.index import channels
from rocwheel.index.channels import Channel
from rocwheel.ledger import manifests
from rocwheel.manifest import Manifest
from rocwheel.model import suggest
from rocwheel.places import Place
from rocwheel.release import wheelset
from rocwheel.release.operations import Who

SHORTEST = 6  # digits of a manifest's SHA-256 that may stand for it


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """Which channel or store."""

    channel: str | None
    store_url: str | None
    channels_file: Path | None

    def open(self, app: App) -> channels.Channel:
        """The channel they name; its store is not opened. Raises UsageError, ConfigError."""
        if bool(self.store_url) == bool(self.channel):
            raise click.UsageError("give --channel or --store, one of the two")
        return (
            channels.channel(
                app.path(self.channels_file) or app.home.ci / "channels.yaml", self.channel
            )
            if self.channel
            else channels.of_store(self.store_url or "")
        )


@dataclass(frozen=True, kw_only=True)
class TargetOptions(StoreOptions):
    """Which index: a channel or a store, and the family."""

    family: str | None
    families: Path | None


store_options = section(
    "Target",
    once("--channel", metavar="NAME", help="dev, nightly or prerelease."),
    once(
        "--store",
        "store_url",
        metavar="URL",
        help="A store without a channel: s3://bucket/prefix or file:///folder.",
    ),
    option(
        "--channels-file",
        type=click.Path(path_type=Path),
        help="Where the channels are defined; default: channels.yaml of the data in use.",
    ),
)
target_options = together(
    section(
        "Target",
        once("--family", metavar="NAME", help="GPU family (required)."),
        option(
            "--families",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Families of your own beside the matrix; only with a --store file:///folder.",
        ),
    ),
    store_options,
)


@dataclass(frozen=True, kw_only=True)
class PersonOptions:
    """Who acts, and why."""

    by: str
    reason: str

    def who(self, app: App, *, reason: str = "") -> Who:
        """Who acts: --by, else GitHub's actor, else the user."""
        name = self.by.strip() or app.environ.get("GITHUB_ACTOR") or app.user
        return Who(by=name, now=app.now(), reason=self.reason or reason)


person_options = section(
    "Person",
    option("--by", default="", metavar="NAME", help="Who; default: GitHub's actor, or the user."),
    option("--reason", default="", metavar="TEXT", help="Why; kept in the record."),
)


@dataclass(frozen=True, kw_only=True)
class ManifestOptions(TargetOptions):
    """A wheel set in an index."""

    manifest: str


manifest_option = section(
    "Target",
    once(
        "--manifest",
        required=True,
        metavar="SHA|PATH",
        help="The wheel set: SHA-256 of its manifest (6 digits or more), or the file or "
        "wheelhouse.",
    ),
)


class Target:
    """What the target options mean: channel, family and an open store."""

    def __init__(self, app: App, options: TargetOptions) -> None:
        """Raises UsageError or ConfigError."""
        self.channel = options.open(app)
        if not options.family:
            raise click.UsageError("give --family; `python -m amdgpu_family_matrix` lists them")
        self.family = family_of(app, options)
        self.store = self.channel.open()

    def judging(self, app: App) -> Channel:
        """The channel with the suites of the data in use: verdicts of other suites do not count."""
        return judging(app, self.channel)

    def pairs(self) -> tuple[tuple[Place, Place], ...]:
        """Staging and release of every ROCm major."""
        return self.channel.pairs(self.store, self.family.name)

    def manifest(self, app: App, text: str) -> Manifest:
        """The manifest that --manifest names. Raises ConfigError."""
        path = app.cwd / text
        if path.exists():
            return Manifest.load(path)
        digits = text.lower()
        if len(digits) < SHORTEST or set(digits) - set("0123456789abcdef"):
            raise ConfigError(f"{text}: no such file, and no SHA-256", hint="copy it from `status`")
        found = {
            sha256: place
            for pair in self.pairs()
            for place in pair
            for sha256 in manifests.names(place, digits)
        }
        if len(found) != 1:
            raise ConfigError(
                f"{text}: {len(found)} manifests of {self.family.name} start so",
                hint="give more digits" if found else "stage the wheelhouse first",
            )
        sha256, place = found.popitem()
        manifest = manifests.find(place, sha256)
        if manifest is None:
            raise ConfigError(f"{text}: the manifest went away", hint="run the command again")
        return manifest

    def staged(self, app: App, text: str) -> tuple[Place, Manifest]:
        """Staging place and manifest that --manifest names, for a runner.

        What the store can do is tried where runners may write.
        """
        manifest = self.manifest(app, text)
        place = self.channel.staging(self.store, self.family.name, wheelset.rocm_major(manifest))
        store = self.channel.open(probe_key=place.runners_probe)
        return replace(place, store=store), manifest

    def release_of(self, app: App, text: str) -> tuple[Place, str]:
        """Release place and SHA-256 of the manifest that --manifest names."""
        manifest = self.manifest(app, text)
        major = wheelset.rocm_major(manifest)
        return self.channel.release(self.store, self.family.name, major), manifest.sha256


def judging(app: App, channel: Channel) -> Channel:
    """A channel with the suites of this checkout: verdicts of other suites do not count."""
    from rocwheel.gate.suite import suites

    return replace(channel, suites=suites.load_known(app.home, today=app.now().date()))


def family_of(app: App, options: TargetOptions) -> matrix.Family:
    """The family of --family: one of --families, or of the matrix. Raises ConfigError."""
    name = options.family or ""
    own = families.load(app.cwd / options.families) if options.families else {}
    if name not in own:
        return family_named(name, tuple(own))
    if options.channel or not (options.store_url or "file:").startswith("file:"):
        raise ConfigError(
            f"{name}: a family of {options.families} goes into a folder only",
            hint="give --store file:///folder in place of a channel or another store",
        )
    return own[name]


def family_named(name: str, others: tuple[str, ...] = ()) -> matrix.Family:
    """The GPU family of that name. Raises ConfigError that names the nearest one."""
    try:
        return matrix.family(name)
    except KeyError as exc:
        problem, _, hint = str(exc.args[0]).partition("; ")
        hint = suggest(name, others) if others else hint
        raise ConfigError(problem, hint=hint) from exc
