"""Adds a JAX release to `ci/pins.yaml`: facts from its sources and its wheels, comments kept.

Everything is looked up and compared before a line is written: the tag's commit, the tree's own
version, XLA, lock files and Bazel, and the bytes of each jaxlib wheel.
"""

import email
import json
import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from msgspec import to_builtins
from packaging.version import InvalidVersion, Version

from rocwheel.base import files, git
from rocwheel.base.console import Console
from rocwheel.base.errors import CommandError, ConfigError, FetchError, SourceError
from rocwheel.base.host import virtualenv
from rocwheel.base.process import Runner
from rocwheel.base.values import Plain
from rocwheel.base.versions import PythonVersion, is_commit
from rocwheel.base.yaml_file import CPythons
from rocwheel.source import pins, tree
from rocwheel.source.pins import Layouts, Pin, PinnedJaxlib, PinnedWheel

_WORD: Final = re.compile(r"[A-Za-z/][\w./:-]*|[0-9a-f]{40}|[0-9a-f]{64}")
PLATFORM: Final = "manylinux_2_27_x86_64"
TAG: Final = "jax-v"


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


def look_up(
    version: str,
    *,
    repository: str,
    ref: str,
    known: pins.Pins,
    cache: Path,
    runner: Runner,
    console: Console,
) -> PinFacts:
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
    commit = git.resolve_ref(repository, ref, runner=runner)
    empty = pins.Pins(path="", pins=(), layouts=known.layouts)
    wanted = tree.at_commit(repository, ref, commit, cache)
    resolved = tree.resolve(wanted, pins=empty, runner=runner, console=console)
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
            str(python): _jaxlib(version, python, Path(scratch), runner, console)
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
    pins.load(path, layouts=layouts, text=new)
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
    document: Any = yaml.compose(text, Loader=yaml.SafeLoader)  # that pins.load has read already
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
    version: str, python: PythonVersion, scratch: Path, runner: Runner, console: Console
) -> tuple[PinnedWheel, str]:
    console.info(f"   jaxlib {version} for CPython {python}")
    folder = scratch / str(python)
    pip = virtualenv.pip(
        "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder),
        "--implementation", "cp", "--platform", PLATFORM,
        "--python-version", f"{python.major}.{python.minor}", "--abi", python.abi,
        f"jaxlib=={version}",
    )  # fmt: skip
    try:
        runner.run(pip)
    except CommandError as exc:
        raise FetchError(
            f"jaxlib {version} for CPython {python}: pip finds no wheel for {PLATFORM}",
            hint="a release whose jaxlib is not published cannot be pinned",
            detail=exc.detail,
        ) from exc
    (path,) = folder.iterdir()
    with zipfile.ZipFile(path) as archive:
        name = next(item for item in archive.namelist() if item.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    wheel = PinnedWheel(filename=path.name, size=path.stat().st_size, sha256=files.sha256(path))
    return wheel, str(metadata["Requires-Python"])
