"""What tests run with: which ROCm a gate brings, and what it asks uv to install beside it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from support.gate import here
from support.wheelset import make_set

from rocwheel.base.errors import WheelError
from rocwheel.base.store.opening import open_store
from rocwheel.base.versions import PythonVersion
from rocwheel.gate import environment, subject
from rocwheel.gate.environment import NO_ROCM, Provided
from rocwheel.gate.request import DeviceChoice
from rocwheel.gate.subject import WheelsUnderTest
from rocwheel.records.places import Place
from rocwheel.records.verdict import RocmProvided

PYTHON = PythonVersion.parse("3.12")


@pytest.mark.parametrize("stored", [True, False])
def test_a_manifests_wheels_are_installed_from_files_by_hash(tmp_path, stored):
    manifest = make_set(tmp_path, upstream_jaxlib=True)
    place = Place(store=open_store(tmp_path.as_uri()), root="v2-staging/x", family="x")
    wheels = subject.of_manifest(manifest, PYTHON, place if stored else tmp_path)
    brought = Path("/env/wheels")
    lines = [wheels.requirement(wheel, brought) for wheel in wheels.wheels]
    built = {w.filename for w in manifest.built if w.python in ("", "3.12")}
    assert set(wheels.stored) == (built if stored else set())
    assert len(lines) == 3
    for wheel in manifest.wheels:
        if wheel.python in ("", "3.12"):
            assert any(line.endswith(f" --hash=sha256:{wheel.sha256}") for line in lines)
    assert any(line.startswith("jaxlib==0.9.1 --hash=") for line in lines)
    folder = brought if stored else tmp_path
    assert sum(f"@ {folder.as_uri()}/" in line for line in lines) == 2
    with pytest.raises(WheelError, match=r"no CPython 3\.13"):
        subject.of_manifest(manifest, PythonVersion.parse("3.13"), tmp_path)


def test_everything_is_held_to_the_versions_of_the_set_and_of_an_earlier_run():
    names = ("jax-x-plugin", "jaxlib")
    wheels = WheelsUnderTest(
        jax_version="0.9.1",
        wheels=tuple(
            SimpleNamespace(project=name, version="0.9.1", sha256="a", origin="upstream")
            for name in names
        ),
        origin=Path("/wheels"),
    )
    request = SimpleNamespace(
        wheels=wheels, constraints=("numpy==2.0", "jaxlib==0.8.0"), requirements=("more==1",),
        suite=SimpleNamespace(with_jax=True, requirements=("pytest==9.1.1",)),
    )  # fmt: skip
    texts = environment.listed(request, Path("/w"), NO_ROCM)
    assert texts["others.txt"] == ["jax==0.9.1", "pytest==9.1.1", "more==1"]
    assert texts["constraints.txt"] == ["jax-x-plugin==0.9.1", "jaxlib==0.9.1", "numpy==2.0"]


DIGEST = "5" * 64
NAME = "therock-dist-linux-gfx90a-7.10.0.tar.gz"
PLACE = f"https://mirror.example/somewhere/else/{NAME}"


def asked(rocm="", *, device=DeviceChoice.FAMILY, origin="directory", beside="root", **changes):
    source = SimpleNamespace(
        origin=origin, name=NAME, sha256=DIGEST, version="7.10.0", delivery=None,
        url=PLACE if origin == "tarball" else "",
    )  # fmt: skip
    about = {
        "rocm": rocm, "device": device, "manifest": SimpleNamespace(rocm=source), "installed": None,
        "suite": SimpleNamespace(rocm=beside),
        "family": SimpleNamespace(targets=("gfx908", "gfx90a")), **changes,
    }  # fmt: skip
    return SimpleNamespace(**about)


BY_PIP = ",".join(
    f"rocm-sdk-{name}==7.10.0" for name in ("core", "libraries", "device-gfx908", "device-gfx90a")
)
MINE = "mine"  # a folder


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (asked(origin="tarball"), PLACE),
        (asked(origin="tarball"), DIGEST),
        (asked(MINE, origin="tarball"), MINE),
        (asked("pip:rocm==7.1"), "ROCm by pip: rocm==7.1"),
        (asked(device=DeviceChoice.CPU), "no ROCm"),
        (asked(origin="tarball", beside="pip"), f"ROCm by pip: {BY_PIP.replace(',', ', ')}"),
        (asked(MINE, origin="tarball", beside="pip"), MINE),
    ],
)
def test_it_is_the_manifests_rocm_unless_another_is_named_or_the_suite_is_for_users_of_pip(
    tmp_path, request_, said
):
    (tmp_path / MINE).mkdir()
    assert said in str(environment.rocm_of(request_, here(tmp_path)))


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
    tmp_path, text, version, requirements
):
    provided = environment.provide(asked(f"pip:{text}"), here(tmp_path))
    assert provided.record == RocmProvided(origin="pip", name=text, version=version)
    assert provided.requirements == requirements
    assert provided.env == ({"ROCWHEEL_ROCM_VERSION": version} if version else {})


def test_in_an_image_it_is_the_images_own(monkeypatch, tmp_path):
    """Which has no compiler, so it is no tree that could be fetched or checked."""
    (tmp_path / ".info").mkdir()
    (tmp_path / ".info" / "version").write_text("7.2.0\n")
    monkeypatch.setattr(environment, "IMAGE", tmp_path)
    provided = environment.provide(asked(installed=tmp_path), here(tmp_path))
    record = RocmProvided(origin="path", version="7.2.0", name=tmp_path.name)
    assert provided == Provided(record=record, root=tmp_path)
    assert provided.env == {"ROCM_PATH": str(tmp_path), "ROCWHEEL_ROCM_VERSION": "7.2.0"}
