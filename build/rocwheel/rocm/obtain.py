"""From a plan to a checked ROCm tree: look in the cache, else fetch, unpack and check it.

Downloading with hashing, inflating and writing files are three stages that run at once. A tree
becomes visible only after its digest and its contents were checked. A failure before that leaves
the partial download and nothing else.
"""

import errno
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit, urlunsplit

from rocwheel.base import files
from rocwheel.base.console import Console, Unit, count, size
from rocwheel.base.download import (
    AbsentError,
    Client,
    Download,
    DownloadError,
    Fingerprint,
    Retry,
    WrongBytesError,
    consumed,
    without_secrets,
)
from rocwheel.base.errors import FetchError, HostError
from rocwheel.base.values import replace
from rocwheel.records.manifest import ON_DISK, RocmDelivery, RocmPackage
from rocwheel.rocm import by_pip, rocm_root, therock
from rocwheel.rocm.origin import Origin, RocmPlan, source_key
from rocwheel.rocm.rocm_root import RocmRoot
from rocwheel.rocm.tarball import Blocks, ReadAhead, inflate
from rocwheel.rocm.tree_cache import TREE, Cache, CachedTree, FetchedSource
from rocwheel.rocm.unpack import Unpacked, UnpackLimits, unpack

UNPACKED_RATIO: Final = 4  # TheRock's tarballs unpack to 3.5 to 5 times their size
_RECORDED: Final[Mapping[Origin, Literal["directory", "pip"]]] = {
    Origin.DIRECTORY: "directory",
    Origin.PIP: "pip",
}


def fetch(
    plan: RocmPlan,
    *,
    console: Console,
    budget_bytes: int | None = None,
    env: Mapping[str, str] | None = None,
    retry: Retry | None = None,
    limits: UnpackLimits | None = None,
) -> RocmRoot:
    """Apply a plan; the tree stays in the cache for as long as the returned value lives.

    `env` gives proxies and CA bundle (`HTTPS_PROXY`, `NO_PROXY`, `REQUESTS_CA_BUNDLE`, …);
    `budget_bytes` is what the ROCm cache may hold afterwards, as far as trees in use allow.
    Raises FetchError (network, checksum, bad archive), RocmError (not the ROCm it should be),
    HostError (no room, no permission).
    """
    job = _Job(
        plan=plan,
        console=console,
        budget=budget_bytes,
        env=env or {},
        retry=retry or Retry(),
        limits=limits or UnpackLimits(),
    )
    try:
        return job.folder() if plan.origin is Origin.DIRECTORY else job.run()
    except OSError as exc:
        where = exc.filename if isinstance(exc.filename, str) else plan.cache
        hint = "check that path"
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "free some space, or choose another disk with --cache-dir"
        elif exc.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = "choose a folder you may write with --cache-dir"
        raise HostError(f"{where}: {exc.strerror or exc}", hint=hint) from exc


@dataclass(kw_only=True)
class _Job:
    plan: RocmPlan
    console: Console
    budget: int | None
    env: Mapping[str, str]
    retry: Retry
    limits: UnpackLimits
    hashed: int = 0  # bytes of the tarball

    def __post_init__(self) -> None:
        self.cache = Cache(self.plan.cache)

    def folder(self) -> RocmRoot:
        """Use a folder of the user's as it is."""
        facts = rocm_root.inspect(Path(self.plan.source), name=self.plan.source)
        root = Path(self.plan.source) / facts.root
        return self._root(facts, root, sha256=rocm_root.listing_digest(root), cached=True)

    def run(self) -> RocmRoot:
        root = self._cached(self.plan.sha256)
        if root and self.budget is None:
            return root  # without a write: the cache may be read-only
        if root is None:
            self.cache.prepare()
            note = f"   another run fetches {self.plan.name}; waiting for it"
            fetch = {
                Origin.URL: self._from_url,
                Origin.TARBALL: self._from_file,
                Origin.PIP: self._from_pip,
            }[self.plan.origin]
            waiting = partial(self.console.info, note)
            with self.cache.claim(self.plan.key, waiting=waiting) as staging:
                # it may be there by now: from the run we waited for
                root = self._cached(self.plan.sha256) or fetch(staging)
        self.cache.trim(budget=self.budget, removed=self._trimmed)
        return root

    # Where it comes from.

    def _from_file(self, staging: Path) -> RocmRoot:
        path = Path(self.plan.source)
        status = path.stat()
        state = Fingerprint(
            size=status.st_size, modified=f"{status.st_mtime_ns} {status.st_dev} {status.st_ino}"
        )
        seen = self.cache.recall(self.plan.key)
        is_same = seen and seen.remote.same(state) and self.plan.sha256 is None
        if seen and is_same and (root := self._cached(seen.sha256)):
            return root
        expected, beside = self.plan.sha256, path.with_name(f"{path.name}.sha256")
        if not expected and beside.exists():
            text = beside.read_text(encoding="utf-8", errors="replace")
            expected = _digest_in(text, name=self.plan.name, where=str(beside))
        self._make_room(UNPACKED_RATIO * status.st_size)
        return self._make(staging, files.blocks(path), known=state, expected=expected)

    def _from_pip(self, staging: Path) -> RocmRoot:
        plan = self.plan
        seen = self.cache.recall(plan.key) if plan.named and not plan.packages else None
        if seen and (root := self._cached(seen.sha256)):
            return root
        self.console.info(f"   pip download {plan.source}")
        asked = by_pip.Pip(text=plan.source, index=plan.index, env=self.env, packages=plan.packages)
        packages = asked.download(staging / "packages")
        sha256 = by_pip.digest_of(packages)
        known = Fingerprint(size=None)
        if root := self._cached(sha256):
            self._remember(known, sha256)
            return root
        folder = asked.install(staging / "packages", staging / TREE)
        files.remove(staging / "packages")
        status = (path.lstat() for path in (staging / TREE).rglob("*") if not path.is_dir())
        sizes = {item.st_ino: item.st_size for item in status}  # several names: once
        unpacked = Unpacked(files=len(sizes), bytes=sum(sizes.values()))
        return self._publish(
            staging, folder, known, sha256=sha256, unpacked=unpacked, packages=packages
        )

    def _from_url(self, staging: Path) -> RocmRoot:
        with Client(
            self.env,
            retry=self.retry,
            note=self.console.info,
            hint="check the address; nightly tarballs are removed after some weeks",
        ) as client:
            seen = self.cache.recall(self.plan.key)
            root = self._unchanged(client, seen) if seen and self.plan.sha256 is None else None
            if root:
                return root
            expected = self.plan.sha256 or _published(client, self.plan.source)
            return self._cached(expected) or self._download(client, staging, expected)

    def _unchanged(self, client: Client, seen: FetchedSource) -> RocmRoot | None:
        root = self._cached(seen.sha256)
        if root is None:
            return None
        try:
            same = client.is_still(self.plan.source, seen.remote)
        except DownloadError as exc:
            if exc.temporary:
                exc.hint = f"--therock-sha256={seen.sha256} uses the cached tree without asking"
            raise
        return root if same else None

    def _download(self, client: Client, staging: Path, expected: str | None) -> RocmRoot:
        path = self.cache.partial(self.plan.key)

        def make(download: Download, known: Fingerprint) -> RocmRoot:
            if download.kept:
                self.console.info(f"   continuing after {size(download.kept)}")
            if known.size is not None:
                self._make_room(known.size - download.kept + UNPACKED_RATIO * known.size)
            return self._make(
                staging, download.blocks(), known=known, expected=expected, cancel=download.cancel
            )

        def again() -> None:
            self.console.warn(f"{self.plan.shown}: changed while it was fetched; once more")
            files.remove(staging / TREE)

        root = consumed(client, self.plan.source, path, make, again=again)
        files.remove(path)
        files.remove(path.with_suffix(".json"))
        return root

    # What becomes of it.

    def _make(
        self,
        staging: Path,
        blocks: Iterator[bytes],
        *,
        known: Fingerprint,
        expected: str | None,
        cancel: Callable[[], None] | None = None,
    ) -> RocmRoot:
        plan, folder, digest = self.plan, staging / TREE, hashlib.sha256()
        title = f"{'fetching' if plan.origin is Origin.URL else 'unpacking'} {plan.name}"
        self.hashed = 0

        def hashed() -> Blocks:
            for block in blocks:
                digest.update(block)
                self.hashed += len(block)
                progress.update(self.hashed)
                yield block

        with (
            self.console.progress(title, total=known.size, unit=Unit.BYTES) as progress,
            ReadAhead(hashed(), name="fetch", cancel=cancel) as packed,
            ReadAhead(
                inflate(packed, name=plan.shown), name="inflate", cancel=packed.stop
            ) as inflated,
        ):
            unpacked = unpack(
                inflated, folder, name=plan.shown, packed=lambda: self.hashed, limits=self.limits
            )
        sha256 = digest.hexdigest()
        if expected and sha256 != expected:
            raise WrongBytesError(
                f"{plan.shown}: its SHA-256 is {sha256}, not {expected}",
                hint="this is not the tarball it should be; check the address and the checksum",
            )
        how = "as it should be" if expected else "no checksum was given or published"
        self.console.info(f"   SHA-256 {sha256}, {how}")
        return self._publish(staging, folder, known, sha256=sha256, unpacked=unpacked)

    def _publish(
        self,
        staging: Path,
        root: Path,
        known: Fingerprint,
        *,
        sha256: str,
        unpacked: Unpacked,
        packages: tuple[RocmPackage, ...] = (),
    ) -> RocmRoot:
        plan = self.plan
        links = rocm_root.complete(root, name=plan.shown)
        facts = rocm_root.inspect(root, name=plan.shown)
        within = (root / facts.root).relative_to(staging / TREE)
        entry, held, lease = self.cache.publish(
            staging,
            CachedTree(
                sha256=sha256,
                source=plan.shown,
                packed=self.hashed,
                files=unpacked.files,
                bytes=unpacked.bytes,
                links=links,
                packages=packages,
                facts=replace(facts, root=str(within) if within.parts else ""),
            ),
        )
        self._remember(known, sha256)
        self.console.info(f"   {count(unpacked.files, 'file')}, {size(unpacked.bytes)}, in {held}")
        for link in links:
            self.console.info(f"   added the link {link}, which this release lacks")
        return self._held(entry, held, lease, cached=False)

    def _remember(self, known: Fingerprint, sha256: str) -> None:
        if not self.plan.packages:  # which a manifest chose, and not the source
            seen = FetchedSource(remote=known, sha256=sha256, source=self.plan.shown)
            self.cache.remember(self.plan.key, seen)

    def _cached(self, sha256: str | None) -> RocmRoot | None:
        held = self.cache.lease(sha256) if sha256 else None
        return self._held(*held, cached=True) if held else None

    def _held(
        self, entry: CachedTree, folder: Path, lease: files.Lock, *, cached: bool
    ) -> RocmRoot:
        delivery = RocmDelivery(
            url=self.plan.address, size=entry.packed, packages=entry.packages, links=entry.links
        )
        more = {"delivery": delivery, "bytes": entry.bytes, "lease": lease, "cached": cached}
        root = folder / entry.facts.root
        return self._root(entry.facts, root, sha256=entry.sha256, **more)

    def _root(self, facts: rocm_root.Facts, root: Path, **more: Any) -> RocmRoot:
        plan, packages = self.plan, more.get("delivery", ON_DISK).packages
        named = plan.named or by_pip.version_of(packages)
        return RocmRoot(
            root=root,
            version=rocm_root.agreed_version(facts, asked=plan.asked, named=named, name=plan.name),
            facts=facts,
            origin=_RECORDED.get(plan.origin, "tarball"),
            name=plan.name,
            family=plan.family,
            **more,
        )

    # Room and company.

    def _make_room(self, room: int) -> None:
        if self.cache.free() < room:
            self.cache.trim(room=room, removed=self._trimmed)
        free = self.cache.free()
        if free < room:
            raise HostError(
                f"{self.cache.folder}: about {size(room)} are needed, {size(free)} are free",
                hint="free some space, or choose another disk with --cache-dir",
            )

    def _trimmed(self, name: str, count: int) -> None:
        self.console.info(f"   cache: removed {name[:12]}, {size(count)}")


def digest_of(url: str, *, client: Client, cache: Path, note: Callable[[str], None]) -> str:
    """Return the SHA-256 of a tarball: as published beside it, as remembered, or by reading it.

    What the server calls the file (ETag, size) is remembered with its digest, so that a tarball
    that stays the same is read once. Raises FetchError.
    """
    if published := _published(client, url):
        return published
    kept, key = Cache(cache), source_key(url)
    seen = kept.recall(key)
    if seen and client.is_still(url, seen.remote):
        return seen.sha256
    note(f"{without_secrets(url)}: no .sha256 beside it, reading it")
    sha256, remote = client.digest(url)
    kept.prepare()
    kept.remember(key, FetchedSource(remote=remote, sha256=sha256, source=without_secrets(url)))
    return sha256


def _published(client: Client, source: str) -> str | None:
    parts = urlsplit(source)
    url = urlunsplit(parts._replace(path=f"{parts.path}.sha256", fragment=""))
    try:
        data = client.read(url, beside=source)
    except AbsentError:
        return None
    name = therock.base_name(source)
    return _digest_in(data.decode("utf-8", "replace"), name=name, where=without_secrets(url))


_DIGEST: Final = re.compile(
    r"(?:SHA256 \((?P<tagged>.+)\) = )?(?P<digest>[0-9a-fA-F]{64})(?:[ \t]+\*?(?P<name>\S.*))?"
)


def _digest_in(text: str, *, name: str, where: str) -> str:
    matches = [match for line in text.splitlines() if (match := _DIGEST.fullmatch(line.strip()))]
    for match in matches:
        called = match["tagged"] or match["name"] or ""
        if len(matches) == 1 or called.rpartition("/")[2] == name:
            return match["digest"].lower()
    raise FetchError(
        f"{where}: holds no SHA-256 of {name}", hint="give the right one with --therock-sha256"
    )
