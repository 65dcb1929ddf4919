"""Names and texts of a wheel, read and edited without touching more than asked."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from rocwheel.base.errors import WheelError
from rocwheel.wheel import metadata
from rocwheel.wheel.metadata import (
    KeyValueText,
    RecordRow,
    WheelName,
    dist_info,
    edit_record,
    normal_name,
)

python = st.sampled_from(("py3", "cp312", "cp311.cp312", "py2.py3"))
abi = st.sampled_from(("none", "cp312", "cp314t", "abi3"))
platform = st.sampled_from(
    ("any", "linux_x86_64", "manylinux_2_27_x86_64.manylinux_2_28_x86_64", "manylinux2014_x86_64")
)
version = st.sampled_from(
    (
        "1.0",
        "0.9.1.post1",
        "0.9.1+rocm7.10.0a20251120",
        "1!2.0rc1.dev3",
        "1.0+devrocm7.10.0.dev0efed3c",
    )
)
project = st.from_regex(r"[A-Za-z0-9](_?[A-Za-z0-9.]){0,8}", fullmatch=True).filter(
    lambda text: text[-1] != "."
)


@given(
    name=st.builds(
        "{}-{}{}-{}-{}-{}.whl".format,
        project, version, st.sampled_from(("", "-1", "-2abc")), python, abi, platform,
    )
)  # fmt: skip
@example("jax_rocm7_pjrt-0.9.1-py3-none-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl")
def test_names_are_understood_as_packaging_understands_them(name: str) -> None:
    theirs, their_version, build, tags = parse_wheel_filename(name)
    ours = WheelName.parse(name)
    assert ours.project == theirs
    assert ours.version == their_version
    assert bool(ours.build) == bool(build)
    assert set(ours.tags) == {str(tag) for tag in tags}
    assert str(ours) == name


@pytest.mark.parametrize(
    "name",
    [
        "demo.whl", "demo-1.0.whl", "demo-1.0-py3-none.whl", "demo-1.0-py3-none-any.zip", "",
        "demo-one-py3-none-any.whl", "-1.0-py3-none-any.whl", "de__mo-1.0-x1-py3-none-any.whl",
        "demo-1.0-1-2-py3-none-any.whl", "démo-1.0-py3-none-any.whl", "demo-1.0-py3-none-any.whl\n",
    ],
)  # fmt: skip
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(WheelError, match=r"name|version"):
        WheelName.parse(name)
    if name.isascii():
        with pytest.raises(InvalidWheelFilename):
            parse_wheel_filename(name)


def test_names_are_normalised_as_the_index_does() -> None:
    assert normal_name("Jax_ROCm7.-plugin") == "jax-rocm7-plugin"


TEXT = (
    b"Metadata-Version: 2.4\r\nName: demo\nVersion: 1.0\nSummary: a\n  long one\x0c\nrequires-dist: x\n"
    b"Requires-Dist: y==1.0 ; extra == 'z'\n\nVersion: in the body\n"
)


def test_editing_one_value_keeps_every_other_byte() -> None:
    headers = KeyValueText(TEXT, name="METADATA")
    assert headers.to_bytes() == TEXT
    assert headers.get("version") == "1.0"
    assert headers.all("Requires-Dist") == ("x", "y==1.0 ; extra == 'z'")
    headers.replace("Version", {"1.0": "2.0"})
    headers.replace("Requires-Dist", {"y==1.0 ; extra == 'z'": "y==2.0 ; extra == 'z'"})
    assert headers.to_bytes() == TEXT.replace(b"Version: 1.0", b"Version: 2.0").replace(
        b"y==1.0", b"y==2.0"
    )


def test_all_values_of_a_key_are_replaced_where_the_first_stood() -> None:
    wheel = b"Wheel-Version: 1.0\nTag: a-b-c\nBuild: 1\nTag: d-e-f\n\n"
    headers = KeyValueText(wheel, name="WHEEL")
    headers.replace_all("Tag", ["x-y-z"])
    assert headers.to_bytes() == b"Wheel-Version: 1.0\nTag: x-y-z\nBuild: 1\n\n"


def test_a_key_that_must_be_single_is_refused_when_given_twice() -> None:
    with pytest.raises(WheelError, match="Name is given twice"):
        KeyValueText(b"Name: a\nName: b\n", name="METADATA").get("Name")


RECORD = b'a/b.py,sha256=abc,3\r\n"a/c,d.py",sha256=def,4\n,,\nx.dist-info/RECORD,,\n'


def test_record_keeps_the_lines_that_do_not_change() -> None:
    edited = edit_record(RECORD, {"a/c,d.py": RecordRow("a/c,d.py", "sha256=new", "9")})
    assert edited == RECORD.replace(b"sha256=def,4", b"sha256=new,9")
    assert edit_record(RECORD, {}) == RECORD


def test_there_is_one_dist_info_folder() -> None:
    assert dist_info(["a.py", "x-1.dist-info/RECORD"], path="x") == "x-1.dist-info"
    for names in (["a.py"], ["x-1.dist-info/A", "y-1.dist-info/A"], ["a/x-1.dist-info/A"]):
        with pytest.raises(WheelError, match="one dist-info folder"):
            dist_info(names, path="x")


@pytest.mark.parametrize(
    "text",
    [
        "numpy==" + "1" * 5000, "numpy; " + "(" * 1500 + "os_name == 'x'" + ")" * 1500,
        "numpy; python_version ~= 'x'", "numpy" + " " * 5000, "numpy; os_name", "", "numpy >> 1",
    ],
)  # fmt: skip
def test_a_requirement_that_no_installer_reads_is_none(text: str) -> None:
    assert metadata.requirement(text) is None


def test_a_version_that_no_installer_reads_is_none() -> None:
    assert metadata.version("1" * 4000) is not None
    assert metadata.version("1" * 5000) is None
    assert metadata.version("one") is None
    assert metadata.specifiers(">=3." + "1" * 4400) is None
    assert metadata.specifiers(",".join(f"!=1.{n}" for n in range(5000))) is None
    with pytest.raises(WheelError, match="its version is not PEP 440"):
        WheelName.parse(f"demo-{'1' * 5000}-py3-none-any.whl")


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
    found = metadata.requirement(text)
    if found is not None:
        for minor in ("9", "12", "14"):
            assert metadata.applies(found, python_minor=minor) in (True, False)


def test_more_brackets_than_packaging_has_time_for_make_no_requirement() -> None:
    marker = "(" * 17 + "python_version > '3'" + ")" * 17
    assert metadata.requirement(f"x; {marker}") is None
    assert metadata.requirement(f"x; {marker[1:-1]}") is not None
