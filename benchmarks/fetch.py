#!/usr/bin/env python3
"""Fetching ROCm: rocwheel against `curl | igzip -dc | tar x`, side by side on this machine.

    python benchmarks/fetch.py [--work DIR] [--pairs 7] [--size 2.8] [--against CHECKOUT]

Makes a `.tar.gz` with the mix of a TheRock tarball (a few huge libraries, many kernels and
headers), serves it on loopback from a process of its own, and runs both ways alternately. Ours is
the whole command: interpreter start, download, spool, SHA-256, unpacking, checks, publishing.
Needs curl, igzip (Debian: `isal`) and tar, and about 8 GB of disk.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import multiprocessing
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[1]
NAME = "therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz"
MIB = 1 << 20
HEADER = "".join(
    f"#define ROCM_VERSION_{part} {number}\n"
    for part, number in (("MAJOR", 7), ("MINOR", 10), ("PATCH", 0))
)


@dataclass(frozen=True)
class Run:
    """One measured run: CPU time of all its processes, memory of the largest of them."""

    seconds: float
    cpu: float
    rss_mib: float


# The tarball.


def instructions(rng: random.Random, size: int) -> bytes:
    """Something that packs as machine code with its tables does: about 4 to 1."""
    words = [rng.randbytes(8) for _ in range(1000)]
    weights = [1 / (number + 1) for number in range(1000)]
    out = bytearray()
    while len(out) < size:
        block = bytearray(b"".join(rng.choices(words, weights, k=100_000)))
        block[::80] = rng.randbytes(len(block[::80]))
        out += block + bytes(160_000)
    return bytes(out[:size])


def prose(rng: random.Random, size: int) -> bytes:
    """Something that packs as headers do."""
    letters = "abcdefghijklmnopqrstuvwxyz_"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 12))) for _ in range(5000)]
    weights = [1 / (number + 2) for number in range(5000)]
    line = " ".join(rng.choices(words, weights, k=size // 6))
    return line.encode()[:size]


class Slices(io.RawIOBase):
    """`size` bytes out of a pool, from a random place on and round."""

    def __init__(self, pool: bytes, start: int, size: int) -> None:
        self._pool, self._at, self._left = pool, start, size

    def readable(self) -> bool:
        return True

    def readinto(self, target: memoryview) -> int:  # type: ignore[override]
        count = min(len(target), self._left, len(self._pool) - self._at)
        target[:count] = self._pool[self._at : self._at + count]
        self._at = (self._at + count) % len(self._pool)
        self._left -= count
        return count


class Maker:
    """Adds members to a tar, their contents from pools."""

    def __init__(self, tar: tarfile.TarFile, rng: random.Random) -> None:
        self._tar, self._rng = tar, rng

    def slice(self, name: str, size: int, pool: bytes, mode: int = 0o644) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = size, mode, 1_700_000_000
        start = self._rng.randrange(len(pool))
        self._tar.addfile(info, io.BufferedReader(Slices(pool, start, size), MIB))

    def text(self, name: str, content: str) -> None:
        data = content.encode()
        info = tarfile.TarInfo(name)
        info.size, info.mtime = len(data), 1_700_000_000
        self._tar.addfile(info, io.BytesIO(data))

    def link(self, name: str, target: str) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(info)


LIBRARIES = (500, 350, 260, 200, 150, 120, 90, 80, 60, 50, 45, 40, 30, 30, 25, 20, 20, 15)  # MiB


def make_tarball(path: Path, gigabytes: float) -> None:
    """About 22 000 files; `gigabytes` scales the libraries."""
    rng = random.Random(1)
    code, text = instructions(rng, 48 * MIB), prose(rng, 16 * MIB)
    scale = gigabytes / 2.8 * MIB
    aside = path.with_suffix(".new")
    with (
        gzip.GzipFile(aside, "wb", compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w|", bufsize=MIB, format=tarfile.GNU_FORMAT) as tar,
    ):
        make = Maker(tar, rng)
        make.text(".info/version", "7.10.0\n")
        make.text("include/rocm-core/rocm_version.h", HEADER)
        make.slice("lib/llvm/bin/clang-20", int(120 * scale), code, 0o755)
        make.link("lib/llvm/bin/clang", "clang-20")
        for target in (900, 906, 908, 942, 950):
            make.slice(f"lib/llvm/amdgcn/bitcode/oclc_isa_version_{target}.bc", 3000, code)
        for number, size in enumerate(LIBRARIES):
            make.slice(f"lib/librocm{number}.so.1.0", int(size * scale), code, 0o755)
            make.link(f"lib/librocm{number}.so.1", f"librocm{number}.so.1.0")
        for number in range(300):
            make.slice(f"lib/libpart{number}.a", rng.randint(20_000, 600_000), code)
        for number in range(60 * 150):
            name = f"lib/kernels/{number // 150}/Kernels_HH_{number % 150}_gfx942.hsaco"
            make.slice(name, rng.randint(2000, 60_000), code)
        for number in range(140 * 90):
            size = min(int(rng.lognormvariate(8.3, 1.0)), MIB)
            make.slice(f"include/part{number // 90}/header_{number % 90}.hpp", size, text)
    aside.rename(path)


# The server: sendfile, one process, no more than both sides need.

SERVER = """
import http.server, os, shutil, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_GET(self):
        try:
            file = open("." + self.path, "rb")
        except OSError:
            self.send_response(404); self.send_header("Content-Length", "0"); self.end_headers()
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            known = self.headers.get("If-None-Match") == '"v1"'
            self.send_response(304 if known else 200)
            if not known:
                self.send_header("Content-Length", str(size))
            self.send_header("ETag", '"v1"')
            self.end_headers()
            self.wfile.flush()
            if not known:
                self.connection.sendfile(file)
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
server.serve_forever()
"""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(port)], cwd=folder)
    try:
        for _ in range(100):
            time.sleep(0.05)
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
        yield f"http://127.0.0.1:{port}/{NAME}"
    finally:
        process.terminate()
        process.wait()


# The ways to do it.


def pipeline(*argvs: list[str], env: dict[str, str] | None = None) -> Run:
    """Run commands connected by pipes, as a shell would."""
    began = time.perf_counter()
    processes: list[subprocess.Popen[bytes]] = []
    source: BinaryIO | None = None
    for argv in argvs:
        sink = subprocess.PIPE if len(processes) < len(argvs) - 1 else subprocess.DEVNULL
        process = subprocess.Popen(
            argv, stdin=source, stdout=sink, stderr=subprocess.DEVNULL, env=env
        )
        if source:
            source.close()
        source = process.stdout  # type: ignore[assignment]
        processes.append(process)
    largest, cpu = 0, 0.0
    for process in processes:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        largest = max(largest, usage.ru_maxrss)
        cpu += usage.ru_utime + usage.ru_stime
        if process.returncode:
            raise SystemExit(f"{process.args} failed: {process.returncode}")
    return Run(time.perf_counter() - began, cpu, largest / 1024)


def ours(url: str, out: Path, *, checkout: Path = ROOT) -> Run:
    """`fetch_rocm` as a user runs it, less the one-time environment."""
    code = "import sys; from rocwheel.cli import main; sys.exit(main())"
    env = {**os.environ, "PYTHONPATH": f"{checkout / 'build'}:{checkout}"}
    argv = [sys.executable, "-c", code, "fetch_rocm", f"--therock-path={url}"]
    return pipeline([*argv, f"--cache-dir={out}"], env=env)


def curl_igzip_tar(url: str, out: Path) -> Run:
    return pipeline(["curl", "-s", url], ["igzip", "-dc"], ["tar", "x", "-C", str(out)])


def curl_tar(url: str, out: Path) -> Run:
    return pipeline(["curl", "-s", url], ["tar", "xz", "-C", str(out)])


def urllib_tar(url: str, out: Path) -> Run:
    """What build scripts often do: the whole tarball in memory, to a file, then tar."""
    code = (
        "import subprocess, sys, urllib.request\n"
        "url, out = sys.argv[1:]\n"
        "open(out + '/t.tar.gz', 'wb').write(urllib.request.urlopen(url).read())\n"
        "subprocess.run(['tar', '-xzf', out + '/t.tar.gz', '-C', out], check=True)\n"
    )
    return pipeline([sys.executable, "-c", code, url, str(out)])


@contextmanager
def empty(work: Path) -> Iterator[Path]:
    """A new folder; everything written before is on the disk, so that nobody pays for others."""
    out = Path(tempfile.mkdtemp(dir=work, prefix="out-"))
    os.sync()
    try:
        yield out
    finally:
        for path, _, _ in os.walk(out):
            Path(path).chmod(0o700)
        shutil.rmtree(out)


def measure(way: Callable[[str, Path], Run], url: str, work: Path) -> Run:
    with empty(work) as out:
        return way(url, out)


def report(title: str, runs: list[Run], reference: float | None = None) -> dict[str, object]:
    seconds = [run.seconds for run in runs]
    median = statistics.median(seconds)
    cpu = statistics.median(run.cpu for run in runs)
    memory = max(run.rss_mib for run in runs)
    ratio = f"  {median / reference:5.2f}x" if reference else " " * 8
    print(
        f"{title:28} {median:7.2f} s{ratio}  {min(seconds):7.2f} .. {max(seconds):.2f} s"
        f"  {cpu:6.2f} s  {memory:6.0f} MiB  n={len(runs)}"
    )
    return {"median": median, "runs": seconds, "cpu": cpu, "rss_mib": memory}


def main() -> int:  # noqa: C901, PLR0915 - a script, read from top to bottom
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "rocwheel-fetch")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--others", type=int, default=3, help="runs of the slower ways")
    parser.add_argument("--size", type=float, default=2.8, help="GB unpacked")
    parser.add_argument(
        "--against", type=Path, help="another checkout of rocwheel, run in pairs too"
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    for tool in ("curl", "igzip", "tar"):
        if not shutil.which(tool):
            print(f"{tool} is missing", file=sys.stderr)
            return 1
    folder = args.work / f"{args.size:g}"
    folder.mkdir(parents=True, exist_ok=True)
    tarball = folder / NAME
    if not tarball.exists():
        print(f"making {tarball} (once, a minute or two)", file=sys.stderr)
        # In a process of its own: what this one holds would count as memory of its children.
        maker = multiprocessing.Process(target=make_tarball, args=(tarball, args.size))
        maker.start()
        maker.join()
    print(f"{tarball.stat().st_size / 1e6:.0f} MB packed, {os.cpu_count()} cores")
    figures: dict[str, object] = {"packed": tarball.stat().st_size}
    with served(folder) as url:
        measure(ours, url, folder)  # the tarball is in the page cache from here on
        mine: list[Run] = []
        theirs: list[Run] = []
        before: list[Run] = []
        for number in range(args.pairs):
            arms: list[tuple[Callable[[str, Path], Run], list[Run]]] = [
                (ours, mine),
                (curl_igzip_tar, theirs),
            ]
            if args.against:
                arms.append((partial(ours, checkout=args.against.resolve()), before))
            for way, runs in arms if number % 2 == 0 else reversed(arms):
                runs.append(measure(way, url, folder))
            print(
                f"  pair {number + 1}: {mine[-1].seconds:.2f} s and {theirs[-1].seconds:.2f} s",
                file=sys.stderr,
            )
        print(
            f"{'':28} {'median':>9} {'':7} {'fastest .. slowest':>18} {'CPU':>9} {'peak RSS':>12}"
        )
        reference = statistics.median(run.seconds for run in theirs)
        figures["rocwheel"] = report("rocwheel fetch_rocm", mine, reference)
        if before:
            title = f"rocwheel in {args.against.name}"
            figures["against"] = report(title, before, reference)
            pairs = zip(mine, before, strict=True)
            share = statistics.median(one.seconds / two.seconds for one, two in pairs)
            print(f"  this one takes {share:.3f} of its time, pair by pair")
        figures["igzip"] = report("curl | igzip -dc | tar x", theirs, reference)
        for title, way in (("curl | tar xz", curl_tar), ("urllib, then tar -xzf", urllib_tar)):
            runs = [measure(way, url, folder) for _ in range(args.others)]
            if runs:
                figures[title] = report(title, runs, reference)
        with empty(folder) as out:
            ours(url, out)
            again = [ours(url, out) for _ in range(3)]
            figures["again"] = report("rocwheel, already cached", again, reference)
        alone = [pipeline(["igzip", "-dc", str(tarball)]) for _ in range(3)]
        figures["inflate"] = report("limit: igzip -dc > /dev/null", alone, reference)
    ratios = [one.seconds / two.seconds for one, two in zip(mine, theirs, strict=True)]
    print(f"pair by pair: median ratio {statistics.median(ratios):.2f}")
    figures["ratios"] = ratios
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
