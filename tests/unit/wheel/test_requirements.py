"""Requirements as strangers write them: a value or none, never a traceback; as pip and uv take."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packaging.version import Version

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
    requirements.installable(text)
    if found is not None:
        for minor in ("9", "12", "14"):
            assert requirements.applies(found, python_minor=minor) in (True, False)


@pytest.mark.parametrize("marker", ['"a" in extras', '"a" in dependency_groups', '"3" > "4"'])
def test_a_marker_without_a_value_makes_no_requirement(marker: str) -> None:
    assert requirements.requirement(f"x; {marker}") is None


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "x[a,b-c]>=1.0,<2",
        "x==1.*",
        "x===1.0",
        "x @ https://example.com/x-1-py3-none-any.whl",
        "x @ https://example.com:8443/x.tar.gz#sha256=00",
        "x @ file:///wheels/x-1-py3-none-any.whl ; python_version > '3'",
        "x @ git+https://example.com/a/b@main",
        'x; python_version not in "3.8" and os_name == "not  in ==="',
        "x==1.0+18446744073709551616",
        "x>=18446744073709551614",
    ],
)
def test_what_pip_and_uv_take(text: str) -> None:
    assert requirements.installable(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "x_",
        "x[a_]",
        "x===odd",
        "x @ ./foo.whl",
        "x @ foo.whl",
        "x @ ${HOME}/foo-1.whl",
        "x @ https://example.com:99999/x-1-py3-none-any.whl",
        "x @ https://example.com:abc/x-1-py3-none-any.whl",
        "x @ https:///x-1-py3-none-any.whl",
        "x @ https://[::1/x-1-py3-none-any.whl",
        "x @ https://example.com/x",
        "x @ hg+https://example.com/x",
        'x; python_version not  in "3.1"',
        'x; python_version === "foo"',
        "x>=18446744073709551616",
        "x==1.dev18446744073709551616",
        "x==18446744073709551616.*",
    ],
)
def test_what_pip_or_uv_refuse(text: str) -> None:
    assert requirements.installable(text) is None


@pytest.mark.parametrize("shape", ["{}", "1.{}", "{}!1", "1rc{}", "1.post{}", "1.dev{}"])
def test_numbers_of_a_version_have_64_bits(shape: str) -> None:
    assert requirements.fits(Version(shape.format(2**64 - 2)))
    assert not requirements.fits(Version(shape.format(2**64 - 1)))
