"""Test files: found by globs, cut into shards, laid out without JAX's own sources."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocwheel.base.errors import ConfigError
from rocwheel.base.values import replace
from rocwheel.gate.suite import discovery
from rocwheel.gate.suite.discovery import Shard
from rocwheel.gate.suite.suites import SuiteSource


@given(
    sizes=st.dictionaries(st.text("abc/", min_size=1), st.integers(0, 10**6), min_size=1),
    count=st.integers(1, 9),
)
def test_shards_hold_every_file_once(sizes, count):
    parts = [discovery.part(sizes, Shard(number=n, count=count)) for n in range(1, count + 1)]
    assert sorted(file for part in parts for file in part) == sorted(sizes)


def test_shards_are_about_equal():
    sizes = {f"f{n}": (n * 7919) % 5000 for n in range(200)}
    loads = [
        sum(sizes[file] for file in discovery.part(sizes, Shard(number=n, count=4)))
        for n in range(1, 5)
    ]
    assert max(loads) < 1.02 * min(loads)


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "1/0", "a/b", "-1/4", "1/4 "])
def test_a_wrong_shard_is_refused(text):
    with pytest.raises(ConfigError, match="not a shard"):
        Shard.parse(text)


def test_the_whole_suite_has_no_shard_name():
    assert str(Shard.parse("1/1")) == ""
    assert str(Shard.parse("2/4")) == "2/4"


@pytest.fixture
def jax(tmp_path):
    for name in ("tests/a_test.py", "tests/b_test.py", "tests/deep/c_test.py", "tests/data/x.txt",
                 "jax/__init__.py", "conftest.py", "tests/tpu_test.py"):  # fmt: skip
        path = tmp_path / "jax" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    return tmp_path / "jax"


SOURCE = SuiteSource(
    folder="",
    paths=("tests/*_test.py", "tests/**/*_test.py"),
    exclude=("tests/*tpu*",),
    support=("conftest.py", "tests/**"),
)


def test_files_are_found_by_globs_and_left_out_by_globs(jax):
    tests = discovery.find(SOURCE, jax, Shard())
    assert tests.files == ("tests/a_test.py", "tests/b_test.py", "tests/deep/c_test.py")


def test_jax_itself_is_not_beside_its_tests(jax, tmp_path):
    laid = discovery.lay_out(discovery.find(SOURCE, jax, Shard()), SOURCE, tmp_path / "out")
    assert (laid.root / "tests/deep/c_test.py").is_file()
    assert (laid.root / "tests/data/x.txt").is_file()
    assert (laid.root / "conftest.py").is_file()
    assert not (laid.root / "jax").exists()


def test_modules_that_the_wheel_lacks_get_a_folder_of_their_own(jax, tmp_path):
    (jax / "jax/_src").mkdir()
    (jax / "jax/_src/only_for_tests.py").touch()
    (jax / "jax/_src/whole/deep").mkdir(parents=True)
    for name in ("__init__.py", "deep/one.py"):
        (jax / "jax/_src/whole" / name).touch()
    source = replace(SOURCE, modules=("jax/_src/only*.py", "jax/_src/whole/**"))
    laid = discovery.lay_out(discovery.find(source, jax, Shard()), source, tmp_path / "out")
    assert {str(p.relative_to(laid.modules)) for p in laid.modules.rglob("*.py")} == {
        "jax/_src/only_for_tests.py",
        "jax/_src/whole/__init__.py",
        "jax/_src/whole/deep/one.py",
    }
    assert not (laid.root / "jax").exists()


def test_a_file_that_configures_the_backend_is_alone(jax):
    (jax / "tests/a_test.py").write_text("if True:\n  jtu.request_cpu_devices(8)\n")
    assert discovery.find(SOURCE, jax, Shard()).alone == {"tests/a_test.py"}


CODE = """
class Case:
    def test_in_it(self): pass
    def helper(self): pass
async def test_alone(): pass
"""


@pytest.mark.parametrize(
    ("code", "tests"),
    [
        (CODE, ["a.py::Case::test_in_it", "a.py::test_alone"]),
        ("def f(:", []),
        ("x = " + "-" * 90_000, []),
    ],
)
def test_the_tests_of_a_file_are_read_without_importing_it(code, tests):
    assert list(discovery.tests_of("a.py", code)) == tests
