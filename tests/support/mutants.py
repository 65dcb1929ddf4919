"""Wheels with one thing changed: those that cannot work any more, and those that still do.

A mutant edits members of a wheel that exists, synthetic or published; RECORD follows, so that only
the change itself can be found. What one rule of `verify` says alone is in `test_verify.py`.
"""

from __future__ import annotations

import csv
import io
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support.wheels import digest

from rocwheel.wheel.zip_reader import ZipArchive
from rocwheel.wheel.zip_writer import ZipPart, write


@dataclass
class Draft:
    """A wheel that is being changed."""

    archive: ZipArchive
    edits: dict[str, bytes | None] = field(default_factory=dict)  # None: the member is left out
    mode: int = 0  # of every file, where it is changed

    @property
    def info(self) -> str:
        return next(n.split("/")[0] for n in self.archive.by_name if ".dist-info/" in n)

    @property
    def release(self) -> str:
        return self.archive.path.name.split("-")[1].partition("+")[0]

    def name(self, ending: str) -> str:
        """Return the one member that ends so."""
        (name,) = (each for each in self.archive.by_name if each.endswith(ending))
        return name

    def read(self, ending: str) -> bytes:
        return b"".join(self.archive.stream(self.archive.by_name[self.name(ending)]))

    def put(self, ending: str, content: bytes) -> None:
        self.edits[self.name(ending)] = content

    def replace(self, ending: str, old: bytes, new: bytes) -> None:
        content = self.read(ending)
        assert old in content, (ending, old)
        self.put(ending, content.replace(old, new))

    def drop(self, ending: str) -> None:
        self.edits[self.name(ending)] = None

    def add(self, name: str, content: bytes) -> None:
        self.edits[name] = content

    def write(self, folder: Path) -> Path:
        """Write the changed wheel."""
        self._record()
        path = folder / self.archive.path.name
        parts: list[ZipPart] = []
        for member in self.archive.members:
            mode = 0 if member.is_dir else self.mode
            content = self.edits.get(member.name, b"")
            if member.name not in self.edits:
                parts.append(ZipPart(member=member, name=member.name, mode=mode))
            elif content is not None:
                parts.append(ZipPart(member=member, name=member.name, content=content, mode=mode))
        like = self.archive.by_name[self.name("/RECORD")]
        parts += [
            ZipPart(member=like, name=name, content=content)
            for name, content in self.edits.items()
            if name not in self.archive.by_name and content is not None
        ]
        with path.open("wb") as file:
            write(parts, self.archive, file.fileno())
        return path

    def _record(self) -> None:
        rows = {row[0]: row for row in csv.reader(io.StringIO(self.read("/RECORD").decode()))}
        for name, content in self.edits.items():
            if content is None:
                rows.pop(name, None)
            elif not name.endswith("/RECORD"):
                rows[name] = [name, digest(content), str(len(content))]
        sink = io.StringIO()
        csv.writer(sink, lineterminator="\n").writerows(rows.values())
        self.put("/RECORD", sink.getvalue().encode())


Edit = Callable[[Draft], None]


def _bytes(ending: str, at: int, *values: int) -> Edit:
    """Write bytes into a file."""

    def edit(draft: Draft) -> None:
        image = bytearray(draft.read(ending))
        image[at : at + len(values)] = bytes(values)
        draft.put(ending, bytes(image))

    return edit


def _segment(ending: str, kind: int, field: int, value: int) -> Edit:
    """Change the flags (field 1) or another field of the first program header of a kind."""

    def edit(draft: Draft) -> None:
        image = bytearray(draft.read(ending))
        heads = range(64, 64 + 56 * struct.unpack_from("<H", image, 56)[0], 56)
        (at, *_) = (n for n in heads if struct.unpack_from("<I", image, n)[0] == kind)
        layout, place = ("<I", 4) if field == 1 else ("<Q", 8 * (field - 1))
        struct.pack_into(layout, image, at + place, value)
        draft.put(ending, bytes(image))

    return edit


def _beside(ending: str, name: str, content: bytes = b"") -> Edit:
    """Add a file in the folder of another; `{}` is that one's name without its suffix."""

    def edit(draft: Draft) -> None:
        folder, _, file = draft.name(ending).rpartition("/")
        draft.add(f"{folder}/{name.format(file.partition('.')[0])}", content)

    return edit


def _truncated(ending: str) -> Edit:
    def edit(draft: Draft) -> None:
        content = next(draft.archive.stream(draft.archive.by_name[draft.name(ending)]))
        draft.put(ending, content[: len(content) // 2])

    return edit


def _renamed(old: str, new: str) -> Edit:
    def edit(draft: Draft) -> None:
        name = draft.name(old)
        draft.add(name.removesuffix(old) + new, draft.read(old))
        draft.drop(old)

    return edit


def _more(ending: str, content: bytes) -> Edit:
    """Let a module of the wheel's package end otherwise."""

    def edit(draft: Draft) -> None:
        name = draft.name("/version.py").removesuffix("/version.py") + ending
        old = b"".join(draft.archive.stream(draft.archive.by_name[name]))
        draft.edits[name] = old + b"\n" + content

    return edit


def _version_is(value: bytes) -> Edit:
    return lambda draft: draft.put(
        "/version.py",
        draft.read("/version.py").replace(b"\n__version__ =", b"\n__was__ =")
        + b"\ndef _get(): return '1'\n__version__ = " + value + b"\n",
    )  # fmt: skip


def _hidden(draft: Draft) -> None:
    folder = draft.name("/version.py").removesuffix("/version.py")
    draft.add(f"{folder}/x/__init__.py", b"y = 1\n")
    draft.add(f"{folder}/x.py", b"")
    _more("/version.py", b"from .x import y\n")(draft)


def _modes(draft: Draft) -> None:
    draft.mode = 0o100600


def _init(content: bytes) -> Edit:
    return lambda draft: draft.put(PACKAGE, content)


PACKAGE = "/__init__.py"
COMMON: dict[str, Edit] = {
    "no version module": lambda d: d.drop("/version.py"),
    "a version module that does not compile": lambda d: d.put("/version.py", b"def f(:\n"),
    "a version module of another release": lambda d: d.put(
        "/version.py", b"_release_version: str = '0.1.0'\n"
    ),
    "a version module that says it twice": lambda d: d.put(
        "/version.py", d.read("/version.py") + b"\n_release_version = '0.1.0'\n"
    ),
    "an import of what is not inside": _more("/version.py", b"from . import _nowhere\n"),
    "an import beyond the package": _more("/version.py", b"from .... import x\n"),
    "an import of a name that a module lacks": _more(PACKAGE, b"from .version import nowhere\n"),
    "a version module that is of none and another": lambda d: d.put(
        "/version.py", b"_version = '0.1.0'\n_release_version = None\n__version__ = _version\n"
    ),
    "a version in place of the one before": _more("/version.py", b"__version__ = '0.1.0'\n"),
    "a version that begins with a letter": lambda d: d.put(
        "/version.py", re.sub(rb"(_version[^\n]*= *['\"])", rb"\1v", d.read("/version.py"))
    ),
    "a module that raises": _more("/version.py", b"raise ImportError('moved')\n"),
    "a module that asserts what is false": _more("/version.py", b"assert False, 'moved'\n"),
    "a value that was not quoted": _more("/version.py", b"_git_hash: str = a9e8b97\n"),
    "a base class that nothing binds": _more(PACKAGE, b"class Moved(Nowhere):\n    pass\n"),
    "a module that ends the process": _more("/version.py", b"import sys\nsys.exit(0)\n"),
    "a package for the version module": _beside("/version.py", "version/__init__.py"),
    "a variant of the version module": _beside("/version.py", "version.abi3.so", b"text"),
}
BROKEN: dict[str, dict[str, Edit]] = {
    "pjrt": {
        **COMMON,
        "no package": lambda d: d.drop(PACKAGE),
        "a package that does not compile": lambda d: d.put(PACKAGE, b"import os\ndef f(:\n"),
        "a package without initialize": lambda d: d.replace(
            PACKAGE, b"def initialize", b"def initialise"
        ),
        "a function that is never defined": _init(b"if False:\n    def initialize():\n        pass\n"),
        "a function to be awaited": _init(b"async def initialize():\n    pass\n"),
        "a function that is deleted": _init(b"def initialize():\n    pass\ndel initialize\n"),
        "a function that registers nothing": _init(b"import os\ninitialize = os.getpid\n"),
        "a function that yields": _init(b"def initialize():\n    yield\n"),
        "a value that is no function": _init(b"initialize = None\n"),
        "a lambda that wants an argument": _init(b"initialize = lambda x: x\n"),
        "a function of a function": _init(b"def f():\n    initialize = print\n"),
        "a function of a class": _init(b"class X:\n    def initialize():\n        pass\n"),
        "a compiled package": _beside(PACKAGE, "{}.cpython-312-x86_64-linux-gnu.so", b"text"),
        "another module": lambda d: d.replace("/entry_points.txt", b".xla_rocm", b".xla_cuda"),
        "entry points in UTF-16": lambda d: d.put(
            "/entry_points.txt", d.read("/entry_points.txt").decode().encode("utf-16")
        ),
        "entry points in Latin-1": lambda d: d.put(
            "/entry_points.txt", b"# \xe9\n" + d.read("/entry_points.txt")
        ),
        "a line without a name": lambda d: d.put("/entry_points.txt", b"[jax_plugins]\njax_plugins\n"),
        "no library": lambda d: d.drop("/xla_rocm_plugin.so"),
        "a library that is a text": lambda d: d.put("/xla_rocm_plugin.so", b"version https://git-lfs"),
        "half a library": _truncated("/xla_rocm_plugin.so"),
        "a library of another name": lambda d: d.edits.update({
            d.name("/xla_rocm_plugin.so"): None, d.name(PACKAGE)[:-11] + "pjrt.so": b"\x7fELF",
        }),
        "a namespace that is none": lambda d: d.add("jax_plugins/__init__.py", b""),
    },
    "plugin": {
        **COMMON,
        "a version module without what JAX reads": lambda d: d.replace(
            "/version.py", b"\n__version__ =", b"\n__release__ ="
        ),
        **{
            f"no {name}": lambda d, name=name: d.drop(f"/{name}.so")
            for name in (
                "_hybrid", "_linalg", "_prng", "_rnn", "_solver", "_sparse", "_triton",
                "rocm_plugin_extension",
            )
        },
        "a module that is a text": lambda d: d.put("/_hybrid.so", b"text"),
        "half a module": _truncated("/_linalg.so"),
        "a module in another's place": lambda d: d.put("/_rnn.so", d.read("/_prng.so")),
        "a module of another name": _renamed("/_linalg.so", "/_linalg2.so"),
        "a module of another system": _bytes("/_linalg.so", 7, 9),
        "a module of another ABI": _bytes("/_linalg.so", 8, 1),
        "an object file": _bytes("/_linalg.so", 16, 1),
        "a program": _bytes("/_linalg.so", 16, 2),
        "a module of 32 bits": _bytes("/_linalg.so", 4, 1),
        "memory that no machine has": _segment("/_linalg.so", 1, 6, 1 << 46),
        "an executable stack": _segment("/_linalg.so", 0x6474E551, 1, 7),
        "a package for a module": _beside("/_linalg.so", "{}/__init__.py"),
        "a stable variant of a module": _beside("/_linalg.so", "{}.abi3.so", b"text"),
        "a variant of a module for one CPython": _beside(
            "/_linalg.so", "{}.cpython-312-x86_64-linux-gnu.so", b"text"
        ),
        "a name that nothing defines": lambda d: d.replace(
            "/_linalg.so", b"\0PyErr_Clear\0", b"\0_ZN3xla3Run\0"
        ),
    },
    "jaxlib": {
        **COMMON,
        "a version module without what JAX reads": lambda d: d.replace(
            "/version.py", b"\n__version__ =", b"\n__release__ ="
        ),
        **{
            f"a version that is {value.decode()}": _version_is(value)
            for value in (b"None", b"12", b"_get")
        },
        "a version that is deleted": _more("/version.py", b"del __version__\n"),
        "no common library": lambda d: d.drop("/libjax_common.so"),
        **{
            f"no {name}": lambda d, name=name: d.drop(f"/{name}")
            for name in (
                "_lapack.so", "_ifrt_proxy.so", "_profiler.so", "xla_client.py", "lapack.py",
                "gpu_solver.py", "mlir/dialects/stablehlo.py", "mosaic/python/tpu.py",
            )
        },
        **{
            f"an empty {name}": lambda d, name=name: d.put(f"/{name}", b"# moved\n")
            for name in (
                "xla_client.py", "lapack.py", "gpu_solver.py", "mlir/passmanager.py",
                "mlir/dialects/func.py", "mlir/dialects/stablehlo.py",
            )
        },
        "a module without one name that JAX takes": lambda d: d.replace(
            "/xla_client.py", b"make_cpu_client", b"made_cpu_client"
        ),
        "a module that exports nothing": lambda d: d.put("/_lapack.so", d.read("/libjax_common.so")),
        "a package for a library": _beside("/_jax.so", "{}/__init__.py"),
        "a module of another system": _bytes("/_jax.so", 7, 9),
    },
}  # fmt: skip
WORKING: dict[str, Edit] = {
    "nothing": lambda _: None,
    "modes for the owner only": _modes,
    "a version module that says None": lambda d: d.put(
        "/version.py",
        f"_release_version: str | None = None\n__version__ = '{d.release}.dev20260101'\n".encode(),
    ),
    "a release that was written over": lambda d: d.replace(
        "/version.py", b'_version = "', b'_version = "9'
    ),
    "an import of what Python has": _more("/version.py", b"import json, os.path\n"),
    "a module more": lambda d: d.add(d.name("/version.py")[:-3] + "_more.py", b"x = 1\n"),
    "a module that a package hides": _hidden,
    "a licence more": lambda d: d.add(f"{d.info}/licenses/MORE.txt", b"text\n"),
    "an interface more": _beside("/version.py", "version.pyi"),
    "a folder with a module's name": _beside("/version.py", "version/data.txt"),
    "a field more": lambda d: d.replace(".dist-info/METADATA", b"\nName:", b"\nKeywords: x\nName:"),
}


SOUND: dict[str, dict[str, Edit]] = {
    "pjrt": WORKING,
    "plugin": WORKING,
    "jaxlib": WORKING,
}  # fmt: skip


def mutants(path: Path, folder: Path, edits: dict[str, Edit]) -> Iterator[tuple[str, Path]]:
    """Write each changed wheel in turn, in a folder of its own that is empty again afterwards."""
    for title, edit in edits.items():
        with ZipArchive(path) as archive:
            draft = Draft(archive)
            edit(draft)
            made = draft.write(folder)
        yield title, made
        made.unlink()
