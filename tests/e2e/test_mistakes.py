"""Mistakes a person makes: two lines, an exit code, no traceback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import mistakes

from rocwheel.cli import COMMANDS

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, str(ROOT / "build" / "ci_build"))
FAMILY = "--family=gfx94X-dcgpu"
BYPASS = 'bypass_tests_for_releases=Bypass("me", "no runner yet", date(2999, 1, 1))'


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
    ("entry", "said"),
    [
        ('Family("gfx117X-all", ("gfx1170"), Trigger.NIGHTLY),', "write ('gfx1170',)"),
        ('Family("gfx117X-all", ("gfx1170",), "nightly"),', "'nightly' is no Trigger"),
        ('Family("gfx117X-all", ("gfx1170",), Trigger.NIGHTLI),', "NIGHTLI"),
        ('Family("gfx117X-all", ("gfx1170",), Trigger.NIGHTLY, runner=()),', "'runner'"),
        ('Family("gfx117X-all", ("gfx942",), Trigger.NIGHTLY),', "gfx942: in gfx94X-dcgpu and"),
        ('Family("gfx117X-all", ("gfx1170",, Trigger.NIGHTLY),', ""),
        (f'Family("gfx1170", ("gfx1170",), Trigger.NIGHTLY, {BYPASS}),', None),  # is right
    ],
)
def test_a_mistake_in_the_family_matrix_is_one_error_that_names_its_line(tmp_path, entry, said):
    path, mark = tmp_path / "amdgpu_family_matrix.py", '        Family("gfx90c"'
    text = (ROOT / path.name).read_text()
    path.write_text(text.replace(mark, f"        {entry}\n{mark}"))
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
        assert re.match(rf"error: {path}:\d+: ", error)
        assert said in error
        assert hint.startswith("hint:  correct")
