"""A fresh environment: the wheel set by file and SHA-256, JAX by version, the suite's own needs.

uv resolves and installs, by hash, with the indexes that pip is configured for. It keeps unpacked
packages; so every file is compared with its RECORD afterwards, and the RECORDs of the set with
those in its wheels. The wheels contain no ROCm: its root is linked to the place in their RUNPATH,
since an LD_LIBRARY_PATH would hide a wrong one.
"""

import csv
import re
import shlex
import stat
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import machinery
from pathlib import Path
from typing import Final

import uv
from packaging.requirements import Requirement

from rocwheel.base import files
from rocwheel.base.console import Console
from rocwheel.base.errors import CommandError, ConfigError, RocwheelError, StoreError
from rocwheel.base.host.machine import Interpreter
from rocwheel.base.process import Command, Runner
from rocwheel.base.values import Plain, replace
from rocwheel.gate.setup_errors import InfraError, WrongWheelsError
from rocwheel.gate.subject import WheelsUnderTest
from rocwheel.release.ledger import manifests
from rocwheel.wheel.metadata import record_digest

BROUGHT: Final = "wheels"  # the folder into which those of a store are brought
CACHE: Final = "gate/uv"  # in the cache: packages that uv keeps
# settings of pip, by uv's variable for the same
CONFIGURED: Final = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "timeout": "UV_HTTP_TIMEOUT",
}
_SETTING: Final = re.compile(r"(global|install|:env:)\.([a-z-]+)=(.*)")
# what uv says where every index has answered and none has it
_UNMET: Final = re.compile(
    r"there (?:is no version|are no versions) of ([^\s,]+)|registry and you require ([^\s,]+)"
)


class InstallPlan(Plain, frozen=True, kw_only=True):
    """How the environment is made: files to write, commands to run."""

    python: Path  # of the environment
    files: tuple[tuple[Path, str], ...]
    commands: tuple[tuple[str, Command], ...]  # each with what it does
    asked: tuple[str, ...]  # requirements of suites and options, as uv spells them
    index: str = ""  # besides those that pip is configured for


def plan(
    wheels: WheelsUnderTest,
    *,
    interpreter: Interpreter,
    folder: Path,
    cache: Path,
    requirements: Sequence[str],
    constraints: Sequence[str],
    with_jax: bool,
    index: str = "",
) -> InstallPlan:
    """Plan an environment in `folder`. `constraints` hold other packages to given versions."""
    python = folder / "env" / "bin" / "python"
    ours, others, held = folder / "wheels.txt", folder / "others.txt", folder / "constraints.txt"
    every = folder / "all.txt"
    jax = [f"jax=={wheels.jax_version}"] if with_jax else []
    names = {wheel.project for wheel in wheels.wheels}
    pins = [f"{wheel.project}=={wheel.version}" for wheel in wheels.wheels]
    pins += [line for line in constraints if line.partition("==")[0].strip().lower() not in names]

    def uv_(*words: str) -> Command:
        env = {"UV_CACHE_DIR": str(cache / CACHE), "UV_INDEX_STRATEGY": "unsafe-best-match"}
        return Command(argv=(uv.find_uv_bin(), "--no-config", *words), env=env)

    binary = ("--only-binary", ":all:", "--python", str(python))
    return InstallPlan(
        python=python,
        files=(
            (ours, _lines(wheel.requirement(folder / BROUGHT) for wheel in wheels.wheels)),
            (others, _lines((*jax, *requirements))),
            (held, _lines(pins)),
        ),
        commands=(
            (
                "a virtual environment",
                uv_("venv", "--quiet", "--python", str(interpreter.executable),
                    str(folder / "env")),
            ),
            (
                "versions and digests of all packages",
                uv_("pip", "compile", "--quiet", "--generate-hashes", "--no-header",
                    "--no-annotate", *binary, "-c", str(held), "-o", str(every), str(ours),
                    str(others)),
            ),
            (
                "packages by digest",
                uv_("pip", "sync", "--quiet", "--require-hashes", "--link-mode", "copy",
                    "--compile-bytecode", *binary, str(every)),
            ),
            ("requirements of what is installed", uv_("pip", "check", "--python", str(python))),
            ("list", uv_("pip", "list", "--quiet", "--format=freeze", "--python", str(python))),
        ),
        asked=tuple(str(Requirement(line.partition(" --hash")[0])) for line in requirements),
        index=index,
    )  # fmt: skip


class Environment(Plain, frozen=True, kw_only=True):
    python: Path
    site: Path  # site-packages
    packages: tuple[str, ...]  # name==version


def make(
    planned: InstallPlan,
    wheels: WheelsUnderTest,
    *,
    runner: Runner,
    rocm: Path | None,
    console: Console,
    log: Path,
    left: Callable[[], float],
) -> Environment:
    """Apply a plan and print how long each step takes; `left` returns the seconds that remain.

    Raises InfraError, ConfigError for a requirement that nothing meets, WrongWheelsError where
    requirements contradict.
    """
    folder = planned.python.parents[2]
    folder.mkdir(parents=True, exist_ok=True)
    _ready(wheels, folder / BROUGHT, console)
    for path, text in planned.files:
        path.write_text(text, encoding="utf-8")
    env, alone = configured(runner)
    if planned.index:
        env["UV_INDEX"] = f"{planned.index} {env.get('UV_INDEX', '')}".rstrip()
    venv, compile_, sync, check, listing = planned.commands

    def run(what: str, command: Command, *more: str) -> None:
        argv = (*command.argv, *more)
        with console.step(what):
            asked = replace(command, argv=argv, env={**env, **command.env}, timeout=left())
            runner.run(asked, log=log)

    try:
        run(*venv)
        run(*compile_, *alone)
        run(*sync, *alone)
        if damaged := next(_damaged(planned.python.parents[1], wheels, folder / BROUGHT), ""):
            console.warn(f"a kept package was changed: {damaged}; installing all of them again")
            clean = (sync[1].argv[0], "--no-config", "cache", "clean", "--quiet")
            run("removing kept packages", replace(sync[1], argv=clean))
            run(*sync, *alone, "--reinstall")
    except CommandError as exc:
        raise _not_made(exc, planned, wheels) from exc
    if damaged := next(_damaged(planned.python.parents[1], wheels, folder / BROUGHT), ""):
        raise InfraError(
            f"what was installed is not what its wheel holds: {damaged}",
            hint="remove the kept packages: `doctor cache clean`",
        )
    try:
        run(*check)
    except CommandError as exc:
        raise _unmet(exc) from exc
    ask = "import sysconfig; print(sysconfig.get_path('platlib'))"
    site = Path(runner.capture(Command(argv=(str(planned.python), "-c", ask))).strip())
    if rocm:
        (site / "rocm").symlink_to(rocm)
    packages = tuple(sorted(runner.capture(listing[1]).split(), key=str.lower))
    return Environment(python=planned.python, site=site, packages=packages)


def configured(runner: Runner) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return variables and options that give uv pip's indexes, files and certificates."""
    pip = Command(argv=(sys.executable, "-m", "pip", "config", "list"))
    lines = filter(None, map(_SETTING.fullmatch, runner.capture(pip).splitlines()))
    env: dict[str, str] = {}
    for line in sorted(lines, key=lambda line: ("global", "install", ":env:").index(line[1])):
        if name := CONFIGURED.get(line[2]):
            words = " ".join(shlex.split(line[3])).replace("\\n", " ").split()
            env[name] = (" " if name == "UV_INDEX" else ",").join(words)  # as uv separates them
    return env, ("--no-index",) if env.pop("UV_NO_INDEX", "") in ("1", "true", "yes") else ()


def _not_made(exc: CommandError, planned: InstallPlan, wheels: WheelsUnderTest) -> RocwheelError:
    """Return why there is no environment: a suite's requirement, the set's own, or the machine.

    JAX does not count as a requirement of the suite: a release may reach an index later.
    """
    text = " ".join(exc.detail.split())
    own = "|".join(re.escape(wheel.project) for wheel in wheels.wheels)
    if wheels.wheels and re.search(rf"\b(?:{own})\S* depends on ", text):
        return _unmet(exc)
    match = _UNMET.search(text)
    unmet = (match[1] or match[2]) if match else ""
    if unmet in planned.asked:
        return ConfigError(
            f"{unmet}: no index has it for this CPython",
            hint="correct `requirements` in the suite's file, --with, or pip's index",
            detail=exc.detail,
        )
    return InfraError(
        f"the environment could not be made: {cause(exc.detail)}: {exc}",
        hint=exc.hint,
        detail=exc.detail,
    )


def _unmet(exc: CommandError) -> WrongWheelsError:
    return WrongWheelsError(
        f"requirements are not met: {cause(exc.detail)}",
        hint="the set's requirements contradict each other, or JAX's",
        detail=exc.detail,
    )


def cause(detail: str) -> str:
    """Return uv's message about a failure, on one line."""
    drawn = " ×╰─▶"  # noqa: RUF001 - what uv draws before its lines
    lines = [line.strip(drawn) for line in detail.splitlines()]
    said = [line for line in lines if line and not line.startswith(("Using Python", "warning:"))]
    return " ".join(" ".join(said).removeprefix("error: ").split())[:300]


def _ready(wheels: WheelsUnderTest, folder: Path, console: Console) -> None:
    """Compare wheels of this machine with their set, and fetch those of a store."""
    for wheel in wheels.wheels:
        if wheel.path and (there := files.sha256(wheel.path)) != wheel.sha256:
            raise InfraError(
                f"{wheel.path}: its SHA-256 is {there}, its set says {wheel.sha256}",
                hint="get the wheel set again",
            )
    if wheels.place and wheels.stored:  # by digest; uv has no credentials
        try:
            with console.step(f"{len(wheels.stored)} wheels from {wheels.place.location}"):
                manifests.bring(wheels.place, wheels.stored, folder)
        except StoreError as exc:
            raise InfraError(f"{exc}: the wheels could not be brought", hint=exc.hint) from exc


def _damaged(env: Path, wheels: WheelsUnderTest, brought: Path) -> Iterator[str]:
    """Yield each file that differs from its RECORD, and a RECORD that differs from its wheel's."""
    installed: dict[str, dict[str, str]] = {}
    for record in env.glob("lib/python*/site-packages/*.dist-info/RECORD"):
        text = record.read_text(encoding="utf-8")
        rows = {row[0]: row[1] for row in csv.reader(text.splitlines())}
        installed[record.parent.name] = rows
        for name, digest in rows.items():
            if digest and _digest(record.parents[1] / name) != digest:
                yield str(record.parents[1] / name)
    for wheel in wheels.wheels:
        path = brought / wheel.filename if wheel.is_stored else wheel.path
        if path:
            with zipfile.ZipFile(path) as archive:
                own = next(name for name in archive.namelist() if name.endswith("/RECORD"))
                text = archive.read(own).decode()
            rows = installed.get(own.partition("/")[0], {})
            for name, digest, *_ in csv.reader(text.splitlines()):
                if ".data/" not in name and rows.get(name) != digest:
                    yield f"{wheel.filename}: {name}"


def _digest(path: Path) -> str:
    """Return the digest of a file as a RECORD spells it, "" where there is none."""
    try:
        return record_digest(bytes.fromhex(files.sha256(path)))
    except OSError:
        return ""


def of_image(python: Path, *, env: Mapping[str, str], runner: Runner) -> Environment:
    """Return an environment that was there before, such as an image's. Raises InfraError.

    `env` is that of its tests: of a package that is there twice, the first one is imported.
    """
    script = (
        "import importlib.metadata as m, re, sysconfig; print(sysconfig.get_path('platlib'));"
        "named = [(re.sub('[-_.]+', '-', str(d.name)).lower(), f'{d.name}=={d.version}')"
        " for d in m.distributions()]; print(*sorted(dict(named[::-1]).values(), key=str.lower))"
    )
    ask = Command(argv=(str(python), "-c", script), env=env)
    try:
        site, packages = runner.capture(ask).splitlines()
    except (CommandError, ValueError) as exc:
        raise InfraError(f"{python}: is no environment", hint="check --installed") from exc
    return Environment(python=python, site=Path(site), packages=tuple(packages.split()))


IMPORTABLE: Final = (*machinery.all_suffixes(), ".pth")


def states(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return every file of a folder with facts that change when it is written to.

    These are its times and inode; the first, `ctime`, cannot be set back.
    """
    start = len(str(folder)) + 1
    state_of: dict[str, tuple[int, ...]] = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            about = path.lstat()
            if not stat.S_ISDIR(about.st_mode) and path.parent.name != "__pycache__":
                times = about.st_ctime_ns, about.st_mtime_ns
                state_of[str(path)[start:]] = (*times, about.st_ino, about.st_size)
    return state_of


def altered(folder: Path, were: Mapping[str, tuple[int, ...]]) -> tuple[str, str, float] | None:
    """Return the first file that changed, how, and when in seconds.

    A file that was not there counts where Python could import it, or reads it when it starts.
    """
    now = states(folder)
    for name in sorted({**were, **now}):
        when = now[name][0] / 1e9 if name in now else 0.0
        if name not in were and name.endswith(IMPORTABLE):
            return name, "appeared", when
        if name in were and now.get(name) != were[name]:
            return name, "changed", when
    return None


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
