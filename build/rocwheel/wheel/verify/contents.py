"""Rules for the files of JAX's own wheels: everything that JAX imports is in them."""

import fnmatch
import re
from collections.abc import Iterator
from typing import Final

from packaging.version import Version

from rocwheel.base.versions import WheelKind
from rocwheel.wheel import requirements
from rocwheel.wheel.metadata import normal_name
from rocwheel.wheel.verify.libraries import JudgedWheel
from rocwheel.wheel.verify.rules import Finding, finding
from rocwheel.wheel.wheel_policy import KindPolicy, RequiredMembers

PATCHES: Final = 10  # releases that each CPython has; a bound above them excludes all there are
_CPYTHON: Final = re.compile(r"cp3[0-9]+\Z")
_THREADED: Final = re.compile(r"(cp31[3-9]|cp3[2-9][0-9])-\1t\Z")
_QUOTED: Final = re.compile(r"\"[^\"]*\"|'[^']*'")
_NAME: Final = re.compile(r"[a-z_]+")
_JUDGED: Final = frozenset({"extra", "python_version", "and", "or", "in", "not"})


def _series(version: Version) -> tuple[object, ...]:
    """Return the part of a version that post-releases and builds of one release share."""
    return version.base_version, version.pre, version.dev


class Contents(JudgedWheel, frozen=True, kw_only=True):
    """Checks the files of a wheel of a known kind."""

    kind: WheelKind

    def findings(self) -> Iterator[Finding]:
        for check in (
            self._tag, self._pythons, self._members, self._versions, self._entry_points,
            self._requires,
        ):  # fmt: skip
            yield from check()

    @property
    def _rules(self) -> KindPolicy:
        return self.policy.kinds[self.kind]

    @property
    def _required(self) -> RequiredMembers:
        return self.policy.required(self.kind, self.report.filename.version)

    def _named(self, text: str) -> str:
        return text.format(rocm=self.rocm)

    def _tag(self) -> Iterator[Finding]:
        name = self.report.filename
        python, abi = ".".join(name.pythons), ".".join(name.abis)
        cpython = _CPYTHON.match(python) and (abi == python or _THREADED.match(f"{python}-{abi}"))
        if not (cpython if self._rules.tag == "cpython" else f"{python}-{abi}" == self._rules.tag):
            wanted = "of one CPython" if self._rules.tag == "cpython" else self._rules.tag
            yield finding("tag.kind", f"{python}-{abi}: the tag of a {self.kind.value} is {wanted}")

    @property
    def _minors(self) -> set[str]:
        """CPythons that install the wheel: the minor versions of its tag, or of JAX."""
        tags = {each.removeprefix("cp3") for each in self.report.filename.pythons}
        return {each for each in tags if each.isdecimal()} or {*self._required.pythons}

    def _pythons(self) -> Iterator[Finding]:
        requires = requirements.specifiers(self.report.requires_python)
        if requires is None:  # `metadata.field`
            return
        for minor in sorted(self._minors):
            releases = [f"3.{minor}.{patch}" for patch in range(PATCHES)]
            newest = (releases[-1], f"3.{minor}.99")  # which users have, or will
            most = 2 * sum(map(requires.contains, releases)) >= PATCHES
            if not most or not any(map(requires.contains, newest)):
                which = "the newest" if most else "most"
                what = f"Requires-Python {requires} excludes {which} releases of CPython 3.{minor}"
                yield finding("metadata.python", what)

    def _members(self) -> Iterator[Finding]:
        names = {member.name for member in self.report.members}
        libraries = {item.path for item in self.report.elf}
        for text in self._required.members:
            member = self._named(text)
            if member not in names:
                yield finding("layout.required", f"{member} is missing")
            elif member.endswith(".so") and member not in libraries:
                yield finding("layout.required", f"{member} is no shared object")

    def _versions(self) -> Iterator[Finding]:
        own = self.report.filename.version
        for name, text in self.report.releases.items():
            release = requirements.release(text or "")
            if text == "":
                what = f"_release_version is None, so it calls itself {own.base_version}.dev<today>"
                yield finding("version.module", f"{name}: {what}", warn=True)
            elif release is None or _series(release) != _series(own):
                shown = "sets no _release_version" if text is None else f"is of {text!r}"
                yield finding("version.module", f"{name}: {shown}, the wheel of {own}")
            elif release != own:
                yield finding("version.module", f"{name}: is of {release}, not {own}", warn=True)

    def _entry_points(self) -> Iterator[Finding]:
        read = self.report.entry_points
        wanted = {
            group: tuple(map(self._named, points))
            for group, points in self._rules.entry_points.items()
        }
        if read != wanted:
            texts = [
                "; ".join(f"[{group}] {', '.join(points)}" for group, points in groups.items())
                for groups in (read, wanted)
            ]
            what = f"importlib.metadata reads {texts[0] or 'none'}, JAX needs {texts[1] or 'none'}"
            yield finding("layout.entry-point", what)

    def _requires(self) -> Iterator[Finding]:
        brings = self.expected.extras
        wanted = {f'{text}; extra == "{name}"' for name, text in (brings or {}).items()}
        for text in sorted(wanted - {*self.report.requires}):
            yield finding("pin.allowed", f"does not require {text}")
        allowed = {self._named(name): each for name, each in self._rules.requires.items()}
        for text in self.report.requires:
            requirement = requirements.requirement(text)
            if requirement is None:  # `metadata.field`
                continue
            name = normal_name(requirement.name)
            marker = str(requirement.marker or "")
            unknown = {*_NAME.findall(_QUOTED.sub("", marker))} - _JUDGED
            optional = not any(
                requirements.applies(requirement, python_minor=each) for each in self._minors
            ) and any(fnmatch.fnmatch(name, each) for each in self._rules.extras)
            if unknown:
                what = f"requires {text}: only `extra` and `python_version` can be judged"
                yield finding("pin.allowed", what)
            elif requirement.url:
                yield finding("pin.allowed", f"requires {text}, a URL")
            elif name not in allowed and not optional:
                yield finding("pin.allowed", f"requires {text}, which the policy does not know")
            elif name == "rocm" and brings is not None and text not in wanted:
                yield finding("pin.allowed", f"requires {text}, another ROCm than the set's")
            elif name in allowed and not allowed[name].fits(requirement.specifier):
                yield finding("pin.allowed", f"requires {text}, {allowed[name]}")
