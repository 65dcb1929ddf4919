"""The configuration file and the environment: order, places, and mistakes that are located."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from rocwheel import cli
from rocwheel.cli import COMMANDS, ci_build
from rocwheel.cli.app import App
from rocwheel.cli.build_options import build
from rocwheel.cli.options import command
from rocwheel.tools import doctor


@pytest.fixture
def ask(monkeypatch, tmp_path):
    """Run a stand-in for `dist_wheels`; gives app and options, or raises."""
    calls = []

    @command("dist_wheels")
    @build
    @click.pass_obj
    def probe(app, build):
        calls.append((app, build))

    monkeypatch.setattr(cli, "_probe", probe, raising=False)
    monkeypatch.setitem(COMMANDS, "dist_wheels", ("rocwheel.cli:_probe", "Build wheels."))

    def run(*arguments, cwd=tmp_path, **env):
        app = App(env, cwd)
        result = CliRunner().invoke(
            ci_build, ["dist_wheels", *arguments], obj=app, auto_envvar_prefix="ROCWHEEL", env=env
        )
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        run.said = result.stderr
        return calls[-1]

    return run


SECRET = "s3cr3t-m4rk"
HIDDEN = f"""
cache-dir = "caches"
[dist_wheels]
remote-cache = "https://me:{SECRET}@cache.example/a"
therock-path = "https://rocm.example/x.tar.gz?X-Signature={SECRET}"
compiler = "hermetic"
bazel-options = ["--remote_header=Authorization=Bearer {SECRET}", "--jobs=4",
                 "--repo_env=API_TOKEN={SECRET}", "--bes_backend=grpcs://{SECRET}@bes.example"]
"""


def test_doctor_shows_what_is_set_without_the_credentials_in_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "rocwheel.toml").write_text(HIDDEN)
    monkeypatch.setattr(doctor, "examine", lambda *_, **__: ())
    mine = {
        "ROCWHEEL_DIST_WHEELS_BAZEL_MIRROR": f"https://a:{SECRET}@m.example,http://{SECRET}@n.example",
        "ROCWHEEL_DIST_WHEELS_BAZEL_OPTIONS": (
            f"--remote_cache=https://{SECRET}@r.example/c --remote_header=x=y {SECRET}\n{SECRET}"
        ),
        "ROCWHEEL_SOME_TOKEN": SECRET,
        "ROCWHEEL_STAGE_CHANNEL": "nightly",
    }
    result = CliRunner().invoke(ci_build, ["doctor", "--json"], obj=App(mine, tmp_path))
    assert result.exit_code == 0, result.output
    said = result.stdout
    assert SECRET not in said
    found = {row["name"]: row["found"] for row in json.loads(said)["checks"]}
    assert found["dist_wheels.compiler"].startswith("hermetic, ")
    assert found["dist_wheels.remote-cache"].startswith("https://cache.example/a, ")
    assert found["dist_wheels.therock-path"].startswith("https://rocm.example/x.tar.gz, ")
    for word in ("--remote_header=[redacted]", "--jobs=4", "=[redacted]", "grpcs://bes.example"):
        assert word in found["dist_wheels.bazel-options"]
    assert found["ROCWHEEL_STAGE_CHANNEL"] == "nightly, the environment"
    assert found["ROCWHEEL_SOME_TOKEN"] == "[redacted], the environment"
    assert "https://r.example/c" in found["ROCWHEEL_DIST_WHEELS_BAZEL_OPTIONS"]


FILE = """
cache-dir = "caches"
[dist_wheels]
compiler = "hermetic"
locked = true
bazel-options = ["--jobs=4", "--verbose_failures"]
wheelhouse = "out"
"""


def test_the_order_is_option_environment_file_default(ask, tmp_path):
    assert ask()[1].compiler == "clang"
    (tmp_path / "rocwheel.toml").write_text(FILE)
    _, options = ask()
    assert (options.compiler, options.locked) == ("hermetic", True)
    assert options.bazel_options == ("--jobs=4", "--verbose_failures")
    env = {"ROCWHEEL_DIST_WHEELS_COMPILER": "hermetic"}
    assert ask(**env)[1].compiler == "hermetic"
    assert ask("--compiler=clang", **env)[1].compiler == "clang"


def test_the_file_is_found_above_and_its_folders_are_relative_to_it(ask, tmp_path):
    (tmp_path / "rocwheel.toml").write_text(FILE)
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    app, options = ask(cwd=deep)
    assert app.cache == tmp_path / "caches"
    assert options.wheelhouse == tmp_path / "out"
    app, _ = ask(cwd=deep, ROCWHEEL_CACHE_DIR="/elsewhere")
    assert str(app.cache) == "/elsewhere"


def test_a_variable_names_the_file(ask, tmp_path):
    (tmp_path / "other.toml").write_text("[dist_wheels]\ncompiler = 'hermetic'\n")
    assert ask(ROCWHEEL_CONFIG="other.toml")[1].compiler == "hermetic"


FAMILY = "'gfx942': a gfx target, not a family"


def test_an_error_says_where_the_value_it_quotes_was_set(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = "[stage]\nfamily = 'gfx942'\n[status]\nfamily = 'gfx942'\n"
    (tmp_path / "rocwheel.toml").write_text(text)
    line = ["status", f"--store={tmp_path.as_uri()}"]
    assert cli.main(line) == 3
    said = capsys.readouterr().err
    assert FAMILY in said
    assert said.endswith(f"did you mean gfx94X-dcgpu?; it is set by {tmp_path}/rocwheel.toml:4\n")
    monkeypatch.setenv("ROCWHEEL_STATUS_LOOK", "many")
    assert cli.main([*line, "--family=gfx90a"]) == 2
    assert capsys.readouterr().err.endswith("; it is set by ROCWHEEL_STATUS_LOOK\n")
    assert cli.main(["index", "check", "--family=nothing", line[1]]) == 3
    assert "it is set by" not in capsys.readouterr().err


def test_a_variable_is_blamed_only_for_the_value_that_it_set(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = ["status", f"--store={tmp_path.as_uri()}"]
    monkeypatch.setenv("ROCWHEEL_STATUS_MANIFEST", "gfx942")  # no option of `status`
    monkeypatch.setenv("ROCWHEEL_STATUS_FAMILY", "gfx942")
    assert cli.main([*line, "--family=gfx942"]) == 3
    assert "it is set by" not in capsys.readouterr().err
    assert cli.main(line) == 3
    assert capsys.readouterr().err.endswith("it is set by ROCWHEEL_STATUS_FAMILY\n")
    monkeypatch.setenv("ROCWHEEL_YANK_FAMILY", "gfx942")
    monkeypatch.setenv("ROCWHEEL_YANK_REASON", "gfx942")  # either may be what is quoted
    assert cli.main(["yank", line[1], "--manifest=123456"]) == 3
    assert "REASON" not in capsys.readouterr().err


def test_doctor_refuses_what_no_command_has(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "examine", lambda *_, **__: ())
    (tmp_path / "rocwheel.toml").write_text("[wheel.verify]\ngfx-target = 'gfx942'\n")
    result = CliRunner().invoke(ci_build, ["doctor"], obj=App({}, tmp_path))
    assert f"{tmp_path}/rocwheel.toml:2: wheel.verify.gfx-target: " in str(result.exception)


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("ROCWHEEL_DIST_WHEELS_COMPILR", "did you mean ROCWHEEL_DIST_WHEELS_COMPILER?"),
        ("ROCWHEEL_COMPILER", "did you mean ROCWHEEL_DIST_WHEELS_COMPILER?"),
        ("ROCWHEEL_CACHEDIR", "did you mean ROCWHEEL_CACHE_DIR?"),
        ("ROCWHEEL_GATE_SUITE", ""),  # of another command
    ],
)
def test_a_misspelt_variable_is_warned_of(ask, variable, said):
    ask(**{variable: "hermetic"})
    assert (f"{variable}: sets nothing; {said}" in ask.said) is bool(said)
    assert ("sets nothing" in ask.said) is bool(said)


ELSEWHERE = """
import click
from rocwheel.cli import ci_build, command_line, start
from rocwheel.cli.config_file import Settings, misspelt
name, inner = "wheel", "rebuild"
group = ci_build.get_command(click.Context(ci_build), name)
settings = Settings(path=None, text="", values={name: {inner: {"signer": "kms:x"}}})
assert settings.defaults(group, name) == {inner: {"signer": "kms:x"}}
assert not [*misspelt({"ROCWHEEL_WHEEL_REBUILD_SIGNER": "x"}, group, name, [name])]
assert command_line(start(), "wheel rebuild M").endswith("wheel rebuild M")
"""


def test_a_command_of_another_module_has_settings_variables_and_lines():
    """In a process of its own: elsewhere another test may have imported it."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", ELSEWHERE], check=True, env=env)
