"""Which ROCm a gate brings, and what a test process is told of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rocwheel.base.errors import ConfigError
from rocwheel.gate import provisioning
from rocwheel.gate.request import DeviceChoice
from rocwheel.records.verdict import RocmProvided

DIGEST = "5" * 64
PLACE = "https://mirror.example/somewhere/else"


def asked(rocm="", *, device=DeviceChoice.FAMILY, origin="directory", beside="root"):
    url = f"{PLACE}/therock-dist-linux-gfx90a-7.10.0.tar.gz" if origin == "tarball" else ""
    source = SimpleNamespace(
        origin=origin, name="therock-dist-linux-gfx90a-7.10.0.tar.gz", sha256=DIGEST,
        version="7.10.0", url=url, delivery=None,
    )  # fmt: skip
    return SimpleNamespace(
        rocm=rocm, device=device, manifest=SimpleNamespace(rocm=source), key="smoke on gfx90a", installed=None,
        suite=SimpleNamespace(rocm=beside), family=SimpleNamespace(targets=("gfx908", "gfx90a")),
    )  # fmt: skip


@pytest.fixture
def host(tmp_path):
    return SimpleNamespace(cache=tmp_path / "cache", cwd=tmp_path, environ={})


def test_by_default_it_is_the_manifests_tarball_by_its_digest(host):
    said = provisioning.describe(asked(origin="tarball"), host)
    assert f"{PLACE}/therock-dist-linux-gfx90a-7.10.0.tar.gz" in said
    assert DIGEST in said


def test_what_is_named_comes_before_the_manifests(host, tmp_path):
    (tmp_path / "mine").mkdir()
    assert str(tmp_path / "mine") in provisioning.describe(asked("mine", origin="tarball"), host)
    assert provisioning.describe(asked("pip:rocm==7.1"), host) == "ROCm by pip: rocm==7.1"


def test_no_gpu_of_the_family_needs_no_rocm(host):
    assert provisioning.describe(asked(device=DeviceChoice.CPU), host) == "no ROCm"


def test_where_nobody_said_which_it_is_an_error_and_not_a_guess(host):
    with pytest.raises(ConfigError, match="which ROCm"):
        provisioning.describe(asked(origin="directory"), host)


def test_a_suite_for_users_of_pip_has_the_manifests_version_by_pip(host, console, tmp_path):
    names = ("core", "libraries", "device-gfx908", "device-gfx90a")
    packages = tuple(f"rocm-sdk-{name}==7.10.0" for name in names)
    by_pip = asked(origin="tarball", beside="pip")
    assert provisioning.describe(by_pip, host) == f"ROCm by pip: {','.join(packages)}"
    provided = provisioning.provide(by_pip, host, console)
    assert provided.record == RocmProvided(origin="pip", name=",".join(packages), version="7.10.0")
    assert (provided.requirements, provided.root) == (packages, None)
    (tmp_path / "mine").mkdir()
    mine = provisioning.describe(asked("mine", origin="tarball", beside="pip"), host)
    assert str(tmp_path / "mine") in mine


@pytest.mark.parametrize(
    ("text", "version", "requirements"),
    [
        ("rocm[libraries]==7.10.0", "7.10.0", ("rocm[libraries]==7.10.0",)),
        ("rocm==7.1,rocm-sdk-core==7.1", "7.1", ("rocm==7.1", "rocm-sdk-core==7.1")),
        ("rocm", "", ("rocm",)),
        ("rocm==7.*", "", ("rocm==7.*",)),
        ("rocm,other==3", "", ("rocm", "other==3")),
        (
            "rocm[libraries,device-gfx942]==7.15.0a20260630,a[b,c]",
            "7.15.0a20260630",
            ("rocm[libraries,device-gfx942]==7.15.0a20260630", "a[b,c]"),
        ),
        ("rocm>=7.10,<8", "", ("rocm>=7.10,<8",)),
        ("rocm[libraries]==7.10,!=7.11", "", ("rocm[libraries]==7.10,!=7.11",)),
    ],
)
def test_pip_packages_say_their_version_where_they_are_pinned(
    host, console, text, version, requirements
):
    provided = provisioning.provide(asked(f"pip:{text}"), host, console)
    assert provided.record == RocmProvided(origin="pip", name=text, version=version)
    assert provided.requirements == requirements
    told = {"ROCWHEEL_ROCM_VERSION": version} if version else {}
    assert provisioning.env(provided) == told


def test_a_process_is_told_of_the_tree_and_its_version():
    record = RocmProvided(origin="path", version="7.10.0")
    provided = provisioning.Provided(record=record, root=Path("/rocm"))
    assert provisioning.env(provided) == {
        "ROCM_PATH": "/rocm",
        "ROCWHEEL_ROCM_VERSION": "7.10.0",
    }


def test_in_an_image_it_is_the_images_own(monkeypatch, tmp_path, host):
    """Which has no compiler, so it is no tree that could be fetched or checked."""
    (tmp_path / ".info").mkdir()
    (tmp_path / ".info" / "version").write_text("7.2.0\n")
    monkeypatch.setattr(provisioning, "IMAGE", tmp_path)
    asked = SimpleNamespace(rocm="", device=DeviceChoice.FAMILY, manifest=None, installed=tmp_path)
    provided = provisioning.provide(asked, host, None)
    assert (provided.record.origin, provided.record.version) == ("path", "7.2.0")
    assert provisioning.env(provided)["ROCM_PATH"] == str(tmp_path)
