"""Which image it is: what an engine has, and what a registry has; pulling, pushing, moving a tag.

Registries are asked by skopeo(1), which uses the logins of either engine. No referrers API is
needed.
"""

import base64
import json
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, final

from rocwheel.base import files
from rocwheel.base.console import Console
from rocwheel.base.container import ContainerEngine, EngineKind, headline
from rocwheel.base.container.engine import Trouble, meaning
from rocwheel.base.container.spec import LABEL
from rocwheel.base.download import is_loopback
from rocwheel.base.errors import CommandError, ConfigError, HostError, StoreError
from rocwheel.base.here import Here
from rocwheel.base.process import Command, Runner, ca_bundle
from rocwheel.base.values import Plain

INPUTS: Final = f"{LABEL}.inputs"  # digest of everything an image of ours was made from
BUILDER: Final = f"{LABEL}.builder"  # the recipe of a builder image
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
    alternative: str = BUILD_IT,
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
            hint=f"{engine.program} pull {reference}, or {alternative}",
        )
    if image is None:
        console.info(f"   pull {reference}")
        try:
            command = engine.command("pull", *tls_options(reference, engine), reference)
            runner.run(command, on_line=console.detail)
        except CommandError as exc:
            remedies = {
                Trouble.NO_SPACE: "free some space where the engine keeps images: `image prune`",
                Trouble.NOT_IN_REGISTRY: "the registry does not have it: check the name, or "
                + alternative,
                Trouble.NOT_LOGGED_IN: "log in to its registry, or check the name",
                None: f"check the name and the network, or {alternative}",
            }
            raise HostError(
                f"{reference}: cannot be pulled: {headline(exc.detail)}",
                hint=meaning(exc.detail, remedies),
            ) from exc
        image = inspect(reference, engine=engine, runner=runner)
    if image is None:
        raise HostError(
            f"{reference}: pulled, but not found", hint=f"ask the engine: {engine.program} image ls"
        )
    if image.architecture != engine.architecture:
        raise HostError(
            f"{reference}: is for {image.architecture or 'an unknown architecture'}, "
            f"this machine is {engine.architecture}",
            hint=f"get one for this machine, or {alternative}",
        )
    return image


def tls_options(reference: str, engine: ContainerEngine) -> tuple[str, ...]:
    """Return Podman's option for a registry on this machine, without TLS; Docker needs none."""
    here = is_loopback(reference)
    return ("--tls-verify=false",) if here and engine.kind is EngineKind.PODMAN else ()


PLATFORM: Final = {"os": "linux", "architecture": "amd64"}  # rocwheel builds for no other
SECONDS: Final = 120.0
# What the client reads of the caller's environment: skopeo(1), containers-auth.json(5).
CLIENT_ENV: Final = ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR")
ABSENT: Final = ("manifest unknown", "name unknown", "not found")
DENIED: Final = ("unauthorized", "denied", "authentication required")
# Names without a registry are Docker Hub's, whose login has another name:
# https://docs.docker.com/reference/cli/docker/login/
HUB: Final = "docker.io"
HUB_LOGIN: Final = "https://index.docker.io/v1/"


class RemoteImage(Plain, frozen=True, kw_only=True):
    """An image in a registry: its digests, labels and layers."""

    repository: str  # registry/name
    digest: str  # of the manifest: what a pull by digest names
    config: str  # of the configuration: what a manifest of wheels records
    labels: Mapping[str, str]
    layers: tuple[tuple[str, int], ...]  # digest and size, compressed

    @property
    def reference(self) -> str:
        return f"{self.repository}@{self.digest}"


def look(
    repository: str, tag: str, *, environ: Mapping[str, str], runner: Runner
) -> RemoteImage | None:
    """Return what a registry has under a tag or digest; None when nothing.

    Of an index of images, which newer engines push, it is the image for this architecture. Raises
    StoreError for an answer that is no registry's, or bytes without the right digest; HostError
    without skopeo.
    """
    ask = _Registry(repository, environ, runner)
    answer = ask.inspect(tag)
    if answer is None:
        return None
    digest = f"sha256:{files.sha256(answer.encode())}"
    if tag.startswith("sha256:") and tag != digest:
        raise StoreError(f"{repository}@{tag}: the registry answers other bytes", hint="try again")
    try:
        manifest: dict[str, Any] = json.loads(answer)
        for item in manifest.get("manifests") or ():
            platform = item.get("platform") or {}
            if PLATFORM.items() <= platform.items():
                return look(repository, item["digest"], environ=environ, runner=runner)
        described = manifest["config"]["digest"]
        layers = tuple((item["digest"], int(item["size"])) for item in manifest["layers"])
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise StoreError(
            f"{repository}:{tag}: no image for linux/amd64", hint="name one that is"
        ) from exc
    content = ask.inspect(digest, "--config")
    if content is None or f"sha256:{files.sha256(content.encode())}" != described:
        raise StoreError(
            f"{repository}:{tag}: its configuration {described} is missing or damaged",
            hint="push the image again under a new tag",
        )
    labels = (json.loads(content).get("config") or {}).get("Labels") or {}
    return RemoteImage(
        repository=repository, digest=digest, config=described, labels=labels, layers=layers
    )


def push(
    image: Found, repository: str, tag: str, engine: ContainerEngine, here: Here
) -> tuple[RemoteImage, bool]:
    """Push an image under a tag that is written once; also return whether anything was pushed.

    Raises StoreError when the tag is there with other bytes, or the push failed.
    """
    there = look(repository, tag, environ=here.environ, runner=here.runner)
    if there is not None:
        if there.config != image.config:
            raise StoreError(
                f"{repository}:{tag}: is there with other bytes ({there.config})",
                hint="no tag is overwritten: push under another name",
            )
        return there, False
    name = f"{repository}:{tag}"
    here.runner.run(engine.command("tag", image.identity, name))
    try:
        command = engine.command("push", *tls_options(name, engine), name)
        here.runner.run(command, on_line=here.console.detail)
    except CommandError as exc:
        raise StoreError(
            f"{name}: not pushed: {headline(exc.detail)}",
            hint="run the same command again: layers that arrived are not sent again",
        ) from exc
    pushed = look(repository, tag, environ=here.environ, runner=here.runner)
    if pushed is None or pushed.config != image.config:
        raise StoreError(
            f"{name}: pushed, and the registry has something else",
            hint="another process pushed at the same time: run the command again",
        )
    return pushed, True


def point(repository: str, tag: str, digest: str, here: Here) -> bool:
    """Point another tag at an image's manifest; return False when it does already.

    Raises StoreError when the image is not there, or the registry refuses or keeps other bytes.
    """
    there = look(repository, tag, environ=here.environ, runner=here.runner)
    if there is not None and there.digest == digest:
        return False
    ask = _Registry(repository, here.environ, here.runner)
    if ask.inspect(digest) is None:
        raise StoreError(f"{repository}@{digest}: the registry has it no more", hint="push again")
    tls = [f"--{side}-{option}" for side in ("src", "dest") for option in ask.tls]
    ask.skopeo("copy", "--quiet", *tls, ask.name(digest), ask.name(tag))
    there = look(repository, tag, environ=here.environ, runner=here.runner)
    if there is None or there.digest != digest:
        raise StoreError(
            f"{repository}:{tag}: was pointed at {digest}, and names something else",
            hint="another process moved it at the same time: run the command again",
        )
    return True


def parts(reference: str) -> tuple[str, str]:
    """Split a reference into repository, and digest or else tag; `latest` where it has none."""
    name, at, digest = reference.partition("@")
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:  # it is the port of a registry
        repository, tag = name, "latest"
    return repository, digest if at else tag


@final
class _Registry:
    def __init__(self, repository: str, environ: Mapping[str, str], runner: Runner) -> None:
        self._repository, self._environ, self._runner = repository, environ, runner
        is_plain = is_loopback(repository)
        self.tls = ("tls-verify=false",) if is_plain else ()

    def name(self, tag: str) -> str:
        return f"docker://{self._repository}{'@' if tag.startswith('sha256:') else ':'}{tag}"

    def inspect(self, tag: str, *what: str) -> str | None:
        """Return a manifest, or with `--config` its configuration; None where there is none."""
        tls = (f"--{option}" for option in self.tls)
        try:
            return self.skopeo("inspect", "--raw", *what, *tls, self.name(tag))
        except StoreError as exc:
            if any(words in str(exc).lower() for words in ABSENT):
                return None
            raise

    def skopeo(self, *words: str) -> str:
        env = {name: self._environ[name] for name in CLIENT_ENV if name in self._environ}
        if bundle := ca_bundle(self._environ):
            env["SSL_CERT_FILE"] = bundle
        try:
            with _helper_login(self._repository, self._environ, self._runner) as login:
                command = Command(argv=("skopeo", *words, *login), env=env, timeout=SECONDS)
                return self._runner.capture(command)
        except HostError as exc:
            hint = "install skopeo (so called in Debian, Ubuntu and Fedora), which asks registries"
            raise HostError("skopeo: no such program", hint=hint) from exc
        except CommandError as exc:
            line = exc.last_line
            found = re.search(r'msg=("(?:[^"\\]|\\.)*")', line)
            with suppress(ValueError):
                line = json.loads(found[1]) if found else line
            why = re.sub(r'^Error parsing image name "\S+": ', "", line)
            denied = any(each in why.lower() for each in DENIED)
            raise StoreError(
                f"{self._repository}: {why}",
                hint="log in to the registry" if denied else "check its name and the network",
            ) from exc


@contextmanager
def _helper_login(
    repository: str, environ: Mapping[str, str], runner: Runner
) -> Iterator[tuple[str, ...]]:
    """Yield the option that logs in with the credentials of a helper of Docker, if there is one.

    skopeo reads every other login itself, and does not know `credsStore`:
    https://docs.docker.com/reference/cli/docker/login/#credential-stores
    """
    host, _, name = repository.partition("/")
    if not name or not ({*".:"} & {*host} or host == "localhost"):
        host = HUB
    server = HUB_LOGIN if host == HUB else host
    home = environ.get("DOCKER_CONFIG") or f"{environ.get('HOME', '/')}/.docker"
    answer: dict[str, str] = {}
    with suppress(OSError, ValueError, AttributeError, CommandError):
        config = json.loads(Path(home, "config.json").read_text("utf-8"))
        helper = config.get("credHelpers", {}).get(server) or config.get("credsStore")
        if helper:  # it may need all that the user's shell has, such as the profile of a cloud
            pipe = 'printf %s "$1" | "docker-credential-$0" get'
            asked = Command(argv=("sh", "-c", pipe, helper, server), env=environ, timeout=60)
            answer = json.loads(runner.capture(asked))
    if not answer.get("Secret"):
        yield ()
        return
    # https://docs.docker.com/reference/cli/docker/login/#credential-helper-protocol
    user, secret = answer.get("Username", ""), answer["Secret"]
    coded = base64.b64encode(f"{user}:{secret}".encode()).decode()
    login = {"identitytoken": secret} if user == "<token>" else {"auth": coded}
    with tempfile.TemporaryDirectory(prefix="rocwheel-login-") as folder:
        file = Path(folder, "auth.json")
        file.touch(0o600)
        file.write_text(json.dumps({"auths": {host: login}}), encoding="utf-8")
        yield (f"--authfile={file}",)
