"""Families of a team's own, from a YAML file: what has no place in the GPU family matrix.

`examples/miniature/families.yaml` is one: it shows the whole way on a machine without a GPU. Each
family says itself what a pass must show, so nothing else treats it in another way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amdgpu_family_matrix import Family, Level, Need, Proof, Rule, Trigger
from rocwheel import config

if TYPE_CHECKING:
    from pathlib import Path

    from rocwheel.config import Field


def load(path: Path) -> dict[str, Family]:
    """Read families by name. Raises ConfigError that says where and what."""
    listed = config.load(path).record(required=("families",))["families"].sequence()
    found: dict[str, Family] = {}
    for entry in listed:
        family = _family(entry)
        if family.name in found:
            entry.fail(f"{family.name}: defined twice")
        found[family.name] = family
    return found


def _family(entry: Field) -> Family:
    fields = entry.record(required=("name", "about", "targets", "suites", "proof"))
    suites = fields["suites"].mapping()
    levels = [level.value for level in Level]
    try:
        return Family(
            fields["name"].string(),
            fields["targets"].strings(),
            Trigger.NIGHTLY,
            products=(fields["about"].string(),),
            policy=tuple(Rule(name, Level(level.choice(levels))) for name, level in suites.items()),
            needs=tuple(Need(name, 0) for name in suites),
            proof=_proof(fields["proof"]),
        )
    except ValueError as exc:
        entry.fail(str(exc))


def _proof(entry: Field) -> Proof:
    fields = entry.record(required=("backend", "devices", "rocm", "official"))
    return Proof(
        backend=fields["backend"].choice(("cpu", "rocm")),
        devices=fields["devices"].boolean(),
        rocm=fields["rocm"].boolean(),
        official=fields["official"].boolean(),
    )
