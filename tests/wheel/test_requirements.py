"""Requirements as strangers write them: a value or none, never a traceback."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rocwheel.wheel import requirements

VARIABLES = (
    "extra", "extras", "dependency_groups", "python_version", "python_full_version", "os_name",
    "sys_platform", "platform_release", "platform_version", "implementation_version",
    "platform_machine", '"3"', '"a"', '""', '"3.12.*"', '"99999999999999999999"', "'1+x'",
)  # fmt: skip
OPERATORS = ("==", "===", "!=", "<", "<=", ">", ">=", "~=", "in", "not in", "not  in")
compared = st.builds(
    "{} {} {}".format,
    st.sampled_from(VARIABLES), st.sampled_from(OPERATORS), st.sampled_from(VARIABLES),
)  # fmt: skip
markers = st.recursive(
    compared,
    lambda inner: st.builds(
        "({} {} {})".format, inner, st.sampled_from(("and", "or")), inner
    ),
    max_leaves=4,
)  # fmt: skip


@given(markers)
@example('"a" in extras')
@example('"a" in dependency_groups')
@example('"3" > "4"')
@example('python_version > "3" or "a" in extras')
@settings(max_examples=400, deadline=None)
def test_a_marker_has_a_value_for_every_python_or_the_requirement_is_none(marker: str) -> None:
    text = f"x; {marker}"
    found = requirements.requirement(text)
    if found is not None:
        for minor in ("9", "12", "14"):
            assert requirements.applies(found, python_minor=minor) in (True, False)


@pytest.mark.parametrize("marker", ['"a" in extras', '"a" in dependency_groups', '"3" > "4"'])
def test_a_marker_without_a_value_makes_no_requirement(marker: str) -> None:
    assert requirements.requirement(f"x; {marker}") is None


def test_more_brackets_than_packaging_has_time_for_make_no_requirement() -> None:
    marker = "(" * 17 + "python_version > '3'" + ")" * 17
    assert requirements.requirement(f"x; {marker}") is None
    assert requirements.requirement(f"x; {marker[1:-1]}") is not None
