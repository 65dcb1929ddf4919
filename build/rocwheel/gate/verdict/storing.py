"""Verdicts and reports in a folder and in the store: reports first, the verdict last.

Everything is written once, below the runners' own prefix. A shard's verdict is stored as any other:
it says that it is a shard's, never passes a set, and is remembered where it fails one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rocwheel import files
from rocwheel.errors import ConfigError
from rocwheel.gate.verdict.record import tests_list
from rocwheel.ledger import verdicts
from rocwheel.places import Place
from rocwheel.results import Results
from rocwheel.store import HTML, JSON, Headers
from rocwheel.values import replace
from rocwheel.verdict import Verdict

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


def shard_in(folder: Path) -> tuple[Verdict | None, Results]:
    """A shard's verdict (None for wheels without a manifest) and results. Raises ConfigError."""
    results, file = results_in(folder), folder / VERDICT
    verdict = Verdict.from_bytes(_bytes(file), name=str(file)) if file.is_file() else None
    return verdict, results


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
    if verdict.ran.collected and RESULTS in reports:
        results = Results.from_bytes(reports[RESULTS], name=RESULTS)
        verdicts.add_tests(place, verdict, tests_list(results))
    return verdicts.add(place, verdict), verdict


def shards(
    place: Place, manifest: str, python: str, suite: str, count: int
) -> list[tuple[Verdict, Results]]:
    """Every stored run of every shard of `count`; missing ones are missing.

    Raises ConfigError for results that cannot be read. A verdict that cannot be read is left out:
    it counts at the promotion, whatever the merge says.
    """
    return [
        read(place, found.key)
        for found in verdicts.find(place, manifest)
        if (found.python, found.suite) == (python, suite)
        and found.verdict
        and found.verdict.shard.endswith(f"/{count}")
    ]


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
    name = f"{time}-{host}-{files.sha256(results)[:8]}"
    return f"shards/{number}-of-{count}/{name}" if count else f"runs/{name}"
