"""One wheel against policy and expectation: `Judge` knows how each rule is checked."""

import re
from collections.abc import Iterator
from functools import partial
from typing import Final

from msgspec import structs
from packaging.requirements import Requirement

from rocwheel.base.console import count
from rocwheel.base.versions import WheelKind, kind_of, project_name
from rocwheel.wheel import requirements
from rocwheel.wheel.inspect import LIBRARIES
from rocwheel.wheel.metadata import canonical_platform, normal_name, sound_mode
from rocwheel.wheel.verify.contents import Contents
from rocwheel.wheel.verify.libraries import JudgedWheel, Libraries
from rocwheel.wheel.verify.rules import Finding, finding

METADATA_VERSIONS: Final = frozenset({"1.0", "1.1", "1.2", "2.1", "2.2", "2.3", "2.4", "2.5"})
_CPYTHON: Final = re.compile(r"(?:cp|py)([0-9])([0-9]*)\Z")
PYTHONS: Final = tuple(f"3.{minor}.{patch}" for minor in range(40) for patch in (0, 1, 9))
INSTALLED: Final = ("INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")
LEFTOVERS: Final = re.compile(
    r"(^|/)(__pycache__|\.git|\.DS_Store|\.hypothesis|\.pytest_cache|node_modules)(/|$)"
    r"|\.(pyc|pyo|orig|rej|swp|o|a|d)$|~$"
)


class Judge(JudgedWheel, frozen=True, kw_only=True):
    """One wheel against policy and expectation."""

    def findings(self) -> Iterator[Finding]:
        for check in (
            self._names, self._metadata, self._pythons, self._tags, self._layout, self._modes,
            Libraries(**structs.asdict(self)).findings, self._pins, self._grafts, self._size,
        ):  # fmt: skip
            yield from check()
        if self.kind is not None:
            yield from Contents(**structs.asdict(self)).findings()

    def _names(self) -> Iterator[Finding]:
        report, name = self.report, self.report.filename
        if report.dist_info != f"{name.stem}.dist-info":
            yield finding("name.agree", f"{report.dist_info}: the file is named {name.stem}-…")
        own = "".join(report.metadata["Name"][:1])
        if normal_name(own) != name.project:
            yield finding("name.agree", f"METADATA: Name is {own!r}, the file says {name.project}")
        text = "".join(report.metadata["Version"][:1])
        version = requirements.version(text)
        if version is None:
            yield finding("metadata.field", f"METADATA: Version {text!r} is not PEP 440")
        elif version != report.filename.version:
            yield finding(
                "name.agree", f"METADATA: Version is {version}, the file says {report.version}"
            )
        for spelt, parsed in {report.version: report.filename.version, text: version}.items():
            if parsed is not None and spelt != str(parsed):
                yield finding("name.canonical", f"{spelt}, in normal form {parsed}")
        for rule, what, value, meant in (
            ("name.expected", "project", report.project, self.expected.project),
            ("name.expected", "version", report.version, self.expected.version),
            ("tag.expected", "interpreter tag", ".".join(name.pythons), self.expected.python),
            ("tag.expected", "ABI tag", ".".join(name.abis), self.expected.abi),
        ):
            if meant and value != meant:
                yield finding(rule, f"{what} is {value}, expected {meant}")

    def _metadata(self) -> Iterator[Finding]:
        metadata, wheel = self.report.metadata, self.report.wheel
        any_text: frozenset[str] = frozenset()
        for name, fields, key, valid in (
            ("METADATA", metadata, "Metadata-Version", METADATA_VERSIONS),
            ("METADATA", metadata, "Name", any_text),
            ("METADATA", metadata, "Version", any_text),
            ("WHEEL", wheel, "Wheel-Version", frozenset({"1.0"})),
            ("WHEEL", wheel, "Root-Is-Purelib", frozenset({"true", "false"})),
        ):
            values = fields[key]
            if len(values) != 1:
                yield finding("metadata.field", f"{name}: {key} stands {len(values)} times")
            if values and valid and values[0].lower() not in valid:
                yield finding("metadata.field", f"{name}: {key} {values[0]!r}")
        for text in self.report.requires:
            if requirements.requirement(text) is None:
                yield finding("metadata.field", f"METADATA: Requires-Dist {text!r} is not PEP 508")

    def _pythons(self) -> Iterator[Finding]:
        if len(self.report.metadata["Requires-Python"]) > 1:
            yield finding("metadata.field", "METADATA: Requires-Python stands twice")
        text = self.report.requires_python
        requires = requirements.specifiers(text)
        if requires is None:
            yield finding("metadata.field", f"METADATA: Requires-Python {text!r} is not PEP 440")
        elif self.kind is None and not any(map(requires.contains, PYTHONS)):
            yield finding("metadata.python", f"no CPython 3 satisfies Requires-Python {requires}")

    def _tags(self) -> Iterator[Finding]:
        report, name = self.report, self.report.filename
        listed = tuple(sorted(report.wheel["Tag"]))
        if listed != report.tags:
            what = f"WHEEL lists {', '.join(listed)}; the file name {', '.join(report.tags)}"
            yield finding("tag.agree", what)
        build = "".join(report.wheel["Build"])
        if build != name.build.lstrip("-"):
            what = f"WHEEL: Build is {build or 'absent'}, the file name has {name.build or 'none'}"
            yield finding("tag.agree", what)
        if self.kind and len({canonical_platform(tag) for tag in name.platforms}) > 1:
            yield finding("tag.single", f"platform tags {', '.join(name.platforms)}")

    def _layout(self) -> Iterator[Finding]:
        """Find files that do not belong in this wheel; JAX's wheels have no `.data` folder."""
        packages = self.policy.kinds[self.kind].packages if self.kind is not None else ()
        folders = [text.format(rocm=self.rocm) for text in packages]
        own = (
            *(f"{each}/" for each in (*folders, self.report.dist_info)),
            f"{self.report.filename.distribution}{LIBRARIES}/",
        )
        for member in self.report.members:
            name = member.name
            archive = self.kind is None and name.endswith(".a")  # numpy and scipy ship some
            if name in {f"{self.report.dist_info}/{each}" for each in INSTALLED}:
                what = f"{name}: only a client that installs the wheel may write it"
                yield finding("layout.stray", what, warn=self.kind is None)
            elif LEFTOVERS.search(name) and not archive:
                yield finding("layout.stray", f"{name}: left over from a build")
            elif name.partition("/")[0].lower().endswith(".egg-info"):
                yield finding("layout.stray", f"{name}: metadata of another distribution")
            elif folders and not name.startswith(own) and not name.endswith("/"):
                yield finding("layout.stray", f"{name}: not below {', '.join(folders)}")

    def _modes(self) -> Iterator[Finding]:
        names: dict[int, list[str]] = {}
        for member in self.report.members:
            if sound_mode(member.mode) != member.mode:
                names.setdefault(member.mode & 0o7777, []).append(member.name)
        for bits, each in sorted(names.items()):
            why = "" if bits & 0o444 == 0o444 else " cannot be read by all"  # noqa: PLR2004
            more = f" and {count(len(each) - 1, 'other file')}" if len(each) > 1 else ""
            yield finding("layout.mode", f"{each[0]}{more}: mode {bits:04o}{why}")

    def _pins(self) -> Iterator[Finding]:
        pinned: set[str] = set()  # projects of the set that are pinned wherever this installs
        match = _CPYTHON.match(self.report.filename.pythons[0])
        minor = match[2] if match and match[2] else "12"
        for text in self.report.requires:
            requirement = requirements.requirement(text)
            if requirement is None:  # `metadata.field`
                continue
            if requirements.applies(requirement, python_minor=minor):
                pinned.add(normal_name(requirement.name))
            if problem := self._pin_problem(requirement):
                yield finding("pin.sibling", f"requires {text}{problem}")
        if self.kind is WheelKind.PLUGIN:
            pjrt = project_name(WheelKind.PJRT, self.rocm) if self.rocm else ""
            if pjrt and pjrt not in pinned:
                yield finding("pin.sibling", f"requires no {pjrt}: any version would be taken")

    def _pin_problem(self, requirement: Requirement) -> str:
        """Return what is wrong with a requirement on a wheel of the same set; "" for any other."""
        project = normal_name(requirement.name)
        siblings = self.expected.siblings or {}
        known = kind_of(project)
        kinds = (self.kind, known and known[0])
        related = all(kind and kind.needs_rocm for kind in kinds)
        # What only an extra brings may be another version on purpose: jax's minimum-jaxlib.
        optional = requirement.marker is not None and "extra" in str(requirement.marker)
        if not related and (optional or project not in siblings):
            return ""
        if requirement.url:
            return ", a URL: pins of a set are versions"
        accepts = partial(requirement.specifier.contains, prereleases=True)
        version, base = self.report.version, self.report.filename.version.base_version
        problem = ""
        if project in siblings:
            if not accepts(siblings[project]):
                problem = f"; the set has {project} {siblings[project]}"
        elif self.expected.siblings is not None and not self.expected.partial:
            problem = ", which is not in the set"
        elif not (accepts(version) or accepts(base)):
            problem = f", and this wheel is {version}"
        exact = any(
            item.operator in ("==", "===") and not item.version.endswith(".*")
            for item in requirement.specifier
        )
        return problem or (": that pins no version" if related and not exact else "")

    def _grafts(self) -> Iterator[Finding]:
        for name in self.report.grafted:
            if self.kind is not None:
                yield finding("graft.allowed", f"{name} is inside and may not be")

    def _size(self) -> Iterator[Finding]:
        if self.kind is None:
            return
        number = len(self.expected.gfx_targets or self.report.gfx_targets)
        budget = self.policy.kinds[self.kind].budget(number)
        if self.report.size > budget:
            of = f" for {count(number, 'gfx target')}" if number else ""
            yield finding("size.budget", f"{self.report.size} bytes, the budget{of} is {budget}")
