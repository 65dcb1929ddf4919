"""The manifest: what a wheel set is, and what it was made from.

Its identity is the SHA-256 of its canonical JSON bytes (sorted keys, UTF-8, no floats, no times,
no paths, no host). How, where and how fast the set was made stands in `build.json` beside it, the
build record, which is no part of the identity. Both have a JSON Schema in the package
(`records/schemas/`), and a file that breaks it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType, field

from rocwheel.base.errors import ConfigError, named
from rocwheel.base.git import Source
from rocwheel.base.values import Count, NonEmpty, Sha256, Value, WheelFile
from rocwheel.base.versions import moment

# 1 does not say where its ROCm came from; 2 says neither the compilers of GPU code nor what a set
# was derived from. Both are still read.
SCHEMA: Final = 3
Gfx = Annotated[str, Meta(pattern=r"\Agfx[0-9a-f]")]
MANIFEST: Final = "manifest.json"


class RocmPackage(Value, frozen=True, kw_only=True):
    """A file from which pip installed a part of ROCm."""

    filename: NonEmpty
    sha256: Sha256


class RocmDelivery(Value, frozen=True, kw_only=True):
    """Where to get a ROCm again; nothing in it depends on the machine that fetched it."""

    url: str  # of the tarball or the pip index, without secrets; "" for what lay on a disk
    size: Annotated[int, Meta(ge=0)]  # bytes of the tarball, 0 where there is none
    packages: tuple[RocmPackage, ...] = ()  # of a ROCm by pip
    links: tuple[str, ...] = ()  # added to the tree, `amdgcn -> lib/llvm/amdgcn`


ON_DISK: Final = RocmDelivery(url="", size=0)


class RocmSource(Value, frozen=True, kw_only=True):
    """The ROCm a set was built against."""

    version: NonEmpty  # as asked for or named by the tarball, with nightly suffix: 7.10.0a20251120
    header_version: NonEmpty  # include/rocm-core/rocm_version.h: 7.10.0
    sha256: Sha256  # of the tarball; of the file listing when the source was a directory
    origin: Literal["tarball", "directory", "pip"]
    name: str  # base name of the tarball or directory; what pip was asked for
    delivery: RocmDelivery | UnsetType = UNSET  # since schema 2

    @property
    def url(self) -> str:
        """Return where it can be fetched again, "" where that is not known."""
        return self.delivery.url if self.delivery else ""


class WheelEntry(Value, frozen=True, kw_only=True):
    """One wheel of the set."""

    kind: Literal["jaxlib", "plugin", "pjrt"]
    filename: WheelFile
    project: Annotated[str, Meta(pattern=r"\A[a-z0-9]+(-[a-z0-9]+)*\Z")]  # normalised (PEP 503)
    version: NonEmpty  # PEP 440
    tags: Annotated[tuple[str, ...], Meta(min_length=1)]  # PEP 425, sorted
    python: str  # "3.12", "3.14-ft"; "" for a wheel that serves every Python
    size: Annotated[int, Meta(ge=1)]  # bytes
    sha256: Sha256
    origin: Literal["built", "upstream"] = "built"  # upstream: never staged
    requires_python: str = ""
    gfx_targets: tuple[Gfx, ...] = ()  # code objects really in the wheel
    grafted: tuple[str, ...] = ()  # libraries auditwheel put in
    compilers: tuple[NonEmpty, ...] | UnsetType = UNSET  # of its GPU code, as they stamp it
    extras: tuple[NonEmpty, ...] | UnsetType = UNSET  # that bring the ROCm of pip it was built with


class DerivedWheel(Value, frozen=True, kw_only=True):
    """The parent's wheel that a wheel was made from, and the digest of their common content."""

    filename: WheelFile
    sha256: Sha256
    rewritten: tuple[NonEmpty, ...]  # members with other content, as the new wheel names them
    content: Sha256  # of all others, see `wheel.derive`


class Derivation(Value, frozen=True, kw_only=True):
    """How a set was made from another one without building it."""

    manifest: Sha256  # the parent's
    by: Literal["reversion", "retag"]
    wheels: Mapping[WheelFile, DerivedWheel]


class Manifest(Value, frozen=True, kw_only=True, dict=True, omit_defaults=True):
    """A wheel set: wheels, sources and normalised options."""

    jax_version: NonEmpty
    rocm: RocmSource
    tool: Source
    jax: Source
    xla: Source
    builder_image: str  # digest of the builder image, "" when built on the host
    bazel_version: str
    gfx_targets: Annotated[tuple[Gfx, ...], Meta(min_length=1)]
    pythons: Annotated[tuple[str, ...], Meta(min_length=1)]
    options: Mapping[str, str | tuple[str, ...]]
    wheels: Annotated[tuple[WheelEntry, ...], Meta(min_length=1)]
    # that it is for, sorted; a set of one family names none, and its bytes stay what they were
    families: tuple[NonEmpty, ...] = ()
    parent: Derivation | None = None  # of a set that was derived, not built
    schema: Literal[1, 2, 3] = field(default_factory=lambda: SCHEMA)  # written, unlike a default

    def __post_init__(self) -> None:
        if list(self.families) != sorted(set(self.families)):
            raise ValueError("`families` names each family once, sorted")
        if (self.schema == 1) != (self.rocm.delivery is UNSET):
            raise ValueError(f"`rocm.delivery` and schema {self.schema} do not go together")
        is_new = any({UNSET} != {wheel.compilers, wheel.extras} for wheel in self.wheels)
        if self.schema != SCHEMA and (self.parent or is_new):
            what = "`parent`, `compilers`, `extras`"
            raise ValueError(f"{what} and schema {self.schema} do not go together")
        if self.parent and {*self.parent.wheels} != {wheel.filename for wheel in self.built}:
            raise ValueError("`parent.wheels` names each wheel that was derived, and no other")

    @cached_property
    def sha256(self) -> str:
        return super().sha256

    @property
    def built(self) -> tuple[WheelEntry, ...]:
        """The wheels this set stages and promotes."""
        return tuple(wheel for wheel in self.wheels if wheel.origin == "built")

    def of_python(self, python: object) -> tuple[WheelEntry, ...]:
        """Return the wheels that an environment of this CPython gets."""
        return tuple(wheel for wheel in self.wheels if wheel.python in {"", str(python)})

    def check_family(self, family: str) -> None:
        """Refuse a family that is not one of several it names. Raises ConfigError."""
        if self.families and family not in self.families:
            names = ", ".join(self.families)
            raise ConfigError(f"{family}: the set is for {names}", hint="choose another --family")

    @classmethod
    def load(cls, path: Path) -> Manifest:
        """Read `manifest.json`, or the one in a wheelhouse folder. Raises ConfigError."""
        path = path / MANIFEST if path.is_dir() else path
        hint = "name a wheelhouse or its manifest.json"
        if path.exists() and not path.is_file():  # a FIFO would be waited for
            raise ConfigError(f"{path}: is not a file", hint=hint)
        with named(path, ConfigError, hint=hint):
            data = path.read_bytes()
        return cls.from_bytes(data, name=str(path))


BUILD_RECORD: Final = "build.json"


class TimedAction(Value, frozen=True, kw_only=True):
    """One of Bazel's actions and how long it took."""

    name: str
    milliseconds: Count


class InvocationRecord(Value, frozen=True, kw_only=True, omit_defaults=True):
    """One run of Bazel."""

    command: str  # as a line to paste
    actions_executed: Count
    cache_hits: Count
    bytes_made: Count
    bytes_cached: Count
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    milliseconds: Count
    critical_path_milliseconds: Count
    critical_path: tuple[TimedAction, ...]
    slowest_actions: tuple[TimedAction, ...]
    log: str  # path
    profile: str  # path


class BazelRecord(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The Bazel that built the set, and its runs in order."""

    path: str
    version: str
    invocations: tuple[InvocationRecord, ...]
    programs: Mapping[str, Sha256] = {}  # Bazel; in an image, that has it
    # repository -> URL -> digest by algorithm, of all that was fetched into the output base
    fetched: Mapping[str, Mapping[str, Mapping[str, str]]] = {}


class BuilderRecord(Value, frozen=True, kw_only=True):
    """The image a set was built in, and the engine that ran it."""

    reference: str  # as it was asked for
    config: str  # digest of its configuration, which the manifest has too
    digests: tuple[str, ...]  # repository@digest, of the registries it came from
    engine: str
    engine_version: str
    sandbox: str  # what Bazel's sandbox could be there


class FindingRecord(Value, frozen=True, kw_only=True):
    """A warning of `wheel verify` about one of the wheels."""

    rule: str
    severity: str
    message: str


class BuildRecord(Value, frozen=True, kw_only=True):
    """Facts about a build other than its inputs."""

    manifest: Sha256
    started: str  # ISO 8601, UTC
    host: str
    executor: Literal["host", "docker", "podman"]
    builder: BuilderRecord | None = None  # None on the host
    rocm_root: str
    source_root: str
    command_line: str
    bazel: BazelRecord
    milliseconds: Mapping[str, Count]  # by step
    findings: tuple[FindingRecord, ...]
    installed_with: Mapping[str, str] = {}  # client -> version, before the set was published
    schema: Literal[1] = 1

    @property
    def finished(self) -> str:
        """When the last step was done."""
        took = timedelta(milliseconds=sum(self.milliseconds.values()))
        return (moment(self.started) + took).isoformat()
