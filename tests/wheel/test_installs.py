"""`verify --installs`: what the real pip and the real uv make of wheels, set by set."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import wheels
from support.wheels import File, Wheel

from rocwheel.base.errors import WheelError
from rocwheel.base.process import HostRunner
from rocwheel.cli import main
from rocwheel.dist import assemble
from rocwheel.wheel.verify.installs import Installers, installs

pytestmark = [pytest.mark.integration, pytest.mark.slow]

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


def rules(made: Wheel, folder: Path) -> set[str]:
    path = made.write(folder)
    return {item.rule for item in installs([path], Installers(HostRunner({})))[path]}


@pytest.mark.parametrize("title", SHAPES)
def test_a_shape_is_judged_by_what_the_clients_do(title: str, tmp_path: Path) -> None:
    made, rule = SHAPES[title]
    assert rules(made, tmp_path) == ({rule} if rule else set())


@pytest.mark.parametrize("tag", ["cp314-cp314-manylinux_2_27_x86_64", "py3-none-any"])
def test_a_wheel_for_another_python_is_installed_too(tag: str, tmp_path: Path) -> None:
    """pip holds Requires-Python of a file against the Python that runs it, whatever it is told."""
    made = wheels.plugin(tag=tag, requires_python=">=3.14")
    assert rules(made, tmp_path) == set()


def test_a_build_refuses_a_wheel_that_does_not_install(tmp_path: Path) -> None:
    by = Installers(HostRunner({}), folder=tmp_path)
    paths = [wheels.plugin().write(tmp_path), wheels.pjrt().write(tmp_path)]
    for path, wrong in installs(paths, by).items():
        assemble.refuse(path.name, wrong)
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    bad = with_points("[console_scripts]\nrun = demo\n").write(tmp_path)
    with pytest.raises(WheelError, match=f"{bad.name}: .*install.refused"):
        assemble.refuse(bad.name, installs([*paths, bad], by)[bad])


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
