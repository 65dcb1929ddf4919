"""Identifies images: references, digests and labels, from an engine that has them."""

import json
import re
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

from rocwheel.base.console import Console
from rocwheel.base.container import ContainerEngine, EngineKind, headline, words
from rocwheel.base.container.spec import LABEL
from rocwheel.base.container.words import Trouble
from rocwheel.base.errors import CommandError, ConfigError, HostError
from rocwheel.base.process import Runner
from rocwheel.base.values import Plain

INPUTS: Final = f"{LABEL}.inputs"  # digest of everything an image of ours was made from
BUILDER: Final = f"{LABEL}.builder"  # the recipe of a builder image
LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
# What every engine takes for a reference, id or short id; more than the grammar allows, and never
# an option: https://github.com/distribution/reference
_REFERENCE: Final = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:/@\[\]-]*\Z")
BUILD_IT: Final = "build it: `image build`"


class Found(Plain, frozen=True, kw_only=True):
    """An image that an engine has."""

    reference: str  # as it was asked for
    identity: str  # what this engine calls it
    config: str  # digest of its configuration: the same with every engine and registry
    digests: tuple[str, ...] = ()  # repository@digest, of the registries it came from
    architecture: str = ""
    names: tuple[str, ...] = ()  # its tags with this engine
    created: str = ""
    size: int = 0
    labels: Mapping[str, str] = {}


def inspect(reference: str, *, engine: ContainerEngine, runner: Runner) -> Found | None:
    """Return what the engine knows of an image; None when it has none of that name.

    Raises ConfigError for an invalid name.
    """
    if not _REFERENCE.match(reference):
        raise ConfigError(
            f"{reference!r}: no name of an image", hint="write NAME:TAG, or better NAME@sha256:…"
        )
    asked = engine.command("image", "inspect", reference)
    try:
        documents = json.loads(runner.capture(asked))
    except CommandError:
        return None
    document = documents[0]
    config = identity = f"sha256:{document['Id'].removeprefix('sha256:')}"
    if document.get("Descriptor"):
        # With containerd's image store an engine calls the *manifest's* digest the id:
        # https://docs.docker.com/engine/storage/containerd/
        with tempfile.TemporaryDirectory() as folder:
            saved = Path(folder, "image.tar")
            save = engine.command("image", "save", f"--output={saved}", identity, timeout=1800)
            runner.run(save)
            with saved.open("rb") as file:
                config = config_of(file)
    return Found(
        reference=reference,
        identity=identity,
        config=config,
        digests=tuple(document.get("RepoDigests") or ()),
        architecture=document.get("Architecture", ""),
        names=tuple(document.get("RepoTags") or ()),
        created=document.get("Created", ""),
        size=int(document.get("Size", 0)),
        labels=dict((document.get("Config") or {}).get("Labels") or {}),
    )


def config_of(saved: IO[bytes]) -> str:
    """Return the digest of the configuration of a saved image (`docker save`, an OCI layout)."""
    with tarfile.open(fileobj=saved, mode="r|") as archive:
        for member in archive:
            if member.name == "manifest.json":
                content = archive.extractfile(member)
                name = json.loads(content.read() if content else b"[{}]")[0].get("Config", "")
                match = re.search(r"[0-9a-f]{64}", name)
                if match:
                    return f"sha256:{match[0]}"
    raise HostError("a saved image without manifest.json", hint="pull the image again")


def obtain(
    reference: str,
    engine: ContainerEngine,
    *,
    runner: Runner,
    console: Console,
    locked: bool = False,
    pull: bool = True,
    otherwise: str = BUILD_IT,
) -> Found:
    """Return the image of a reference, from the engine or pulled; `otherwise` is for hints.

    Raises ConfigError for a tag where `locked` wants a digest; HostError for an image that is
    nowhere, that a registry dropped, or that is for another architecture.
    """
    if locked and not DIGEST.search(reference):
        raise ConfigError(
            f"{reference}: a tag, and --locked takes digests only",
            hint="write it as name@sha256:…; `image show` prints the digest",
        )
    image = inspect(reference, engine=engine, runner=runner)
    if image is None and not pull:
        raise HostError(
            f"{reference}: {engine.kind.value} has no such image",
            hint=f"{engine.program} pull {reference}, or {otherwise}",
        )
    if image is None:
        console.info(f"   pull {reference}")
        try:
            command = engine.command("pull", *plainly(reference, engine), reference)
            runner.run(command, on_line=console.detail)
        except CommandError as exc:
            remedies = {
                Trouble.NO_SPACE: "free some space where the engine keeps images: `image prune`",
                Trouble.NOT_IN_REGISTRY: "the registry does not have it: check the name, or "
                + otherwise,
                Trouble.NOT_LOGGED_IN: "log in to its registry, or check the name",
                None: f"check the name and the network, or {otherwise}",
            }
            raise HostError(
                f"{reference}: cannot be pulled: {headline(exc.detail)}",
                hint=words.meaning(exc.detail, remedies),
            ) from exc
        image = inspect(reference, engine=engine, runner=runner)
    if image is None:
        raise HostError(
            f"{reference}: pulled, and not there", hint=f"ask the engine: {engine.program} image ls"
        )
    if image.architecture != engine.architecture:
        raise HostError(
            f"{reference}: is for {image.architecture or 'an unknown architecture'}, "
            f"this machine is {engine.architecture}",
            hint=f"get one for this machine, or {otherwise}",
        )
    return image


def is_loopback(host: str) -> bool:
    """Return whether a registry is on this machine: engines use it without encryption too."""
    return re.sub(r":\d+\Z", "", host) in LOOPBACK


def plainly(reference: str, engine: ContainerEngine) -> tuple[str, ...]:
    """Return Podman's option for a registry on this machine; Docker needs none."""
    here = is_loopback(reference.partition("/")[0])
    return ("--tls-verify=false",) if here and engine.kind is EngineKind.PODMAN else ()
