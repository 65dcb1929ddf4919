"""Made summaries of nights, as many and as large as a test wants."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zlib import crc32

import amdgpu_family_matrix as matrix
from rocwheel.base.values import replace
from rocwheel.base.versions import moment, timestamp
from rocwheel.night.image_record import ImageRecord
from rocwheel.night.truth import CellSummary, FamilySummary, NightSummary
from rocwheel.records.install import Install, Package
from rocwheel.records.verdict import State
from rocwheel.release.ledger.nights import CauseClass, Phase, WheelRecipe

DIGEST = f"sha256:{'1' * 64}"
FIRST = datetime(2026, 1, 1, 3, tzinfo=timezone.utc)
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
RECIPE = WheelRecipe(
    name="jax", inputs="1" * 64, jax="0.9.1", jax_repository="", jax_commit="", rocm="/rocm.tar.gz",
    rocm_version="7.10.0", rocm_sha256="", image="", families=("gfx94X-dcgpu", "gfx90c"),
    pythons=("3.12", "3.13"), argv=("dist_wheels",),
)  # fmt: skip
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
    cells = []
    for family in chosen:
        for python in pythons:
            for suite in family.suites:
                name = f"gate.jax-{family.name}.{family.name}.{python}.{suite}"
                if not family.runners_for(suite):
                    cells.append(
                        CellSummary(
                            name=name, kind="gate", family=family.name, python=python,
                            suite=suite, wheels=f"jax-{family.name}", phase=Phase.ABSENT,
                            excused=True, reason=f"{family.name} has no runner for {suite}",
                        )
                    )  # fmt: skip
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
                        time=timestamp(made), gpus=1, waited=90_000, testing=420_000,
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
        quarantined=(("node-7", "3 cells in a row ended infra"),),
        seconds=9000 + 60 * (number % 7),
    )  # fmt: skip


def red_morning(number: int = 30, families: int = 6) -> list[NightSummary]:
    """Two nights: a green one, and one in which most of what can go wrong did."""
    base = summary(number - 1, families=families)
    names = [family.family for family in base.families]
    source = WheelRecipe(
        name=f"jax-{names[0]}", inputs="1" * 64, jax="main",
        jax_repository="https://github.com/jax-ml/jax.git", jax_commit="a" * 40,
        xla_commit="b" * 40, rocm="", rocm_version="7.10.0a20260130", rocm_sha256="c" * 64,
        image="", families=(), pythons=(), argv=(), tool="0.1.0 " + "d" * 40,
    )  # fmt: skip
    gates = [replace(c, state=State.PASS, reason="") for c in base.cells if c.kind == "gate"]
    builds = [
        CellSummary(
            name=f"build.jax-{n}", kind="build", wheels=f"jax-{n}", state=State.PASS,
            milliseconds=3_000_000, log="_rocwheel/log",
        )
        for n in names
    ]  # fmt: skip
    promotes = [
        CellSummary(
            name=f"promote.jax-{n}.{n}", kind="promote", wheels=f"jax-{n}", family=n,
            state=State.PASS, log="_rocwheel/log",
        )
        for n in names
    ]  # fmt: skip
    before = replace(base, cells=(*builds, *gates, *promotes), recipes=(source,), quarantined=())
    broken, missing = f"jax-{names[1]}", f"jax-{names[2]}"
    error = "xla/service/gpu/nccl_api.cc:231:7: error: no member named 'ncclConfig' in 'rccl'"
    barred = {"phase": Phase.BARRED, "state": State.NOT_RUN, "reason": f"build.{broken}: fail"}

    def bad(cell: CellSummary) -> CellSummary | None:
        if cell.wheels == missing:
            why = "https://rocm.nightlies.amd.com/tarball/: lists no tarball of " + names[2]
            absent = replace(
                cell,
                family=names[2],
                phase=Phase.ABSENT,
                state=None,
                reason=why,
                log="",
                cause=CauseClass.ABSENT,
            )
            return absent if cell.kind == "build" else None
        if cell.wheels == broken:
            failed = {
                "state": State.FAIL,
                "reason": error,
                "host": "builder-2",
                "cause": CauseClass.WHEELS,
            }
            return replace(cell, **(failed if cell.kind == "build" else barred))
        if cell.kind == "gate" and cell.suite == "unit" and cell.family == names[0]:
            why = f"3 failed: linalg_test.py::LinalgTest.test_qr[{cell.python}] 0x7f3a12bc hipErrorLaunch"
            return replace(
                cell, state=State.FAIL, reason=why, host="mi300-4", cause=CauseClass.TESTS
            )
        if cell.kind == "gate" and cell.family == names[3] and cell.python == "3.14":
            why = "no device: /dev/kfd: No such file or directory"
            return replace(cell, state=State.INFRA, reason=why, cause=CauseClass.MACHINE)
        return replace(cell, milliseconds=5_400_000) if cell.kind == "build" else cell

    families_ = tuple(
        replace(f, sizes={kind: size * 5 // 4 for kind, size in f.sizes.items()}) if not i else f
        for i, f in enumerate(before.families)
    )
    made = FIRST + timedelta(days=number)
    here = replace(
        before, night=f"{made:%Y-%m-%d}", made=timestamp(made), written=timestamp(made),
        cells=tuple(cell for c in before.cells if (cell := bad(c))), families=families_,
        recipes=(replace(source, jax_commit="e" * 40, rocm_version="7.10.0a20260131",
                         rocm_sha256="f" * 64, authors=("Ann Example", "Ben Example")),),
        quarantined=(("node-7", "3 cells in a row ended infra"),),
    )  # fmt: skip
    return [before, here]


def later(night: NightSummary) -> NightSummary:
    """The same, a day later."""
    made = moment(night.made) + timedelta(days=1)
    return replace(night, night=f"{made:%Y-%m-%d}", made=timestamp(made), written=timestamp(made))


def of_one_set(base: NightSummary) -> NightSummary:
    """The same night with one set for all families.

    The first has it from `all`, the second from its own index, the third is held up; the others
    have an older one.
    """
    recipe = WheelRecipe(
        name="jax", inputs="1" * 64, jax="0.9.1", jax_repository="", jax_commit="a" * 40, rocm="",
        rocm_version="7.10.0", rocm_sha256="c" * 64, image="", pythons=PYTHONS, argv=(),
        families=tuple(family.family for family in base.families), manifest="d" * 64,
    )  # fmt: skip
    first, second, third, *others = (replace(f, blocked="", blocked_set="") for f in base.families)
    index = "https://rocm.example.org/v2/all/"
    assert first.install
    families = (
        replace(first, green=recipe.manifest, install=replace(first.install, index=index)),
        replace(second, green=recipe.manifest),
        replace(third, blocked="unit on 3.12: fail: test_qr", blocked_set=recipe.manifest),
        *others,
    )
    cells = tuple(replace(cell, wheels="jax" if cell.family else "") for cell in base.cells)
    return replace(base, recipes=(recipe,), families=families, cells=cells)


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
        install=Install(
            index=f"https://rocm.example.org/v2/{name}/",
            ours=tuple(
                Package(project=f"jax-rocm7-{kind}", version="0.9.1+rocm7.10.0")
                for kind in ("pjrt", "plugin")
            ),
            jax="0.9.1",
            rocm="7.10.0",
            pythons=PYTHONS,
        ),
        blocked="unit on 3.12: fail: 3 tests failed (+1)" if number % 2 else "",
        blocked_set="b" * 64 if number % 2 else "",
        sizes={
            kind: size + number * 100_000
            for kind, size in (("jaxlib", 90 << 20), ("plugin", 12 << 20), ("pjrt", 140 << 20))
        },
    )


def image_record(**changes: object) -> ImageRecord:
    """The record of a runtime image that was pushed."""
    one = f"sha256:{'1' * 64}"
    made = ImageRecord(
        reference="here.io/rocm/jax:rocm7.10.0-jax0.9.1-py3.12", digest=one, config=one,
        inputs="2" * 64, manifest="a" * 64, released=True, recipe="jax", profile="runtime",
        python="3.12", base="ubuntu", base_config=one, rocm="7.10.0", rocm_sha256="", layers={},
        blobs=(), packages={}, verdicts=(), time="2026-05-01T00:00:00Z", by="me", tool="",
    )  # fmt: skip
    return replace(made, **changes)
