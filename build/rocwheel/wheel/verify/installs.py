"""Rules that pip and uv decide: both install the set by hash, and install the same files.

Each client installs into a scratch folder, without network, configuration or cache. No installed
code runs: no byte-code is made, no build happens. A refusal, or a difference between the folders,
is a finding; halves of a refused set are tried until the wheel is known. Both are dependencies.
"""

import os
import re
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple

import uv
from packaging.specifiers import SpecifierSet

from rocwheel.base import files
from rocwheel.base.errors import CommandError
from rocwheel.base.process import Command, HostRunner, Runner
from rocwheel.base.versions import CPYTHONS
from rocwheel.wheel.metadata import KeyValueText, WheelName, dist_info, specifiers
from rocwheel.wheel.verify.rules import Finding, finding
from rocwheel.wheel.zip_reader import ZipArchive

SECONDS: Final = 600  # that one client may take
PROGRAMS: Final = "bin/"  # programs differ in their text: each client writes its own
OWN: Final = re.compile(
    r"\.lock\Z|.*\.dist-info/(?:RECORD|INSTALLER|REQUESTED|(?:direct_url|uv_cache)\.json)\Z"
)
HEADERS: Final = re.compile(r"include/site/python3\.[0-9]+/")  # where pip's --target has headers
_CPYTHON: Final = re.compile(r"cp3[0-9]+t?\Z")
Installed = Mapping[str, tuple[str, int]]  # path -> SHA-256 and permission bits


class Installers(NamedTuple):
    """pip and uv as they are installed with us, and where they install."""

    runner: HostRunner
    folder: Path | None = None  # for scratch folders, which take what a set has unpacked

    @property
    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("pip", "uv")}

    def __str__(self) -> str:
        return " and ".join(f"{name} {number}" for name, number in self.versions.items())


def install(
    paths: Sequence[Path],
    client: str,
    abi: str,
    scratch: Path,
    runner: Runner,
    *,
    python: Path | None = None,
) -> Path:
    """Install wheels by hash into a folder of the client's name, for our Python or another."""
    names = {path: WheelName.parse(path.name) for path in paths}
    lines = (
        f"{name.project} @ {path.absolute().as_uri()} --hash=sha256:{files.sha256(path)}\n"
        for path, name in names.items()
    )
    (scratch / "requirements.txt").write_text("".join(lines), encoding="utf-8")
    other = ("--python-version", f"3.{minor_of(abi)}")
    if client == "uv":
        by = (
            uv.find_uv_bin(), "pip", "install", "--offline", "--no-config", "--no-build",
            "--link-mode", "hardlink", "--cache-dir", str(scratch / "cache"),
            "--python", str(python or sys.executable),
            *(() if python else (*other, "--python-platform", "x86_64-manylinux_2_40")),
        )  # fmt: skip
    else:
        platforms = sorted({tag for name in names.values() for tag in name.platforms})
        by = (
            sys.executable, "-m", "pip", "--isolated", "install", *other,
            "--no-cache-dir", "--no-compile", "--only-binary=:all:",
            "--disable-pip-version-check", "--ignore-requires-python", "--implementation", "cp",
            *(part for each in (abi, "abi3", "none") for part in ("--abi", each)),
            *(part for platform in platforms for part in ("--platform", platform)),
        )  # fmt: skip
    argv = (
        *by, "--quiet", "--no-deps", "--no-index", "--require-hashes",
        "--target", str(scratch / client), "--requirement", str(scratch / "requirements.txt"),
    )  # fmt: skip
    own = {"PIP_CONFIG_FILE": os.devnull}  # --isolated leaves out that of the user alone
    runner.capture(Command(argv=argv, timeout=SECONDS, env=own))
    shutil.rmtree(scratch / "cache", ignore_errors=True)
    return scratch / client


def installs(paths: Sequence[Path], by: Installers) -> Mapping[Path, tuple[Finding, ...]]:
    """Install wheels that belong together, for each Python they are for; path -> findings."""
    names = {path: WheelName.parse(path.name) for path in paths}
    abis = {abi for name in names.values() if (abi := abi_of(name))}
    problems: dict[Path, list[Finding]] = defaultdict(list)
    for abi in sorted(abis, key=minor_of) or [_admitted(paths)]:
        fitting = [path for path, name in names.items() if abi_of(name) in ("", abi)]
        for path, item in _tried(fitting, abi, by):
            problems[path].append(item)
    return {path: tuple(dict.fromkeys(problems[path])) for path in paths}


def _admitted(paths: Sequence[Path]) -> str:
    """Return our own CPython, or the newest that wheels for several admit."""
    required = list[SpecifierSet]()
    for path in paths:
        with ZipArchive(path) as archive:
            core = f"{dist_info(archive.by_name, path=path)}/METADATA"
            text = KeyValueText(archive.read(core), name=str(path)).get("Requires-Python")
        required.append(specifiers(text) or SpecifierSet())
    own = sys.version_info.minor
    newest = (int(each.partition(".")[2]) for each in reversed(CPYTHONS) if "-" not in each)
    fitting = (x for x in (own, *newest) if all(each.contains(f"3.{x}.99") for each in required))
    return f"cp3{next(fitting, own)}"


def abi_of(name: WheelName) -> str:
    """Return the ABI of the one CPython a wheel is for; "" where it is for several."""
    return name.abis[0] if _CPYTHON.match(name.abis[0]) else ""


def minor_of(abi: str) -> int:
    return int(abi.removeprefix("cp3").removesuffix("t"))


def _tried(paths: Sequence[Path], abi: str, by: Installers) -> Iterator[tuple[Path, Finding]]:
    # uv takes a free-threaded ABI only of an interpreter that is one.
    clients = ("pip",) if abi.endswith("t") else ("pip", "uv")
    trees: list[Installed] = []
    refused: list[tuple[Path, Finding]] = []
    with tempfile.TemporaryDirectory(prefix=".installs-", dir=by.folder) as scratch:
        try:
            where = abi, Path(scratch), by.runner
            trees = [_files(install(paths, client, *where)) for client in clients]
        except CommandError as exc:
            refused = [(path, finding("install.refused", _reason(exc))) for path in paths]
    if not trees:
        middle = len(paths) // 2
        halves = (paths[:middle], paths[middle:]) if middle else ()
        yield from [item for half in halves for item in _tried(half, abi, by)] or refused
        return
    for path in sorted(trees[0].keys() | trees[-1].keys()):
        first, last = trees[0].get(path), trees[-1].get(path)
        if first != last:
            shown = (f"{f[0][:12]} mode {f[1]:04o}" if f else "absent" for f in (first, last))
            what = "{}: {} with pip, {} with uv".format(path, *shown)
            for wheel in paths:
                yield wheel, finding("install.differs", what)


def _reason(failure: CommandError) -> str:
    lines = [line.strip() for line in failure.detail.splitlines() if re.search("[A-Za-z]", line)]
    errors = [line for line in lines if line.lower().startswith("error")]
    return " ".join([*errors[:1], *lines[-1:]]) if lines else str(failure)


def _files(folder: Path) -> Installed:
    installed: dict[str, tuple[str, int]] = {}
    for path in folder.rglob("*"):
        name = HEADERS.sub("include/", path.relative_to(folder).as_posix())
        if path.is_file() and not OWN.match(name):
            digest = "a program" if name.startswith(PROGRAMS) else files.sha256(path)
            installed[name] = digest, path.stat().st_mode & 0o777
    shutil.rmtree(folder)
    return installed
