"""Made summaries of nights, as many and as large as a test wants."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zlib import crc32

import amdgpu_family_matrix as matrix
from rocwheel.model import timestamp
from rocwheel.report.night_page import CellSummary, FamilySummary, NightSummary, WheelSize
from rocwheel.values import replace
from rocwheel.verdict import State

DIGEST = f"sha256:{'1' * 64}"
FIRST = datetime(2026, 1, 1, 3, tzinfo=timezone.utc)
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
STATES = (State.PASS,) * 9 + (State.FAIL, State.FLAKY, State.INFRA)


def summary(
    number: int,
    *,
    families: int = 16,
    pythons: tuple[str, ...] = PYTHONS,
    shift: timedelta = timedelta(0),
) -> NightSummary:
    """The night with that number; the same for the same number, but for when it was."""
    made = FIRST + timedelta(days=number) + shift
    chosen = list(matrix.FAMILIES.values())[:families]
    cells, absent = [], []
    for family in chosen:
        for python in pythons:
            for suite in family.suites:
                name = f"gate.jax-{family.name}.{family.name}.{python}.{suite}"
                if not family.runners_for(suite):
                    absent.append((name, f"{family.name} has no runner for {suite}"))
                    continue
                state = STATES[
                    crc32(f"{family.name}{python}{suite}{number // 3}".encode()) % len(STATES)
                ]
                cells.append(
                    CellSummary(
                        name=name, kind="gate", family=family.name, python=python, suite=suite,
                        wheels=f"jax-{family.name}", state=state,
                        reason="" if state is State.PASS else f"made up: {state.value} in test_a.py::test_b",
                        link=f"v2-staging/{family.name}/_rocwheel/report.html", log="_rocwheel/log",
                        host="node-1", attempts=1, milliseconds=600_000 + 1000 * number,
                        time=timestamp(made),
                    )
                )  # fmt: skip
    return NightSummary(
        night=f"{made:%Y-%m-%d}",
        made=timestamp(made),
        written=timestamp(made),
        by="timer",
        tool="0.1.0",
        cells=(
            CellSummary(name="build.jax", kind="build", state=State.PASS, milliseconds=3_000_000 + 20_000 * number),
            *cells,
        ),
        families=tuple(_family(f.name, number) for f in chosen),
        absent=tuple(absent),
        quarantined=(("node-7", "3 cells in a row ended infra"),),
        seconds=9000 + 60 * (number % 7),
    )  # fmt: skip


def with_images(base: NightSummary, **states: str) -> NightSummary:
    """The same night with images of its first family and one CPython, each of another entry."""
    family = base.families[0].family
    made = tuple(
        CellSummary(
            name=f"image.jax.{family}.3.12.{name}", kind="image", family=family, python="3.12",
            wheels="jax", state=State(state), reason="" if state == "pass" else f"why {name}",
            image=f"here.io:5000/rocm/jax:rocm7.10.0-jax0.9.1-py3.12-{name}@{DIGEST}"
            if state == "pass" else "",
            log="_rocwheel/log",
        )
        for name, state in states.items()
    )  # fmt: skip
    return replace(base, cells=(*base.cells, *made))


def _family(name: str, number: int) -> FamilySummary:
    return FamilySummary(
        family=name,
        green="a" * 64,
        green_since=timestamp(FIRST + timedelta(days=number - 1)),
        jax="0.9.1",
        rocm="7.10.0",
        pythons=PYTHONS,
        index=f"https://rocm.example.org/v2/{name}/",
        requirements=("jax-rocm7-pjrt==0.9.1+rocm7.10.0", "jax-rocm7-plugin==0.9.1+rocm7.10.0"),
        blocked="unit on 3.12: fail: 3 tests failed (+1)" if number % 2 else "",
        blocked_set="b" * 64 if number % 2 else "",
        sizes=tuple(
            WheelSize(kind=kind, bytes=size + number * 100_000, budget=400 << 20)
            for kind, size in (("jaxlib", 90 << 20), ("plugin", 12 << 20), ("pjrt", 140 << 20))
        ),
    )
