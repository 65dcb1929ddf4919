"""Every ROCm wheel of 0.6.0 and later on the package index: what `verify` calls an error is one.

    ROCWHEEL_PUBLISHED=1 python -m pytest -s tests/wheel/test_published.py

downloads about 4 GB, one wheel at a time, and deletes each when it is judged; those that other
tests have downloaded are taken from there. Each error is proved by something that is not ours:
Python's zipfile and hashlib, pyelftools, the index itself. `ROCWHEEL_PUBLISHED=pjrt` takes only the
projects whose name contains that, `ROCWHEEL_PUBLISHED=mutants` only wheels with one thing changed.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from packaging.requirements import Requirement
from packaging.version import Version
from support import published
from support.mutants import BROKEN, SOUND, mutants
from support.wheels import POLICY

from rocwheel.base.process import HostRunner, base_env
from rocwheel.wheel.verify import verify
from rocwheel.wheel.verify.rules import Finding, Severity
from rocwheel.wheel.verify.runs import Running, runs

CHOSEN = os.environ.get("ROCWHEEL_PUBLISHED", "")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not CHOSEN, reason="ROCWHEEL_PUBLISHED is not set: downloads 4 GB"),
]

PROJECTS = ("jax-rocm7-pjrt", "jax-rocm7-plugin", "jax-rocm10-pjrt", "jax-rocm10-plugin")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
OLDEST = Version("0.6.0")
ON_LINUX = (
    "--only-binary=:all:", "--platform", "manylinux_2_28_x86_64",
    "--platform", "manylinux_2_27_x86_64",
)  # fmt: skip


def versions(project: str, python: str) -> set[Version]:
    """What the index has for that Python; nothing where it has nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "--pre", "--python-version", python,
         *ON_LINUX, project],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = re.search(r"Available versions: (.*)", done.stdout)
    known = map(Version, found[1].split(", ")) if found else ()
    return {version for version in known if version >= OLDEST}


def wheel(project: str, version: Version, python: str, folder: Path) -> Path:
    """The wheel, from the cache of the other tests or downloaded into the folder."""
    cpython = "py3" if project.endswith("pjrt") else f"cp{python.replace('.', '')}"
    pattern = f"{project.replace('-', '_')}-{version}-{cpython}-*.whl"
    for known in published.folder().glob(pattern):
        return known
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir",
         "--python-version", python, *ON_LINUX, "--dest", folder, f"{project}=={version}"],
        check=True,
    )  # fmt: skip
    (made,) = folder.glob(pattern)
    return made


def of_elf(archive: zipfile.ZipFile, member: str) -> tuple[str, set[str]]:
    """RUNPATH and the symbol versions that are needed, as pyelftools reads them."""
    with archive.open(member) as packed:
        image = io.BytesIO(packed.read())
    elf = ELFFile(image)
    runpath = "".join(
        tag.runpath
        for tag in elf.get_section_by_name(".dynamic").iter_tags()
        if tag.entry.d_tag == "DT_RUNPATH"
    )
    needs = elf.get_section_by_name(".gnu.version_r")
    return runpath, {aux.name for _, auxiliaries in needs.iter_versions() for aux in auxiliaries}


def too_new(archive: zipfile.ZipFile, member: str, message: str) -> bool:
    """The library needs symbols of a glibc that is newer than the tag says."""
    level = Version(".".join(re.findall(r"manylinux_(\d+)_(\d+)", message)[0]))
    _, needed = of_elf(archive, member)
    return any(
        name.startswith("GLIBC_2") and Version(name.removeprefix("GLIBC_")) > level
        for name in needed
    )


def of_a_build_folder(archive: zipfile.ZipFile, member: str, _: str) -> bool:
    return "_solib_" in of_elf(archive, member)[0]


def against_record(archive: zipfile.ZipFile, member: str, _: str) -> bool:
    (record,) = (name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
    rows = {row[0]: row[1] for row in csv.reader(io.StringIO(archive.read(record).decode()))}
    digest = base64.urlsafe_b64encode(hashlib.sha256(archive.read(member)).digest())
    return rows[member] != "sha256=" + digest.rstrip(b"=").decode()


def never_published(archive: zipfile.ZipFile, _: str, message: str) -> bool:
    text = message.removeprefix("requires ")
    requirement = Requirement(re.split(r", and|: that pins no version", text)[0])
    (metadata,) = (name for name in archive.namelist() if name.endswith("METADATA"))
    assert str(requirement) in archive.read(metadata).decode()
    if text.endswith(": that pins no version"):
        bases = {item.version.removesuffix(".*") for item in requirement.specifier} | {"1"}
        near = (base + more for base in bases for more in ("", ".1", ".2"))
        return len({*requirement.specifier.filter(near)}) > 1
    return not any(map(requirement.specifier.contains, versions(requirement.name, PYTHONS[1])))


PROOFS: dict[str, Callable[[zipfile.ZipFile, str, str], bool]] = {
    "tag.manylinux": too_new,
    "elf.runpath-leak": of_a_build_folder,
    "record.hash": against_record,
    "pin.sibling": never_published,
}


def unproved(path: Path, errors: list[Finding]) -> Iterator[str]:
    """Errors that nothing else confirms."""
    with zipfile.ZipFile(path) as archive:
        for item in errors:
            member = item.message.partition(": ")[0]
            if item.rule not in PROOFS or not PROOFS[item.rule](archive, member, item.message):
                yield f"{path.name}: {item.rule}: {item.message}"


@pytest.mark.parametrize("version", ["0.11.0", "0.12.0"])
@pytest.mark.parametrize("project", ["jax-rocm7-pjrt", "jax-rocm7-plugin", "jaxlib"])
def test_a_published_wheel_with_one_change_ships_only_if_it_works(
    project: str, version: str, tmp_path: Path
) -> None:
    if CHOSEN not in ("1", "mutants"):
        pytest.skip("another project was chosen")
    path = wheel(project, Version(version), "3.12", tmp_path)
    kind = project.rpartition("-")[2]
    (tmp_path / "made").mkdir()
    wrong = []
    for edits, works in ((BROKEN[kind], False), (SOUND[kind], True)):
        for title, made in mutants(path, tmp_path / "made", edits):
            findings = verify(made, policy=POLICY)
            if all(item.severity is not Severity.ERROR for item in findings):
                findings = runs([made], Running(HostRunner(base_env(os.environ)), POLICY))[made]
            if works is not all(item.severity is not Severity.ERROR for item in findings):
                wrong.append((title, findings))
    assert not wrong


@pytest.mark.parametrize("project", PROJECTS)
def test_every_error_of_every_published_wheel_is_true(project: str, tmp_path: Path) -> None:
    if CHOSEN != "1" and CHOSEN not in project:
        pytest.skip("another project was chosen")
    pythons = PYTHONS[1:2] if project.endswith("pjrt") else PYTHONS
    cells = [(python, found) for python in pythons for found in sorted(versions(project, python))]
    assert cells, "the index must be within reach"
    wrong = []
    for python, version in cells:
        path = wheel(project, version, python, tmp_path)
        found = verify(path, policy=POLICY)
        errors = [item for item in found if item.severity is Severity.ERROR]
        wrong += unproved(path, errors)
        rules = sorted({item.rule for item in errors})
        print(f"{path.name}: {', '.join(rules) or 'may ship'}")
        if path.parent == tmp_path:
            path.unlink()
    print(f"{project}: {len(cells)} wheels")
    assert not wrong
