"""Reports: what each must contain, and that nothing a test prints can break one."""

from __future__ import annotations

import shlex
from xml.etree import ElementTree as ET

import pytest
from support.report import FOUND, LAST, attempt, rich

from rocwheel.base.values import replace
from rocwheel.gate.report import ci, gate_page
from rocwheel.gate.report.gate_page import Trails
from rocwheel.gate.verdict import judge
from rocwheel.records.results import CollectError, Fault, Outcome, Results, TestResult
from rocwheel.records.verdict import Demand, State


@pytest.fixture
def xml():
    return ET.fromstring(ci.junit(rich(), FOUND))


def test_junit_counts_what_happened(xml):
    assert xml.get("tests") == "37"
    assert xml.get("failures") == "1"
    assert xml.get("errors") == "4"  # a crash, a hang, a test that did not run, a file
    assert xml.get("skipped") == "1"


def test_junit_keeps_every_attempt_and_its_place(xml):
    case = xml.find(".//testcase[@name='test_bad[a::b]']")
    assert case.get("classname") == "test_b.Case"
    assert [child.tag for child in case] == ["failure", "rerunFailure", "system-out"]
    assert "on gpu1" in case.find("rerunFailure").text
    assert xml.find(".//testcase[@name='test_flaky']/flakyFailure").get("message") == "first time"
    assert xml.find(".//testcase[@name='test_crash']/error").get("type") == "crashed"
    assert xml.find(".//testcase[@name='test_never']/error").get("type") == "not-run"
    assert xml.find(".//testsuite[@name='test_c.py']/testcase/error").get("message") == "no module"


def test_characters_that_xml_forbids_do_not_break_it(xml):
    printed = xml.find(".//testcase[@name='test_bad[a::b]']/system-out").text
    assert "\x00" not in printed
    assert "</script>" in printed, "what is allowed is kept"


@pytest.fixture
def html():
    return gate_page.render(rich(), FOUND, {"MIOpen": "", "rocThrust": "header-only"}).decode()


def test_the_first_failure_stands_before_everything_else(html):
    first = html.index('id="first"')
    assert html.index("test_bad[a::b]", first) < html.index('id="failures"')
    for section in ("failures", "flaky", "left", "libraries", "devices", "tests", "about"):
        assert first < html.index(f'id="{section}"'), section


def test_what_a_test_prints_is_text_and_never_markup(html):
    assert "<script>window.broken" not in html
    assert html.count("<script") == 2


def test_the_page_needs_nothing_from_elsewhere(html):
    for sign in ("http://", "https://", "@import", "url(", "src="):
        assert sign not in html, sign


def test_libraries_are_exercised_only_where_they_were_seen():
    known = {"MIOpen": "", "rocThrust": "h"}
    found = {item["name"]: item for item in gate_page.libraries_of(rich(), known)}
    assert found["hipFFT"]["status"] == "exercised"
    assert (found["hipFFT"]["tests"], found["hipFFT"]["exercised"]) == (3, 1)
    assert found["hipBLAS"]["status"] == "nominal"
    assert found["hipBLAS"]["bad"] == 1
    assert found["MIOpen"]["status"] == "no test"
    assert found["rocThrust"]["note"] == "h"


def test_a_run_on_other_hardware_never_reads_like_one_on_the_familys_gpus():
    there = rich()
    here = replace(there, environment={**there.environment, "backend": "cpu"})
    passed = Fault(state=State.PASS, message="")
    assert gate_page.verdict_text(there, passed) == "smoke on gfx94X-dcgpu, CPython 3.12.1: pass"
    assert gate_page.verdict_text(here, passed) == (
        "smoke on the CPU, not gfx94X-dcgpu, CPython 3.12.1: pass"
    )
    assert "says nothing about a GPU" in gate_page.render(here, passed, {}).decode()
    assert "says nothing about a GPU" not in gate_page.render(there, passed, {}).decode()


def test_a_shard_that_passed_does_not_say_that_enough_tests_ran():
    """What a suite must run is asked of its shards together."""
    passed = Fault(state=State.PASS, message="")
    whole = gate_page.render(rich(), passed, {}).decode()
    shard = gate_page.render(replace(rich(), shard="2/4"), passed, {}).decode()
    assert "enough tests ran" in whole
    assert "enough tests ran" not in shard
    assert "asked of all shards" in shard


def test_of_many_failures_the_first_are_shown_with_their_reasons_and_the_rest_counted():
    bad = next(test for test in rich().tests if "test_bad" in test.test)
    many = replace(rich(), tests=tuple(replace(bad, test=f"a.py::t{n}") for n in range(500)))
    text = gate_page.render(many, FOUND, {}).decode()
    assert text.count('class="why">assert 1 == 2<') == gate_page.SHOWN
    assert f"{500 - gate_page.SHOWN} more are in the" in text


def test_a_run_that_ended_before_its_tests_has_a_page_too():
    empty = Results(suite="smoke", shard="", files=(), suite_files=(), tests=())
    found = Fault(state=State.NO_RUNNER, message="no GPU here")
    assert "no GPU here" in gate_page.render(empty, found, {}).decode()
    assert ET.fromstring(ci.junit(empty, found)).get("tests") == "0"


def test_the_summary_names_state_and_failures():
    text = ci.markdown(rich(), FOUND)
    assert text.startswith("### smoke on gfx94X-dcgpu, CPython 3.12.1: crash\n")
    assert "| `test_b.py::test_crash` | crashed | signal 11 (SIGSEGV) |" in text


def test_every_file_that_cannot_be_collected_is_named_everywhere():
    errors = tuple(CollectError(file=f"test_{n}.py", message=f"no module {n}") for n in "xyz")
    results = replace(rich(), faults=(), collect_errors=errors)
    judged = judge.judge(results, Demand(must_run=1))
    commands = "\n".join(ci.workflow_commands(results, judged, ""))
    page, xml = gate_page.render(results, judged, {}), ci.junit(results, judged)
    texts = (judged.message, ci.markdown(results, judged), commands, page.decode(), xml.decode())
    for text in texts:
        assert all(item.file in text and item.message in text for item in errors)


def test_annotations_are_escaped_and_few():
    lines = list(ci.workflow_commands(rich(), FOUND, "suites/smoke"))
    assert lines[0].startswith("::error file=suites/smoke/test_c.py,line=1,title=not collected::")
    assert lines[1] == (
        "::error file=suites/smoke/test_b.py,line=7,"
        "title=test_b.py%3A%3ACase%3A%3Atest_bad[a%3A%3Ab]::assert 1 == 2"
    )
    bad = next(test for test in rich().tests if "test_bad" in test.test)
    many = replace(rich(), tests=tuple(replace(bad, test=f"a.py::t{n}") for n in range(50)))
    assert len(list(ci.workflow_commands(many, FOUND, ""))) == ci.ANNOTATED
    assert "30 more" in ci.markdown(many, FOUND)


def test_a_bad_state_without_a_failing_test_is_annotated_as_well():
    few = replace(rich(), tests=rich().tests[:30], collect_errors=())
    found = Fault(state=State.TOO_FEW_RAN, message="tests that ran: 30, must: 220")
    (line,) = ci.workflow_commands(few, found, "suites/smoke")
    assert line == (
        "::error title=smoke on gfx94X-dcgpu%2C CPython 3.12.1%3A too-few-ran"
        "::tests that ran: 30, must: 220"
    )
    passed = Fault(state=State.PASS, message="")
    assert list(ci.workflow_commands(few, passed, "suites/smoke")) == []


def test_a_failure_has_the_line_that_runs_it_again_its_process_and_what_ran_before():
    results = rich()
    bad = next(test for test in results.failures if "test_bad" in test.test)
    found = Trails(results, LAST)
    assert shlex.split(found.again(bad.test)) == [
        "rocwheel", "gate", "--suite=smoke", "--wheels=/my wheels",
        "--test=test_b.py::Case::test_bad[a::b]",
    ]  # fmt: skip
    first = found.place(bad.test, bad.attempts[0])
    assert (first.log, first.before) == ("001-gpu0.log", "test_b.py::test_flaky")
    assert first.number > 1
    html = gate_page.render(results, FOUND, {}, LAST).decode()
    assert 'href="logs/001-gpu0.log"' in html


def test_what_is_new_against_the_last_run_is_told():
    results = rich()
    changes = {test.test: Trails(results, LAST).change(test) for test in results.failures}
    assert changes["test_b.py::test_hang"] == "timed-out in the last run too"
    assert changes["test_b.py::test_crash"].startswith("new")
    html = gate_page.render(results, FOUND, {}, LAST).decode()
    assert "2 new failures, 1 known from it, 1 fixed" in html
    assert "There is no earlier run of this suite" in gate_page.render(results, FOUND, {}).decode()


def test_states_are_coloured_by_what_to_do_and_say_it():
    colours = {state: gate_page.colour(state) for state in State}
    assert colours[State.PASS] == "good"
    assert colours[State.NO_RUNNER] == colours[State.INFRA] == colours[State.NOT_RUN] == "idle"
    assert colours[State.FAIL] == colours[State.CRASH] == colours[State.TIMEOUT] == "bad"
    assert colours[State.TOO_FEW_RAN] == colours[State.FLAKY] == "warn"
    assert set(gate_page.TO_DO) == set(judge.PRECEDENCE) | {State.PASS}
    empty = replace(rich(), tests=(), faults=(), collect_errors=())
    html = gate_page.render(empty, Fault(state=State.NO_RUNNER, message="no GPU"), {}).decode()
    assert "Run it where there are GPUs of the family" in html
    assert '<span class="badge idle">no-runner' in html


def test_what_a_long_output_ends_with_stands_there_and_the_rest_is_folded():
    text = "".join(f"line {number}\n" for number in range(40))
    test = TestResult(
        test="t.py::t", outcome=Outcome.FAILED, attempts=(attempt(Outcome.FAILED, output=text),)
    )
    html = gate_page.render(replace(rich(), tests=(test,)), FOUND, {}).decode()
    assert "<pre>line 28\n" in html
    assert "All it printed" in html
