"""Mistakes a person makes: two lines, an exit code, no traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import mistakes

from rocwheel.cli import COMMANDS

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, str(ROOT / "build" / "ci_build"))
FAMILY = "--family=gfx94X-dcgpu"
BYPASS = "bypass_tests_for_releases="
RULE = '("gfx1170",), Trigger.NIGHTLY, policy=(Rule("unit", Level.REQUIRED, '


def run(*arguments, cwd, env=None):
    return subprocess.run(
        [*PROGRAM, *arguments],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), **(env or {})},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def some_of_each_command():
    """Every third mistake, and the first that names a command."""
    seen = set()
    for number, row in enumerate(mistakes.rows()):
        words = set(row[0].split()) & COMMANDS.keys() - seen
        if words or number % 3 == 0:
            yield row
        seen |= words


@pytest.mark.parametrize(
    ("rows", "least"),
    [
        pytest.param(some_of_each_command, 100, id="some"),
        pytest.param(mistakes.rows, 400, id="all", marks=pytest.mark.soak),
    ],
)
def test_every_mistake_in_the_table_is_an_error_with_a_hint(tmp_path, rows, least):
    """No traceback, no hang, no silent success; two lines, of which one says what to do.

    What a dry run refuses a real one refuses before its first fetch: the proxies refuse all.
    """
    names = mistakes.world(tmp_path)
    table = [*rows()]
    assert len(table) >= least
    table += [
        (line.replace(" --dry-run ", " "), status, said)
        for line, status, said in table
        if " --dry-run " in line and "demo " not in line and "No such option" not in said
    ]
    path = os.pathsep.join((str(ROOT / "tests"), str(ROOT / "build"), str(ROOT)))
    refused = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-m", "support.mistakes", tmp_path],
        input="".join(f"{mistakes.request(line, names)}\n" for line, _, _ in table),
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": path, **refused},
        capture_output=True, text=True, check=True, timeout=1500,
    )  # fmt: skip
    wrong = []
    for (line, status, said), text in zip(table, done.stdout.splitlines(), strict=True):
        answer = json.loads(text)
        errors = [x for x in answer["stderr"].splitlines() if x.startswith(("error: ", "hint:  "))]
        if (
            answer["code"] != status
            or len(errors) != 2
            or said not in " ".join(errors)
            or errors[1] == "hint:  "
            or "Traceback" in answer["stderr"]
        ):
            wrong.append((line, status, said, answer))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("where", ["--wheels-only", "--quiet"])
def test_the_demo_refuses_a_wheelhouse_that_cannot_be_before_it_does_anything(tmp_path, where):
    (tmp_path / "file").touch()
    done = run("demo", "--wheelhouse=file", where, cwd=tmp_path)
    assert done.returncode == 8
    assert done.stderr.splitlines() == [
        f"error: {tmp_path}/file: File exists",
        "hint:  choose a folder you can write: --wheelhouse DIR",
    ]
    assert {path.name for path in tmp_path.iterdir()} <= {"file", ".cache"}


def test_json_is_heard_wherever_it_stands_in_a_line_that_is_wrong(tmp_path):
    for line in (
        "frob --json",
        "--json frob",
        "dev --nope --json",
        "status --json=x --nope --json",
    ):
        error = json.loads(run(*line.split(), cwd=tmp_path).stdout)["error"]
        assert error["kind"] == "usage"
    settings = {"ROCWHEEL_CONFIG": "/nope"}
    done = run("doctor", "--json", cwd=tmp_path, env=settings)
    assert json.loads(done.stdout)["error"]["kind"] == "config"
    assert run("shell", "--nope", "--", "--json", cwd=tmp_path).stdout == ""  # of its command


def test_help_is_printed_wherever_it_stands_before_a_command(tmp_path):
    wanted = run("--help", cwd=tmp_path).stdout
    assert run("--json", "--help", cwd=tmp_path).stdout == wanted
    assert "dist_wheels" in wanted


def test_completion_with_json_is_a_document(tmp_path):
    document = json.loads(run("completion", "bash", "--json", cwd=tmp_path).stdout)
    assert document["shell"] == "bash"
    assert "_ROCWHEEL_COMPLETE" in document["code"]


def test_a_deleted_working_directory_is_an_error(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    line = f"cd {gone} && rmdir {gone} && {' '.join(PROGRAM)} rocm fetch --therock-path=x"
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 8
    assert done.stderr.startswith("error: the working directory was deleted\nhint:  ")


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ('("gfx1170"), Trigger.NIGHTLY', "write ('gfx1170',)"),
        ('("gfx1170",), "nightly"', "'nightly' is no Trigger: write Trigger.PRESUBMIT or"),
        ('("gfx1170",), Trigger.WEEKLY', "'WEEKLY' is no Trigger: write Trigger.PRESUBMIT or"),
        ('("gfx1170",), Trigger.NIGHTLY, runner=()', "'runner': write Family(name, targets, "),
        ('("gfx1170",)', "'trigger': write Family(name, targets, trigger, "),
        ('("gfx942",), Trigger.NIGHTLY', "gfx942: in gfx94X-dcgpu and"),
        ('("gfx1170",, Trigger.NIGHTLY', ""),
        (f'("gfx1170",), Trigger.NIGHTLY, {BYPASS}True', "True is no Bypass: write Bypass(owner, "),
        (f'("gfx1170",), Trigger.NIGHTLY, {BYPASS}("ann", "why")', "is no Bypass: write Bypass("),
        (f'("gfx1170",), Trigger.NIGHTLY, {BYPASS}Bypass("a", "b", "x")', "write date(YEAR, "),
        ('("gfx1170",), Trigger.NIGHTLY, proof=Proof(devices="no")', "write True or False"),
        (f"{RULE}('3.12,3.13',)),)", "pythons: '3.12,3.13' is none of 3.10, "),
        (f"{RULE}('3.99',)),)", "pythons: '3.99' is none of 3.10, "),
        (f'("gfx1170",), Trigger.NIGHTLY, {BYPASS}Bypass("a", "b", date(2030, 1, 1))', None),
    ],
)
def test_a_mistake_in_the_family_matrix_is_one_error_that_names_its_line(tmp_path, rest, said):
    path, mark = tmp_path / "amdgpu_family_matrix.py", '        Family("gfx90c"'
    text = (ROOT / path.name).read_text()
    line = text[: text.index(mark)].count("\n") + 1
    path.write_text(text.replace(mark, f'        Family("gfx117X-all", {rest}),\n{mark}'))
    program = (sys.executable, "-m", "rocwheel")  # which finds the matrix of this folder first
    for argv in ((*program, "compat"), (sys.executable, str(path)))[: 1 if said == "" else 2]:
        done = subprocess.run(
            argv,
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "build")},
            capture_output=True,
            text=True,
            check=False,
        )
        if said is None:
            assert done.returncode == 0, done.stderr
            continue
        error, hint = done.stderr.splitlines()
        assert (done.returncode, done.stdout) == (3, "")
        # CPython names the bracket that encloses what it cannot parse
        assert error.startswith(f"error: {path}:{line if said else ''}")
        assert said in error
        assert hint.startswith("hint:  correct")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (None, "No module named 'amdgpu_family_matrix'"),
        (("FAMILIES: ", "FAMILES: "), "name 'FAMILIES' is not defined"),
        (("def family(", "def one(family"), "no attribute 'family'"),
    ],
)
def test_a_family_matrix_that_lacks_what_is_used_is_one_error(tmp_path, change, said):
    """Also where the file is gone."""
    shutil.copytree(ROOT / "build" / "rocwheel", tmp_path / "rocwheel")
    if change:
        text = (ROOT / "amdgpu_family_matrix.py").read_text().replace(*change)
        (tmp_path / "amdgpu_family_matrix.py").write_text(text)
    code = (
        "import sys; from rocwheel.cli import main; sys.exit(main(['compat', '--family=gfx90a']))"
    )
    argv = (sys.executable, "-c", code)
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert said in error
    assert hint.startswith(("hint:  correct", "hint:  restore"))
