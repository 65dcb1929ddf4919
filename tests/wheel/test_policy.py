"""The policy file: every mistake is named with its line; the real file says what it should."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import yaml
from msgspec.structs import asdict
from packaging.version import Version
from support.wheels import make_elf

from rocwheel.base import yaml_file
from rocwheel.base.errors import ConfigError
from rocwheel.base.versions import WheelKind
from rocwheel.wheel import elf, wheel_policy

FILE = Path(__file__).parents[2] / "ci" / "wheel_policy.yaml"
TEXT = FILE.read_text(encoding="utf-8")
POLICY = yaml_file.read(FILE, wheel_policy.WheelPolicy)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema: 1", "schema: 2", "schema: this rocwheel reads schema 1"),
        ('oldest: "2_27"', 'oldest: "2_26x"', "unknown value"),
        ('"2_17":', '"2.17":', "not a manylinux level"),
        ('GLIBC: "2.17"', 'GLIBC: "two"', "Invalid version"),
        ('{GLIBC: "2.17", ', "{", "'GLIBC' is missing"),
        ("platform_libraries:", "platform_library:", "unknown key"),
        ("_{gpu}/lib", "_{gpus}/lib", "no such list"),
        ("templates: [pip]}", "templates: [pipp]}", "unknown value 'pipp'"),
        ("templates: [pip]}", "templates: []}", "no template"),
        ('jax: ">=0.10.2"', 'jax: "0.10"', "Invalid specifier"),
        ("size: 110_000_000", "size: large", "expected a whole number"),
        ("gpu_code: false", "gpu_code: maybe", "expected true or false"),
        ("  pjrt:\n", "  prjt:\n", "unknown value 'prjt'"),
        ("  pjrt:\n", "  plugin:\n", "given twice"),
    ],
)
def test_a_mistake_is_named_with_its_line(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in TEXT
    file = tmp_path / "wheel_policy.yaml"
    file.write_text(TEXT.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as error:
        yaml_file.read(file, wheel_policy.WheelPolicy)
    assert str(error.value).startswith(f"{file}:")


def test_the_templates_are_the_published_lists() -> None:
    assert len(POLICY.runpath.expanded("pip")) == 79
    assert POLICY.runpath.expanded("pip")[-1] == "/opt/rocm/lib"
    assert len(set(POLICY.runpath.expanded("pip"))) == 79
    assert POLICY.runpath.expanded("short") == (
        "$ORIGIN/../rocm/lib",
        "$ORIGIN/../../rocm/lib",
        "/opt/rocm/lib",
    )


@pytest.mark.parametrize(
    ("version", "first", "count"),
    [
        ("0.8.0", "short", 1), ("0.9.1", "short", 3), ("0.9.1.post6", "short", 3),
        ("0.10.1+rocm7.10.0a20251120", "short", 3), ("0.10.2", "pip", 1), ("0.10.2rc1", "pip", 1),
        ("0.12.0+devrocm7.10.0.dev0efed3c", "pip", 1), ("1.0", "pip", 1),
    ],
)  # fmt: skip
def test_every_jax_version_has_a_template(version: str, first: str, count: int) -> None:
    found = POLICY.runpaths(Version(version))
    assert found[0] == POLICY.runpath.expanded(first)
    assert len(found) == count


def facts(*versions: str, library: str = "libc.so.6") -> elf.ElfFacts:
    image = make_elf(versions={library: versions})
    return elf.scan("x.so", len(image), lambda: [image])


@pytest.mark.parametrize(
    ("versions", "level"),
    [
        (("GLIBC_2.2.5",), "2_27"), (("GLIBC_2.27",), "2_27"), (("GLIBC_2.28",), "2_28"),
        (("GLIBC_2.29",), "2_31"), (("GLIBCXX_3.4.22", "GLIBC_2.17"), "2_27"),
        (("GLIBCXX_3.4.25",), "2_31"), (("CXXABI_1.3.13",), "2_34"), (("GCC_12.0.0",), "2_35"),
        (("GLIBC_ABI_DT_RELR",), "2_39"), ((), "2_27"),
    ],
)  # fmt: skip
def test_the_oldest_level_that_holds_is_chosen(versions, level: str) -> None:
    best = POLICY.best([facts("GLIBC_2.2.5"), facts(*versions)])
    assert best == level


def test_symbols_of_the_future_have_no_level() -> None:
    assert POLICY.best([facts("GLIBC_2.99")]) == ""
    assert POLICY.best([facts("GLIBC_2.3.99")]) == ""
    assert POLICY.best([facts("LIBNUMA_1.2")]) == ""
    assert POLICY.best([facts("LIBNUMA_1.2", library="libnuma.so.1")])
    assert POLICY.best([facts("GLIBC_2.17", "GLIBC_PRIVATE")]) == ""
    assert POLICY.level("linux_x86_64") == ""
    assert POLICY.level("manylinux_2_99_x86_64") == ""


def test_levels_grow_and_every_kind_is_described() -> None:
    levels = [asdict(POLICY.manylinux[level]) for level in POLICY.levels]
    for older, newer in itertools.pairwise(levels):
        assert all(older[key] <= newer[key] for key in older)
    assert set(POLICY.kinds) == set(WheelKind)
    assert "libamdhip64.so.7" in POLICY.rocm_sonames
    assert not POLICY.rocm_sonames & POLICY.platform_libraries


def test_levels_are_known_by_their_old_names_too() -> None:
    for old, level in (("1", "2_5"), ("2010", "2_12"), ("2014", "2_17")):
        assert POLICY.level(f"manylinux{old}_x86_64") == level
    assert POLICY.level("manylinux2020_x86_64") == ""


def test_a_pjrt_must_admit_every_cpython_of_its_pin() -> None:
    pins = yaml.safe_load(FILE.with_name("pins.yaml").read_text())["pins"]
    assert len(pins) > 5
    for version, pin in pins.items():
        minors = {each.partition("-")[0].removeprefix("3.") for each in pin["pythons"]}
        required = POLICY.required(WheelKind.PJRT, Version(pin.get("version", version)))
        assert {*required.pythons} == minors, version
