"""`verify --installs`: what the real pip and the real uv make of wheels, set by set."""

from __future__ import annotations

import subprocess
import sys
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


def with_info(name: str, content: bytes) -> Wheel:
    return DEMO.but(files={**DEMO.files, f"demo-1.0.dist-info/{name}": File(content)})


def with_wheel(text: bytes) -> Wheel:
    return DEMO.but(wheel=text + b"\nTag: py3-none-any\n")


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
    "a next line": (with_points("[console_scripts]\nrun = demo:main\x85x = demo:main\n"), "install.refused"),
    "a form feed": (with_points("[console_scripts]\nrun = demo:main\x0cx = demo:main\n"), "install.refused"),
    "a text that is not UTF-8": (with_info("entry_points.txt", b"[console_scripts]\nrun = demo:main\n\xff"), "install.refused"),
    "a group between blanks": (with_points("[ console_scripts ]\nrun = demo:main\n"), ""),
    "a comment behind a program": (with_points("[console_scripts]\nrun = demo:main # x\n"), "install.refused"),
    "a program with a window": (with_points("[gui_scripts]\nrun = demo:main\n"), ""),
    "a program that begins with a dot": (with_points("[console_scripts]\n.run = demo:main\n"), ""),
    "a program without a name": (with_points("[console_scripts]\n= demo:main\n"), "install.refused"),
    "a program of two words": (with_points("[console_scripts]\nrun it = demo:main\n"), "install.differs"),
    "two programs that differ in case": (
        with_points("[console_scripts]\nrun = demo:main\nRUN = demo:main\n"), "",
    ),
    "a data folder in a data folder": (with_file("demo-1.0.data/purelib/demo-1.0.data/scripts/do"), "install.differs"),
    "a scheme in another case": (with_file("demo-1.0.data/PureLib/x.py"), "install.refused"),
    "a file that no scheme has": (with_file("demo-1.0.data/x.py"), "install.refused"),
    "a build number": (DEMO.but(filename="demo-1.0-1-py3-none-any.whl"), ""),
    "a build number of letters": (DEMO.but(filename="demo-1.0-1x_y-py3-none-any.whl"), ""),
    "a name with two underscores": (
        Wheel(project="h__x", tag="py3-none-any", files={"h/__init__.py": File()}), "",
    ),
    "a file of an installer": (with_info("INSTALLER", b"me\n"), ""),
    "an address of an installer": (with_info("direct_url.json", b"{}"), ""),
    "a signature": (with_info("RECORD.jws", b"{}"), ""),
    "no Requires-Python that holds": (DEMO.but(requires_python="<3"), ""),
    "a WHEEL of the future": (with_wheel(b"Wheel-Version: 2.0"), "install.refused"),
    "a WHEEL that says neither": (with_wheel(b"Wheel-Version: 1.0\nRoot-Is-Purelib: maybe"), ""),
}  # fmt: skip


def rules(made: Wheel, folder: Path) -> set[str]:
    path = made.write(folder)
    return {item.rule for item in installs([path], Installers(HostRunner({})))[path]}


@pytest.mark.parametrize("title", SHAPES)
def test_a_shape_is_judged_by_what_the_clients_do(title: str, tmp_path: Path) -> None:
    made, rule = SHAPES[title]
    assert rules(made, tmp_path) == ({rule} if rule else set())


@pytest.mark.soak
@pytest.mark.parametrize("title", ODD)
def test_an_odd_shape_is_judged_by_what_the_clients_do(title: str, tmp_path: Path) -> None:
    made, rule = ODD[title]
    assert rules(made, tmp_path) == ({rule} if rule else set())


# What a pip makes of a shape otherwise than the one that was installed with us, and why.
OTHER_PIPS = {
    ("21.3.1", "a group in two brackets"): "install.refused",  # distlib parsed names of groups
    ("21.3.1", "a group between blanks"): "install.differs",  # distlib stripped them
    (">=26", "a name with two underscores"): "install.refused",  # pip reads file names strictly
}


@pytest.mark.soak
@pytest.mark.parametrize("pip", ["21.3.1", "22.3.1", "24.0", ">=26"])
def test_every_pip_makes_the_same_of_a_shape(pip: str, tmp_path: Path) -> None:
    wanted = f"pip{pip}" if pip.startswith(">") else f"pip=={pip}"
    target = tmp_path / "pip"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--target", target, wanted], check=True
    )
    by = Installers(HostRunner({"PYTHONPATH": str(target)}))
    verdicts, expected = {}, {}
    for number, (title, (made, rule)) in enumerate({**SHAPES, **ODD}.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = made.write(folder)
        verdicts[title] = ",".join(sorted({item.rule for item in installs([path], by)[path]}))
        expected[title] = OTHER_PIPS.get((pip, title), rule)
    assert verdicts == expected


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
