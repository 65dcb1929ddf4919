#!/usr/bin/env python3
"""AMD GPU families: gfx targets, runners and release policy. The one definition of them.

Data and look-ups only, standard library only, so that a workflow can run this file before
anything is installed:

    python amdgpu_family_matrix.py --trigger nightly --json
    python amdgpu_family_matrix.py --trigger nightly --matrix gate --pythons 3.12,3.13

Release policy per family: which suites must pass for which CPython (`policy`), and
`bypass_tests_for_releases`. A bypass excuses a missing runner only, never a failure, and it needs
an owner, a reason and a last day. No family has one now; that is the state to keep.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import sys
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType
    from typing import NoReturn, TypeVar

    T = TypeVar("T")


def _refuse(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> NoReturn:
    """End as rocwheel ends where an entry below is wrong and this file is the program."""
    plain = (ValueError, TypeError, AttributeError)
    what = error if issubclass(kind, plain) else f"{kind.__name__}: {error}"
    where = f"{__file__}:{getattr(error, 'line', 0) or (at.tb_lineno if at else 0)}"
    sys.stderr.write(f"error: {where}: {what}\nhint:  correct the entry there\n")
    sys.exit(3)


if __name__ == "__main__":
    sys.excepthook = _refuse  # until all entries are read


class _Names(enum.EnumMeta):
    def __getattr__(cls, name: str) -> object:
        """Find a member, which CPython before 3.12 asks for here; say which there are."""
        if name[:1] == "_" or name not in cls.__members__:
            raise AttributeError(f"{name!r} is no {cls.__name__}: write {_written(cls)}")
        return cls.__members__[name]


class Trigger(enum.Enum, metaclass=_Names):
    """When a family is built and tested; each trigger includes the ones before it."""

    PRESUBMIT = "presubmit"
    POSTSUBMIT = "postsubmit"
    NIGHTLY = "nightly"


class Level(enum.Enum, metaclass=_Names):
    """What a suite's verdict means for promotion."""

    REQUIRED = "required"
    ADVISORY = "advisory"


MOST_JOBS = 256  # of one matrix: GitHub's limit
# What a rule may name: the list of rocwheel.base.versions
CPYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.13-ft", "3.14", "3.14-ft", "3.15", "3.15-ft")


def _written(kind: type) -> str:
    """Return how a value of a type is written."""
    if issubclass(kind, enum.Enum):
        return " or ".join(map(str, kind))
    if dataclasses.is_dataclass(kind):
        fields = ", ".join(field.name for field in dataclasses.fields(kind))
        return f"{kind.__name__}({fields})"
    words = {str: 'a text in "quotes"', int: "a number", date: "date(YEAR, MONTH, DAY)"}
    return words.get(kind, "True or False")


def _typed(owner: object, /, **kinds: type | tuple[type]) -> None:
    """Refuse a value that is not of its field's type, `(type,)` for a tuple of any length."""
    for field, kind in kinds.items():
        value, name = getattr(owner, field), getattr(owner, "name", type(owner).__name__)
        if isinstance(kind, tuple) and not isinstance(value, tuple):
            raise TypeError(f"{name}: {field}: {value!r} is no tuple: write ({value!r},)")
        one, items = (kind[0], value) if isinstance(kind, tuple) else (kind, (value,))
        for item in items:
            if type(item) is not one:  # True would be a number
                what = f"{item!r} is no {one.__name__}: write {_written(one)}"
                raise TypeError(f"{name}: {field}: {what}")


def _entry(made: type[T]) -> type[T]:
    """Make a class say which fields it has, and its values the line they are written on."""
    init = made.__init__

    def checked(self: T, *args: object, **fields: object) -> None:
        object.__setattr__(self, "line", sys._getframe(1).f_lineno)  # noqa: SLF001
        try:
            init(self, *args, **fields)
        except TypeError as exc:
            if "__init__()" not in str(exc):
                raise
            raise TypeError(f"{exc}: write {_written(made)}") from None

    made.__init__ = checked  # type: ignore[assignment,method-assign]
    return made


@_entry
@dataclass(frozen=True)
class RunnerPool:
    """Machines of one kind: their GitHub label, and what finds them in a Slurm cluster.

    `weight` is the label's share where a family has several. `gres` is the generic resource of one
    GPU as Slurm names it (`gpu:mi300x`); a cell asks for as many as its suite needs.
    """

    label: str
    weight: int = 1
    gpus: int = 1
    partition: str = ""  # "" where no cluster has them
    gres: str = "gpu"

    def __post_init__(self) -> None:
        """Refuse what GitHub or Slurm would not accept."""
        _typed(self, label=str, weight=int, gpus=int, partition=str, gres=str)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.label):
            raise ValueError(f"label: {self.label!r} is not a runner label")
        if self.weight < 1:
            raise ValueError(f"{self.label}: weight: {self.weight} is not 1 or more")
        if self.gpus < 0:
            raise ValueError(f"{self.label}: gpus: {self.gpus} is not 0 or more")
        if self.partition and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.partition):
            raise ValueError(
                f"{self.label}: partition: {self.partition!r} is not a Slurm partition"
            )
        if not re.fullmatch(r"[a-z][a-z0-9_]*(:[A-Za-z0-9][A-Za-z0-9._-]*)?", self.gres):
            raise ValueError(f"{self.label}: gres: {self.gres!r} is not NAME or NAME:TYPE")


@_entry
@dataclass(frozen=True)
class Need:
    """What a suite needs of a machine, and into how many parts it may be cut."""

    suite: str
    gpus: int = 1
    shards: int = 1  # the most

    def __post_init__(self) -> None:
        """Refuse needs nothing can meet."""
        _typed(self, suite=str, gpus=int, shards=int)
        if self.gpus < 0:
            raise ValueError(f"{self.suite}: gpus: {self.gpus} is not 0 or more")
        if not 1 <= self.shards <= MOST_JOBS:
            raise ValueError(f"{self.suite}: shards: {self.shards} is not 1 to {MOST_JOBS}")


NEEDS = (
    Need("smoke"),
    Need("unit", shards=16),
    Need("e2e", shards=2),
    Need("multi_gpu", gpus=2, shards=4),
)


@_entry
@dataclass(frozen=True)
class Rule:
    """The level of one suite, for all CPythons or for the named ones."""

    suite: str
    level: Level
    pythons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a rule that would require nothing."""
        _typed(self, suite=str, level=Level, pythons=(str,))
        for python in self.pythons:
            if python not in CPYTHONS:
                known = ", ".join(CPYTHONS)
                raise ValueError(f"{self.suite}: pythons: {python!r} is none of {known}")


@_entry
@dataclass(frozen=True)
class Bypass:
    """Permission to promote although no runner of the family exists."""

    owner: str
    reason: str
    expires: date

    def __post_init__(self) -> None:
        """Refuse a bypass without an owner or a reason."""
        _typed(self, owner=str, reason=str, expires=date)
        if not self.owner.strip() or not self.reason.strip():
            raise ValueError("a bypass needs an owner and a reason")


@_entry
@dataclass(frozen=True)
class Proof:
    """What a pass must show of where it ran."""

    backend: str = "rocm"  # what jax.default_backend() said; "" for a suite without JAX
    devices: bool = True  # GPUs of the family, and no other
    rocm: bool = True  # the manifest's ROCm, by its digest
    official: bool = True  # a suite and a rocwheel as committed, run without additions

    def __post_init__(self) -> None:
        """Refuse what would show nothing."""
        _typed(self, backend=str, devices=bool, rocm=bool, official=bool)


# One GPU of a family proves the wheels work; several, that collectives do. Where a family has no
# runner its required suites are `no-runner`, which blocks unless the family has a bypass.
ONE_GPU = (
    Rule("smoke", Level.REQUIRED),
    Rule("unit", Level.REQUIRED),
    Rule("e2e", Level.ADVISORY),
)
MULTI_GPU = (*ONE_GPU, Rule("multi_gpu", Level.REQUIRED))


@_entry
@dataclass(frozen=True)
class Family:
    """One AMD GPU family, named as in tarball names and index prefixes."""

    name: str
    targets: tuple[str, ...]
    trigger: Trigger
    products: tuple[str, ...] = ()
    runners: tuple[RunnerPool, ...] = ()
    policy: tuple[Rule, ...] = ONE_GPU
    bypass_tests_for_releases: Bypass | None = None
    needs: tuple[Need, ...] = NEEDS
    platform: str = "linux"
    proof: Proof = Proof()

    def __post_init__(self) -> None:
        """Refuse a family that contradicts itself; the message names the field."""
        _typed(self, name=str, targets=(str,), trigger=Trigger, products=(str,), platform=str)
        _typed(self, runners=(RunnerPool,), policy=(Rule,), needs=(Need,), proof=Proof)
        if self.bypass_tests_for_releases is not None:
            _typed(self, bypass_tests_for_releases=Bypass)
        names = r"gfx[0-9][0-9a-zA-Z-]*" if self.proof.devices else r"[a-z][0-9a-z-]*"
        if not re.fullmatch(names, self.name):
            raise ValueError(f"name: {self.name!r} is not a family name")
        if self.platform != "linux":
            raise ValueError(f"{self.name}: platform: {self.platform!r} is not linux")
        if not self.targets:
            raise ValueError(f"{self.name}: targets: names none; write its gfx targets")
        _once(self.name, "targets", self.targets)
        for target in self.targets:
            if not re.fullmatch(r"gfx[0-9]+[0-9a-f]{2}", target):
                raise ValueError(f"{self.name}: targets: {target!r} is not a gfx target")
        if not self.policy:
            raise ValueError(f"{self.name}: suites: names none; write those its policy requires")
        _once(self.name, "policy", [(rule.suite, rule.pythons) for rule in self.policy])
        _once(self.name, "runners", [runner.label for runner in self.runners])
        known = [need.suite for need in self.needs]
        _once(self.name, "needs", known)
        for suite in self.suites:
            if suite not in known:
                raise ValueError(f"{self.name}: needs: no row for the suite {suite!r}")

    def level(self, suite: str, python: str) -> Level | None:
        """Return the level of (suite, CPython); a rule for the CPython beats a general one."""
        general: Level | None = None
        for rule in self.policy:
            if rule.suite == suite and python in rule.pythons:
                return rule.level
            if rule.suite == suite and not rule.pythons:
                general = rule.level
        return general

    def requires(self, suite: str) -> bool:
        """Return whether some CPython cannot be released without this suite."""
        return any(rule.suite == suite and rule.level is Level.REQUIRED for rule in self.policy)

    @property
    def suites(self) -> tuple[str, ...]:
        """Suites the policy names, in its order."""
        return tuple(dict.fromkeys(rule.suite for rule in self.policy))

    def need(self, suite: str) -> Need:
        """Return what a suite needs; without a row it needs one GPU and is not cut."""
        return next((need for need in self.needs if need.suite == suite), Need(suite))

    def runners_for(self, suite: str) -> tuple[RunnerPool, ...]:
        """Return the smallest runners that can run `suite`; without any it is `no-runner`."""
        able = [runner for runner in self.runners if runner.gpus >= self.need(suite).gpus]
        least = min((runner.gpus for runner in able), default=0)
        return tuple(runner for runner in able if runner.gpus == least)


def choose(runners: Sequence[RunnerPool], key: str) -> RunnerPool:
    """Choose one of several runners by weight; the same key always gives the same one."""
    import hashlib

    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
    place = number % sum(runner.weight for runner in runners)
    for runner in runners:
        place -= runner.weight
        if place < 0:
            return runner
    raise ValueError("no runner to choose from")


def _once(where: str, field: str, items: Sequence[object]) -> None:
    for item in items:
        if items.count(item) > 1:
            raise ValueError(f"{where}: {field}: {item!r} is there twice")


class _TwiceError(ValueError):
    def __init__(self, what: str, again: Family) -> None:
        super().__init__(what)
        self.line = getattr(again, "line", 0)  # of the entry, where the file has many


def _by_name(families: Iterable[Family]) -> MappingProxyType[str, Family]:
    found: dict[str, Family] = {}
    owner: dict[str, str] = {}
    for family in families:
        if family.name in found:
            raise _TwiceError(f"{family.name}: defined twice", family)
        for target in family.targets:
            if target in owner:
                raise _TwiceError(f"{target}: in {owner[target]} and in {family.name}", family)
            owner[target] = family.name
        found[family.name] = family
    return MappingProxyType(found)


FAMILIES: MappingProxyType[str, Family] = _by_name(
    (
        Family(
            "gfx94X-dcgpu",
            ("gfx942",),
            Trigger.PRESUBMIT,
            products=("MI300A", "MI300X", "MI325X"),
            runners=(
                RunnerPool("linux-gfx942-1gpu-ccs-ossci-rocm", 5, 1, "gfx942", "gpu:mi300x"),
                RunnerPool("linux-gfx942-1gpu-ccs-csp-ossci-rocm", 28, 1, "gfx942", "gpu:mi300x"),
                RunnerPool("linux-gfx942-8gpu-ossci-rocm", 1, 8, "gfx942", "gpu:mi300x"),
            ),
            policy=MULTI_GPU,
        ),
        Family(
            "gfx110X-all",
            ("gfx1100", "gfx1101", "gfx1102", "gfx1103"),
            Trigger.PRESUBMIT,
            products=("RX 7900 XTX", "RX 7800 XT", "RX 7600", "PRO W7900", "PRO W7800", "780M"),
            runners=(RunnerPool("linux-gfx110X-gpu-rocm", partition="gfx110X"),),
        ),
        Family(
            "gfx1151",
            ("gfx1151",),
            Trigger.PRESUBMIT,
            products=("Strix Halo",),
            runners=(RunnerPool("linux-gfx1151-gpu-rocm", partition="gfx1151"),),
        ),
        Family(
            "gfx120X-all",
            ("gfx1200", "gfx1201"),
            Trigger.PRESUBMIT,
            products=("RX 9070 XT", "RX 9060 XT", "AI PRO R9700"),
            runners=(RunnerPool("linux-gfx120X-gpu-rocm", partition="gfx120X"),),
        ),
        Family(
            "gfx90a",
            ("gfx90a",),
            Trigger.POSTSUBMIT,
            products=("MI210", "MI250"),
            runners=(
                RunnerPool("linux-gfx90a-1gpu-ossci-rocm", partition="gfx90a", gres="gpu:mi250"),
            ),
        ),
        Family(
            "gfx950-dcgpu",
            ("gfx950",),
            Trigger.POSTSUBMIT,
            products=("MI350X", "MI355X"),
            runners=(
                RunnerPool("linux-gfx950-1gpu-ccs-ossci-rocm", 1, 1, "gfx950", "gpu:mi355x"),
                RunnerPool("linux-gfx950-8gpu-ccs-ossci-rocm", 1, 8, "gfx950", "gpu:mi355x"),
            ),
            policy=MULTI_GPU,
        ),
        Family(
            "gfx103X-all",
            ("gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036"),
            Trigger.NIGHTLY,
            runners=(RunnerPool("linux-gfx1030-gpu-rocm", partition="gfx103X"),),
        ),
        Family(
            "gfx1150",
            ("gfx1150",),
            Trigger.NIGHTLY,
            runners=(RunnerPool("linux-gfx1150-gpu-rocm", partition="gfx1150"),),
        ),
        Family("gfx1152", ("gfx1152",), Trigger.NIGHTLY),
        Family(
            "gfx1153",
            ("gfx1153",),
            Trigger.NIGHTLY,
            runners=(RunnerPool("linux-gfx1153-gpu-rocm", partition="gfx1153"),),
        ),
        Family("gfx900", ("gfx900",), Trigger.NIGHTLY, products=("MI25",)),
        Family("gfx906", ("gfx906",), Trigger.NIGHTLY, products=("MI50", "MI60")),
        Family("gfx908", ("gfx908",), Trigger.NIGHTLY, products=("MI100",)),
        Family("gfx90c", ("gfx90c",), Trigger.NIGHTLY),
        Family("gfx101X-dgpu", ("gfx1010", "gfx1011", "gfx1012"), Trigger.NIGHTLY),
        Family("gfx125X-dcgpu", ("gfx1250",), Trigger.NIGHTLY, products=("MI450",)),
    )
)

# Processors with a GPU that shares the host's memory
APUS = frozenset(
    (
        "gfx90c", "gfx1033", "gfx1035", "gfx1036", "gfx1103", "gfx1150", "gfx1151", "gfx1152",
        "gfx1153",
    )
)  # fmt: skip

# What AMD's own wheels for all GPUs leave out: TheRock 89553ce builds 27 targets of JAX's, and its
# build_tools/github_actions/configure_pytorch_release_matrix.py names the one that is missing.
LEFT_OUT_BY_AMD = frozenset({"gfx90c"})

# Targets that several families understand; a family is never named by one.
GENERIC_TARGETS = (
    "gfx9-generic",
    "gfx9-4-generic",
    "gfx10-1-generic",
    "gfx10-3-generic",
    "gfx11-generic",
    "gfx12-generic",
)


if lost := APUS - {target for item in FAMILIES.values() for target in item.targets}:
    raise ValueError(f"APUS: {', '.join(sorted(lost))}: a target of no family above")


def known_targets() -> tuple[str, ...]:
    """Every gfx target a wheel may hold code for."""
    return (*(name for item in FAMILIES.values() for name in item.targets), *GENERIC_TARGETS)


def of_target(target: str) -> str:
    """Return the name of the family that has a gfx target; "" for a generic or unknown one."""
    return next((item.name for item in FAMILIES.values() if target in item.targets), "")


# https://github.com/llvm/llvm-project/pull/126762: silicon that was never sold
RETIRED_TARGETS = {
    "gfx940": "MI300 is gfx942, of the family gfx94X-dcgpu",
    "gfx941": "MI300 is gfx942, of the family gfx94X-dcgpu",
}


# Names that TheRock's cmake/therock_amdgpu_targets.cmake has for a family, and its tarballs do not
OLD_NAMES = {
    "gfx94X-all": "gfx94X-dcgpu",
    "gfx950-all": "gfx950-dcgpu",
    "gfx101X-all": "gfx101X-dgpu",
    "gfx103X-dgpu": "gfx103X-all",
    "gfx110X-dgpu": "gfx110X-all",
}

# What people call the GPUs: TheRock 89553ce RELEASES.md and build_tools/hack/env_check/
# AMDGPU_LLVM_TARGET.py; of processors with a GPU, and of MI308X, LLVM's AMDGPUUsage and
# https://rocm.docs.amd.com/en/latest/reference/gpu-arch-specs.html
PRODUCTS = {
    "gfx900": ("MI25", "Vega 56", "Vega 64"),
    "gfx906": ("MI50", "MI60", "Radeon VII", "Radeon Pro VII"),
    "gfx908": ("MI100",),
    "gfx90a": ("MI210", "MI250", "MI250X"),
    "gfx942": ("MI300A", "MI300X", "MI308X", "MI325X"),
    "gfx950": ("MI350X", "MI355X"),
    "gfx1010": ("RX 5600", "RX 5600 XT", "RX 5700", "RX 5700 XT"),
    "gfx1011": ("Pro V520",),
    "gfx1012": ("RX 5300 XT", "RX 5500", "RX 5500 XT", "Pro W5500"),
    "gfx1030": ("RX 6800", "RX 6800 XT", "RX 6900 XT", "RX 6950 XT", "PRO W6800", "PRO V620"),
    "gfx1031": ("RX 6700", "RX 6700 XT", "RX 6750 XT"),
    "gfx1032": ("RX 6600", "RX 6600 XT", "RX 6650 XT", "PRO W6600"),
    "gfx1033": ("Van Gogh",),
    "gfx1034": ("RX 6500", "RX 6500 XT", "PRO W6400"),
    "gfx1035": ("680M",),
    "gfx1036": ("Raphael",),
    "gfx1100": ("RX 7900 XTX", "RX 7900 XT", "RX 7900 GRE", "PRO W7900", "PRO W7800"),
    "gfx1101": ("RX 7800 XT", "RX 7800", "RX 7700 XT", "RX 7700", "PRO W7700", "PRO V710"),
    "gfx1102": ("RX 7700S", "RX 7650 GRE", "RX 7600 XT", "RX 7600", "RX 7400"),
    "gfx1103": ("780M", "760M"),
    "gfx1150": ("Strix Point", "890M", "880M"),
    "gfx1151": ("Strix Halo", "8060S", "8050S", "Ryzen AI Max+ 395", "Ryzen AI Max+ PRO 395"),
    "gfx1152": ("Krackan Point", "860M", "840M"),
    "gfx1153": ("820M",),
    "gfx1200": ("RX 9060 XT", "RX 9060"),
    "gfx1201": ("RX 9070 XT", "RX 9070 GRE", "RX 9070", "AI PRO R9700", "AI PRO R9600D"),
    "gfx1250": ("MI450", "MI450X", "MI455X"),
}
SHORTEST_PRODUCT = 4  # characters of a product's name that are enough to know it
# Words of AMD's names that tell no two GPUs apart
COMMON_WORDS = re.compile(
    r"\b(?:(?:amd|ati|instinct|radeon|ryzen|pro|ai|graphics|gpu|igpu|laptop|oam|dual slot|tm)\b|rx)"
)


def _plain(product: str) -> str:
    words = re.sub(r"[\s_()-]+", " ", product.lower())
    return re.sub(r"[^a-z0-9]", "", COMMON_WORDS.sub("", words))


def of_product(name: str) -> list[str]:
    """Return the gfx target of a product, or those of products whose names have this part."""
    products = [(target, item) for target, names in PRODUCTS.items() for item in names]
    products += [(item.targets[0], one) for item in FAMILIES.values() for one in item.products]
    product = _plain(name)
    whole = [target for target, item in products if product and product == _plain(item)]
    part = [target for target, item in products if product in _plain(item)]
    return whole[:1] or (list(dict.fromkeys(part)) if len(product) >= SHORTEST_PRODUCT else [])


def family(name: str) -> Family:
    """Look up a family. Raises KeyError whose message names the nearest family."""
    if name in FAMILIES:
        return FAMILIES[name]
    old = {item.lower(): new for item, new in OLD_NAMES.items()}
    if new := old.get(name.strip().lower()):
        raise KeyError(f"{name!r}: the old name of a GPU family; did you mean {new}?")
    if name in RETIRED_TARGETS:
        raise KeyError(f"{name!r}: a retired gfx target; {RETIRED_TARGETS[name]}")
    having = [family.name for family in FAMILIES.values() if name in family.targets]
    if having:
        raise KeyError(f"{name!r}: a gfx target, not a family; did you mean {' or '.join(having)}?")
    if "," in name:
        raise KeyError(f"{name!r}: a list, where one GPU family stands; name one of them")
    if products := dict.fromkeys(map(of_target, of_product(name))):
        meant = " or ".join(products)
        raise KeyError(f"{name!r}: a product, not a family; did you mean {meant}?")
    raise KeyError(f"{name!r}: unknown GPU family; {nearest(name, FAMILIES)}")


def nearest(name: str, families: Iterable[str]) -> str:
    """Return a hint: the families that begin so, else the nearest of this number, else all."""
    import difflib  # which few runs need

    def number(text: str) -> str:
        found = re.search(r"[0-9]+", text)
        return found[0] if found else ""

    every, name = list(families), name.partition(":")[0]  # gfx906:xnack-: LLVM's way to say more
    close = [of_target(name)] if of_target(name) else []
    close = close or [item for item in every if name and item.lower().startswith(name.lower())]
    if wild := re.match(r"(gfx[0-9]+)x", name.lower()):  # gfx90X: any digit
        close = close or [item for item in every if item.startswith(wild[1])]
    if not close:
        like = [item for item in every if number(name).startswith(number(item))]
        close = difflib.get_close_matches(name, like, n=1, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else f"choose from: {', '.join(every)}"


def families(trigger: Trigger) -> tuple[Family, ...]:
    """Families that run on `trigger`; the nightly takes all, presubmit only its own."""
    order = list(Trigger)
    return tuple(
        item for item in FAMILIES.values() if order.index(item.trigger) <= order.index(trigger)
    )


def as_json(chosen: Iterable[Family]) -> str:
    """Return a JSON array of families, as a GitHub Actions matrix can use it."""

    def plain(value: object) -> str:
        return str(value.value) if isinstance(value, enum.Enum) else str(value)

    return json.dumps([dataclasses.asdict(item) for item in chosen], indent=2, default=plain)


def build_matrix(chosen: Iterable[Family]) -> list[dict[str, object]]:
    """One build job per family, for `strategy.matrix.include`."""
    return [
        {"family": item.name, "platform": item.platform, "gfx_targets": ",".join(item.targets)}
        for item in chosen
    ]


def gate_matrix(
    chosen: Iterable[Family], pythons: Sequence[str], *, night: str = "", most: int = MOST_JOBS
) -> list[dict[str, object]]:
    """One gate job per (family, suite, CPython, shard) that has a runner; `most` in all.

    Where that is more, the suites that are cut into most shards are cut into fewer. Raises
    ValueError when even whole suites are too many.
    """
    cells = [
        (item, suite, python)
        for item in chosen
        for suite in item.suites
        if item.runners_for(suite)
        for python in pythons
    ]
    shards = [item.need(suite).shards for item, suite, _ in cells]
    if len(cells) > most:
        raise ValueError(
            f"{len(cells)} jobs are more than {most}: choose fewer families or CPythons"
        )
    while sum(shards) > most:
        shards[shards.index(max(shards))] -= 1
    rows: list[dict[str, object]] = []
    for (item, suite, python), count in zip(cells, shards, strict=True):
        for number in range(1, count + 1):
            name = f"gate.{item.name}.{python}.{suite}.{number}-of-{count}"
            runner = choose(item.runners_for(suite), f"{night}/{name}")
            level = item.level(suite, python)
            rows.append(
                {
                    "cell": name,
                    "family": item.name,
                    "suite": suite,
                    "python": python,
                    "shard": f"{number}/{count}",
                    "level": level.value if level else "",
                    "gpus": item.need(suite).gpus,
                    "runner": runner.label,
                }
            )
    return rows


def main(argv: Sequence[str]) -> int:
    """Print families; exit status 2 for unusable arguments."""
    import argparse

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
    parser.add_argument(
        "--matrix",
        choices=("build", "gate"),
        help="jobs for a GitHub Actions matrix: one line of JSON",
    )
    parser.add_argument("--pythons", default="3.12", help="CPythons of --matrix gate: 3.12,3.13")
    parser.add_argument("--night", default="", help="the night that runners are chosen for")
    args = parser.parse_args(argv)
    chosen = families(Trigger(args.trigger))
    if args.family:
        try:
            chosen = (family(args.family),)
        except KeyError as exc:
            parser.error(str(exc.args[0]))
    if args.matrix:
        pythons = [item.strip() for item in args.pythons.split(",") if item.strip()]
        try:
            rows = (
                build_matrix(chosen)
                if args.matrix == "build"
                else gate_matrix(chosen, pythons, night=args.night)
            )
        except ValueError as exc:
            parser.error(str(exc))
        print(json.dumps({"include": rows}))
        return 0
    if args.json:
        print(as_json(chosen))
        return 0
    for item in chosen:
        runner = item.runners[0].label if item.runners else "no runner"
        print(f"{item.name:14} {item.trigger.value:11} {runner:34} {' '.join(item.targets)}")
    return 0


if __name__ == "__main__":
    sys.excepthook = sys.__excepthook__
    sys.exit(main(sys.argv[1:]))
