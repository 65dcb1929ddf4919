"""A team's own GPU families, from a YAML file beside the family matrix.

`examples/miniature/families.yaml` is an example for a machine without a GPU. Each family says what
a pass must show, so no code treats it in a special way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import date
from pathlib import Path
from typing import Literal

from msgspec.structs import asdict

import amdgpu_family_matrix as matrix
from amdgpu_family_matrix import Bypass, Family, Level, Need, Proof, Rule, RunnerPool, Trigger
from rocwheel.base import yaml_file
from rocwheel.base.choices import ALL
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import Value
from rocwheel.base.versions import gfx_target, suggest
from rocwheel.base.yaml_file import FieldError


class _Proof(Value, frozen=True, kw_only=True):
    backend: Literal["cpu", "rocm"]
    devices: bool
    rocm: bool
    official: bool


class _Bypass(Value, frozen=True, kw_only=True):
    owner: str
    reason: str
    expires: date


class _Entry(Value, frozen=True, kw_only=True):
    name: str
    about: str
    targets: tuple[str, ...]
    suites: Mapping[str, Level]
    proof: _Proof
    runners: tuple[str, ...] = ()
    bypass: _Bypass | None = None

    def family(self) -> Family:
        """Make the family. Raises ValueError for one that the matrix would refuse, too."""
        gpus = int(self.proof.devices)
        return Family(
            self.name,
            self.targets,
            Trigger.NIGHTLY,
            products=(self.about,),
            policy=tuple(Rule(suite, level) for suite, level in self.suites.items()),
            runners=tuple(RunnerPool(label, gpus=gpus) for label in self.runners),
            bypass_tests_for_releases=Bypass(**asdict(self.bypass)) if self.bypass else None,
            needs=tuple(Need(suite, gpus) for suite in self.suites),
            proof=Proof(**asdict(self.proof)),
        )

    def __post_init__(self) -> None:
        if self.name == ALL:
            raise FieldError(f"{ALL!r} stands for all families", "name", hint="choose another")
        self.family()


class _File(Value, frozen=True, kw_only=True):
    families: tuple[_Entry, ...]

    def __post_init__(self) -> None:
        yaml_file.each_once((entry.name.lower() for entry in self.families), "families")


def load(path: Path) -> dict[str, Family]:
    """Read families by name. Raises ConfigError that says where and what."""
    return {entry.name: entry.family() for entry in yaml_file.read(path, _File).families}


def chosen(names: Collection[str], own: Path | None) -> tuple[Family, ...]:
    """Return families by name; `all` are those of the file, or of the matrix."""
    there = load(own) if own else {}
    if ALL in names:
        return tuple(item for _, item in sorted((there or matrix.FAMILIES).items()))
    return tuple(named(name, there) for name in sorted(set(names)))


def check_targets(targets: Collection[str]) -> None:
    """Refuse a gfx target that no family has, also in an option of another name."""
    known = matrix.known_targets()
    for target in targets:
        if meant := matrix.of_product(target):
            raise ConfigError(
                f"{target!r}: a product, not a gfx target",
                hint="write "
                + "; or ".join(f"{one}, or --family {matrix.of_target(one)}" for one in meant),
            )
        if gfx_target(target) not in known:
            hint = matrix.RETIRED_TARGETS.get(target) or suggest(target, known)
            raise ConfigError(f"{target!r}: unknown gfx target", hint=hint)


def lacking(wanted: Mapping[str, Collection[str]], has: Collection[str]) -> str:
    """Return the gfx targets that each of these families misses, "" for none."""
    missing = {name: [t for t in targets if t not in has] for name, targets in wanted.items()}
    return "; ".join(f"{', '.join(each)} of {name}" for name, each in missing.items() if each)


def refuse_lacking(wanted: Mapping[str, Collection[str]], given: Collection[str]) -> None:
    """Refuse --gfx-targets that lack one of --family. Raises ConfigError."""
    if missing := lacking(wanted, given):
        raise ConfigError(
            f"--gfx-targets: lacks {missing}, which --family names",
            hint="drop one of the two options: --family gives all targets of each family",
        )


def named(name: str, own: Mapping[str, Family]) -> Family:
    """Find a family among `own`, else in the matrix. Raises ConfigError that names the nearest."""
    if name in own:
        return own[name]
    try:
        return matrix.family(name)
    except KeyError as exc:
        problem, _, hint = str(exc.args[0]).partition("; ")
        if "unknown" in problem:
            hint = matrix.nearest(name, dict.fromkeys((*matrix.FAMILIES, *own)))
            hint += "" if "did you" in hint else "; your own are in a --family-file"
        raise ConfigError(problem, hint=hint) from exc
