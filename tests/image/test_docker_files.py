"""Dockerfiles and the install script: linters find nothing, and nothing moves or is unchecked."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docker"
DOCKERFILES = sorted(FOLDER.glob("*.Dockerfile"))
SCRIPTS = sorted(FOLDER.glob("*.sh"))


def tool(name: str) -> str:
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else str(shutil.which(name))


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_hadolint_finds_nothing(file):
    done = subprocess.run(
        [tool("hadolint"), str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_shellcheck_finds_nothing(file):
    done = subprocess.run(
        [tool("shellcheck"), str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", [*DOCKERFILES, *SCRIPTS], ids=lambda file: file.name)
def test_nothing_is_downloaded_there_and_nothing_moves(file):
    text = re.sub(r"^\s*#.*$", "", file.read_text(), flags=re.MULTILINE)
    assert not re.search(r"\b(curl|wget|ADD(?! rocm\.tar ))\b", text)  # the tar was made here
    assert ":latest" not in text
    assert "://" not in text


@pytest.mark.parametrize("manager", ["apt-get", "dnf"])
def test_packages_come_from_the_bases_own_manager(manager, tmp_path):
    """The managers are stand-ins that say how they were called: a dnf base is not at hand."""
    called = tmp_path / "called"
    program = tmp_path / manager
    program.write_text(f'#!/bin/sh\necho "$0 $*" >> {called}\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", str(FOLDER / "install.sh"), "packages", "clang", "git"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert called.read_text().splitlines()[-1].endswith("clang git")


def test_a_base_without_a_package_manager_is_an_error(tmp_path):
    done = subprocess.run(
        ["/bin/sh", str(FOLDER / "install.sh"), "packages", "clang"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 8
    assert "neither apt-get nor dnf" in done.stderr


def test_a_builder_image_keeps_the_path_of_its_base():
    """Manylinux has its gcc-toolset there, without which the base's older gcc compiles."""
    assert "ENV PATH" not in (FOLDER / "builder.Dockerfile").read_text()
