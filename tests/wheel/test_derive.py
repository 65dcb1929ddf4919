"""A set made from a set: `wheel reversion` and `wheel retag` of a wheelhouse."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import uv
from support import wheels
from support.mutants import Draft
from support.wheels import POLICY

from rocwheel.base.values import canonical_json, replace
from rocwheel.cli import main
from rocwheel.records.install import Install
from rocwheel.records.manifest import MANIFEST, Manifest
from rocwheel.release import wheelset
from rocwheel.wheel.verify import verify_wheelhouse
from rocwheel.wheel.zip_reader import ZipArchive


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """A release candidate, as `dist_wheels` leaves it."""
    folder = tmp_path / "candidate"
    folder.mkdir()
    made = (wheels.plugin, wheels.pjrt, wheels.jaxlib)
    paths = [each(version="0.9.1rc1").write(folder) for each in made]
    manifest = wheels.manifest(*paths)
    entries = [
        replace(each, python="" if each.kind == "pjrt" else "3.12") for each in manifest.wheels
    ]
    manifest = replace(manifest, jax_version="0.9.1rc1", wheels=tuple(entries))
    (folder / MANIFEST).write_bytes(manifest.to_bytes())
    return folder


def derived(parent: Path, *words: str) -> Path:
    output = parent.parent / "final"
    assert main(["wheel", words[0], str(parent), *words[1:], "--output", str(output)]) == 0
    return output / "current"


def test_a_final_is_made_of_a_candidate_without_a_build(parent: Path) -> None:
    """https://github.com/ROCm/TheRock/issues/4162: the tested content, under the final's name."""
    before = Manifest.load(parent)
    folder = derived(parent, "reversion", "--version", "0.9.1")
    manifest, paths = wheelset.load(folder)
    wheelset.check_complete(manifest)
    wheelset.check_closed(manifest, {n: wheelset.read_metadata(p) for n, p in paths.items()})
    assert (manifest.jax_version, {each.version for each in manifest.wheels}) == (
        "0.9.1",
        {"0.9.1"},
    )
    assert manifest.parent is not None
    assert (manifest.parent.manifest, manifest.parent.by) == (before.sha256, "reversion")
    origins = manifest.parent.wheels.values()
    assert {(each.filename, each.sha256) for each in origins} == {
        (each.filename, each.sha256) for each in before.wheels
    }
    assert manifest.rocm == before.rocm
    found = verify_wheelhouse(folder, manifest, policy=POLICY)
    assert [item.message for each in found.values() for item in each] == []


@pytest.mark.integration
def test_a_wheelhouse_says_how_exactly_its_set_is_installed(
    parent: Path, tmp_path: Path, capsys
) -> None:
    """https://github.com/ROCm/jax/issues/90: `--find-links` alone takes newer wheels of an index."""
    folder = derived(parent, "reversion", "--version", "0.9.1")
    manifest = Manifest.load(folder)
    newer = wheels.plugin(version="0.9.2").write(folder)  # nobody's wheel beside them
    printed = capsys.readouterr().out.splitlines()
    assert printed[1] == Install.of(manifest, "", folder=str(folder.resolve())).pip[0]
    assert printed[2] == "pip install jax==0.9.1"
    lines = Install.of(manifest, "", folder=str(folder))
    target = ("--python-version", "3.12", "--only-binary=:all:")
    for line, more in (
        (lines.pip[0], ("--platform=manylinux_2_28_x86_64", "--platform=manylinux_2_27_x86_64")),
        (lines.uv[0], ("--python-platform=x86_64-manylinux_2_40",)),
    ):
        client, *words = shlex.split(line)
        program = [uv.find_uv_bin()] if client == "uv" else [sys.executable, "-m", "pip"]
        into = tmp_path / client
        argv = [*program, *words, *target, *more, "--target", str(into)]
        subprocess.run(argv, check=True, capture_output=True)
        installed = {path.name for path in into.glob("*.dist-info")}
        assert installed == {
            f"{name}-0.9.1.dist-info" for name in ("jax_rocm7_plugin", "jax_rocm7_pjrt", "jaxlib")
        }
    assert newer.exists()


def test_a_set_gets_another_platform_and_keeps_its_cpythons(parent: Path, capsys) -> None:
    folder = derived(parent, "retag", "--platform-tag", "manylinux_2_31_x86_64")
    manifest, _ = wheelset.load(folder)
    assert manifest.parent is not None
    assert manifest.parent.by == "retag"
    assert manifest.jax_version == "0.9.1rc1"
    words = ["wheel", "retag", str(parent), "--python-tag=cp313", "--output", str(parent.parent)]
    assert main(words) == 2
    assert "a set keeps its CPythons" in capsys.readouterr().err


def test_other_content_under_a_derived_name_is_found(parent: Path, tmp_path: Path) -> None:
    """A manifest that calls it derived is no proof: the content must be the parent's."""
    folder = derived(parent, "reversion", "--local", "rocm7.10.0")
    manifest = Manifest.load(folder)
    (path,) = folder.glob("jax_rocm7_plugin-*.whl")
    (tmp_path / "forged").mkdir()
    with ZipArchive(path) as archive:
        draft = Draft(archive)
        draft.put("/_hybrid.so", draft.read("/_prng.so"))
        forgery = draft.write(tmp_path / "forged")
    forgery.replace(path)
    forged = [
        replace(each, sha256=wheels.manifest(path).wheels[0].sha256, size=path.stat().st_size)
        if each.filename == path.name
        else each
        for each in manifest.wheels
    ]
    found = verify_wheelhouse(folder, replace(manifest, wheels=tuple(forged)), policy=POLICY)
    assert any("is not the content of" in item.message for item in found[path])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("reversion", "--version=0.9.1rc1"), "nothing would change"),
        (("retag", "--platform-tag=manylinux_2_27_x86_64"), ""),
        (("reversion", "--version=0.9.2"), "another release than 0.9.1rc1"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_set_keeps_its_release_and_derives_no_copy(
    words, why, more, parent: Path, capsys
) -> None:
    output = parent.parent / "final"
    argv = ["wheel", words[0], str(parent / MANIFEST), *words[1:], *more, "--output", str(output)]
    assert main(argv) == (3 if why else 0)
    assert why in capsys.readouterr().err
    assert (output / "current").exists() == (not why and not more)


def test_a_derived_manifest_that_contradicts_its_wheels_is_refused(parent: Path, capsys) -> None:
    folder = derived(parent, "reversion", "--version", "0.9.1")
    manifest = Manifest.load(folder)
    assert manifest.parent is not None
    name, origin = next((n, o) for n, o in manifest.parent.wheels.items() if "plugin" in n)
    code = replace(origin, rewritten=(*origin.rewritten, "jax_rocm7_plugin/_prng.so"))
    for change, status, why in (
        ({"jax_version": "0.9.2"}, 6, "JAX release: 0.9.1, the manifest says 0.9.2"),
        ({"parent": replace(manifest.parent, wheels={name: origin})}, 3, "names each wheel"),
        (
            {"parent": replace(manifest.parent, wheels={**manifest.parent.wheels, name: code})},
            6,
            "is not the content of",
        ),
    ):
        document = {**json.loads(manifest.to_bytes()), **json.loads(msgspec.json.encode(change))}
        (folder / MANIFEST).write_bytes(canonical_json(document))
        assert main(["wheel", "verify", str(folder)]) == status
        said = capsys.readouterr()
        assert why in said.out + said.err


def test_a_dry_run_and_a_changed_set_write_nothing(parent: Path, capsys) -> None:
    output = parent.parent / "final"
    words = ["wheel", "reversion", str(parent), "--version=0.9.1", "--output", str(output)]
    assert main([*words, "--json", "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["dry_run"]
    assert not list(output.glob("*"))
    (path,) = parent.glob("jaxlib-*.whl")
    path.write_bytes(path.read_bytes() + b"x")
    assert main(words) == 6
    assert "the file was changed" in capsys.readouterr().err
    assert not list(output.glob("*"))
