"""Git as far as sources need it: a shallow checkout of one commit, and what a folder is.

Every command runs with the user's git; nothing asks for a password, runs a hook of the tree or
writes into a folder the user named.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from rocwheel.download import without_secrets
from rocwheel.errors import CommandError, SourceError
from rocwheel.files import locked
from rocwheel.manifest import Source
from rocwheel.model import is_commit
from rocwheel.process import Command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocwheel.process import Runner

# The tree decides nothing here: no prompt, no monitor program of its configuration, and a folder
# owned by somebody else is only read.
_ENV: Final = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}
_SAFE: Final = ("git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false")
_NOT_SOURCES: Final = re.compile(r"(\.git|__pycache__|bazel-[^/]*)\Z")


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """One commit of a repository, to lie at `folder`; nothing is fetched when it is there."""

    repository: str
    ref: str  # a branch or tag that holds the commit, tried when a server gives no bare commits
    commit: str
    folder: Path

    def commands(self, folder: Path) -> tuple[Command, ...]:
        """What fetches the commit into `folder`."""
        return (
            _git(None, "init", "--quiet", str(folder)),
            _git(
                folder, "fetch", "--quiet", "--depth=1", "--no-tags", self.repository, self.commit
            ),
            _git(folder, "-c", "advice.detachedHead=false", "checkout", "--quiet", "FETCH_HEAD"),
        )


def checkout(wanted: Checkout, *, runner: Runner) -> bool:
    """Fetch `wanted` unless it is there; whether something was fetched.

    The folder appears whole or not at all; two runs at once share it. Raises SourceError when
    the repository does not answer or does not have the commit.
    """
    with locked(wanted.folder.with_name(wanted.folder.name + ".lock")):
        if wanted.folder.is_dir():
            return False
        aside = wanted.folder.with_name(wanted.folder.name + ".part")
        shutil.rmtree(aside, ignore_errors=True)
        try:
            _fetch(wanted, aside, runner)
            aside.rename(wanted.folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return True


def resolve_ref(repository: str, ref: str, *, runner: Runner) -> str:
    """Ask a repository which commit a branch or tag is; a commit is returned as it is."""
    if is_commit(ref):
        return ref
    patterns = _names(ref)
    try:
        output = runner.capture(ask_ref(repository, ref))
    except CommandError as exc:
        raise _unreachable(repository, exc) from exc
    found: dict[str, str] = {}
    for line in output.splitlines():
        commit, _, name = line.partition("\t")
        found[name] = commit
    for name in (patterns[2], *patterns):
        if name in found:
            return found[name]
    raise SourceError(
        f"{repository}: has no branch or tag {ref!r}",
        hint="name a branch, a tag or a whole commit",
    )


def ask_ref(repository: str, ref: str) -> Command:
    """What asks a repository for the commit of a branch or tag."""
    return _git(None, "ls-remote", repository, *_names(ref))


def _names(ref: str) -> tuple[str, ...]:
    return f"refs/heads/{ref}", f"refs/tags/{ref}", f"refs/tags/{ref}^{{}}", ref


def identify(root: Path, *, runner: Runner) -> Source:
    """Say what the files below `root` are.

    The top of a git checkout is its commit; when files differ from it, it is dirty and has a
    digest too. Any other folder is identified by its digest alone.
    """
    if not (root / ".git").exists():
        return Source(repository="", commit="", digest=digest(root, _walk(root)))
    try:
        commit = runner.capture(_git(root, "rev-parse", "--verify", "HEAD")).strip()
    except CommandError:  # no commit yet
        return Source(repository="", commit="", digest=digest(root, _listed(root, runner)))
    dirty = bool(runner.capture(_git(root, "status", "--porcelain")).strip())
    return Source(
        repository=_remote(root, runner),
        commit=commit,
        dirty=dirty,
        digest=digest(root, _listed(root, runner)) if dirty else "",
    )


def digest(root: Path, names: Iterator[str]) -> str:
    """SHA-256 over path, mode and contents of files; a link counts as its target."""
    total = hashlib.sha256()
    for name in sorted(set(names)):
        path = root / name
        if path.is_symlink():
            kind, content = "link", os.fsencode(path.readlink())
        elif path.is_file():
            kind = "program" if os.access(path, os.X_OK) else "file"
            content = path.read_bytes()
        else:  # deleted, or a submodule that is not there
            kind, content = "none", b""
        total.update(f"{kind} {hashlib.sha256(content).hexdigest()} ".encode())
        total.update(os.fsencode(name) + b"\0")
    return total.hexdigest()


def _fetch(wanted: Checkout, folder: Path, runner: Runner) -> None:
    init, fetch, take = wanted.commands(folder)
    runner.capture(init)
    try:
        runner.capture(fetch)
    except CommandError as exc:
        refused = "unadvertised" in exc.detail or "not our ref" in exc.detail
        if not (wanted.ref and refused):
            raise _unreachable(wanted.repository, exc) from exc
        by_name = (*fetch.argv[:-1], wanted.ref)
        try:
            runner.capture(Command(argv=by_name, cwd=fetch.cwd, env=fetch.env))
        except CommandError as again:
            raise _unreachable(wanted.repository, again) from again
    runner.capture(take)
    found = runner.capture(_git(folder, "rev-parse", "HEAD")).strip()
    if found != wanted.commit:
        raise SourceError(
            f"{wanted.repository}: {wanted.ref} is {found}, not {wanted.commit}",
            hint="the branch or tag moved: correct the commit in ci/pins.yaml",
        )


def _listed(root: Path, runner: Runner) -> Iterator[str]:
    """Tracked files and those that are neither tracked nor ignored."""
    command = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    yield from filter(None, runner.capture(command).split("\0"))


def _walk(root: Path) -> Iterator[str]:
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if not _NOT_SOURCES.match(name)]
        here = Path(folder)
        links = [name for name in names if (here / name).is_symlink()]
        for name in (*files, *links):
            if not _NOT_SOURCES.match(name):
                yield (here / name).relative_to(root).as_posix()


def _remote(root: Path, runner: Runner) -> str:
    """The URL of `origin`, without a password that may be in it; "" when there is none."""
    try:
        url = runner.capture(_git(root, "config", "--get", "remote.origin.url")).strip()
    except CommandError:
        return ""
    return without_secrets(url) if urlsplit(url).scheme else url


def _git(folder: Path | None, *arguments: str) -> Command:
    return Command(argv=(*_SAFE, *arguments), cwd=folder, env=_ENV)


def _unreachable(repository: str, exc: CommandError) -> SourceError:
    said = exc.detail.strip().splitlines()
    return SourceError(
        f"{repository}: {said[-1] if said else exc}",
        hint="check the URL, the network and the proxy, or give a checkout: --jax-source-dir",
    )
