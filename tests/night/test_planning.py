"""The plan of a night is decided once, says why, and is the same whoever makes it."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime, timezone
from pathlib import Path

import pytest
from support import registries
from support.faultserver import Fault, FaultServer
from support.states import summary

import amdgpu_family_matrix as matrix
from rocwheel.base import home, values
from rocwheel.base.console import silent
from rocwheel.base.download import Client, Retry
from rocwheel.base.errors import ConfigError, FetchError
from rocwheel.base.here import Here
from rocwheel.base.values import replace
from rocwheel.night import planning, resolving
from rocwheel.night import settings as settings_file
from rocwheel.night.planning import SetSeen, StoreContents
from rocwheel.records.verdict import State
from rocwheel.release.index import channels
from rocwheel.release.ledger import nights
from rocwheel.release.ledger.nights import NightPlan, WheelRecipe
from rocwheel.rocm import listing

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 5, 1, tzinfo=timezone.utc)
MANIFEST = "a" * 64
RECIPE = WheelRecipe(
    name="jax",
    inputs="1" * 64,
    jax="0.9.1",
    jax_repository="",
    jax_commit="",
    rocm="/rocm.tar.gz",
    rocm_version="7.10.0",
    rocm_sha256="",
    image="",
    families=("gfx94X-dcgpu", "gfx90c"),
    pythons=("3.12", "3.13"),
    argv=("dist_wheels",),
)


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


def test_a_night_without_changes_prunes_and_makes_the_page(setting):
    seen = StoreContents(
        manifests={RECIPE.inputs: MANIFEST},
        sets={(name, MANIFEST): SetSeen(state="released") for name in RECIPE.families},
    )
    plan = made(setting, seen)
    assert {cell.kind for cell in plan.cells if cell.is_to_run} == {"page", "prune"}
    assert plan.cell("build.jax").why == f"staged before as {MANIFEST[:12]}"


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


def test_a_night_is_repeated_from_its_plan_with_every_cell(setting):
    seen = StoreContents(manifests={RECIPE.inputs: MANIFEST})
    again = planning.again(made(setting, seen), night="again", by="you", now=NOW)
    assert not [cell for cell in again.cells if cell.kept]
    assert again.recipes[0].inputs == RECIPE.inputs


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


def test_a_workflow_gets_the_cells_of_one_family_at_a_time(setting):
    plan = made(setting)
    whole = planning.github_outputs(plan)
    assert whole["night"] == "2026-05-01"
    assert json.loads(whole["families"]) == ["gfx90c", "gfx94X-dcgpu"]
    assert (whole["build_any"], whole["gate_any"]) == ("true", "false")
    own = planning.github_outputs(plan, "gfx90c")
    assert (own["build_any"], own["gate_any"], own["promote_any"]) == ("false", "false", "true")


def test_github_gets_at_most_its_limit_of_jobs_or_an_error(setting):
    plan = made(setting)
    rows = json.loads(planning.github_outputs(plan, "gfx94X-dcgpu")["gate"])["include"]
    assert rows
    assert {row["runner"] for row in rows} <= {
        r.label for r in matrix.family("gfx94X-dcgpu").runners
    }
    recipe = values.replace(RECIPE, pythons=tuple(f"3.{minor}" for minor in range(6, 20)))
    many = planning.plan(setting, [recipe], [], StoreContents())
    with pytest.raises(ConfigError, match="more than the 256"):
        planning.github_outputs(many, "gfx94X-dcgpu")


# --- one set for several families ----------------------------------------------------------------


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


def test_what_one_family_released_is_kept_and_another_goes_on(setting):
    shared = replace(setting, channel=replace(setting.channel, one_build=True))
    sets = {
        ("gfx94X-dcgpu", MANIFEST): SetSeen(state="released"),
        ("gfx90c", MANIFEST): SetSeen(state="gated"),
    }
    plan = made(shared, StoreContents(manifests={RECIPE.inputs: MANIFEST}, sets=sets))
    assert plan.cell("build.jax").kept == "staged"
    assert plan.cell("promote.jax.gfx94X-dcgpu").kept == "released"
    assert not plan.cell("promote.jax.gfx90c").kept


def test_a_shared_channel_with_sets_of_one_family_goes_on_as_before(setting):
    shared = replace(setting, channel=replace(setting.channel, one_build=True))
    recipe = values.replace(RECIPE, families=("gfx90c",))
    one, other = (planning.plan(s, [recipe], [], StoreContents()) for s in (shared, setting))
    assert one.to_bytes() == other.to_bytes()


# --- settings ------------------------------------------------------------------------------------


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


def world(folder: Path, runner=None) -> resolving.World:
    here = Here(
        environ={}, cwd=folder, cache=folder / "cache", home=home.find(None), console=silent(),
        runner=runner, now=lambda: NOW,
    )  # fmt: skip
    return resolving.World(here=here, client=None, tool="")


def test_the_newest_tarball_of_each_family_is_chosen_by_version(tmp_path):
    for name in (
        "therock-dist-linux-gfx90a-7.9.0.tar.gz",
        "therock-dist-linux-gfx90a-7.10.0a20260501.tar.gz",
        "therock-dist-linux-gfx90a-7.10.0a20260430.tar.gz",
        "therock-dist-linux-gfx94X-dcgpu-7.10.0.tar.gz",
        "unrelated.tar.gz",
    ):
        (tmp_path / name).touch()
    found = listing.newest(".", client=None, cwd=tmp_path)
    assert sorted(found) == ["gfx90a", "gfx94X-dcgpu"]
    assert found["gfx90a"].source.endswith("7.10.0a20260501.tar.gz")


def test_what_was_cut_on_its_way_is_read_again_and_a_page_that_is_not_there_is_told(tmp_path):
    tarball = b"ROCm" * 1000
    with FaultServer() as server:
        page = server.add("page", b'<a href="therock-dist-linux-gfx90a-7.9.0.tar.gz">ROCm</a>')
        there = server.add("rocm.tar.gz", tarball)
        server.faults["page"].append(Fault(cut=9))
        server.faults["rocm.tar.gz"].append(Fault(cut=1000))
        retry = Retry(attempts=3, pause=0.01)
        with Client({}, retry=retry, note=lambda _: None) as client:
            found = listing.newest(page, client=client, cwd=tmp_path)
            assert list(found) == ["gfx90a"]
            assert client.digest(there)[0] == hashlib.sha256(tarball).hexdigest()
            secret = server.url("gone").replace("//", "//user:password@")
            with pytest.raises(FetchError, match="gone: 404") as caught:
                listing.newest(secret, client=client, cwd=tmp_path)
    assert "password" not in str(caught.value)


def test_an_unchanged_tarball_is_read_once_and_a_changed_one_again(tmp_path):
    name = "therock-dist-linux-gfx90a-7.15.0a20260630.tar.gz"
    with FaultServer() as server, Client({}, retry=Retry(attempts=1), note=print) as client:
        asking = replace(world(tmp_path), client=client)
        url = server.add(name, b"ROCm")
        first = resolving.one_tarball(url, "", asking)
        assert first == (url, "7.15.0a20260630", hashlib.sha256(b"ROCm").hexdigest())
        assert resolving.one_tarball(url, "", asking) == first
        sent = [request for request in server.requests if request.path == name]
        assert ["if-none-match" in request.headers for request in sent] == [False, True]
        server.add(name, b"ROCM")
        assert resolving.one_tarball(url, "", asking)[2] != first[2]


@pytest.mark.parametrize("name", ["latest", "index.json", "clock.json", "-x", "a/b", "", "x" * 65])
def test_what_no_night_may_be_called(name):
    with pytest.raises(ConfigError, match="not the name of a night"):
        nights.check_name(name)
    nights.check_name("latest-1.jsonl")


class GitHub:
    """Answers as api.github.com does, which no test may ask."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def read(self, url: str, **_options) -> bytes:
        self.asked.append(url)
        names = ["Ann", "Ben", "Ann"]
        return json.dumps(
            {"commits": [{"commit": {"author": {"name": n}}} for n in names]}
        ).encode()


def test_who_wrote_what_changed_is_asked_once_for_each_range(tmp_path):
    old, new = "a" * 40, "b" * 40
    github = GitHub()
    asking = replace(world(tmp_path), client=github)
    recipe = values.replace(
        RECIPE, jax_repository="https://github.com/jax-ml/jax.git", jax_commit=new
    )
    other = values.replace(recipe, name="elsewhere", jax_repository="https://git.example.org/jax")
    before = tuple(values.replace(item, jax_commit=old) for item in (recipe, other))
    last = values.replace(summary(1), recipes=before)
    made = resolving.with_authors((recipe, recipe, other), last, asking)
    assert [item.authors for item in made] == [("Ann", "Ben"), ("Ann", "Ben"), ()]
    assert github.asked == [f"https://api.github.com/repos/jax-ml/jax/compare/{old}...{new}"]
    assert resolving.with_authors((recipe,), None, asking)[0].authors == ()
    last = values.replace(last, recipes=(), builds=before)  # its build was absent in that night
    assert resolving.with_authors((recipe,), last, asking)[0].authors == ("Ann", "Ben")


SET = """
sets:
  - name: jax
    source_dir: source
    pythons: ["3.12"]
    families: [gfx90a]
    rocm: {{source: rocm-7.1.0.tar.gz}}
    image: {image}
    executor: podman
"""


@pytest.mark.integration
@pytest.mark.needs("docker-registry", "skopeo")
def test_an_image_becomes_a_digest_once_and_its_cells_build_in_it(tmp_path, runner):
    (tmp_path / "source").mkdir()
    (tmp_path / "registry").mkdir()
    (tmp_path / "rocm-7.1.0.tar.gz").write_bytes(b"ROCm")

    def resolved(image: str):
        (tmp_path / "nightly.yaml").write_text(SET.format(image=image))
        settings = settings_file.load(tmp_path / "nightly.yaml")
        return resolving.resolve(settings, matrix.FAMILIES, world(tmp_path, runner))

    with registries.serving(tmp_path / "registry") as address:
        digest = registries.image(address, "rocm/builder", "7")
        name = f"{address}/rocm/builder"
        (recipe,), absent = resolved(f"{name}:7")
        assert not absent
        _, (gone,) = resolved(f"{name}:8")
    assert recipe.image == f"{name}@{digest}"
    assert f"--builder-image={name}@{digest}" in recipe.argv
    assert "--executor=podman" in recipe.argv
    assert "no such image" in gone.absent
    settings = settings_file.load(tmp_path / "nightly.yaml")
    named = settings.built_in("docker", "of-the-channel:1")
    assert named == settings  # what a set says itself holds
    (silent,) = (
        values.replace(settings, sets=(values.replace(settings.sets[0], image="", executor=None),))
        .built_in("docker", "of-the-channel:1")
        .sets
    )
    assert (silent.executor, silent.image) == ("docker", "of-the-channel:1")
    (other,), _ = resolved(f"{name}@sha256:{'0' * 64}")
    assert other.inputs != recipe.inputs
