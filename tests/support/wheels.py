"""Wheels made in code: good ones in many shapes, ELF files with any header, HIP bundles."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import struct
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rocwheel.base import yaml_file
from rocwheel.base.git import Source
from rocwheel.base.values import replace
from rocwheel.base.versions import WheelKind
from rocwheel.records.manifest import ON_DISK, Manifest, RocmSource, WheelEntry
from rocwheel.wheel.hip import MACH
from rocwheel.wheel.inspect import inspect
from rocwheel.wheel.verify.sandbox import sysv_hash
from rocwheel.wheel.wheel_policy import WheelPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

POLICY = yaml_file.read(Path(__file__).parents[2] / "ci" / "wheel_policy.yaml", WheelPolicy)
PAGE = 4096
PLUGIN_MODULES = (
    "_hybrid", "_prng", "_rnn", "_solver", "_sparse", "_triton", "rocm_plugin_extension",
)  # fmt: skip
JAXLIB_MODULES = (
    "utils", "weakref_lru_cache", "cpu_feature_guard", "cpu/_lapack", "cpu/_sparse",
    "mlir/_mlir_libs/_mlir", "mlir/_mlir_libs/_jax_mlir_ext", "mlir/_mlir_libs/_stablehlo",
    "_pretty_printer", "_profile_data", "_profiler", "_ifrt_proxy", "_hlo", "_xla",
)  # fmt: skip
JAXLIB_SOURCES = (
    "__init__", "plugin_support", "lapack", "cpu_sparse", "gpu_linalg", "gpu_prng", "gpu_rnn",
    "gpu_solver", "gpu_sparse", "gpu_triton", "mlir/ir", "mlir/passmanager",
    "mlir/dialects/gpu/__init__", "mlir/extras/types", "mlir/_mlir_libs/__init__", "mosaic/python/mosaic_gpu", "mosaic/python/tpu",
    *(f"mlir/dialects/{name}"
      for name in ("arith", "chlo", "func", "mhlo", "mpmd", "sdy", "stablehlo")),
)  # fmt: skip
SHORT_RUNPATH = ("$ORIGIN/../rocm/lib", "$ORIGIN/../../rocm/lib", "/opt/rocm/lib")


class NoRunner:
    """A runner where no process may start."""

    def path(self, host):
        raise AssertionError(host)

    def run(self, command, **_):
        raise AssertionError(command)

    capture = run


# ELF ------------------------------------------------------------------------------------------


def make_elf(
    *,
    needed: Sequence[str] = (),
    soname: str = "",
    rpath: str = "",
    runpath: str = "",
    versions: Mapping[str, Sequence[str]] | None = None,
    exports: Sequence[str] = (),
    imports: Sequence[str] = (),
    bundles: Sequence[bytes] = (),
    machine: int = 62,
    padding: int = 0,
    registers: bool = True,
) -> bytes:
    """A shared object with the tables a loader reads; `padding` bytes lie before the last ones.

    Its bundles are registered with HIP, each by a wrapper.
    """
    imports = (*imports, *(("__hipRegisterFatBinary",) if bundles and registers else ()))
    names: dict[str, int] = {}
    strings = bytearray(b"\0")

    def string(text: str) -> int:
        if text not in names:
            names[text] = len(strings)
            strings.extend(text.encode() + b"\0")
        return names[text]

    entries = [(1, string(name)) for name in dict.fromkeys((*needed, *(versions or ())))]
    entries += [(14, string(soname))] if soname else []
    entries += [(15, string(rpath))] if rpath else []
    entries += [(29, string(runpath))] if runpath else []
    needs = _verneed(versions or {}, string)
    symbols = bytes(24)
    for name in imports:
        symbols += struct.pack("<IBBHQQ", string(name), 0x12, 0, 0, 0, 0)
    for name in exports:
        symbols += struct.pack("<IBBHQQ", string(name), 0x12, 0, 1, 0x40, 0)

    start = 64 + 3 * 56
    dynsym_at = start
    needs_at = dynsym_at + len(symbols)
    hash_at = _round(needs_at + len(needs), 8)
    count = len(symbols) // 24
    first = 1 + len(imports)
    chain = [gnu_hash(name.encode()) & ~1 for name in exports]
    chain[-1:] = [each | 1 for each in chain[-1:]]
    table_of_names = struct.pack(  # one bucket for all, and a filter that lets all pass
        f"<4IQ{1 + len(chain)}I", 1, first, 1, 6, (1 << 64) - 1, first if chain else 0, *chain
    )
    versym_at = hash_at + len(table_of_names)
    strings_at = versym_at + 2 * count
    dynamic_at = _round(strings_at + len(strings), 16)
    entries += [
        (5, strings_at),
        (10, len(strings)),
        (6, dynsym_at),
        (11, 24),
        (0x6FFFFEF5, hash_at),
    ]
    entries += [(0x6FFFFFF0, versym_at)]
    entries += [(0x6FFFFFFE, needs_at), (0x6FFFFFFF, len(versions or {}))] if needs else []
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in [*entries, (0, 0)])
    fat_at = _round(dynamic_at + len(dynamic), PAGE)
    fat = bytearray()
    if registers:
        fat.extend(b"".join(WRAPPER + bytes(16) for _ in bundles))
    for bundle in bundles:
        fat.extend(bytes(-len(fat) % PAGE) + bundle)
    shstrings = b"\0.dynsym\0.gnu.version_r\0.dynstr\0.dynamic\0.hip_fatbin\0.shstrtab\0.gnu.hash\0.gnu.version\0"
    shstrings_at = fat_at + len(fat) + padding
    sections_at = _round(shstrings_at + len(shstrings), 8)
    sections = [
        ("", 0, 0, 0, 0, 0),
        (".dynsym", 11, 2, dynsym_at, len(symbols), 24),
        (".gnu.version_r", 0x6FFFFFFE, 2, needs_at, len(needs), 0),
        (".dynstr", 3, 2, strings_at, len(strings), 0),
        (".gnu.hash", 0x6FFFFFF6, 2, hash_at, len(table_of_names), 0),
        (".gnu.version", 0x6FFFFFFF, 2, versym_at, 2 * count, 2),
        (".dynamic", 6, 3, dynamic_at, len(dynamic), 16),
        (".hip_fatbin", 1, 2, fat_at, len(fat), 0),
        (".shstrtab", 3, 0, shstrings_at, len(shstrings), 0),
    ]
    table = b"".join(
        struct.pack(
            "<IIQQQQIIQQ",
            shstrings.find(name.encode() + b"\0"), kind, flags, at, at, size,
            1 if name in (".gnu.hash", ".gnu.version") else 3, 0, 1, entry,
        )
        for name, kind, flags, at, size, entry in sections
    )  # fmt: skip
    total = sections_at + len(table)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01" + bytes(9), 3, machine, 1, 0, 64, sections_at, 0, 64, 56, 3, 64,
        len(sections), len(sections) - 1,
    )  # fmt: skip
    segments = struct.pack("<IIQQQQQQ", 1, 7, 0, 0, 0, total, total, PAGE)
    segments += struct.pack(
        "<IIQQQQQQ", 2, 6, dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic), 8
    )
    segments += struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)
    image = bytearray(total)
    for at, data in (
        (0, header), (64, segments), (dynsym_at, symbols), (needs_at, needs),
        (hash_at, table_of_names), (versym_at, b"\1\0" * count),
        (strings_at, strings), (dynamic_at, dynamic), (fat_at, fat), (shstrings_at, shstrings),
        (sections_at, table),
    ):  # fmt: skip
        image[at : at + len(data)] = data
    return bytes(image)


def gnu_hash(name: bytes) -> int:
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def _verneed(versions, string) -> bytes:
    raw = b""
    for number, (library, names) in enumerate(versions.items(), 1):
        following = 16 + 16 * len(names) if number < len(versions) else 0
        raw += struct.pack("<HHIII", 1, len(names), string(library), 16, following)
        for count, name in enumerate(names, 1):
            step = 16 if count < len(names) else 0
            raw += struct.pack("<IHHII", sysv_hash(name.encode()), 0, 2, string(name), step)
    return raw


def _round(value: int, unit: int) -> int:
    return -(-value // unit) * unit


# HIP code objects -----------------------------------------------------------------------------


WRAPPER = b"FPIH" + struct.pack("<I", 1)  # of HIP's __CudaFatBinaryWrapper


def make_code(
    target: str,
    *,
    machine: int = 224,
    mach: int = 0,
    kernel: str = "add",
    descriptor: str = "add.kd",
    body: bytes = bytes.fromhex("000081bf"),
    kernels: object = None,
    compiler: str = "AMD clang version 22.0.0git (roc 1)",
) -> bytes:
    """A code object with one kernel, as lld lays it out, for a target id such as gfx942:xnack+."""
    name, _, features = target.partition(":")
    flags = mach or MACH.get(name, 0x4C)
    for feature in features.split(":"):
        flags |= {"xnack+": 0x300, "xnack-": 0x200, "sramecc+": 0xC00}.get(feature, 0)
    listed = [{".name": "add", ".symbol": "add.kd"}] if kernels is None else kernels
    metadata = msgspec.msgpack.encode(
        {"amdhsa.target": f"amdgcn-amd-amdhsa--{target}", "amdhsa.kernels": listed}
    )
    note = struct.pack("<III", 7, len(metadata), 32) + b"AMDGPU\0\0" + metadata
    strings = b"\0" + kernel.encode() + b"\0" + descriptor.encode() + b"\0"
    names = b"\0.note\0.dynsym\0.dynstr\0.rodata\0.text\0.comment\0"
    code = body.ljust(256, b"\0")
    parts = {
        ".note": note,
        ".dynsym": bytes(72),
        ".dynstr": strings,
        ".rodata": bytes(64),
        ".text": code,
    }
    parts[".comment"] = compiler.encode() + b"\0"
    at, places = 64, {}
    for part, content in parts.items():
        at = _round(at, 64)
        places[part] = at, len(content)
        at += len(content)
    descriptor_at, code_at = places[".rodata"][0], places[".text"][0]
    parts[".rodata"] = bytes(16) + struct.pack("<q", code_at - descriptor_at) + bytes(40)
    parts[".dynsym"] = bytes(24) + struct.pack("<IBBHQQ", 1, 0x12, 3, 5, code_at, len(body))
    second = len(kernel) + 2
    parts[".dynsym"] += struct.pack("<IBBHQQ", second, 0x11, 3, 4, descriptor_at, 64)
    kinds = {
        ".note": (7, 2),
        ".dynsym": (11, 2),
        ".dynstr": (3, 2),
        ".rodata": (1, 2),
        ".text": (1, 6),
    }
    table = bytes(64)
    for part, (start, size) in places.items():
        kind, flag = kinds.get(part, (1, 0))
        table += struct.pack(
            "<IIQQQQIIQQ",
            names.find(part.encode() + b"\0"),
            kind,
            flag,
            start,
            start,
            size,
            3,
            0,
            1,
            0,
        )
    names_at = _round(at, 8)
    table += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, names_at, len(names), 0, 0, 1, 0)
    sections_at = _round(names_at + len(names), 8)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01\x40\x03" + bytes(7), 3, machine, 1, 0, 0,
        sections_at, flags, 64, 56, 0, 64, len(parts) + 2, len(parts) + 1,
    )  # fmt: skip
    image = bytearray(sections_at + len(table))
    for start, content in (
        (0, header), *((places[part][0], content) for part, content in parts.items()),
        (names_at, names), (sections_at, table),
    ):  # fmt: skip
        image[start : start + len(content)] = content
    return bytes(image)


def make_bundle(
    targets: Iterable[str],
    *,
    prefix: str = "hipv4-",
    code: bytes | Callable[[str], bytes] = make_code,
) -> bytes:
    """An offload bundle with an empty host entry and `code` for each target id."""
    ids = {"host-x86_64-unknown-linux-gnu-": b""}
    for target in targets:
        ids[f"{prefix}amdgcn-amd-amdhsa--{target}"] = code(target) if callable(code) else code
    size = 32 + sum(24 + len(name) for name in ids)
    at = _round(size, PAGE)
    table, body = b"", b""
    for name, data in ids.items():
        table += struct.pack("<QQQ", at, len(data), len(name)) + name.encode()
        body += data + bytes(-len(data) % PAGE)
        at += _round(len(data), PAGE)
    front = b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(ids)) + table
    return front + bytes(-len(front) % PAGE) + body


def pack_bundle(bundle: bytes, *, version: int = 3, method: str = "zstd") -> bytes:
    """The bundle in a compressed wrapper of clang's format version 1, 2 or 3."""
    if method == "zstd":
        import zstandard

        body = zstandard.ZstdCompressor(level=3).compress(bundle)
    else:
        body = zlib.compress(bundle)
    number = 1 if method == "zstd" else 0
    digest = int.from_bytes(hashlib.md5(bundle).digest()[:8], "little")
    front = b"CCOB" + struct.pack("<HH", version, number)
    if version == 1:
        return front + struct.pack("<IQ", len(bundle), digest) + body
    layout = "<IIQ" if version == 2 else "<QQQ"
    total = len(front) + struct.calcsize(layout) + len(body)
    return front + struct.pack(layout, total, len(bundle), digest) + body


# Wheels ---------------------------------------------------------------------------------------


@dataclass
class File:
    """A member: content, permissions, compression, and the oddities of a writer."""

    content: bytes = b""
    mode: int = 0o644
    method: int = zipfile.ZIP_DEFLATED
    date: tuple[int, int, int, int, int, int] = (2026, 3, 12, 22, 24, 14)


@dataclass
class Wheel:
    """A wheel to be written; change what shall be odd about it with `but`."""

    project: str = "demo"
    version: str = "1.0"
    tag: str = "py3-none-manylinux_2_28_x86_64"
    files: dict[str, File] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    requires_python: str = ">=3.10"
    summary: str = "made by a test"
    entry_points: str = ""
    metadata: bytes | None = None
    wheel: bytes | None = None
    record: bytes | None = None
    dist_info_first: bool = False
    directories: bool = False
    comment: bytes = b""
    filename: str = ""
    tags: tuple[str, ...] | None = None

    def but(self, **changes) -> Wheel:
        return replace(self, **changes)

    @property
    def name(self) -> str:
        return self.filename or f"{self.stem}-{self.tag}.whl"

    @property
    def stem(self) -> str:
        return f"{self.project.replace('-', '_')}-{self.version}"

    @property
    def dist_info(self) -> str:
        return f"{self.stem}.dist-info"

    def members(self) -> dict[str, File]:
        """Every member in order, RECORD last."""
        pythons, abis, platforms = (part.split(".") for part in self.tag.split("-"))
        tags = self.tags or [f"{p}-{a}-{f}" for p in pythons for a in abis for f in platforms]
        metadata = [
            "Metadata-Version: 2.4", f"Name: {self.project}", f"Version: {self.version}",
            f"Summary: {self.summary}", f"Requires-Python: {self.requires_python}",
            *(f"Requires-Dist: {text}" for text in self.requires),
            *(f"Provides-Extra: {name}" for name in {
                name for text in self.requires for name in re.findall(r"extra == .([\w-]+)", text)
            }),
        ]  # fmt: skip
        wheel = ["Wheel-Version: 1.0", "Generator: test 1", "Root-Is-Purelib: false"]
        wheel += [f"Tag: {tag}" for tag in tags]
        info = {
            "METADATA": File(self.metadata or ("\n".join(metadata) + "\n\nBody: kept\n").encode()),
            "WHEEL": File(self.wheel or ("\n".join(wheel) + "\n").encode()),
        }
        if self.entry_points:
            info["entry_points.txt"] = File(self.entry_points.encode())
        info = {f"{self.dist_info}/{name}": file for name, file in info.items()}
        found = {**info, **self.files} if self.dist_info_first else {**self.files, **info}
        if self.directories:
            folders = {name.rpartition("/")[0] + "/" for name in found if "/" in name}
            found = {**{name: File(mode=0o40755) for name in sorted(folders)}, **found}
        record = f"{self.dist_info}/RECORD"
        found[record] = File(self.record or make_record(found, record), mode=0o664)
        return found

    def write(self, folder: Path) -> Path:
        """Write it with Python's zipfile."""
        path = folder / self.name
        with zipfile.ZipFile(path, "w") as archive:
            archive.comment = self.comment
            for name, file in self.members().items():
                info = zipfile.ZipInfo(name, file.date)
                info.compress_type = zipfile.ZIP_STORED if name.endswith("/") else file.method
                info.create_system = 3
                kind = 0o040000 if name.endswith("/") else 0o100000
                info.external_attr = (file.mode | kind) << 16
                archive.writestr(info, file.content)
        return path


def make_record(members: Mapping[str, File], own: str) -> bytes:
    """RECORD of these members."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    for name, file in members.items():
        if not name.endswith("/") and name != own:
            writer.writerow([name, digest(file.content), len(file.content)])
    writer.writerow([own, "", ""])
    return sink.getvalue().encode()


def digest(content: bytes) -> str:
    """A SHA-256 as RECORD writes it."""
    raw = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return "sha256=" + raw.rstrip(b"=").decode()


GFX = ("gfx942", "gfx1100")


def plugin(
    *, number: str = "7", version: str = "0.9.1", gfx: Sequence[str] = GFX, **changes
) -> Wheel:
    """A small wheel of the plugin kind that breaks no rule."""
    package = f"jax_rocm{number}_plugin"
    made = Wheel(
        project=f"jax-rocm{number}-plugin",
        version=version,
        tag="cp312-cp312-manylinux_2_27_x86_64",
        requires=(f"jax-rocm{number}-pjrt=={version}",),
        files={
            f"{package}/__init__.py": File(),
            f"{package}/_linalg.so": File(
                make_elf(
                    needed=("libhipblas.so.3", "libamdhip64.so.7", "libc.so.6"),
                    runpath=":".join(SHORT_RUNPATH),
                    versions={"libc.so.6": ("GLIBC_2.2.5", "GLIBC_2.17")},
                    exports=("PyInit__linalg",),
                    imports=("PyErr_Clear", "hipMalloc"),
                    bundles=(make_bundle(gfx),),
                ),
                mode=0o755,
            ),
            f"{package}/version.py": File(version_module(version)),
            **{
                f"{package}/{name}.so": File(
                    make_elf(runpath=":".join(SHORT_RUNPATH), exports=(f"PyInit_{name}",)),
                    mode=0o755,
                )
                for name in PLUGIN_MODULES
            },
        },
    )
    return made.but(**changes)


def pjrt(
    *,
    number: str = "7",
    version: str = "0.9.1",
    gfx: Sequence[str] = GFX,
    glibc: str = "GLIBC_2.28",
    **changes,
) -> Wheel:
    """A small wheel of the pjrt kind that breaks no rule."""
    package = f"jax_plugins/xla_rocm{number}"
    made = Wheel(
        project=f"jax-rocm{number}-pjrt",
        version=version,
        tag="py3-none-manylinux_2_28_x86_64",
        entry_points=f"[jax_plugins]\nxla_rocm{number} = jax_plugins.xla_rocm{number}\n",
        files={
            f"{package}/__init__.py": File(b"def initialize():\n    pass\n"),
            f"{package}/version.py": File(version_module(version)),
            f"{package}/xla_rocm_plugin.so": File(
                make_elf(
                    needed=("libamdhip64.so.7", "libc.so.6"),
                    runpath=":".join(SHORT_RUNPATH),
                    versions={"libc.so.6": (glibc,)},
                    exports=("GetPjrtApi",),
                    bundles=(pack_bundle(make_bundle(gfx)),),
                ),
                mode=0o755,
            ),
        },
    )
    return made.but(**changes)


def _taken(module: str) -> bytes:
    """Return a module with the names that JAX takes from it."""
    names = POLICY.kinds[WheelKind.JAXLIB].names.get(module, ())
    return "".join(f"{name} = None\n" for name in names).encode()


def jaxlib(*, version: str = "0.9.1", **changes) -> Wheel:
    """A small wheel of the jaxlib kind that breaks no rule."""
    made = Wheel(
        project="jaxlib",
        version=version,
        tag="cp312-cp312-manylinux_2_27_x86_64",
        requires=("numpy>=2.0", "scipy>=1.14", "ml_dtypes>=0.5.0"),
        files={
            **{f"jaxlib/{name}.py": File(_taken(f"jaxlib/{name}.py")) for name in JAXLIB_SOURCES},
            "jaxlib/version.py": File(version_module(version)),
            "jaxlib/xla_client.py": File(b"from . import _jax\n" + _taken("jaxlib/xla_client.py")),
            "jaxlib/libjax_common.so": File(make_elf(soname="libjax_common.so"), mode=0o755),
            "jaxlib/_jax.so": File(
                make_elf(
                    needed=("libjax_common.so",), runpath="$ORIGIN/", exports=("PyInit__jax",)
                ),
                mode=0o755,
            ),
            **{
                f"jaxlib/{name}.so": File(
                    make_elf(runpath="$ORIGIN", exports=(f"PyInit_{name.rpartition('/')[2]}",)),
                    mode=0o755,
                )
                for name in JAXLIB_MODULES
            },
        },
    )
    return made.but(**changes)


def write_large(folder: Path, *, stored: int, deflated: int) -> Path:
    """A sound pjrt wheel with that many MiB of stored and of deflated data, never in memory."""
    made = pjrt()
    members = made.members()
    record = f"{made.dist_info}/RECORD"
    rows = members.pop(record).content.decode()
    path = folder / made.name
    with zipfile.ZipFile(path, "w") as archive:
        for name, count, method in (("random.bin", stored, 0), ("quarter.bin", deflated, 8)):
            block = os.urandom(1 << 18) + bytes((1 << 20) - (1 << 18))
            info = zipfile.ZipInfo(f"jax_plugins/xla_rocm7/{name}")
            info.compress_type = method
            info.external_attr = 0o100644 << 16
            sha256 = hashlib.sha256()
            with archive.open(info, "w", force_zip64=True) as sink:
                for _ in range(count):
                    sink.write(block)
                    sha256.update(block)
            raw = base64.urlsafe_b64encode(sha256.digest()).rstrip(b"=").decode()
            rows = f"{info.filename},sha256={raw},{count << 20}\n{rows}"
        for name, file in {**members, record: File(rows.encode())}.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (file.mode | 0o100000) << 16
            archive.writestr(info, file.content)
    return path


def manifest(*paths: Path) -> Manifest:
    """The manifest of a set of these wheels."""
    nowhere = Source(repository="", commit="a" * 40)
    entries = []
    for path in paths:
        report = inspect(path)
        kind = report.project.rpartition("-")[2]
        entries.append(
            WheelEntry(
                kind=kind,
                filename=path.name,
                project=report.project,
                version=report.version,
                tags=report.tags,
                python="3.12" if kind == "plugin" else "",
                size=report.size,
                sha256=report.sha256,
                gfx_targets=report.gfx_targets,
            )
        )
    return Manifest(
        jax_version="0.9.1",
        rocm=RocmSource(
            version="7.10.0",
            header_version="7.10.0",
            sha256="0" * 64,
            origin="tarball",
            name="x",
            delivery=ON_DISK,
        ),
        tool=nowhere,
        jax=nowhere,
        xla=nowhere,
        builder_image="",
        bazel_version="7.4.1",
        gfx_targets=("gfx1100", "gfx942"),
        pythons=("3.12",),
        options={},
        wheels=tuple(entries),
    )


def version_module(version: str) -> bytes:
    """A version.py as JAX's builders leave it: the assignment, and code that repeats it."""
    return (
        f'_version = "{version.split("+", maxsplit=1)[0]}"\n'
        f"_release_version: str = '{version}'\n"
        f"_git_hash: str = '{'a1' * 20}'\n"
        f"old = \"_release_version: str = '{version}'\"\n"
        "__version__ = _release_version\n"
    ).encode()


# Archives by hand -----------------------------------------------------------------------------


STAMP = (0x6000, 0x5C6C)  # DOS time and date of every entry


@dataclass
class Entry:
    """One member of an archive written by hand; None takes the true value."""

    name: bytes
    content: bytes = b""
    method: int = 8
    flags: int = 0
    mode: int | None = None  # by default a file's, or a folder's where the name ends with /
    made_by: int = 3
    local_name: bytes | None = None
    local_flags: int | None = None
    local_method: int | None = None
    local_size: int | None = None
    packed: bytes | None = None
    crc: int | None = None
    size: int | None = None
    compressed: int | None = None
    extra: bytes = b""
    local_extra: bytes = b""
    zip64: bool = False  # of the local header
    descriptor: str = ""  # "", "signed", "plain", "signed64": sizes follow the data
    before: bytes = b""  # bytes in front of the local header
    offset: int | None = None
    disk: int = 0
    needed: int = 20  # version of the format, times ten
    member_comment: bytes = b""
    dos: int = 0  # attributes as DOS has them
    local_stamp: tuple[int, int] | None = None  # DOS time and date of the local header


@dataclass
class Zip:
    """An archive written by hand; the fields lie where the truth would be dull."""

    entries: list[Entry]
    prefix: bytes = b""
    suffix: bytes = b""
    comment: bytes = b""
    count: int | None = None
    directory_size: int | None = None
    directory_offset: int | None = None
    disk: int = 0
    zip64: bool = False
    gap: bytes = b""  # between the members and the directory
    after_directory: bytes = b""
    end_twice: bool = False
    order: Sequence[int] | None = None  # in which the directory lists the entries

    def to_bytes(self) -> bytes:
        out = bytearray(self.prefix)
        listed = []
        for entry in self.entries:
            out += entry.before
            offset = len(out)
            local, record = _entry(entry, offset)
            out += local
            listed.append(record)
        if self.order:
            listed = [listed[number] for number in self.order]
        records = b"".join(listed)
        out += self.gap
        at = len(out)
        out += records + self.after_directory
        count = len(self.entries) if self.count is None else self.count
        size = len(records) if self.directory_size is None else self.directory_size
        start = at if self.directory_offset is None else self.directory_offset
        if self.zip64:
            end = len(out)
            out += struct.pack(
                "<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, size, start
            )
            out += struct.pack("<IIQI", 0x07064B50, 0, end, 1)
        for _ in range(1 + self.end_twice):
            out += struct.pack(
                "<IHHHHIIH", 0x06054B50, self.disk, 0, count, count,
                0xFFFFFFFF if self.zip64 else size, 0xFFFFFFFF if self.zip64 else start,
                len(self.comment),
            ) + self.comment  # fmt: skip
        return bytes(out) + self.suffix


def _entry(entry: Entry, offset: int) -> tuple[bytes, bytes]:
    packed = entry.packed
    if packed is None:
        packed = deflated(entry.content) if entry.method == 8 else entry.content
    crc = zlib.crc32(entry.content) if entry.crc is None else entry.crc
    size = len(entry.content) if entry.size is None else entry.size
    compressed = len(packed) if entry.compressed is None else entry.compressed
    flags = entry.flags | (8 if entry.descriptor else 0)
    local_name = entry.name if entry.local_name is None else entry.local_name
    shown = (0, 0, 0) if entry.descriptor else (crc, compressed, size)
    local_extra = entry.local_extra
    if entry.zip64:
        local_extra = struct.pack("<HHQQ", 1, 16, shown[2], shown[1]) + local_extra
        shown = (shown[0], 0xFFFFFFFF, 0xFFFFFFFF)
    if entry.local_size is not None:
        shown = (shown[0], shown[1], entry.local_size)
    local = struct.pack(
        "<IHHHHHIIIHH", 0x04034B50, entry.needed,
        flags if entry.local_flags is None else entry.local_flags,
        entry.method if entry.local_method is None else entry.local_method,
        *(entry.local_stamp or STAMP), *shown, len(local_name), len(local_extra),
    ) + local_name + local_extra + packed  # fmt: skip
    if entry.descriptor:
        body = struct.pack("<IQQ" if "64" in entry.descriptor else "<III", crc, compressed, size)
        local += (b"PK\7\x08" if entry.descriptor.startswith("signed") else b"") + body
    mode = entry.mode
    if mode is None:
        mode = 0o40755 if entry.name.endswith(b"/") else 0o100644
    record = struct.pack(
        "<IHHHHHHIIIHHHHHII", 0x02014B50, entry.made_by << 8 | 20, entry.needed, flags, entry.method,
        *STAMP, crc, compressed, size, len(entry.name), len(entry.extra), len(entry.member_comment),
        entry.disk, 0, mode << 16 & 0xFFFFFFFF | entry.dos, offset if entry.offset is None else entry.offset,
    ) + entry.name + entry.extra + entry.member_comment  # fmt: skip
    return local, record


def deflated(content: bytes) -> bytes:
    """A raw deflate stream."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(content) + packer.flush()


def entries(wheel: Wheel) -> list[Entry]:
    """A wheel's members, to be written by hand."""
    return [
        Entry(
            name=name.encode(), content=file.content, method=file.method, mode=file.mode | 0o100000
        )
        for name, file in wheel.members().items()
    ]
