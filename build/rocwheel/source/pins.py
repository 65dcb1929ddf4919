"""Reads `ci/pins.yaml`: which JAX releases are built, from which commit, for which CPythons.

Every mistake is a ConfigError with file, line, key and the nearest valid name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.version import InvalidVersion, Version

from rocwheel import located_yaml
from rocwheel.errors import ConfigError
from rocwheel.located_yaml import Field
from rocwheel.model import PythonVersion, suggest
from rocwheel.source.layouts import Layouts

SCHEMA: Final = 1


@dataclass(frozen=True, kw_only=True)
class UpstreamWheel:
    """A jaxlib of the Python package index: identified by its bytes, not by where it lies."""

    filename: str
    size: int
    sha256: str
    requires_python: str


@dataclass(frozen=True, kw_only=True)
class Pin:
    """One JAX release: where its sources are and what belongs to them."""

    version: str
    repository: str
    ref: str  # what people call the commit
    commit: str
    xla_commit: str
    layout: str
    bazel: str
    pythons: tuple[PythonVersion, ...]
    default: bool
    jaxlib_origin: str  # "built" or "upstream": what is done unless somebody says otherwise
    jaxlib: Mapping[PythonVersion, UpstreamWheel]  # of the Python package index


@dataclass(frozen=True, kw_only=True)
class Pins:
    """Every pin, oldest release first."""

    path: str
    pins: tuple[Pin, ...]

    def __getitem__(self, version: str) -> Pin:
        """Find a release. Raises ConfigError with the nearest one there is."""
        for pin in self.pins:
            if pin.version == version:
                return pin
        known = tuple(pin.version for pin in self.pins)
        raise ConfigError(f"JAX {version}: no pin in {self.path}", hint=suggest(version, known))

    @property
    def default(self) -> Pin:
        return next(pin for pin in self.pins if pin.default)


def load(path: Path, *, layouts: Layouts) -> Pins:
    """Read the pins; their layouts and versions must be known to `layouts`. Raises ConfigError."""
    return read(located_yaml.load(path), layouts=layouts, path=str(path))


def read(document: Field, *, layouts: Layouts, path: str) -> Pins:
    """Read the pins from a parsed document. Raises ConfigError."""
    fields = document.record(required=("schema", "pins"))
    fields["schema"].schema(SCHEMA)
    entries = fields["pins"].mapping()
    pins = sorted(
        (_pin(version, entry, layouts) for version, entry in entries.items()),
        key=lambda pin: Version(pin.version),
    )
    defaults = [pin.version for pin in pins if pin.default]
    if len(defaults) != 1:
        fields["pins"].fail(
            f"{len(defaults)} pins are marked default", hint="write `default: true` at exactly one"
        )
    return Pins(path=path, pins=tuple(pins))


def _pin(version: str, entry: Field, layouts: Layouts) -> Pin:
    fields = entry.record(
        required=(
            "repository", "ref", "commit", "xla_commit", "layout", "bazel", "pythons", "jaxlib",
        ),
        optional=("default",),
    )  # fmt: skip
    try:
        parsed = Version(version)
    except InvalidVersion:
        entry.fail(f"{version!r} is no version", hint='write for example "0.9.1"')
    layout = layouts[fields["layout"].choice(layouts.by_name)]
    if layout.version_class(parsed) is None:
        fields["layout"].fail(
            f"no class of layout {layout.name!r} holds JAX {version}",
            hint="add one to ci/layouts.yaml",
        )
    accepted = fields["pythons"].cpythons()
    origin, wheels = _jaxlib(version, fields["jaxlib"], accepted)
    return Pin(
        version=version,
        repository=fields["repository"].string(),
        ref=fields["ref"].string(),
        commit=fields["commit"].commit(),
        xla_commit=fields["xla_commit"].commit(),
        layout=layout.name,
        bazel=fields["bazel"].string(),
        pythons=accepted,
        default=fields["default"].boolean() if "default" in fields else False,
        jaxlib_origin=origin,
        jaxlib=wheels,
    )


def _jaxlib(
    version: str, field: Field, accepted: tuple[PythonVersion, ...]
) -> tuple[str, dict[PythonVersion, UpstreamWheel]]:
    fields = field.record(required=("origin", "requires_python", "wheels"))
    origin = fields["origin"].choice(("built", "upstream"))
    requires_python = fields["requires_python"].string()
    wheels = fields["wheels"].record(required=tuple(map(str, accepted)))
    found = {}
    for python in accepted:
        entry = wheels[str(python)].record(required=("filename", "size", "sha256"))
        filename = entry["filename"].string()
        start = f"jaxlib-{version}-{python.interpreter}-{python.abi}-"
        if not (filename.startswith(start) and filename.endswith(".whl")):
            entry["filename"].fail(
                f"{filename} does not start with {start}", hint="compare the two"
            )
        found[python] = UpstreamWheel(
            filename=filename,
            size=entry["size"].integer(),
            sha256=entry["sha256"].sha256(),
            requires_python=requires_python,
        )
    return origin, found
