"""Suites and skip lists as data; the project's own files are good ones."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import sys
from collections import defaultdict
from datetime import date
from pathlib import Path

import msgspec
import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import amdgpu_family_matrix as matrix
from rocwheel.base.errors import ConfigError
from rocwheel.gate.suite import skips, suites
from rocwheel.gate.suite.skips import SkipAudit
from rocwheel.records.results import Attempt, CollectError, Fault, Outcome, Results, TestResult
from rocwheel.records.verdict import Counts, State

ROOT = Path(__file__).parents[3]
GOOD = """\
suite: own
about: something
source: {folder: suites/own}
gpus: [1]
requirements: [pytest==9.1.1]
deadlines: {test: 10, shard: 20, suite: 30}
must_run: 3
"""


def tree(tmp_path, text, name="own"):
    folder = tmp_path / "ci/suites"
    folder.mkdir(parents=True)
    (folder / f"{name}.yaml").write_text(text)
    return tmp_path / "ci"


def test_an_unknown_suite_names_the_nearest(tmp_path):
    with pytest.raises(ConfigError) as caught:
        suites.load(tree(tmp_path, GOOD), "onw")
    assert caught.value.hint == "did you mean own?"


@pytest.mark.parametrize(
    ("jax", "must_run", "may_skip"),
    [
        ("0.8.3", 3, 1),
        ("0.9.0", 5, 1),
        ("0.9.0.1", 5, 1),
        ("0.10.0.dev20260101", 5, 1),
        ("0.10.0", 9, 2),
        ("0.10.3", 9, 2),
        ("", 3, 1),
        ("of my own", 3, 1),
    ],
)
def test_what_is_demanded_follows_what_was_measured_for_the_jax(tmp_path, jax, must_run, may_skip):
    text = 'must_run: 3\nmay_skip: 1\njax:\n  "0.10.0": {must_run: 9, may_skip: 2}\n'
    text += '  "0.9.0": {must_run: 5}'
    suite = suites.load(tree(tmp_path, GOOD.replace("must_run: 3", text)), "own")
    demand = suite.demands.of(jax)
    assert (demand.must_run, demand.may_skip) == (must_run, may_skip)
    assert demand.flaky_budget == suite.demands.expected.flaky_budget


@pytest.mark.parametrize("jax", ["0.11.0", "0.11.0.dev20260101", "1.0"])
def test_as_many_tests_of_a_newer_series_must_pass_and_any_may_be_skipped(tmp_path, jax):
    text = 'must_run: 3\njax:\n  "0.10.0": {must_run: 9, may_skip: 2}\n'
    demands = suites.load(tree(tmp_path, GOOD.replace("must_run: 3", text)), "own").demands
    assert not list(demands.of(jax).shortfalls(Counts(passed=9, skipped=99)))
    assert list(demands.of(jax).shortfalls(Counts(passed=8)))
    assert list(demands.of("0.10.2").shortfalls(Counts(passed=9, skipped=99)))


def test_the_projects_own_suites_are_what_the_families_policy_names():
    found = {suite.name for suite in suites.load_all(ROOT / "ci")}
    named = {suite for family in matrix.FAMILIES.values() for suite in family.suites}
    assert named <= found
    assert {"smoke", "unit", "multi_gpu", "e2e", "miniature", "miniature_gpu"} == found


def wrong_demands(listed, counted):
    """Yield figures that mean nothing for as many tests as a suite of JAX's own has.

    A test passes, is skipped or fails as expected. More than there are cannot pass; where fewer must
    than the rest allows, or more may be skipped than are left, the figure demands nothing.
    """
    for suite in listed:
        for version, numbers in counted.items():
            demand, number = suite.demands.of(version), numbers[suite.name]
            least = number - demand.may_skip - demand.may_xfail
            most = number - demand.must_run + number * 0.05  # figures are round
            if not least <= demand.must_run <= number:
                yield f"{suite.name} {version}: must_run {demand.must_run} of {number}"
            if demand.may_skip > most:
                yield f"{suite.name} {version}: may_skip {demand.may_skip} above {most}"


@pytest.fixture(scope="module")
def of_jax():
    """Suites of JAX's own tests, and how many tests they have by release."""
    own = [suite for suite in suites.load_all(ROOT / "ci") if not suite.source.folder]
    return own, json.loads((ROOT / "ci/jax_tests.json").read_text())


def test_what_is_demanded_of_jaxs_own_tests_fits_how_many_there_are(of_jax):
    own, counted = of_jax
    assert {"unit", "multi_gpu"} == {suite.name for suite in own}
    assert list(wrong_demands(own, counted)) == []
    newest = max(map(Version, counted)).release[:2]
    for suite in own:
        assert max(map(Version, suite.jax)).release[:2] == newest
        assert set(suite.jax) <= set(counted), "a release that was never counted"


def test_the_folders_of_our_suites_exist_and_bring_their_own_pytest_configuration():
    for suite in suites.load_all(ROOT / "ci"):
        if suite.source.folder:
            assert (ROOT / suite.source.folder / "pytest.ini").is_file(), suite.name


def test_every_suite_pins_the_pytest_that_the_engine_is_tested_with():
    pins = {pin for suite in suites.load_all(ROOT / "ci") for pin in suite.requirements}
    assert {pin for pin in pins if pin.startswith("pytest")} == {f"pytest=={pytest.__version__}"}


def test_every_library_of_the_page_says_how_it_is_seen():
    found = {library.name: library for library in suites.libraries(ROOT / "ci")}
    table = (ROOT / "suites/smoke/documented.py").read_text()
    listed = set(re.findall(r'^    "(\w+)": \(', table, re.MULTILINE))
    assert set(found) == listed
    assert len(found) == 11
    for library in found.values():
        assert library.mapped or library.note
        assert all("{file}" in text or text for text in library.trace.values())


def test_a_suite_demands_calls_only_of_libraries_that_a_trace_can_show():
    shown = {library.name for library in suites.libraries(ROOT / "ci") if library.trace}
    demands = [suite.demands.expected for suite in suites.load_all(ROOT / "ci")]
    demanded = {name for demand in demands for name in demand.must_call}
    assert demanded == {"hipBLAS", "hipFFT", "MIOpen"}  # XLA calls hipBLASLt on some GPUs only
    assert demanded <= shown


def test_errors_that_end_the_use_of_a_device_are_data():
    errors = suites.device_errors(ROOT / "ci")
    met = {
        text: next((error.cause for error in errors if error.pattern.search(text)), "")
        for text in (
            "hipErrorIllegalAddress",
            "HW Exception by GPU node-4",
            "hipErrorECCNotCorrectable",
        )
    }
    assert list(met.values()) == ["process", "machine", "machine"]


# --- the smoke suite's table of names ------------------------------------------------------------


@pytest.fixture(scope="module")
def table():
    """`suites/smoke/documented.py`, which needs no JAX."""
    spec = importlib.util.spec_from_file_location("documented", ROOT / "suites/smoke/documented.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[spec.name]


def test_every_name_of_the_page_stands_in_the_table(table):
    page = defaultdict(set)  # section -> names
    with (ROOT / "tests/data/jax_compatibility.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            page[row["section"]].add(row["name"])
    listed = {
        library: {row.documented for row in rows} for library, rows in table.LIBRARIES.items()
    }
    modules = page.pop("module")
    features = page.pop("unsupported")
    assert set(listed) == set(page)
    for library, names in page.items():
        assert names <= listed[library], library
    assert {row.documented for row in table.MODULES} == modules | {"jax.experimental.sparsify"}
    assert {feature.feature for feature in table.UNSUPPORTED} == features


@pytest.mark.parametrize("jax", ["0.8.0", "0.9.1", "0.10.0", "0.12.0", "0.13.0.dev20261120"])
def test_a_name_without_an_api_in_some_jax_says_why(table, jax):
    rows = [*table.MODULES, *(row for rows in table.LIBRARIES.values() for row in rows)]
    assert [row.documented for row in rows if not row.name(jax) and not row.missing] == []
    gone = {row.documented for row in rows if not row.name(jax)}
    sparse = {"jax.numpy.matmul", "jax.experimental.sparse.NM"}  # of hipSPARSELt
    assert gone == {"jax_triton"} | (set() if jax in ("0.8.0", "0.9.1") else sparse)


@pytest.mark.parametrize(
    ("name", "backend", "rocm", "fails"),
    [
        ("int4", "rocm", "7.10.0a20251120", True),
        ("int4", "cuda", "7.10.0", False),
        ("int4", "cpu", "7.10.0", False),
        ("sparsify", "rocm", "6.3.1", True),
        ("sparsify", "rocm", "7.0.0", False),
    ],
)
def test_an_unsupported_feature_fails_on_rocm_only_and_in_its_versions(
    table, name, backend, rocm, fails
):
    feature = next(item for item in table.UNSUPPORTED if item.name == name)
    assert feature.fails_on(backend, rocm=rocm, jax_version="0.9.1") is fails


# --- skip lists ----------------------------------------------------------------------------------

ENTRY = """\
  - test: "{test}"
    suites: [unit]
    reason: returns NaN
    issue: https://example.org/1
    owner: somebody
    expires: "{expires}"
{more}"""
TODAY = date(2026, 6, 1)


def listed(tmp_path, *entries, today=TODAY):
    folder = tmp_path / "ci/skips"
    folder.mkdir(parents=True)
    tree(tmp_path, GOOD, name="unit")
    (folder / "unit.yaml").write_text("skips:\n" + "".join(entries))
    return skips.load(tmp_path / "ci", today=today)


def entry(test="tests/lax_test.py::Lax::testConv", expires="2026-12-31", more=""):
    return ENTRY.format(test=test, expires=expires, more=more)


@pytest.mark.parametrize(
    ("pattern", "test", "meets"),
    [
        ("a.py::T::conv", "a.py::T::conv", True),
        ("a.py::T::conv", "a.py::T::conv[x-1]", True),
        ("a.py::T::conv", "a.py::T::convert", False),
        ("a.py::T::conv", "b.py::T::conv", False),
        ("a.py::T::conv*", "a.py::T::convert[x]", True),
        ("a.py::T::conv*", "a.py::T::conv::inner", False),
        ("a.py::*::conv", "a.py::T::conv", True),
        ("a.py::*::conv", "a.py::conv", False),
        ("a.py::T::conv[x*]", "a.py::T::conv[x-1]", True),
        ("a.py::T::conv[x*]", "a.py::T::conv[y-1]", False),
        ("a.py::T::conv[x*]", "a.py::T::conv", False),
        ("a.py::T::conv[a::b]", "a.py::T::conv[a::b]", True),
        ("a.py::T::co.v", "a.py::T::conv", False),
    ],
)
def test_a_pattern_meets_what_it_says_and_nothing_longer(tmp_path, pattern, test, meets):
    (skip,) = listed(tmp_path, entry(pattern))
    assert skip.meets(test) is meets


def test_a_pattern_of_many_stars_is_looked_for_in_one_pass(tmp_path):
    """Tried at every place of every star, this one would take longer than any run."""
    (skip,) = listed(tmp_path, entry("test_a.py::test_x*" + "a*" * 30 + "b"))
    assert not skip.meets("test_a.py::test_x" + "a" * 3000)
    assert skip.meets("test_a.py::test_x" + "a" * 3000 + "b[1]")


def test_an_expired_entry_is_an_error_that_names_owner_and_place(tmp_path):
    with pytest.raises(ConfigError, match=r"ci/skips/unit\.yaml:2: .*expired on 2026-05-31") as e:
        listed(tmp_path, entry(expires="2026-05-31"))
    assert "somebody" in e.value.hint
    assert len(listed(tmp_path / "b", entry(expires="2026-06-01"))) == 1


@pytest.mark.parametrize(
    ("first", "second", "double"),
    [
        ("", "", True),
        ("    gfx: [gfx942]\n", "", True),
        ("    gfx: [gfx942]\n", "    gfx: [gfx942, gfx950]\n", True),
        ("    gfx: [gfx942]\n", "    gfx: [gfx950]\n", False),
        ('    jax: "<0.9"\n', '    jax: ">=0.9"\n', False),
    ],
)
def test_an_entry_stands_once(tmp_path, first, second, double):
    if not double:
        assert len(listed(tmp_path, entry(more=first), entry(more=second))) == 2
        return
    with pytest.raises(ConfigError, match=r"Conv at ci/skips/unit\.yaml:2 covers it"):
        listed(tmp_path, entry(more=first), entry(more=second))


def context(suite="unit", targets=("gfx942",), rocm="7.10.0a20251120", jax="0.9.1"):
    return suite, frozenset(targets), rocm, jax


@pytest.mark.parametrize(
    ("more", "where", "applies"),
    [
        ("", context(), True),
        ("", context(suite="smoke"), False),
        ("    gfx: [gfx942]\n", context(), True),
        ("    gfx: [gfx950]\n", context(), False),
        ('    rocm: ">=7.10a0"\n', context(), True),
        ('    rocm: "<7"\n', context(), False),
        ('    jax: ">=0.9,<0.10"\n', context(), True),
        ('    jax: ">=0.10"\n', context(), False),
        ("", context(targets=("cpu",), rocm=""), True),
        ('    rocm: ">=7"\n', context(targets=("cpu",), rocm=""), False),
        ("    gfx: [gfx942]\n", context(targets=("cpu",), rocm=""), False),
    ],
)
def test_an_entry_applies_where_it_says(tmp_path, more, where, applies):
    assert [e.applies(*where) for e in listed(tmp_path, entry(more=more))] == [applies]


@pytest.mark.parametrize(
    ("test", "meets"),
    [
        ("tests/lax_test.py::LaxTest::testConvGeneralDilated0", True),
        ("tests/conv/lax_test.py::LaxTest::testAdd", False),
        ("tests/conv_test.py::LaxTest::testAdd", True),
        ("tests/lax_test.py::LaxTest::testConvertElementType", False),
        ("tests/lax_test.py::ConvTest::testConvertElementType", False),
        ("tests/lax_test.py::LaxTest::testAdd[conv]", True),
        ("tests/lax_test.py::LaxTest::testAdd", False),
    ],
)
def test_a_keyword_means_parts_of_names_but_for_some_others(tmp_path, test, meets):
    text = entry().replace('test: "tests/lax_test.py::Lax::testConv"', 'keyword: "CONV"')
    (skip,) = listed(tmp_path, text + "    unless: [convert, Conversion]\n")
    assert skip.meets(test) is meets
    assert skip.named == "keyword CONV"


@pytest.mark.parametrize(
    ("new", "problem"),
    [
        ('keyword: "conv"\n    test: "a.py::b"', "names a `test` or a `keyword`"),
        ('keyword: ""', "names a `test` or a `keyword`"),
        ('keywrd: "conv"', "keywrd: unknown key"),
    ],
)
def test_an_entry_has_a_test_or_a_keyword(tmp_path, new, problem):
    with pytest.raises(ConfigError, match=problem):
        listed(tmp_path, entry().replace('test: "tests/lax_test.py::Lax::testConv"', new))


def test_a_keyword_stands_once_and_covers_no_other(tmp_path):
    def keyword(word, more=""):
        return entry(more=more).replace(
            'test: "tests/lax_test.py::Lax::testConv"', f"keyword: {word}"
        )

    with pytest.raises(ConfigError, match="keyword CONV: keyword conv at"):
        listed(tmp_path / "twice", keyword("conv"), keyword("CONV"))
    apart = keyword("conv"), keyword("conv", "    unless: [convert]\n")
    assert len({str(skip.identity()) for skip in listed(tmp_path / "apart", *apart)}) == 2


def wrong_skips(entries, own, counted):
    """Yield entries of our lists that can meet no test of the suite and release they are for."""
    by_name = {suite.name: suite for suite in own}
    for skip in entries:
        if not any(skip.jax.contains(version) for version in counted):
            yield f"{skip.where}: no release that was counted is {skip.jax}"
        for name in skip.suites:
            if not skip.keyword and not by_name[name].source.has(skip.pattern.partition("::")[0]):
                yield f"{skip.where}: {name} has no such file"


def test_the_projects_own_lists_are_of_files_and_releases_that_suites_have(of_jax):
    ours = skips.load(ROOT / "ci", today=date(2026, 1, 1))
    assert {skip.keyword for skip in ours} >= {"", "conv", "sumpool", "polymul"}
    assert list(wrong_skips(ours, *of_jax)) == []
    for change in ({"pattern": "tests/cudnn_x_test.py::T::t"}, {"jax": SpecifierSet("==0.10.9.*")}):
        mutant = msgspec.structs.replace(next(skip for skip in ours if skip.pattern), **change)
        assert len(list(wrong_skips([mutant], *of_jax))) == 1


def attempted(outcome):
    return Attempt(outcome=outcome, lane="gpu0", process=1, start_ms=0, duration_ms=1)


@pytest.mark.parametrize(
    ("left", "state"),
    [
        ({}, None),
        ({"faults": (Fault(state=State.CRASH, message="ended badly"),)}, None),
        ({"faults": (Fault(state=State.TIMEOUT, message="ended badly"),)}, State.TIMEOUT),
        ({"faults": (Fault(state=State.INFRA, message="no answer"),)}, State.INFRA),
        ({"collect_errors": (CollectError(file="a.py", message="x"),)}, State.COLLECT_ERROR),
        ({"tests": (TestResult(test="a", outcome=Outcome.NOT_RUN),)}, State.NOT_RUN),
    ],
)
def test_an_audit_that_did_not_try_all_of_them_says_why(left, state):
    tried = TestResult(test="b", outcome=Outcome.FAILED, attempts=(attempted(Outcome.FAILED),))
    results = Results(suite="own", shard="", files=(), suite_files=(), tests=(tried,))
    results = msgspec.structs.replace(results, **left)
    assert SkipAudit.unfinished(results) is state
