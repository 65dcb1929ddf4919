"""What `verify` asks of the files of JAX's own wheels: that everything JAX imports is in them."""

from __future__ import annotations

import fnmatch
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rocwheel.model import WheelKind
from rocwheel.wheel import requirements
from rocwheel.wheel.inspect import WheelReport
from rocwheel.wheel.metadata import normal_name
from rocwheel.wheel.verify.rules import Finding, finding
from rocwheel.wheel.wheel_policy import KindPolicy, WheelPolicy

_CPYTHON: Final = re.compile(r"cp3[0-9]+\Z")


@dataclass(frozen=True, kw_only=True)
class Contents:
    """One wheel of a known kind against what the policy requires of the kind."""

    report: WheelReport
    policy: WheelPolicy
    kind: WheelKind
    rocm: str  # number in the project's name

    def findings(self) -> Iterator[Finding]:
        for check in (
            self._tag, self._members, self._sources, self._versions, self._entry_points,
            self._requires,
        ):  # fmt: skip
            yield from check()

    @property
    def _rules(self) -> KindPolicy:
        return self.policy.kinds[self.kind]

    def _named(self, text: str) -> str:
        return text.format(rocm=self.rocm)

    def _tag(self) -> Iterator[Finding]:
        name = self.report.filename
        python, abi = ".".join(name.pythons), ".".join(name.abis)
        cpython = _CPYTHON.match(python) and abi in (python, f"{python}t")
        if not (cpython if self._rules.tag == "cpython" else f"{python}-{abi}" == self._rules.tag):
            wanted = "of one CPython" if self._rules.tag == "cpython" else self._rules.tag
            yield finding("tag.kind", f"{python}-{abi}: the tag of a {self.kind.value} is {wanted}")

    def _members(self) -> Iterator[Finding]:
        names = {member.name for member in self.report.members}
        libraries = {item.path for item in self.report.elf}
        for text in self.policy.required(self.kind, self.report.filename.version):
            member = self._named(text)
            if member not in names:
                yield finding("layout.required", f"{member} is missing")
            elif member.endswith(".so") and member not in libraries:
                yield finding("layout.required", f"{member} is no shared object")

    def _sources(self) -> Iterator[Finding]:
        functions = {self._named(name): each for name, each in self._rules.functions.items()}
        result = self.report.compiled
        ours = "CPython {}.{}".format(*sys.version_info)
        for name, problem in result.problems.items():
            yield finding("layout.python", f"{name}: {problem} ({ours})")
        for name, wanted in functions.items():
            missing = [each for each in wanted if each not in result.functions.get(name, wanted)]
            if missing:
                yield finding("layout.required", f"{name} has no function {', '.join(missing)}")

    def _versions(self) -> Iterator[Finding]:
        own = self.report.filename.version
        for name, text in self.report.releases.items():
            release = requirements.version(text or "")
            if text == "":
                what = f"_release_version is None, so it calls itself {own.base_version}.dev<today>"
                yield finding("version.module", f"{name}: {what}", warn=True)
            elif release is None or release.base_version != own.base_version:
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
        allowed = {self._named(name): each for name, each in self._rules.requires.items()}
        for text in self.report.requires:
            requirement = requirements.requirement(text)
            if requirement is None:  # `metadata.field`
                continue
            name = normal_name(requirement.name)
            extra = requirement.marker is not None and "extra" in str(requirement.marker)
            optional = extra and any(fnmatch.fnmatch(name, each) for each in self._rules.extras)
            if requirement.url:
                yield finding("pin.allowed", f"requires {text}, a URL")
            elif name not in allowed and not optional:
                yield finding("pin.allowed", f"requires {text}, which the policy does not know")
            elif name in allowed and not allowed[name].fits(requirement.specifier):
                yield finding("pin.allowed", f"requires {text}, {allowed[name]}")
