"""What tests run with: ROCm, and a fresh environment with the wheel set by file and SHA-256.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import machinery
from pathlib import Path
from typing import Final

import uv
from packaging.requirements import Requirement

from rocwheel import rocm
from rocwheel.base import files
from rocwheel.base.console import Console
from rocwheel.base.errors import CommandError, ConfigError, RocwheelError, StoreError
from rocwheel.base.here import Here
from rocwheel.base.host.machine import Interpreter
from rocwheel.base.process import Command, Runner
from rocwheel.base.values import Plain
from rocwheel.gate import InfraError, WrongWheelsError, subject
from rocwheel.gate.request import DeviceChoice, GateRequest
from rocwheel.gate.subject import WheelsUnderTest
from rocwheel.records.install import DEVICE
from rocwheel.records.verdict import RocmProvided
from rocwheel.release.ledger import manifests
from rocwheel.rocm import by_pip
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
PIP: Final = "pip:"
_BETWEEN: Final = re.compile(r",(?=\s*[A-Za-z])(?![^\[]*\])")  # requirements, not extras or limits
IMAGE: Final = Path("/opt/rocm")  # where images have it
_SETTING: Final = re.compile(r"(global|install|:env:)\.([a-z-]+)=(.*)")
# what uv says where every index has answered and none has it
_UNMET: Final = re.compile(
    r"there (?:is no version|are no versions) of ([^\s,]+)|registry and you require ([^\s,]+)"
)


class Provided(Plain, frozen=True, kw_only=True):
    """A ROCm that is ready; while this value lives, the cache keeps its tree."""

    record: RocmProvided
    root: Path | None = None
    requirements: tuple[str, ...] = ()
    index: str = ""  # that has them, besides those of pip's settings
    tree: object = None

    @property
    def env(self) -> dict[str, str]:
        """What a test process must know of it; the wheels find its libraries by themselves."""
        root = {"ROCM_PATH": str(self.root)} if self.root else {}
        version = self.record.version
        return root | ({"ROCWHEEL_ROCM_VERSION": version} if version else {})

    def __str__(self) -> str:
        if self.root:
            return f"ROCm of {self.root}"
        names = ", ".join(line.partition(" --hash")[0] for line in self.requirements)
        return f"ROCm by pip: {names}" if names else "no ROCm"


NO_ROCM: Final = Provided(record=RocmProvided(origin="none"))


def rocm_of(request: GateRequest, here: Here) -> Provided | rocm.RocmPlan:
    """Decide which ROCm a gate puts beside the wheels, which bring none themselves.

    It is the manifest's tarball by its digest, another tarball or folder, or packages. For a set
    that was built from packages it is the packages that users install, by digest, without the
    development files. A suite may be for users of ROCm by pip: then it is the manifest's version.
    """
    source, by_users, text = request.manifest.rocm, request.suite.rocm == "pip", request.rocm
    targets = request.family.targets
    if request.installed:  # the ROCm of the image that this runs in, which has no compiler
        try:
            version = (IMAGE / ".info" / "version").read_text(encoding="utf-8").strip()
        except OSError:
            return NO_ROCM
        record = RocmProvided(origin="path", version=version, name=IMAGE.name)
        return Provided(record=record, root=IMAGE)
    if request.device is not DeviceChoice.FAMILY:
        return NO_ROCM
    delivery = None if text or by_users else source.delivery
    packages = delivery.packages if delivery else ()
    if lines := by_pip.for_users(packages, targets):
        record = RocmProvided(
            origin="pip", version=source.version, sha256=source.sha256, name=source.name
        )
        return Provided(record=record, requirements=lines, index=source.url)
    if by_users and not text:
        # the wheels; `rocm` itself, whose extras they are, is an sdist and has no library
        names = ("core", "libraries", *(f"{DEVICE}{target}" for target in targets))
        text = PIP + ",".join(f"rocm-sdk-{name}=={source.version}" for name in names)
    if text.startswith(PIP):
        text = text.removeprefix(PIP)
        requirements = tuple(_BETWEEN.split(text))
        # `rocm[libraries]==7.10.0`, the first requirement, may have one
        pinned = re.fullmatch(r"[^=]*==([^,;*]+)", requirements[0])
        record = RocmProvided(origin="pip", name=text, version=pinned[1].strip() if pinned else "")
        return Provided(record=record, requirements=requirements)
    return subject.rocm_of(request.manifest, text, exact=False, cache=here.cache, cwd=here.cwd)


def provide(request: GateRequest, here: Here) -> Provided:
    """Make ROCm ready. Raises ConfigError when none is named, and what `rocm.fetch` raises."""
    found = rocm_of(request, here)
    if isinstance(found, Provided):
        return found
    tree = rocm.fetch(found, console=here.console, env=here.environ)
    record = RocmProvided(
        origin="path" if tree.origin == "directory" else tree.origin,
        version=str(tree.version),
        sha256=tree.sha256,  # of a folder: of the list of its files, as the manifest has it
        name=tree.name,
    )
    return Provided(record=record, root=tree.root, tree=tree)


class Environment(Plain, frozen=True, kw_only=True):
    python: Path
    site: Path  # site-packages
    packages: tuple[str, ...]  # name==version


def listed(request: GateRequest, folder: Path, provided: Provided) -> dict[str, list[str]]:
    """Return the lines of the files that uv reads: the set, the packages beside it, limits."""
    wheels = request.wheels
    names = {wheel.project for wheel in wheels.wheels}
    pins = [f"{wheel.project}=={wheel.version}" for wheel in wheels.wheels]
    others = request.constraints
    pins += [line for line in others if line.partition("==")[0].strip().lower() not in names]
    jax = [f"jax=={wheels.jax_version}"] if request.suite.with_jax else []
    return {
        "wheels.txt": [wheels.requirement(wheel, folder / BROUGHT) for wheel in wheels.wheels],
        "others.txt": [*jax, *_asked(request, provided)],
        "constraints.txt": pins,
    }


def _asked(request: GateRequest, provided: Provided) -> tuple[str, ...]:
    return (*sorted(request.suite.requirements), *request.requirements, *provided.requirements)


def make(
    request: GateRequest,
    interpreter: Interpreter,
    folder: Path,
    provided: Provided,
    here: Here,
    *,
    left: Callable[[], float],
) -> Environment:
    """Make the environment in a folder; `left` returns the seconds that remain."""
    wheels, env = request.wheels, folder / "env"
    python, every = env / "bin/python", folder / "all.txt"
    folder.mkdir(parents=True, exist_ok=True)
    _ready(wheels, folder / BROUGHT, here.console)
    for name, lines in listed(request, folder, provided).items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    variables, alone = configured(here.runner)
    if provided.index:
        variables["UV_INDEX"] = f"{provided.index} {variables.get('UV_INDEX', '')}".rstrip()
    variables |= {
        "UV_CACHE_DIR": str(here.cache / CACHE),
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }

    def run(what: str, *words: str | Path) -> None:
        argv = (uv.find_uv_bin(), "--no-config", *map(str, words))
        command = Command(argv=argv, env=variables, timeout=left())
        with here.console.step(what):
            here.runner.run(command, log=request.logs / "install.log")

    binary = ("--only-binary", ":all:", "--python", str(python))
    texts = ("-c", folder / "constraints.txt", "-o", every, folder / "wheels.txt")
    sync = (
        "pip", "sync", "--quiet", "--require-hashes", "--link-mode", "copy", "--compile-bytecode",
        *binary, str(every), *alone,
    )  # fmt: skip
    try:
        run(
            "a virtual environment", "venv", "--quiet", "--python", str(interpreter.executable), env
        )
        run(
            "versions and digests of all packages",
            "pip", "compile", "--quiet", "--generate-hashes", "--no-header", "--no-annotate",
            *binary, *texts, folder / "others.txt", *alone,
        )  # fmt: skip
        run("packages by digest", *sync)
        if damaged := next(_damaged(env, wheels, folder / BROUGHT), ""):
            here.console.warn(
                f"a kept package was changed: {damaged}; installing all of them again"
            )
            run("removing kept packages", "cache", "clean", "--quiet")
            run("packages by digest", *sync, "--reinstall")
    except CommandError as exc:
        asked = [
            str(Requirement(line.partition(" --hash")[0])) for line in _asked(request, provided)
        ]
        raise _not_made(exc, asked, wheels) from exc
    if damaged := next(_damaged(env, wheels, folder / BROUGHT), ""):
        raise InfraError(
            f"what was installed is not what its wheel holds: {damaged}",
            hint="remove the kept packages: `doctor cache clean`",
        )
    try:
        run("requirements of what is installed", "pip", "check", "--python", python)
    except CommandError as exc:
        raise _unmet(exc) from exc
    made = existing(python, env={}, runner=here.runner)
    if provided.root:
        (made.site / "rocm").symlink_to(provided.root)
    return made


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


def _not_made(exc: CommandError, asked: Sequence[str], wheels: WheelsUnderTest) -> RocwheelError:
    """Return why there is no environment: a suite's requirement, the set's own, or the machine.

    JAX does not count as a requirement of the suite: a release may reach an index later.
    """
    text = " ".join(exc.detail.split())
    own = "|".join(re.escape(wheel.project) for wheel in wheels.wheels)
    if wheels.wheels and re.search(rf"\b(?:{own})\S* depends on ", text):
        return _unmet(exc)
    match = _UNMET.search(text)
    unmet = (match[1] or match[2]) if match else ""
    if unmet in asked:
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
        path = None if wheels.place else wheels.path(wheel, folder)
        if path and (there := files.sha256(path)) != wheel.sha256:
            raise InfraError(
                f"{path}: its SHA-256 is {there}, its set says {wheel.sha256}",
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
        path = wheels.path(wheel, brought)
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


def existing(python: Path, *, env: Mapping[str, str], runner: Runner) -> Environment:
    """Look at an environment, such as an image's. Raises InfraError.

    `env` is that of its tests: of a package that is there twice, the first one is imported.
    """
    script = (
        "import importlib.metadata as m, re, sysconfig; print(sysconfig.get_path('platlib'));"
        "named = [(re.sub('[-_.]+', '-', str(d.name)).lower(), d.version)"
        " for d in m.distributions()]; print(*sorted(map('=='.join, dict(named[::-1]).items())))"
    )
    ask = Command(argv=(str(python), "-c", script), env=env, cwd=python.parent)  # imported from
    try:
        site, packages = runner.capture(ask).splitlines()
    except (CommandError, ValueError) as exc:
        raise InfraError(f"{python}: is not an environment", hint="check --installed") from exc
    return Environment(python=python, site=Path(site), packages=tuple(packages.split()))


IMPORTABLE: Final = (*machinery.all_suffixes(), ".pth")  # by tests, or read when Python starts


def states(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return every file with times, inode, size and links; the first time cannot be set back."""
    start = len(str(folder)) + 1
    state_of: dict[str, tuple[int, ...]] = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            about = path.lstat()
            if not stat.S_ISDIR(about.st_mode):
                times = about.st_ctime_ns, about.st_mtime_ns
                state_of[str(path)[start:]] = (
                    *times, about.st_ino, about.st_size, about.st_nlink,
                )  # fmt: skip
    return state_of


def altered(folder: Path, were: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, str, float]]:
    """Yield each file that changed or was not there, how, and when in seconds."""
    now = states(folder)
    for name in sorted({**were, **now}):
        when = now[name][0] / 1e9 if name in now else 0.0
        if name not in were:
            yield name, "appeared", when
            continue
        old, new = were[name], now.get(name, ())
        # uv links files of its cache into other environments, which sets ctime
        is_linked = old[1:4] == new[1:4] and old[4] != new[4]
        if old != new and not is_linked:
            yield name, "changed", when
