"""Image registries: what lies under a tag, asked by HTTP, and pushing by the engine.

The API is OCI's distribution specification; no referrers API is needed.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from rocwheel.base import files
from rocwheel.base.console import Console
from rocwheel.base.container import ContainerEngine, headline
from rocwheel.base.download import proxies, reason, session
from rocwheel.base.errors import CommandError, StoreError
from rocwheel.base.process import HostRunner
from rocwheel.base.values import Plain
from rocwheel.image.found import LOOPBACK, Found, is_loopback, plainly

if TYPE_CHECKING:
    import requests

MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
INDEXES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
PLATFORM: Final = {"os": "linux", "architecture": "amd64"}  # rocwheel builds for no other
SECONDS: Final = 30.0
UNAUTHORIZED: Final = 401
NOT_FOUND: Final = 404
# Names without a registry are Docker Hub's, which answers at another name than it is called by and
# has its credentials under a third: https://docs.docker.com/reference/cli/docker/login/
HUB: Final = ("docker.io", "index.docker.io")
HUB_ADDRESS: Final = "registry-1.docker.io"
HUB_CREDENTIALS: Final = "https://index.docker.io/v1/"


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


def look(repository: str, tag: str, *, environ: Mapping[str, str]) -> RemoteImage | None:
    """Return what a registry has under a tag or digest; None when nothing.

    An index of images, which engines push since they add attestations, stands for its image for
    this architecture. `environ` gives proxies, certificates and where a `login` keeps
    credentials. Raises StoreError when the registry does not answer as one, or its bytes are not
    those of its digests.
    """
    with _Repository(repository, environ) as asked:
        return _look(asked, tag)


def tags(repository: str, *, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return every tag of a repository, page by page. Raises StoreError."""
    names: list[str] = []
    path = "tags/list?n=1000"
    with _Repository(repository, environ) as asked:
        while path:
            content, path = asked.page(path)
            try:
                names += json.loads(content)["tags"] or ()
            except (ValueError, KeyError, TypeError) as exc:
                raise StoreError(
                    f"{repository}: the registry lists no tags", hint="name one: --to"
                ) from exc
    return tuple(names)


def _look(asked: _Repository, tag: str) -> RemoteImage | None:
    repository = asked.name
    answer = asked.get(f"manifests/{tag}", accept=", ".join((*MANIFESTS, *INDEXES)))
    if answer is None:
        return None
    digest = f"sha256:{files.sha256(answer)}"
    if tag.startswith("sha256:") and tag != digest:
        raise StoreError(f"{repository}@{tag}: the registry answers other bytes", hint="try again")
    if chosen := _of_index(answer):
        return _look(asked, chosen)
    try:
        manifest: dict[str, Any] = json.loads(answer)
        described = manifest["config"]["digest"]
        layers = tuple((item["digest"], int(item["size"])) for item in manifest["layers"])
    except (ValueError, KeyError, TypeError) as exc:
        raise StoreError(
            f"{repository}:{tag}: no image for linux/amd64", hint="name one that is"
        ) from exc
    content = asked.get(f"blobs/{described}")
    if content is None or f"sha256:{files.sha256(content)}" != described:
        raise StoreError(
            f"{repository}:{tag}: its configuration {described} is missing or damaged",
            hint="push the image again under a new tag",
        )
    labels = (json.loads(content).get("config") or {}).get("Labels") or {}
    return RemoteImage(
        repository=repository, digest=digest, config=described, labels=labels, layers=layers
    )


def _of_index(answer: bytes) -> str:
    """Return the digest that an index of images has for this architecture; "" without one."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        listed = json.loads(answer).get("manifests") or ()
        for item in listed:
            platform = item.get("platform") or {}
            if all(platform.get(name) == value for name, value in PLATFORM.items()):
                return str(item["digest"])
    return ""


def push(
    image: Found,
    repository: str,
    tag: str,
    *,
    engine: ContainerEngine,
    runner: HostRunner,
    environ: Mapping[str, str],
    console: Console,
) -> tuple[RemoteImage, bool]:
    """Push an image under a tag that is written once; tell whether anything was pushed.

    Raises StoreError when the tag is there with other bytes, or the push failed.
    """
    there = look(repository, tag, environ=environ)
    if there is not None:
        if there.config != image.config:
            raise StoreError(
                f"{repository}:{tag}: is there with other bytes ({there.config})",
                hint="no tag is overwritten: push under another name",
            )
        return there, False
    name = f"{repository}:{tag}"
    runner.run(engine.command("tag", image.identity, name))
    try:
        command = engine.command("push", *plainly(name, engine), name)
        runner.run(command, on_line=console.detail)
    except CommandError as exc:
        raise StoreError(
            f"{name}: not pushed: {headline(exc.detail)}",
            hint="run the same command again: layers that arrived are not sent again",
        ) from exc
    pushed = look(repository, tag, environ=environ)
    if pushed is None or pushed.config != image.config:
        raise StoreError(
            f"{name}: pushed, and the registry has something else",
            hint="another process pushed at the same time: run the command again",
        )
    return pushed, True


def parts(reference: str) -> tuple[str, str]:
    """Split a reference into repository, and digest or else tag; `latest` where it has none."""
    name, at, digest = reference.partition("@")
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:  # it is the port of a registry
        repository, tag = name, "latest"
    return repository, digest if at else tag


def address(repository: str) -> tuple[str, str]:
    """Return the host of a repository as it is called, and the URL that its parts are below."""
    host, _, name = repository.partition("/")
    if not name or not (set(".:") & set(host) or host == LOOPBACK[0]):
        host, name = HUB[0], repository
    if host in HUB:
        return HUB[0], f"https://{HUB_ADDRESS}/v2/{name if '/' in name else f'library/{name}'}"
    return host, f"{'http' if is_loopback(host) else 'https'}://{host}/v2/{name}"


@final
class _Repository(AbstractContextManager["_Repository"]):
    """One repository of a registry and its API, asked with the credentials that an engine keeps."""

    def __init__(self, name: str, environ: Mapping[str, str]) -> None:
        self.name = name
        self._host, self._base = address(name)
        self._environ = environ
        self._session = session(environ)

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def get(self, path: str, *, accept: str = "*/*") -> bytes | None:
        """Return the bytes at a path, None for 404."""
        answer = self._ask("GET", path, {"Accept": accept}, may_lack=True)
        return None if answer.status_code == NOT_FOUND else answer.content

    def page(self, path: str) -> tuple[bytes, str]:
        """Return the bytes at a path, and the path of the page that follows; "" at the end."""
        answer = self._ask("GET", path, {})
        _, folder, rest = answer.links.get("next", {}).get("url", "").partition("/tags/list")
        return answer.content, f"tags/list{rest}" if folder else ""

    def put(self, path: str, body: bytes, *, kind: str) -> None:
        self._ask("PUT", path, {"Content-Type": kind}, body)

    def _ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        may_lack: bool = False,
    ) -> requests.Response:
        """Return one request; a token is asked for where the registry wants one."""
        import requests

        url = f"{self._base}/{path}"
        try:
            answer = self._send(method, url, headers=headers, data=body)
            if answer.status_code == UNAUTHORIZED:
                signed = {**headers, **self._authorization(answer)}
                answer = self._send(method, url, headers=signed, data=body)
        except (requests.RequestException, ValueError) as exc:
            raise StoreError(
                f"{url}: the registry does not answer: {reason(exc)}",
                hint="check its name and the network",
            ) from exc
        if not (answer.ok or (may_lack and answer.status_code == NOT_FOUND)):
            raise StoreError(
                f"{url}: {answer.status_code} {answer.reason}",
                hint="log in to the registry" if answer.status_code in {401, 403} else "try again",
            )
        return answer

    def _send(self, method: str, url: str, **how: Any) -> requests.Response:
        through = proxies(url, self._environ)
        return self._session.request(method, url, timeout=SECONDS, proxies=through, **how)

    def _authorization(self, refused: requests.Response) -> dict[str, str]:
        """Return what a registry that answered 401 wants to see (its WWW-Authenticate)."""
        wanted = refused.headers.get("WWW-Authenticate", "")
        basic = _credentials(self._host, self._environ)
        sent = {"Authorization": f"Basic {basic}"} if basic else {}
        if not wanted.lower().startswith("bearer "):
            return sent
        parameters = dict(re.findall(r'(\w+)="([^"]*)"', wanted))
        realm = parameters.pop("realm", "")
        if not realm.startswith("https://"):
            return {}  # without encryption everyone on the way would read them
        asked = self._send("GET", realm, params=parameters, headers=sent)
        document = asked.json() if asked.ok else {}
        token = document.get("token") or document.get("access_token")
        return {"Authorization": f"Bearer {token}"} if token else {}


def _credentials(host: str, environ: Mapping[str, str]) -> str:
    """Read user and password for a registry, in the base64 of an engine's `login`; or ""."""
    names = (HUB_CREDENTIALS, *HUB) if host in HUB else (host, f"https://{host}")
    for file in _login_files(environ):
        try:
            auths = json.loads(file.read_text("utf-8")).get("auths", {})
            text = str(next(auths[name].get("auth", "") for name in names if auths.get(name)))
            base64.b64decode(text, validate=True)
        except (OSError, ValueError, StopIteration):
            continue
        if text:
            return text
    return ""


def _login_files(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield where Docker and Podman keep credentials: docker-login(1), containers-auth.json(5)."""
    yield Path(environ.get("DOCKER_CONFIG") or f"{environ.get('HOME', '/')}/.docker", "config.json")
    if named := environ.get("REGISTRY_AUTH_FILE"):
        yield Path(named)
    folder = environ.get("XDG_RUNTIME_DIR", "")
    own = f"{folder}/containers" if folder else f"/run/containers/{os.getuid()}"
    yield Path(own, "auth.json")


def point(repository: str, tag: str, digest: str, *, environ: Mapping[str, str]) -> bool:
    """Write an image's own manifest under another tag; return False when that names it already.

    Raises StoreError when the image is not there, or the registry refuses or keeps other bytes.
    """
    with _Repository(repository, environ) as asked:
        there = _look(asked, tag)
        if there is not None and there.digest == digest:
            return False
        manifest = asked.get(f"manifests/{digest}", accept=", ".join(MANIFESTS))
        if manifest is None:
            raise StoreError(
                f"{repository}@{digest}: the registry has it no more", hint="push it again"
            )
        kind = json.loads(manifest).get("mediaType", MANIFESTS[0])
        asked.put(f"manifests/{tag}", manifest, kind=kind)
        there = _look(asked, tag)
    if there is None or there.digest != digest:
        raise StoreError(
            f"{repository}:{tag}: was pointed at {digest}, and names something else",
            hint="another process moved it at the same time: run the command again",
        )
    return True
