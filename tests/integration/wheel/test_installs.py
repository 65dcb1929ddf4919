"""`verify --installs`: what the real pip and the real uv make of wheels, set by set."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import wheels
from support.wheels import File, Wheel

from rocwheel.cli import main
from rocwheel.dist import assemble
from rocwheel.errors import WheelError
from rocwheel.process import HostRunner
from rocwheel.wheel.verify.installs import Installers, installs

pytestmark = pytest.mark.slow

DEMO = Wheel(tag="py3-none-any", files={"demo/__init__.py": File(b"def main(): pass\n")})


def with_file(name: str, mode: int = 0o644) -> Wheel:
    return DEMO.but(files={**DEMO.files, name: File(b"#!python\n", mode=mode)})


def with_points(text: str) -> Wheel:
    return DEMO.but(entry_points=text)


# title -> (wheel, the rule it breaks; "" where both clients install the same)
SHAPES = {
    "a program": (with_points("[console_scripts]\nrun = demo:main\n"), ""),
    "a group of another project": (with_points("[pkg_config]\ndemo = demo\n"), ""),
    "a mode for the owner only": (with_file("demo/x.py", 0o600), ""),
    "files in .data": (with_file("demo-1.0.data/purelib/demo_more.py"), ""),
    "a program without a function": (with_points("[console_scripts]\nrun = demo\n"), "install.refused"),
    "a scheme that does not exist": (with_file("demo-1.0.data/etc/x"), "install.refused"),
    "a file beside a program": (
        with_points("[console_scripts]\nrun = demo:main\n").but(
            files={**DEMO.files, "demo-1.0.data/data/bin/run": File(b"text")}
        ),
        "install.differs",
    ),
    "a requirement that uv refuses": (DEMO.but(requires=("x @ ./foo.whl",)), "install.refused"),
    "a script that may not be run": (with_file("demo-1.0.data/scripts/do"), "install.differs"),
}  # fmt: skip
ODD = {
    "a script that may be run": (with_file("demo-1.0.data/scripts/do", 0o755), ""),
    "a header": (with_file("demo-1.0.data/headers/demo.h"), ""),
    "a nested scheme": (with_file("demo-1.0.data/purelib/purelib/x.py"), ""),
    "indented lines": (with_points("[console_scripts]\n  run = demo:main\n"), ""),
    "an extra": (with_points("[console_scripts]\nrun = demo:main [x]\n"), ""),
    "a version too large": (DEMO.but(version="1.0.18446744073709551616"), "install.refused"),
    "the data folder of another wheel": (with_file("other-1.0.data/purelib/x.py"), "install.differs"),
    "a default group": (with_points("[DEFAULT]\nx = 1\n[console_scripts]\nrun = demo:main\n"), "install.refused"),
    "a group in two brackets": (with_points("[[console_scripts]]\nrun = demo:main\n"), "install.differs"),
    "a file below a file": (with_file("demo-1.0.data/purelib/demo/__init__.py/x"), "install.refused"),
    "a program in another folder": (with_points("[console_scripts]\n../run = demo:main\n"), "install.refused"),
    "a section twice": (with_points("[x]\na = demo\n[x]\nb = demo\n"), "install.refused"),
    "a vertical tab": (with_points("[console_scripts]\nrun = demo:main\x0bx = demo:main\n"), "install.refused"),
    "a line separator": (with_points("[console_scripts]\nrun = demo:main\u2028x = demo:main\n"), "install.refused"),
}  # fmt: skip


def rules(made: Wheel, folder: Path) -> set[str]:
    path = made.write(folder)
    return {item.rule for item in installs([path], Installers.find(HostRunner({})))[path]}


@pytest.mark.parametrize("title", SHAPES)
def test_a_shape_is_judged_by_what_the_clients_do(title: str, tmp_path: Path) -> None:
    made, rule = SHAPES[title]
    assert rules(made, tmp_path) == ({rule} if rule else set())


@pytest.mark.soak
@pytest.mark.parametrize("title", ODD)
def test_an_odd_shape_is_judged_by_what_the_clients_do(title: str, tmp_path: Path) -> None:
    made, rule = ODD[title]
    assert rules(made, tmp_path) == ({rule} if rule else set())


def test_a_wheel_for_another_python_is_installed_too(tmp_path: Path) -> None:
    """pip holds Requires-Python of a file against the Python that runs it, whatever it is told."""
    made = wheels.plugin(tag="cp314-cp314-manylinux_2_27_x86_64", requires_python=">=3.14")
    assert rules(made, tmp_path) == set()


def test_a_build_installs_its_wheels_before_they_are_published(tmp_path: Path) -> None:
    by = Installers.find(HostRunner({}), folder=tmp_path)
    paths = [wheels.plugin().write(tmp_path), wheels.pjrt().write(tmp_path)]
    assemble._installed(paths, by)
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    bad = with_points("[console_scripts]\nrun = demo\n").write(tmp_path)
    with pytest.raises(WheelError, match=f"{bad.name}: .*install.refused"):
        assemble._installed([*paths, bad], by)


def test_a_machine_without_uv_installs_with_pip_and_says_so(tmp_path: Path) -> None:
    alone = Installers.find(HostRunner({"PATH": ""}), beside=tmp_path / "python")
    assert [each.name for each in alone.clients] == ["pip"]
    assert str(alone).endswith(" (uv is not installed)")
    made = with_file("demo-1.0.data/scripts/do").write(tmp_path)  # uv makes it executable
    assert installs([made], alone) == {made: ()}
    bad = with_points("[console_scripts]\nrun = demo\n").write(tmp_path)
    assert [item.rule for item in installs([bad], alone)[bad]] == ["install.refused"]


def test_uv_is_found_on_path_and_beside_our_interpreter(tmp_path: Path) -> None:
    for place, env in (("own", "/nowhere"), ("path", str(tmp_path / "path"))):
        program = tmp_path / place / "uv"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\necho uv 0.9.8\n")
        program.chmod(0o755)
        by = Installers.find(HostRunner({"PATH": env}), beside=tmp_path / "own" / "python")
        assert str(by).endswith(" and uv 0.9.8"), place
        program.unlink()


def test_a_set_is_installed_together_and_the_bad_one_is_named(tmp_path: Path, capsys) -> None:
    paths = [wheels.plugin().write(tmp_path), wheels.pjrt().write(tmp_path)]
    assert main(["wheel", "verify", "--installs", *map(str, paths)]) == 0
    bad = with_points("[console_scripts]\nrun = demo\n").write(tmp_path)
    assert main(["wheel", "verify", "--installs", *map(str, paths), str(bad)]) == 6
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("installed with pip ")
    assert " and uv " in lines[0]
    assert lines[-3] == f"{bad.name}: may not ship, 1 error"
    assert lines[-2].startswith("  error install.refused: ")
    assert "callable suffix" in lines[-2]
