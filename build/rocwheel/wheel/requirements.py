"""Versions and requirements as METADATA has them: of a wheel that is not trusted, anything at all.

packaging raises more than it says for what nobody writes: ValueError for a number of 5,000 digits,
RecursionError for a thousand brackets, UndefinedComparison for a marker that orders words, KeyError
for one that asks for what only lock files have (`extras`) or compares two texts. To
installers, which use it too, all of that is one thing: not PEP 440, not PEP 508.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from rocwheel.wheel.limits import LIMITS

if TYPE_CHECKING:  # packaging costs as much as renaming a wheel
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

LARGEST: Final = 2**64 - 2  # number of a version (not in its local part) that uv takes
_Value = TypeVar("_Value")


def version(text: str) -> Version | None:
    """A version by PEP 440; None where it is none."""
    from packaging.version import Version

    return _parsed(Version, text)


def specifiers(text: str) -> SpecifierSet | None:
    """A set of version specifiers by PEP 440; None where it is none."""
    from packaging.specifiers import SpecifierSet

    found = _parsed(SpecifierSet, text)
    return found if found is not None and _compares(found) else None


def requirement(text: str) -> Requirement | None:
    """A requirement by PEP 508 whose marker has a value on Linux; None where it is none."""
    from packaging.requirements import Requirement

    found = _parsed(Requirement, text)
    if found is None or not _compares(found.specifier):
        return None
    try:
        applies(found, python_minor="12")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None
    return found


def fits(found: Version) -> bool:
    """Whether uv takes the version: no number in it is larger than its 64 bits hold."""
    kinds = (found.pre[1] if found.pre else 0, found.post or 0, found.dev or 0)
    return max(found.epoch, *found.release, *kinds) <= LARGEST


def applies(requirement: Requirement, *, python_minor: str) -> bool:
    """Whether it is installed with CPython 3.`python_minor` where no extra is asked for."""
    return requirement.marker is None or requirement.marker.evaluate({
        "extra": "", "python_version": f"3.{python_minor}",
        "python_full_version": f"3.{python_minor}.0", "sys_platform": "linux",
        "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64",
        "implementation_name": "cpython", "platform_python_implementation": "CPython",
    })  # fmt: skip


def _compares(found: SpecifierSet) -> bool:
    """Whether a version can be held against it: packaging parses some numbers only then."""
    try:
        found.contains("0", prereleases=True)
    except ValueError:
        return False
    return True


def _parsed(kind: Callable[[str], _Value], text: str) -> _Value | None:
    if len(text) > LIMITS.specifier or text.count("(") > LIMITS.brackets:
        return None
    try:
        return kind(text)
    except (ValueError, RecursionError):  # what packaging calls invalid is a ValueError too
        return None
