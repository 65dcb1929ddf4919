"""The nightly: how well the local engine fills a machine, what an empty cell costs, a page.

    python benchmarks/nightly.py [page] [graph] [slurm] [idle] [wheels]

Wall time of a graph with known durations against the larger of (total / workers) and the longest
path, and beside `make -j` on the same graph, and on a Slurm of four nodes, where there is one
(reported, no limit); a page of 30 nights with 400 nights of 16 families
stored; a night of 16 families x 4 CPythons in a bucket that has nothing to do; how often
the wheels of one set for 16 families cross the network until they are staged. Cells sleep:
what is measured is the engine.
Required: at most 1.1 (with cells of about 20 s; CELL_SECONDS), 2 s, 2 MB,
150 MiB, 20 s and 900 requests.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "build"), str(ROOT), str(ROOT / "tests")]

from support import s3, slurm  # noqa: E402
from support.faults import before  # noqa: E402
from support.night import PROGRAM, World  # noqa: E402
from support.states import summary  # noqa: E402
from support.wheelset import SUITES, WHO, make_set, make_verdict  # noqa: E402

import amdgpu_family_matrix as matrix  # noqa: E402
from rocwheel import __version__  # noqa: E402
from rocwheel.base import home  # noqa: E402
from rocwheel.base.console import silent  # noqa: E402
from rocwheel.base.here import Here  # noqa: E402
from rocwheel.base.process import HostRunner  # noqa: E402
from rocwheel.base.store import JSON, Headers  # noqa: E402
from rocwheel.base.store.opening import open_store  # noqa: E402
from rocwheel.base.values import replace  # noqa: E402
from rocwheel.base.versions import timestamp  # noqa: E402
from rocwheel.night import standing  # noqa: E402
from rocwheel.night.cell import Signals, Worker  # noqa: E402
from rocwheel.night.local import LocalScheduler, critical_paths  # noqa: E402
from rocwheel.records.manifest import BUILD_RECORD  # noqa: E402
from rocwheel.release import promote, stage  # noqa: E402
from rocwheel.release.index import channels  # noqa: E402
from rocwheel.release.ledger import verdicts  # noqa: E402
from rocwheel.release.ledger.nights import Cell, Index, Needs, NightPlan, Nights, WheelRecipe  # noqa: E402

WORKERS = 4
SECONDS = float(os.environ.get("CELL_SECONDS", "10"))
# plays the program: a cell's own command sleeps, everything else is ours
PLAYER = """
import sys, time
if sys.argv[1] == "sleep":
    time.sleep(float(sys.argv[2])); print("{}"); raise SystemExit(0)
from rocwheel.cli import main
raise SystemExit(main(sys.argv[1:]))
"""


def _add(cells: list[Cell], family: str, name: str, share: float, **kwargs: object) -> str:
    seconds = max(1, round(SECONDS * share))
    argv = ("sleep", str(seconds))
    cells.append(Cell(name=f"{name}.{family}", kind="build", argv=argv, seconds=seconds, **kwargs))
    return f"{name}.{family}"


def graph() -> tuple[Cell, ...]:
    """A night's shape: a build, many tests, a promotion, for as many families as workers.

    With fewer families workers idle while there are only builds to run, in whatever order.
    """
    chance = random.Random(1)
    cells: list[Cell] = []
    for family in "abcd"[:WORKERS]:
        add = partial(_add, cells, family)
        build = add("build", 2)
        tests = [add(f"test{n}", chance.uniform(0.5, 1.5), after=(build,)) for n in range(8)]
        add("promote", 0.5, after=(build,), settled=tuple(tests))
    return tuple(cells)


def now() -> datetime:
    return datetime.now(tz=timezone.utc)


def planned(folder: Path, cells: tuple[Cell, ...]) -> tuple[Nights, tuple[str, ...], Path]:
    """A night of these cells in a folder of its own, the options that name its store, a player."""
    folder.mkdir()
    nights = Nights(open_store((folder / "store").as_uri()))
    target = (f"--store={(folder / 'store').as_uri()}",)
    nights.add(
        NightPlan(
            night="n", made=timestamp(now()), by="me", tool=__version__, target=target, recipes=(),
            cells=cells,
        )
    )  # fmt: skip
    player = folder / "player.py"
    player.write_text(PLAYER)
    return nights, target, player


def environ(folder: Path) -> dict[str, str]:
    path = f"{ROOT / 'build'}:{ROOT}"
    return {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(folder)}


def best(cells: tuple[Cell, ...]) -> float:
    """Seconds that no engine can go below."""
    return max(sum(c.seconds for c in cells) / WORKERS, *critical_paths(cells).values())


def on_slurm(folder: Path) -> dict[str, float]:
    """The same graph on a Slurm of as many nodes with one GPU each, which a cell has to itself."""
    needs = Needs(gpus=1, partition="gfx90a", gres="gpu:mi250")
    cells = tuple(replace(cell, needs=needs) for cell in graph())
    with slurm.cluster(folder / "cluster", nodes=WORKERS, gpus=1) as made:
        nights, target, player = planned(folder / "slurm", cells)
        env = {**environ(folder / "slurm"), **made.env}
        program = f"{sys.executable} {player}"
        words = ["nightly", "run", "n", "--engine=slurm", f"--program={program}", *target]
        started = time.monotonic()
        subprocess.run([*program.split(), *words], env=env, check=True, capture_output=True)
        made.idle(20 * best(cells) + 600)
        wall = time.monotonic() - started
    found = standing.stand(nights.book("n"))
    assert all(item.passed for item in found.values()), {n: i.reason for n, i in found.items()}
    return {"wall": wall, "best": best(cells)}


def engine(folder: Path) -> dict[str, float]:
    cells = graph()
    nights, target, player = planned(folder / "local", cells)
    folder /= "local"
    env = environ(folder)
    here = Here(
        environ=env, cwd=folder, cache=folder, home=home.find(None), console=silent(),
        runner=HostRunner(env), program=(sys.executable, str(player)),
    )  # fmt: skip
    worker = Worker(here=here, host="here", engine="local")
    started = time.monotonic()
    with (folder / "out").open("wb") as output:
        found = LocalScheduler(
            nights=nights, night="n", worker=worker, target=target, workers=WORKERS,
            cpus=64, memory_mib=1 << 20, gpus=0, disk=folder,
            signals=Signals(), output=output,
        ).run()  # fmt: skip
    wall = time.monotonic() - started
    assert all(item.passed for item in found.values()), {n: i.reason for n, i in found.items()}
    over = [i.last.milliseconds / 1000 - i.cell.seconds for i in found.values() if i.last]
    return {
        "wall": wall,
        "best": best(cells),
        "cell overhead": sum(over) / len(over),
        "make": make(cells, folder),
    }


def make(cells: tuple[Cell, ...], folder: Path) -> float:
    lines = [
        ".PHONY: all " + " ".join(c.name for c in cells),
        "all: " + " ".join(c.name for c in cells),
    ]
    for cell in cells:
        lines += [
            f"{cell.name}: {' '.join((*cell.after, *cell.settled))}",
            f"\t@sleep {cell.argv[1]}",
        ]
    (folder / "Makefile").write_text("\n".join(lines) + "\n")
    started = time.monotonic()
    subprocess.run(["make", f"-j{WORKERS}", "-s"], cwd=folder, check=True)
    return time.monotonic() - started


def page(folder: Path) -> dict[str, float]:
    """In a process of its own: 400 nights stored, 30 shown."""
    store = open_store((folder / "pages").as_uri())
    nights = Nights(store)
    names = [summary(number).night for number in range(400)]
    for number, name in enumerate(names):
        nights.put_summary(name, summary(number).to_bytes())
    store.create(
        "_rocwheel/nights/index.json",
        Index(nights=tuple(names)).to_bytes(),
        headers=Headers(content_type=JSON),
    )
    code = (
        "import sys, time, resource, json; from datetime import datetime, timezone\n"
        "from rocwheel.release.ledger.nights import Nights\n"
        "from rocwheel.base.store.opening import open_store\n"
        "from rocwheel.night import page as state\n"
        "t = time.monotonic(); nights = Nights(open_store(sys.argv[1]))\n"
        "shown = nights.names()[-30:]\n"
        "found = [state.NightSummary.from_bytes(nights.summary(n), name=n) for n in shown]\n"
        "body = state.render(found, now=datetime.now(tz=timezone.utc), title='x', root='../')\n"
        "print(json.dumps({'seconds': time.monotonic() - t, 'bytes': len(body),"
        " 'mib': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'build'}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", code, store.url], env=env, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


IDLE = """
sets:
  - name: jax
    source_dir: source
    pythons: ["3.11", "3.12", "3.13", "3.14"]
    rocm: {tarballs: tarballs}
excused:
  - {cells: "gate.*", owner: me, reason: some families have no runner, until: 9999-12-31}
"""


def release(world: World, recipe: WheelRecipe) -> WheelRecipe:
    """What earlier nights did for one family: built, staged, all suites passed, released."""
    house = world.folder / "houses" / recipe.name
    (family,) = (matrix.family(name) for name in recipe.families)
    manifest = make_set(
        house, pythons=recipe.pythons, rocm="7.1.0", gfx=family.targets, stamp=recipe.name
    )
    (house / BUILD_RECORD).write_bytes(b"{}\n")
    channel = replace(
        channels.of_store(world.store),
        suites=SUITES,
    )
    store = channel.open()
    stage.apply(stage.plan(house, family, channel, store, who=WHO), console=silent())
    place = channel.pairs(store, family.name, 7)[0][0]
    for suite in family.suites:
        for python in recipe.pythons:
            made = make_verdict(manifest, suite=suite, python=python, family=family)
            verdicts.add(place, made)
    promote.apply(
        promote.plan(manifest, family, channel, store, who=WHO, approvals=()), console=silent()
    )
    return replace(recipe, manifest=manifest.sha256)


def wheels(folder: Path) -> dict[str, float]:
    """Run the build of one set for all families in a real S3 server: how often wheels pass."""
    with s3.seaweedfs(folder / "s3") as server, before(server.endpoint) as proxy:
        os.environ.update(server.environ())
        os.environ["AWS_ENDPOINT_URL_S3"] = proxy.endpoint
        families = ", ".join(matrix.FAMILIES)
        store = f"s3://{server.bucket('wheels')}/nightly"
        world = World(folder / "world", store, families=families, one_build=True)
        world.plan("one", check=True)
        proxy.faults.arm(None)
        cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
        world.nightly("cell", "one", "build.jax", f"--program={PROGRAM}", check=True)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        passed = [name for name in proxy.faults.seen if name.endswith(".whl")]
        staged = {name.split()[-1] for name in passed if name.startswith("PUT")}
        return {
            "times": len([n for n in passed if n.startswith(("PUT", "GET"))]) / len(staged),
            "requests": len(proxy.faults.seen),
            "cpu": used.ru_utime + used.ru_stime - cpu.ru_utime - cpu.ru_stime,
        }


def idle(folder: Path) -> dict[str, float]:
    """Plan and run a night of all families for which everything is there, in a real S3 server."""
    with s3.seaweedfs(folder / "s3") as server, before(server.endpoint) as proxy:
        os.environ.update(server.environ())
        os.environ["AWS_ENDPOINT_URL_S3"] = proxy.endpoint
        world = World(folder / "world", f"s3://{server.bucket('idle')}/nightly")
        tarballs = world.folder / "tarballs"
        tarballs.mkdir()
        for name in matrix.FAMILIES:
            (tarballs / f"therock-dist-linux-{name}-7.1.0.tar.gz").write_bytes(name.encode())
        world.settings(IDLE)
        world.plan("zero", check=True)
        plan, _ = Nights(open_store(world.store)).plan("zero")
        built = tuple(release(world, recipe) for recipe in plan.recipes)
        nights = Nights(open_store(world.store))
        known = replace(summary(0, families=1), night="zero", builds=built)
        nights.put_summary("zero", known.to_bytes())
        world.plan("before", check=True)  # leaves what every night leaves: what was built as what
        world.local("before", check=True)
        proxy.faults.arm(None)
        started = time.monotonic()
        said = world.plan("one", check=True)
        planning, asked = time.monotonic() - started, len(proxy.faults.seen)
        assert "2 cells to run" in said.out, said.out
        world.local("one", check=True)
        return {
            "planning": planning,
            "seconds": time.monotonic() - started,
            "to plan": asked,
            "requests": len(proxy.faults.seen),
        }


def main(argv: list[str]) -> int:
    folder = Path(tempfile.mkdtemp(prefix="nightly-benchmark-"))
    chosen = argv or ["page", "graph", "slurm", "idle", "wheels"]
    bad = False
    try:
        if "page" in chosen:
            shown = page(folder)
            print(f"page: {shown['seconds']:.2f} s (2), {shown['bytes'] / 1e6:.2f} MB (2)")
            print(f"      {shown['mib']:.0f} MiB (150)")
            bad |= shown["seconds"] > 2 or shown["bytes"] > 2e6 or shown["mib"] > 150
        if "graph" in chosen:
            ran = engine(folder)
            share = ran["wall"] / ran["best"]
            print(f"graph: {ran['wall']:.1f} s, at best {ran['best']:.1f} s: {share:.3f} (1.1)")
            print(f"       make -j{WORKERS} {ran['make']:.1f} s")
            print(f"cell:  {ran['cell overhead']:.2f} s of its own")
            bad |= share > 1.1
        if "slurm" in chosen:
            lacking = [name for name in slurm.PROGRAMS if shutil.which(name) is None]
            if lacking:
                print(f"slurm: not measured: {lacking[0]} is not installed")
            else:
                there = on_slurm(folder)
                share = there["wall"] / there["best"]
                print(f"slurm: {there['wall']:.1f} s, at best {there['best']:.1f} s: {share:.3f}")
        if "idle" in chosen:
            none = idle(folder)
            print(f"idle:  {none['seconds']:.1f} s (20), of it the plan {none['planning']:.1f} s")
            print(f"       {none['requests']} requests (900), of them the plan {none['to plan']}")
            bad |= none["seconds"] > 20 or none["requests"] > 900
        if "wheels" in chosen:
            seen = wheels(folder)
            print(
                f"wheels: each crosses the network {seen['times']:g} times until it is staged (1)"
            )
            print(f"       for {len(matrix.FAMILIES)} families: {seen['requests']} requests, "
                  f"{seen['cpu']:.1f} s of CPU")  # fmt: skip
            bad |= seen["times"] > 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
