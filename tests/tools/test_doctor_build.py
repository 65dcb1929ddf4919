"""`doctor --for dist_wheels`: what this very build needs, what it lacks, and one line to get it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import generations, tarballs
from support.generations import GENERATIONS
from support.trust import INVOCATION, make_record

from rocwheel import dist
from rocwheel.base import home
from rocwheel.base.console import duration
from rocwheel.base.host import cgroup
from rocwheel.base.values import replace
from rocwheel.tools import doctor
from rocwheel.tools.doctor import GIB
from tests.records.test_manifest import example

ROOT = Path(__file__).parents[2]


@pytest.fixture
def examined(tmp_path, here):
    def run(version="0.11.0", *, memory=1 << 40, clang=True, **changes):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        for name in ("clang", "clang++", "git", "readelf", "python3", "bash", "which"):
            if clang or not name.startswith("clang"):
                program = folder / name
                script = (
                    '#!/bin/sh\ncase "$1" in -dumpversion) echo 19.1;; *) echo "${1#*=}";; esac\n'
                )
                real = '#!/bin/sh\nexec /usr/bin/git "$@"\n'
                program.write_text(real if name == "git" else script)
                program.chmod(0o755)
        root = generations.write(
            tmp_path / "jax", GENERATIONS[version], clang=str(folder / "clang")
        )
        rocm = tmp_path / "rocm"
        if not rocm.is_dir():
            tarballs.rocm_folder(rocm)
        settings = {
            "therock": str(rocm),
            "gfx_targets": ("gfx942",),
            "jax_source_dir": root,
            "jaxlib": "built",
            "wheelhouse": tmp_path / "wheelhouse",
            "cache": tmp_path / "cache",
            "home": home.find(None),
            "cwd": tmp_path,
            "environ": {"PATH": str(folder), "HOME": "/root"},
            **changes,
        }
        needs = tuple(doctor.examine_build(dist.Request(**settings), here, memory=memory))
        return {need.name: need for need in needs}, doctor.install_lines(needs)

    return run


def test_everything_this_build_needs_is_a_row(examined):
    needs, install = examined()
    assert {"JAX", "compiler", "git", "ROCm", "disk", "memory", "time", "network"} <= needs.keys()
    assert needs["network"].looks  # no name was looked up
    assert needs["compiler"].found == "the one JAX downloads"
    assert not needs["ROCm"].remedy
    assert install == ()


def test_a_linker_that_is_missed_comes_with_one_line_for_each_kind_of_system(examined):
    needs, install = examined("0.10.1")
    assert needs["request"].program == "ld.gold"
    assert install == ("apt-get install binutils", "dnf install binutils-gold")


def test_memory_and_the_cpus_of_the_control_group_decide_how_many_jobs_are_proposed(
    examined, monkeypatch
):
    monkeypatch.setattr(cgroup, "cpus", lambda: 3)
    assert examined(memory=8 * GIB)[0]["memory"].remedy == "add --bazel-options=--jobs=2"
    assert examined(memory=12 * GIB)[0]["memory"].remedy == ""


@pytest.mark.parametrize("lacks", ["", "include/miopen/version.h", "amdgcn"])
def test_an_incomplete_rocm_and_its_clang_are_reported_before_the_build(lacks, examined, tmp_path):
    assert examined()[0]["ROCm's clang"].found == "compiles an empty HIP file for gfx942"
    clang = tmp_path / "rocm" / "lib/llvm/bin/clang-20"
    clang.write_text(
        "#!/bin/sh\necho 'clang: error: cannot find ROCm device library' >&2\nexit 1\n"
    )
    if lacks:
        (tmp_path / "rocm" / lacks).rename(tmp_path / "gone")
    needs, _ = examined(therock=str(tmp_path / "rocm"))
    is_file = lacks.startswith("include")
    assert (f" lacks {lacks}" in needs["ROCm"].found) == is_file
    assert bool(needs["ROCm"].remedy) == is_file
    assert ("ln -s" in needs["ROCm's clang"].remedy) == (lacks == "amdgcn")
    assert needs["ROCm's clang"].found == (
        "compiles nothing for gfx942: cannot find ROCm device library"
    )


def test_a_rocm_without_device_libraries_is_a_row(examined, tmp_path):
    for file in tarballs.rocm_folder(tmp_path / "rocm").rglob("oclc_*"):
        file.unlink()
    needs, _ = examined()
    assert needs["ROCm"].state == "bad"
    assert "no device bitcode" in needs["ROCm"].found


def test_the_time_is_that_of_the_last_build_here_as_its_record_says(examined, tmp_path):
    run = replace(INVOCATION, actions_executed=12345)
    plain = make_record(example())
    record = replace(
        plain, bazel=replace(plain.bazel, invocations=(run, run)),
        milliseconds={"bazel": 7_200_000, "wheels": 60_000},
    )  # fmt: skip
    folder = tmp_path / "wheelhouse" / "current"
    folder.mkdir(parents=True)
    (folder / "build.json").write_text(json.dumps({"schema": 1}))
    assert "hours" in examined()[0]["time"].found  # a record that cannot be read is none
    (folder / "build.json").write_bytes(record.to_bytes())
    said = examined()[0]["time"].found
    assert said == f"the last build took {duration(7260)} for 24690 actions"
