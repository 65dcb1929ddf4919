"""What of a ROCm tree an image needs, with real libraries: as the loader looks, and no further."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocwheel.base.errors import RocmError
from rocwheel.base.host import machine
from rocwheel.image import closure, recipe, runtime
from rocwheel.image.recipe import RunTimeFiles
from rocwheel.wheel import elf

pytestmark = [pytest.mark.integration, pytest.mark.needs("cc")]

CI = Path(__file__).parents[2] / "ci"


def library(path: Path, soname: str, *needs: Path, runpath: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    words = [f"-Wl,-rpath,{runpath}", "-Wl,--enable-new-dtags"] if runpath else []
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-nostdlib", "-Wl,--no-as-needed", f"-Wl,-soname,{soname}",
         "-x", "c", "/dev/null", "-x", "none", *words, *map(str, needs), "-o", str(path)],
        check=True, capture_output=True,
    )  # fmt: skip
    return path


def linked(root: Path, name: str, version: str, *needs: Path, runpath: str = "") -> Path:
    """A library as ROCm has it: the file with its version, two links to it."""
    file = library(
        root / "lib" / f"{name}.{version}", f"{name}.{version[0]}", *needs, runpath=runpath
    )
    (root / "lib" / f"{name}.{version[0]}").symlink_to(file.name)
    (root / "lib" / name).symlink_to(f"{name}.{version[0]}")
    return file


def wheel(path: Path, *needs: Path, runpath: str = "$ORIGIN/../rocm/lib"):
    """A wheel of one extension module, as far as the closure looks."""
    made = library(path, path.name, *needs, runpath=runpath)
    data = made.read_bytes()
    return SimpleNamespace(
        elf=(elf.scan(path.name, len(data), lambda: [data]),), provides=frozenset({path.name})
    )


@pytest.fixture
def rocm(tmp_path):
    """hip needs hsa (found by RUNPATH in another folder); blas is asked for; fft by nobody."""
    root = tmp_path / "rocm"
    hsa = library(root / "lib" / "sysdeps" / "libhsa.so.1", "libhsa.so.1")
    hip = linked(root, "libamdhip64.so", "7.1", hsa, runpath="$ORIGIN/sysdeps")
    blas = linked(root, "libhipblas.so", "3.0", hip)
    linked(root, "libhipfft.so", "0.1")
    for name in ("plain.dat", "k_gfx942.co", "k_gfx90a.co", "k_gfx1100.co"):
        file = root / "lib" / "blas" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(name)
    (root / "bin").mkdir()
    (root / "bin" / "tool").write_text("#!/bin/sh\n")
    return SimpleNamespace(root=root, hip=hip, blas=blas)


def needed(rocm, *reports, extras=(), targets=("gfx942",)):
    return closure.needed(rocm.root, reports, extras, targets=targets)


def test_a_library_comes_with_what_it_needs_and_the_links_to_it(rocm, tmp_path):
    found = needed(rocm, wheel(tmp_path / "plugin.so", rocm.hip))
    assert found.paths == (
        "lib/libamdhip64.so.7",
        "lib/libamdhip64.so.7.1",
        "lib/sysdeps/libhsa.so.1",
    )
    assert not found.system


def test_a_library_without_a_runpath_finds_what_is_loaded_already(rocm, tmp_path):
    found = needed(rocm, wheel(tmp_path / "plugin.so", rocm.hip, rocm.blas))
    assert "lib/libhipblas.so.3.0" in found.paths
    assert not found.system


def test_a_missing_library_is_listed_with_what_needs_it(rocm, tmp_path):
    other = library(tmp_path / "libelsewhere.so.1", "libelsewhere.so.1")
    found = needed(rocm, wheel(tmp_path / "plugin.so", other))
    assert found.system == {"libelsewhere.so.1": "plugin.so"}
    assert closure.missing(found, "1 libs found\n\tlibc.so.6 (libc6) => /lib/libc.so.6\n") == (
        found.system
    )
    assert not closure.missing(found, "1 libs found\n\tlibelsewhere.so.1 (libc6) => /x\n")


def test_data_counts_beside_its_library_and_for_the_sets_targets_only(rocm, tmp_path):
    extras = (
        RunTimeFiles(beside="libhipblas.so", paths=("lib/blas/*",)),
        RunTimeFiles(beside="libhipfft.so", paths=("bin/tool",)),
    )
    asked = wheel(tmp_path / "plugin.so", rocm.hip, rocm.blas)
    found = needed(rocm, asked, extras=extras, targets=("gfx942", "gfx90a"))
    data = [path for path in found.paths if path.startswith("lib/blas/")]
    assert data == ["lib/blas/k_gfx90a.co", "lib/blas/k_gfx942.co", "lib/blas/plain.dat"]
    assert "bin/tool" not in found.paths  # nothing needs the library it is beside


def test_a_library_that_is_opened_at_run_time_brings_what_it_needs(rocm, tmp_path):
    extra = RunTimeFiles(beside="", paths=("lib/libhipblas.so*",))
    found = needed(rocm, extras=(extra,))
    assert "lib/libhipblas.so.3.0" in found.paths
    assert found.system == {"libamdhip64.so.7": "libhipblas.so.3.0"}


# As a release lays them out, for two GPUs; of a multi-arch one and of an earlier one.
DATA = (
    ".info/version", "include/rocm-core/rocm_version.h", "lib/llvm/amdgcn/bitcode/ocml.bc",
    "lib/llvm/bin/ld.lld", "lib/libamd_comgr.so.3", "lib/libhsa-runtime64.so.1",
    "lib/librocsolver.so.0", "bin/rocminfo", "share/rccl/msccl-algorithms/deep/er.xml",
)  # fmt: skip
KPACK = (".kpack/blas_lib.kpm", ".kpack/blas_lib_gfx942.kpack", ".kpack/blas_test_gfx942.kpack")
OTHERS = (".kpack/blas_lib_gfx1100.kpack", "lib/rocblas/library/gfx1100/k_gfx1100.co")
EARLIER = (
    "lib/rocblas/library/TensileLibrary.dat", "lib/rocblas/library/gfx942/k_gfx942.co",
    "lib/hipblaslt/library/k_gfx942.dat",
)  # fmt: skip


@pytest.fixture
def released(tmp_path):
    """A ROCm with these data files, and a plugin that needs HIP, BLAS and RCCL."""

    def make(*names: str):
        root = tmp_path / "released"
        libraries = [
            linked(root, f"lib{name}.so", "7.1")
            for name in ("amdhip64", "hipblas", "hipblaslt", "rocblas", "rccl")
        ]
        for name in names:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(name)
        extras = recipe.runtime(CI, "jax").files
        plugin = wheel(tmp_path / "plugin.so", *libraries)
        found = closure.needed(root, [plugin], extras, targets=("gfx942",))
        return {path for path in found.paths if (root / path).read_bytes()[:4] != elf.MAGIC}

    return make


def test_the_shipped_recipe_takes_the_kernels_of_a_multi_arch_release(released):
    assert released(*DATA, *KPACK, *OTHERS) == {*DATA, *KPACK[:2]}


def test_the_shipped_recipe_takes_the_kernels_of_an_earlier_release(released):
    assert released(*DATA, *EARLIER, *OTHERS[1:]) == {*DATA, *EARLIER}


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        (KPACK[1], r"no lib/hipblaslt/library/\*\* or \.kpack/blas_lib_\*\.kpack for gfx942"),
        (".info/version", "an image with every wheel needs"),
        ("lib/llvm/bin/ld.lld", "lib/llvm/bin/ld.lld or llvm/bin/ld.lld"),
    ],
)
def test_a_pattern_that_meets_no_file_is_an_error(released, lacking, said):
    with pytest.raises(RocmError, match=said) as refused:
        released(*({*DATA, *KPACK, *OTHERS} - {lacking}))
    assert "may_lack" in refused.value.hint


PYTHONS = ("3.10", "3.11", "3.12", "3.13")


@pytest.mark.parametrize("version", PYTHONS)
def test_a_pattern_means_the_same_to_every_python(version, runner, tmp_path):
    """Before 3.13 `Path.glob` finds no file by a pattern that ends in `**`."""
    here = [
        item for item in machine.pythons(os.environ, runner=runner) if str(item.version) == version
    ]
    if not here:
        pytest.skip(f"no CPython {version} here")
    for name in ("a/one", "a/deep/er/two", ".kpack/three", "b"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    program = (
        "import sys; from pathlib import Path; from rocwheel.base.files import matches\n"
        "for pattern in ('a/**', '.kpack/*', 'b', 'nothing/**'):\n"
        "    print(*(str(path.relative_to(sys.argv[1])) for path in matches(Path(sys.argv[1]), pattern)"
        " if path.is_file()))"
    )
    done = subprocess.run(
        [here[0].executable, "-c", program, str(tmp_path)],
        env={"PYTHONPATH": str(CI.parent / "build")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["a/deep/er/two a/one", ".kpack/three", "b", ""]


def test_a_link_that_leaves_the_tree_is_refused(rocm, tmp_path):
    (rocm.root / "lib" / "libevil.so.1").symlink_to("../../../etc/passwd")
    (tmp_path / "etc").mkdir()
    extra = RunTimeFiles(beside="", paths=("lib/libevil.so.1",))
    (rocm.root.parents[1] / "etc").mkdir(exist_ok=True)
    (rocm.root.parents[1] / "etc" / "passwd").touch()
    with pytest.raises(RocmError, match="a link that leads nowhere"):
        needed(rocm, extras=(extra,))


def test_the_whole_tree_has_every_file_and_link(rocm):
    found = closure.whole(rocm.root)
    assert "bin/tool" in found.paths
    assert "lib/libhipfft.so" in found.paths
    assert found.size > 0


def test_the_layer_depends_on_the_files_alone(rocm, tmp_path):
    found = needed(rocm, wheel(tmp_path / "plugin.so", rocm.hip))
    runtime.write_layer(tmp_path / "one.tar", rocm.root, found)
    for path in rocm.root.rglob("*"):
        if not path.is_symlink():
            path.touch()
    runtime.write_layer(tmp_path / "two.tar", rocm.root, found)
    assert (tmp_path / "two.tar").read_bytes() == (tmp_path / "one.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as archive:
        members = archive.getmembers()
    assert [item.name for item in members][:3] == ["opt", "opt/rocm", "opt/rocm/lib"]
    assert {(item.uid, item.gid, item.mtime) for item in members} == {(0, 0, runtime.TIME)}
    link = next(item for item in members if item.name.endswith("libamdhip64.so.7"))
    assert link.linkname == "libamdhip64.so.7.1"
