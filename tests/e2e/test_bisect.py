"""A bisect with nothing played: Bazel builds commits of the miniature, its suite gates them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from e2e.conftest import World, interpreter
from e2e.test_faults import WORKSPACE
from e2e.test_nights import FAMILIES

from rocwheel.base.store.opening import open_store
from rocwheel.release.ledger.nights import Nights

pytestmark = [
    pytest.mark.needs("bazel", "clang-19", "cc"),
    pytest.mark.soak,
    pytest.mark.timeout(3600),
    pytest.mark.xdist_group("demo"),
]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SETTINGS = """
sets:
  - name: set
    jax: {{repository: "file://{jax}", branch: {commit}, pin: "0.9.1"}}
    pythons: ["{python}"]
    families: [miniature]
    rocm: {{source: {tarball}}}
    options:
      - --jaxlib=built
      - --wheel-suffix=+rocm7.10.0.{night}
      - --bazel-startup-options=--bazelrc=bazel/debian.bazelrc
      - --bazel-options=--repo_env=MINIATURE_PYTHON_{underlined}={executable}
build: {{cpus: 1, memory_mib: 1024, disk_mib: 100, hours: 1}}
gate: {{cpus: 1, memory_mib: 512, disk_mib: 100, hours: 1}}
"""
GOOD, BROKEN, BAD = "double sum = 0;", "double sum = 0; no C++", "double sum = 1;"


def history(folder) -> list[str]:
    """12 commits with a merge: the fourth and fifth do not build, the ninth computes wrongly."""
    shutil.copytree(WORKSPACE, folder, ignore=shutil.ignore_patterns("bazel-*"))

    def git(*words: str) -> str:
        who = ("-c", "user.name=Ann", "-c", "user.email=a@b")
        line = ["git", *who, "-C", str(folder), *words]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q", "-b", "main")
    source, commits = folder / "jaxlib" / "_jax.cc", []
    texts = {3: (GOOD, BROKEN), 5: (BROKEN, GOOD), 8: (GOOD, BAD)}
    for number in range(12):
        if number == 6:  # a branch beside the main line, which goes on
            git("checkout", "-q", "-b", "side")
        (folder / f"note-{number}").write_text("")
        source.write_text(source.read_text().replace(*texts.get(number, ("", ""))))
        git("add", "-A", "-f")
        git("commit", "-qm", f"Change {number}")
        commits.append(git("rev-parse", "HEAD"))
        if number == 6:
            git("checkout", "-q", "main")
            git("merge", "-q", "--no-ff", "-m", "Merge side", "side")
    return commits


def test_the_commit_is_named_by_real_builds_also_after_kills(demo, tmp_path):
    shared, _ = demo
    world = World(tmp_path, env={"XDG_CACHE_HOME": str(shared.folder / "cache")})
    tarball = next((shared.cache / "demo").glob("*/therock-dist-*.tar.gz"))
    (tmp_path / "families.yaml").write_text(FAMILIES)
    commits = history(tmp_path / "jax")
    url = (tmp_path / "store").as_uri()
    (tmp_path / "channels.yaml").write_text(
        f"channels:\n  mine:\n    store: {url}\n    first_sets: free\n    rebuilds_a_week: 14\n"
        '    prefixes: {"7": {staging: v2-staging, release: v2}}\n'
    )
    target = ("--channel=mine", f"--channels-file={tmp_path}/channels.yaml")
    for night, commit, code in (("one", commits[0], 0), ("two", commits[-1], 5)):
        text = SETTINGS.format(
            jax=tmp_path / "jax", commit=commit, python=PYTHON, tarball=tarball, night=night,
            underlined=PYTHON.replace(".", "_"), executable=interpreter(PYTHON),
        )  # fmt: skip
        (tmp_path / "nightly.yaml").write_text(text)
        words = (f"--night={night}", f"--config={tmp_path}/nightly.yaml", *target)
        planned = world.run("nightly", "plan", f"--family-file={tmp_path}/families.yaml", *words)
        assert planned.returncode == 0, planned.stderr
        assert world.run("nightly", "run", night, *target).returncode == code

    def rebuilt() -> tuple[str, ...]:
        """What became of the released set, which the second night builds again."""
        status = world.run("--json", "nightly", "status", "two", *target).document
        (cell,) = (item for item in status["cells"] if item["cell"].startswith("rebuild."))
        return cell["cell"], cell["state"], cell["reason"]

    name, *ended = rebuilt()
    assert ended == ["pass", ""]
    test = "--test=test_miniature.py::test_jaxlib_computes"
    line = ("--json", "nightly", "bisect", test, "--good=one", "--bad=two", *target)
    for seconds in (8, 25):
        started = world.start(*line)
        time.sleep(seconds)
        os.killpg(started.pid, signal.SIGKILL)
        started.communicate()
    done = world.run(*line)
    assert done.returncode == 0, done.stderr
    found = done.document
    assert [item["commit"] for item in found["commits"]] == [commits[8]], found
    assert found["commits"][0]["title"] == "Change 8"
    nights = Nights(open_store(f"{url}/bisect"))
    assert sum(name.startswith("set-") for name in nights.names()) <= 4 + 4
    ends = [
        item.ended.milliseconds
        for name in nights.names()
        for tries in nights.book(name).attempts.values()
        for item in tries
        if item.ended
    ]
    assert sum(item["milliseconds"] for item in found["tried"]) <= sum(ends), "each counts once"
    assert world.run("nightly", "bisect", *line[2:]).seconds < 60, "all is known"
    for side, code in (("good", 0), ("bad", 22)):
        words = found[side].partition(" gate ")[2].split()
        gate = world.run("gate", *words, f"--output={tmp_path}/{side}")
        assert gate.returncode == code, gate.stderr

    (checkout,) = shared.cache.glob(f"gate/jax/{commits[0]}")
    with (checkout / "jaxlib" / "_jax.cc").open("a") as source:
        source.write("int another;\n")
    assert world.run("nightly", "retry", "two", name, "--reason=try", *target).returncode == 0
    assert world.run("nightly", "run", "two", *target).returncode == 5
    assert rebuilt() == (name, "fail", "JAX: changes that are in no commit")
