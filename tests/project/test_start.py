"""The executable as a process: help without imports, errors of two lines, completion, a full disk."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from support import wheelset
from support.night import World
from support.wheelset import Shop

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def test_help_starts_without_heavy_imports():
    code = (
        "import click, sys; sys.argv=['ci_build','--help']; before = set(sys.modules)\n"
        "from rocwheel.cli import main\n"
        "assert main(['--help']) == 0\n"
        "heavy = {'rich','requests','yaml','jsonschema','elftools','boto3','packaging',"
        "'jinja2','subprocess','asyncio','email','pathlib','urllib.parse'}\n"
        "print(sorted(heavy & set(sys.modules) - before))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT / "build")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "dist_wheels" in done.stdout


def run(*arguments, **env):
    return subprocess.run(
        [sys.executable, str(ROOT / "build" / "ci_build"), *arguments],
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_error_is_two_lines_with_its_own_exit_code_and_no_traceback():
    done = run("dist_wheels", "--therock-path=x", "--python-versions=3.99")
    assert done.returncode == 3
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 2
    assert done.stderr.startswith("error: '3.99': unknown Python version\nhint:  ")


def test_with_json_an_error_is_a_document_too():
    done = run("--json", "dist_wheels", "--therock-path=x", "--python-versions=3.99")
    assert '"kind": "config"' in done.stdout


def test_debug_shows_the_traceback():
    done = run("--debug", "dist_wheels", "--therock-path=x", "--python-versions=3.99")
    assert "Traceback" in done.stderr
    assert done.returncode == 3


def test_ctrl_c_while_the_program_is_imported_is_two_lines(tmp_path):
    stand_in = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(30)\n"
    (tmp_path / "click.py").write_text(stand_in)
    done = run("--help", PYTHONPATH=str(tmp_path))
    assert done.returncode == 130
    assert done.stderr.splitlines() == [
        "error: interrupted", "hint:  run the same command again",
    ]  # fmt: skip


@pytest.mark.parametrize("mebibytes", [23, 26, 28.75, 29, 30, 31])
def test_too_little_memory_is_two_lines_wherever_it_ends(mebibytes):
    most = int(mebibytes * 2**20)
    done = subprocess.run(
        [sys.executable, ROOT / "build" / "ci_build", "status", "--store=file:///", "--family=gfx90a"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)),
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 8, done.stderr
    assert done.stderr.splitlines()[-2:] == [
        "error: not enough memory",
        "hint:  raise the limits of this shell: ulimit -v, ulimit -u",
    ]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("wheel", "inspect", "closed.whl"),
        ("status", "--store=file:///", "--family=gfx90a", "--families=closed.whl"),
        ("channels", "rights", "--channel=dev", "--role=runner", "--channels-file=closed.whl"),
        ("compat", "--ci-dir=closed"),
    ],
)
def test_what_may_not_be_read_asks_for_its_permissions(words, tmp_path):
    """Root may read everything: without the two capabilities it is a person like any other."""
    (tmp_path / "closed.whl").touch(0o000)
    (tmp_path / "closed").mkdir(0o000)
    lowered = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") * (os.geteuid() == 0)
    done = subprocess.run(
        [*lowered, sys.executable, ROOT / "build" / "ci_build", *words],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode in {2, 3, 8}, done.stderr
    assert "ermission" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("port", ["-1", "65536", "99999"])
def test_a_port_that_no_machine_has_is_a_usage_error(port):
    done = run("serve", "--store=file:///nonexistent", "--family=gfx90a", f"--port={port}")
    assert done.returncode == 2
    assert "--port" in done.stderr
    assert "0<=x<=65535" in done.stderr
    assert "Traceback" not in done.stderr


def tab(*words):
    env = {"_ROCWHEEL_COMPLETE": "zsh", "_ROCWHEEL_WORDS": "\n".join(("rocwheel", *words))}
    done = run(**env)
    assert (done.returncode, done.stderr) == (0, "")
    return [line.partition("\t")[2] for line in done.stdout.splitlines()]


def test_completion_offers_a_list_without_what_is_in_it():
    assert "3.12,3.13" in tab("dist_wheels", "--python-versions", "3.12,3.1")
    assert "3.12,3.12" not in tab("dist_wheels", "--python-versions", "3.12,3.1")


def test_completion_knows_the_sets_of_a_store(tmp_path, console):
    shop = Shop((tmp_path / "store").as_uri(), console)
    sha = wheelset.make_set(tmp_path / "set").sha256
    shop.stage(tmp_path / "set")
    line = (f"--store={shop.store.url}", f"--family={wheelset.FAMILY.name}")
    for command in ("promote", "yank", "rollback", "gate"):
        assert sha[:12] in tab(command, *line, "--manifest", ""), command
    assert tab("promote", *line, "--manifest", "x") == ["x"]  # files
    assert tab("promote", "--store=file:///nowhere/x", line[1], "--manifest", "") == [""]


def test_completion_knows_nights_and_cells(tmp_path):
    world = World(tmp_path, (tmp_path / "store").as_uri())
    assert world.plan("2026-05-01").code == 0
    assert tab("nightly", "retry", *world.target, "") == ["2026-05-01"]
    cells = tab("nightly", "drop", *world.target, "2026-05-01", "build.")
    assert cells
    assert all(name.startswith("build.") for name in cells)


def test_completion_of_a_line_that_is_wrong_says_nothing():
    assert tab("no_such_command", "--fam") == ["--families", "--family"]
    assert tab("status", "--channels-file", "/nowhere", "--channel", "") == []


@pytest.mark.parametrize(
    ("arguments", "listed"),
    [
        (("status", "--store=file:///x"), "gfx94X-dcgpu"),
        (("status", "--family=gfx94X-dcgpu"), "nightly"),
        (("gate",), "multi_gpu"),
        (("gate", "--suite=smoke"), "3.12"),
        (("gate", "--suite=smoke", "--python=3.12"), "gfx94X-dcgpu"),
        (("channels", "rights", "--channel=dev"), "runner"),
    ],
)
def test_an_option_that_is_needed_lists_its_values(arguments, listed):
    done = run(*arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2, done.stderr
    assert listed in done.stderr.splitlines()[0]


def test_an_old_python_gets_one_clear_answer(tmp_path):
    script = (ROOT / "build" / "ci_build").read_text()
    old = script.replace("sys.version_info < OLDEST", "(3, 9) < OLDEST")
    path = tmp_path / "ci_build"
    path.write_text(old)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 8
    assert "is too old for rocwheel" in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_the_executable_never_starts_itself_twice(tmp_path):
    """An environment that lacks something although it was just made is said, not made again."""
    done = subprocess.run(
        [sys.executable, "-S", str(ROOT / "build" / "ci_build"), "--version"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "ROCWHEEL_ENVIRONMENT_MADE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 8
    assert "lacks " in done.stderr
    assert "PYTHONPATH" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("--json", "gate", "list"), 8),
        (("gate", "list"), 8),
        (("--version",), 8),
        (("--json", "nosuch"), 2),
        (("wheel", "inspect", "--json", "missing.whl"), 3),
    ],
)
def test_a_full_stdout_is_said_in_two_lines(arguments, status):
    program = [sys.executable, ROOT / "build" / "ci_build", *arguments]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            program, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=240
        )
    assert (done.returncode, len(done.stderr.splitlines())) == (status, 2), done.stderr


HELP_OF_ALL = """
import contextlib, io, json, sys
import click
before = set(sys.modules)
from rocwheel.cli import COMMANDS, ci_build, main
allowed = set(json.loads(sys.argv[1]))
def walk(words, command):
    with contextlib.redirect_stdout(io.StringIO()):
        assert main([*words, "--help"]) == 0, words
    new = set(sys.modules) - before
    wrong = {m for m in new if m.split(".")[0] not in sys.stdlib_module_names | {"click", "rocwheel"}}
    options = {m.rpartition(".")[0] for m in new if m.endswith(".options")}  # of a room
    wrong |= {m for m in new if m.startswith("rocwheel.") and m not in allowed | options
              and not m.startswith("rocwheel.cli") and not m.endswith(".options")} | new & {
              "json", "subprocess", "ssl", "socket", "pathlib", "shutil", "urllib.parse"}
    assert not wrong, (words, sorted(wrong))
    for name, inner in getattr(command, "commands", {}).items():
        walk([*words, name], inner)
for name in COMMANDS:
    walk([name], ci_build.get_command(None, name))
"""
BASE = "choices console ending errors files home model option process values verdict watch"
DATA = f"{BASE} build_record download git manifest results source source_layout yaml_file"
STORE = f"{DATA} entry families host index ledger parallel places store trust"
LOOKS = {  # the rooms that a command which only looks may import
    ("--version",): BASE,
    ("cache", "list"): f"{BASE} housekeeping",
    ("completion", "bash"): BASE,
    ("gate", "list"): f"{STORE} gate",
    ("suites", "check"): f"{DATA} gate",
    ("compat",): f"{DATA} compat",
    ("channels", "rights", "--role=runner", "--channel=nightly"): f"{STORE} release",
    ("wheel", "inspect", "none.whl"): f"{DATA} build_options families host parallel wheel",
    (
        "status",
        "--store=file:///",
        "--family=gfx90a",
    ): f"{STORE} assets build_record gate release wheel",
}
HEAVY = {
    "requests",
    "boto3",
    "rich",
    "jinja2",
    "tomllib",  # only where there is a configuration file
    "elftools",
    "asyncio",
    "multiprocessing",
    "cryptography",
    "ssl",
    "http.client",
    "rocwheel.source.tree",
    "rocwheel.source.bazelrc",
    "rocwheel.release.promote",
    "rocwheel.release.stage",
}


def python(code, *arguments, **env):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'build'}:{ROOT}", **env}, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


# what declares options: values and words of no room
OPTIONS = [
    "rocwheel.base.errors",
    "rocwheel.base.choices",
    "rocwheel.base.option",
    "rocwheel.records.build_options",
]


def test_help_of_no_command_imports_a_room():
    python(HELP_OF_ALL, json.dumps(OPTIONS))


@pytest.mark.parametrize("words", LOOKS, ids=" ".join)
def test_a_command_that_only_looks_imports_no_more_than_it_needs(words, tmp_path):
    code = (
        "import sys; from rocwheel.cli import main; sys.stdout = sys.stderr; main(sys.argv[1:])\n"
        "print(*sys.modules, file=sys.__stdout__)"
    )
    modules = python(code, *words, XDG_CACHE_HOME=str(tmp_path)).split()
    rooms = {name.split(".")[1] for name in modules if name.startswith("rocwheel.")}
    assert "cli" in rooms
    assert rooms - {"cli"} - set(LOOKS[words].split()) == set()
    assert HEAVY.isdisjoint(modules)
    if "yaml_file" not in LOOKS[words].split():
        assert not {"yaml", "logging"} & set(modules)
    if not {"source_layout", "release", "wheel"} & set(LOOKS[words].split()):
        assert not {"packaging.specifiers", "packaging.requirements"} & set(modules)
    if words == ("compat",) or words[0] == "gate":
        assert "_hashlib" not in modules
    if "manifest" not in LOOKS[words].split():
        assert "msgspec" not in modules


def test_what_waits_is_imported_when_it_is_called_looked_into_or_asked_whether_something_is_one():
    code = (
        "from rocwheel.cli.imports import parsing\n"
        "with parsing(): from rocwheel.cli import cache, target\n"
        "import sys; assert 'rocwheel.base.versions' not in sys.modules\n"
        "assert cache.byte_count('1K') == 1024 and 'rocwheel.base.versions' in sys.modules\n"
        "assert 'rocwheel.tools.housekeeping' not in sys.modules\n"
        "assert cache.housekeeping.DAY == 86400 and 'rocwheel.tools.housekeeping' in sys.modules\n"
        "assert not isinstance(1, target.FileStore) and 'rocwheel.base.store.file' in sys.modules\n"
    )
    python(code)
