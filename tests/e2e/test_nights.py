"""Nights of the miniature in a bucket of a real S3 server: real wheels, real gates, pip and uv.

Nothing is played here: Bazel builds, the suite of `ci/suites/miniature.yaml` runs the wheels, and
the store is SeaweedFS, which refuses anonymous requests: people and installers read it through
`serve`. A change of the workspace makes a set that is really broken.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import pytest
from e2e.conftest import World, interpreter
from e2e.test_faults import WORKSPACE
from support import slurm
from support.roles import private_bucket
from support.s3 import program
from support.serving import serving

from rocwheel.base.store.opening import open_store

pytestmark = [
    pytest.mark.needs("bazel", "clang-19", "cc", *slurm.PROGRAMS),
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.xdist_group("demo"),
]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SETTINGS = """
sets:
  - name: {name}
    source_dir: {source}
    pythons: ["{python}"]
    families: [{families}]
    rocm: {{source: {tarball}}}
    options:
      - --jaxlib=built
      - --allow-dirty
      - --wheel-suffix=+rocm7.10.0.{number}
      - --bazel-startup-options=--bazelrc=bazel/debian.bazelrc
      - --bazel-options=--repo_env=MINIATURE_PYTHON_{underlined}={executable}
build: {{cpus: 1, memory_mib: 1024, disk_mib: 100, hours: 1}}
gate: {{cpus: 1, memory_mib: 512, disk_mib: 100, hours: 1}}
"""
FAMILIES = """
families:
  - name: miniature
    about: any machine
    targets: [gfx90a, gfx942, gfx1100, gfx1201]
    suites: {miniature: required}
    runners: [any-machine]
    proof: {backend: cpu, devices: false, rocm: true, official: false}
  - name: other
    about: a family whose machines are away
    targets: [gfx90a]
    suites: {miniature: required}
    proof: {backend: cpu, devices: false, rocm: true, official: false}
"""
KEPT = {"kept: released": "pass"}  # what was released had passed
BYPASS = "    bypass: {owner: us, reason: machines move, expires: %s}\n"


@dataclass
class Show:
    """A store, a channel of nights in it, and what one sees of them."""

    world: World
    store: str
    http: str  # URL of the store, as installers read it
    tarball: Path

    def __post_init__(self) -> None:
        self.families_file.write_text(FAMILIES)

    @property
    def families_file(self) -> Path:
        return self.world.folder / "families.yaml"

    @property
    def families(self) -> str:
        return f"--family-file={self.families_file}"

    def ask(self, *words: str, code: int = 0) -> dict:
        done = self.world.run("--json", *words, f"--store={self.store}")
        assert done.returncode == code, done.stderr[-4000:]
        return done.document if done.stdout else {}

    def plan(
        self, night: str, number: int, families: str = "miniature, other", source: Path = WORKSPACE
    ) -> dict:
        config = self.world.folder / f"{night}.yaml"
        text = SETTINGS.format(
            name="set", families=families, source=source, python=PYTHON, underlined=PYTHON.replace(".", "_"),
            tarball=self.tarball, number=number, executable=interpreter(PYTHON),
        )  # fmt: skip
        config.write_text(text)
        return self.ask("nightly", "plan", f"--night={night}", f"--config={config}", self.families)

    def states(self, night: str) -> dict[str, str]:
        done = self.world.run("--json", "nightly", "status", night, f"--store={self.store}")
        return {cell["cell"]: cell["state"] for cell in done.document["cells"]}

    def sets(self, family: str) -> list[dict]:
        return self.ask("status", f"--family={family}", self.families)["sets"]

    def page(self) -> str:
        """The page, made again: what a person did after the night is on it."""
        self.ask("nightly", "report", self.families)
        with urllib.request.urlopen(f"{self.http}/status/index.html") as answer:
            return answer.read().decode()

    def listed(self, family: str) -> set[str]:
        """Versions of the plugin that installers may choose: listed and not yanked."""
        url = f"{self.http}/v2/{family}/jax-rocm7-plugin/index.html"
        try:
            with urllib.request.urlopen(url) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError:
            return set()
        files = re.findall(r"<a\s([^>]*)>\s*jax_rocm7_plugin-([^<-]+)-", text)
        return {version for about, version in files if "data-yanked" not in about}

    def agree(self, night: str) -> str:
        """Page, `nightly status`, `status` and index say the same of every cell; the page."""
        page, states = self.page(), self.states(night)
        promotions = [name for name in states if name.startswith("promote.")]
        for family in sorted({name.rpartition(".")[2] for name in promotions}):
            section = page.partition(f'id="family-{family}">')[2].partition("</section>")[0]
            shown = dict(
                re.findall(
                    r'<th scope="row">([\w-]+)</th>\s*<td>.*?<span class="s \w+">([\w-]+)<',
                    section, re.DOTALL,
                )
            )  # fmt: skip
            cells = {
                name.split(".")[-1]: KEPT.get(state, state.removeprefix("kept: "))
                for name, state in states.items()
                if name.startswith(f"gate.set.{family}.")
            }
            assert shown == cells, family
            found = self.sets(family)
            green = [s for s in found if s["state"] == "released" and s["yanked"] < s["files"]]
            assert len(self.listed(family)) == len(green), family
            head = page.partition(f'<a href="#family-{family}">')[2].partition("</li>")[0]
            assert ("Nothing released." in head) == (not green), family
            newer = found[: found.index(green[0])] if green else found  # the youngest first
            held = [s for s in newer if s["blocked_by"]]
            assert ("Held up" in head) == bool(held), family
            if held:
                first = held[0]["blocked_by"][0]
                assert f"{first['suite']} on {first['python']}: {first['state']}" in head
            if green:
                newest = max(green, key=lambda item: item["released"])
                assert newest["released"] in head, "the newest green set"
            promoted = states[f"promote.set.{family}"].removeprefix("kept: ")
            newest_set = min(found, key=lambda item: item["age_seconds"])
            assert (promoted in {"pass", "released"}) == (newest_set["state"] == "released")
        return page


@pytest.fixture
def show(demo, tmp_path, servers):
    shared, _ = demo
    server = servers["seaweedfs"]
    env = {**server.environ(), "XDG_CACHE_HOME": str(shared.folder / "cache")}
    world = World(tmp_path, env=env)
    url = servers.fresh_url("seaweedfs")
    tarball = next((shared.cache / "demo").glob("*/therock-dist-*.tar.gz"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environ().items():
            patch.setenv(name, value)
        with serving(open_store(url)) as site:
            yield Show(world, url, site.url.rstrip("/"), tarball)


def installed(show: Show, family: str, installer: str) -> str:
    """Version of the plugin that an installer takes from the released index by itself."""
    # a new folder each time: an installer leaves what satisfies it already
    target = Path(tempfile.mkdtemp(prefix=f"{installer}-{family}-", dir=show.world.folder))
    index = f"{show.http}/v2/{family}/"
    line = {
        "pip": [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check"],
        "uv": [program("uv"), "--no-config", "pip"],
    }[installer]
    more = [f"--python={sys.executable}", "--no-cache"] if installer == "uv" else ["--no-cache-dir"]
    done = subprocess.run(
        [*line, "install", f"--index-url={index}", f"--target={target}", *more, "jax-rocm7-plugin",
         "jaxlib"],
        env={**os.environ, "HOME": str(target)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    code = (
        "import jaxlib; from importlib.metadata import version; print(version('jax-rocm7-plugin'))"
    )
    again = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(target)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    return again.stdout.strip()


def test_green_then_broken_then_one_family_held_then_a_bypass_then_a_yank_and_a_rollback(
    show, tmp_path
):
    show.plan("one", 1, "miniature")
    show.ask("nightly", "run", "one")
    show.agree("one")
    assert show.listed("miniature") == {"0.11.99+rocm7.10.0.1"}

    broken = tmp_path / "broken"
    shutil.copytree(WORKSPACE, broken, ignore=shutil.ignore_patterns("bazel-*"))
    source = broken / "jaxlib" / "_jax.cc"
    source.write_text(source.read_text().replace("double sum = 0;", "double sum = 1;"))
    show.plan("two", 2, source=broken)
    show.ask("nightly", "run", "two", code=5)
    page = show.agree("two")
    assert show.states("two")[f"gate.set.miniature.{PYTHON}.miniature"] == "fail"
    assert "new failure" in page
    assert "no-runner" in page, "the other family has none, and no bypass"
    assert "test_jaxlib_computes" in page, "it says why"
    assert show.listed("miniature") == {"0.11.99+rocm7.10.0.1"}, "nothing was promoted"

    past, future = (date.today() + timedelta(days=days) for days in (-1, 30))  # noqa: DTZ011
    show.families_file.write_text(FAMILIES + BYPASS % past)
    with slurm.cluster(tmp_path / "slurm") as cluster:
        show.world.env |= cluster.env
        show.plan("three", 3)
        show.ask("nightly", "run", "three", "--engine=slurm")
        cluster.idle(900)
        page = show.agree("three")
    assert "fixed" in page
    assert show.listed("miniature") == {"0.11.99+rocm7.10.0.1", "0.11.99+rocm7.10.0.3"}
    assert not show.listed("other"), "one family is held, the other was promoted"
    (held,) = [s for s in show.sets("other") if s["set"] == show.sets("miniature")[0]["set"]]
    assert "expired" in json.dumps(held["blocked_by"])

    show.families_file.write_text(FAMILIES + BYPASS % future)
    show.plan("four", 3)
    show.ask("nightly", "run", "four")
    page = show.agree("four")
    assert show.listed("other") == {"0.11.99+rocm7.10.0.3"}
    idle = show.plan("five", 3)
    assert idle["run"] == 2, "the page is left to make, and pruning looks every night"
    for installer in ("pip", "uv"):
        assert installed(show, "miniature", installer) == "0.11.99+rocm7.10.0.3"

    newest = show.sets("miniature")[0]["set"]
    manifest, why = f"--manifest={newest}", "--reason=wrong numbers"
    show.ask("yank", manifest, "--family=miniature", show.families, why)
    after_yank = show.page()
    assert show.listed("miniature") == {"0.11.99+rocm7.10.0.1"}
    assert "plugin==0.11.99+rocm7.10.0.1" in after_yank
    assert installed(show, "miniature", "uv") == "0.11.99+rocm7.10.0.1"
    show.ask("rollback", manifest, "--family=other", show.families, why)
    page = show.page()
    assert not show.listed("other")
    head = page.partition('<a href="#family-other">')[2].partition("</li>")[0]
    assert "Nothing released." in head


@pytest.mark.soak
def test_each_role_runs_its_cells_of_a_real_night_in_a_bucket_that_strangers_may_not_read(
    demo, tmp_path, monkeypatch
):
    """Build, stage, gate, promote, page: each with the credentials of its role, and no other's."""
    shared, _ = demo
    roles = {"build": "builder", "gate": "runner", "promote": "promoter",
             "prune": "promoter", "page": "reporter"}  # fmt: skip
    with private_bucket(tmp_path, "miniature") as (url, environ):
        world = World(tmp_path, env={"XDG_CACHE_HOME": str(shared.folder / "cache")})
        tarball = next((shared.cache / "demo").glob("*/therock-dist-*.tar.gz"))
        show = Show(world, url, "", tarball)

        def become(role: str) -> None:
            world.env |= environ(role)

        become("builder")
        show.plan("one", 1, "miniature")
        cells = [item["cell"] for item in show.ask("nightly", "status", "one")["cells"]]
        ran = []
        for kind, role in roles.items():
            for name in [cell for cell in cells if cell.partition(".")[0] == kind]:
                line = ("nightly", "cell", "one", name)
                become("imager")  # who may write none of these
                show.ask(*line, code=7)
                become(role)
                show.ask(*line)
                ran.append(name)
        assert sorted(ran) == sorted(cells)
        assert {name.partition(".")[0] for name in ran} == roles.keys()
        become("reporter")
        (only,) = show.sets("miniature")
        assert only["state"] == "released"
        assert set(show.states("one").values()) == {"pass"}
        for key, value in environ("reporter").items():
            monkeypatch.setenv(key, value)
        with serving(open_store(url)) as site:
            stranger = f"{environ('reporter')['AWS_ENDPOINT_URL_S3']}/{url.removeprefix('s3://')}"
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(f"{stranger}/v2/miniature/jaxlib/index.html")
            show.http = site.url.rstrip("/")
            assert installed(show, "miniature", "pip") == "0.11.99+rocm7.10.0.1"
