"""One set for three GPU families, real code objects in it: built, staged and copied once.

`demo --families 3` begins; its second family's gate fails. Then that machine is mended, the family
is added to what is released, and another is taken back alone. What pip and uv see of each family
and of `all` is asked after every step.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import uv
from e2e.conftest import ROOT, World

from rocwheel.base.store.file import FileStore
from rocwheel.release.index.serve import Site

pytestmark = [
    pytest.mark.needs("bazel", "clang-19", "cc"),
    pytest.mark.xdist_group("demo"),
]
FIRST, SECOND, THIRD = "mini-gfx90a", "mini-gfx942", "mini-radeon"
TARGETS = {FIRST: ["gfx90a"], SECOND: ["gfx942"], THIRD: ["gfx1100", "gfx1201"]}
NOTHING = frozenset[str]()
PYTHON = "3.11"
FAMILIES = f"--family-file={ROOT}/examples/miniature/three_families.yaml"


class Release:
    """A store with one set in it, the commands on it, and what installers find there."""

    def __init__(self, world: World, store: Path, document: dict) -> None:
        self.world, self.store = world, store
        self.manifest = document["manifest_sha256"]
        self.pins = sorted({f"{w['project']}=={w['version']}" for w in document["wheels"]})
        self.names = {wheel["filename"] for wheel in document["wheels"]}

    def run(self, *words: str, code: int = 0, **env: str):
        """Run a command on this store; its document."""
        done = self.world.run("--json", *words, f"--store={self.store.as_uri()}", FAMILIES, **env)
        assert done.returncode == code, done.stderr[-4000:]
        assert "Traceback" not in done.stderr
        return done

    def log(self) -> int:
        return len(list((self.store / "v2" / "_rocwheel" / "log").glob("*.json")))

    def wheels(self, prefix: str) -> dict[str, tuple[int, int]]:
        """Wheels below a prefix, by key: inode and time, which a copy would change."""
        return {
            str(path.relative_to(self.store / prefix)): (
                path.stat().st_ino,
                path.stat().st_mtime_ns,
            )
            for path in (self.store / prefix).rglob("*.whl")
        }

    def seen(self) -> frozenset[str]:
        """Return the families, and `all`, whose users can install the whole set; both clients."""
        with Site(FileStore(self.store)).running() as site:
            views = {view: f"{site.url}v2/{view}/" for view in (FIRST, SECOND, THIRD, "all")}
            clients = {
                client: frozenset(view for view, url in views.items() if self.has(client, url))
                for client in ("pip", "uv")
            }
        assert clients["pip"] == clients["uv"]
        return clients["pip"]

    def told(self, view: str) -> list[str]:
        """Return the families of the released sets on the page of what fits together."""
        page = (self.store / "v2" / view / "compat.html").read_text()
        table = page[page.index(">Released</h2>") :].partition("</table>")[0]
        first = re.findall(r"<tr><td>([\w-]+)</td>", table)
        return [] if first == ["none"] else first

    def has(self, client: str, url: str) -> bool:
        """Ask an installer for the set; it has all of it or none."""
        target = self.world.folder / "target"
        common = ("install", "--dry-run", "--no-deps", f"--target={target}", *self.pins)
        index = ("--index-url", url)
        command = {
            "pip": (sys.executable, "-m", "pip", "--isolated", "--no-cache-dir",
                    "--disable-pip-version-check", *common, *index),
            "uv": (uv.find_uv_bin(), "pip", *common, "--no-cache", "--no-config",
                   f"--python={PYTHON}", *index),
        }[client]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode == 0:
            return True
        said = done.stdout + done.stderr
        assert re.search("No matching distribution|there is no version|was not found in", said), (
            said
        )
        return False


@pytest.fixture(scope="module")
def three(demo, tmp_path_factory):
    """A world in which `demo --families 3` has failed and then run, and what it said each time.

    Its cache is that of `demo`, as a person's is who runs one after the other.
    """
    shared, _ = demo
    env = {"XDG_CACHE_HOME": str(shared.folder / "cache")}
    world = World(tmp_path_factory.mktemp("families"), env=env)
    words = ("--json", "demo", "--families=3", f"--python-versions={PYTHON}")
    failed = world.run(*words, "--bazel-options=--no_such_option")
    done = world.run(*words)
    assert done.returncode == 0, done.stderr[-4000:]
    return world, done, failed


@pytest.fixture(scope="module")
def release(three) -> Release:
    world, done, _ = three
    return Release(world, world.wheelhouse / "demo-3" / "store", done.document)


@pytest.fixture(scope="module")
def mended(release) -> dict[str, str]:
    """The environment in which the second family's machine has a GPU: its suite passes there."""
    folder = release.world.folder / "mended"
    shutil.copytree(ROOT / "ci", folder / "ci")
    tests = folder / "tests"
    tests.mkdir()
    (tests / "test_gpu.py").write_text("def test_gpu():\n    assert True\n")
    suite = folder / "ci" / "suites" / "miniature_gpu.yaml"
    suite.write_text(suite.read_text().replace("suites/miniature_gpu", str(tests)))
    return {"ROCWHEEL_CI_DIR": str(folder / "ci")}


def test_a_failed_cell_ends_the_demo_and_the_next_run_finishes_it(three):
    *_, failed = three
    assert failed.returncode == 5, failed.stderr[-4000:]
    assert "no_such_option" in failed.stderr
    assert "error: build.miniature: fail" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_one_build_has_the_code_of_three_families_and_names_them(three):
    _, done, _ = three
    manifest = json.loads((Path(done.document["wheelhouse"]) / "manifest.json").read_bytes())
    assert manifest["families"] == [FIRST, SECOND, THIRD]
    every = sorted(target for targets in TARGETS.values() for target in targets)
    for wheel in manifest["wheels"]:
        if wheel["kind"] != "jaxlib":
            assert sorted(wheel["gfx_targets"]) == every
    ended = re.findall(r"^ +(\w+)\.miniature\S*: [\w -]+ after ", done.stderr, re.MULTILINE)
    assert Counter(ended) == {"build": 1, "gate": 4, "promote": 3}


def test_the_demo_says_which_family_has_it_and_keeps_each_wheel_once(three, release):
    _, done, _ = three
    url = (release.store / "v2").as_uri()
    assert done.document["families"] == {
        FIRST: {"released": True, "index": f"{url}/{FIRST}/"},
        SECOND: {"released": False, "index": f"{url}/{SECOND}/"},
        THIRD: {"released": True, "index": f"{url}/{THIRD}/"},
    }
    assert done.document["index"] == f"{url}/{FIRST}/"
    assert [item["python"] for item in done.document["installed"]] == [PYTHON]
    staged, released = (release.wheels(prefix) for prefix in ("v2-staging", "v2"))
    assert sorted(key.rpartition("/")[2] for key in staged) == sorted(release.names)
    assert staged.keys() == released.keys()
    page = Path(done.document["page"]).read_text()
    told = page[page.index('<ul class="families">') : page.index('<h2 id="trend"')]
    of = dict(re.findall(r'#family-([\w-]+)">.*?</h3>(.*?)</li>', told, re.DOTALL))
    assert {name: "<p>Released: " in text for name, text in of.items()} == {
        FIRST: True, SECOND: False, THIRD: True,
    }  # fmt: skip
    assert "miniature_gpu on 3.11: fail" in of[SECOND]
    assert (release.told(FIRST), release.told("all")) == ([FIRST], [])


def test_before_a_gate_nothing_is_seen_and_a_refused_promotion_shows_nothing(release):
    store = release.world.folder / "other"
    other = Release(release.world, store, json.loads(release_document(release)))
    other.run("stage", "wheelhouse/current", "--family=all")
    refused = other.run("promote", f"--manifest={other.manifest}", "--family=all", code=9).document
    assert {item["state"] for item in refused["families"].values()} == {"blocked"}
    assert other.seen() == NOTHING
    assert not other.wheels("v2")


def release_document(release: Release) -> str:
    """The wheels as the build named them."""
    manifest = json.loads((release.world.wheelhouse / "current" / "manifest.json").read_bytes())
    return json.dumps({"manifest_sha256": release.manifest, "wheels": manifest["wheels"]})


def test_a_family_that_failed_is_kept_from_it_then_added_and_another_taken_back(release, mended):
    of, reason = f"--manifest={release.manifest}", "--reason=a card was dead"
    assert release.seen() == {FIRST, THIRD}

    # its gate failed on these bytes: it stays out until a person says why that is no matter
    again = release.run("promote", of, "--family=all", code=9).document["families"]
    assert {name: item["released"] for name, item in again.items()} == {
        FIRST: True, SECOND: False, THIRD: True,
    }  # fmt: skip
    (cell,) = again[SECOND]["blocked_by"]
    assert (cell["suite"], cell["state"]) == ("miniature_gpu", "fail")

    suite = ("--suite=miniature_gpu", f"--python={PYTHON}", f"--family={SECOND}")
    tarball = next((release.world.cache / "demo").glob("*/therock-dist-*.tar.gz"))
    release.run("gate", of, *suite, f"--rocm={tarball}", "--output=results", **mended)
    flaky = release.run("promote", of, "--family=all", code=9, **mended).document["families"]
    assert flaky[SECOND]["blocked_by"][0]["state"] == "flaky"
    assert release.seen() == {FIRST, THIRD}

    wheels, entries = release.wheels("v2"), release.log()
    approved = (f"--approve=miniature_gpu:{PYTHON}", "--by=ann", reason)
    added = release.run("promote", of, f"--family={SECOND}", *approved, **mended).document
    assert added["families"][SECOND]["state"] == "published"
    assert release.seen() == {FIRST, SECOND, THIRD, "all"}
    assert release.log() == entries + 1
    assert release.wheels("v2") == wheels, "nothing was copied again"
    assert release.told("all") == [FIRST, SECOND, THIRD]
    release.run("nightly", "report")
    page = (release.store / "status" / "index.html").read_text()
    url = f"{release.store.as_uri()}/v2/all/"
    assert page.count(f"{url} jax-rocm7-pjrt") >= 3, "one URL for all of them"

    release.run("rollback", of, f"--family={FIRST}", reason)
    assert release.seen() == {SECOND, THIRD}, "`all` needs what all must have"
    assert release.wheels("v2") == wheels, "two families install these bytes"
    assert [release.told(view) for view in (FIRST, SECOND, "all")] == [[], [SECOND], []]
    states = {
        name: release.run("status", f"--family={name}").document["sets"][0]["state"]
        for name in TARGETS
    }
    assert states == {FIRST: "rolled back", SECOND: "released", THIRD: "released"}

    release.run("restore", of, f"--family={FIRST}", reason)
    assert release.seen() == {FIRST, SECOND, THIRD, "all"}


def test_the_dry_run_names_the_families_and_other_numbers_are_refused(three):
    world, *_ = three
    several = world.run("--dry-run", "demo", "--families=2", f"--python-versions={PYTHON}")
    assert several.returncode == 0, several.stderr
    assert f"# stage once, gate for each of {FIRST}, {SECOND}, promote" in several.stdout
    assert "gfx1100" not in several.stdout
    wrong = world.run("demo", "--families=4")
    assert wrong.returncode == 2
    assert "'4'" in wrong.stderr
