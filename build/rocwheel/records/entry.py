"""A wheel as an index lists it: the value that log, listings and pages have in common."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from rocwheel.base.errors import ConfigError
from rocwheel.base.values import Count, Sha256, Sha256OrNone, Value
from rocwheel.records.places import FILES, SHORT

Folder: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[a-z][0-9a-zA-Z-]*\Z")]
DEPENDENT: Final = "-plugin"  # ends the names of projects that need the others


class Entry(Value, frozen=True, kw_only=True):
    """One wheel in the index."""

    filename: str
    project: str  # normalised (PEP 503)
    version: str
    size: Count
    sha256: Sha256
    metadata_sha256: Sha256OrNone  # of the `.metadata` file
    uploaded: str = ""  # ISO 8601, UTC, whole seconds
    requires_python: str = ""
    yanked: str | None = None  # the reason; None when it is not
    kind: str = ""  # WheelKind; "" for a file that was here before us
    python: str = ""
    gfx_targets: tuple[str, ...] = ()
    rocm: str = ""
    jax: str | UnsetType = UNSET  # requirement of a JAX that is no release; "" where pip takes none
    manifest: str = ""
    provenance: Literal[True] | UnsetType = UNSET  # a file of PEP 740 lies beside its statements
    folder: Folder | UnsetType = UNSET  # of the prefix, where it lies since before 0.3

    @property
    def path(self) -> str:
        """Where it lies below the prefix, and its METADATA beside it with `.metadata`.

        Two families may have other bytes of one name, so the bytes name the folder.
        """
        return f"{self.folder or f'{FILES}/{self.sha256[:SHORT]}'}/{self.filename}"


def rank(project: str) -> int:
    """Return the order in which projects are added: plugins come after what they need."""
    return int(project.endswith(DEPENDENT))


@lru_cache(maxsize=1 << 16)
def parsed(version: str) -> Version:
    """Return a version to compare with; pages compare the same ones again and again."""
    return Version(version)


def version_of(path: str) -> tuple[str, str]:
    """Return the project (PEP 503) and version in a wheel's name. Raises ConfigError."""
    try:
        project, version, _, _ = parse_wheel_filename(path.rpartition("/")[2])
    except InvalidWheelFilename as exc:
        raise ConfigError(
            f"{path}: not the name of a wheel", hint="copy the name from the index"
        ) from exc
    return canonicalize_name(project), str(version)
