"""Git as far as sources need it: a shallow checkout of one commit, and what a folder is.

Every command runs with the user's git; nothing asks for a password, runs a hook of the tree or
writes into a folder the user named.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from msgspec import Meta
from packaging.version import InvalidVersion, Version

from rocwheel.base import files
from rocwheel.base.errors import CommandError, SourceError
from rocwheel.base.process import Command, Runner
from rocwheel.base.values import Plain, Sha256OrNone, Value
from rocwheel.base.versions import is_commit

# The tree decides nothing here: no prompt, no monitor program of its configuration, and a folder
# owned by another user is only read:
# https://git-scm.com/docs/git-config#Documentation/git-config.txt-safedirectory
_ENV: Final = {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_REPLACE_OBJECTS": "1"}
# The user's configuration is for reaching servers (proxies, credentials): nothing else sees it.
_OURS: Final = {**_ENV, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
_REMOTE: Final = frozenset({"fetch", "ls-remote"})
_SAFE: Final = ("git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false")
_FETCH: Final = ("fetch", "--quiet", "--no-tags", "--filter=tree:0")  # commits, and no file
_OTHERS: Final = ("--others", "--exclude-per-directory=.gitignore")
_NOT_SOURCES: Final = re.compile(r"(\.git|__pycache__|bazel-[^/]*)\Z")


class Source(Value, frozen=True, kw_only=True):
    """Where something came from: enough to fetch exactly it again."""

    repository: str  # URL, or "" for a tree without one
    commit: Annotated[
        str, Meta(pattern=r"\A([0-9a-f]{40})?\Z")
    ]  # 40 hex digits, or "" where only `digest` identifies it
    dirty: bool = False
    digest: Sha256OrNone = ""  # SHA-256 of the files, for trees that are not a clean commit


class Checkout(Plain, frozen=True, kw_only=True):
    """One commit of a repository, to lie at `folder`; nothing is fetched when it is there."""

    repository: str
    ref: str  # a branch or tag that holds the commit, tried when a server gives no bare commits
    commit: str
    folder: Path
    timeout: float | None = None  # seconds that a server may take; None: as long as it likes

    def commands(self, folder: Path) -> tuple[Command, ...]:
        """Return what fetches the commit into `folder`."""
        return (
            _git(None, "init", "--quiet", str(folder)),
            # what a manifest calls it, from which a gate fetches it again
            _git(folder, "config", "remote.origin.url", public(self.repository)),
            _git(
                folder, "fetch", "--quiet", "--depth=1", "--no-tags", self.repository, self.commit,
                timeout=self.timeout,
            ),
            _git(folder, "-c", "advice.detachedHead=false", "checkout", "--quiet", "FETCH_HEAD"),
        )  # fmt: skip


def checkout(wanted: Checkout, *, runner: Runner) -> bool:
    """Fetch `wanted` unless it is there; return whether something was fetched.

    The folder appears whole or not at all; two runs at once share it. Raises SourceError when
    the repository does not answer or does not have the commit.
    """
    with files.locked(wanted.folder.with_name(wanted.folder.name + ".lock")):
        if wanted.folder.is_dir():
            return False
        with files.whole_folder(wanted.folder) as aside:
            _fetch(wanted, aside, runner)
    return True


def resolve_ref(repository: str, ref: str, *, runner: Runner) -> str:
    """Ask a repository for the commit of a branch or tag; a commit is returned as it is."""
    if is_commit(ref):
        return ref
    patterns = [f"refs/tags/{ref}^{{}}", f"refs/heads/{ref}", f"refs/tags/{ref}", ref]
    if ref.startswith("refs/"):  # a tag and no branch of its name
        patterns = [f"{ref}^{{}}", ref]
    commits = _remote_refs(repository, *patterns, runner=runner)
    for name in patterns:
        if name in commits:
            return commits[name]
    raise SourceError(
        f"{repository}: has no branch or tag {ref!r}", hint="name a branch, a tag or a whole commit"
    )


def tagged(repository: str, prefix: str, *, runner: Runner) -> dict[Version, str]:
    """Return the releases among a repository's tags, `<prefix><version>`, with the tags' names.

    Of several tags for one version (`v4`, `v4.0.0`) the longest counts.
    """
    tags: dict[Version, str] = {}
    for listed in _remote_refs(repository, f"refs/tags/{prefix}*", runner=runner):
        name = listed.removeprefix("refs/tags/")
        try:
            version = Version(name.removeprefix(prefix))
        except InvalidVersion:
            continue
        if not version.is_prerelease and len(name) > len(tags.get(version, "")):
            tags[version] = name
    return tags


def _remote_refs(repository: str, *patterns: str, runner: Runner) -> dict[str, str]:
    try:
        output = runner.capture(_git(None, "ls-remote", repository, *patterns))
    except CommandError as exc:
        raise _unreachable(repository, exc) from exc
    lines = (line.partition("\t") for line in output.splitlines())
    return {name: commit for commit, _, name in lines}


def log(repository: str, old: str, new: str, *, runner: Runner) -> tuple[str, ...]:
    """Return the commits between two tags, the newest first; no file is fetched.

    Raises CommandError for a server that gives no part of a history.
    """
    with _scratch(runner) as git:
        git(*_FETCH, f"--shallow-exclude={old}", repository, f"refs/tags/{new}")
        return tuple(git("log", "--format=%h %s", "FETCH_HEAD").splitlines())


@contextmanager
def _scratch(runner: Runner) -> Iterator[Callable[..., str]]:
    with tempfile.TemporaryDirectory(prefix="rocwheel-git-") as folder:
        runner.capture(_git(None, "init", "--quiet", "--bare", folder))
        yield lambda *words, timeout=None: runner.capture(
            _git(Path(folder), *words, timeout=timeout)
        )


@contextmanager
def history(wanted: Mapping[str, Sequence[str]], *, runner: Runner) -> Iterator[Callable[..., str]]:
    """Yield what runs git in a bare repository that has these commits and all before them.

    No file is fetched. Raises SourceError for a repository that lacks a commit.
    """
    with _scratch(runner) as git:
        for repository, commits in wanted.items():
            try:
                git(*_FETCH, repository, *commits, timeout=1800)
            except CommandError as exc:
                raise _unreachable(repository, exc) from exc
        yield lambda *words: git(*words).strip()


def day_of(repository: str, commit: str, *, runner: Runner) -> date:
    """Return the day of a commit, UTC; no file is fetched. Raises SourceError."""
    with _scratch(runner) as git:
        try:
            git(*_FETCH, "--depth=1", repository, commit, timeout=60)
            seconds = git("show", "-s", "--format=%ct", commit)
        except CommandError as exc:
            raise _unreachable(repository, exc) from exc
    return datetime.fromtimestamp(int(seconds), tz=timezone.utc).date()


def head(root: Path, *, runner: Runner) -> str:
    """Return the commit checked out at `root`; "" for a folder that is no checkout, or empty."""
    if not (root / ".git").exists():
        return ""
    try:
        return runner.capture(_git(root, "rev-parse", "--verify", "HEAD")).strip()
    except CommandError:  # no commit yet
        return ""


def origin(root: Path, *, runner: Runner) -> str:
    """Return the public repository that `root` was cloned from; "" where there is none."""
    with suppress(CommandError):
        words = ("config", "--local", "--get", "remote.origin.url")
        return public(runner.capture(_git(root, *words)).strip())
    return ""


def identify(root: Path, *, runner: Runner) -> Source:
    """Identify the files below `root`: their commit, or a digest.

    The top of a git checkout is its commit; when files differ from it, it is dirty and has a
    digest too. Any other folder is identified by its digest alone. The configuration of the user
    and of the checkout decides nothing: what is compared is the commit's tree with the files.
    """
    commit = head(root, runner=runner)
    if not commit:
        return Source(repository="", commit="", digest=digest(root, _walk(root)))
    with tempfile.TemporaryDirectory(prefix="rocwheel-git-") as name:
        bare = _Bare(root=root, folder=Path(name), runner=runner)
        bare.read(commit)
        dirty = bare.differs()
        return Source(
            repository=origin(root, runner=runner),
            commit=commit,
            dirty=dirty,
            digest=digest(root, bare.listed()) if dirty else "",
        )


class _Bare(Plain, frozen=True, kw_only=True):
    """A checkout seen through a repository of our own, which has its objects and nothing else.

    So nothing in its configuration counts: no filter or monitor program runs, no file is assumed
    to be unchanged, nothing is ignored but by the tree's own .gitignore files (gitignore(5),
    gitattributes(5), git-update-index(1)).
    """

    root: Path
    folder: Path
    runner: Runner

    def read(self, commit: str) -> None:
        """Make the repository, with an index that is the tree of `commit`."""
        where = _git(self.root, "rev-parse", "--git-path", "objects")
        objects = self.root / self.runner.capture(where).strip()
        self.runner.capture(_git(None, "init", "--quiet", "--bare", str(self.folder)))
        alternates = self.folder / "objects" / "info" / "alternates"
        alternates.write_text(f"{objects.resolve()}\n", encoding="utf-8")
        (self.folder / "HEAD").write_text(f"{commit}\n", encoding="ascii")
        self._ask("read-tree", commit)

    def differs(self) -> bool:
        """Return whether a tracked file is not as the commit has it, or another file is there.

        A submodule counts as changed when its own checkout is.
        """
        if self._ask("status", "--porcelain", "-uno", "--ignore-submodules=dirty"):
            return True
        if self._list(*_OTHERS):
            return True
        entries = (entry.partition("\t") for entry in self._list("--stage"))
        modules = (self.root / name for about, _, name in entries if about.startswith("160000 "))
        return any(
            identify(module, runner=self.runner).dirty
            for module in modules
            if (module / ".git").exists()
        )

    def listed(self) -> Iterator[str]:
        yield from self._list("--cached")
        yield from self._list(*_OTHERS)

    def _list(self, *which: str) -> tuple[str, ...]:
        return tuple(filter(None, self._ask("ls-files", "-z", *which).split("\0")))

    def _ask(self, *arguments: str) -> str:
        tree = (f"--git-dir={self.folder}", f"--work-tree={self.root}", "-c", "core.bare=false")
        return self.runner.capture(_git(self.root, *tree, *arguments))


def public(url: str) -> str:
    """Return one spelling of a public repository, however it was cloned; "" for one that is none.

    No credentials, query or `.git`; ssh and `host:path` (git-clone(1), "GIT URLS") become https.
    """
    scp = re.fullmatch(r"(?:[^/@:]+@)?([A-Za-z0-9][A-Za-z0-9.-]+):(?!//)/?(.+)", url)
    if scp:
        host, path, scheme, port = scp[1], scp[2], "https", None
    else:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            return ""
        if parts.scheme not in {"http", "https", "ssh", "git", "git+ssh"} or not parts.hostname:
            return ""
        host, path = parts.hostname, parts.path.lstrip("/")
        scheme = "http" if parts.scheme == "http" else "https"
        if parts.scheme not in {"http", "https"} or port in {80, 443}:
            port = None
    path = path.rstrip("/").removesuffix(".git").rstrip("/")
    return f"{scheme}://{host.lower()}{f':{port}' if port else ''}/{path}" if path else ""


def digest(root: Path, names: Iterator[str]) -> str:
    """SHA-256 over path, mode and contents of files; a link counts as its target."""
    total = hashlib.sha256()
    for name in sorted(set(names)):
        path = root / name
        if path.is_symlink():
            kind, content = "link", files.sha256([os.fsencode(path.readlink())])
        elif path.is_file():
            kind = "program" if os.access(path, os.X_OK) else "file"
            content = files.sha256(path)
        else:  # deleted, or a submodule that is not there
            kind, content = "none", files.sha256([])
        total.update(f"{kind} {content} ".encode())
        total.update(os.fsencode(name) + b"\0")
    return total.hexdigest()


def _fetch(wanted: Checkout, folder: Path, runner: Runner) -> None:
    *begin, fetch, take = wanted.commands(folder)
    for command in begin:
        runner.capture(command)
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
    commit = runner.capture(_git(folder, "rev-parse", "HEAD")).strip()
    if commit != wanted.commit:
        raise SourceError(
            f"{wanted.repository}: {wanted.ref} is {commit}, not {wanted.commit}",
            hint="the branch or tag moved: correct the commit in ci/pins.yaml",
        )


def _walk(root: Path) -> Iterator[str]:
    for folder, names, beside in os.walk(root):
        names[:] = [name for name in names if not _NOT_SOURCES.match(name)]
        here = Path(folder)
        links = [name for name in names if (here / name).is_symlink()]
        for name in (*beside, *links):
            if not _NOT_SOURCES.match(name):
                yield (here / name).relative_to(root).as_posix()


def _git(folder: Path | None, *arguments: str, timeout: float | None = None) -> Command:
    env = _ENV if _REMOTE.intersection(arguments) else _OURS
    return Command(argv=(*_SAFE, *arguments), cwd=folder, env=env, timeout=timeout)


def _unreachable(repository: str, exc: CommandError) -> SourceError:
    said = exc.detail.partition("\n\nPlease make sure")[0].strip().splitlines()
    if said[1:] and said[-1] == "fatal: Could not read from remote repository.":
        said.pop()  # above it stands why: what ssh said
    is_gone = "not our ref" in exc.detail
    first = "was its history rewritten?" if is_gone else "check the URL, the network and the proxy"
    hint = f"{first}; a build takes a checkout: --jax-source-dir"
    return SourceError(f"{repository}: {said[-1] if said else exc}", hint=hint)
