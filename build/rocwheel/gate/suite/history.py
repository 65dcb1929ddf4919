"""The history of a suite: how long each test took in earlier runs.

It decides the order alone: without it a run is slower, never different. It lies in a local file or
beside the verdicts in the store, where it is replaced only if it did not change since it was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from rocwheel.base.errors import ConfigError, StoreError
from rocwheel.base.store import JSON, Headers, Store, swap
from rocwheel.base.store.file import FileStore
from rocwheel.base.values import Count, Value
from rocwheel.gate.engine.plan import Estimates
from rocwheel.records.places import Place
from rocwheel.records.results import LastRun, Outcome, Results


class SuiteHistory(Value, frozen=True, kw_only=True):
    """Milliseconds of all tests of a suite that ever ran."""

    schema: Literal[1] = 1
    tests: Mapping[str, Count] = {}

    @classmethod
    def readable(cls, data: bytes | None) -> SuiteHistory:
        """Parse it; an unreadable history is empty, for it decides nothing."""
        try:
            return cls.from_bytes(data, name="history") if data else cls()
        except ConfigError:
            return cls()

    def estimates(self, sizes: Mapping[str, int]) -> Estimates:
        """Return what the scheduler needs to know; `sizes` are the files' bytes."""
        tests = {name: number / 1000 for name, number in self.tests.items()}
        return Estimates(tests=tests, sizes=sizes)

    def with_results(self, results: Results) -> SuiteHistory:
        """Add a run. Half the old duration is kept: a slow day is not the rule."""
        tests = dict(self.tests)
        for test in results.tests:
            if test.attempts and test.outcome is not Outcome.SKIPPED:
                took = test.attempts[0].duration_ms
                tests[test.test] = (tests.get(test.test, took) + took) // 2
        return SuiteHistory(tests=tests)


def read(place: Place | None, suite: str, cache: Path) -> SuiteHistory:
    """Return a suite's history: beside the verdicts of the store, without a store in the cache."""
    return SuiteHistory.readable(_kept(place, suite, cache))


def add(place: Place | None, suite: str, cache: Path, results: Results) -> None:
    """Add a run to the history. Raises StoreError when others are faster every time, OSError."""
    store, at = _where(place, suite, cache)
    with_it = lambda old: SuiteHistory.readable(old or None).with_results(results).to_bytes()  # noqa: E731
    swap(store, at, with_it, headers=Headers(content_type=JSON))


def name_of(results: Results) -> str:
    """Return the name of the runs it is compared with: suite, family, CPython, backend."""
    about = results.environment
    python = ".".join(about.get("python", "").split(".")[:2])
    return "-".join((results.suite, about.get("family", ""), python, about.get("backend", "")))


def read_last(place: Place | None, name: str, cache: Path) -> LastRun | None:
    with suppress(ConfigError):
        if data := _kept(place, name, cache):
            return LastRun.from_bytes(data, name=name)
    return None


def keep_last(place: Place | None, name: str, cache: Path, run: LastRun) -> None:
    store, at = _where(place, name, cache)
    swap(store, at, lambda _old: run.to_bytes(), headers=Headers(content_type=JSON))


def key(place: Place, suite: str) -> str:
    """Return the history's key: beside the verdicts, where runners may write."""
    return f"{place.verdicts('history')}{suite}.json"


def _where(place: Place | None, name: str, cache: Path) -> tuple[Store, str]:
    if place:
        return place.store, key(place, name)
    return FileStore(cache / "gate"), f"history/{name}.json"


def _kept(place: Place | None, name: str, cache: Path) -> bytes | None:
    store, at = _where(place, name, cache)
    try:
        return store.read(at)[0]
    except StoreError:
        return None
