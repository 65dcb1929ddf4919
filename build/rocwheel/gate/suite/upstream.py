"""What the ROCm jobs of JAX leave out of its own tests, as entries of a skip list."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from rocwheel import files
from rocwheel.errors import SourceError
from rocwheel.gate.suite import skips
from rocwheel.gate.suite.suites import Suite

SCRIPTS: Final = "ci/run_pytest_rocm*.sh"  # of JAX: tests that its own job deselects
_DESELECT: Final = re.compile(r"--deselect[= ]['\"]?([^\s'\"\\]+)")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Why entries stand in a skip list, and until when."""

    jax: str  # the release
    issue: str
    owner: str
    expires: str


def read(checkout: Path, suites: Sequence[Suite], about: Provenance) -> list[dict[str, Any]]:
    """Read the entries of a checkout of JAX. Raises SourceError where there is nothing to read."""
    scripts = sorted(checkout.glob(SCRIPTS))
    if not scripts:
        raise SourceError(f"{checkout}: has no {SCRIPTS}", hint="name a checkout of JAX")
    names = {n for path in scripts for n in _DESELECT.findall(path.read_text(encoding="utf-8"))}
    entries = []
    for pattern in sorted(names):
        own = [suite.name for suite in suites if suite.source.has(pattern.partition("::")[0])]
        reason = "deselected by JAX's own job on ROCm"
        entry = {"test": pattern, "suites": own, "jax": f"=={about.jax}.*", "reason": reason}
        last = {"issue": about.issue, "owner": about.owner, "expires": about.expires}
        entries += [entry | last] if own else []
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
