"""The values that flow: versions, names and tags, each spelt in one place only.

Nothing here touches a file or starts a process; parsing raises ConfigError with the nearest valid
spelling.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import zip_longest
from typing import Final

from packaging.version import InvalidVersion, Version

from rocwheel.base.errors import ConfigError

# Every CPython that rocwheel knows; a new one is added here and to the family matrix.
CPYTHONS: Final = (
    "3.10", "3.11", "3.12", "3.13", "3.13-ft", "3.14", "3.14-ft", "3.15", "3.15-ft",
)  # fmt: skip
CPYTHON_RANGE: Final = f"{CPYTHONS[0]}-{CPYTHONS[-1].removesuffix('-ft')}"
LAST_FIXED_NAME: Final = Version("0.9.1")  # upstream labels say rocm60 up to here, for any ROCm


def is_sha256(text: str) -> bool:
    """Return whether `text` is a SHA-256 as we write it: 64 lower-case hexadecimal digits."""
    return re.fullmatch(r"[0-9a-f]{64}", text) is not None


def is_commit(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{40}", text) is not None


def timestamp(when: datetime) -> str:
    """Return a time as records and pages have it: ISO 8601, UTC, whole seconds, `Z`."""
    return when.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(text: str) -> datetime:
    """Parse the time of a record. Raises ConfigError for other text, or without an offset."""
    try:
        when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        raise ConfigError(f"{text!r} is not a time", hint="use the record as rocwheel wrote it")
    return when


_ROCM_PROJECT: Final = re.compile(r"jax-rocm([0-9]+)-(plugin|pjrt)\Z")


class WheelKind(enum.Enum):
    """The wheels of a set; jaxlib and plugin exist per CPython, pjrt once."""

    JAXLIB = "jaxlib"
    PLUGIN = "plugin"
    PJRT = "pjrt"

    @property
    def per_python(self) -> bool:
        return self is not WheelKind.PJRT

    @property
    def needs_rocm(self) -> bool:
        return self is not WheelKind.JAXLIB


@dataclass(frozen=True, order=True)
class PythonVersion:
    """A CPython that wheels are built for: `3.12`, or `3.14-ft` for the free-threaded build."""

    major: int
    minor: int
    free_threaded: bool = False

    @classmethod
    def parse(cls, text: str) -> PythonVersion:
        """Parse one of `CPYTHONS` (also `3.14t`, `cp312`). Raises ConfigError otherwise."""
        spelt = re.sub(r"^cp(\d)(\d+)(t?)$", r"\1.\2\3", text.strip())
        spelt = re.sub(r"^(\d+\.\d+)t$", r"\1-ft", spelt)
        if spelt not in CPYTHONS:
            raise ConfigError(f"{text!r}: unknown Python version", hint=suggest(text, CPYTHONS))
        number, _, variant = spelt.partition("-")
        major, minor = map(int, number.split("."))
        return cls(major, minor, variant == "ft")

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{'-ft' if self.free_threaded else ''}"

    @property
    def interpreter(self) -> str:
        """Interpreter tag (PEP 425): `cp312`."""
        return f"cp{self.major}{self.minor}"

    @property
    def abi(self) -> str:
        """ABI tag (PEP 425): `cp312`, free-threaded `cp314t`."""
        return self.interpreter + ("t" if self.free_threaded else "")

    @property
    def executable(self) -> str:
        """What the interpreter is usually called: `python3.12`, free-threaded `python3.14t`."""
        return f"python{self.major}.{self.minor}{'t' if self.free_threaded else ''}"


_GFX = r"gfx(?:[0-9]+[0-9a-f]{2}|[0-9]+(?:-[0-9]+)?-generic)\Z"


def gfx_target(text: str) -> str:
    """Check the shape of a gfx target (`gfx942`, `gfx9-4-generic`). Raises ConfigError."""
    name = text.strip()
    if not re.match(_GFX, name):
        stem = name.partition(":")[0]  # gfx906:xnack-: LLVM's way to say more of one
        hint = f"did you mean {stem}?" if re.match(_GFX, stem) else "write for example gfx942"
        raise ConfigError(f"{text!r}: not a gfx target", hint=hint)
    return name


@dataclass(frozen=True)
class RocmVersion:
    """A ROCm version (`7.10.0`, `7.10.0a20251120`, `7.10.0rc1`, `7.10.0.dev0+efed3c`)."""

    version: Version

    @classmethod
    def parse(cls, text: str) -> RocmVersion:
        """Parse a version; a packaging build number (`7.10.0-41`) is dropped.

        Raises ConfigError when it is not PEP 440 or has no minor number.
        """
        spelt = re.sub(r"-[0-9][0-9A-Za-z.~]*$", "", text.strip())
        try:
            version = Version(spelt)
        except InvalidVersion as exc:
            raise ConfigError(
                f"{text!r}: not a ROCm version", hint="write for example 7.10.0 or 7.10.0a20251120"
            ) from exc
        if len(version.release) < 2:  # noqa: PLR2004
            raise ConfigError(
                f"{text!r}: a ROCm version has a minor number", hint="write for example 7.10.0"
            )
        return cls(version)

    def __str__(self) -> str:
        return str(self.version)

    @property
    def major(self) -> int:
        return self.version.major

    @property
    def series(self) -> tuple[int, int]:
        """Major and minor: what every statement about one ROCm must agree on."""
        return self.version.major, self.version.minor

    @property
    def wheel_suffix(self) -> str:
        """Local version of a wheel: `+rocm7.10.0`, dev builds `+devrocm7.10.0.dev0efed3c`."""
        spelt = str(self.version).replace("+", "").replace("-", "")
        return f"+{'devrocm' if self.version.is_devrelease else 'rocm'}{spelt}"


def rocm_number(*, jax: Version | None, rocm: RocmVersion) -> str:
    """Return the number in `jax_rocm<number>_plugin`: the one definition of it.

    JAX's own labels up to 0.9.1 are fixed to 60; ROCm 6.x is 60 everywhere; otherwise the ROCm
    major. `jax` is None for a tree whose own files are known to fix no number.
    """
    fixed = jax is not None and jax <= LAST_FIXED_NAME
    return "60" if rocm.major == 6 or fixed else str(rocm.major)  # noqa: PLR2004


def project_name(kind: WheelKind, number: str) -> str:
    """Return the project name (PEP 503) of a wheel kind; `number` as from `rocm_number`."""
    return "jaxlib" if kind is WheelKind.JAXLIB else f"jax-rocm{number}-{kind.value}"


def kind_of(project: str) -> tuple[WheelKind, str] | None:
    """Return the kind and ROCm number of a normalised project name; None for another project."""
    if project == WheelKind.JAXLIB.value:
        return WheelKind.JAXLIB, ""
    match = _ROCM_PROJECT.match(project)
    return (WheelKind(match[2]), match[1]) if match else None


def module_name(kind: WheelKind, number: str) -> str:
    """Return the importable package a wheel of this kind brings."""
    return {
        WheelKind.JAXLIB: "jaxlib",
        WheelKind.PLUGIN: f"jax_rocm{number}_plugin",
        WheelKind.PJRT: f"jax_plugins.xla_rocm{number}",
    }[kind]


def canonical_version(version: str, suffix: str) -> str:
    """Join a JAX version and a wheel suffix; both must already be in PEP 440 normal form.

    JAX's build declares `<version><suffix>` as the file name while setuptools writes the normal
    form: where the two differ, Bazel fails after hours. Raises ConfigError.
    """
    joined = version + suffix
    try:
        normal = str(Version(joined))
    except InvalidVersion as exc:
        raise ConfigError(
            f"{joined!r}: not a PEP 440 version", hint="a suffix looks like +rocm7.10.0 or .post1"
        ) from exc
    if normal != joined:
        raise ConfigError(
            f"{joined!r}: PEP 440 spells it {normal!r}", hint=f"give the suffix as in {normal!r}"
        )
    return joined


def byte_count(text: str) -> int:
    """Parse a size: `60G`, `512M`, `1.5 GiB`, `1000 B`; units are powers of 1024.

    A number alone is refused: `60` most likely means gigabytes. Raises ConfigError.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:i?B)?|B)\s*|0()", text, re.IGNORECASE)
    if match is None:
        alone = text.strip().isdigit()
        raise ConfigError(
            f"{text!r}: {'a size without a unit' if alone else 'not a size'}",
            hint=f"write for example {text.strip() if alone else 60}G",
        )
    if match[1] is None:
        return 0
    return int(float(match[1]) * 1024 ** " KMGT".index((match[2] or " ").upper()))


def _nearest(name: str, valid: Collection[str]) -> str:
    def numbers(text: str) -> tuple[int, ...]:
        return tuple(map(int, re.findall(r"\d+", text.partition("-")[0])))[:3]

    def distance(text: str) -> tuple[list[int], list[int]]:
        both = zip_longest(numbers(text), numbers(name), fillvalue=0)
        return [abs(a - b) for a, b in both], [-part for part in numbers(text)]

    return min(valid, key=distance)


def suggest(name: str, valid: Collection[str]) -> str:
    """Return a hint with the valid value nearest to `name`, or all of them; case does not count."""
    versions = [item for item in valid if item[:1].isdigit()]  # pins may be called by a branch
    tag = re.fullmatch(r"(?:jax-?)?v?(\d+(?:\.\d+)+)", name)  # also as tags are spelt: jax-v0.11.0
    if tag and versions:
        begun = max((item for item in versions if tag[1].startswith(item)), key=len, default="")
        return f"did you mean {begun or _nearest(tag[1], versions)}?"
    spelt = {item.lower(): item for item in valid}
    wanted = name.strip().lower()
    close = [item for item in spelt if wanted and item.startswith(wanted)]
    if not close:
        import difflib  # which no command that looks needs

        close = difflib.get_close_matches(wanted, spelt, n=1, cutoff=0.65)
    return f"did you mean {spelt[close[0]]}?" if close else f"choose from: {', '.join(valid)}"
