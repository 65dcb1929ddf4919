"""What `verify --installs` lets through, the oldest pip and uv from a server install as well.

Wheels are changed at random, in every part that an installer reads; those without an error are
installed from a file and, by uv, from a server. `ROCWHEEL_ORACLE_WHEELS` says how many are made,
`ROCWHEEL_FUZZ_SEED` repeats or varies a run.
"""

from __future__ import annotations

import functools
import http.server
import os
import random
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import wheels
from support.wheels import Entry, File, Wheel, Zip

from rocwheel.base import yaml_file
from rocwheel.base.process import HostRunner
from rocwheel.base.values import replace
from rocwheel.wheel import rename
from rocwheel.wheel.rename import NewVersion, plan_reversion
from rocwheel.wheel.verify import verify
from rocwheel.wheel.verify.installs import Installers, installs
from rocwheel.wheel.verify.rules import Severity
from rocwheel.wheel.wheel_policy import WheelPolicy

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.soak]

POLICY = yaml_file.read(Path(__file__).parents[2] / "ci" / "wheel_policy.yaml", WheelPolicy)
OLDEST_PIP = (
    "22.3.1"  # the oldest that installs into another environment, as the tests of the index
)
SEED = int(os.environ.get("ROCWHEEL_FUZZ_SEED") or 20261121)
COUNT = int(os.environ.get("ROCWHEEL_ORACLE_WHEELS") or 400)
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


# Wheels changed at random ---------------------------------------------------------------------

Texts = dict[str, list[str]]

VALUES: dict[str, tuple[str, ...]] = {
    "Metadata-Version": ("1.0", "1.2", "2.1", "2.2", "2.3", "2.4", "2.5", "2.9", "3.0", "x", ""),
    "Summary": ("", "Größe", "a" * 5000, "x\n continued", "x\n\ty"),
    "Requires-Python": (">=3.8", "<3", ">=3.99", "", "3", "~=3.10", ">=3.8,", "==3.*", "!=3.0.*"),
    "Requires-Dist": (
        "numpy", "numpy>=1,<2", "numpy (>=1)", "x[y]==1; extra == 'z'", "x @ https://e.org/x.whl",
        "x>>1", "x==", "", "x;", "x; python_version < '3'", "x; what == 'y'", "x>=1.*", "X.y-z",
        "x===odd", "x; sys.platform == 'linux'", "é",
    ),
    "Provides-Extra": ("z", "Z_y", "", "é"),
    "License-File": ("LICENSE", "../x"),
    "Dynamic": ("description", ""),
    "Keywords": ("a,b",),
    "Description-Content-Type": ("text/markdown", "text/x; charset=latin-1"),
    "Wheel-Version": ("1.0", "1.1", "1.9", "2.0", "0.9", "1", "1.0.0", "x", "", " 1.0 "),
    "Root-Is-Purelib": ("true", "false", "True", "FALSE", "yes", "", "0"),
    "Generator": ("", "ü", "x" * 300),
    "Tag": ("py3-none-any", "py2-none-any", "cp312-cp312-win32", ""),
    "Build": ("", "1", "x"),
}  # fmt: skip
ENTRY_POINTS = (
    "[console_scripts]\nrun-{0} = {0}:main\n", "[gui_scripts]\nrun-{0} = {0}:main.x\n",
    "[console_scripts]\nrun-{0} = {0}\n", "[console_scripts]\nrun {0} = {0}:main\n",
    "[console_scripts]\na/{0} = {0}:main\n", "[x]\na = {0}.sub:b [e]\n", "[x]\na = {0}\na = {0}\n",
    "[x]\na={0}\n[x]\nb={0}\n", "[x\na={0}\n", "a={0}\n", "[x]\na\n", "[x]\n a = {0}\n", "# c\n",
    "[x]\n; c\na = {0}\n", "[console_scripts]\nrun-{0} = {0} : main\n", "[x]\na = {0}:é\n",
    "[console_scripts]\n.{0} = {0}:main\n", "[x]\n= {0}\n", "[]\na = {0}\n", "\ufeff[x]\na = {0}\n",
    "[x]\na: {0}\n", "[x.y]\na.b-c = {0}.sub:d.e\n",
    "[console_scripts]\nRUN-{0} = {0}:main\nrun-{0} = {0}:main\n", "[console_scripts]\n{0}=os:getcwd\n", "[x]\n%a = %({0})s\n",
)  # fmt: skip
DATA = (
    "{0}.data/purelib/{1}_more/x.py", "{0}.data/platlib/{1}_more.py", "{0}.data/scripts/do-{1}",
    "{0}.data/headers/{1}.h", "{0}.data/data/share/{1}/x", "{0}.data/etc/x", "{0}.data/x.py",
    "other-1.0.data/purelib/x.py", "{0}.DATA/purelib/x.py", "{0}.data/purelib/{1}/__init__.py",
    "{0}.data/PureLib/x.py", "{0}.data/data/bin/do-{1}", "{0}.dist-info/licenses/x",
    "{0}.dist-info/INSTALLER", "{0}.dist-info/RECORD.jws", "other-1.0.dist-info/METADATA",
    "x.dist-info", "{1}/a b.py", "{1}/é.py", "{1}/" + "n" * 255, "{1}/" + "d/" * 200 + "x",
    "{0}.dist-info/direct_url.json", "{0}.dist-info/sub/METADATA", "{1}.egg-info/PKG-INFO",
    "{1}/x.pth", "{1}-nspkg.pth", "{1}/.hidden", "{1}/x.PY", "{1}/-", "{1}/a:b", "{1}/x.",
)  # fmt: skip


def change_text(dice: random.Random, texts: Texts) -> None:
    name = dice.choice(("METADATA", "METADATA", "WHEEL"))
    keys = [key for key in VALUES if (key in WHEEL_KEYS) == (name == "WHEEL")]
    key = dice.choice(keys)
    line = f"{dice.choice((key, key, key.lower(), key.upper()))}: {dice.choice(VALUES[key])}"
    lines = texts[name]
    at = [n for n, old in enumerate(lines) if old.lower().startswith(key.lower() + ":")]
    match dice.randrange(4):
        case 0 if at:
            del lines[at[0]]
        case 1:
            lines.append(line)
        case 2:
            lines.insert(0, line)
        case _:
            lines[at[0] if at else len(lines) :][:1] = [line]
            if at:
                lines[at[0]] = line


WHEEL_KEYS = {"Wheel-Version", "Root-Is-Purelib", "Generator", "Tag", "Build"}


def texts_of(made: Wheel) -> Texts:
    found = {}
    for name in ("METADATA", "WHEEL"):
        content = made.members()[f"{made.dist_info}/{name}"].content.decode()
        found[name] = content.partition("\n\n")[0].rstrip("\n").split("\n")
    return found


def mutant(dice: random.Random, number: int) -> tuple[str, bytes]:
    """A file name and the wheel: a good one with one to three changes."""
    project = f"m{number}"
    made = Wheel(
        project=project, version="1.0", tag="py3-none-any",
        files={f"{project}/__init__.py": File(b"def main(): pass\n"), f"{project}/sub.py": File()},
        requires_python=">=3.8",
    )  # fmt: skip
    texts = texts_of(made)
    files = dict(made.files)
    structure: list[Callable[[list[Entry]], None]] = []
    archive: dict[str, object] = {}
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        match dice.randrange(8):
            case 0 | 1:
                change_text(dice, texts)
            case 2:
                made = made.but(entry_points=dice.choice(ENTRY_POINTS).format(project))
            case 3 | 4:
                name = dice.choice(DATA).format(made.stem, project)
                files[name] = File(b"# x\n", mode=dice.choice((0o644, 0o755)))
            case 5 | 6:
                structure.append(functools.partial(change_entry, dice))
            case _:
                archive |= dice.choice((
                    {"comment": b"note"}, {"comment": b"PK\1\2"}, {"prefix": b"x"}, {"suffix": b"x"},
                    {"gap": b"x"}, {"end_twice": True}, {"count": 1}, {"disk": 1},
                ))  # fmt: skip
    made = made.but(
        files=files,
        metadata=(
            "\n".join(texts["METADATA"]) + dice.choice(("\n", "\n\nbody\n", "", "\r\n"))
        ).encode(),
        wheel=("\n".join(texts["WHEEL"]) + "\n").encode(),
    )
    entries = wheels.entries(made)
    for change in structure:
        change(entries)
    return made.name, Zip(entries, **archive).to_bytes()


def change_entry(dice: random.Random, entries: list[Entry]) -> None:
    entry = dice.choice(entries)
    match dice.randrange(11):
        case 0:
            entry.method = 0
        case 1:
            entry.zip64 = True
        case 2:
            entry.descriptor = dice.choice(("signed", "plain", "signed64", "plain64"))
            entry.zip64 = "64" in entry.descriptor
            entry.method = dice.choice((8, 8, 0))
        case 3:
            entry.flags = dice.choice((8, 0x800, 2, 4, 1, 0x20, 0x2000))
        case 4:
            entry.mode = dice.choice((0o100600, 0o100755, 0, 0o120777, 0o104755, 0o40755))
        case 5:
            entry.extra = entry.local_extra = dice.choice((
                b"UT\5\0\3abcd", b"\1\0\0\0", b"\1\0\x08\0" + bytes(8), b"ab", b"up\5\0\1abcd",
            ))  # fmt: skip
        case 6:
            entry.member_comment = b"note"
        case 7:
            packed = bytearray(wheels.deflated(entry.content))
            packed[dice.randrange(len(packed))] ^= 1 << dice.randrange(8)
            entry.packed, entry.method = bytes(packed), 8
        case 8:
            entry.needed = dice.choice((10, 20, 45, 46, 63, 90))
        case 9:
            entry.made_by = dice.choice((0, 3, 7, 10, 19))
        case _:
            entries[:] = dice.sample(entries, len(entries))


# Installers -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Installer:
    """A program that installs wheels into the environment whose interpreter it is told."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    at: Callable[[Path], str] = str  # how it is told where a wheel is

    def install(self, environment: Path, paths: list[Path]) -> str:
        """Install them all; "" or what it said."""
        python = environment / "bin" / "python"
        subprocess.run(
            [sys.executable, "-m", "venv", "--clear", "--without-pip", environment], check=True
        )
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_"))}
        argv = [part.replace("PYTHON", str(python)) for part in self.argv]
        done = subprocess.run(
            [*argv, *map(self.at, paths)], env={**clean, **self.env}, text=True, check=False,
            capture_output=True, timeout=300,
        )  # fmt: skip
        return "" if done.returncode == 0 else done.stdout[-2000:] + done.stderr[-2000:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("wheels")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    """A server that knows no ranges, so that a wheel is read as it arrives."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.fixture(scope="module")
def installers(tmp_path_factory, server: str) -> list[Installer]:
    home = tmp_path_factory.mktemp("installers")
    found = []
    for name, wanted in (("oldest pip", f"pip=={OLDEST_PIP}"), ("newest pip", "pip>=25")):
        target = home / name.replace(" ", "-")
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--target", target, wanted], check=True
        )
        pip = (
            sys.executable, "-m", "pip", "--isolated", "--no-cache-dir",
            "--disable-pip-version-check", "--python", "PYTHON", "install", "-q", "--no-deps",
            "--no-index", "--no-compile",
        )  # fmt: skip
        found.append(Installer(name, pip, {"PYTHONPATH": str(target)}))
    uv = (
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "-q",
        "--no-cache",
        "--no-deps",
        "--offline",
        "--python",
        "PYTHON",
    )
    online = tuple(part for part in uv if part != "--offline")
    found.append(Installer("uv", uv, {}))
    found.append(Installer("uv over HTTP", online, {}, lambda path: f"{server}/{path.name}"))
    return found


def as_installed(environment: Path, path: Path) -> str:
    """ "" where every library file of the wheel was installed as it is, else what is not."""
    site = environment / "lib" / f"python{PYTHON}" / "site-packages"
    with zipfile.ZipFile(path) as archive:
        stem = path.name.partition("-py3")[0]
        # Of two members for one path every client takes the one in .data: nothing to report.
        landings = {
            name.removeprefix(f"{stem}.data/purelib/").removeprefix(f"{stem}.data/platlib/"): name
            for name in sorted(archive.namelist(), key=lambda name: ".data/" in name)
        }
        for member, name in landings.items():
            if ".data/" in member or ".dist-info/" in member or member.endswith("/"):
                continue  # scripts get another first line, installers write RECORD and INSTALLER
            target = site / member
            if not target.is_file():
                return f"{name} is not installed"
            if target.read_bytes() != archive.read(name):
                return f"{name} has another content"
    return ""


def test_what_verify_accepts_pip_and_uv_install(
    folder: Path, installers: list[Installer], tmp_path: Path
) -> None:
    dice = random.Random(SEED)
    accepted: list[Path] = []
    for number in range(COUNT):
        name, data = mutant(dice, number)
        path = folder / name
        path.write_bytes(data)
        if any(item.severity is Severity.ERROR for item in verify(path, policy=POLICY)):
            path.unlink()
        else:
            accepted.append(path)
    tried = installs(accepted, Installers(HostRunner({})))
    accepted = [path for path in accepted if not tried[path]]
    assert COUNT / 10 < len(accepted) < COUNT
    disagree = [
        f"{installer.name}: {said}"
        for installer in installers
        for said in disagreements(installer, tmp_path / installer.name.replace(" ", "-"), accepted)
    ]
    assert not disagree, "\n".join([f"ROCWHEEL_FUZZ_SEED={SEED}", *disagree])


def disagreements(installer: Installer, environment: Path, paths: list[Path]) -> Iterator[str]:
    """What an installer makes otherwise of which wheel; it gets all of them, halves, quarters…"""
    said = installer.install(environment, paths)
    if not said:
        for path in paths:
            if problem := as_installed(environment, path):
                yield f"{path.name}: {problem}"
    elif len(paths) == 1:
        yield f"{paths[0].name}: {said.strip()[-300:]}"
    else:
        middle = len(paths) // 2
        yield from disagreements(installer, environment, paths[:middle])
        yield from disagreements(installer, environment, paths[middle:])


PINS = (
    "{pjrt}=={old}", "{pjrt} == {old}", "{pjrt}(=={old})", "{pjrt}<={old},>=0.1", "{pjrt}>=0.1,<={old}",
    "{pjrt}~={old}", "{pjrt}=={old}; python_version >= '3'",
    "{pjrt}[x]=={old}", "{pjrt}=={base}.*", "{pjrt}>={old}",
)  # fmt: skip


@pytest.mark.parametrize("change", [{"post": 2}, {"local": "rocm7.10"}, {"version": "0.9.0"}])
def test_pip_and_uv_resolve_a_set_that_was_given_another_version(
    change: dict[str, str | int], tmp_path: Path, installers: list[Installer]
) -> None:
    """With any pin that held before; and every other line of METADATA is the same."""
    old = "0.9.1"
    for number, pin in enumerate(PINS):
        folder = tmp_path / str(number)
        folder.mkdir()
        text = pin.format(pjrt="jax-rocm7-pjrt", old=old, base="0.9")
        plugin = wheels.plugin(
            version=old, tag="py3-none-any", requires=(text, "jax-rocm7-pjrt==0.1; extra == 'x'")
        )
        paths = [wheels.pjrt(version=old, tag="py3-none-any").write(folder), plugin.write(folder)]
        made = rename.apply(plan_reversion(paths, NewVersion(**change)), folder / "out")
        before, after = (metadata(path).splitlines() for path in (paths[1], made[1]))
        differ = [new for was, new in zip(before, after, strict=True) if was != new]
        assert all(
            line.startswith(("Version: ", "Requires-Dist: jax-rocm7-pjrt")) for line in differ
        )
        # The newest pip for some, uv for all; the other wheel of the set lies in the same folder.
        for installer in installers[1:3] if number < 3 else installers[2:3]:
            argv = [part for part in installer.argv if part not in ("--no-deps", "--no-index")]
            links = ("--no-index", "--find-links", str(folder / "out"))
            resolving = replace(installer, argv=(*argv, *links))
            environment = tmp_path / "environment"
            assert not resolving.install(environment, [made[1]]), (pin, change)
            found = {path.name for path in environment.glob("lib/*/site-packages/*.dist-info")}
            assert found == {f"{path.name.partition('-py3')[0]}.dist-info" for path in made}


def metadata(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        (name,) = (item for item in archive.namelist() if item.endswith("dist-info/METADATA"))
        return archive.read(name).decode()
