"""The manifest: what a wheel set is, and what it was made from.

Its identity is the SHA-256 of its canonical JSON bytes (sorted keys, UTF-8, no floats, no times,
no paths, no host). Times, paths, command lines and counts live in `build.json` beside it. Both
have a JSON Schema in the package (`rocwheel/schemas/`), and a file that breaks it is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from rocwheel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA: Final = 1
MANIFEST: Final = "manifest.json"
BUILD_RECORD: Final = "build.json"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where something came from: enough to fetch exactly it again."""

    repository: str  # URL, or "" for a tree without one
    commit: str  # 40 hex digits, or "" where only `digest` identifies it
    dirty: bool = False
    digest: str = ""  # SHA-256 of the files, for trees that are not a clean commit


@dataclass(frozen=True, kw_only=True)
class RocmSource:
    """The ROCm a set was built against."""

    version: str  # as asked for or named by the tarball, with nightly suffix: 7.10.0a20251120
    header_version: str  # include/rocm-core/rocm_version.h: 7.10.0
    sha256: str  # of the tarball; of the file listing when the source was a directory
    origin: str  # "tarball" or "directory"
    name: str  # base name of the tarball or directory


@dataclass(frozen=True, kw_only=True)
class WheelEntry:
    """One wheel of the set."""

    kind: str  # jaxlib, plugin, pjrt
    filename: str
    project: str  # normalised (PEP 503)
    version: str  # PEP 440
    tags: tuple[str, ...]  # PEP 425, sorted
    python: str  # "3.12", "3.14-ft"; "" for a wheel that serves every Python
    size: int  # bytes
    sha256: str
    origin: str = "built"  # or "upstream": pinned by hash, gated with the set, never staged
    requires_python: str = ""
    gfx_targets: tuple[str, ...] = ()  # code objects really in the wheel
    grafted: tuple[str, ...] = ()  # libraries auditwheel put in


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A wheel set: wheels, sources and normalised options."""

    jax_version: str
    rocm: RocmSource
    tool: Source
    jax: Source
    xla: Source
    builder_image: str  # digest of the builder image, "" when built on the host
    bazel_version: str
    gfx_targets: tuple[str, ...]
    pythons: tuple[str, ...]
    options: Mapping[str, str | tuple[str, ...]]
    wheels: tuple[WheelEntry, ...]
    schema: int = field(default=SCHEMA)

    def to_bytes(self) -> bytes:
        """Canonical JSON: the bytes whose SHA-256 is the identity of the set."""
        return canonical_json(dataclasses.asdict(self))

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @property
    def built(self) -> tuple[WheelEntry, ...]:
        """The wheels this set stages and promotes."""
        return tuple(wheel for wheel in self.wheels if wheel.origin == "built")

    @classmethod
    def from_bytes(cls, data: bytes, *, name: str) -> Manifest:
        """Parse and validate; `name` is what errors call it.

        Raises ConfigError when the bytes are not JSON, break the schema, or are not canonical
        (an edited manifest would otherwise have two identities).
        """
        document = validated(data, schema="manifest", name=name)
        try:
            manifest = cls(
                jax_version=document["jax_version"],
                rocm=RocmSource(**document["rocm"]),
                tool=Source(**document["tool"]),
                jax=Source(**document["jax"]),
                xla=Source(**document["xla"]),
                builder_image=document["builder_image"],
                bazel_version=document["bazel_version"],
                gfx_targets=tuple(document["gfx_targets"]),
                pythons=tuple(document["pythons"]),
                options={key: _frozen(value) for key, value in document["options"].items()},
                wheels=tuple(
                    WheelEntry(**{key: _frozen(value) for key, value in wheel.items()})
                    for wheel in document["wheels"]
                ),
                schema=document["schema"],
            )
        except TypeError as exc:
            raise ConfigError(f"{name}: {exc}", hint="use a rocwheel of the same version") from exc
        if manifest.to_bytes() != data:
            raise ConfigError(
                f"{name}: not in canonical form, it was edited",
                hint="use the file as dist_wheels wrote it",
            )
        return manifest

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """Read `manifest.json`, or the one in a wheelhouse folder. Raises ConfigError."""
        path = path / MANIFEST if path.is_dir() else path
        try:
            data = path.read_bytes()
        except OSError as exc:
            raise ConfigError(
                f"{path}: {exc.strerror}", hint="name a wheelhouse or its manifest.json"
            ) from exc
        return cls.from_bytes(data, name=str(path))


def canonical_json(document: object) -> bytes:
    """Sorted keys, UTF-8, two blanks of indent, one final newline. Raises TypeError on floats."""
    _refuse_floats(document)
    text = json.dumps(document, sort_keys=True, ensure_ascii=False, indent=2)
    return (text + "\n").encode()


def validated(data: bytes, *, schema: str, name: str) -> dict[str, Any]:
    """Parse JSON and check it against `rocwheel/schemas/<schema>.schema.json`."""
    from importlib.resources import files

    import jsonschema

    try:
        document = json.loads(data)
    except ValueError as exc:
        raise ConfigError(f"{name}: not JSON: {exc}", hint="use the file as it was made") from exc
    rules = json.loads(files("rocwheel").joinpath(f"schemas/{schema}.schema.json").read_bytes())
    error = jsonschema.exceptions.best_match(
        jsonschema.Draft202012Validator(rules).iter_errors(document)
    )
    if error:
        where = ".".join(map(str, error.absolute_path)) or "document"
        raise ConfigError(
            f"{name}: {where}: {error.message}", hint="use a rocwheel of the same version"
        )
    return dict(document)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _refuse_floats(value: object) -> None:
    if isinstance(value, float):
        raise TypeError(f"{value}: no floats in canonical JSON")
    if isinstance(value, dict):
        for item in value.values():
            _refuse_floats(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _refuse_floats(item)
