"""The published wheels: every operation on them, compared with what other tools say.

They are downloaded once into the user's cache folder; `ROCWHEEL_TEST_WHEELS` names another.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from support import published as downloaded
from support import wheels
from support.wheels import POLICY

from rocwheel.base.errors import WheelError
from rocwheel.wheel import rename
from rocwheel.wheel.diff import diff
from rocwheel.wheel.inspect import WheelReport, inspect
from rocwheel.wheel.rename import NewVersion, plan_retag, plan_reversion
from rocwheel.wheel.repair import apply, plan_repair
from rocwheel.wheel.verify import verify, verify_set
from rocwheel.wheel.verify.libraries import Expectation

pytestmark = [
    pytest.mark.integration,
    pytest.mark.soak,
    pytest.mark.slow,
    pytest.mark.xdist_group("published wheels"),
]

ROOT = Path(__file__).parents[2]
WHEELS = {
    "pjrt 0.9.1": "jax_rocm7_pjrt-0.9.1-py3-none-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
    "plugin 0.9.1": (
        "jax_rocm7_plugin-0.9.1-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"
    ),
    "jaxlib 0.9.1": "jaxlib-0.9.1-cp312-cp312-manylinux_2_27_x86_64.whl",
    "pjrt 0.12.0": "jax_rocm7_pjrt-0.12.0-py3-none-manylinux_2_27_x86_64.whl",
    "plugin 0.12.0": "jax_rocm7_plugin-0.12.0-cp312-cp312-manylinux_2_27_x86_64.whl",
    "plugin 0.10.2": "jax_rocm7_plugin-0.10.2-cp312-cp312-manylinux_2_27_x86_64.whl",
    "plugin 0.9.0": (
        "jax_rocm7_plugin-0.9.0-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"
    ),
}
GENERIC = frozenset({"gfx1030", "gfx11-generic", "gfx12-generic", "gfx9-4-generic", "gfx9-generic"})
ALL_27 = frozenset(
    f"gfx{name}"
    for name in (
        *("900", "906", "908", "90a", "942", "950", "1250", "1200", "1201"),
        *range(1010, 1013), *range(1030, 1037), *range(1100, 1104), *range(1150, 1154),
    )
)  # fmt: skip


@pytest.fixture(scope="session")
def published() -> dict[str, Path]:
    """Each wheel's path; what is missing is downloaded."""
    return {title: downloaded.wheel(name) for title, name in WHEELS.items()}


@pytest.fixture(scope="module")
def reports(published) -> dict[str, WheelReport]:
    """Every byte of every wheel, read once."""
    return {title: inspect(path, hashes=True) for title, path in published.items()}


@pytest.fixture(scope="module")
def made(published, tmp_path_factory, runner) -> dict[str, tuple[Path, Path]]:
    """Operation -> (the wheel before, the wheel after)."""
    import io
    import time

    from rocwheel.base.console import Console

    console = Console(io.StringIO(), clock=time.monotonic)
    out = tmp_path_factory.mktemp("made")
    found = {}
    for kind in ("pjrt", "plugin", "jaxlib"):
        path = published[f"{kind} 0.9.1"]
        (renamed,) = rename.apply(
            plan_retag([path], platform="manylinux_2_31_x86_64"), out / "retagged"
        )
        found[f"retag {kind}"] = (path, renamed)
        repaired = apply(
            plan_repair(path, policy=POLICY), out / "repaired", runner=runner, console=console
        )
        found[f"repair {kind}"] = (path, repaired.path)
    both = [published["pjrt 0.9.1"], published["plugin 0.9.1"], published["jaxlib 0.9.1"]]
    plans = plan_reversion(both, NewVersion(post=1))
    for plan, path in zip(plans, rename.apply(plans, out / "reversioned"), strict=True):
        kind = plan.before.project.rpartition("-")[2]
        found[f"reversion {kind}"] = (plan.source, path)
    return found


OPERATIONS = [
    f"{operation} {kind}"
    for operation in ("retag", "reversion", "repair")
    for kind in ("pjrt", "plugin", "jaxlib")
]


def test_what_the_notes_on_published_wheels_say_is_found(reports) -> None:
    pjrt, newest = reports["pjrt 0.9.1"], reports["pjrt 0.12.0"]
    assert (pjrt.size, newest.size) == (130_267_252, 133_415_872)
    assert frozenset(pjrt.gfx_targets) == GENERIC
    assert frozenset(newest.gfx_targets) == ALL_27
    assert [len(report.elf[0].bundles) for report in (pjrt, newest)] == [38, 45]
    assert sum(bundle.unpacked for bundle in newest.elf[0].bundles) > 2_400_000_000
    assert pjrt.provenance["jax"] == "58cb6e556c996bf0361bca9e64890a551e513280"
    assert pjrt.provenance["ROCm/xla"] == "fa5a92b33cfa726ce40ffd73edc69fbca5bf246b"
    assert newest.provenance["rocm"] == "7.14.0"
    assert newest.elf[0].runpath == POLICY.runpath.expanded("pip")
    assert pjrt.elf[0].runpath == POLICY.runpath.expanded("short")
    assert pjrt.elf[0].exports == ("GetPjrtApi", "__start_pb_defaults", "__stop_pb_defaults")
    assert pjrt.elf[0].highest("GLIBC") == (2, 28)
    assert newest.elf[0].highest("GLIBC") == (2, 27)
    assert {bundle.compression for bundle in reports["plugin 0.9.0"].elf[1].bundles} == {""}
    for report in reports.values():
        assert report.sha256 == hashlib.sha256(report.path.read_bytes()).hexdigest()


def test_verify_says_what_is_wrong_with_each(reports) -> None:
    def rules(title: str, **expected) -> list[str]:
        meant = Expectation(**expected)
        found = verify(reports[title], policy=POLICY, expected=meant)
        return [item.rule for item in found]

    assert rules("pjrt 0.12.0", gfx_targets=ALL_27) == ["version.module"]  # it says None
    assert rules("plugin 0.12.0", gfx_targets=ALL_27) == []
    assert rules("jaxlib 0.9.1") == []
    assert rules("plugin 0.9.1", gfx_targets=GENERIC) == ["tag.single"]
    undated = ["tag.manylinux", "tag.single", "version.module"]
    assert rules("pjrt 0.9.1", gfx_targets=GENERIC) == undated
    assert rules("plugin 0.10.2") == ["elf.runpath-leak"] * 8
    assert rules("plugin 0.9.0") == ["record.hash", "pin.sibling", "tag.single"]
    assert "gfx.targets" in rules("pjrt 0.12.0", gfx_targets=ALL_27 - {"gfx1250"})
    assert "gfx.targets" in rules("pjrt 0.12.0", gfx_targets=ALL_27 | {"gfx1251"})


def test_a_broken_release_is_neither_repaired_nor_given_another_version(
    published, tmp_path, runner, console
) -> None:
    path = published["plugin 0.9.0"]
    with pytest.raises(WheelError, match="METADATA: is sha256="):
        apply(plan_repair(path, policy=POLICY), tmp_path / "out", runner=runner, console=console)
    with pytest.raises(WheelError, match="METADATA: differs from RECORD"):
        plan_reversion([path], NewVersion(post=1))
    assert not (tmp_path / "out").exists()


def test_a_release_that_looks_into_a_build_folder_is_repaired(
    published, tmp_path, runner, console
) -> None:
    """RUNPATH of its eight libraries becomes the template; nothing else of them changes."""
    path = published["plugin 0.10.2"]
    result = apply(plan_repair(path, policy=POLICY), tmp_path, runner=runner, console=console)
    assert len(result.patched) == 8
    after = inspect(result.path, hashes=True)
    assert verify(after, policy=POLICY) == ()
    assert {item.runpath for item in after.elf} == {POLICY.runpath.expanded("pip")}
    found = [item for item in diff(path, result.path) if item.member]
    assert {(item.member, item.aspect) for item in found} == {
        *((name, aspect) for name in result.patched for aspect in ("RUNPATH", "bytes")),
        ("*.dist-info/RECORD", "bytes"),
    }
    agree_with_auditwheel(after, tmp_path)


@pytest.mark.parametrize("title", WHEELS)
def test_symbol_versions_agree_with_auditwheel(title, reports, tmp_path) -> None:
    agree_with_auditwheel(reports[title], tmp_path)


def agree_with_auditwheel(report: WheelReport, nowhere: Path) -> None:
    """With an empty library path auditwheel sees the wheel and nothing of this machine."""
    shown = subprocess.run(
        [
            sys.executable, "-m", "auditwheel", "show", "--json", "--ldpaths", nowhere,
            report.path,
        ],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    document = json.loads(shown)
    ours: dict[str, set[str]] = {}
    inside = {item.soname for item in report.elf if item.soname}
    for item in report.elf:
        for library, names in item.versions.items():
            if library not in inside and not library.startswith("ld-linux"):
                ours.setdefault(library, set()).update(names)
    theirs = {
        library: set(names)
        for library, names in document["versioned_symbols"].items()
        if not library.startswith("ld-linux")
    }
    assert ours == theirs
    best = POLICY.best(report.elf)
    assert f"manylinux_{best}_x86_64" == document["sym_tag"]


@pytest.mark.parametrize("title", WHEELS)
def test_elf_facts_agree_with_pyelftools(title, published, reports, tmp_path) -> None:
    by_name = {item.path: item for item in reports[title].elf}
    with zipfile.ZipFile(published[title]) as archive:
        objects = {name for name in archive.namelist() if name.endswith(".so")}
        assert objects == by_name.keys()
        for name in objects:
            path = Path(archive.extract(name, tmp_path))
            with path.open("rb") as file:
                _same_facts(ELFFile(file), by_name[name])
            path.unlink()


def _same_facts(theirs: ELFFile, ours) -> None:
    dynamic = theirs.get_section_by_name(".dynamic")
    tags: dict[str, list[str]] = {}
    for tag in dynamic.iter_tags():
        for kind in ("needed", "soname", "runpath", "rpath"):
            if hasattr(tag, kind):
                tags.setdefault(kind, []).append(getattr(tag, kind))
    assert list(ours.needed) == tags.get("needed", [])
    assert ours.soname == "".join(tags.get("soname", []))
    assert ":".join(ours.runpath) == "".join(tags.get("runpath", []))
    assert ours.rpath == ()
    versions = {
        need.name: sorted(aux.name for aux in auxiliaries)
        for section in theirs.iter_sections()
        if isinstance(section, GNUVerNeedSection)
        for need, auxiliaries in section.iter_versions()
    }
    assert {key: sorted(names) for key, names in ours.versions.items()} == versions
    symbols = [
        symbol
        for symbol in theirs.get_section_by_name(".dynsym").iter_symbols()
        if symbol.name and symbol["st_info"]["bind"] in ("STB_GLOBAL", "STB_WEAK", "STB_LOOS")
    ]
    assert set(ours.exports) == {
        symbol.name
        for symbol in symbols
        if symbol["st_shndx"] != "SHN_UNDEF"
        and symbol["st_other"]["visibility"] in ("STV_DEFAULT", "STV_PROTECTED")
    }
    segment = theirs.get_section_by_name(".hipFatBinSegment")
    assert len(ours.bundles) == (segment["sh_size"] // 24 if segment else 0)


def stem(path: Path) -> str:
    return "-".join(path.name.split("-")[:2])


CHANGED = {
    "retag": {"WHEEL", "RECORD"},
    "reversion": {"METADATA", "RECORD", "version.py"},
    "repair": {"WHEEL", "RECORD", "version.py"},
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_only_the_intended_members_differ(operation: str, made) -> None:
    """Compared with Python's zipfile, member by member, headers and compressed bytes."""
    before, after = made[operation]
    changed = set()
    with (
        zipfile.ZipFile(before) as old, zipfile.ZipFile(after) as new,
        before.open("rb") as old_file, after.open("rb") as new_file,
    ):  # fmt: skip
        assert old.comment == new.comment
        kept = [info for info in new.infolist() if not info.filename.endswith("rocwheel.cdx.json")]
        assert (len(kept) < len(new.infolist())) == operation.startswith("repair")
        pairs = list(zip(old.infolist(), kept, strict=True))
        for first, second in pairs:
            assert second.filename == first.filename.replace(stem(before), stem(after))
            for field in (
                "date_time", "compress_type", "external_attr", "internal_attr", "create_system",
                "create_version", "extract_version", "flag_bits", "extra", "comment", "reserved",
            ):  # fmt: skip
                assert getattr(first, field) == getattr(second, field), (first.filename, field)
            if first.CRC == second.CRC and first.file_size == second.file_size:
                assert _raw(old_file, first) == _raw(new_file, second)
            else:
                changed.add(first.filename.rpartition("/")[2])
    assert changed <= CHANGED[operation.split(maxsplit=1)[0]]
    if operation.startswith("reversion"):
        assert "version.py" in changed  # also where it says None, as pjrt's does
    if operation == "repair jaxlib":
        assert changed == {"RECORD"}


def _raw(file, info: zipfile.ZipInfo) -> str:
    file.seek(info.header_offset + 26)
    lengths = file.read(4)
    skipped = int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
    file.seek(info.header_offset + 30 + skipped)
    digest = hashlib.sha256()
    left = info.compress_size
    while left:
        piece = file.read(min(left, 1 << 20))
        digest.update(piece)
        left -= len(piece)
    return digest.hexdigest()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_result_is_a_wheel_for_every_other_tool(operation: str, made, tmp_path) -> None:
    """`wheel unpack` compares every file with RECORD."""
    _, path = made[operation]
    for arguments in (
        ("zipfile", "-t", path),
        ("wheel", "unpack", "--dest", tmp_path, path),
        ("twine", "check", path),
        ("check_wheel_contents", path),
    ):
        done = subprocess.run(
            [sys.executable, "-m", *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_repaired_set_may_ship(made) -> None:
    paths = [made[f"repair {kind}"][1] for kind in ("pjrt", "plugin", "jaxlib")]
    assert [path.name.rpartition("-")[2] for path in paths] == [
        "manylinux_2_28_x86_64.whl", "manylinux_2_27_x86_64.whl", "manylinux_2_27_x86_64.whl",
    ]  # fmt: skip
    assert all(not found for found in verify_set(paths, policy=POLICY, whole=True).values())


def test_memory_stays_flat_however_large_the_wheel_is(tmp_path, published) -> None:
    """Peak memory of whole processes on 130 MB and on 1.1 GiB of another kind of content."""
    path = wheels.write_large(tmp_path, stored=700, deflated=400)
    assert path.stat().st_size > 700 << 20
    for command, limit in (
        (("inspect",), 64), (("verify",), 64), (("retag", "--platform-tag", "linux_x86_64"), 40),
        (("repair",), 80),
    ):  # fmt: skip
        peaks = []
        for number, source in enumerate((published["pjrt 0.9.1"], path)):
            arguments = [*command[:1], str(source), *command[1:]]
            if command[0] in ("retag", "repair"):
                arguments += ["--output", str(tmp_path / f"{command[0]}{number}")]
            peaks.append(peak_memory(arguments))
        assert max(peaks) < limit << 10, (command, peaks)
        assert peaks[1] < peaks[0] * 1.25 + 4096, (command, peaks)
    assert len(list(tmp_path.glob("*/*.whl"))) == 4


PEAK = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(os.wait4(process.pid, 0)[2].ru_maxrss)
"""


def peak_memory(arguments: list[str]) -> int:
    """Peak resident memory in KiB of one `wheel` command.

    Started by a small process: a child's peak begins with what its parent had.
    """
    command = [sys.executable, str(ROOT / "build" / "ci_build"), "wheel", *arguments]
    done = subprocess.run(
        [sys.executable, "-S", "-c", PEAK, *command], check=True, capture_output=True, text=True
    )
    return int(done.stdout)
