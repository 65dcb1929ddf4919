"""Skip lists: `ci/skips/*.yaml`, tests that are known not to work, each with an end.

A pattern is a node id in which `*` stands for any characters within one part: it never reaches
over `::` or into a longer name, and without `[…]` it means the test with all its parameters. An
entry that has expired or stands twice is a ConfigError; one that meets no test is a failure of
the suite.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping
from datetime import date
from itertools import permutations
from pathlib import Path
from typing import Annotated, Final

from msgspec import field
from packaging.specifiers import SpecifierSet

from rocwheel.base import yaml_file
from rocwheel.base.console import columns
from rocwheel.base.errors import ConfigError
from rocwheel.base.home import SUITES
from rocwheel.base.values import Value, matching, replace
from rocwheel.base.versions import suggest
from rocwheel.base.yaml_file import FieldError
from rocwheel.records.results import Outcome, Results
from rocwheel.records.verdict import SILENT, State

FOLDER: Final = "skips"
UNFINISHED: Final = SILENT | {State.TIMEOUT}  # states of a run that did not try all of them


class Skip(Value, frozen=True, kw_only=True):
    """One entry of a skip list: a test, why and where it is left out, and until when."""

    pattern: Annotated[
        str,
        matching(
            r"\A([^:*]+\.py::[^:]|\Z)",
            "a node id",
            "write path/to_test.py::Class::test, * within a part",
        ),
    ] = field(name="test", default="")
    keyword: Annotated[  # instead: a part of names, in any case, as `pytest -k` looks for it
        str,
        matching(r"\A[^\s()]*\Z", "a part of names", "no expression of `pytest -k`"),
    ] = ""
    unless: tuple[str, ...] = ()  # parts of names that the keyword does not mean
    suites: frozenset[str]
    targets: frozenset[str] = field(name="gfx", default=frozenset())  # empty: all
    rocm: SpecifierSet = SpecifierSet()
    jax: SpecifierSet = SpecifierSet()
    reason: str
    issue: Annotated[str, matching(r"\Ahttps?://\S+\Z", "a link", "write https://…")]
    owner: str
    expires: date
    where: str = ""  # file:line

    def __post_init__(self) -> None:
        if bool(self.pattern) == bool(self.keyword):
            raise FieldError("names a `test` or a `keyword`", hint="write one of the two")

    def identity(self) -> list[str]:
        """Return what it leaves out, and where: two lists with equal entries are one list."""
        parts = (self.suites, self.targets)
        listed = (" ".join(sorted(part)) for part in parts)
        keywords = " ".join((self.keyword, *self.unless)).split()
        return [self.pattern, *keywords, *listed, str(self.rocm), str(self.jax), self.reason]

    @property
    def named(self) -> str:
        """What it leaves out, as messages call it."""
        return self.pattern or f"keyword {self.keyword}"

    def meets(self, test: str) -> bool:
        """Return whether it leaves out a test; folders of a file do not count for a keyword."""
        if not self.keyword:
            (name, _, rest), (mine, has, values) = (x.partition("[") for x in (test, self.pattern))
            there, parts = name.split("::"), mine.split("::")
            fits = len(there) == len(parts) and all(map(_fits, there, parts))
            return fits and (not has or _fits(rest, values))
        file, _, rest = test.lower().partition("::")
        names = f"{file.rpartition('/')[2]}::{rest}"
        return self.keyword.lower() in names and not any(u.lower() in names for u in self.unless)

    def covers(self, other: Skip) -> bool:
        """Return whether it leaves out all that another entry does, where both apply."""
        apart = self.targets and other.targets and self.targets.isdisjoint(other.targets)
        ranges = (str(self.rocm), str(self.jax)) == (str(other.rocm), str(other.jax))
        if apart or not ranges or self.suites.isdisjoint(other.suites):
            return False
        if other.keyword:
            return self.keyword.lower() == other.keyword.lower() and self.unless == other.unless
        return self.meets(other.pattern)

    def applies(self, suite: str, targets: frozenset[str], rocm: str, jax: str) -> bool:
        """Return whether it is meant for a run on devices of these targets; `rocm` may be ""."""
        if suite not in self.suites or not self.jax.contains(jax, prereleases=True):
            return False
        if self.targets and not self.targets & targets:
            return False
        if not rocm:
            return not self.targets and not str(self.rocm)
        return self.rocm.contains(rocm, prereleases=True)

    def __str__(self) -> str:
        return f"{self.reason} ({self.issue}, {self.owner}, until {self.expires.isoformat()})"


def load(ci: Path, *, today: date, new: tuple[Path, str] | None = None) -> tuple[Skip, ...]:
    """Read every list of a `ci` folder, with the text of a `new` one in place of its file."""
    suites = tuple(path.stem for path in sorted((ci / SUITES).glob("*.yaml")))
    documents = {
        path: yaml_file.load(path, name=str(path.relative_to(ci.parent)))
        for path in sorted((ci / FOLDER).glob("*.yaml"))
    }
    if new:
        documents[new[0]] = yaml_file.parse(new[1], name=str(new[0].relative_to(ci.parent)))
    entries = [entry for document in documents.values() for entry in _read(document, suites)]
    for entry in entries:
        if entry.expires < today:
            raise ConfigError(
                f"{entry.where}: {entry.named}: expired on {entry.expires.isoformat()}",
                hint=f"try it with `gate skips verify`; {entry.owner} removes or renews it",
            )
    for one, other in permutations(entries, 2):
        if one.covers(other):
            raise ConfigError(
                f"{other.where}: {other.named}: {one.named} at {one.where} covers it",
                hint="remove one of the two",
            )
    return tuple(entries)


class SkipAudit(Value, frozen=True, kw_only=True):
    passing: tuple[str, ...]
    unmet: tuple[str, ...]  # entries that met no test
    tests: Mapping[str, Outcome]

    @staticmethod
    def unfinished(results: Results) -> State | None:
        """Return why some of them were not tried; None where all were."""
        states = [fault.state for fault in results.faults if fault.state in UNFINISHED]
        states += [State.COLLECT_ERROR] * bool(results.collect_errors)
        return next(iter([*states, *[State.NOT_RUN] * bool(results.counts.not_run)]), None)

    @classmethod
    def of(cls, results: Results) -> SkipAudit:
        return cls(
            passing=tuple(t.test for t in results.tests if t.outcome is Outcome.PASSED),
            unmet=tuple(where for where, count in results.skips.items() if not count),
            tests={test.test: test.outcome for test in results.tests},
        )

    def lines(self) -> Iterator[str]:
        now = {test: outcome.value for test, outcome in self.tests.items()}
        rows = (now | dict.fromkeys(self.passing, "passes now")).items()
        yield from columns(("test", "now"), list(rows))
        yield from (f"{where}: meets no test" for where in self.unmet)


class _File(Value, frozen=True, kw_only=True):
    skips: tuple[Skip, ...]


def _read(document: yaml_file.Document, suites: tuple[str, ...]) -> Iterator[Skip]:
    for number, entry in enumerate(document.to(_File).skips):
        for suite in entry.suites.difference(suites):
            hint = suggest(suite, suites)
            raise document.error(f"{suite!r} is not a suite", "skips", number, "suites", hint=hint)
        yield replace(entry, where=document.line("skips", number))


def _fits(text: str, pattern: str) -> bool:
    """Compare a part with one in which `*` alone is special; several take no longer than one."""
    escaped = re.sub(r"[\[?]", r"[\g<0>]", pattern)
    return text == pattern or ("*" in pattern and fnmatch.fnmatchcase(text, escaped))
