"""One wheel against policy and expectation: `Judge` knows how each rule is checked."""

import fnmatch
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from packaging.requirements import Requirement
from packaging.version import Version

from rocwheel.base.console import count
from rocwheel.base.versions import WheelKind, kind_of, project_name
from rocwheel.wheel import metadata
from rocwheel.wheel.inspect import LIBRARIES
from rocwheel.wheel.metadata import canonical_platform, normal_name, sound_mode
from rocwheel.wheel.verify.libraries import Libraries
from rocwheel.wheel.verify.rules import Finding, finding
from rocwheel.wheel.wheel_policy import KindPolicy

METADATA_VERSIONS: Final = frozenset({"1.0", "1.1", "1.2", "2.1", "2.2", "2.3", "2.4", "2.5"})
PATCHES: Final = 10  # releases that each CPython has; a bound above them excludes all there are
_CPYTHON: Final = re.compile(r"(?:cp|py)([0-9])([0-9]*)\Z")
_CP3: Final = re.compile(r"cp3[0-9]+\Z")
_THREADED: Final = re.compile(r"(cp31[3-9]|cp3[2-9][0-9])-\1t\Z")
_QUOTED: Final = re.compile(r"\"[^\"]*\"|'[^']*'")
_NAME: Final = re.compile(r"[a-z_]+")
_JUDGED: Final = frozenset({"extra", "python_version", "and", "or", "in", "not"})
PYTHONS: Final = tuple(f"3.{minor}.{patch}" for minor in range(40) for patch in (0, 1, 9))
INSTALLED: Final = ("INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")
LEFTOVERS: Final = re.compile(
    r"(^|/)(__pycache__|\.git|\.DS_Store|\.hypothesis|\.pytest_cache|node_modules)(/|$)"
    r"|\.(pyc|pyo|orig|rej|swp|o|a|d)$|~$"
)


class Judge(Libraries, frozen=True, kw_only=True):
    def findings(self) -> Iterator[Finding]:
        for check in (
            self._names, self._metadata, self._pythons, self._tags, self._layout, self._modes,
            self.of_libraries, self._pins,
        ):  # fmt: skip
            yield from check()
        if self.kind is not None:
            rules = self.policy.kinds[self.kind]
            required = self.policy.required(self.kind, self.report.filename.version)
            yield from self._members(rules, required.members)
            yield from self._versions()
            yield from self._requires(rules)

    def _names(self) -> Iterator[Finding]:
        report, name = self.report, self.report.filename
        if report.dist_info != f"{name.stem}.dist-info":
            yield finding("name.agree", f"{report.dist_info}: the file is named {name.stem}-…")
        own = "".join(report.metadata["Name"][:1])
        if normal_name(own) != name.project:
            yield finding("name.agree", f"METADATA: Name is {own!r}, the file says {name.project}")
        text = "".join(report.metadata["Version"][:1])
        version = metadata.version(text)
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
        found = [*self._fields()]
        yield from found
        if not (found or [*self._names()]):  # which say it better
            for text in self.report.flaws:
                yield finding("metadata.field", f"METADATA: {text}")

    def _fields(self) -> Iterator[Finding]:
        core, wheel = self.report.metadata, self.report.wheel
        any_text: frozenset[str] = frozenset()
        for name, fields, key, valid in (
            ("METADATA", core, "Metadata-Version", METADATA_VERSIONS),
            ("METADATA", core, "Name", any_text),
            ("METADATA", core, "Version", any_text),
            ("WHEEL", wheel, "Wheel-Version", frozenset({"1.0"})),
            ("WHEEL", wheel, "Root-Is-Purelib", frozenset({"true", "false"})),
        ):
            values = fields[key]
            if len(values) != 1:
                yield finding("metadata.field", f"{name}: {key} stands {len(values)} times")
            if values and valid and values[0].lower() not in valid:
                yield finding("metadata.field", f"{name}: {key} {values[0]!r}")
        for text in self.report.requires:
            if metadata.requirement(text) is None:
                yield finding("metadata.field", f"METADATA: Requires-Dist {text!r} is not PEP 508")

    @property
    def _minors(self) -> set[str]:
        if self.kind is None:
            return set()
        tags = {each.removeprefix("cp3") for each in self.report.filename.pythons}
        known = {each for each in tags if each.isdecimal()}
        return known or {*self.policy.required(self.kind, self.report.filename.version).pythons}

    def _pythons(self) -> Iterator[Finding]:
        if len(self.report.metadata["Requires-Python"]) > 1:
            yield finding("metadata.field", "METADATA: Requires-Python stands twice")
        text = self.report.requires_python
        requires = metadata.specifiers(text)
        if requires is None:
            yield finding("metadata.field", f"METADATA: Requires-Python {text!r} is not PEP 440")
            return
        if self.kind is None and not any(map(requires.contains, PYTHONS)):
            yield finding("metadata.python", f"no CPython 3 satisfies Requires-Python {requires}")
        for minor in sorted(self._minors):
            releases = [f"3.{minor}.{patch}" for patch in range(PATCHES)]
            newest = (releases[-1], f"3.{minor}.99")  # which users have, or will
            most = 2 * sum(map(requires.contains, releases)) >= PATCHES
            if not most or not any(map(requires.contains, newest)):
                which = "the newest" if most else "most"
                what = f"Requires-Python {requires} excludes {which} releases of CPython 3.{minor}"
                yield finding("metadata.python", what)

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
            requirement = metadata.requirement(text)
            if requirement is None:  # `metadata.field`
                continue
            if metadata.applies(requirement, python_minor=minor):
                pinned.add(normal_name(requirement.name))
            if problem := self._pin_problem(requirement):
                yield finding("pin.sibling", f"requires {text}{problem}")
        if self.kind is WheelKind.PLUGIN:
            pjrt = project_name(WheelKind.PJRT, self.rocm) if self.rocm else ""
            if pjrt and pjrt not in pinned:
                yield finding("pin.sibling", f"requires no {pjrt}: any version would be taken")

    def _pin_problem(self, requirement: Requirement) -> str:
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
        elif other := next((x for x in siblings if (kind_of(x) or ("",))[0] is kinds[1]), ""):
            problem = f"; the set has {other}"
        elif not (accepts(version) or accepts(base)):
            problem = f", and this wheel is {version}"
        exact = any(
            item.operator in ("==", "===") and not item.version.endswith(".*")
            for item in requirement.specifier
        )
        return problem or (": that pins no version" if related and not exact else "")

    def _members(self, rules: KindPolicy, required: Sequence[str]) -> Iterator[Finding]:
        """Find what is no wheel of its kind: its tag, its size, what is inside and what is not."""
        report = self.report
        python, abi = ".".join(report.filename.pythons), ".".join(report.filename.abis)
        cpython = _CP3.match(python) and (abi == python or _THREADED.match(f"{python}-{abi}"))
        if not (cpython if rules.tag == "cpython" else f"{python}-{abi}" == rules.tag):
            wanted = "of one CPython" if rules.tag == "cpython" else rules.tag
            yield finding("tag.kind", f"{python}-{abi}: the tag of its kind is {wanted}")
        number = len(self.expected.gfx_targets or report.gfx_targets)
        if report.size > (budget := rules.budget(number)):
            of = f" for {count(number, 'gfx target')}" if number else ""
            yield finding("size.budget", f"{report.size} bytes, the budget{of} is {budget}")
        for name in report.grafted:
            yield finding("graft.allowed", f"{name} is inside and may not be")
        names = {member.name for member in report.members}
        for text in required:
            member = text.format(rocm=self.rocm)
            if member not in names:
                yield finding("layout.required", f"{member} is missing")
            elif member.endswith(".so") and member not in {item.path for item in report.elf}:
                yield finding("layout.required", f"{member} is not a shared object")
        wanted_points = {
            group: tuple(text.format(rocm=self.rocm) for text in points)
            for group, points in rules.entry_points.items()
        }
        if report.entry_points != wanted_points:
            texts = [
                "; ".join(f"[{group}] {', '.join(points)}" for group, points in groups.items())
                for groups in (report.entry_points, wanted_points)
            ]
            what = f"importlib.metadata reads {texts[0] or 'none'}, JAX needs {texts[1] or 'none'}"
            yield finding("layout.entry-point", what)

    def _versions(self) -> Iterator[Finding]:
        own = self.report.filename.version
        for name, text in self.report.releases.items():
            # JAX splits it itself and accepts no leading `v`
            release = metadata.version(text) if text and text[0].isdigit() else None
            if text == "":
                what = f"_release_version is None, so it calls itself {own.base_version}.dev<today>"
                yield finding("version.module", f"{name}: {what}", warn=True)
            elif release is None or _series(release) != _series(own):
                shown = "sets no _release_version" if text is None else f"is of {text!r}"
                yield finding("version.module", f"{name}: {shown}, the wheel of {own}")
            elif release != own:
                yield finding("version.module", f"{name}: is of {release}, not {own}", warn=True)

    def _requires(self, rules: KindPolicy) -> Iterator[Finding]:
        brings = self.expected.extras
        wanted = {f'{text}; extra == "{name}"' for name, text in (brings or {}).items()}
        for text in sorted(wanted - {*self.report.requires}):
            yield finding("pin.allowed", f"does not require {text}")
        allowed = {name.format(rocm=self.rocm): each for name, each in rules.requires.items()}
        for text in self.report.requires:
            requirement = metadata.requirement(text)
            if requirement is None:  # `metadata.field`
                continue
            name = normal_name(requirement.name)
            marker = str(requirement.marker or "")
            unknown = {*_NAME.findall(_QUOTED.sub("", marker))} - _JUDGED
            optional = not any(
                metadata.applies(requirement, python_minor=each) for each in self._minors
            ) and any(fnmatch.fnmatch(name, each) for each in rules.extras)
            what = ""
            if unknown:
                what = ": only `extra` and `python_version` can be judged"
            elif requirement.url:
                what = ", a URL"
            elif name not in allowed and not optional:
                what = ", which the policy does not know"
            elif name == "rocm" and brings is not None and text not in wanted:
                what = ", another ROCm than the set's"
            elif name in allowed and not allowed[name].fits(requirement.specifier):
                what = f", {allowed[name]}"
            if what:
                yield finding("pin.allowed", f"requires {text}{what}")


def _series(version: Version) -> tuple[object, ...]:
    """Return the part of a version that post-releases and builds of one release share."""
    return version.base_version, version.pre, version.dev
