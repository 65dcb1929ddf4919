"""The archives that JAX's WORKSPACE declares, made of clones, for a Bazel without a network.

One whose digest comes out as declared goes into a repository cache, or, where patches belong to it,
becomes a folder. Other folders are the same commit without that digest (the clone lacks a file, or the
archive was packed by hand), another version, or a stub: its BUILD file, or the targets others name.
"""

from __future__ import annotations

import builtins
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkouts import FOLDER, Commit

if TYPE_CHECKING:
    from collections.abc import Iterator

# Repositories whose rules are run too, and which of their files; what others declare nothing needs.
EVALUATED = {
    "xla": ("",),
    "rules_ml_toolchain": ("cc/deps", "common:repo.bzl"),
    "com_google_protobuf": (":protobuf_deps.bzl",),
}
# gRPC is too large for most copies. What its own macro declares, others need: it is in the stub.
GRPC = """
load("@com_google_protobuf//:protobuf_deps.bzl", "protobuf_deps")
load("@rules_java//java:rules_java_deps.bzl", "compatibility_proxy_repo")
def grpc_extra_deps():
    protobuf_deps()
    compatibility_proxy_repo()
"""
MACRO = """
def {}(*_, name = None, **__):
    if name and hasattr(native, "cc_library"):
        native.cc_library(name = name, visibility = ["//visibility:public"])
"""
# A version in an address: of an archive, of a release's asset, of a file.
VERSION = re.compile(
    r"/archive/(?:refs/tags/)?([\w.-]+?)(?:/[^/]+)?\.(?:tar\.gz|zip)$"
    r"|/releases/download/([^/]+)/|-(\d[\w.]*?)\.(?:tar|zip)"
)


class _Any:
    """Stands for what is not evaluated: a rule, a struct, a value of another repository."""

    def __call__(self, *_: object, **__: object) -> _Any:
        return self

    def __getattr__(self, name: str) -> _Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __iter__(self) -> Iterator[object]:
        return iter(())

    __getitem__ = __or__ = __ror__ = __add__ = __radd__ = __mod__ = __call__


class _Globals(dict):
    def __missing__(self, name: str) -> object:
        return getattr(builtins, name, _Any())


class Declared:
    """The archives of a WORKSPACE, which is run as the Python that Starlark nearly is."""

    def __init__(self, main: Commit) -> None:
        self.archives: dict[str, dict[str, Any]] = {}
        self.existing_rule = self.archives.get  # what `native` is asked
        self.existing_rules = self.archives.copy
        self.files: dict[tuple[Commit, str], dict[str, Any]] = {}
        self.main = main
        self._run(main, "WORKSPACE")
        protobuf = self.commit_of("com_google_protobuf")
        if protobuf:
            self._run(protobuf, "protobuf_deps.bzl")["protobuf_deps"]()

    def _run(self, commit: Commit, path: str) -> dict[str, Any]:
        if (commit, path) not in self.files:
            names = self.files[commit, path] = _Globals(native=self, Label=str)

            def load(label: str, *same: str, **other: str) -> None:
                defined = self._defined(label, commit, Path(path).parent)
                names.update({new: defined.get(new, _Any()) for new in same})
                names.update({new: defined.get(old, _Any()) for new, old in other.items()})

            names["load"] = load
            exec(compile(commit.text(path), path, "exec"), names)
            if path == "third_party/repo.bzl":
                names["tf_http_archive"] = self._declare(commit)
        return self.files[commit, path]

    def _defined(self, label: str, commit: Commit, package: Path) -> dict[str, Any]:
        if label.endswith(("repo:http.bzl", ":mirrored_http_archive.bzl")):
            return dict.fromkeys(("http_archive", "mirrored_http_archive"), self._declare(commit))
        repository, _, inner = label.rpartition("//")
        inner = inner if "//" in label else f"{package}/{label}"
        where = self._repository(repository, commit)
        if where and inner.startswith(EVALUATED.get(repository.strip("@"), "")):
            return self._run(where, os.path.normpath(inner.replace(":", "/").lstrip("/")))
        return {}

    def _declare(self, by: Commit) -> Any:
        return lambda name, **said: self.archives.setdefault(name, {**said, "by": by})

    def __getattr__(self, name: str) -> _Any:
        return _Any()

    def _repository(self, text: str, by: Commit) -> Commit | None:
        name = text.strip("@")
        return self.commit_of(name) if name else self.main if text else by

    def commit_of(self, name: str) -> Commit | None:
        """The declared commit of a repository that is evaluated, if a clone has it."""
        if name not in EVALUATED or name not in self.archives:
            return None
        found, exact = clone_of(self.archives[name])
        return found if exact else None

    def text(self, by: Commit, label: str) -> str:
        """The file of a label; nothing where it is not here."""
        repository, _, path = label.rpartition("//")
        where, place = self._repository(repository, by), path.replace(":", "/").lstrip("/")
        there = where and where.git("ls-tree", "--name-only", where.name, place)
        return where.text(place) if where and there else ""


def address(said: dict[str, Any]) -> str:
    return str((said.get("urls") or [said["url"]])[-1])


def clone_of(said: dict[str, Any]) -> tuple[Commit | None, bool]:
    """The commit of an archive, and whether it is the declared one: else the newest there is."""
    url = address(said)
    parts = url.split("/")
    forge = parts[2] == "github.com" or "/-/archive/" in url
    name = parts[4] if forge else re.sub(r"[-_]v?\d.*", "", parts[-1])
    plain = not (FOLDER / name / "HEAD").exists()  # sources of a distribution, unpacked
    if not (FOLDER / name).exists() or (plain and "/archive/" not in url):
        return None, False
    match = VERSION.search(url)
    version = next(filter(None, match.groups()), "") if match else ""
    for ref in (version, f"v{version}", f"{name}-{version}", f"{name}-{version.replace('.', '_')}"):
        if version and not plain and Commit(name, ref).is_here():
            return Commit(name, ref), True
    return Commit(name, "HEAD"), False


def archived(commit: Commit, said: dict[str, Any], cache: Path) -> bool:
    """Make the archive again, and keep it in `cache` if its digest is the declared one."""
    kind = "zip" if address(said).endswith(".zip") else "tar.gz"
    prefix = said.get("strip_prefix", "").partition("/")[0]
    git = ["git", "-C", str(FOLDER / commit.repository), "-c", "tar.tar.gz.command=gzip -cn"]
    argv = [*git, "archive", f"--format={kind}", f"--prefix={prefix}/", commit.name]
    for zone in ("UTC", "America/Los_Angeles")[: 1 + (kind == "zip")]:  # a zip has local times
        env = {**os.environ, "TZ": zone}
        made = subprocess.run(argv, check=False, capture_output=True, env=env).stdout
        digest = hashlib.sha256(made).hexdigest()
        if digest == said.get("sha256"):
            file = cache / "content_addressable" / "sha256" / digest / "file"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(made)
            return True
    return False


def checked_out(commit: Commit, into: Path) -> Path:
    """A clone at a commit, without the files that a partial repository lacks."""
    options = ("-q", "--shared", "--no-checkout")
    subprocess.run(["git", "clone", *options, FOLDER / commit.repository, into], check=True)
    argv = ["git", "-C", into, "checkout", "-q", commit.name]
    subprocess.run(argv, check=False, capture_output=True)
    return into


def unpacked(commit: Commit, said: dict[str, Any], into: Path, declared: Declared) -> bool:
    """Write the folder that the rule would make of an archive; False if the clone lacks it."""
    below = said.get("strip_prefix", "").partition("/")[2].rstrip("/")
    source, take = FOLDER / commit.repository, shutil.copytree
    if (source / "HEAD").exists():
        source, take = checked_out(commit, into.with_name(f"{into.name}.clone")), shutil.move
    if not (source / below).is_dir():
        return False
    take(source / below, into)
    words = ("patch", "-p1", "--batch", "--forward", "--no-backup-if-mismatch", "-r-")
    for patch in said.get("patch_file", ()):
        text = declared.text(said["by"], patch).encode()
        subprocess.run(words, cwd=into, input=text, check=False, capture_output=True)
    add_files(said, into, declared)
    return True


def add_files(said: dict[str, Any], into: Path, declared: Declared) -> None:
    """Write the BUILD file that the rule adds, and the mark of a repository."""
    for label in filter(None, (said.get("system_build_file"), said.get("build_file"))):
        (into / "BUILD.bazel").write_text(declared.text(said["by"], label))
    (into / "WORKSPACE").touch()


def stub(name: str, said: dict[str, Any], into: Path, declared: Declared) -> None:
    """Write a repository without sources."""
    into.mkdir(parents=True)
    add_files(said, into, declared)
    if said.get("build_file"):
        return
    packages: dict[str, set[str]] = {"": set()}
    for tree in (declared.main, *filter(None, map(declared.commit_of, EVALUATED))):
        where = ["git", "-C", str(FOLDER / tree.repository), "grep", "-hE", "-A8", f"@{name}//"]
        argv = [*where, tree.name, "--", "*BUILD*", "*.bzl", "*.tpl", "WORKSPACE"]
        text = subprocess.run(argv, check=False, capture_output=True, text=True).stdout
        for package, target in re.findall(rf"@{name}//([\w./+-]*)(?::([\w./+-]+))?", text):
            packages.setdefault(package, set()).add(target or package.rpartition("/")[2])
        for path, symbols in re.findall(rf'load\(\s*"@{name}//([^"]+)"([^)]*)\)', text):
            file = into / path.replace(":", "/").lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a") as rules:
                for symbol in re.findall(r'"(\w+)"', symbols):
                    rules.write(GRPC if symbol == "grpc_extra_deps" else MACRO.format(symbol))
    for package, targets in packages.items():
        (into / package).mkdir(parents=True, exist_ok=True)
        rules = ['package(default_visibility = ["//visibility:public"])\n']
        named = {text for text in targets if text and not text.endswith((".bzl", ".py", "ges__"))}
        rules += [f'cc_library(name = "{target}")\n' for target in sorted(named)]
        (into / package / "BUILD").write_text("".join(rules))


def furnish(jax: Commit, folder: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Make every archive of a commit of JAX below `folder`: its kind by name, and Bazel's options."""
    declared, cache = Declared(jax), folder / "cache"
    kinds, options = dict[str, str](), [f"--repository_cache={cache}"]
    # an archive is found by its digest, whatever its address
    options += ["--repo_env=BAZEL_HTTP_RULES_URLS_AS_DEFAULT_CANONICAL_ID=0"]
    for name, said in declared.archives.items():
        commit, exact = clone_of(said)
        same = bool(commit and exact and name != "xla" and archived(commit, said, cache))
        # Debian's Bazel refuses patches whose line numbers are off, which GNU patch takes.
        if same and not said.get("patch_file"):
            kinds[name] = "exact"
            continue
        into = folder / "repositories" / name
        if name == "platforms":  # Bazel's own: its tools ask for more than the declared ones have
            into, kinds[name] = Path("/usr/share/bazel/tools/platforms"), "other version"
        elif commit and unpacked(commit, said, into, declared):
            kinds[name] = "exact" if same else "same commit" if exact else "other version"
        else:
            stub(name, said, into, declared)
            kinds[name] = "stub"
        options.append(f"--override_repository={name}={into}")
    return kinds, tuple(options)
