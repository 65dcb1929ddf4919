#!/usr/bin/env python3
"""AMD GPU families: gfx targets, runners and release policy. The one definition of them.

Data and look-ups only, standard library only, so that a workflow can run this file before
anything is installed:

    python amdgpu_family_matrix.py --trigger nightly --json

Release policy per family: which suites must pass for which CPython (`policy`), and
`bypass_tests_for_releases`. A bypass excuses a missing runner only, never a failure, and it needs
an owner, a reason and a last day. No family has one now; that is the state to keep.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import enum
import json
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date


class Trigger(enum.Enum):
    """When a family is built and tested; each trigger includes the ones before it."""

    PRESUBMIT = "presubmit"
    POSTSUBMIT = "postsubmit"
    NIGHTLY = "nightly"


class Level(enum.Enum):
    """What a suite's verdict means for promotion."""

    REQUIRED = "required"
    ADVISORY = "advisory"


@dataclass(frozen=True)
class Runner:
    """A runner label; `weight` is its share where a family has several."""

    label: str
    weight: int = 1

    def __post_init__(self) -> None:
        """Refuse labels GitHub would not accept."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.label):
            raise ValueError(f"{self.label!r}: not a runner label")
        if self.weight < 1:
            raise ValueError(f"{self.label}: a weight is 1 or more")


@dataclass(frozen=True)
class Rule:
    """The level of one suite, for all CPythons or for the named ones."""

    suite: str
    level: Level
    pythons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bypass:
    """Permission to promote although no runner of the family exists."""

    owner: str
    reason: str
    expires: date

    def __post_init__(self) -> None:
        """Refuse a bypass nobody answers for."""
        if not self.owner.strip() or not self.reason.strip():
            raise ValueError("a bypass needs an owner and a reason")


# One GPU of a family proves the wheels work; several, that collectives do. Where a family has no
# runner its required suites are `no-runner`, which blocks unless the family has a bypass.
ONE_GPU = (
    Rule("smoke", Level.REQUIRED),
    Rule("unit", Level.REQUIRED),
    Rule("e2e", Level.ADVISORY),
)
MULTI_GPU = (*ONE_GPU, Rule("multi_gpu", Level.REQUIRED))


@dataclass(frozen=True)
class Family:
    """One AMD GPU family, named as in tarball names and index prefixes."""

    name: str
    targets: tuple[str, ...]
    trigger: Trigger
    products: tuple[str, ...] = ()
    runners: tuple[Runner, ...] = ()
    multi_gpu_runners: tuple[Runner, ...] = ()
    policy: tuple[Rule, ...] = ONE_GPU
    bypass_tests_for_releases: Bypass | None = None

    def __post_init__(self) -> None:
        """Refuse a family that contradicts itself."""
        if not re.fullmatch(r"gfx[0-9][0-9a-zA-Z-]*", self.name):
            raise ValueError(f"{self.name!r}: not a family name")
        if not self.targets or len(set(self.targets)) != len(self.targets):
            raise ValueError(f"{self.name}: targets must be given, each once")
        for target in self.targets:
            if not re.fullmatch(r"gfx[0-9]+[0-9a-f]{2}", target):
                raise ValueError(f"{self.name}: {target!r} is not a gfx target")
        cells = [(rule.suite, rule.pythons) for rule in self.policy]
        if not cells or len(set(cells)) != len(cells):
            raise ValueError(f"{self.name}: every suite needs one rule, none two")

    def level(self, suite: str, python: str) -> Level | None:
        """The level of (suite, CPython); a rule that names the CPython beats a general one."""
        found: Level | None = None
        for rule in self.policy:
            if rule.suite == suite and python in rule.pythons:
                return rule.level
            if rule.suite == suite and not rule.pythons:
                found = rule.level
        return found

    @property
    def suites(self) -> tuple[str, ...]:
        """Suites the policy names, in its order."""
        return tuple(dict.fromkeys(rule.suite for rule in self.policy))

    def runners_for(self, suite: str) -> tuple[Runner, ...]:
        """Runners that can run `suite`; none means its verdict is `no-runner`."""
        return self.multi_gpu_runners if suite == "multi_gpu" else self.runners


def _by_name(families: Iterable[Family]) -> dict[str, Family]:
    found: dict[str, Family] = {}
    owner: dict[str, str] = {}
    for family in families:
        if family.name in found:
            raise ValueError(f"{family.name}: defined twice")
        for target in family.targets:
            if target in owner:
                raise ValueError(f"{target}: in {owner[target]} and in {family.name}")
            owner[target] = family.name
        found[family.name] = family
    return found


FAMILIES: dict[str, Family] = _by_name(
    (
        Family(
            "gfx94X-dcgpu",
            ("gfx942",),
            Trigger.PRESUBMIT,
            products=("MI300A", "MI300X"),
            runners=(
                Runner("linux-gfx942-1gpu-ccs-ossci-rocm", 5),
                Runner("linux-gfx942-1gpu-ccs-csp-ossci-rocm", 28),
            ),
            multi_gpu_runners=(Runner("linux-gfx942-8gpu-ossci-rocm"),),
            policy=MULTI_GPU,
        ),
        Family(
            "gfx110X-all",
            ("gfx1100", "gfx1101", "gfx1102", "gfx1103"),
            Trigger.PRESUBMIT,
            products=("RX 7900 XTX",),
            runners=(Runner("linux-gfx110X-gpu-rocm"),),
        ),
        Family(
            "gfx1151",
            ("gfx1151",),
            Trigger.PRESUBMIT,
            products=("Strix Halo",),
            runners=(Runner("linux-gfx1151-gpu-rocm"),),
        ),
        Family(
            "gfx120X-all",
            ("gfx1200", "gfx1201"),
            Trigger.PRESUBMIT,
            products=("RX 9070",),
            runners=(Runner("linux-gfx120X-gpu-rocm"),),
        ),
        Family(
            "gfx90a",
            ("gfx90a",),
            Trigger.POSTSUBMIT,
            products=("MI210", "MI250"),
            runners=(Runner("linux-gfx90a-1gpu-ossci-rocm"),),
        ),
        Family(
            "gfx950-dcgpu",
            ("gfx950",),
            Trigger.POSTSUBMIT,
            products=("MI350X", "MI355X"),
            runners=(Runner("linux-gfx950-1gpu-ccs-ossci-rocm"),),
            multi_gpu_runners=(Runner("linux-gfx950-8gpu-ccs-ossci-rocm"),),
            policy=MULTI_GPU,
        ),
        Family(
            "gfx103X-all",
            ("gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036"),
            Trigger.NIGHTLY,
            runners=(Runner("linux-gfx1030-gpu-rocm"),),
        ),
        Family(
            "gfx1150",
            ("gfx1150",),
            Trigger.NIGHTLY,
            runners=(Runner("linux-gfx1150-gpu-rocm"),),
        ),
        Family("gfx1152", ("gfx1152",), Trigger.NIGHTLY),
        Family(
            "gfx1153",
            ("gfx1153",),
            Trigger.NIGHTLY,
            runners=(Runner("linux-gfx1153-gpu-rocm"),),
        ),
        Family("gfx900", ("gfx900",), Trigger.NIGHTLY),
        Family("gfx906", ("gfx906",), Trigger.NIGHTLY),
        Family("gfx908", ("gfx908",), Trigger.NIGHTLY),
        Family("gfx90c", ("gfx90c",), Trigger.NIGHTLY),
        Family("gfx101X-dgpu", ("gfx1010", "gfx1011", "gfx1012"), Trigger.NIGHTLY),
        Family("gfx125X-dcgpu", ("gfx1250",), Trigger.NIGHTLY, products=("MI450",)),
    )
)

# Targets that several families understand; a family is never named by one.
GENERIC_TARGETS = (
    "gfx9-generic",
    "gfx9-4-generic",
    "gfx10-1-generic",
    "gfx10-3-generic",
    "gfx11-generic",
    "gfx12-generic",
)


def known_targets() -> tuple[str, ...]:
    """Every gfx target a wheel may hold code for."""
    return (*(name for item in FAMILIES.values() for name in item.targets), *GENERIC_TARGETS)


def family(name: str) -> Family:
    """Look up a family. Raises KeyError whose message names the nearest family."""
    if name in FAMILIES:
        return FAMILIES[name]
    close = difflib.get_close_matches(name, FAMILIES, n=1, cutoff=0.5)
    near = f"did you mean {close[0]}?" if close else f"choose from: {', '.join(FAMILIES)}"
    raise KeyError(f"{name!r}: unknown GPU family; {near}")


def families(trigger: Trigger) -> tuple[Family, ...]:
    """Families that run on `trigger`; the nightly takes all, presubmit only its own."""
    order = list(Trigger)
    return tuple(
        item for item in FAMILIES.values() if order.index(item.trigger) <= order.index(trigger)
    )


def family_of_tarball(filename: str) -> Family | None:
    """The family a TheRock tarball's name carries: `therock-dist-linux-<family>-<version>.…`."""
    match = re.match(r"therock-dist-linux-(gfx.+)-(\d[^-]*)\.tar\.\w+\Z", filename)
    return FAMILIES.get(match[1]) if match else None


def as_json(chosen: Iterable[Family]) -> str:
    """A JSON array of families, as a GitHub Actions matrix can use it."""

    def plain(value: object) -> str:
        return str(value.value) if isinstance(value, enum.Enum) else str(value)

    return json.dumps([dataclasses.asdict(item) for item in chosen], indent=2, default=plain)


def main(argv: Sequence[str]) -> int:
    """Print families; exit status 2 for unusable arguments."""
    parser = argparse.ArgumentParser(
        description="Print AMD GPU families: gfx targets, runners, release policy."
    )
    parser.add_argument(
        "--trigger",
        choices=[item.value for item in Trigger],
        default=Trigger.NIGHTLY.value,
        help="families that run on this trigger (default: nightly, which is all of them)",
    )
    parser.add_argument("--family", help="only this family")
    parser.add_argument("--json", action="store_true", help="a JSON array instead of a table")
    args = parser.parse_args(argv)
    chosen = families(Trigger(args.trigger))
    if args.family:
        try:
            chosen = (family(args.family),)
        except KeyError as exc:
            parser.error(str(exc.args[0]))
    if args.json:
        print(as_json(chosen))
        return 0
    for item in chosen:
        runner = item.runners[0].label if item.runners else "no runner"
        print(f"{item.name:14} {item.trigger.value:11} {runner:34} {' '.join(item.targets)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
