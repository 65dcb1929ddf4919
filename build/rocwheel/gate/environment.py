"""A fresh environment: the wheel set by file and SHA-256, JAX by version, the suite's own needs.

The set is installed first, alone and by hash; what follows is held to its versions by
constraints. The wheels bring no ROCm: its root is linked to where their RUNPATH looks for it, so
that no LD_LIBRARY_PATH hides a wrong one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from rocwheel.console import Console
from rocwheel.errors import CommandError, ConfigError
from rocwheel.gate.setup_errors import InfraError, WrongWheelsError
from rocwheel.gate.subject import WheelsUnderTest
from rocwheel.host.machine import Interpreter
from rocwheel.process import Command, Runner
from rocwheel.values import replace

BROUGHT: Final = "wheels"  # the folder into which those of a store are brought
QUIET: Final = {"PYTHONDONTWRITEBYTECODE": "1"}  # what looks at an environment changes nothing
PIP: Final = ("-m", "pip", "--disable-pip-version-check", "--no-input")
# what pip says where nothing meets a requirement; "none" also where an index does not answer
_UNMET: Final = re.compile(r"satisfies the requirement (.+) \(from versions: (?!none\))")


@dataclass(frozen=True, kw_only=True)
class InstallPlan:
    """How the environment is made: files to write, commands to run."""

    python: Path  # of the environment
    files: tuple[tuple[Path, str], ...]
    commands: tuple[tuple[str, Command], ...]  # each with what it does
    requirements: tuple[str, ...]  # beside the wheels, and what all is held to
    asked: tuple[str, ...]  # of them, those of suites and options, as pip spells them
    current: Command  # prints what pip would install today over it, as JSON


def plan(
    wheels: WheelsUnderTest,
    *,
    interpreter: Interpreter,
    folder: Path,
    requirements: Sequence[str],
    constraints: Sequence[str],
    with_jax: bool,
) -> InstallPlan:
    """Plan an environment in `folder`. `constraints` hold other packages to given versions."""
    python = folder / "env" / "bin" / "python"
    ours, others, held = folder / "wheels.txt", folder / "others.txt", folder / "constraints.txt"
    jax = [f"jax=={wheels.jax_version}"] if with_jax else []
    names = {wheel.project for wheel in wheels.wheels}
    pins = [f"{wheel.project}=={wheel.version}" for wheel in wheels.wheels]
    pins += [line for line in constraints if line.partition("==")[0].strip().lower() not in names]
    pip = (str(python), *PIP)
    binary = ("install", "--quiet", "--only-binary=:all:")
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
                Command(argv=(str(interpreter.executable), "-m", "venv", str(folder / "env"))),
            ),
            (
                f"{len(wheels.wheels)} wheels of the set, by hash",
                Command(argv=(*pip, *binary, "--no-deps", "--require-hashes", "-r", str(ours))),
            ),
            (
                "JAX and what the suite requires" if with_jax else "what the suite requires",
                Command(argv=(*pip, *binary, "-c", str(held), "-r", str(others))),
            ),
            ("pip check", Command(argv=(*pip, "check"), env=QUIET)),
        ),
        requirements=(*jax, *requirements, *pins),
        asked=tuple(str(Requirement(line)) for line in requirements),
        current=Command(
            argv=(
                *pip, *binary, "--dry-run", "--upgrade", "--upgrade-strategy=eager",
                "--report=-", "-c", str(held), "-r", str(others),
            ),
            env=QUIET,
        ),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A finished environment."""

    python: Path
    site: Path  # site-packages
    packages: tuple[str, ...]  # name==version


def make(
    planned: InstallPlan,
    *,
    runner: Runner,
    rocm: Path | None,
    console: Console,
    log: Path,
    left: Callable[[], float],
) -> Environment:
    """Apply a plan and say what takes how long; `left` says how many seconds there still are.

    Raises InfraError, ConfigError for a requirement that nothing meets, WrongWheelsError where
    requirements contradict.
    """
    for path, text in planned.files:
        path.write_text(text, encoding="utf-8")
    *steps, (last, check) = planned.commands
    for what, command in steps:
        try:
            with console.step(what):
                runner.run(replace(command, timeout=left()), log=log)
        except CommandError as exc:
            if unmet := _unmet(exc.detail, planned):
                raise ConfigError(
                    f"{unmet}: pip finds other versions only, for this CPython",
                    hint="mend `requirements` in the suite's file, --with, or pip's index",
                    detail=exc.detail,
                ) from exc
            raise InfraError(
                f"the environment could not be made: {cause(exc.detail)}{exc}",
                hint=exc.hint,
                detail=exc.detail,
            ) from exc
    try:
        with console.step(last):
            runner.run(replace(check, timeout=left()), log=log)
    except CommandError as exc:
        raise WrongWheelsError(
            f"pip check: {_first(exc.detail)}",
            hint="the set's requirements contradict each other, or JAX's",
            detail=exc.detail,
        ) from exc
    ask = "import sysconfig; print(sysconfig.get_path('platlib'))"
    site = (
        planned.python.parents[1]
        / runner.capture(Command(argv=(str(planned.python), "-c", ask))).strip()
    )
    if rocm:
        (site / "rocm").symlink_to(rocm)
    listed = runner.capture(Command(argv=(str(planned.python), *PIP, "list", "--format=freeze")))
    return Environment(
        python=planned.python, site=site, packages=tuple(sorted(listed.split(), key=str.lower))
    )


def cause(detail: str) -> str:
    """Return what pip says of a failure, to stand before its command; "" where it says nothing."""
    errors = [line.strip() for line in detail.splitlines() if line.lstrip().startswith("ERROR:")]
    return f"{errors[0].removeprefix('ERROR:').strip()}: " if errors else ""


def _unmet(said: str, planned: InstallPlan) -> str:
    """Return the requirement of a suite, or of --with, that no version meets that pip knows of.

    "" for anything else. JAX itself is none: a release may come to an index later.
    """
    found = _UNMET.search(said)
    return found[1] if found and found[1] in planned.asked else ""


def outdated(planned: InstallPlan, *, runner: Runner, log: Path, left: Callable[[], float]) -> str:
    """Return why an environment is not what a fresh one would be today, "" when it is."""
    try:
        runner.run(replace(planned.commands[-1][1], timeout=left()), log=log)
        said = runner.capture(replace(planned.current, timeout=left()))
        wanted = [item["metadata"] for item in json.loads(said)["install"]]
    except (CommandError, ValueError, KeyError) as exc:
        return f"pip cannot say what is in it: {_first(str(exc))}"
    return ", ".join(f"pip has {item['name']} {item['version']} now" for item in wanted[:1])


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


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _first(text: str) -> str:
    return text.strip().partition("\n")[0]
