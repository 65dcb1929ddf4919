"""`pins bump`: updates a pinned JAX, ROCm or Bazel.

Each of `KINDS` knows where its facts are, where newer ones are listed and how one is verified. A
change is the new text of files, comments kept; a fact that cannot be verified is refused. Renovate
updates base images, GitHub actions and the tools' locks (`renovate.json`).
"""

from __future__ import annotations

import difflib
import email
import json
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from msgspec import to_builtins
from packaging.version import InvalidVersion, Version

from rocwheel import bazel, rocm, source
from rocwheel.base import files, git, yaml_file
from rocwheel.base.console import count
from rocwheel.base.download import Client
from rocwheel.base.errors import (
    CommandError,
    ConfigError,
    FetchError,
    RocwheelError,
    SourceError,
)
from rocwheel.base.here import Here
from rocwheel.base.host import virtualenv
from rocwheel.base.values import Plain
from rocwheel.base.versions import PythonVersion, RocmVersion, is_commit, is_sha256, suggest
from rocwheel.base.yaml_file import CPythons
from rocwheel.gate.suite import discovery, suites
from rocwheel.records.source_layout import FileText
from rocwheel.rocm import listing, therock
from rocwheel.source import tree
from rocwheel.source.pins import Layouts, Pin, PinnedJaxlib, PinnedWheel

SHOWN: Final = 40  # commits of an upstream log
_WORD: Final = re.compile(r"[A-Za-z/][\w./:-]*|[0-9a-f]{40}|[0-9a-f]{64}")
TAG: Final = "jax-v"


class Fact(Plain, frozen=True, kw_only=True):
    """One pinned fact: its name, its version now, and where newer ones are published."""

    name: str
    now: str
    path: Path
    upstream: str = ""  # repository or page
    at: tuple[str | int, ...] = ()  # where it stands in a YAML file


class BumpContext(Plain, frozen=True, kw_only=True):
    """What a look-up needs, and the new texts of files."""

    here: Here
    client: Client
    github: str = "https://github.com/"
    texts: dict[Path, str] = msgspec.field(default_factory=dict)  # that differ from the disk by now

    def text(self, path: Path) -> str:
        return self.texts.get(path) or path.read_text(encoding="utf-8")

    def yaml(self, name: str) -> tuple[Path, Any]:
        path = self.here.home.ci / name
        return path, yaml.safe_load(self.text(path))

    @property
    def pins(self) -> tuple[Path, source.Pins]:
        return self.here.home.ci / "pins.yaml", source.pins_of(self.here.home.ci)

    def set_scalars(self, path: Path, values: Mapping[tuple[str | int, ...], str]) -> None:
        """Replace scalars of a YAML file; everything else stays as people wrote it."""
        for at, value in values.items():
            text = self.text(path)
            node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
            for step in at:
                entries = node.value
                if not isinstance(step, int):
                    entries = {key.value: value for key, value in entries}
                node = entries[step]
            start, end = node.start_mark.index, node.end_mark.index
            new = scalar(value) if node.tag.endswith(":str") else value
            self.texts[path] = f"{text[:start]}{new}{text[end:]}"


class Kind(Plain, frozen=True, kw_only=True):
    """A kind of facts: where they are, where newer ones are listed, how one is verified.

    `change` puts the verified new text into `BumpContext.texts` and returns the upstream log.
    """

    facts: Callable[[BumpContext], Iterable[Fact]]
    newest: Callable[[Fact, BumpContext], str]
    change: Callable[[Fact, str, BumpContext], Iterable[str]]


def newer(
    kinds: Iterable[str], context: BumpContext, unreachable: list[RocwheelError] | None = None
) -> Iterator[tuple[str, Fact, str]]:
    """Yield every fact with a newer version, and that version.

    With `unreachable`, a server that cannot be reached is added there, and the others are asked.
    """
    for kind in kinds:
        facts = [*KINDS[kind].facts(context)]
        if not facts:
            context.here.console.info(f"{kind}: nothing is pinned, so nothing can be newer")
        for fact in facts:
            try:
                to = KINDS[kind].newest(fact, context)
            except RocwheelError as exc:
                if unreachable is None:
                    raise
                unreachable.append(exc)
                continue
            if to != fact.now:
                yield kind, fact, to


def named(kind: str, wanted: str, context: BumpContext) -> tuple[Fact, str]:
    """Return the fact and the version that `[NAME=]VERSION` means. Raises ConfigError."""
    name, equals, version = wanted.partition("=")
    facts = {fact.name: fact for fact in KINDS[kind].facts(context)}
    if not equals and (len(facts) == 1 or kind in facts):
        return facts.get(kind) or next(iter(facts.values())), wanted
    if not equals or name not in facts:
        raise ConfigError(
            f"--to {wanted}: {'names none of several' if facts else f'no {kind} is pinned here'}",
            hint=f"write NAME=VERSION; {suggest(name, tuple(facts))}"
            if facts
            else "nothing to bump",
        )
    return facts[name], version.removeprefix("=")


def bump(kind: str, fact: Fact, to: str, context: BumpContext) -> tuple[str, ...]:
    """Verify a newer version of a fact, edit its files in `context.texts`, return the log.

    Raises the error of a contradiction, and then edits nothing.
    """
    return tuple(KINDS[kind].change(fact, to, context))


def difference(context: BumpContext) -> str:
    root = context.here.home.root
    lines: list[str] = []
    for path, text in sorted(context.texts.items()):
        name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
        old = path.read_text(encoding="utf-8").splitlines()
        lines += difflib.unified_diff(old, text.splitlines(), f"a/{name}", f"b/{name}", lineterm="")
    return "\n".join(lines)


def _log(repository: str, old: str, new: str, context: BumpContext) -> Iterator[str]:
    yield f"{repository}/compare/{old}...{new}"
    try:
        commits = git.log(repository, old, new, runner=context.here.runner)
    except CommandError:  # such as a server without partial clones: people can follow the link
        return
    yield from commits[:SHOWN]
    if len(commits) > SHOWN:
        yield f"… {len(commits) - SHOWN} more"


def _jax(context: BumpContext) -> Iterator[Fact]:
    path, pins = context.pins
    newest = [pin for pin in pins.pins if not pin.unverified and pin.layout == "upstream"][-1]
    yield Fact(name="jax", now=newest.version, path=path, upstream=f"{context.github}jax-ml/jax")


def _newest_jax(fact: Fact, context: BumpContext) -> str:
    tags = git.tagged(fact.upstream, TAG, runner=context.here.runner)
    return str(max((*tags, Version(fact.now))))


def _change_jax(fact: Fact, to: str, context: BumpContext) -> Iterator[str]:
    facts = add_pin(to, repository=fact.upstream, ref="", default=True, context=context)
    yield f"JAX {facts.pin.name} is built as {facts.built_as}"
    yield from _log(fact.upstream, TAG + fact.now, TAG + to, context)


def add_pin(
    version: str, *, repository: str, ref: str, default: bool, context: BumpContext
) -> PinFacts:
    """Look a release of JAX up and put its pin into the text of ci/pins.yaml."""
    path, pins = context.pins
    facts = look_up(version, repository=repository, ref=ref, known=pins, here=context.here)
    context.texts[path] = added(path, facts, default=default, layouts=pins.layouts)
    _count_tests(facts, context)
    return facts


def _count_tests(facts: PinFacts, context: BumpContext) -> None:
    here = context.here
    for suite in suites.load_all(here.home.ci):
        if suite.source.folder:  # ours, which are the same for every JAX
            continue
        try:
            tests = discovery.find(suite.source, facts.root, discovery.Shard())
        except ConfigError as exc:
            here.console.warn(f"suite {suite.name}: {exc}; {exc.hint}")
            continue
        texts = ((name, (facts.root / name).read_text(encoding="utf-8")) for name in tests.files)
        written = sum(1 for name, text in texts for _ in discovery.tests_of(name, text))
        here.console.info(
            f"   suite {suite.name}: {count(len(tests.files), 'file')}, "
            f"{count(written, 'test function')}"
        )


def _rocm(context: BumpContext) -> Iterator[Fact]:
    path, night = context.yaml("nightly.yaml")
    for number, item in enumerate(night["sets"]):
        where = item["rocm"].get("source", "")
        name = therock.parse_name(therock.base_name(where))
        if "://" in where and name and name.version:
            at = ("sets", number, "rocm")
            yield Fact(name=item["name"], now=str(name.version), path=path, upstream=where, at=at)


def _listed(fact: Fact, context: BumpContext) -> Mapping[str, listing.ListedTarball]:
    name = therock.parse_name(therock.base_name(fact.upstream))
    page = f"{fact.upstream.rpartition('/')[0]}/"
    every = listing.every(page, client=context.client, cwd=context.here.cwd)
    own = (item for item in every if name and item.name.group == name.group)
    return {str(item.name.version): item for item in sorted(own, key=listing.order)}


def _newest_rocm(fact: Fact, context: BumpContext) -> str:
    newest, now = fact.now, Version(Version(fact.now).public)  # a commit in it has no order
    for version in _listed(fact, context):
        with suppress(ConfigError):
            _check_rocm(fact, version, context)
            newest = version if Version(version) >= now else newest
    return newest


def _check_rocm(fact: Fact, version: str, context: BumpContext) -> None:
    (_, night), (_, pins) = context.yaml("nightly.yaml"), context.pins
    jax = night["sets"][fact.at[1]].get("jax")
    if isinstance(jax, str):  # a branch is what it is on the night
        pin = pins.default if jax == "default" else pins.find(jax, allow_unverified=True)
        bazel.check_rocm(RocmVersion.parse(version), pin.version, pins.layouts[pin.layout])


def _change_rocm(fact: Fact, to: str, context: BumpContext) -> Iterator[str]:
    listed = _listed(fact, context)
    if to not in listed:
        raise FetchError(
            f"ROCm {to}: not listed beside {fact.upstream}", hint=suggest(to, tuple(listed))
        )
    _check_rocm(fact, to, context)
    where = listed[to].source
    note = context.here.console.info
    digest = rocm.digest_of(where, client=context.client, cache=context.here.cache, note=note)
    try:
        context.set_scalars(fact.path, {(*fact.at, "source"): where, (*fact.at, "sha256"): digest})
    except KeyError:
        raise ConfigError(
            f"{fact.path}: {fact.name}: `rocm` has no sha256",
            hint="write `sha256:` beside `source`",
        ) from None
    yield f"{where}, SHA-256 {digest}"


def _therock(context: BumpContext) -> Iterator[Fact]:
    path = context.here.home.ci / therock.FILE
    data = yaml_file.read(path, therock.TheRock)
    now = min(stream.places[0].as_of for stream in data.streams.values())
    yield Fact(name="therock", now=str(now), path=path, upstream=data.upstream.repository)


def _moved(context: BumpContext, data: therock.TheRock) -> list[str]:
    """Return what TheRock's own sources say otherwise than ci/therock.yaml."""

    def said(where: FileText) -> str:
        url = f"{data.upstream.repository}/raw/HEAD/{where.file}"
        text = context.client.read(url, fresh=True).decode("utf-8", "replace")
        if (match := where.pattern.search(text)) is None:
            raise FetchError(
                f"{url}: no longer says where TheRock publishes",
                hint="read it, and correct `upstream` and `streams` in ci/therock.yaml",
            )
        return match[1]

    up, ours = data.upstream, data.streams
    folders = {"packages": said(up.packages), "tarballs": "", "asan": ""}
    for kind, where in (("tarballs", up.tarballs), ("asan", up.asan)):
        folders[kind] = f"{folders['packages'].partition('/')[0]}/{said(where)}/"
    names = sorted({*re.findall(r':\s*"([\w-]+)"', said(up.streams)), said(up.released)})
    there = [
        (name, kind, f"https://{name}.{rest}") for name in names for kind, rest in folders.items()
    ]
    lines = [f"{name}: TheRock has no such stream now" for name in ours if name not in names]
    lines += [f"{name}: a new stream" for name in names if name not in ours]
    for name, kind, address in (*there, ("nightly", "packages", said(up.default))):
        known = getattr(ours[name].places[0], kind) if name in ours and name in names else None
        if known and known.rstrip("/") != address.rstrip("/"):
            lines.append(f"{name}: {kind} at {address}, and not at {known}")
    return lines


def _newest_therock(fact: Fact, context: BumpContext) -> str:
    today = context.here.now().date()
    is_old = (today - date.fromisoformat(fact.now)).days > therock.OLD_FACT
    moved = _moved(context, yaml_file.read(fact.path, therock.TheRock))
    return str(today) if moved or is_old else fact.now


def _change_therock(fact: Fact, to: str, context: BumpContext) -> Iterator[str]:
    if to != (today := str(context.here.now().date())):
        raise ConfigError(
            f"--to {to}: TheRock's sources are compared as they are today, {today}",
            hint="leave --to out",
        )
    data = yaml_file.read(fact.path, therock.TheRock)
    if moved := _moved(context, data):
        raise SourceError(
            f"{fact.upstream}: {'; '.join(moved)}",
            hint=f"correct `streams` in {fact.path}: a place for each range of versions",
        )
    for name in data.streams:
        context.set_scalars(fact.path, {("streams", name, "places", 0, "as_of"): to})
    yield f"{', '.join(data.streams)}: as {fact.upstream} says"


def _bazel(context: BumpContext) -> Iterator[Fact]:
    path, (_, pins) = context.here.home.ci / "bazel_binaries.yaml", context.pins
    known = sorted(yaml_file.read(path, bazel.Releases).releases, key=Version)
    for major, now in {Version(text).major: text for text in known}.items():
        name = "bazel" if major == Version(pins.default.bazel).major else f"bazel-{major}"
        yield Fact(name=name, now=now, path=path, upstream=f"{context.github}bazelbuild/bazel")


def _newest_bazel(fact: Fact, context: BumpContext) -> str:
    """Return the newest release of the major in use: JAX says when it moves to another."""
    major = Version(fact.now).major
    tags = git.tagged(fact.upstream, "", runner=context.here.runner)
    return str(max(Version(fact.now), *(tag for tag in tags if tag.major == major)))


def _change_bazel(fact: Fact, to: str, context: BumpContext) -> Iterator[str]:
    path, table = fact.path, yaml_file.read(fact.path, bazel.Releases)
    known = table.releases.get(to, {})
    lines = [f'  "{to}":']
    for platform in dict.fromkeys(name for each in table.releases.values() for name in each):
        url = table.url.format(version=to, platform=platform)
        published = context.client.read(f"{url}.sha256").decode("utf-8", "replace")
        digest, _ = context.client.digest(url)
        if not is_sha256(digest) or published.split()[:1] != [digest]:
            raise FetchError(
                f"{url}: its SHA-256 is {digest}, and {url}.sha256 has another",
                hint="a release that cannot be verified is not added",
            )
        if platform in known and known[platform].sha256 != digest:
            raise FetchError(
                f"{url}: its SHA-256 is {digest}, not {known[platform].sha256} as in {path}",
                hint="find out which of the two is wrong before you change the table",
            )
        if platform in known:
            context.set_scalars(path, {("releases", to, platform, "verified"): "true"})
        lines += [f"    {platform}:", f"      sha256: {digest}", "      verified: true"]
        yield f"{url}, SHA-256 {digest}"
    if not known:
        context.texts[path] = inserted(context.text(path), "releases", to, lines)
    yield from _log(fact.upstream, fact.now, to, context)


class PinFacts(Plain, frozen=True, kw_only=True):
    """A pin from a release's own sources and wheels, and the class of the layout it takes."""

    pin: Pin
    built_as: str
    root: Path  # of its sources

    def lines(self, *, default: bool) -> list[str]:
        """Return the pin as `ci/pins.yaml` has it."""
        pin = self.pin
        entry: dict[str, Any] = {} if pin.version == pin.name else {"version": pin.version}
        names = ("repository", "ref", "commit", "xla_commit", "layout", "bazel")
        entry |= {name: getattr(pin, name) for name in names}
        entry["pythons"] = list(map(str, pin.pythons))
        entry |= {"default": True} if default else {}
        return list(_lines({pin.name: entry | {"jaxlib": to_builtins(pin.jaxlib)}}, "  "))


def _lines(mapping: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in mapping.items():
        start = f"{indent}{scalar(key)}:"
        if isinstance(value, Mapping):
            yield start
            yield from _lines(value, f"{indent}  ")
        else:
            yield f"{start} {scalar(value) if isinstance(value, str) else json.dumps(value)}"


def scalar(text: str) -> str:
    """Return a text as our YAML files have it: in quotes unless YAML reads it as a plain word."""
    return text if _WORD.fullmatch(text) and yaml.safe_load(text) == text else json.dumps(text)


def look_up(version: str, *, repository: str, ref: str, known: source.Pins, here: Here) -> PinFacts:
    """Fetch a release's sources and jaxlib wheels; return the pin's facts.

    The pin of a branch of a fork is named after the branch, that of a release after its version.
    Raises SourceError where they contradict the version or a class of `ci/layouts.yaml`, FetchError
    where a wheel is not on the index, ConfigError for a release that has a verified pin.
    """
    name, ref = ref or version, ref or f"{TAG}{version}"
    if is_commit(ref) or ref.startswith(TAG):
        name = version
    if _order(version)[0]:
        raise ConfigError(f"{version!r} is not a version", hint="write 0.11.0; a branch is --ref")
    if any(pin.name == name and not pin.unverified for pin in known.pins):
        raise ConfigError(
            f"JAX {name}: {known.path} has a verified pin", hint="remove it first to replace it"
        )
    tree.check_repository(repository, ref)
    commit = git.resolve_ref(repository, ref, runner=here.runner)
    empty = source.Pins(path="", pins=(), layouts=known.layouts)
    wanted = tree.at_commit(repository, ref, commit, here.cache)
    resolved = source.resolve(wanted, pins=empty, runner=here.runner, console=here.console)
    if resolved.jax_version != version:
        raise SourceError(
            f"{repository}: {ref} is JAX {resolved.jax_version}, not {version}",
            hint="name the branch, tag or commit that has it: --ref",
        )
    unmarked = [note for note in resolved.warnings if "should have" in note]
    if unmarked or not resolved.xla.commit:
        raise SourceError(
            unmarked[0] if unmarked else f"{repository}: {ref} names no XLA",
            hint="JAX changed how its Bazel is asked: docs/how-to/add-a-jax-version.md, section 3",
        )
    with tempfile.TemporaryDirectory(prefix="rocwheel-pin-") as scratch:
        wheels = {
            str(python): _jaxlib(version, python, Path(scratch), here)
            for python in resolved.pythons
        }
    (requires_python,) = {requires for _, requires in wheels.values()}
    pin = Pin(
        name=name,
        version=version,
        repository=repository,
        ref=ref,
        commit=commit,
        xla_commit=resolved.xla.commit,
        layout=resolved.layout.name,
        bazel=resolved.bazel,
        pythons=CPythons(resolved.pythons),
        jaxlib=PinnedJaxlib(
            origin="upstream",
            requires_python=requires_python,
            wheels={python: wheel for python, (wheel, _) in wheels.items()},
        ),
    )
    return PinFacts(pin=pin, built_as=str(resolved.version_class), root=resolved.root)


def added(path: Path, facts: PinFacts, *, default: bool, layouts: Layouts) -> str:
    """Return the text of `path` with the pin, in its place; nothing else changes but `default`.

    A pin that is not verified is replaced. Raises ConfigError for a result that no longer reads.
    """
    text = path.read_text(encoding="utf-8")
    name, lines = facts.pin.name, text.splitlines()
    start, end = _places(text).get(name, (0, 0))
    del lines[start:end]
    if default:
        lines = [line for line in lines if not re.fullmatch(r" +default: true", line)]
    new = inserted("\n".join(lines), "pins", name, facts.lines(default=default))
    source.load_pins(path, layouts=layouts, text=new)
    return new


def inserted(text: str, mapping: str, name: str, lines: list[str]) -> str:
    """Return a YAML text with an entry of a mapping of versions, which stay in their order.

    An entry named after a branch comes last.
    """
    places, all_lines = _places(text, mapping), text.splitlines()
    later = [key for key in places if _order(key) > _order(name)]
    start = places[min(later, key=_order)][0] if later else len(all_lines)
    all_lines[start:start] = lines
    return "\n".join(all_lines) + "\n"


def _order(name: str) -> tuple[bool, Version, str]:
    try:
        return False, Version(name), ""
    except InvalidVersion:
        return True, Version("0"), name


def _places(text: str, mapping: str = "pins") -> dict[str, tuple[int, int]]:
    """Return the lines [start, end) of each pin; comments before the next one are not its own."""
    document: Any = yaml.compose(text, Loader=yaml.SafeLoader)  # that `load_pins` has read already
    entries = next(value for key, value in document.value if key.value == mapping)
    lines = text.splitlines()
    places = {}
    for key, value in entries.value:
        end = value.end_mark.line
        while end > key.start_mark.line and not lines[end - 1].startswith("    "):
            end -= 1
        places[str(key.value)] = (key.start_mark.line, end)
    return places


def _jaxlib(
    version: str, python: PythonVersion, scratch: Path, here: Here
) -> tuple[PinnedWheel, str]:
    here.console.info(f"   jaxlib {version} for CPython {python}")
    folder = scratch / str(python)
    try:
        here.runner.run(virtualenv.pip_download(folder, python, f"jaxlib=={version}"))
    except CommandError as exc:
        raise FetchError(
            f"jaxlib {version} for CPython {python}: pip finds no wheel",
            hint="a release whose jaxlib is not published cannot be pinned",
            detail=exc.detail,
        ) from exc
    (path,) = folder.iterdir()
    with zipfile.ZipFile(path) as archive:
        name = next(item for item in archive.namelist() if item.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    wheel = PinnedWheel(filename=path.name, size=path.stat().st_size, sha256=files.sha256(path))
    return wheel, str(metadata["Requires-Python"])


KINDS: Final = {
    "jax": Kind(facts=_jax, newest=_newest_jax, change=_change_jax),
    "rocm": Kind(facts=_rocm, newest=_newest_rocm, change=_change_rocm),
    "therock": Kind(facts=_therock, newest=_newest_therock, change=_change_therock),
    "bazel": Kind(facts=_bazel, newest=_newest_bazel, change=_change_bazel),
}
