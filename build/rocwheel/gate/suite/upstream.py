"""What the ROCm jobs of JAX and of TheRock leave out of JAX's tests, as entries of a skip list."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

import amdgpu_family_matrix as matrix
from rocwheel import files
from rocwheel.errors import SourceError
from rocwheel.gate.suite import skips, static
from rocwheel.gate.suite.suites import Suite

SCRIPTS: Final = "ci/run_pytest_rocm*.sh"  # of JAX: tests that its own job deselects
LISTS: Final = "external-builds/jax/skip_tests"  # of TheRock: keywords, by release and family
_DESELECT: Final = re.compile(r"--deselect[= ](\S+)")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Why entries stand in a skip list, and until when."""

    jax: str  # the release
    issue: str
    owner: str
    expires: str


def read(
    checkout: Path, tests: Path | None, suites: Sequence[Suite], about: Provenance
) -> list[dict[str, Any]]:
    """Read the entries of a checkout of JAX or TheRock; keywords need JAX's `tests`.

    Raises SourceError where there is nothing to read.
    """
    if (checkout / LISTS).is_dir():
        found = list(_denied(checkout / LISTS, tests, suites, about.jax))
    else:
        scripts = sorted(checkout.glob(SCRIPTS))
        if not scripts:
            hint = "name a checkout of JAX or of TheRock"
            raise SourceError(f"{checkout}: has no {SCRIPTS} and no {LISTS}", hint=hint)
        names = {n for path in scripts for n in _DESELECT.findall(path.read_text(encoding="utf-8"))}
        found = [(name, (), "deselected by JAX's own job on ROCm") for name in sorted(names)]
    entries = []
    for pattern, targets, reason in found:
        own = [suite.name for suite in suites if suite.source.has(pattern.partition("::")[0])]
        entry = {"test": pattern, "suites": own, "jax": f"=={about.jax}.*", "reason": reason}
        last = {"issue": about.issue, "owner": about.owner, "expires": about.expires}
        if own:
            entries.append(entry | ({"gfx": list(targets)} if targets else {}) | last)
    return entries


def text(entries: Iterable[Mapping[str, Any]], source: str) -> str:
    """Write a list as YAML."""
    head = f"# Made by `rocwheel skips import --from` of {source}.\n"
    return head + yaml.safe_dump({"skips": list(entries)}, sort_keys=False, width=100)


def write(
    ci: Path, checkout: Path, jax: str, entries: Iterable[Mapping[str, Any]], *, dry_run: bool
) -> Path:
    """Write the list of a checkout and a release, unless it is a dry run; return where."""
    path = ci / skips.FOLDER / f"{checkout.name.lower()}-{jax}.yaml"
    if not dry_run:
        files.write(path, text(entries, f"{checkout.name}, JAX {jax}").encode())
    return path


def _denied(
    lists: Path, tests: Path | None, suites: Sequence[Suite], jax: str
) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Expand keywords, which pytest looks for anywhere in a test's name, to the tests they meet."""
    if tests is None:
        raise SourceError(f"{lists}: has keywords", hint="add --jax-tests with that release of JAX")
    names = [
        name
        for path in sorted(tests.glob("tests/**/*_test.py"))
        if any(suite.source.has(str(path.relative_to(tests))) for suite in suites)
        for name in static.tests_of(
            str(path.relative_to(tests)), path.read_text(encoding="utf-8", errors="replace")
        )
    ]
    for path in (lists / "generic.py", lists / f"jax_{jax}.py"):
        for family, listed in (_table(path) if path.is_file() else {}).items():
            targets = () if family == "common" else _targets(family)
            denied = [name for name in names if _meets(name, listed.get("keywords", ()))]
            kept = [name for name in names if name not in set(denied)]
            # generated cases have a number after the name
            wide = [name for name in denied if not any(other.startswith(name) for other in kept)]
            for name in denied:
                if name not in wide:
                    yield name, targets, f"{path.name} of TheRock"
                elif not any(name != other and name.startswith(other) for other in wide):
                    yield f"{name}*", targets, f"{path.name} of TheRock"


def _meets(name: str, keywords: Iterable[Mapping[str, Any]]) -> bool:
    text = name.lower()
    return any(
        rule["deny"].lower() in text
        and not any(word.lower() in text for word in rule.get("unless", ()))
        for rule in keywords
    )


def _targets(family: str) -> tuple[str, ...]:
    """Return the gfx targets of the families whose name or target holds a word of TheRock."""
    known = matrix.FAMILIES.values()
    found = (t for item in known for t in item.targets if family in item.name or family in t)
    return tuple(sorted(set(found)))


def _table(path: Path) -> Mapping[str, Any]:
    """Read the dictionary of a list, without running it. Raises SourceError."""
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
        value = next(node.value for node in body if isinstance(node, ast.Assign))
        return dict(ast.literal_eval(value))
    except (SyntaxError, ValueError, StopIteration) as exc:
        raise SourceError(f"{path}: is no skip list", hint="name a checkout of TheRock") from exc
