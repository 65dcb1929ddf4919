"""Every interleaving of docs/release-protocol.md: of the model, and of the real code.

`python3 tests/run.py --campaign` plays all of the model and of the code on files. It can be stopped
at any time: what is done stands in a journal and is not done again while its code is the same.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import itertools
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

TESTS = Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS))
sys.path.insert(0, str(TESTS.parent))

from model import cases  # noqa: E402
from support import s3, scene  # noqa: E402

from rocwheel.base.console import Console  # noqa: E402

# What a result depends on.
MODEL = ("tests/model/cases.py", "tests/model/protocol.py")
CODE = (
    *(f"build/rocwheel/{name}" for name in ("release", "base/store", "records/places.py")),
    *(f"tests/support/{n}.py" for n in ("scene", "schedule", "shared", "wheelset")),
)
CHANCE = 2000  # mixes of three operations in an order of chance
JOURNAL = Path("campaign.jsonl")


class Patch:
    """Just enough of pytest's monkeypatch."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack

    def setattr(self, target: object, name: str, value: object) -> None:
        self._stack.enter_context(mock.patch.object(target, name, value))


def worlds() -> scene.Worlds:
    """The start states of this process, which may be a fork of one that had its own."""
    return worlds_of(os.getpid())


@cache
def worlds_of(pid: int) -> scene.Worlds:
    folder = Path(os.environ["CAMPAIGN_FOLDER"]) / str(pid)
    folder.mkdir()
    scene.without_waiting(Patch(contextlib.ExitStack()))
    return scene.Worlds(folder, Console(sys.stderr, clock=time.monotonic, verbosity=-1))


def shared_worlds() -> scene.Worlds:
    """The same, where several families and `all` show one log."""
    return shared_worlds_of(os.getpid())


@cache
def shared_worlds_of(_pid: int) -> scene.Worlds:
    folder = worlds().folder / "shared"
    folder.mkdir()
    return scene.SharedWorlds(folder, worlds().console)


@cache
def client():
    """A connection of this process to the S3 server of the campaign."""
    endpoint = os.environ["AWS_ENDPOINT_URL_S3"]
    return s3.Server(name="seaweedfs", endpoint=endpoint, pid=0).client()


def play_model(case: cases.Case) -> int:
    gc.disable()  # worlds refer to each other in one direction only
    try:
        return case.worlds()
    finally:
        gc.enable()


def play_files(schedule: scene.Schedule) -> int:
    scene.play(worlds().on_files(schedule.start), schedule)
    return 1


def play_chance(seed: int) -> int:
    scene.shuffled(worlds(), seed)
    return 1


def play_shared_files(schedule: scene.Schedule) -> int:
    scene.play(shared_worlds().on_files(schedule.start), schedule)
    return 1


def play_shared_chance(seed: int) -> int:
    scene.shuffled(shared_worlds(), seed)
    return 1


def play_objects(schedule: scene.Schedule) -> int:
    scene.play(worlds().on_objects(client(), s3.BUCKET, schedule.start), schedule)
    return 1


@dataclass(frozen=True)
class Part:
    """One kind of cases, and how one is played; what that returns is added up."""

    cases: Callable[[], Iterator[object]]
    play: Callable[..., int]
    unit: str
    code: tuple[str, ...] = CODE


PARTS = {
    "pairs": Part(cases.pairs, play_model, "worlds", MODEL),
    "triples": Part(cases.triples, play_model, "worlds", MODEL),
    "shared": Part(cases.shared_pairs, play_model, "worlds", MODEL),
    "shared-triples": Part(cases.shared_triples, play_model, "worlds", MODEL),
    "files": Part(lambda: worlds().schedules(), play_files, "schedules"),
    "chance": Part(lambda: iter(range(CHANCE)), play_chance, "orders"),
    "shared-files": Part(lambda: shared_worlds().schedules(), play_shared_files, "schedules"),
    "shared-chance": Part(lambda: iter(range(CHANCE)), play_shared_chance, "orders"),
    "objects": Part(lambda: worlds().schedules(), play_objects, "schedules"),
}


def attempt(task: tuple[str, object]) -> tuple[str, object, int, float, str]:
    """Play one case: its count, the CPU seconds it took, and what did not hold."""
    name, case = task
    started = time.process_time()
    try:
        count, problem = PARTS[name].play(case), ""
    except AssertionError as exc:
        count, problem = 0, str(exc)
    return name, case, count, time.process_time() - started, problem


@cache
def digest(code: tuple[str, ...]) -> str:
    """Of the files that a result depends on."""
    found = hashlib.sha256()
    for name in code:
        path = TESTS.parent / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found.update(file.relative_to(TESTS.parent).as_posix().encode() + b"\0")
            found.update(file.read_bytes())
    return found.hexdigest()


def done(journal: Path) -> dict[tuple[str, str], int]:
    """What stands in a journal, of the code as it is."""
    found = {}
    for line in journal.read_text().splitlines() if journal.exists() else ():
        with contextlib.suppress(ValueError):  # the last one, where somebody was killed
            item = json.loads(line)
            if item["code"] == digest(PARTS[item["part"]].code):
                found[item["part"], item["case"]] = item["count"]
    return found


def run(options: argparse.Namespace) -> int:
    """Return 0 when all is played and holds, 1 where something does not, 3 where time was over."""
    known = done(options.journal)
    ends = time.monotonic() + options.minutes * 60
    tasks, totals = [], Counter()
    for name in options.parts:
        found = list(PARTS[name].cases())
        random.Random(options.seed).shuffle(found)
        if name == "objects":
            found = found[: options.sample]
        totals[name] = len(found)
        tasks += [(name, case) for case in found if (name, str(case)) not in known]
    size = 16 * options.jobs
    batches = (tasks[at : at + size] for at in range(0, len(tasks), size))
    spent, problems = Counter(), []
    with contextlib.ExitStack() as stack:
        play = map
        if options.jobs > 1:
            pool = stack.enter_context(multiprocessing.get_context("fork").Pool(options.jobs))
            play = pool.imap_unordered
        out = stack.enter_context(options.journal.open("a", buffering=1))
        in_time = itertools.takewhile(lambda _: time.monotonic() < ends, batches)
        results = (result for batch in in_time for result in play(attempt, batch))
        for name, case, count, seconds, problem in results:
            spent[name] += seconds
            if problem:
                problems.append(problem)
                print(f"violation: {name}: {case}: {problem}", flush=True)
                continue
            known[name, str(case)] = count
            line = {
                "part": name,
                "case": str(case),
                "count": count,
                "seconds": round(seconds, 3),
                "code": digest(PARTS[name].code),
            }
            out.write(json.dumps(line) + "\n")
    left = 0
    for name, total in totals.items():
        counts = [count for (part, _), count in known.items() if part == name]
        print(f"{name}: {len(counts)} of {total} cases, {sum(counts):,} {PARTS[name].unit}, "
              f"{spent[name]:.0f} s of CPU now, seed {options.seed}")  # fmt: skip
        left += total - len(counts)
    print(f"{len(problems)} violations")
    return 1 if problems else 3 if left else 0


def main() -> int:
    """Read the command line and prepare what the parts need."""
    parser = argparse.ArgumentParser(prog="tests/run.py --campaign", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; without: all but objects")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--journal", type=Path, default=JOURNAL, help="what is done")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing after so long")
    parser.add_argument("--seed", type=int, default=20261121, help="of the order")
    parser.add_argument("--sample", type=int, default=10**9, help="schedules on object storage")
    options = parser.parse_args()
    options.parts = options.parts or [name for name in PARTS if name != "objects"]
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"{min(unknown)}: one of {', '.join(PARTS)}")
    memory = Path("/dev/shm")  # where a sync costs nothing
    with contextlib.ExitStack() as stack:
        where = memory if os.access(memory, os.W_OK) else None
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=where))
        os.environ["CAMPAIGN_FOLDER"] = folder
        if "objects" in options.parts:
            server = stack.enter_context(s3.seaweedfs(Path(folder)))
            server.bucket(s3.BUCKET)
            os.environ.update(server.environ())
        return run(options)


if __name__ == "__main__":
    sys.exit(main())
