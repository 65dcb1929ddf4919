"""Reads other projects' jobs for JAX on ROCm: tests they leave out, variables they set.

JAX's own jobs deselect tests by name; TheRock's deny keywords by release and GPU. Scripts and data
files are read, never run.
"""

import ast
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final

import yaml

import amdgpu_family_matrix as matrix
from rocwheel.base import files
from rocwheel.base.errors import ConfigError, SourceError
from rocwheel.gate.suite import skips
from rocwheel.gate.suite.suites import Suite

# of JAX: tests that its own job deselects, since 2026 in a file of their own
SCRIPTS: Final = ("ci/run_pytest_rocm*.sh", "ci/utilities/rocm_test_env.sh")
DENIED: Final = "external-builds/jax/skip_tests"  # of TheRock: keywords by release and GPU
_DESELECT: Final = re.compile(r"--deselect[= ]['\"]?([^\s'\"\\]+)")
_EXPORT: Final = re.compile(r"^([ \t]*)export[ \t]+([A-Z_][A-Z0-9_]*)=(.*)$", re.MULTILINE)


def read(
    checkout: Path, suites: Sequence[Suite], jax: str, about: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Read the entries of a checkout of JAX or TheRock for a release of JAX.

    `about` is the rest of each: issue, owner, last day.
    """
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)+", jax):
        raise ConfigError(f"--jax {jax}: not a release", hint="give it as JAX counts: 0.10.2")
    scripts = sorted(path for pattern in SCRIPTS for path in checkout.glob(pattern))
    folder = checkout / DENIED
    if not scripts and not folder.is_dir():
        hint = "name a checkout of JAX or TheRock"
        raise SourceError(f"{checkout}: has no {SCRIPTS[0]} and no {DENIED}", hint=hint)
    read = _deselected(scripts, suites) if scripts else _denied(folder, suites, jax)
    if not (entries := [entry for entry in read if entry["suites"]]):
        where = scripts[0].name if scripts else f"{DENIED}/generic.py or jax_{jax}.py"
        hint = "look there: a list of nothing is not written"
        raise SourceError(f"{checkout}: {where} leaves out no test of JAX {jax}", hint=hint)
    return [{**entry, "jax": f"=={jax}.*", **about} for entry in entries]


def _deselected(scripts: Iterable[Path], suites: Sequence[Suite]) -> Iterator[dict[str, Any]]:
    names = {n for path in scripts for n in _DESELECT.findall(path.read_text(encoding="utf-8"))}
    for pattern in sorted(names):
        own = [suite.name for suite in suites if suite.source.has(pattern.partition("::")[0])]
        yield {"test": pattern, "suites": own, "reason": "deselected by JAX's own job on ROCm"}


def _denied(folder: Path, suites: Sequence[Suite], jax: str) -> Iterator[dict[str, Any]]:
    """Yield what TheRock denies for a release: by keyword, for all GPUs or those of a section."""
    for path in filter(Path.is_file, (folder / "generic.py", folder / f"jax_{jax}.py")):
        for section, entries in _literal(path).items():
            targets = [
                target
                for family in matrix.FAMILIES.values()
                for target in family.targets
                if section in family.name or section in target
            ]
            if section != "common" and not targets:
                raise SourceError(
                    f"{path}: {section!r}: no GPU has this name", hint="correct it there"
                )
            for entry in entries["keywords"]:
                own = [suite.name for suite in suites if not suite.source.folder]
                where = {} if section == "common" else {"gfx": list(targets)}
                unless = {"unless": entry["unless"]} if entry.get("unless") else {}
                reason = f"denied by TheRock's job for JAX ({path.name})"
                yield {"keyword": entry["deny"], **unless, "suites": own, **where, "reason": reason}


def _literal(path: Path) -> dict[str, Any]:
    """Return the value of `skip_tests` in a data file. Raises SourceError for anything else."""
    try:
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "skip_tests":
                return dict(ast.literal_eval(node.value))
    except (SyntaxError, ValueError, TypeError) as exc:
        raise SourceError(f"{path}: is not data: {exc}", hint="look at the file") from exc
    raise SourceError(f"{path}: has no skip_tests", hint="look at the file")


def write(
    ci: Path,
    checkout: Path,
    jax: str,
    entries: Iterable[Mapping[str, Any]],
    *,
    today: date,
    dry_run: bool,
) -> Path:
    """Write the list of a checkout and a release, unless it is a dry run; return where.

    Raises ConfigError where the lists would not be read with it; nothing is written then.
    """
    path = ci / skips.FOLDER / f"{checkout.name.lower()}-{jax}.yaml"
    body = f"# Made by `rocwheel gate skips import --from` of {checkout.name}, JAX {jax}.\n"
    body += yaml.safe_dump({"skips": list(entries)}, sort_keys=False, width=100)
    skips.load(ci, today=today, new=(path, body))
    if not dry_run:
        files.write(path, body.encode())
    return path


def variables(checkout: Path, scripts: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """Return the values that the first of `scripts` in a checkout of JAX exports for `names`.

    Raises SourceError for one that depends on something: it would have to be run to know.
    """
    path = next((checkout / name for name in scripts if (checkout / name).is_file()), None)
    values: dict[str, str] = {}
    for indent, name, raw in _EXPORT.findall(path.read_text(encoding="utf-8") if path else ""):
        if name not in names:
            continue
        is_computed = bool(set(raw) & set("$`"))
        value = "" if is_computed else " ".join(shlex.split(raw, comments=True))
        if indent or is_computed or values.setdefault(name, value) != value:
            hint = "write its value in the suite's `environment`, without `variables`"
            raise SourceError(f"{path}: {name} depends on something", hint=hint)
    return values
