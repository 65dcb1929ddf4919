#!/usr/bin/env python3
"""A second runtime image of one ROCm against the same image by hand, with plain `docker build`.

    python benchmarks/runtime_images.py --base-image IMAGE [--engine docker] [--pairs 3]

On the miniature, with what every image of JAX has beside its wheels (numpy, scipy, ...): a first
image is made and pushed to a registry on this machine by either, then one with another wheel.
Medians of pairs in turn, each on a base of this run, so that the engine has kept nothing of an
earlier one; that a wheel was downloaded once is not measured. By hand means a Dockerfile whose
layers that change least come first and which mounts the wheels, `pip download`, `build`, and `run`
with `pip check`.

- What the engine does in its `build`: at most 1.1 times what it does by hand. It is the same: to
  install the same wheels on layers that it has, and to keep one layer.
- The whole command: at most 1.5 times the lines by hand. Beside them it asks pip for hashes before
  it downloads, compares every byte with the set, follows libraries, and looks into the image.
- What a push sends: at most 1.05 times what it sends of the one by hand: the same files in one
  layer, and a configuration with more labels.

IMAGE is a Debian 12 that the engine has, such as the base of a builder image; the engine is the one
that the environment names. Ends with status 1 when something required is not so.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "build"), str(ROOT), str(ROOT / "tests")]

from support import registries  # noqa: E402

from rocwheel.base.versions import PythonVersion  # noqa: E402
from rocwheel.image import closure, recipe  # noqa: E402

MOST = {"engine's build": 1.1, "whole": 1.5, "pushed": 1.05}
RECIPE, PYTHON = "miniature", "3.11"
PINNED = '["pip==25.3"]'
BESIDE = ("numpy==2.3.4", "scipy==1.16.3", "ml-dtypes==0.5.3", "opt-einsum==3.4.0")
PINS = ("25.3", "25.2", "25.1.1", "25.0.1", "24.3.1", "24.2")  # each image has another pip
DOCKERFILE = f"""\
FROM {{base}}
RUN apt-get update && apt-get install --yes --no-install-recommends {{packages}} \\
    && rm -rf /var/lib/apt/lists/*
COPY rocm /opt/rocm
RUN apt-get update && apt-get install --yes --no-install-recommends python{PYTHON}-venv \\
    && rm -rf /var/lib/apt/lists/* && python{PYTHON} -m venv /opt/venv
RUN --mount=type=bind,source=wheels,target=/wheels \\
    /opt/venv/bin/pip install --no-cache-dir --no-index --no-deps /wheels/*.whl
"""
# In the engine's place: it, and how long that took.
TIMED = """\
#!/bin/sh
began=$(date +%s.%N)
'{program}' "$@"
status=$?
echo "$1 $began $(date +%s.%N)" >> '{log}'
exit $status
"""


@dataclass
class Made:
    """One image: how long it took, what of that its engine built, what its push sent."""

    whole: float
    build: float
    name: str
    document: dict[str, Any] = field(default_factory=dict)
    pushed: int = 0


class Bench:
    """A released set of the miniature, an engine, a registry."""

    def __init__(self, asked: argparse.Namespace, work: Path, registry: str) -> None:
        self.engine, self.registry = asked.engine, registry
        self.base = f"rocwheel-bench:{secrets.token_hex(6)}"
        self.work, self.ci, self.context = work, work / "ci", work / "by-hand"
        self.log = work / "engine.log"
        shim = work / "bin" / self.engine
        shim.parent.mkdir()
        program = shutil.which(self.engine)
        if program is None:
            raise SystemExit(f"{self.engine}: no such program")
        shim.write_text(TIMED.format(program=program, log=self.log), encoding="utf-8")
        shim.chmod(0o755)
        self.env = {
            **os.environ, "XDG_CACHE_HOME": str(work / "cache"), "DOCKER_BUILDKIT": "1",
            "PATH": f"{shim.parent}:/usr/sbin:/usr/bin:/sbin:/bin:{os.environ['PATH']}",
        }  # fmt: skip
        shutil.copytree(ROOT / "ci", self.ci)
        self.glibc = recipe.runtime(self.ci, RECIPE).base("").glibc
        self.recipes = (self.ci / "images.yaml").read_text(encoding="utf-8")

    def call(self, *words: object) -> str:
        """What a program says; raises SystemExit when it fails."""
        done = subprocess.run(
            [str(word) for word in words], cwd=self.work, env=self.env, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{words}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
        return done.stdout

    def tool(self, *words: object) -> dict[str, Any]:
        program = (sys.executable, ROOT / "build" / "ci_build", f"--ci-dir={self.ci}", "--json")
        document: dict[str, Any] = json.loads(self.call(*program, *words))
        return document

    def ours(self, pin: str) -> Made:
        """The image with this pip, as `runtime_images` makes it."""
        text = self.recipes.replace(PINNED, json.dumps([f"pip=={pin}", *BESIDE]))
        text = text.replace('jax{jax}-py{python}"', f'jax{{jax}}-py{{python}}-pip{pin}"')
        (self.ci / "images.yaml").write_text(text, encoding="utf-8")
        (tarball,) = (self.work / "cache/rocwheel/demo").glob("*/therock-dist-*.tar.gz")

        def make() -> dict[str, Any]:
            return self.tool(
                "runtime_images", f"--store={(self.work / 'wheelhouse/demo/store').as_uri()}",
                "--family=miniature", f"--family-file={ROOT / 'examples/miniature/families.yaml'}",
                f"--manifest={self.work / 'wheelhouse/current/manifest.json'}",
                f"--python={PYTHON}", f"--recipe={RECIPE}", f"--base-image={self.base}",
                f"--rocm={tarball}", f"--container-engine={self.engine}", "--build-network=host",
                f"--slots={self.work / 'slots'}",
            )  # fmt: skip

        made, document = self.timed(make)
        made.name, made.document = f"{self.registry}/ours:{pin}", document
        self.call(self.engine, "tag", document["local"], made.name)
        made.pushed = self.pushed(made.name)
        return made

    def by_hand(self, pin: str) -> Made:
        """The same files as somebody would put them into an image."""
        name = f"{self.registry}/by-hand:{pin}"

        def make() -> None:
            self.download(pin, self.context / "wheels")
            self.call(self.engine, "build", "--network=host", f"--tag={name}", self.context)
            check = ("/opt/venv/bin/python", "-m", "pip", "check")
            self.call(self.engine, "run", "--rm", "--network=none", name, *check)

        made, _ = self.timed(make)
        made.name = name
        made.pushed = self.pushed(name)
        return made

    def timed(self, make: Callable[[], Any]) -> tuple[Made, Any]:
        self.log.unlink(missing_ok=True)
        began = time.monotonic()
        found = make()
        whole, build = time.monotonic() - began, 0.0
        for line in self.log.read_text(encoding="utf-8").splitlines():
            word, start, end = line.split()
            build += float(end) - float(start) if word == "build" else 0.0
        return Made(whole=whole, build=build, name=""), found

    def download(self, pin: str, folder: Path) -> None:
        """The wheels of an image with this pip."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        where = closure.Where(python=PythonVersion.parse(PYTHON), glibc=self.glibc)
        self.call(
            sys.executable, "-m", "pip", "download", "--quiet", *where.options, f"--dest={folder}",
            *(self.work / "wheelhouse" / "current").glob("*.whl"), f"pip=={pin}", *BESIDE,
        )  # fmt: skip

    def pushed(self, name: str) -> int:
        """Bytes that pushing it sent: how much the registry's blobs grew."""
        before = self.stored()
        plainly = ("--tls-verify=false",) if self.engine == "podman" else ()
        self.call(self.engine, "push", *plainly, name)
        return self.stored() - before

    def stored(self) -> int:
        return sum(file.stat().st_size for file in self.work.glob("registry/**/blobs/**/data"))

    def prepare(self, given: str) -> None:
        """A released set, and the first image of either, pushed: not measured."""
        made = f"FROM {given}\nRUN echo {self.base} > /etc/rocwheel-bench\n"
        (self.work / "base").mkdir()
        (self.work / "base" / "Dockerfile").write_text(made, encoding="utf-8")
        self.call(self.engine, "build", "--network=none", f"--tag={self.base}", self.work / "base")
        self.tool("demo", f"--python-versions={PYTHON}")
        first = self.ours(PINS[0])
        container = self.call(self.engine, "create", first.name).strip()
        self.context.mkdir()
        self.call(self.engine, "cp", f"{container}:/opt/rocm", self.context / "rocm")
        self.call(self.engine, "rm", container)
        base = recipe.runtime(ROOT / "ci", RECIPE).base("")
        text = DOCKERFILE.format(base=self.base, packages=" ".join(base.packages))
        (self.context / "Dockerfile").write_text(text, encoding="utf-8")
        self.by_hand(PINS[0])


def measure(bench: Bench, pairs: int) -> dict[str, list[Made]]:
    """Images of either in turn."""
    found: dict[str, list[Made]] = {"ours": [], "by hand": []}
    ways = {"ours": bench.ours, "by hand": bench.by_hand}
    for turn, pin in enumerate(PINS[1 : pairs + 1]):
        bench.download(pin, bench.work / "known")  # pip keeps what it fetched
        for name in (ways, reversed(ways))[turn % 2]:
            found[name].append(ways[name](pin))
        if not found["ours"][-1].document["new"]:
            raise SystemExit(f"pip {pin}: not a new image; take another --work")
    return found


def told(
    what: str, found: dict[str, list[Made]], unit: str, value: Callable[[Made], float]
) -> bool:
    """Print medians and the median of the pairs' ratios; whether it is what is required."""
    pairs = list(zip(*(map(value, found[name]) for name in ("ours", "by hand")), strict=True))
    ratio, most = statistics.median(ours / by_hand for ours, by_hand in pairs), MOST[what]
    ours, by_hand = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"{what}: {ours:.2f} {unit}, by hand {by_hand:.2f} {unit}: {ratio:.2f} ({most})")
    return bool(ratio <= most)


def main() -> int:
    """Return 0 when all is as required."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base-image", required=True)
    parser.add_argument("--engine", default="docker", choices=["docker", "podman"])
    parser.add_argument("--work", type=Path)
    parser.add_argument("--pairs", type=int, default=3, choices=range(1, len(PINS)))
    asked = parser.parse_args()
    work = asked.work or Path(tempfile.mkdtemp(prefix="rocwheel-bench-"))
    work.mkdir(parents=True, exist_ok=True)
    with registries.serving(work) as registry:
        bench = Bench(asked, work, registry)
        bench.prepare(asked.base_image)
        try:
            found = measure(bench, asked.pairs)
        finally:
            bench.call(bench.engine, "rmi", "--no-prune", bench.base)
    size = found["ours"][-1].document["size"]
    print(f"unpacked: {size / 1e6:.1f} MB")
    good = [
        told("engine's build", found, "s", lambda made: made.build),
        told("whole", found, "s", lambda made: made.whole),
        told("pushed", found, "MB", lambda made: made.pushed / 1e6),
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
