"""The names of TheRock's tarballs; nothing else takes one apart.

The grammar is data, `ci/therock.yaml`. A version is `7.10.0`, `7.15.0a20260630`, `7.10.0rc1`,
`7.14.0.dev0+13caf791` or `10.1.0a20260811+bkc.20260814`; `-tests` marks a tarball with ROCm's own
tests. Builds with AddressSanitizer have the same names in a folder of their own.
"""

from urllib.parse import unquote, urlsplit

import amdgpu_family_matrix as matrix
from amdgpu_family_matrix import Family
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import Plain
from rocwheel.base.versions import RocmVersion
from rocwheel.rocm import therock


class TarballName(Plain, frozen=True, kw_only=True):
    """The parts of a tarball's name."""

    platform: str
    group: str  # a GPU family, or `multiarch`
    version: RocmVersion | None  # None where it is no version
    has_tests: bool

    @property
    def is_multiarch(self) -> bool:
        """Return whether the tarball serves every GPU family."""
        return self.group == therock.known().names.everything

    @property
    def family(self) -> Family | None:
        """Return the GPU family; None for `multiarch` and for a family that is not known."""
        return matrix.FAMILIES.get(self.group)

    @property
    def is_release(self) -> bool:
        """Return whether it is a Linux ROCm to build with, and not one with ROCm's own tests."""
        return self.platform == "linux" and self.version is not None and not self.has_tests


def parse(name: str) -> TarballName | None:
    """Take a tarball's name apart; None where TheRock made no such name."""
    if (match := therock.known().names.pattern.fullmatch(name)) is None:
        return None
    try:
        version = RocmVersion.parse(match["version"])
    except ConfigError:
        version = None
    return TarballName(
        platform=match["platform"],
        group=match["group"],
        version=version,
        has_tests=bool(match["tests"]),
    )


def base_name(source: str) -> str:
    """Return the last part of a URL's path, decoded, or of a path."""
    path = unquote(urlsplit(source).path) if "://" in source else source
    return path.rstrip("/").rpartition("/")[2]
