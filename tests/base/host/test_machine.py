"""What a machine has is found by asking, not by believing names."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rocwheel.base.errors import HostError
from rocwheel.base.host import debian, machine, virtualenv
from rocwheel.base.process import base_env
from rocwheel.base.versions import PythonVersion

pytestmark = pytest.mark.integration


def script(folder, name, text):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_running_python_is_found_and_broken_shims_are_not(runner, tmp_path):
    script(tmp_path / "shims", "python3.12", "echo command not found >&2; exit 127")
    script(tmp_path / "liar", "python3.13", "echo '{}' not json")
    version = PythonVersion(*sys.version_info[:2])
    script(tmp_path / "real", version.executable, f'exec {sys.executable} "$@"')
    path = f"{tmp_path}/shims:{tmp_path}/liar:{tmp_path}/real"
    found = machine.pythons({"PATH": path, "HOME": str(tmp_path)}, runner=runner)
    assert [item.version for item in found] == [version]
    assert Path(found[0].executable).samefile(os.path.realpath(sys.executable))


def test_pyenv_versions_count_without_being_on_path(runner, tmp_path):
    folder = tmp_path / "pyenv" / "versions" / "3.11.7"
    folder.mkdir(parents=True)
    script(folder / "bin", "python3", f'exec {sys.executable} "$@"')
    environ = {"PATH": "", "HOME": str(tmp_path), "PYENV_ROOT": str(tmp_path / "pyenv")}
    assert len(machine.pythons(environ, runner=runner)) == 1
    assert base_env(environ) == environ, "what Bazel's rules see, who look there too"


@pytest.mark.parametrize("root", ["x" * 300, "file", "loop", "unreadable"])
def test_a_pyenv_that_cannot_be_read_is_passed_over(runner, tmp_path, root):
    script(tmp_path / "bin", "python3", f'exec {sys.executable} "$@"')
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "unreadable" / "versions" / "3.12.1" / "bin").mkdir(parents=True)
    (tmp_path / "unreadable").chmod(0)
    environ = {"PATH": f"{tmp_path}/bin", "PYENV_ROOT": str(tmp_path / root)}
    assert len(machine.pythons(environ, runner=runner)) == 1
    (tmp_path / "unreadable").chmod(0o700)


def counting(folder, name, log):
    """Write a Python that notes its name in `log`."""
    return script(folder, name, f'echo {name} >> {log}\nexec {sys.executable} "$@"')


def test_a_python_is_started_once_and_not_when_its_answer_changes_nothing(runner, tmp_path):
    version = PythonVersion(*sys.version_info[:2])
    log = tmp_path / "log"
    real = counting(tmp_path / "real", version.executable, log)
    (tmp_path / "real" / "python3").symlink_to(real.name)
    (tmp_path / "bin").symlink_to("real")
    counting(tmp_path / "late", version.executable, log)  # has headers as the first one has
    path = f"{tmp_path}/real:{tmp_path}/bin:{tmp_path}/late"
    environ = {"PATH": path, "HOME": str(tmp_path)}
    (only,) = machine.pythons(environ, runner=runner)
    started = 1 if only.headers else 2  # without them the late one could be better
    assert log.read_text().split() == [version.executable] * started


def test_one_version_is_looked_for_without_the_others(runner, tmp_path):
    mine, other = PythonVersion(*sys.version_info[:2]), PythonVersion(3, 14)
    log = tmp_path / "log"
    counting(tmp_path / "all", other.executable, log)
    assert machine.pythons({"PATH": f"{tmp_path}/all"}, runner=runner, only=mine) == ()
    assert not log.exists()
    counting(tmp_path / "all", "python3", log)
    environ = {"PATH": f"{tmp_path}/all"}
    assert [item.version for item in machine.pythons(environ, runner=runner, only=mine)] == [mine]
    assert log.read_text().split() == ["python3"], "any version may have this name"


def test_the_newest_compiler_is_chosen_by_number_not_by_spelling(tmp_path):
    for name in ("clang-9", "clang-19", "clang-20", "clang-tidy-21", "clang-format"):
        script(tmp_path, name, "")
    assert machine.newest("clang", {"PATH": str(tmp_path)}).name == "clang-20"
    script(tmp_path, "clang", "")
    assert machine.newest("clang", {"PATH": str(tmp_path)}).name == "clang"
    with pytest.raises(HostError, match="clang: not found"):
        machine.newest("clang", {"PATH": str(tmp_path / "none")})


@pytest.mark.skipif(not debian.present(), reason="needs Debian or Ubuntu")
def test_missing_system_packages_are_named_with_the_command_for_others_than_root(runner):
    assert debian.missing(["dpkg", "no-such-package"], runner=runner) == ("no-such-package",)
    said = []
    assert debian.ensure(["dpkg"], runner=runner, root=False, say=said.append) == ()
    with pytest.raises(HostError) as caught:
        debian.ensure(["dpkg", "no-such-package"], runner=runner, root=False, say=said.append)
    assert "no-such-package" in str(caught.value)
    assert "sudo apt-get install --no-install-recommends no-such-package" in caught.value.hint
    assert said == []


def test_installing_is_shown_as_commands_that_ask_nothing():
    shown = [str(command) for command in debian.install_commands(["isal"])]
    assert shown == [
        "DEBIAN_FRONTEND=noninteractive apt-get --option=DPkg::Lock::Timeout=600 update",
        "DEBIAN_FRONTEND=noninteractive apt-get --option=DPkg::Lock::Timeout=600 install --yes --no-install-recommends isal",
    ]


@pytest.mark.parametrize(
    ("files", "named", "said"),
    [
        ({}, "clang", "no such program"),
        ({"gcc": "gcc (Debian 12.2.0)"}, "gcc", "--compiler clang needs clang, by its name"),
        ({"clang": ""}, "clang", r"has no C\+\+ compiler beside it"),
        (
            {
                "clang": "clang (GCC) 12\\nCopyright (C) 2022 Free Software Foundation, Inc.",
                "clang++": "",
            },
            "clang",
            r"is not clang: it calls itself 'clang \(GCC\) 12'",
        ),
    ],
)
def test_a_compiler_by_path_that_is_no_clang_is_refused(tmp_path, runner, files, named, said):
    for name, text in files.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\nprintf '{text}\\n'\n")
        program.chmod(0o755)
    with pytest.raises(HostError, match=said):
        machine.clang(tmp_path / named, {}, runner=runner)


# The environment rocwheel makes for itself is filled whatever pip was told elsewhere.


def test_settings_that_send_packages_elsewhere_do_not_count():
    elsewhere = {"PIP_TARGET": "/x", "PIP_PREFIX": "/x", "PIP_USER": "1", "PIP_ROOT": "/x"}
    kept = virtualenv.plain({**elsewhere, "PIP_INDEX_URL": "https://example.com", "PATH": "/bin"})
    assert kept == {"PIP_INDEX_URL": "https://example.com", "PATH": "/bin"}
