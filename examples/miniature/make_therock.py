#!/usr/bin/env python3
"""Makes a TheRock-like ROCm tarball from Debian 12 packages; the same bytes every time.

Real are the compiler (clang, lld, the offload bundler and the LLVM libraries they load), the device
bitcode and the HIP headers; the bitcode of GPUs younger than Debian's ROCm 5.2 is compiled here.
The runtime libraries are stand-ins: those the miniature links with come from the folder `therock`
(Debian has no HIP runtime of the wanted generation: they register code objects and report that
there is no GPU), the others that a JAX build looks for have a name and nothing in it.

Names and links lie where TheRock's own tarballs have them: its base/aux-overlay (`llvm`, `amdgcn`,
`bin/amdclang`, `.info/version`), compiler/artifact-amd-llvm.toml (`lib/llvm`, with clang's resource
folder under its major version), the version headers of each library below `include`.

Standard library only. Programs used: clang-19 with lld-19; zstd for a `.tar.zst`.
"""

from __future__ import annotations

import argparse
import gzip
import io
import lzma
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, cast

LLVM = Path("/usr/lib/llvm-19")
LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
SOURCES = Path(__file__).resolve().parent / "therock"

# What the tarball is made of -> the Debian package that has it.
ORIGINS: Mapping[Path, str] = {
    LLVM / "bin/clang-19": "clang-19",
    LLVM / "bin/lld": "lld-19",
    LLVM / "bin/clang-offload-bundler": "clang-tools-19",
    LLVM / "bin/llvm-objcopy": "llvm-19",  # which the bundler calls
    LLVM / "lib/clang/19/include/stddef.h": "libclang-common-19-dev",
    LIBRARIES / "libclang-cpp.so.19.1": "libclang-cpp19",
    LIBRARIES / "libLLVM.so.19.1": "libllvm19",
    LIBRARIES / "amdgcn/bitcode/ocml.bc": "rocm-device-libs",
    Path("/usr/include/hip/hip_runtime.h"): "libamdhip64-dev",
}
# What to install; the other packages of ORIGINS come with these.
DEBIAN_PACKAGES = (
    *("clang-19", "clang-tools-19", "lld-19", "llvm-19"),
    *("rocm-device-libs", "libamdhip64-dev"),
)

DEFAULT_ROCM_VERSION = "7.10.0a20251120"
DEFAULT_FAMILY = "gfx94X-dcgpu"
# TheRock's trees have this link in the root since 7.12 (4058a195d).
AMDGCN_LINK = (7, 12)

# GPUs that clang-19 compiles for and Debian's device libraries do not know.
_YOUNG_GPUS = (
    *("gfx942", "gfx1100", "gfx1101", "gfx1102", "gfx1103"),
    *("gfx1150", "gfx1151", "gfx1152", "gfx1200", "gfx1201"),
)
# The header that says a component's version, as its project spells the numbers.
_VERSION_HEADERS: Mapping[str, tuple[str, str, str]] = {
    "miopen/version.h": ("MIOPEN_VERSION_MAJOR", "MIOPEN_VERSION_MINOR", "MIOPEN_VERSION_PATCH"),
    "rocblas/internal/rocblas-version.h": (
        *("ROCBLAS_VERSION_MAJOR", "ROCBLAS_VERSION_MINOR", "ROCBLAS_VERSION_PATCH"),
    ),
    "rocfft/rocfft-version.h": (
        *("rocfft_version_major", "rocfft_version_minor", "rocfft_version_patch"),
    ),
    "hipfft/hipfft-version.h": ("hipfftVersionMajor", "hipfftVersionMinor", "hipfftVersionPatch"),
    "roctracer/roctracer.h": (
        *("ROCTRACER_VERSION_MAJOR", "ROCTRACER_VERSION_MINOR", "ROCTRACER_VERSION_PATCH"),
    ),
    "hipsparse/hipsparse-version.h": (
        *("hipsparseVersionMajor", "hipsparseVersionMinor", "hipsparseVersionPatch"),
    ),
    "hipsolver/internal/hipsolver-version.h": (
        *("hipsolverVersionMajor", "hipsolverVersionMinor", "hipsolverVersionPatch"),
    ),
    "rocsolver/rocsolver-version.h": (
        *("ROCSOLVER_VERSION_MAJOR", "ROCSOLVER_VERSION_MINOR", "ROCSOLVER_VERSION_PATCH"),
    ),
}
# Libraries that a JAX build looks for and the miniature links with none of, with their soname.
_EMPTY_LIBRARIES: Mapping[str, int] = {
    "MIOpen": 1, "hipblaslt": 1, "hipfft": 0, "hiprand": 1, "hipsolver": 1, "hipsparse": 4,
    "rccl": 1, "rocblas": 5, "rocm_smi64": 1, "rocprofiler-sdk": 1, "rocrand": 1, "rocsolver": 0,
    "roctracer64": 4,
}  # fmt: skip
_EMPTY_HEADERS = (  # of libraries that the miniature does not call
    "hipfft/hipfft.h",
    "hipsolver/hipsolver.h",
    "hipsparse/hipsparse.h",
    "miopen/miopen.h",
    "rccl/rccl.h",
    "rocblas/rocblas.h",
    "rocsolver/rocsolver.h",
)
_MTIME = 1763596800  # 2025-11-20, for every member
_HIPCC = b"""\
#!/bin/sh
# What AMD's hipcc does: ROCm is where ROCM_PATH says, else where this lies; C++ sources are HIP
# unless HIP_COMPILE_CXX_AS_HIP is 0; of -M, headers for the host alone; flags of the environment.
root="${ROCM_PATH:-$(dirname "$(readlink -f "$0")")/..}"
llvm="${HIP_CLANG_PATH:-$root/lib/llvm/bin}"
before=
for word; do
  shift
  case "$before $word" in
    "-o "* | "-x "*) ;;
    *" -M") set -- "$@" --cuda-host-only ;;
    *.cu | *.hip) set -- "$@" -x hip ;;
    *.cc | *.cpp | *.cxx | *.C) [ "$HIP_COMPILE_CXX_AS_HIP" = 0 ] || set -- "$@" -x hip ;;
  esac
  set -- "$@" "$word"
  before="$word"
done
PATH="$llvm:$PATH" exec "$llvm/clang++" "$@" $HIPCC_COMPILE_FLAGS_APPEND
"""
_SUFFIXES = (".tar.gz", ".tar.xz", ".tar.zst")


@dataclass(frozen=True, kw_only=True)
class RocmVersion:
    """The numbers of a ROCm version; a nightly or release-candidate ending is left out."""

    major: int
    minor: int
    patch: int

    @classmethod
    def parse(cls, text: str) -> RocmVersion:
        """Read `7.10.0`, `7.10.0a20251120`, `7.10.0rc1` …; SystemExit when it is none of these."""
        found = re.match(r"(\d+)\.(\d+)\.(\d+)(?![\d])", text)
        if found is None:
            raise SystemExit(f"not a ROCm version: {text}\nwrite it as 7.10.0 or 7.10.0a20251120")
        major, minor, patch = map(int, found.groups())
        return cls(major=major, minor=minor, patch=patch)

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    @property
    def hip_soname(self) -> int:
        """The number in libamdhip64's name: ROCm's major version, and still 7 in ROCm 10."""
        return min(self.major, 7)


@dataclass(kw_only=True)
class Tree:
    """The members of the tarball by their path: files (content and mode) and symbolic links."""

    files: dict[str, tuple[Path | bytes, int]] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, content: Path | bytes, *, executable: bool = False) -> None:
        self.files[name] = (content, 0o755 if executable else 0o644)

    def add_folder(self, name: str, folder: Path) -> None:
        """Add the files below a folder; symbolic links in it are followed."""
        for path in folder.rglob("*"):
            if path.is_file():
                self.add(f"{name}/{path.relative_to(folder).as_posix()}", path)

    def folders(self) -> set[str]:
        names = [*self.files, *self.links]
        return {str(parent) for name in names for parent in PurePosixPath(name).parents} - {"."}

    def write(self, stream: IO[bytes]) -> None:
        """Write the tar stream: members sorted, owned by root, all of one date."""
        with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for name in sorted({*self.folders(), *self.files, *self.links}):
                info = tarfile.TarInfo(name)
                info.mtime, info.uname, info.gname = _MTIME, "root", "root"
                if name in self.links:
                    info.type, info.linkname, info.mode = tarfile.SYMTYPE, self.links[name], 0o777
                    archive.addfile(info)
                elif name in self.files:
                    content, info.mode = self.files[name]
                    if isinstance(content, bytes):
                        info.size = len(content)
                        archive.addfile(info, io.BytesIO(content))
                    else:
                        info.size = content.stat().st_size
                        with content.open("rb") as source:
                            archive.addfile(info, source)
                else:
                    info.type, info.mode = tarfile.DIRTYPE, 0o755
                    archive.addfile(info)


def missing_packages(root: Path = Path("/")) -> list[str]:
    """The Debian packages that the system at `root` needs and lacks, judged by their files."""
    missing = {pkg for path, pkg in ORIGINS.items() if not (root / path.relative_to("/")).exists()}
    return sorted(missing)


def make_tarball(
    output: Path, *, rocm_version: str = DEFAULT_ROCM_VERSION, family: str = DEFAULT_FAMILY
) -> Path:
    """Write the tarball and return its path; `output` is the file, or the folder it goes into.

    In a folder the file is named as TheRock names its own, `.tar.gz`; otherwise its ending decides
    the compression. It appears when it is complete. SystemExit says which Debian package is
    missing, or what is wrong with a version or file name.
    """
    version = RocmVersion.parse(rocm_version)
    if output.is_dir():
        output = output / f"therock-dist-linux-{family}-{rocm_version}.tar.gz"
    if not output.name.endswith(_SUFFIXES):
        raise SystemExit(f"{output}: unknown kind of tarball\nend it in {', '.join(_SUFFIXES)}")
    if packages := missing_packages():
        install = " ".join(DEBIAN_PACKAGES)
        raise SystemExit(
            f"missing Debian packages: {', '.join(packages)}\n"
            f"install them: apt-get install --no-install-recommends {install}"
        )
    partial = output.with_name(f"{output.name}.part")
    with tempfile.TemporaryDirectory(prefix="make-therock-") as scratch:
        tree = _tree(version, Path(scratch))
        try:
            with _compressed(partial, output.suffix) as stream:
                tree.write(stream)
            partial.replace(output)
        finally:
            partial.unlink(missing_ok=True)
    return output


def _tree(version: RocmVersion, scratch: Path) -> Tree:
    tree = Tree()
    tree.add(".info/version", f"{version}\n".encode())
    _add_compiler(tree)
    _add_bitcode(tree, version, scratch)
    _add_headers(tree, version)
    _add_runtime(tree, version, scratch)
    return tree


def _add_compiler(tree: Tree) -> None:
    """clang and friends; Debian's programs find their libraries in `../lib`."""
    llvm = "lib/llvm"
    for name in ("clang-19", "lld", "clang-offload-bundler", "llvm-objcopy"):
        tree.add(f"{llvm}/bin/{name}", LLVM / "bin" / name, executable=True)
    for name in ("libLLVM.so.19.1", "libclang-cpp.so.19.1"):
        tree.add(f"{llvm}/lib/{name}", LIBRARIES / name)
    tree.add_folder(f"{llvm}/lib/clang/19/include", LLVM / "lib/clang/19/include")
    tree.add("bin/hipcc", _HIPCC, executable=True)
    tree.links |= {
        "bin/amdclang": "../lib/llvm/bin/clang",
        "bin/amdclang++": "../lib/llvm/bin/clang++",
        "llvm": "lib/llvm",
        f"{llvm}/bin/clang": "clang-19",
        f"{llvm}/bin/clang++": "clang",
        f"{llvm}/bin/ld.lld": "lld",
    }


def _add_bitcode(tree: Tree, version: RocmVersion, scratch: Path) -> None:
    tree.add_folder("lib/llvm/amdgcn/bitcode", LIBRARIES / "amdgcn/bitcode")
    for gpu in _YOUNG_GPUS:
        name = f"oclc_isa_version_{gpu.removeprefix('gfx')}.bc"
        flags = ["-target", "amdgcn-amd-amdhsa", "-nogpulib", "-O2", "-emit-llvm", "-c"]
        source = (
            "extern const __attribute__((address_space(4))) unsigned __oclc_ISA_version;\n"
            "const __attribute__((address_space(4))) unsigned __oclc_ISA_version"
            f" = {_isa_number(gpu)};\n"
        )
        tree.add(f"lib/llvm/amdgcn/bitcode/{name}", _compile(source, name, flags, scratch))
    if (version.major, version.minor) >= AMDGCN_LINK:
        tree.links["amdgcn"] = "lib/llvm/amdgcn"


def _isa_number(gpu: str) -> int:
    """gfx942 -> 9402, gfx1100 -> 11000: major version, minor version, stepping (a hex digit)."""
    digits = gpu.removeprefix("gfx")
    return int(digits[:-2]) * 1000 + int(digits[-2]) * 100 + int(digits[-1], 16)


def _add_headers(tree: Tree, version: RocmVersion) -> None:
    hip = Path("/usr/include/hip")
    for header in hip.glob("*.h"):
        tree.add(f"include/hip/{header.name}", header)
    tree.add_folder("include/hip/amd_detail", hip / "amd_detail")
    tree.add("include/hipblas/hipblas.h", SOURCES / "hipblas.h")
    parts = {"MAJOR": version.major, "MINOR": version.minor, "PATCH": version.patch}
    tree.add(
        "include/hip/hip_version.h",
        _header("HIP_VERSION_H", {f"HIP_VERSION_{name}": n for name, n in parts.items()}),
    )
    tree.add(
        "include/rocm-core/rocm_version.h",
        _header("ROCM_VERSION_H", {f"ROCM_VERSION_{name}": n for name, n in parts.items()}),
    )
    for header, names in _VERSION_HEADERS.items():
        numbers = dict(zip(names, (version.major, version.minor, version.patch), strict=True))
        guard = header.replace("/", "_").replace("-", "_").replace(".", "_").upper()
        tree.add(f"include/{header}", _header(guard, numbers))
    for header in _EMPTY_HEADERS:
        tree.add(
            f"include/{header}", _header(header.replace("/", "_").replace(".", "_").upper(), {})
        )
    composed = version.major * 100_000 + version.minor * 100 + version.patch
    tree.add(
        "include/rocrand/rocrand_version.h",
        _header("ROCRAND_VERSION_H", {"ROCRAND_VERSION": composed}),
    )
    lines = [f"HIP_VERSION_{name}={number}\n" for name, number in parts.items()]
    tree.add("share/hip/version", "".join(lines).encode())  # read by clang


def _header(guard: str, numbers: Mapping[str, int]) -> bytes:
    defines = "".join(f"#define {name} {number}\n" for name, number in numbers.items())
    return f"#ifndef {guard}\n#define {guard}\n\n{defines}\n#endif\n".encode()


def _add_runtime(tree: Tree, version: RocmVersion, scratch: Path) -> None:
    numa = "librocm_sysdeps_numa.so.1"
    _add_library(tree, scratch, folder="lib/rocm_sysdeps/lib", soname=numa, source="numa.c")
    number = version.major * 10_000_000 + version.minor * 100_000 + version.patch
    runpath = "-Wl,-rpath,$ORIGIN:$ORIGIN/rocm_sysdeps/lib"
    _add_library(
        tree,
        scratch,
        folder="lib",
        soname=f"libamdhip64.so.{version.hip_soname}",
        ending=f".{version.minor}.{version.patch}",
        source="hip_runtime.c",
        flags=(f"-DHIP_VERSION={number}", str(scratch / numa), runpath),
    )
    _add_library(
        tree, scratch, folder="lib", soname="libhipblas.so.3", ending=".1.0", source="hipblas.c"
    )
    tree.add("lib/rocblas/library/TensileLibrary.dat", b"no kernels\n")  # read at run time
    for name, number in _EMPTY_LIBRARIES.items():
        _add_library(
            tree, scratch, folder="lib", soname=f"lib{name}.so.{number}", ending=".0", source=""
        )


def _add_library(
    tree: Tree,
    scratch: Path,
    *,
    folder: str,
    soname: str,
    ending: str = "",
    source: str,
    flags: tuple[str, ...] = (),
) -> None:
    """Compile a library and add it; with an ending also the links name.so -> name.so.N -> file."""
    link = ["-Wl,--build-id=none", "-Wl,--no-undefined", f"-Wl,-soname,{soname}"]
    usual = ["-shared", "-nostdlib", "-O2", "-fPIC", "-Wall", "-Werror", "-fuse-ld=lld", *link]
    text = (SOURCES / source).read_text(encoding="utf-8") if source else ""
    library = _compile(text, soname, [*usual, *flags], scratch)
    tree.add(f"{folder}/{soname}{ending}", library, executable=True)
    if ending:
        tree.links[f"{folder}/{soname}"] = f"{soname}{ending}"
        tree.links[f"{folder}/{soname.partition('.so')[0]}.so"] = soname


def _compile(source: str, name: str, flags: list[str], scratch: Path) -> Path:
    """Compile C from standard input (so that no path enters the result) into scratch/name."""
    output = scratch / name
    command = [str(LLVM / "bin/clang-19"), *flags, "-o", str(output), "-x", "c", "-"]
    done = subprocess.run(command, input=source, text=True, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise SystemExit(f"clang-19 could not make {name}:\n{done.stderr.strip()}")
    return output


@contextmanager
def _compressed(path: Path, suffix: str) -> Iterator[IO[bytes]]:
    """Open a compressed file for writing: quick settings, nothing in it but the data."""
    if suffix == ".gz":
        with path.open("wb") as raw, gzip.GzipFile("", "wb", 1, raw, mtime=0) as stream:
            yield cast("IO[bytes]", stream)
    elif suffix == ".xz":
        with lzma.open(path, "wb", preset=0) as stream:
            yield cast("IO[bytes]", stream)
    else:
        zstd = shutil.which("zstd")
        if zstd is None:
            raise SystemExit("missing Debian package: zstd\ninstall it: apt-get install zstd")
        with path.open("wb") as raw:
            program = subprocess.Popen([zstd, "-q", "-1"], stdin=subprocess.PIPE, stdout=raw)
            with program:
                assert program.stdin is not None
                yield program.stdin
            if program.returncode != 0:
                raise SystemExit(f"zstd ended with status {program.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a TheRock-like ROCm tarball.")
    parser.add_argument(
        "--output", type=Path, default=Path(), help="the tarball, or a folder for it (default: .)"
    )
    parser.add_argument("--rocm-version", default=DEFAULT_ROCM_VERSION, help="default: %(default)s")
    parser.add_argument(
        "--family", default=DEFAULT_FAMILY, help="in the name only (default: %(default)s)"
    )
    options = parser.parse_args()
    print(make_tarball(options.output, rocm_version=options.rocm_version, family=options.family))


if __name__ == "__main__":
    main()
