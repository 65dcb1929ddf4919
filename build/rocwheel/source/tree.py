"""Getting the sources of a build (a pin, a folder, overrides) as a checked source tree.

`plan` decides without touching anything; `resolve` fetches what is missing, checks the tree
against its layout and says exactly what it is. Nothing is ever written below a tree.
"""

import re
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from packaging.version import InvalidVersion, Version

from rocwheel.base import files
from rocwheel.base.console import Console
from rocwheel.base.download import without_secrets
from rocwheel.base.errors import CommandError, ConfigError, SourceError
from rocwheel.base.git import Checkout, Source, checkout, head, identify
from rocwheel.base.process import Command, Runner
from rocwheel.base.values import Plain, replace
from rocwheel.base.versions import CPYTHON_RANGE, CPYTHONS, PythonVersion, is_commit
from rocwheel.records.build_options import SourceOptions
from rocwheel.records.source_layout import Assignment, Layout, VersionClass, XlaPin
from rocwheel.source import bazelrc
from rocwheel.source.pins import Pin, PinnedWheel, Pins


@dataclass(frozen=True, kw_only=True)
class SourceRequest(SourceOptions):
    """A request for sources: pin, folders, overrides, each optional."""

    jax_branch: str = ""  # branch or tag that has the commit `jax_ref`
    bazel_options: tuple[str, ...] = ()  # of the user: they may turn bzlmod on
    is_snapshot: bool = False  # a developer's turn: no version or manifest names folders of theirs


class SourcePlan(Plain, frozen=True, kw_only=True):
    """Where the sources will be. `pin` is the release; for a folder, the release of its version."""

    root: Path
    pin: Pin | None
    checkout: Checkout | None  # None for a folder of the user's
    request: SourceRequest
    like: Pin | None = None  # what a commit of `jax_ref` is taken to be until it is here

    @property
    def commands(self) -> tuple[Command, ...]:
        """What `resolve` will run before it looks at the tree."""
        if self.checkout is None or self.checkout.folder.is_dir():
            return ()
        return self.checkout.commands(self.checkout.folder)


class SourceTree(Plain, frozen=True, kw_only=True):
    """A checkout that has the layout it should have."""

    root: Path
    workspace: Path  # the folder Bazel runs in
    layout: Layout
    version_class: VersionClass
    jax_version: str
    pythons: tuple[PythonVersion, ...]  # CPythons the tree can build for
    bazel: str  # version it wants, "" when it does not say
    jax: Source
    xla: Source  # all empty for a tree that builds no XLA
    xla_dir: Path | None  # when it overrides the tree's own
    xla_patches: tuple[str, ...] = ()  # of the tree's own patches, those this XLA has
    release: Pin | None = None  # the pin of this JAX version
    rc: bazelrc.RcFiles | None = None  # None where the tree is not here yet
    fixed_number: str | None = None  # in the wheels' names, where it is not ROCm's major
    modules: bool | None = False  # whether bzlmod is on; None: and there is no WORKSPACE
    warnings: tuple[str, ...] = ()

    @property
    def dirty(self) -> tuple[str, ...]:
        """Which sources are in no commit: changed ones, or a folder that is no checkout.

        A tree of no release that names no XLA, as the miniature, is no JAX and may be any folder.
        """
        is_jax = self.release or self.xla.commit
        unknown = bool(is_jax and self.jax.digest and not self.jax.commit)
        changed = (("JAX", self.jax.dirty or unknown), ("XLA", self.xla.digest))
        return tuple(name for name, is_changed in changed if is_changed)

    @property
    def jaxlib_origin(self) -> str:
        """Where jaxlib comes from: as the pin says for its commit, built for any other tree."""
        if self.release and self.jax.commit == self.release.commit and not self.jax.dirty:
            return self.release.jaxlib.origin
        return "built"

    @property
    def local_suffix(self) -> str:
        """The part of a wheel's local version for overrides: `.xla1a2b3c4d5.dirty`, or ""."""
        parts = []
        if self.release and self.jax.commit and self.jax.commit != self.release.commit:
            parts.append(f"jax{self.jax.commit[:9]}")
        if self.xla_dir:
            parts.append(f"xla{(self.xla.commit or self.xla.digest)[:9]}")
        if self.dirty:
            parts.append("dirty")
        return "".join(f".{part}" for part in parts)

    def upstream_jaxlib(self, python: PythonVersion) -> PinnedWheel:
        """Find the pinned jaxlib of the package index. Raises ConfigError if there is none."""
        wheel = self.release.jaxlib.wheels.get(str(python)) if self.release else None
        if wheel is None:
            raise ConfigError(
                f"jaxlib {self.jax_version} for CPython {python}: no upstream wheel is pinned",
                hint="build it with --jaxlib built, or add its SHA-256 to ci/pins.yaml",
            )
        return wheel

    def accept(self, pythons: Sequence[PythonVersion]) -> None:
        """Refuse a CPython the tree has no lock file for, and a tree without any."""
        if not pythons and not self.pythons:
            raise ConfigError(
                f"{self.root}: has no lock file of any CPython from {CPYTHON_RANGE}",
                hint="check it out whole: JAX has one for each CPython in build/",
            )
        for python in pythons:
            if python not in self.pythons:
                accepted = ", ".join(map(str, self.pythons)) or "none"
                known = f"{self.root} has no lock file for it"
                if self.rc is None:  # not read yet
                    known = f"the pin of JAX {self.jax_version} does not name it"
                raise ConfigError(
                    f"CPython {python}: {known}",
                    hint=f"JAX {self.jax_version} accepts: {accepted}",
                )


def plan(request: SourceRequest, *, pins: Pins, cache: Path) -> SourcePlan:
    """Decide where the sources come from; reads nothing but the pins. Raises ConfigError."""
    for given, what in (
        (request.jax_version, "a JAX version"),
        (request.jax_ref or request.jax_repository, "a JAX branch or repository"),
    ):
        if request.jax_source_dir and given:
            raise ConfigError(
                f"{request.jax_source_dir}: a folder and {what} were given",
                hint="drop one: a folder says itself which version it is",
            )
    check_repository(request.jax_repository, request.jax_ref)
    if request.jax_source_dir:
        return SourcePlan(root=request.jax_source_dir, pin=None, checkout=None, request=request)
    pin = pins.default
    if request.jax_version:
        pin = pins.find(request.jax_version, allow_unverified=request.allow_unverified_pin)
    like = None
    if request.jax_ref:
        repository = request.jax_repository or pin.repository
        like = replace(pin, repository=repository, ref=request.jax_branch, commit=request.jax_ref)
    taken, own = (like, None) if like else (pin, pin)
    wanted = _checkout(taken.repository, taken.ref, taken.commit, cache)
    return SourcePlan(root=wanted.folder, pin=own, checkout=wanted, request=request, like=like)


def at_commit(repository: str, ref: str, commit: str, cache: Path) -> SourcePlan:
    """Plan to fetch a commit that no pin names; `ref` is a branch or tag that has it."""
    wanted = _checkout(repository, ref, commit, cache)
    return SourcePlan(root=wanted.folder, pin=None, checkout=wanted, request=SourceRequest())


def check_repository(repository: str, ref: str) -> None:
    """Refuse a JAX repository with a password in it, or without a commit. Raises ConfigError."""
    parts = urlsplit(repository)
    if parts.password or parts.query or (parts.username and parts.scheme in {"http", "https"}):
        raise ConfigError(
            f"{without_secrets(repository)}: JAX repository with a password in it",
            hint="leave it out; git's credential helper gives it (git help credentials)",
        )
    if repository and not ref:
        raise ConfigError(
            f"{repository}: which commit?", hint="add --jax-ref with a branch or commit"
        )


def resolve(planned: SourcePlan, *, pins: Pins, runner: Runner, console: Console) -> SourceTree:
    """Fetch what is missing and check the tree. Raises SourceError, ConfigError, HostError."""
    if planned.checkout:
        _take(planned.checkout, runner, console)
    root = planned.root
    if not root.is_dir():
        raise SourceError(f"{root}: no such folder", hint="name the top of a JAX checkout")
    known = [pins.layouts[planned.pin.layout]] if planned.pin else pins.layouts.values()
    # that with the fewest missing markers; `_check_markers` has the last word
    layout = min(known, key=lambda each: len(_missing(root, each)))
    _check_markers(root, layout)
    _check_labels(root / layout.workspace, layout)
    version = _version(root, layout.version)
    workspace = root / layout.workspace
    own = planned.request.bazel_options
    version_class, odd = _class_of(root, layout, version, own)
    rc = bazelrc.read_rc(workspace, version_class.startup_files)
    modules = bazelrc.modules(workspace, rc, own)
    wanted, fixed = workspace / ".bazelversion", layout.fixed_number
    number = fixed.pattern.search(text_of(root / fixed.file)) if fixed else None
    pin = planned.pin or next((pin for pin in pins.pins if pin.name == str(version)), None)
    if planned.pin and str(version) != planned.pin.version:
        raise SourceError(
            f"{root}: is JAX {version}, the pin says {planned.pin.version}",
            hint="correct ci/pins.yaml",
        )
    is_own = False  # but the user's
    with suppress(SourceError):  # a tree that only their options make complete
        is_own = modules == bazelrc.modules(workspace, rc)
    by_module = modules is not False
    taken, applied, lacking = _xla(planned, layout, runner, by_module=by_module, is_own=is_own)
    linker = layout.xla.linkers.get(taken.commit, version_class.linker)
    tree = SourceTree(
        root=root,
        workspace=workspace,
        layout=layout,
        version_class=replace(version_class, linker=linker),
        jax_version=str(version),
        pythons=tuple(
            python
            for python in map(PythonVersion.parse, CPYTHONS)
            if layout.lock_files.accepts(python, root)
        ),
        bazel=text_of(wanted).strip() if wanted.is_file() else "",
        jax=_identified(planned, root, pin, runner),
        xla=taken,
        xla_dir=planned.request.xla_source_dir,
        xla_patches=applied,
        release=pin,
        rc=rc,
        fixed_number=number[1] if number else None,
        modules=modules,
        warnings=(
            *odd,
            *((f"JAX {version}: {version_class.remark}",) if version_class.remark else ()),
            *lacking,
            *(
                f"{root / name}: your own Bazel options are part of this build"
                for name in layout.personal
                if (root / name).exists()
            ),
        ),
    )
    for warning in tree.warnings:
        console.warn(warning, once=True)
    return tree


def preview(planned: SourcePlan, *, pins: Pins, runner: Runner, console: Console) -> SourceTree:
    """Return the tree `resolve` would give, fetching nothing: the pin stands for what is absent."""
    pin, request = planned.pin or planned.like, planned.request
    if pin is None or planned.root.is_dir():
        return resolve(planned, pins=pins, runner=runner, console=console)
    layout, name = pins.layouts[pin.layout], request.jax_branch or pin.commit
    version_class = _class_by_version(planned.root, layout, Version(pin.version))
    is_on = version_class.marks.modules or False
    known = {*version_class.own_configs, *version_class.marks.configs}
    options = (  # any other config may turn it on: it is not here yet
        "--enable_bzlmod" if name == "--config" and config not in known else f"{name}={config}"
        for name, _, config in (o.partition("=") for o in bazelrc.joined(request.bazel_options))
    )
    modules = bazelrc.switched(option.rstrip("=") for option in options).get("bzlmod", is_on)
    for item in layout.classes:
        if item.versions == version_class.versions and item.marks.modules is modules:
            version_class = item
    later = f"JAX {name} is not here yet: taken to be like {pin.version} (--jax-version)"
    return SourceTree(
        root=planned.root,
        workspace=planned.root / layout.workspace,
        layout=layout,
        version_class=version_class,
        jax_version=pin.version,
        pythons=tuple(pin.pythons),
        bazel=pin.bazel,
        jax=Source(repository=pin.repository, commit=pin.commit),
        xla=_identified(planned, request.xla_source_dir, None, runner)
        if request.xla_source_dir
        else Source(
            repository=layout.xla.repository,
            commit="" if planned.like or modules != is_on else pin.xla_commit or "",
        ),
        xla_dir=request.xla_source_dir,
        release=pins.find(pin.name, allow_unverified=True),
        modules=modules,
        warnings=(later,) if planned.like else (),
    )


def _checkout(repository: str, ref: str, commit: str, cache: Path) -> Checkout:
    name = repository.rstrip("/").rpartition("/")[2].removesuffix(".git") or "repository"
    key = files.sha256(repository.encode())[:12]
    return Checkout(
        repository=repository,
        ref=ref,
        commit=commit,
        folder=cache / "sources" / f"{name}-{key}" / commit,
    )


def _take(wanted: Checkout, runner: Runner, console: Console) -> None:
    if checkout(wanted, runner=runner):
        console.info(f"fetched {wanted.repository} at {wanted.commit}")
    identity = identify(wanted.folder, runner=runner)
    if identity.commit != wanted.commit or identity.dirty:
        raise SourceError(
            f"{wanted.folder}: was changed after it was fetched",
            hint="remove the folder; it is fetched again",
        )


def _identified(planned: SourcePlan, folder: Path, pin: Pin | None, runner: Runner) -> Source:
    """Return what lies in a folder, compared file by file, but in a developer's turn.

    There only the pinned commit itself counts: its jaxlib may be the released one.
    """
    if planned.request.is_snapshot:
        released = pin.commit if pin and pin.jaxlib.origin == "upstream" else ""
        if not released or head(folder, runner=runner) != released:
            return Source(repository="", commit="")
    return identify(folder, runner=runner)


def _missing(root: Path, layout: Layout) -> list[str]:
    return [m for m in layout.markers if not any((root / name).exists() for name in m.split("|"))]


def _check_markers(root: Path, layout: Layout) -> None:
    if missing := _missing(root, layout):
        lacks = ", ".join(missing).replace("|", " or ")
        raise SourceError(
            f"{root}: no {layout.name} source tree, it lacks {lacks}",
            hint="name the top of a checkout of JAX",
        )
    for name in layout.left_behind:
        if (root / name).exists():
            raise SourceError(
                f"{root / name}: options of an earlier build, Bazel would use them here too",
                hint="remove the file; JAX's build.py makes it again when it needs it",
            )


def _check_labels(workspace: Path, layout: Layout) -> None:
    # Bazel would report a missing one only when it reaches that wheel, perhaps an hour later.
    for label in layout.targets.values():
        if not has_target(workspace, label):
            package, _, name = label.removeprefix("//").partition(":")
            raise SourceError(
                f"{workspace / package / 'BUILD.bazel'}: has no target {name}, which the "
                f"{layout.name} layout builds",
                hint="check out the whole release; a JAX that renamed it needs `targets` in "
                "ci/layouts.yaml",
            )


def has_target(workspace: Path, label: str) -> bool:
    """Return whether the BUILD file of a label's package names it, if only for a macro."""
    package, _, name = label.removeprefix("//").partition(":")
    files = [workspace / package / file for file in ("BUILD.bazel", "BUILD")]
    text = next((text_of(file) for file in files if file.is_file()), "")
    return f'"{name}"' in text


def _class_of(
    root: Path, layout: Layout, version: Version, options: Sequence[str]
) -> tuple[VersionClass, tuple[str, ...]]:
    """Return the class whose marks the tree has; also warnings, where its version says another one.

    Development commits carry new configs under an old number, so what the tree has decides. Where
    it has the marks of several classes the version chooses among them, else the latest, which needs
    most. Raises SourceError for a version before all classes.
    """
    if Version(version.base_version) < layout.oldest:
        raise SourceError(
            f"{root}: JAX {version} is too old: rocwheel builds {layout.oldest} and later",
            hint="take a newer JAX, or the build script of that release",
        )
    fitting = [item for item in layout.classes if not _lacking(root, layout, item, options)]
    said = layout.version_class(version)
    warnings: list[str] = []
    if said and said in fitting:
        chosen = said
    elif fitting:
        holding = [item for item in fitting if version.base_version in item.versions]
        chosen = (holding or fitting)[-1]
        if not holding:
            warnings.append(f"{root}: says it is JAX {version}, but has what {chosen} has")
    else:
        chosen = _class_by_version(root, layout, version)
        lacking = ", ".join(_lacking(root, layout, chosen, options))
        warnings.append(f"{root}: JAX {version} should have {lacking}")
    if version.base_version not in layout.known:
        warnings.append(
            f"JAX {version} is newer than what rocwheel was compared with ({layout.known}): "
            "its configs, flags, labels and startup files are looked up, nothing else is known"
        )
    return chosen, tuple(warnings)


def _lacking(
    root: Path, layout: Layout, candidate: VersionClass, options: Sequence[str]
) -> list[str]:
    workspace = root / layout.workspace
    missing = [name for name in candidate.startup_files if not (workspace / name).is_file()]
    if missing:
        return missing
    rc, marks = bazelrc.read_rc(workspace, candidate.startup_files), candidate.marks
    defined, wants = rc.configs, marks.modules
    is_on = wants is not None and bazelrc.modules(workspace, rc, options) is not False
    return [
        *(["bzlmod"] if wants and not is_on else ()),
        *(["no bzlmod"] if wants is False and is_on else ()),
        *(f"--config={name}" for name in marks.configs if name not in defined),
        *(f"no --config={name}" for name in marks.without if name in defined),
        *(
            f"{text!r} in {name}"
            for name, text in marks.contains.items()
            if not (workspace / name).is_file() or text not in text_of(workspace / name)
        ),
    ]


def _class_by_version(root: Path, layout: Layout, version: Version) -> VersionClass:
    if (version_class := layout.version_class(version)) is None:
        raise SourceError(
            f"{root}: JAX {version} has no class in layout {layout.name}",
            hint="add one to ci/layouts.yaml: docs/how-to/add-a-jax-version.md",
        )
    return version_class


def _version(root: Path, where: Assignment) -> Version:
    if (text := assigned(root / where.file, where.variable)) is None:
        raise SourceError(
            f'{root / where.file}: has no line `{where.variable} = "…"`',
            hint="use the file as JAX has it",
        )
    try:
        return Version(text)
    except InvalidVersion as exc:
        raise SourceError(
            f"{root / where.file}: {text!r} is not a version", hint="use the file as JAX has it"
        ) from exc


def _xla(
    planned: SourcePlan, layout: Layout, runner: Runner, *, by_module: bool, is_own: bool
) -> tuple[Source, tuple[str, ...], tuple[str, ...]]:
    if own := planned.request.xla_source_dir:
        wanted = patches(planned.root, layout.xla, by_module=by_module)
        applied, lacking = compared(own, wanted, runner=runner)
        return _identified(planned, own, None, runner), applied, lacking
    found = pinned(planned.root, layout.xla, by_module=by_module)
    pin = planned.pin if is_own else None  # a tree may name another one in MODULE.bazel
    if found.commit and pin and pin.xla_commit not in (None, found.commit):
        raise SourceError(
            f"{planned.root}: names XLA {found.commit}, its pin another ({pin.version})",
            hint=f"correct xla_commit in ci/pins.yaml ({pin.xla_commit})",
        )
    return found, (), ()


# Which XLA a tree builds, and the patches it puts on it, which a user's own XLA comes without. A
# tree of WORKSPACE names both below `third_party/xla`, where the rule that downloads XLA applies
# the patches; with bzlmod both stand in MODULE.bazel. An override replaces either.

_LABEL: Final = re.compile(r"^[^#\n]*\"//[\w/]*:(?P<name>[\w.-]+\.patch)\"", re.MULTILINE)
_TOUCHED: Final = re.compile(r"^(?:---|\+\+\+) [ab]/(\S+)", re.MULTILINE)


def pinned(root: Path, where: XlaPin, *, by_module: bool) -> Source:
    """Return the XLA that a tree names; an empty one for a tree that builds none."""
    folder = root / where.folder
    if by_module:
        path = root / where.module.file
        text = text_of(path)
        if match := where.module.pattern.search(text):
            return Source(repository=match["repository"], commit=match["commit"])
        if not folder.is_dir() and '"xla"' not in text:
            return Source(repository="", commit="")
        raise SourceError(
            f"{path}: has no archive_override of the module xla with a commit",
            hint="use the file as JAX has it, or give --xla-source-dir",
        )
    if not folder.is_dir():
        return Source(repository="", commit="")
    for name in where.files:
        path = folder / name
        commit = assigned(path, where.variable) if path.is_file() else None
        if commit and is_commit(commit):
            return Source(repository=where.repository, commit=commit)
    raise SourceError(
        f"{folder}: no file says which XLA is built ({where.variable})",
        hint="use the files as JAX has them, or give --xla-source-dir",
    )


def assigned(path: Path, variable: str) -> str | None:
    """Return the text assigned to a variable at the start of a line, without running the file."""
    pattern = rf"^{re.escape(variable)}\s*=\s*([\"'])(?P<value>[^\"']*)\1"
    match = re.search(pattern, text_of(path), re.MULTILINE)
    return match["value"] if match else None


def patches(root: Path, where: XlaPin, *, by_module: bool) -> tuple[Path, ...]:
    """Return the patches that a tree puts on its XLA, in order."""
    folder = root / where.folder
    file = root / where.module.file if by_module else folder / "workspace.bzl"
    if not file.is_file():
        return ()
    content = text_of(file)
    if by_module:
        match = where.module.pattern.search(content)
        content = content[match.start() : content.index("\n)", match.start())] if match else ""
    names = (match["name"] for match in _LABEL.finditer(content))
    return tuple(folder / name for name in names if (folder / name).is_file())


def compared(
    folder: Path, wanted: tuple[Path, ...], *, runner: Runner
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return which patches a user's folder has, with a warning for each other one.

    Two may change neighbouring lines: on a copy of the files they touch, each is taken off, the
    last first, and those that are missing are put on, in order.
    """
    warnings: list[str] = []
    with tempfile.TemporaryDirectory(prefix="rocwheel-xla-") as name:
        scratch = Path(name)
        for touched in {path for patch in wanted for path in _TOUCHED.findall(text_of(patch))}:
            if (folder / touched).is_file() and ".." not in Path(touched).parts:
                (scratch / touched).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / touched, scratch / touched)
        applied = {p for p in reversed(wanted) if _applies(scratch, p, runner, "--reverse")}
        for patch in wanted:
            if _applies(scratch, patch, runner):
                if patch not in applied:
                    line = f"git -C {folder} apply {patch}"
                    warnings.append(f"{folder}: lacks JAX's {patch.name}; to apply it: {line}")
            else:
                warnings.append(f"{folder}: JAX's {patch.name} does not apply to this XLA")
    return tuple(patch.name for patch in wanted if patch in applied), tuple(warnings)


def _applies(folder: Path, patch: Path, runner: Runner, *how: str) -> bool:
    words = ("git", "-c", "safe.directory=*", "-C", str(folder), "apply", *how, str(patch))
    try:
        runner.capture(Command(argv=words))
    except CommandError:
        return False
    return True


def text_of(path: Path) -> str:
    """Return the text of a file of a tree. Raises SourceError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise SourceError(f"{path}: {exc}", hint="check the checkout") from exc
