"""Verdicts and reports in a folder and in the store: reports first, the verdict last.

Everything is written once, below the runners' own prefix. A shard's verdict is stored as any other;
it says that it is a shard's. It never passes a set, but it may fail one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from rocwheel.base import files
from rocwheel.base.errors import ConfigError, named
from rocwheel.base.store import HTML, JSON, TEXT, Headers
from rocwheel.base.values import replace
from rocwheel.gate.verdict.judge import tests_list
from rocwheel.records.places import Place
from rocwheel.records.results import Results
from rocwheel.records.verdict import Verdict
from rocwheel.release.ledger import verdicts
from rocwheel.release.trust import TrustError
from rocwheel.release.trust.policy import Signer

MOST: Final = 1 << 30  # bytes of results that are read from a folder: 100,000 tests take 46 MB
KINDS: Final = {
    "results.json": ("json", JSON),
    "junit.xml": ("junit", "application/xml"),
    "report.html": ("html", HTML),
}
RESULTS: Final = "results.json"
VERDICT: Final = "verdict.json"
LOCK: Final = ".lock"  # of who writes there
LOGS: Final = "logs"  # beside them, one file of each process
MOST_LOGS: Final = 100  # that are stored of one run
LOG_HEAD, LOG_TAIL = 1 << 18, 3 << 18  # bytes that are stored of a longer one


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock a folder for writing, until the block ends. Raises ConfigError where another has it."""
    with ExitStack() as held:
        with suppress(OSError):  # it cannot be written to either
            lock = files.try_locked(folder / LOCK)
            if lock is None:
                raise ConfigError(
                    f"{folder}: another gate writes there now", hint="name another --output"
                )
            held.enter_context(lock)
        yield


def clear(folder: Path) -> None:
    """Remove what an earlier run left, so that a run that is killed does not seem to be it."""
    for name in (*KINDS, VERDICT, "control"):  # a folder, of a control run
        files.remove(folder / name)
    for kind in ("*.log", "*.stacks"):
        for path in (folder / LOGS).glob(kind):
            path.unlink(missing_ok=True)


def write(folder: Path, reports: Mapping[str, bytes], verdict: Verdict | None) -> None:
    """Write reports and verdict into a folder. Raises OSError; what is there then is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in reports.items():
        files.write(folder / name, body)
    if verdict:
        files.write(folder / VERDICT, verdict.to_bytes())


def results_in(path: Path) -> Results:
    file = path / RESULTS if path.is_dir() else path
    return Results.from_bytes(_bytes(file), name=str(file))


def shard_in(folder: Path, *, seen_from: Path) -> tuple[Verdict | None, Results]:
    """Read a shard's verdict (None for wheels without a manifest) and results.

    Its logs are named as a page in the folder `seen_from` links to them.
    """
    file, logs = folder / VERDICT, os.path.relpath(folder / LOGS, seen_from / LOGS)
    results = _with_logs(results_in(folder), logs)
    verdict = Verdict.from_bytes(_bytes(file), name=str(file)) if file.is_file() else None
    return verdict, results


def put(
    place: Place,
    verdict: Verdict,
    reports: Mapping[str, bytes],
    logs: Path | None = None,
    *,
    signer: Signer | None = None,
    parts: Sequence[str] = (),
) -> tuple[str, Verdict]:
    """Store reports and verdict, signed by a key; return the verdict's key, and it as stored.

    Of the processes' logs, in the folder `logs`, those go along that the page links to. `parts` are
    the verdicts of the shards that it was made of. Raises StoreError, TrustError.
    """
    folder, keys = _run(verdict, reports), {}

    def at(name: str) -> str:
        return place.report(verdict.manifest, verdict.python, verdict.suite, f"{folder}/{name}")

    results = Results.from_bytes(reports[RESULTS], name=RESULTS) if RESULTS in reports else None
    for log, text in _linked(results, logs) if results and logs else ():
        place.store.create(at(f"{LOGS}/{log}"), text, headers=Headers(content_type=TEXT))
    for name, body in sorted(reports.items()):
        kind, content_type = KINDS[name]
        keys[kind] = at(name)
        place.store.create(keys[kind], body, headers=Headers(content_type=content_type))
    stored = replace(verdict, reports=keys)
    if stored.ran.collected and results:
        verdicts.add_tests(place, stored, tests_list(results))
    try:
        return verdicts.add(place, stored, signer, parts=parts), stored
    except TrustError:  # of a key that does not sign: a failure counts without it, too
        verdicts.add(place, stored)
        raise


def shard_of(place: Place, verdict: Verdict) -> Results:
    name = verdict.reports["json"]
    results = Results.from_bytes(place.store.read(name)[0], name=place.store.locate(name))
    top = place.report(verdict.manifest, verdict.python, verdict.suite, "")
    folder = name.removeprefix(top).rpartition("/")[0]
    # a page of all of them lies in runs/<name>, and looks for logs below
    return _with_logs(results, f"../../../{folder}/{LOGS}")


def _with_logs(results: Results, folder: str) -> Results:
    """Return the same results with the logs of their processes in another folder."""
    processes = (
        replace(item, log=f"{folder}/{item.log}") if item.log else item
        for item in results.processes
    )
    return replace(results, processes=tuple(processes))


def _linked(results: Results, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Return logs of processes in which tests went wrong: the first ones, of long ones the ends."""
    logs = {(item.lane, item.number): item.log for item in results.processes}
    tried = sorted(
        (attempt.start_ms, logs.get((attempt.lane, attempt.process), ""))
        for test in results.tests
        for attempt in test.attempts
        if attempt.outcome.bad or len(test.attempts) > 1
    )
    own = dict.fromkeys(log for _, log in tried if log and "/" not in log)  # of a shard: there
    for name in list(own)[:MOST_LOGS]:
        with suppress(OSError), (folder / name).open("rb") as file:
            yield name, files.ends(file.fileno(), LOG_HEAD, LOG_TAIL)


def _bytes(path: Path) -> bytes:
    with named(path, ConfigError, hint="name what a gate left in --output"):
        return files.read(path, most=MOST)


def _run(verdict: Verdict, reports: Mapping[str, bytes]) -> str:
    """Return a folder of this run's own; sorts by time within its shard.

    Shards that are merged again began when they first were merged, and their page says what is new
    since: the name holds a part of the digest of all that is put there.
    """
    bodies = [body for _, body in sorted(reports.items())] or [verdict.to_bytes()]
    time = re.sub(r"[^0-9T]", "", verdict.started.partition(".")[0].partition("+")[0])
    host = re.sub(r"[^A-Za-z0-9.-]", "-", verdict.host) or "host"
    number, _, count = verdict.shard.partition("/")
    name = f"{time}-{host}-{files.sha256(b''.join(bodies))[:8]}"
    return f"shards/{number}-of-{count}/{name}" if count else f"runs/{name}"
