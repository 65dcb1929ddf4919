"""Parses versions and requirements of METADATA, which may be any text in an untrusted wheel.

packaging raises more than it documents: ValueError for a number of 5,000 digits, RecursionError,
UndefinedComparison and KeyError for markers. All of that means: not PEP 440, not PEP 508.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from packaging.version import Version

from rocwheel.wheel.limits import LIMITS

if TYPE_CHECKING:  # packaging costs as much as renaming a wheel
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

_Value = TypeVar("_Value")


def version(text: str) -> Version | None:
    """Return a version by PEP 440; None where the text is no version."""
    return _parsed(Version, text)


def release(text: str) -> Version | None:
    """Return the version in a module; JAX splits it itself and accepts no leading `v`."""
    return version(text) if text[:1].isdigit() else None


def specifiers(text: str) -> SpecifierSet | None:
    """Return a set of version specifiers by PEP 440; None where it is invalid."""
    from packaging.specifiers import SpecifierSet

    parsed = _parsed(SpecifierSet, text)
    return parsed if parsed is not None and _compares(parsed) else None


def requirement(text: str) -> Requirement | None:
    """Return a requirement by PEP 508 whose marker has a value on Linux; None if it is invalid."""
    from packaging.requirements import Requirement

    parsed = _parsed(Requirement, text)
    if parsed is None or not _compares(parsed.specifier):
        return None
    try:
        applies(parsed, python_minor="12")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None
    return parsed


def applies(requirement: Requirement, *, python_minor: str) -> bool:
    """Return whether it is installed with CPython 3.`python_minor` where no extra is asked for."""
    return requirement.marker is None or requirement.marker.evaluate({
        "extra": "", "python_version": f"3.{python_minor}",
        "python_full_version": f"3.{python_minor}.0",
        "implementation_version": f"3.{python_minor}.0", "sys_platform": "linux",
        "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64",
        "implementation_name": "cpython", "platform_python_implementation": "CPython",
    })  # fmt: skip


def _compares(specifier: SpecifierSet) -> bool:
    """Return whether it can be compared: packaging parses some numbers only then."""
    try:
        specifier.contains("0", prereleases=True)
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
