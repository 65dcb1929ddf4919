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

from rocwheel.base import files
from rocwheel.base.errors import CommandError
from rocwheel.base.process import Command, Runner
from rocwheel.wheel.metadata import WheelName
from rocwheel.wheel.verify.rules import Finding, finding

SECONDS: Final = 600  # that one client may take
PROGRAMS: Final = "bin/"  # programs differ in their text: each client writes its own
OWN: Final = re.compile(
    r"\.lock\Z|.*\.dist-info/(?:RECORD|INSTALLER|REQUESTED|(?:direct_url|uv_cache)\.json)\Z"
)
HEADERS: Final = re.compile(r"include/site/python3\.[0-9]+/")  # where pip's --target has headers
_CPYTHON: Final = re.compile(r"cp3([0-9]+)\Z")
Installed = Mapping[str, tuple[str, int]]  # path -> SHA-256 and permission bits


class InstallTarget(NamedTuple):
    """The Python that wheels are installed for."""

    minor: int
    abi: str  # "cp312", "cp313t"


class Installers(NamedTuple):
    """pip and uv as they are installed with us, and where they install."""

    runner: Runner
    folder: Path | None = None  # for scratch folders, which take what a set has unpacked

    @property
    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("pip", "uv")}

    def __str__(self) -> str:
        return " and ".join(f"{name} {number}" for name, number in self.versions.items())


def _command(
    client: str, target: InstallTarget, platforms: Sequence[str], scratch: Path
) -> Command:
    """Return the command that installs `requirements.txt` into a folder of the client's name."""
    more: tuple[str, ...]
    if client == "uv":
        more = (
            uv.find_uv_bin(), "pip", "install",
            "--offline", "--no-config", "--no-build", "--link-mode", "hardlink",
            "--cache-dir", str(scratch / "cache"), "--python", sys.executable,
            "--python-platform", "x86_64-manylinux_2_40",
        )  # fmt: skip
    else:
        more = (
            sys.executable, "-m", "pip", "--isolated", "install",
            "--no-cache-dir", "--no-compile", "--only-binary=:all:",
            "--disable-pip-version-check", "--ignore-requires-python", "--implementation", "cp",
            *(part for abi in (target.abi, "abi3", "none") for part in ("--abi", abi)),
            *(part for platform in platforms for part in ("--platform", platform)),
        )  # fmt: skip
    argv = (
        *more, "--quiet", "--no-deps", "--no-index", "--require-hashes",
        "--target", str(scratch / client), "--python-version", f"3.{target.minor}",
        "--requirement", str(scratch / "requirements.txt"),
    )  # fmt: skip
    own = {"PIP_CONFIG_FILE": os.devnull}  # --isolated leaves out that of the user alone
    return Command(argv=argv, timeout=SECONDS, env=own)


def installs(paths: Sequence[Path], by: Installers) -> Mapping[Path, tuple[Finding, ...]]:
    """Install wheels that belong together, for each Python they are for; path -> findings."""
    names = {path: WheelName.parse(path.name) for path in paths}
    targets = {target for name in names.values() if (target := target_of(name))}
    problems: dict[Path, list[Finding]] = defaultdict(list)
    own = InstallTarget(sys.version_info.minor, f"cp3{sys.version_info.minor}")
    for target in sorted(targets) or [own]:
        fitting = [path for path, name in names.items() if target_of(name) in (None, target)]
        for path, item in _tried(fitting, target, by):
            problems[path].append(item)
    return {path: tuple(dict.fromkeys(problems[path])) for path in paths}


def target_of(name: WheelName) -> InstallTarget | None:
    """Return the one CPython a wheel is for; None where it is for several."""
    match = _CPYTHON.match(name.pythons[0])
    if match and name.abis[0].startswith("cp"):
        return InstallTarget(int(match[1]), name.abis[0])
    return None


def _tried(
    paths: Sequence[Path], target: InstallTarget, by: Installers
) -> Iterator[tuple[Path, Finding]]:
    # uv takes a free-threaded ABI only of an interpreter that is one.
    clients = ("pip",) if target.abi.endswith("t") else ("pip", "uv")
    trees: list[Installed] = []
    refused: list[tuple[Path, Finding]] = []
    with tempfile.TemporaryDirectory(prefix=".installs-", dir=by.folder) as scratch:
        try:
            trees = [_installed(paths, each, target, Path(scratch), by.runner) for each in clients]
        except CommandError as exc:
            refused = [(path, finding("install.refused", _reason(exc))) for path in paths]
    if not trees:
        middle = len(paths) // 2
        halves = (paths[:middle], paths[middle:]) if middle else ()
        yield from [item for half in halves for item in _tried(half, target, by)] or refused
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


def _installed(
    paths: Sequence[Path], client: str, target: InstallTarget, scratch: Path, runner: Runner
) -> Installed:
    """Install wheels and return what came. Raises CommandError where the client refuses."""
    lines = (
        f"{WheelName.parse(path.name).project} @ {path.absolute().as_uri()}"
        f" --hash=sha256:{files.sha256(path)}\n"
        for path in paths
    )
    (scratch / "requirements.txt").write_text("".join(lines), encoding="utf-8")
    platforms = sorted({tag for path in paths for tag in WheelName.parse(path.name).platforms})
    folder = scratch / client
    runner.capture(_command(client, target, platforms, scratch))
    installed: dict[str, tuple[str, int]] = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        name = HEADERS.sub("include/", name)
        if path.is_file() and not OWN.match(name):
            digest = "a program" if name.startswith(PROGRAMS) else files.sha256(path)
            installed[name] = digest, path.stat().st_mode & 0o777
    shutil.rmtree(folder)
    return installed
