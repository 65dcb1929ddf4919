"""Runtime images of a night: a cell for each that is wanted, after what releases its set."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest

import amdgpu_family_matrix as matrix
from rocwheel.base import home
from rocwheel.base.console import silent
from rocwheel.base.errors import ConfigError
from rocwheel.base.here import Here
from rocwheel.base.process import HostRunner
from rocwheel.base.store.file import FileStore
from rocwheel.base.versions import timestamp
from rocwheel.night import cell as cells
from rocwheel.night import image_record, planning
from rocwheel.night import settings as settings_file
from rocwheel.night.planning import SetSeen, StoreContents
from rocwheel.records.verdict import State
from rocwheel.release.index import channels
from rocwheel.release.ledger.nights import (
    Begun,
    CauseClass,
    Cell,
    Ended,
    Needs,
    NightPlan,
    Nights,
    WheelRecipe,
)

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 5, 1, tzinfo=timezone.utc)
MANIFEST = "a" * 64
RECIPE = WheelRecipe(
    name="jax", inputs="1" * 64, jax="0.9.1", jax_repository="", jax_commit="", rocm="/rocm.tar.gz",
    rocm_version="7.10.0", rocm_sha256="", image="", families=("gfx90a", "gfx90c"),
    pythons=("3.14-ft", "3.12"), argv=("dist_wheels",),
)  # fmt: skip
SETS = "sets: [{name: jax, jax: default, rocm: {source: x}}]\n"
ONE = SETS + "images: [{recipe: jax, push: docker.io}]\n"
NAME = "image.jax.gfx90a.3.12.jax"


@pytest.fixture
def planned(tmp_path):
    """Plan with these settings, and with what the store has."""

    def make(text: str, *, recipe: WheelRecipe = RECIPE, **seen) -> NightPlan:
        file = tmp_path / "nightly.yaml"
        file.write_text(text)
        settings = settings_file.load(file)
        setting = planning.PlanInput(
            night="2026-05-01", settings=settings, families=matrix.FAMILIES,
            channel=channels.of_store("file:///store"), target=("--store=file:///store",),
            ci=ROOT / "ci", by="me", now=NOW,
            images=image_record.of_night(settings, ROOT / "ci", matrix.FAMILIES),
        )  # fmt: skip
        return planning.plan(setting, [recipe], [], StoreContents(**seen))

    return make


def image_cells(plan: NightPlan) -> list[str]:
    return [cell.name for cell in plan.cells if cell.kind == "image" and not cell.absent]


def absent(plan: NightPlan) -> dict[str, str]:
    return {item.name: item.absent for item in plan.cells if item.kind == "image" and item.absent}


def known(state: str, **images_) -> dict:
    """What a store has of a set that was built and got that far."""
    return {
        "manifests": {RECIPE.inputs: MANIFEST},
        "sets": {("gfx90a", MANIFEST): SetSeen(state=state, **images_)},
    }


def test_without_configuration_a_night_makes_no_image(planned):
    plan = planned(SETS)
    assert not image_cells(plan)
    assert not absent(plan)
    assert settings_file.load(ROOT / "ci" / "nightly.yaml").images == ()


def test_an_image_comes_after_the_promotion_and_only_the_page_waits_for_it(planned):
    plan = planned(ONE)
    assert image_cells(plan) == [NAME]
    assert plan.cell(NAME).after == ("promote.jax.gfx90a", "build.jax")
    waits = {c.name for c in plan.cells if NAME in (*c.after, *c.settled)}
    assert waits == {"page", "prune"}
    seen: set[str] = set()
    for cell in plan.cells:
        assert {*cell.after, *cell.settled} <= seen
        seen.add(cell.name)


def test_what_an_entry_says_is_what_its_command_gets(planned):
    plan = planned(
        SETS + "image: {cpus: 2, hours: 1}\n"
        "images:\n  - {name: old, recipe: jax, push: 'here:5000/x', base: ubuntu_24_04,\n"
        "     profile: devel, executor: podman, pythons: ['3.11'],\n"
        "     tags: ['nightly-{family}-py{python}']}\n",
        recipe=_with(pythons=("3.11", "3.12")),
    )
    (name,) = image_cells(plan)
    cell = plan.cell(name)
    assert name == "image.jax.gfx90a.3.11.old"
    assert {
        "--base=ubuntu_24_04", "--profile=devel", "--engine=podman", "--push=here:5000/x",
        "--tag=nightly-gfx90a-py3.11",
    } <= set(cell.argv)  # fmt: skip
    assert (cell.needs.cpus, cell.limit) == (2, 3600)
    runners = matrix.family("gfx90a").runners_for("smoke")
    assert cell.needs.gpus == 1
    assert cell.needs.label in {runner.label for runner in runners}


def test_what_there_can_be_no_image_of_is_absent_with_its_reason(planned):
    why = absent(planned(ONE))
    assert why["image.jax.gfx90a.3.14-ft.jax"] == "ubuntu_24_04 has no CPython 3.14-ft"
    assert why["image.jax.gfx90c.3.12.jax"] == "gfx90c has no runner for smoke"
    lacking = planned(ONE, recipe=_with(pythons=("3.14-ft",)))
    assert not image_cells(lacking)
    named = SETS + "images: [{recipe: jax, push: docker.io, pythons: ['3.12']}]\n"
    why = absent(planned(named, recipe=_with(pythons=("3.14-ft",))))
    assert why[NAME] == "jax has no CPython 3.12"


def test_images_are_made_of_the_sets_and_families_that_are_named(planned):
    for said, names in (
        ("families: [gfx90a]", [NAME]),
        ("families: [gfx94X-dcgpu]", []),
        ("sets: [jax]", [NAME]),
    ):
        plan = planned(SETS + f"images: [{{recipe: jax, push: docker.io, {said}}}]\n")
        assert image_cells(plan) == names, said
    text = SETS.replace("[{", "[{name: main, jax: default, rocm: {source: y}}, {")
    plan = planned(text + "images: [{recipe: jax, push: docker.io, sets: [main]}]\n")
    assert not image_cells(plan)
    of_a_page = _with(name="main-gfx90a", families=("gfx90a",))  # the newest tarball of each
    plan = planned(text + "images: [{recipe: jax, push: x.io, sets: [main]}]\n", recipe=of_a_page)
    assert image_cells(plan) == ["image.main-gfx90a.gfx90a.3.12.jax"]


def test_two_images_that_would_have_one_tag_are_one_and_the_plan_says_how_to_tell_them_apart(
    planned,
):
    both = _with(families=("gfx90a", "gfx94X-dcgpu"))
    plan = planned(ONE, recipe=both)
    assert image_cells(plan) == [NAME]
    said = absent(plan)["image.jax.gfx94X-dcgpu.3.12.jax"]
    assert "would have a tag of image.jax.gfx90a.3.12.jax" in said
    assert "{family}" in said
    moving = SETS + "images: [{recipe: jax, push: docker.io, tags: [latest]}]\n"
    said = absent(planned(moving, recipe=both))["image.jax.gfx94X-dcgpu.3.12.jax"]
    assert "would have a tag of" in said


def test_an_image_of_that_set_that_was_pushed_is_not_made_again(planned):
    seen = known("released", images={("jax", "3.12"): "here.io/rocm/jax:one@sha256:1"})
    cell = planned(ONE, **seen).cell(NAME)
    assert (cell.kept, cell.why) == ("pushed", "made of this set already")
    assert cell.image == "here.io/rocm/jax:one@sha256:1"
    cell = planned(ONE, **known("released")).cell(NAME)
    assert not cell.kept
    assert f"--manifest={MANIFEST}" in cell.argv


@pytest.mark.parametrize("state", ["rolled back", "pruned"])
def test_no_image_is_made_of_a_set_that_was_taken_back(planned, state):
    plan = planned(ONE, **known(state))
    assert not image_cells(plan)
    assert absent(plan)[NAME] == f"{state} already"


def test_a_workflow_gets_the_images_of_a_family_beside_its_other_cells(planned):
    plan = planned(ONE, **known("released"))
    values = planning.github_outputs(plan, "gfx90a")
    assert (values["promote_any"], values["image_any"]) == ("false", "true")
    (row,) = json.loads(values["image"])["include"]
    assert (row["cell"], row["runner"]) == (NAME, plan.cell(NAME).needs.label)
    assert "gfx90a" in json.loads(planning.github_outputs(plan)["families"])


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("{recipe: jaks, push: x.io}", "'jaks': not in ci/images.yaml"),
        ("{recipe: jax, push: x.io, base: debian_12}", "'debian_12': not in"),
        ("{recipe: jax, push: x.io, pythons: ['3.14-ft']}", r"no CPython 3\.14-ft for this base"),
        ("{recipe: jax, push: x.io, families: [gfx1]}", "'gfx1': unknown GPU family"),
    ],
)
def test_nonsense_is_refused_before_anything_is_planned(planned, said, problem):
    with pytest.raises(ConfigError, match=problem):
        planned(f"{SETS}images: [{said}]\n")


def _with(**changes) -> WheelRecipe:
    old = {name: getattr(RECIPE, name) for name in RECIPE.__struct_fields__}
    return WheelRecipe(**{**old, **changes})


# --- what its ends mean --------------------------------------------------------------------------


def _worker(folder: Path) -> cells.Worker:
    here = Here(
        environ={}, cwd=folder, cache=folder / "cache", home=home.find(None), console=silent(),
        runner=HostRunner({}), program=("rocwheel",), now=lambda: NOW,
    )  # fmt: skip
    return cells.Worker(here=here, host="h", engine="local")


@pytest.mark.parametrize(
    ("kind", "cause", "held_back"),
    [("gate", None, True), ("gate", CauseClass.STORE, False), ("image", None, False)],
)
def test_what_says_nothing_of_gpus_takes_no_gates_from_a_host(tmp_path, kind, cause, held_back):
    """A host without an engine, a registry that is away, or a store that is full."""
    names = [f"{kind}.{number}" for number in range(3)]
    needs = Needs(gpus=1)
    plan = NightPlan(
        night="one", made=timestamp(NOW), by="me", tool="0", target=(), recipes=(), quarantine=3,
        cells=tuple(Cell(name=name, kind=kind, argv=(), needs=needs) for name in names),
    )  # fmt: skip
    nights = Nights(FileStore(tmp_path / "store"))
    nights.add(plan)
    digest = nights.book("one").sha256
    for name in names:
        begun = Begun(
            token=name, cell=name, plan=digest, host="h", engine="local", time=timestamp(NOW)
        )
        number = nights.begin("one", begun)
        nights.end(
            "one", number,
            Ended(cell=name, plan=digest, host="h", engine="local", state=State.INFRA, cause=cause,
                  reason="docker: no such program", began=timestamp(NOW), time=timestamp(NOW),
                  milliseconds=1),
        )  # fmt: skip
    cells.quarantine(nights, "one", _worker(tmp_path))
    assert set(nights.quarantined()) == ({"h"} if held_back else set())
