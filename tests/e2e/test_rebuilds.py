"""Nights that build released sets again, with nothing played: Bazel builds the miniature."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from e2e.conftest import World, interpreter
from e2e.test_faults import WORKSPACE
from e2e.test_nights import FAMILIES
from support.night import of_commit

pytestmark = [
    pytest.mark.needs("bazel", "clang-19", "cc"),
    pytest.mark.soak,
    pytest.mark.timeout(3600),
    pytest.mark.xdist_group("demo"),
]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def test_a_released_set_that_does_not_come_out_byte_for_byte_is_red(demo, tmp_path):
    """One does, the other has the second it was compiled in: no cache answers for it."""
    shared, _ = demo
    world = World(tmp_path, env={"XDG_CACHE_HOME": str(shared.folder / "cache")})
    tarball = next((shared.cache / "demo").glob("*/therock-dist-*.tar.gz"))
    jax, source = tmp_path / "jax", tmp_path / "jax" / "jaxlib" / "_jax.cc"
    shutil.copytree(WORKSPACE, jax, ignore=shutil.ignore_patterns("bazel-*"))

    def git(*words: str) -> str:
        who = ("-c", "user.name=Ann", "-c", "user.email=a@b")
        line = ["git", *who, "-C", str(jax), *words]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    (tmp_path / "families.yaml").write_text(FAMILIES)
    (tmp_path / "channels.yaml").write_text(
        f"channels:\n  mine:\n    store: {(tmp_path / 'store').as_uri()}\n    first_sets: free\n"
        '    rebuilds_a_week: 14\n    prefixes: {"7": {staging: v2-staging, release: v2}}\n'
    )
    target = ("--channel=mine", f"--channels-file={tmp_path}/channels.yaml")

    def rebuilt(night: str) -> list[list[str]]:
        """What became of the sets that a night builds again."""
        cells = world.run("--json", "nightly", "status", night, *target).document["cells"]
        again = (item for item in cells if item["cell"].startswith("rebuild."))
        return [[item[name] for name in ("cell", "state", "reason")] for item in again]

    for number, code in ((1, 0), (2, 0), (3, 5)):
        if number < 3:
            git("add", "-A", "-f")
            git("commit", "-qm", f"{number}")
            commit = git("rev-parse", "HEAD")
            source.write_text(source.read_text().replace("numbers.", 'numbers: " __TIME__ "'))
        text = of_commit(
            PYTHON, interpreter(PYTHON),
            jax=jax, commit=commit, rocm=tarball, suffix=min(number, 2),
        )  # fmt: skip
        (tmp_path / "nightly.yaml").write_text(text)
        words = (f"--config={tmp_path}/nightly.yaml", f"--family-file={tmp_path}/families.yaml")
        planned = world.run("nightly", "plan", f"--night={number}", *words, *target)
        assert planned.returncode == 0, planned.stderr
        ran = world.run("nightly", "run", str(number), *target)
        assert ran.returncode == code, ran.stderr[-3000:]
    assert [found[1:] for found in rebuilt("2")] == [["pass", ""]]
    ((name, state, reason),) = rebuilt("3")
    assert (state, "jaxlib/_jax.so: bytes: " in reason) == ("fail", True), reason

    (checkout,) = shared.cache.glob(f"gate/jax/{commit}")
    with (checkout / "jaxlib" / "_jax.cc").open("a") as file:
        file.write("int another;\n")
    assert world.run("nightly", "retry", "3", name, "--reason=try", *target).returncode == 0
    assert world.run("nightly", "run", "3", *target).returncode == 5
    assert rebuilt("3") == [[name, "fail", "JAX: changes that are in no commit"]]
