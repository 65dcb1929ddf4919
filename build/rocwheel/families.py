"""Families of a team's own, from a YAML file: what has no place in the GPU family matrix.

`examples/miniature/families.yaml` is one: it shows the whole way on a machine without a GPU. Each
family says itself what a pass must show, so nothing else treats it in another way.
"""

from __future__ import annotations

from pathlib import Path

import amdgpu_family_matrix as matrix
from amdgpu_family_matrix import Bypass, Family, Level, Need, Proof, Rule, RunnerPool, Trigger
from rocwheel import located_yaml
from rocwheel.errors import ConfigError
from rocwheel.located_yaml import Field
from rocwheel.model import PythonVersion, suggest


def load(path: Path) -> dict[str, Family]:
    """Read families by name. Raises ConfigError that says where and what."""
    listed = located_yaml.load(path).record(required=("families",))["families"].sequence()
    found: dict[str, Family] = {}
    for entry in listed:
        family = _family(entry)
        if family.name in found:
            entry.fail(f"{family.name}: defined twice")
        found[family.name] = family
    return found


def named(name: str, others: tuple[str, ...] = ()) -> Family:
    """The family of the matrix of that name. Raises ConfigError that names the nearest one.

    A rule of its policy for a CPython that does not exist is an error: it would require nothing.
    """
    try:
        family = matrix.family(name)
    except KeyError as exc:
        problem, _, hint = str(exc.args[0]).partition("; ")
        if "unknown" in problem:
            hint = suggest(name, (*matrix.FAMILIES, *others))
        raise ConfigError(problem, hint=hint) from exc
    for rule in family.policy:
        for python in rule.pythons:
            try:
                PythonVersion.parse(python)
            except ConfigError as exc:
                where = f"{name}: policy: {rule.suite}"
                raise ConfigError(f"{where}: {exc}", hint=exc.hint) from exc
    return family


def _family(entry: Field) -> Family:
    fields = entry.record(
        required=("name", "about", "targets", "suites", "proof"), optional=("runners", "bypass")
    )
    suites = fields["suites"].mapping()
    levels = [level.value for level in Level]
    proof = _proof(fields["proof"])
    gpus = int(proof.devices)
    labels = fields["runners"].strings() if "runners" in fields else ()
    try:
        return Family(
            fields["name"].string(),
            fields["targets"].strings(),
            Trigger.NIGHTLY,
            products=(fields["about"].string(),),
            policy=tuple(Rule(name, Level(level.choice(levels))) for name, level in suites.items()),
            runners=tuple(RunnerPool(label, gpus=gpus) for label in labels),
            bypass_tests_for_releases=_bypass(fields["bypass"]) if "bypass" in fields else None,
            needs=tuple(Need(name, gpus) for name in suites),
            proof=proof,
        )
    except ValueError as exc:
        entry.fail(str(exc))


def _bypass(entry: Field) -> Bypass:
    fields = entry.record(required=("owner", "reason", "expires"))
    return Bypass(fields["owner"].string(), fields["reason"].string(), fields["expires"].day())


def _proof(entry: Field) -> Proof:
    fields = entry.record(required=("backend", "devices", "rocm", "official"))
    return Proof(
        backend=fields["backend"].choice(("cpu", "rocm")),
        devices=fields["devices"].boolean(),
        rocm=fields["rocm"].boolean(),
        official=fields["official"].boolean(),
    )
