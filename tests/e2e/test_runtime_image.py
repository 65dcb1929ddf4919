"""Runtime images on a real engine and registry: what users pull is what was tested.

With Podman in Docker's place:

    ROCWHEEL_RUNTIME_ENGINE=podman python3 tests/run.py tests/e2e/test_runtime_image.py
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import requests
from e2e.conftest import EXECUTABLE, ROOT
from support import engines, registries
from support.roles import private_bucket

pytestmark = [
    pytest.mark.needs(
        "bazel", "clang-19", "cc", "dockerd", "docker-registry", "mmdebstrap", "skopeo"
    ),
    pytest.mark.slow,
    pytest.mark.xdist_group("containers"),
    pytest.mark.timeout(1800),
]

MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
ENGINE = os.environ.get("ROCWHEEL_RUNTIME_ENGINE", "docker")
REPOSITORY = "rocwheel/miniature"
IMPORTS = (
    "import importlib, os, jaxlib; assert jaxlib.dot([1.0], [2.0]) == 2.0;"
    "assert os.path.exists(jaxlib.__cached__), 'compiled again by every user who may not write';"
    "e = importlib.import_module('jax_rocm7_plugin.rocm_plugin_extension');"
    "print(e.runtime_version() > 0, e.device_count())"
)


class Images:
    """A released set of the miniature, an engine, a registry, and the command between them."""

    def __init__(self, engine, registry, world, folder):
        self.engine, self.registry, self.world, self.folder = engine, registry, world, folder
        self.house = (world.wheelhouse / "current").resolve()
        self.store = world.wheelhouse / "demo" / "store"
        self.tarball = next((world.cache / "demo").glob("*/therock-dist-*.tar.gz"))
        self.target = [
            f"--store={self.store.as_uri()}",
            "--family=miniature",
            f"--family-file={ROOT / 'examples' / 'miniature' / 'families.yaml'}",
        ]

    def command(self, *arguments, ci: Path | None = None):
        chosen = [f"--ci-dir={ci}"] if ci else []
        return subprocess.run(
            [sys.executable, str(EXECUTABLE), *chosen, "--json", "runtime_images", *arguments],
            cwd=self.folder,
            env={**os.environ, **self.engine.env, "XDG_CACHE_HOME": str(self.folder / "cache")},
            capture_output=True,
            text=True,
            check=False,
            timeout=1700,
        )

    def make(self, *more, python: str = "3.11", ci: Path | None = None):
        return self.command(
            *self.target,
            f"--manifest={self.house / 'manifest.json'}",
            f"--python={python}",
            "--recipe=miniature",
            f"--container-engine={self.engine.kind}",
            f"--base-image={engines.BASE}",
            f"--rocm={self.tarball}",
            "--build-network=host",
            f"--slots={self.folder / 'slots'}",
            *more,
            ci=ci,
        )

    def tags(self, repository: str = REPOSITORY) -> dict[str, str]:
        """Every tag of a repository with the digest that it names."""
        base = f"http://{self.registry}/v2/{repository}"
        found = {}
        for tag in requests.get(f"{base}/tags/list", timeout=240).json().get("tags") or ():
            accept = {"Accept": ", ".join(MANIFESTS)}
            answer = requests.get(f"{base}/manifests/{tag}", headers=accept, timeout=240)
            found[tag] = f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
        return found


@pytest.fixture(scope="module")
def images(on_host, tmp_path_factory):
    folder = Path(tempfile.mkdtemp(prefix="rocwheel-runtime-"))
    with engines.ENGINES[ENGINE]() as engine, registries.serving(folder) as registry:
        engines.with_image(engine)
        # a store of its own: other tests read the demo's
        made = Images(engine, registry, on_host, folder)
        mine = tmp_path_factory.mktemp("released") / "store"
        shutil.copytree(made.store, mine)
        made.target[0] = f"--store={mine.as_uri()}"
        made.store = mine
        yield made
    shutil.rmtree(folder, ignore_errors=True)


def said(done, status: int = 0):
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout)


def record_in(folder: Path) -> dict:
    """The record of an image that lies in one registry."""
    (file,) = folder.glob("*/record.json")
    return json.loads(file.read_bytes())


@pytest.fixture(scope="module")
def untested(images):
    """The image as it was first made, which nobody tried."""
    for identity in set(images.engine("images", "--quiet", "localhost/rocwheel-runtime").split()):
        images.engine("rmi", "--force", identity)  # of an earlier session
    return said(images.make())


@pytest.fixture(scope="module")
def pushed(images, untested):
    return said(images.make("--test", f"--push={images.registry}", "--tag=latest"))


def test_an_untested_image_is_not_pushed(images, untested):
    assert untested["new"] is True
    refused = said(images.make(f"--push={images.registry}"), status=9)
    assert "miniature: never ran in this image" in refused["error"]["message"]
    assert requests.get(f"http://{images.registry}/v2/_catalog", timeout=240).json() == {
        "repositories": []
    }


def test_what_was_tried_is_what_is_pushed(images, untested, pushed):
    assert pushed["verdicts"] == [{"suite": "miniature", "state": "pass", "reason": ""}]
    assert pushed["config"] == untested["config"]
    assert pushed["new"] is False
    tags = images.tags()
    assert set(tags) == {"latest", "rocm7.10.0a20251120-jax0.11.99-py3.11"}
    assert len(set(tags.values())) == 1
    assert pushed["pull"].endswith(tags["latest"])


def test_the_verdict_is_of_its_own_kind_and_names_the_image(images, pushed):
    folder = images.store / "v2" / "miniature" / "_rocwheel" / "images" / pushed["config"][7:]
    (file,) = folder.glob("verdicts/miniature/*.json")
    verdict = json.loads(file.read_bytes())
    assert (verdict["kind"], verdict["image"]) == ("image", pushed["config"])
    assert verdict["verdict"]["counts"]["passed"] == 6
    record = record_in(folder)
    assert record["verdicts"] == [file.stem]
    assert record["released"] is True
    assert record["digest"] == images.tags()["latest"]


@pytest.fixture(scope="module")
def elsewhere(images):
    """An engine that has never seen anything."""
    with engines.ENGINES[ENGINE](images.folder / "elsewhere") as engine:
        yield engine


def layers(engine, name: str) -> list[str]:
    return engines.image_config(engine, name)["RootFS"]["Layers"]


def test_an_empty_engine_pulls_it_and_anybody_can_import(images, pushed, elsewhere):
    assert not elsewhere("images", "--quiet")
    plainly = ("--tls-verify=false",) if ENGINE == "podman" else ()
    elsewhere("pull", *plainly, pushed["pull"])
    uid = random.randrange(100_000, 1_000_000)
    answer = elsewhere(
        *("run", "--rm", "--network=none", f"--user={uid}:{uid}", pushed["pull"]),
        *("python", "-c", IMPORTS),
    )
    assert answer == "True 0"
    found = engines.image_config(elsewhere, pushed["pull"])
    assert found["Id"].removeprefix("sha256:") == pushed["config"].removeprefix("sha256:")
    assert found["Config"]["User"] == "10001:10001"
    labels = found["Config"]["Labels"]
    manifest = json.loads((images.house / "manifest.json").read_bytes())
    assert labels["org.rocwheel.released"] == "yes"
    assert labels["org.opencontainers.image.revision"] == manifest["jax"]["commit"]
    assert not elsewhere(
        *("run", "--rm", "--network=none", pushed["pull"]),
        *("sh", "-c", "command -v gcc cc clang make || true"),
    )


@pytest.mark.soak
def test_made_again_elsewhere_the_rocm_layer_is_the_same_bytes(images, pushed, elsewhere):
    before = layers(images.engine, pushed["local"])
    engines.hand_over(engines.BASE, images.engine, elsewhere)
    here, images.engine = images.engine, elsewhere
    try:
        again = said(images.make())
        assert again["new"] is True
        assert again["inputs"] == pushed["inputs"]
        known = images.tags()
        # unchanged inputs: what is there is the image, whoever made it
        same = said(images.make(f"--push={images.registry}"))
        assert same["pushed"] is False
        assert same["pull"] == pushed["pull"]
        assert images.tags() == known
    finally:
        images.engine = here
    after = layers(elsewhere, again["local"])
    base = len(layers(here, engines.BASE))
    # base, its packages, ROCm, CPython, wheels; Docker has a layer for the working folder, too
    assert len(after) == len(before) == base + (5 if ENGINE == "docker" else 4)
    assert after[base + 1] == before[base + 1]


@pytest.mark.soak
def test_a_library_that_is_left_out_fails_the_gate_by_name(images, pushed):
    made = said(images.make())
    name = made["local"]
    empty = images.folder / "empty"
    empty.mkdir()
    images.engine(
        *("build", "--network=host", "--tag", name, "--file=-", str(empty)),
        input=f"FROM {name}\nUSER 0\nRUN rm /opt/rocm/lib/libhipblas.so.3*\nUSER 10001\n",
    )
    try:
        failed = images.make("--test", f"--push={images.registry}")
        assert failed.returncode in range(21, 31), failed.stderr[-3000:]
        verdict = json.loads(failed.stdout)["verdicts"][0]
        assert verdict["state"] != "pass"
        assert "libhipblas.so.3" in verdict["reason"]
    finally:
        images.engine("rmi", "--force", name)


def test_an_image_above_its_budget_is_refused_before_the_push(images, pushed):
    ci = images.folder / "small" / "ci"
    shutil.copytree(ROOT / "ci", ci)
    file = ci / "images.yaml"
    file.write_text(file.read_text().replace("runtime: 1024", "runtime: 100"))
    refused = said(images.make("--test", f"--push={images.registry}", ci=ci), status=3)
    assert "its budget is 100" in refused["error"]["message"]


def test_a_list_has_the_image_and_the_line_that_pulls_it(images, pushed):
    listed = said(images.command("list", *images.target))["images"]
    assert pushed["pull"] in {item["pull"] for item in listed}


def test_a_tag_moves_to_an_image_that_was_pushed_before_and_nothing_is_built(images, pushed):
    again = said(images.make(f"--push={images.registry}", "--tag=stable"))
    assert (again["new"], again["pushed"], again["tags"]) == (False, False, ["stable"])
    assert images.tags()["stable"] == pushed["pull"].partition("@")[2]


@pytest.mark.soak
def test_a_set_that_is_only_staged_goes_elsewhere_and_says_so(images, pushed):
    unreleased = images.store.with_name("staged")
    shutil.copytree(images.store / "v2-staging", unreleased / "v2-staging")
    target, images.target = images.target, [f"--store={unreleased.as_uri()}", *images.target[1:]]
    try:
        refused = said(images.make("--test", f"--push={images.registry}"), status=3)
        assert "not released" in refused["error"]["message"]
        made = said(images.make("--unreleased", "--test", f"--push={images.registry}"))
        assert f"/{REPOSITORY}-staging@" in made["pull"]
        labels = engines.image_config(images.engine, made["local"])["Config"]["Labels"]
        assert labels["org.rocwheel.released"] == "no"
        moved = said(
            images.make("--unreleased", f"--push={images.registry}", "--tag=latest"), status=3
        )
        assert "not released" in moved["error"]["message"]
        assert "latest" not in images.tags(f"{REPOSITORY}-staging")
    finally:
        images.target = target


@pytest.mark.soak
def test_a_set_goes_from_staging_to_an_image_by_roles_in_a_bucket_that_strangers_may_not_read(
    images, tmp_path, monkeypatch
):
    with private_bucket(tmp_path, "miniature") as (url, environ):
        target = (f"--store={url}", *images.target[1:])

        def by(role: str, *words: str, status: int = 0):
            done = images.world.run("--json", *words, *target, **environ(role))
            assert done.returncode == status, done.stderr[-3000:]
            return json.loads(done.stdout) if done.stdout else {}

        def only(role: str, *words: str, other: str) -> None:
            refused = by(other, *words, status=7)
            assert "403 AccessDenied" in refused["error"]["message"]
            by(role, *words)

        wheels = json.loads((images.house / "manifest.json").read_bytes())
        set_id = hashlib.sha256((images.house / "manifest.json").read_bytes()).hexdigest()
        manifest = f"--manifest={set_id}"
        only("builder", "stage", str(images.house), other="runner")
        for python in wheels["pythons"]:
            by("runner", "gate", manifest, f"--python={python}", "--suite=miniature",
               f"--rocm={images.tarball}", f"--output={tmp_path / python}")  # fmt: skip
        only("promoter", "promote", manifest, other="builder")
        for key, value in environ("imager").items():
            monkeypatch.setenv(key, value)
        monkeypatch.setattr(images, "target", target)
        made = said(images.make("--test", f"--push={images.registry}", "--tag=private"))
        assert made["pull"].endswith(images.tags()["private"])
        (record,) = by("reporter", "runtime_images", "list")["images"]
        assert record["pull"] == made["pull"]
