"""Verdicts and reports in a folder and in the store: reports first, the verdict last.

Everything is written once, below the runners' own prefix. A shard's verdict lies beside its
reports, where nobody takes it for the verdict of the suite.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

from rocwheel.errors import ConfigError
from rocwheel.gate.suite.discovery import Shard
from rocwheel.ledger import records
from rocwheel.results import Results
from rocwheel.store import HTML, JSON, Headers
from rocwheel.values import replace
from rocwheel.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rocwheel.places import Place

KINDS: Final = {
    "results.json": ("json", JSON),
    "junit.xml": ("junit", "application/xml"),
    "report.html": ("html", HTML),
}
RESULTS: Final = "results.json"
VERDICT: Final = "verdict.json"


def clear(folder: Path) -> None:
    """Remove what an earlier run left, so that a run that is killed does not seem to be it."""
    for name in (*KINDS, VERDICT):
        (folder / name).unlink(missing_ok=True)


def write(folder: Path, reports: Mapping[str, bytes], verdict: Verdict | None) -> None:
    """Write reports and verdict into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in reports.items():
        (folder / name).write_bytes(body)
    if verdict:
        (folder / VERDICT).write_bytes(verdict.to_bytes())


def results_in(path: Path) -> Results:
    """The results in a folder that `write` wrote, or in a file. Raises ConfigError."""
    file = path / RESULTS if path.is_dir() else path
    return Results.from_bytes(_bytes(file), name=str(file))


def shard_in(folder: Path) -> tuple[int, tuple[Verdict | None, Results]]:
    """A shard's number, verdict (None for wheels without a manifest) and results.

    Raises ConfigError.
    """
    results, file = results_in(folder), folder / VERDICT
    verdict = Verdict.from_bytes(_bytes(file), name=str(file)) if file.is_file() else None
    return Shard.parse(results.shard or "1/1").number, (verdict, results)


def put(place: Place, verdict: Verdict, reports: Mapping[str, bytes]) -> tuple[str, Verdict]:
    """Store reports and verdict; return the verdict's key and the verdict as stored.

    Raises StoreError; run again, it stores what is missing.
    """
    folder = _run(verdict, reports.get(RESULTS) or verdict.to_bytes())
    keys = {}
    for name, body in sorted(reports.items()):
        kind, content_type = KINDS[name]
        keys[kind] = place.report(
            verdict.manifest, verdict.python, verdict.suite, f"{folder}/{name}"
        )
        place.store.create(keys[kind], body, headers=Headers(content_type=content_type))
    verdict = replace(verdict, reports=keys)
    if not verdict.shard:
        return records.add_verdict(place, verdict), verdict
    key = place.report(verdict.manifest, verdict.python, verdict.suite, f"{folder}/{VERDICT}")
    place.store.create(key, verdict.to_bytes(), headers=place.record_headers)
    return key, verdict


def shards(
    place: Place, manifest: str, python: str, suite: str, count: int
) -> dict[int, tuple[Verdict, Results]]:
    """The newest stored run of each shard, by number; missing ones are missing.

    Raises ConfigError for one that cannot be read.
    """
    prefix = place.report(manifest, python, suite, "shards/")
    pattern = re.compile(re.escape(prefix) + rf"(\d+)-of-{count}/([^/]+)/{re.escape(VERDICT)}")
    newest: dict[int, str] = {}
    for item in place.store.keys(prefix):  # in key order: a run's name begins with its time
        if match := pattern.fullmatch(item.key):
            newest[int(match[1])] = item.key
    return {number: read(place, key) for number, key in sorted(newest.items())}


def read(place: Place, key: str) -> tuple[Verdict, Results]:
    """A stored verdict and its results. Raises ConfigError, StoreError."""
    store = place.store
    verdict = Verdict.from_bytes(store.read(key)[0], name=store.locate(key))
    name = verdict.reports["json"]
    return verdict, Results.from_bytes(store.read(name)[0], name=store.locate(name))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise ConfigError(
            f"{path}: {exc.strerror}", hint="name what `gate` left in --output"
        ) from exc


def _run(verdict: Verdict, results: bytes) -> str:
    """A folder of this run's own; sorts by time within its shard.

    Shards that are merged again once the missing one is there began when they first were merged,
    so the name holds a part of the results' digest.
    """
    time = re.sub(r"[^0-9T]", "", verdict.started.partition(".")[0].partition("+")[0])
    host = re.sub(r"[^A-Za-z0-9.-]", "-", verdict.host) or "host"
    number, _, count = verdict.shard.partition("/")
    name = f"{time}-{host}-{hashlib.sha256(results).hexdigest()[:8]}"
    return f"shards/{number}-of-{count}/{name}" if count else f"runs/{name}"
