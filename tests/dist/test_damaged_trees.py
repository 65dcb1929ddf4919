"""ROCm trees with one thing broken: each is refused before Bazel starts, for every class of JAX.

The list is made from ci/layouts.yaml, so what the data asks for cannot go untested; the rest are
damages of other kinds: links that lead nowhere, empty files, bits that are not set. Versions that
are missing or differ are in tests/rocm/test_rocm_root.py.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from packaging.version import Version
from support import tarballs

from rocwheel import rocm, source
from rocwheel.base.errors import RocmError
from rocwheel.rocm import rocm_root

ROOT = Path(__file__).parents[2]
LAYOUTS = source.load_layouts(ROOT / "ci" / "layouts.yaml")
TARGETS = ("gfx942", "gfx1100")
NEEDS = {
    version: LAYOUTS["upstream"].version_class(Version(version)).needs
    for version in ("0.8.0", "0.10.1", "0.11.0", "0.11.1")
}
BITCODE = "lib/llvm/amdgcn/bitcode"


def removed(path: str):
    return lambda root: (root / path).unlink()


def emptied(path: str):
    return lambda root: (root / path).write_bytes(b"")


def written(path: str, text: str):
    return lambda root: (root / path).write_text(text)


def dangling(path: str):
    def damage(root: Path) -> None:
        (root / path).unlink()
        (root / path).symlink_to("nowhere")

    return damage


def folder(path: str):
    def damage(root: Path) -> None:
        (root / path).unlink()
        (root / path).mkdir()

    return damage


def chmod(path: str):
    return lambda root: (root / path).chmod(0o644)


def circle(path: str):
    def damage(root: Path) -> None:
        (root / path).unlink()
        (root / path).symlink_to(Path(path).name)

    return damage


def without_folder(path: str):
    return lambda root: shutil.rmtree(root / path)


OLDER, NEWEST = NEEDS["0.11.0"], NEEDS["0.11.1"]
DAMAGES = {
    **{
        f"no {name}": removed(name.replace("*", "20"))
        for name in NEWEST.files
    },
    **{
        f"{name} without {macro}": written(name, f"// {macro} 7\n#define OTHER 1\n")
        for name, macro in NEWEST.macros.items()
    },
    **{f"no {name}": removed(name) for name in NEWEST.executables},
    **{f"no lib{name}.so": removed(f"lib/lib{name}.so") for name in OLDER.libraries},
    "no bitcode at all": without_folder(BITCODE),
    "hipcc not executable": chmod("bin/hipcc"),
    "clang++ not executable": chmod("lib/llvm/bin/clang++"),
    "ld.lld leads nowhere": dangling("lib/llvm/bin/ld.lld"),
    "empty clang-offload-bundler": emptied("lib/llvm/bin/clang-offload-bundler"),
    "a folder for lld": folder("lib/llvm/bin/lld"),
    "an empty library": emptied("lib/libMIOpen.so"),
    "a library that leads nowhere": dangling("lib/librccl.so"),
    "a library in circles": circle("lib/libhipfft.so"),
    "a folder for a library": folder("lib/librocsolver.so"),
    "an empty header": emptied("include/hip/hip_version.h"),
    "no include": without_folder("include"),
    "no lib": without_folder("lib"),
}  # fmt: skip


def problems(root: Path, version: str) -> tuple[str, ...]:
    try:
        rocm_root.inspect(root, name="tree")
    except RocmError as exc:
        return (str(exc),)
    return rocm.missing(root, NEEDS[version])


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return tarballs.rocm_folder(tmp_path_factory.mktemp("rocm") / "tree", targets=TARGETS)


@pytest.mark.parametrize("version", NEEDS)
def test_a_sound_tree_is_accepted(version, sound):
    assert problems(sound, version) == ()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_tree_is_refused_by_every_class(damage, sound, tmp_path):
    root = tmp_path / "tree"
    shutil.copytree(sound, root, symlinks=True)
    DAMAGES[damage](root)
    only_newest = damage in (
        "no librocm_smi64.so",
        "no libhipblaslt.so",
        "no librocprofiler-sdk.so",
    )
    for version in ["0.11.1"] if only_newest else NEEDS:
        assert problems(root, version), f"JAX {version} accepted it"


CLANG, LIBRARY = Path("/usr/lib/llvm-19/bin/clang"), Path("/usr/lib/x86_64-linux-gnu/amdgcn")


@pytest.fixture
def real(tmp_path):
    """A clang and its device library, as Debian has them."""
    (tmp_path / "lib/llvm/bin").mkdir(parents=True)
    (tmp_path / "lib/llvm/bin/clang").symlink_to(CLANG)
    shutil.copytree(LIBRARY, tmp_path / "amdgcn")
    return tmp_path


@pytest.mark.needs("clang-19")
def test_a_whole_device_library_compiles_an_empty_file_for_each_target(real, runner):
    assert rocm.uncompiled(real, ("gfx90a", "gfx1030"), runner=runner) == ()


@pytest.mark.needs("clang-19")
@pytest.mark.parametrize(
    "part", ["finite_only", "correctly_rounded_sqrt", "unsafe_math", "wavefrontsize64"]
)
def test_missing_device_libraries_are_reported_by_clang(part, real, runner):
    """TheRock #5448: four files were missing, and no list of ours named them."""
    for path in (real / "amdgcn/bitcode").glob(f"oclc_{part}*"):
        path.unlink()
    (refused,) = rocm.uncompiled(real, ("gfx90a",), runner=runner)
    assert refused.startswith("gfx90a: cannot find ROCm device library")


@pytest.mark.needs("clang-19")
def test_a_target_that_the_device_library_has_not_is_named_alone(real, runner):
    (real / "amdgcn/bitcode/oclc_isa_version_1030.bc").unlink()
    (refused,) = rocm.uncompiled(real, ("gfx90a", "gfx1030", "gfx908"), runner=runner)
    assert refused.startswith("gfx1030: cannot find ROCm device library")


@pytest.mark.needs("clang-19")
def test_a_clang_that_does_not_start_here_was_not_asked(real, runner):
    clang = real / "lib/llvm/bin/clang"
    clang.unlink()
    assert rocm.uncompiled(real, ("gfx90a",), runner=runner) is None
    clang.write_text("#!/no/such/program\n")
    clang.chmod(0o755)
    assert rocm.uncompiled(real, ("gfx90a",), runner=runner) is None
