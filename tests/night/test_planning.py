"""The plan of a night is decided once, says why, and is the same whoever makes it."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

import pytest
from support.states import RECIPE

import amdgpu_family_matrix as matrix
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import replace
from rocwheel.night import image_record, planning
from rocwheel.night import settings as settings_file
from rocwheel.night.planning import SetSeen, StoreContents
from rocwheel.records.verdict import State
from rocwheel.release.index import channels
from rocwheel.release.ledger import nights
from rocwheel.release.ledger.nights import NightPlan, WheelRecipe

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 5, 1, tzinfo=timezone.utc)
MANIFEST = "a" * 64


@pytest.fixture
def setting():
    return planning.PlanInput(
        night="2026-05-01",
        settings=settings_file.load(ROOT / "ci" / "nightly.yaml"),
        families=matrix.FAMILIES,
        channel=channels.of_store("file:///store"),
        target=("--store=file:///store",),
        ci=ROOT / "ci",
        by="me",
        now=NOW,
    )


def made(setting, seen: StoreContents | None = None) -> NightPlan:
    return planning.plan(setting, [RECIPE], [], seen or StoreContents())


def names(plan: NightPlan, kind: str) -> list[str]:
    return [cell.name for cell in plan.cells if cell.kind == kind and not cell.absent]


def test_a_plan_is_the_same_bytes_whoever_makes_it_and_reads_back(setting):
    one = made(setting)
    assert one.to_bytes() == made(setting).to_bytes()
    assert NightPlan.from_bytes(one.to_bytes(), name="plan") == one


def test_every_cell_comes_after_what_it_waits_for(setting):
    seen: set[str] = set()
    for cell in made(setting).cells:
        assert {*cell.after, *cell.settled} <= seen
        seen.add(cell.name)


def test_a_family_without_a_runner_has_no_gate_cells_and_the_plan_says_so(setting):
    plan = made(setting)
    assert not [name for name in names(plan, "gate") if "gfx90c" in name]
    assert "gfx90c has no runner for unit" in {cell.absent for cell in plan.cells}
    assert "promote.jax.gfx90c" in names(plan, "promote")


def test_without_history_a_suite_is_cut_as_far_as_it_may_be_and_merged(setting):
    plan = made(setting)
    shards = [n for n in names(plan, "gate") if ".3.12.unit." in n]
    assert len(shards) == 16
    merge = plan.cell("merge.jax.gfx94X-dcgpu.3.12.unit")
    assert set(merge.settled) == set(shards)
    assert "--shards=16" in merge.argv


@pytest.mark.parametrize(("minutes", "count"), [(1, 1), (31, 2), (200, 7), (10_000, 16)])
def test_history_says_into_how_many_shards_a_suite_is_cut(setting, minutes, count):
    seen = StoreContents(tests={("gfx94X-dcgpu", "unit"): minutes * 60_000})
    stem = "gate.jax.gfx94X-dcgpu.3.12.unit"
    shards = [n for n in names(made(setting, seen), "gate") if n.startswith(stem)]
    assert len(shards) == count


def test_of_a_staged_set_only_what_is_missing_or_was_infra_runs_again(setting):
    cells = {
        ("smoke", "3.12"): (State.PASS, ""),
        ("unit", "3.12"): (State.FAIL, "3 failed"),
        ("e2e", "3.12"): (State.INFRA, "no device"),
        ("smoke", "3.13"): (State.NOT_RUN, "no verdict"),
    }
    seen = StoreContents(
        manifests={RECIPE.inputs: MANIFEST},
        sets={("gfx94X-dcgpu", MANIFEST): SetSeen(state="staged", cells=cells)},
        tests={("gfx94X-dcgpu", suite): 1000 for suite in ("unit", "e2e", "multi_gpu")},
    )
    plan = made(setting, seen)
    stem = "gate.jax.gfx94X-dcgpu"
    assert plan.cell(f"{stem}.3.12.smoke").kept == "pass"
    assert plan.cell(f"{stem}.3.12.unit").kept == "fail", "a failure is evidence, not a gap"
    assert plan.cell(f"{stem}.3.12.e2e").why == "was infra: no device"
    assert not plan.cell(f"{stem}.3.13.smoke").kept
    assert f"--manifest={MANIFEST}" in plan.cell(f"{stem}.3.13.smoke").argv
    assert not plan.cell("promote.jax.gfx94X-dcgpu").kept


def test_a_verdict_from_elsewhere_stands_when_a_night_is_repeated_without_a_runner(setting):
    cells = {("unit", "3.12"): (State.PASS, "")}
    known = SetSeen(state="staged", cells=cells)
    seen = StoreContents(
        manifests={RECIPE.inputs: MANIFEST},
        sets={("gfx90c", MANIFEST): known, ("gfx94X-dcgpu", MANIFEST): known},
    )
    again = planning.again(made(setting, seen), night="again", by="you", now=NOW)
    assert again.cell("gate.jax.gfx90c.3.12.unit").kept == "pass"
    assert not again.cell("gate.jax.gfx94X-dcgpu.3.12.unit").kept


def test_an_unknown_cell_names_the_nearest_and_an_absent_one_its_reason(setting):
    plan = made(setting)
    with pytest.raises(ConfigError) as near:
        plan.cell("build.jaxx")
    assert "build.jax" in near.value.hint
    with pytest.raises(ConfigError) as absent:
        plan.cell("gate.jax.gfx90c.3.12.unit")
    assert "no runner" in absent.value.hint


def test_github_gets_at_most_its_limit_of_jobs_or_an_error(setting):
    plan = made(setting)
    rows = json.loads(planning.github_outputs(plan, "gfx94X-dcgpu")["gate"])["include"]
    assert rows
    assert {row["runner"] for row in rows} <= {
        r.label for r in matrix.family("gfx94X-dcgpu").runners
    }
    recipe = replace(RECIPE, pythons=tuple(f"3.{minor}" for minor in range(6, 20)))
    many = planning.plan(setting, [recipe], [], StoreContents())
    with pytest.raises(ConfigError, match="more than the 256"):
        planning.github_outputs(many, "gfx94X-dcgpu")


def test_a_set_for_several_families_is_staged_once_and_gated_and_promoted_by_each(setting):
    shared = replace(setting, channel=replace(setting.channel, one_build=True))
    plan, apart = made(shared), made(setting)

    def stages(plan: NightPlan) -> list[str]:
        words = (word for argv in plan.cell("build.jax").stages for word in argv)
        return [word for word in words if word.startswith("--famil")]

    assert stages(plan) == ["--family=all"]
    assert stages(apart) == ["--family=gfx94X-dcgpu", "--family=gfx90c"]
    for kind in ("gate", "merge", "promote"):
        assert names(plan, kind) == names(apart, kind)
    later = [cell for cell in plan.cells if cell.family and not cell.absent]
    assert {cell.family for cell in later} == set(RECIPE.families)
    for cell in later:
        assert "build.jax" in cell.after
        assert f"--family={cell.family}" in cell.argv
        assert "--manifest={build.jax}" in cell.argv
        other = {"gfx94X-dcgpu": "gfx90c", "gfx90c": "gfx94X-dcgpu"}[cell.family]
        assert not any(other in name for name in (*cell.after, *cell.settled)), "on its own"


def test_a_shared_channel_with_sets_of_one_family_goes_on_as_before(setting):
    shared = replace(setting, channel=replace(setting.channel, one_build=True))
    recipe = replace(RECIPE, families=("gfx90c",))
    one, other = (planning.plan(s, [recipe], [], StoreContents()) for s in (shared, setting))
    assert one.to_bytes() == other.to_bytes()


def test_pools_rename_labels_and_partitions_and_nothing_else(setting, tmp_path):
    pools = tmp_path / "pools.yaml"
    pools.write_text(
        "labels: {linux-gfx942-8gpu-ossci-rocm: ours}\npartitions: {gfx942: big}\n"
        "gres: {'gpu:mi300x': 'gpu:mi325x'}\n"
    )
    names_ = settings_file.load_pools(pools, setting.settings)
    plan = planning.plan(replace(setting, pools=names_), [RECIPE], [], StoreContents())
    cell = next(cell for cell in plan.cells if ".multi_gpu" in cell.name)
    assert (cell.needs.label, cell.needs.partition, cell.needs.gres) == (
        "ours",
        "big",
        "gpu:mi325x",
    )
    for text, problem in (
        ("labels: {nobody: x}", "the matrix has no such name"),
        ("policy: {unit: advisory}", "policy: unknown key"),
        ("partitions: {gfx942: 'a b'}", "not a Slurm partition"),
    ):
        pools.write_text(text)
        with pytest.raises(ConfigError, match=problem):
            settings_file.load_pools(pools, setting.settings)


@pytest.mark.parametrize("name", ["latest", "index.json", "clock.json", "-x", "a/b", "", "x" * 65])
def test_what_no_night_may_be_called(name):
    with pytest.raises(ConfigError, match="not the name of a night"):
        nights.check_name(name)
    nights.check_name("latest-1.jsonl")


# --- runtime images ------------------------------------------------------------------------------

IMAGED = replace(RECIPE, families=("gfx90a", "gfx90c"), pythons=("3.14-ft", "3.12"))
SETS = "sets: [{name: jax, jax: default, rocm: {source: x}}]\n"
ONE = SETS + "images: [{recipe: jax, push: docker.io}]\n"
NAME = "image.jax.gfx90a.3.12.jax"


@pytest.fixture
def planned(tmp_path, setting):
    """Plan with these settings, and with what the store has."""

    def make(text: str, *, recipe: WheelRecipe = IMAGED, **seen) -> NightPlan:
        file = tmp_path / "nightly.yaml"
        file.write_text(text)
        settings = settings_file.load(file)
        images = image_record.of_night(settings, ROOT / "ci", matrix.FAMILIES)
        own = replace(setting, settings=settings, images=images)
        return planning.plan(own, [recipe], [], StoreContents(**seen))

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


def test_an_image_comes_after_the_promotion_and_only_the_page_waits_for_it(planned):
    plan = planned(ONE)
    assert image_cells(plan) == [NAME]
    assert plan.cell(NAME).after == ("promote.jax.gfx90a", "build.jax")
    waits = {c.name for c in plan.cells if NAME in (*c.after, *c.settled)}
    assert waits == {"page", "prune"}


def test_what_an_entry_says_is_what_its_command_gets(planned):
    plan = planned(
        SETS + "image: {cpus: 2, hours: 1}\n"
        "images:\n  - {name: old, recipe: jax, push: 'here:5000/x', base: ubuntu_24_04,\n"
        "     profile: devel, executor: podman, pythons: ['3.11'],\n"
        "     tags: ['nightly-{family}-py{python}']}\n",
        recipe=replace(IMAGED, pythons=("3.11", "3.12")),
    )
    (name,) = image_cells(plan)
    cell = plan.cell(name)
    assert name == "image.jax.gfx90a.3.11.old"
    assert {
        "--base=ubuntu_24_04", "--profile=devel", "--container-engine=podman", "--push=here:5000/x",
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
    lacking = planned(ONE, recipe=replace(IMAGED, pythons=("3.14-ft",)))
    assert not image_cells(lacking)
    named = SETS + "images: [{recipe: jax, push: docker.io, pythons: ['3.12']}]\n"
    why = absent(planned(named, recipe=replace(IMAGED, pythons=("3.14-ft",))))
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
    of_a_page = replace(
        IMAGED, name="main-gfx90a", families=("gfx90a",)
    )  # the newest tarball of each
    plan = planned(text + "images: [{recipe: jax, push: x.io, sets: [main]}]\n", recipe=of_a_page)
    assert image_cells(plan) == ["image.main-gfx90a.gfx90a.3.12.jax"]


def test_two_images_that_would_have_one_tag_are_one_and_the_plan_says_how_to_tell_them_apart(
    planned,
):
    both = replace(IMAGED, families=("gfx90a", "gfx94X-dcgpu"))
    plan = planned(ONE, recipe=both)
    assert image_cells(plan) == [NAME]
    said = absent(plan)["image.jax.gfx94X-dcgpu.3.12.jax"]
    assert "would have a tag of image.jax.gfx90a.3.12.jax" in said
    assert "{family}" in said
    moving = SETS + "images: [{recipe: jax, push: docker.io, tags: [latest]}]\n"
    said = absent(planned(moving, recipe=both))["image.jax.gfx94X-dcgpu.3.12.jax"]
    assert "would have a tag of" in said


@pytest.mark.parametrize("state", ["rolled back", "pruned"])
def test_no_image_is_made_of_a_set_that_was_taken_back(planned, state):
    plan = planned(ONE, **known(state))
    assert not image_cells(plan)
    assert absent(plan)[NAME] == f"{state} already"


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
