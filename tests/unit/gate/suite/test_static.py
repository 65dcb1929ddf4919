"""Test files read without importing them, held against the suites of JAX's own tests."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from rocwheel.cli import main
from rocwheel.errors import SourceError
from rocwheel.gate.suite import static, suites
from rocwheel.gate.suite.static import FileNeeds, Listings
from rocwheel.gate.suite.suites import SuiteSource
from rocwheel.values import replace

ROOT = Path(__file__).parents[4]
SOURCE = SuiteSource(
    folder="", paths=("tests/*_test.py",), support=("tests/**",), exclude=("tests/tpu*",)
)
FILES = {"tests/a_test.py": FileNeeds(), "tests/tpu_test.py": FileNeeds(lacks=("jax/tpu.py",))}


def recorded() -> Listings:
    return Listings.from_bytes((ROOT / static.RECORDED).read_bytes(), name="recorded")


def test_the_suites_fit_every_recorded_release_of_jax():
    known = recorded()
    assert static.check_all(suites.load_all(ROOT / "ci"), known.jax, known.collected) == ()
    assert len(known.jax) >= 12
    assert {"0.8.0", "0.10.2", "0.11.0"} <= set(known.collected)


def test_the_files_that_configure_the_backend_are_known():
    alone = [file for file, needs in recorded().jax["0.10.2"].items() if needs.alone]
    assert len(alone) >= 30
    assert "tests/pjit_test.py" in alone


@pytest.mark.parametrize(
    ("changes", "needs", "problem"),
    [
        ({}, FileNeeds(lacks=("jax/_src/x.py",)), "imports jax/_src/x.py, which the wheel lacks"),
        ({"modules": ("jax/_src/*",)}, FileNeeds(lacks=("jax/_src/x.py",)), ""),
        ({}, FileNeeds(reads=("docs",)), "reads docs/: add it to `support`"),
        ({"support": ("docs/**",)}, FileNeeds(reads=("docs",)), ""),
        ({"exclude": ("tests/tpu*", "tests/b*")}, FileNeeds(), "exclude: tests/b*: meets no file"),
        ({"paths": ("tests/*", "test/*")}, FileNeeds(), "paths: test/*: meets no file"),
    ],
)
def test_what_a_suite_misses_or_names_for_nothing_is_said(changes, needs, problem):
    found = static.check(replace(SOURCE, **changes), {**FILES, "tests/a_test.py": needs})
    assert problem in "\n".join(found)
    assert bool(problem) is bool(list(static.check(replace(SOURCE, **changes), {
        **FILES, "tests/a_test.py": needs
    })))  # fmt: skip


@pytest.mark.parametrize(
    ("must_run", "may_skip", "problem"),
    [
        (600, 390, ""),  # and 10 may fail as expected
        (600, 440, ""),
        (600, 380, "of 1000 tests 380 may skip and 10 fail: must_run 600 means nothing below 610"),
        (600, 451, "of 1000 tests 600 must run: may_skip 451 means nothing above 400"),
        (1001, 400, "of 1000 tests 1001 must run: may_skip 400 means nothing above -1"),
    ],
)
def test_what_is_demanded_must_fit_the_number_of_tests(must_run, may_skip, problem):
    unit = suites.load(ROOT / "ci", "unit")
    suite = replace(unit, must_run=must_run, may_skip=may_skip, may_xfail=10, jax={})
    assert "\n".join(static.check_demand(suite, "0.9.1", 1000)) == problem
    found = static.check_all([suite], {}, {"0.9.1": {"unit": 1000, "other": 7}})
    assert [line.partition(": ")[2] for line in found] == ([problem] if problem else [])


CODE = """
import os
from jax._src import hidden, there
from jax._src.pipe.inner import run
jtu.request_cpu_devices(8)
DOCS = os.path.join(os.path.dirname(__file__), os.pardir, "docs")
class Case:
    def test_in_it(self): pass
    def helper(self): pass
def test_alone(): pass
"""


def test_a_file_is_listed_with_what_the_wheel_lacks(tmp_path):
    names = ("jax/_src/hidden.py", "jax/_src/there.py", "jax/_src/pipe/__init__.py",
             "jax/_src/pipe/inner.py")  # fmt: skip
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/a_test.py").write_text(CODE)
    with zipfile.ZipFile(tmp_path / "jax.whl", "w") as wheel:
        wheel.writestr("jax/_src/there.py", "")
    found = static.read(tmp_path, tmp_path / "jax.whl")["tests/a_test.py"]
    assert set(found.lacks) == {*names} - {"jax/_src/there.py"}
    assert found.reads == ("docs",)
    assert found.alone
    assert static.tests_of("tests/a_test.py", CODE) == (
        "tests/a_test.py::Case::test_in_it", "tests/a_test.py::test_alone",
    )  # fmt: skip
    with pytest.raises(SourceError):
        static.read(tmp_path, tmp_path / "none.whl")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "is no regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is no regular file"),
        (lambda path: os.truncate(path, 3 << 30), "is larger than 16 MiB"),
        (lambda path: path.write_text("def f(:"), "not read as Python: invalid syntax"),
        (lambda path: path.write_bytes(b"\0"), "not read as Python"),
        (lambda path: path.write_text("x = " + "-" * 90_000 + "1"), "not read as Python"),
        (lambda path: path.write_text("x = " + "1+" * 60_000 + "1"), "not read as Python"),
    ],
)
def test_a_checkout_with_something_odd_is_refused_by_the_files_name(tmp_path, make, said):
    (tmp_path / "tests").mkdir()
    file = tmp_path / "tests/odd_test.py"
    if "larger" in said:
        file.touch()
    make(file)
    with zipfile.ZipFile(tmp_path / "jax.whl", "w"):
        pass
    with pytest.raises(SourceError, match=rf"odd_test\.py: .*{said}"):
        static.read(tmp_path, tmp_path / "jax.whl")


def test_a_wheel_that_is_none_is_refused_by_its_name(tmp_path):
    wheel = tmp_path / "jax.whl"
    os.mkfifo(wheel)
    with pytest.raises(SourceError, match=r"jax\.whl: no such file"):
        static.read(tmp_path, wheel)
    wheel.unlink()
    wheel.write_text("no archive")
    with pytest.raises(SourceError, match=r"jax\.whl: File is not a zip file"):
        static.read(tmp_path, wheel)


def test_the_command_compares_what_is_recorded(capsys):
    assert main(["suites", "check"]) == 0
    assert "JAX releases" in capsys.readouterr().out
    assert main(["suites", "check", "--jax", "0.0.1"]) == 3
    assert main(["suites", "check", "--jax-tests", "."]) == 2
