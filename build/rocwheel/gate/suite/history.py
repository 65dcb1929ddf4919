"""The history of a suite: how long each test took in earlier runs, and how it ended.

It decides an order and nothing else: without it a run is slower, never different. It lies in a
local file or beside the verdicts in the store, where it is replaced only as it was read.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rocwheel import files
from rocwheel.errors import ObjectMissingError, ObjectStaleError, StoreError
from rocwheel.gate.engine.scheduler import Estimates
from rocwheel.results import Outcome
from rocwheel.store import JSON, Headers
from rocwheel.values import canonical_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rocwheel.places import Place
    from rocwheel.results import Results

SCHEMA: Final = 1
KEPT: Final = 10  # outcomes of a test, the newest last
ATTEMPTS: Final = 5  # to replace a history that others replace too
LETTERS: Final = {
    Outcome.PASSED: "p",
    Outcome.FAILED: "f",
    Outcome.CRASHED: "c",
    Outcome.TIMED_OUT: "t",
    Outcome.FLAKY: "k",
    Outcome.XFAILED: "x",
}


@dataclass(frozen=True, kw_only=True)
class Past:
    """One test's past."""

    milliseconds: int
    outcomes: str  # letters as in LETTERS


@dataclass(frozen=True, kw_only=True)
class SuiteHistory:
    """All tests of a suite that ever ran."""

    tests: Mapping[str, Past] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        tests = {name: [past.milliseconds, past.outcomes] for name, past in self.tests.items()}
        return canonical_json({"schema": SCHEMA, "tests": tests})

    @classmethod
    def from_bytes(cls, data: bytes) -> SuiteHistory:
        """Parse; what cannot be read is an empty history, for it decides nothing."""
        try:
            document: Any = json.loads(data)
            if document["schema"] != SCHEMA:
                return cls()
            return cls(
                tests={
                    str(name): Past(milliseconds=int(milliseconds), outcomes=str(outcomes))
                    for name, (milliseconds, outcomes) in document["tests"].items()
                }
            )
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls()

    def estimates(self, sizes: Mapping[str, int]) -> Estimates:
        """What a board needs to know; `sizes` are the files' bytes."""
        files: dict[str, float] = defaultdict(float)
        for name, past in self.tests.items():
            files[name.partition("::")[0]] += past.milliseconds / 1000
        tests = {name: past.milliseconds / 1000 for name, past in self.tests.items()}
        return Estimates(tests=tests, files=dict(files), sizes=sizes)

    def with_results(self, results: Results) -> SuiteHistory:
        """Add a run. Half the old duration is kept: a slow day is not the rule."""
        tests = dict(self.tests)
        for test in results.tests:
            letter = LETTERS.get(test.outcome)
            if letter is None or not test.attempts:
                continue
            took, old = test.attempts[0].duration_ms, tests.get(test.test)
            tests[test.test] = Past(
                milliseconds=(old.milliseconds + took) // 2 if old else took,
                outcomes=((old.outcomes if old else "") + letter)[-KEPT:],
            )
        return SuiteHistory(tests=tests)


def read(place: Place | None, suite: str, cache: Path) -> SuiteHistory:
    """A suite's history: beside the verdicts of the store, without a store in the cache."""
    try:
        data = place.store.read(key(place, suite))[0] if place else _file(cache, suite).read_bytes()
    except (StoreError, OSError):
        return SuiteHistory()
    return SuiteHistory.from_bytes(data)


def add(place: Place | None, suite: str, cache: Path, results: Results) -> None:
    """Add a run to the history. Raises StoreError when others are faster every time, OSError."""
    if place:
        _add_to_store(place, suite, results)
        return
    file = _file(cache, suite)
    file.parent.mkdir(parents=True, exist_ok=True)
    files.write(file, read(None, suite, cache).with_results(results).to_bytes())


def key(place: Place, suite: str) -> str:
    """The history's key: beside the verdicts, where runners may write."""
    return f"{place.verdicts('history')}{suite}.json"


def _file(cache: Path, suite: str) -> Path:
    return cache / "gate" / "history" / f"{suite}.json"


def _add_to_store(place: Place, suite: str, results: Results) -> None:
    name = key(place, suite)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            data, previous = place.store.read(name)
            old = SuiteHistory.from_bytes(data)
        except ObjectMissingError:
            old, previous = SuiteHistory(), None
        body = old.with_results(results).to_bytes()
        try:
            place.store.replace(name, body, previous=previous, headers=Headers(content_type=JSON))
        except ObjectStaleError:
            if attempt == ATTEMPTS:
                raise
        else:
            return
