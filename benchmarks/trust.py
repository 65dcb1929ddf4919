#!/usr/bin/env python3
"""What signing and verifying add to stage, gate and promote of 31 wheels of 100 MB.

    python benchmarks/trust.py [--small]

Only what is added is timed, since digests are known and no wheel is read: the set has sizes and
digests and no bytes. 15 CPythons with two suites each make 30 cells. The store is a folder, then a
bucket of an S3 server on this machine (SeaweedFS): to one far away add its round trips, of which
promote makes 16 at once. The exit status is 1 where one of the three takes more than 2 s.
`--small` is a quick look.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "build"), str(ROOT), str(ROOT / "tests")]

from support.s3 import seaweedfs  # noqa: E402
from support.trust import Keyring, make_record  # noqa: E402
from support.wheelset import FAMILY, NOW, WHO, Shop, make_set, make_verdict  # noqa: E402

from rocwheel.base import files  # noqa: E402
from rocwheel.base import versions as model  # noqa: E402
from rocwheel.base.console import Console  # noqa: E402
from rocwheel.base.values import replace  # noqa: E402
from rocwheel.records.manifest import BUILD_RECORD, MANIFEST  # noqa: E402
from rocwheel.release import proof  # noqa: E402
from rocwheel.release.ledger import verdicts  # noqa: E402
from rocwheel.release.trust import verifier  # noqa: E402
from rocwheel.release.trust.policy import Case  # noqa: E402

LIMIT = 2.0  # seconds
WHEEL = 100_000_000  # bytes
SUITES = ("smoke", "unit")


class Counted:
    """A store that counts what is asked of it."""

    def __init__(self, store) -> None:
        self.store, self.requests = store, 0

    def __getattr__(self, name: str):
        value = getattr(self.store, name)
        if name not in {"create", "info", "keys", "read", "replace"}:
            return value

        def asked(*words, **options):
            self.requests += 1
            return value(*words, **options)

        return asked


def timed(place, work: Callable[[], object]) -> tuple[float, int]:
    before, began = place.store.requests, time.perf_counter()
    work()
    return time.perf_counter() - began, place.store.requests - before


def measure(folder: Path, pythons: tuple[str, ...], url: str) -> dict[str, tuple[float, int]]:
    keys = Keyring(folder / "keys")
    console = Console(sys.stderr, clock=time.monotonic, verbosity=-1)
    trust = keys.trust("builder", "runner", "promoter")
    shop = Shop(url, console, trust=trust)
    shop.store.abilities()  # are asked once, by who puts the wheels
    small = make_set(folder / "wh", pythons=pythons)
    wheels = tuple(replace(wheel, size=WHEEL) for wheel in small.wheels)
    manifest = replace(small, wheels=wheels)
    (folder / "wh" / MANIFEST).write_bytes(manifest.to_bytes())
    (folder / "wh" / BUILD_RECORD).write_bytes(make_record(manifest).to_bytes())
    staging, release = (
        replace(place, store=Counted(place.store)) for place in (shop.staging, shop.release)
    )
    signer, times = keys.signers, {}

    def stage() -> None:
        proof.state_build(folder / "wh", signer["builder"])
        proof.add(staging, manifest.sha256, proof.built(folder / "wh"))

    times["stage"] = timed(staging, stage)
    cells = [(suite, python) for python in pythons for suite in SUITES]
    every = [make_verdict(manifest, suite=suite, python=python) for suite, python in cells]
    gates = [
        timed(staging, lambda v=verdict: verdicts.add(staging, v, signer["runner"]))
        for verdict in every
    ]
    times["gate (the slowest of its cells)"] = max(gates)
    found = verdicts.find(staging, manifest.sha256)
    bundle = []

    def promote() -> None:
        case = Case(trust=trust, channel="", family=staging.family, now=NOW)
        gathered = proof.gather(staging, manifest, found, case)
        proof.believed(found, gathered, shop.channel)
        bundle.append(
            proof.bundle(
                manifest, shop.channel, release, who=WHO, evidence=gathered, facts={},
                signer=signer["promoter"], policy={},
            )
        )  # fmt: skip
        proof.put(staging, staging.bundle(files.sha256(bundle[0])), bundle[0])

    times["promote"] = timed(staging, promote)
    links = []

    def verify() -> None:
        links.extend(verifier.follow(manifest.built[0].sha256, bundle[0], trust, now=NOW))

    times["trust verify of one wheel"] = timed(staging, verify)
    assert all(link.holds for link in links), [str(link) for link in links if not link.holds]
    assert len(links) == len(every) + 2
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", action="store_true")
    small = parser.parse_args().small
    pythons = tuple(f"3.{number}" for number in range(11, 13 if small else 26))
    model.CPYTHONS += tuple(sorted({*pythons} - {*model.CPYTHONS}))  # some do not exist yet
    cells, missed = len(pythons) * len(SUITES), False
    print(f"{2 * len(pythons) + 1} wheels of 100 MB, {cells} cells of {FAMILY.name}")
    print("| added to | store | median | worst | requests | limit | holds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as scratch, seaweedfs(Path(scratch)) as server:
        os.environ.update(server.environ())
        server.bucket("wheels")
        for kind in ("folder", "S3"):
            rounds = []
            for number in range(2 if small else 5):
                folder = Path(scratch) / f"{kind}{number}"
                (folder / "store").mkdir(parents=True)
                url = f"s3://wheels/{number}" if kind == "S3" else (folder / "store").as_uri()
                rounds.append(measure(folder, pythons, url))
            for name in rounds[0]:
                seconds = [item[name][0] for item in rounds]  # the first has the imports as well
                missed |= max(seconds) > LIMIT
                holds = "yes" if max(seconds) <= LIMIT else "NO"
                median, worst = f"{statistics.median(seconds):.3f} s", f"{max(seconds):.3f} s"
                what = f"{name} | {kind} | {median} | {worst} | {rounds[0][name][1]}"
                print(f"| {what} | {LIMIT:.0f} s | {holds} |")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
