"""A bucket that refuses anonymous requests, as every new one does: the way of a set through it.

The gate, runtime images and the resolver read wheels with the store's credentials, by digest; only
people and installers need a URL, which `serve` gives them.
"""

from __future__ import annotations

import os
import shutil
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from support import gate as machines
from support import night
from support.roles import private_bucket
from support.s3 import READER
from support.serving import serving
from support.wheelset import FAMILY, Shop, make_set, pass_gate, wheel_key

from rocwheel.base.errors import ObjectDiffersError
from rocwheel.base.here import Here
from rocwheel.base.home import Home
from rocwheel.base.process import Command, HostRunner, base_env
from rocwheel.base.store.opening import open_store
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion
from rocwheel.cli import main
from rocwheel.gate import run as gate
from rocwheel.gate import subject
from rocwheel.gate.engine.plan import Watcher
from rocwheel.gate.request import DeviceChoice, GateRequest
from rocwheel.gate.suite.suites import DEVICE_ERRORS, Deadlines, Suite, SuiteSource
from rocwheel.night import image_record as images
from rocwheel.records.verdict import State
from rocwheel.release import audit, rights
from rocwheel.release.index import channels
from rocwheel.release.ledger import log, manifests
from rocwheel.release.ledger.state import Standing

pytestmark = pytest.mark.integration

PYTHON = PythonVersion(major=3, minor=sys.version_info.minor)
SUITE = Suite(
    name="own",
    about="",
    source=SuiteSource(folder="suites/own", paths=("test_*.py",)),
    gpus=(0,),
    with_jax=False,
    select="",
    environment={},
    requirements=("pytest==9.1.1",),
    deadlines=Deadlines(test=300, shard=900, suite=900),
    must_run=1,
    may_skip=0,
    flaky_budget=0,
    retries=0,
    trace=False,
)


@pytest.fixture
def shop(servers, monkeypatch, console) -> Shop:
    for key, value in servers["seaweedfs"].environ().items():
        monkeypatch.setenv(key, value)
    return Shop(servers.fresh_url("seaweedfs"), console)


def answer(url: str) -> int:
    """The status of a request without credentials."""
    try:
        with urllib.request.urlopen(url) as found:
            return found.status
    except urllib.error.HTTPError as exc:
        return exc.code


def machine(folder: Path) -> Here:
    checkout = folder / "checkout"
    return machines.here(folder, home=Home(root=checkout, ci=checkout / "ci", tests=checkout))


def request_for(shop: Shop, manifest, folder: Path, wheels=None) -> GateRequest:
    tests = folder / "checkout" / "suites" / "own"
    tests.mkdir(parents=True, exist_ok=True)
    (tests / "test_it.py").write_text(
        "import jaxlib, jax_plugins.xla_rocm7\ndef test_it(): assert jaxlib.version\n"
    )
    ci = tests.parents[1] / "ci"
    ci.mkdir(exist_ok=True)
    shutil.copy(Path(__file__).parents[2] / "ci" / DEVICE_ERRORS, ci)
    return GateRequest(
        suite=SUITE,
        family=FAMILY,
        python=PYTHON,
        wheels=wheels or subject.of_manifest(manifest, PYTHON, shop.staging),
        manifest=manifest,
        output=folder / "out",
        device=DeviceChoice.CPU,
        lanes=1,
    )


def test_a_set_goes_all_the_way_through_a_bucket_that_strangers_may_not_read(
    shop, tmp_path, console, capsys
) -> None:
    manifest = make_set(tmp_path / "wh", pythons=(str(PYTHON),), loads=True)
    where = ("--store", shop.store.url, "--family", FAMILY.name)
    shop.stage(tmp_path / "wh")
    wheel = manifest.built[0]
    for name in (wheel.filename, f"{wheel.project}/index.html"):
        assert answer(shop.staging.served(shop.staging.key(name))) == 403, (
            "the premise of this test"
        )

    gated = gate.run(request_for(shop, manifest, tmp_path), machine(tmp_path), Watcher())
    assert gated.judged.state is State.PASS, gated
    assert gated.verdict.wheels == {w.filename: w.sha256 for w in manifest.wheels}
    assert list((tmp_path / "cache").rglob("*.whl")) == [], "installed; the files need not stay"

    pass_gate(shop.staging, manifest)  # as a runner of the family would have
    assert main(["promote", "--manifest", manifest.sha256, *where]) == 0
    assert main(["index", "check", *where]) == 0
    assert main(["status", *where]) == 0
    capsys.readouterr()

    brought = manifests.bring(
        shop.release, {w.filename: w.sha256 for w in manifest.built}, tmp_path / "image"
    )
    assert {path.name for path in brought} == {w.filename for w in manifest.built}
    runner = HostRunner(base_env(os.environ))
    upstream = (tmp_path / "empty").as_uri()
    chosen = audit.resolve(
        shop.release, upstream=upstream, python=Path(sys.executable), runner=runner
    )
    assert chosen == []
    with serving(shop.store) as site:
        index = f"{site.url}{shop.release.index}/"
        installed = Command(
            argv=(
                sys.executable, "-m", "pip", "install", "--quiet", "--isolated", "--no-cache-dir",
                "--target", str(tmp_path / "target"), "--index-url", index,
                f"{wheel.project}=={wheel.version}",
            )
        )  # fmt: skip
        runner.run(installed)
    assert (tmp_path / "target" / "jaxlib").is_dir()


def test_a_gate_that_may_not_read_the_wheels_says_403_before_anything_else(
    shop, servers, tmp_path, console, monkeypatch
) -> None:
    manifest = shop.staged(tmp_path / "wh", pythons=(str(PYTHON),))
    for key, value in servers["seaweedfs"].environ(READER, "another secret").items():
        monkeypatch.setenv(key, value)
    place = replace(shop.staging, store=open_store(shop.store.url))
    request = request_for(
        shop, manifest, tmp_path, wheels=subject.of_manifest(manifest, PYTHON, place)
    )
    gated = gate.run(request, machine(tmp_path), Watcher())
    assert gated.judged.state is State.INFRA
    assert gated.verdict.reason.startswith("403 SignatureDoesNotMatch for s3://"), gated.judged
    assert "credentials" in gated.error.hint


def test_what_is_brought_has_the_manifests_digest_or_does_not_stay(shop, tmp_path) -> None:
    manifest = shop.staged(tmp_path / "wh", pythons=(str(PYTHON),))
    wheel = manifest.built[0]
    odd = shop.staging.wheel(wheel.filename, "0" * 64)
    path = tmp_path / "wh" / wheel.filename
    shop.store.create(odd, path, headers=shop.staging.wheel_headers)
    with pytest.raises(ObjectDiffersError, match=wheel.sha256):
        manifests.bring(shop.staging, {wheel.filename: "0" * 64}, tmp_path / "bad")
    assert list((tmp_path / "bad").iterdir()) == []
    folder = tmp_path / "good"
    manifests.bring(shop.staging, {wheel.filename: wheel.sha256}, folder)
    (folder / wheel.filename).write_bytes(b"damaged")
    (path,) = manifests.bring(shop.staging, {wheel.filename: wheel.sha256}, folder)
    assert path.read_bytes() == (tmp_path / "wh" / wheel.filename).read_bytes()


ROLES = tuple(rights.ROLES)


class OneFamily(night.World):
    """A world whose roles have the rights of one family alone."""

    def remember(self, *_families: str) -> None:
        super().remember(FAMILY.name)


@pytest.mark.soak
def test_each_role_runs_its_cells_of_a_whole_night_and_no_others(tmp_path, monkeypatch) -> None:
    """From plan to page: what takes a GPU, an engine or hours is played, with real records."""
    roles = {
        "build": "builder", "gate": "runner", "promote": "promoter",
        "image": "imager", "prune": "promoter", "page": "reporter",
    }  # fmt: skip
    with private_bucket(tmp_path) as (url, environ):

        def become(name: str) -> None:
            for key, value in environ(name).items():
                monkeypatch.setenv(key, value)

        become("builder")  # who may write below verdicts here: this server knows no deny
        world = OneFamily(tmp_path / "world", url)
        settings = (world.folder / "nightly.yaml").read_text()
        world.settings(settings + "images: [{recipe: jax, push: here.io}]\n")
        become("reporter")
        assert world.plan("one").code == 7
        become("builder")
        world.plan("one", check=True)
        cells = sorted(world.states("one"), key=lambda name: [*roles].index(name.partition(".")[0]))
        assert {name.partition(".")[0] for name in cells} == {*roles}
        for name in cells:
            role = roles[name.partition(".")[0]]
            for other in ("reporter" if role == "builder" else "builder", role):
                become(other)
                done = world.nightly("cell", "one", name, f"--program={night.PROGRAM}")
                assert done.code == (0 if other == role else 7), f"{other}: {name}: {done.err}"
                assert other == role or "403 AccessDenied" in done.err
        for reader in ROLES:
            become(reader)
            assert set(world.states("one").values()) == {"pass"}
        where = ("--store", url, "--family", FAMILY.name)
        assert [main([*words, *where]) for words in (["status"], ["index", "check"])] == [0, 0]
        place = channels.of_store(url).pairs(open_store(url), FAMILY.name, 7)[0][1]
        (known,) = log.read(place).sets.values()
        assert known.standing is Standing.LISTED
        assert [made.manifest for made in images.records(place)] == [known.id]
        assert answer(f"{place.url}jaxlib/index.html") == 403, "strangers may not read"


def test_a_public_bucket_is_a_case_of_its_own(servers, tmp_path, monkeypatch, console) -> None:
    for key, value in servers["public"].environ().items():
        monkeypatch.setenv(key, value)
    shop = Shop(servers.fresh_url("public"), console)
    manifest = shop.staged(tmp_path / "wh", pythons=(str(PYTHON),))
    assert answer(shop.staging.served(wheel_key(shop.staging, manifest.built[0].filename))) == 200
