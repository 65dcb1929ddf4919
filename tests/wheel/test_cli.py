"""The commands of `wheel`: what they print, how they end, that a dry run writes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import wheels
from support.wheels import SHORT_RUNPATH, File, make_bundle, make_elf

import amdgpu_family_matrix as matrix
from rocwheel.cli import main
from rocwheel.wheel import show
from rocwheel.wheel.verify.rules import RULES, Finding, Severity

OUT = "out"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    return wheels.plugin().write(tmp_path).name


@pytest.fixture
def pjrt(tmp_path: Path) -> str:
    return wheels.pjrt().write(tmp_path).name


def run(*arguments: str, status: int = 0) -> None:
    assert main(["wheel", *arguments]) == status


def test_inspect_shows_what_a_person_asks_first(plugin: str, capsys) -> None:
    run("inspect", plugin)
    out = capsys.readouterr().out
    assert "project        jax-rocm7-plugin 0.9.1" in out
    assert "requires       jax-rocm7-pjrt==0.9.1" in out
    head, newer, older = [line.split() for line in out.splitlines() if "gfx" in line]
    assert head == ["gfx", "target", "code", "objects", "size", "unpacked", "family"]
    assert newer == ["gfx1100", "1", "1.3", "KiB", "gfx110X-all"]
    assert older == ["gfx942", "1", "1.3", "KiB", "gfx94X-dcgpu"]
    lines = out.splitlines()
    first = lines[next(n for n, line in enumerate(lines) if line.endswith("  member")) + 1]
    assert first.endswith("  jax_rocm7_plugin/_linalg.so")  # the largest first
    assert "    symbols   GLIBC 2.17" in lines
    assert "    NEEDED    libhipblas.so.3 libamdhip64.so.7 libc.so.6" in lines
    assert "    RUNPATH   $ORIGIN/../rocm/lib $ORIGIN/../../rocm/lib /opt/rocm/lib" in lines
    assert "    GPU code  1 bundle for 2 targets" in lines


def test_a_target_that_one_bundle_of_several_lacks_is_none_of_the_wheel(
    tmp_path: Path, capsys
) -> None:
    """R44: a library whose other bundles have the target cannot run on it."""
    made = wheels.plugin()
    bundles = (make_bundle(("gfx1100", "gfx942")), make_bundle(("gfx1100",)))
    content = make_elf(
        needed=("libamdhip64.so.7", "libc.so.6"), runpath=":".join(SHORT_RUNPATH),
        exports=("PyInit__linalg",), bundles=bundles,
    )  # fmt: skip
    files = {**made.files, "jax_rocm7_plugin/_linalg.so": File(content, mode=0o755)}
    name = made.but(files=files).write(tmp_path).name
    run("inspect", "--json", name)
    (report,) = json.loads(capsys.readouterr().out)["wheels"]
    (library,) = [item for item in report["elf"] if item["path"].endswith("/_linalg.so")]
    assert library["gfx_targets"] == report["gfx_targets"] == ["gfx1100"]
    assert report["gpu_code"]["gfx942"]["objects"] < report["gpu_code"]["gfx1100"]["objects"]
    run("inspect", name)
    assert "    GPU code  2 bundles for 1 target; only some have gfx942" in capsys.readouterr().out
    for asked in ((), ("--gfx-targets", "gfx942,gfx1100")):
        run("verify", name, *asked, status=6)
        assert "lacks gfx942" in capsys.readouterr().out


def test_inspect_fits_a_narrow_terminal(pjrt: str, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    made = wheels.pjrt()
    needed = tuple(f"librocm_library_number_{number}.so.1" for number in range(30))
    long = ":".join(f"$ORIGIN/../folder-{number}" for number in range(79))
    content = make_elf(needed=needed, runpath=long, exports=("GetPjrtApi",), soname="libx.so.1")
    files = {**made.files, "jax_plugins/xla_rocm7/xla_rocm_plugin.so": File(content)}
    path = made.but(files=files, version="0.9.2").write(tmp_path)
    run("inspect", path.name)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[1:])) <= 82  # SHA-256 is as long as it is
    assert "    SONAME    libx.so.1" in lines
    assert "    RUNPATH   79 entries, first $ORIGIN/../folder-0" in lines
    assert "    exports   GetPjrtApi, the PJRT API" in lines
    assert " ".join(lines).count("librocm_library_number_") == len(needed)


def test_verify_names_the_family_that_a_wheel_lacks_a_target_of(plugin: str, capsys) -> None:
    run("verify", plugin, "--family=gfx94X-dcgpu")
    assert "has besides gfx1100" in capsys.readouterr().out
    run("verify", plugin, "--family=gfx94X-dcgpu,gfx110X-all", status=6)
    run("verify", plugin, "--family=gfx94X-dcgpu", "--family=gfx110X-all", status=6)
    said = capsys.readouterr().out
    assert said.count("lacks gfx1101, gfx1102, gfx1103 of gfx110X-all") == said.count("lacks") == 2
    run("verify", plugin, "--family=gfx90a,gfx90c", status=6)
    assert (
        "bundle at 0x2000 lacks gfx90a of gfx90a; gfx90c of gfx90c; has besides"
        in capsys.readouterr().out
    )
    run("verify", plugin, "--family=gfx90a", "--gfx-targets=gfx942", status=3)
    assert "--gfx-targets: lacks gfx90a of gfx90a" in capsys.readouterr().err
    run("verify", plugin, "--family=gfx94x", status=3)
    assert "did you mean gfx94X-dcgpu?" in capsys.readouterr().err


def test_a_plugin_beside_another_rocms_pjrt_may_not_ship(pjrt: str, tmp_path, capsys) -> None:
    other = wheels.plugin(number="10").write(tmp_path).name
    run("verify", other, pjrt, "--json", status=6)
    said = json.loads(capsys.readouterr().out)
    assert any("the set has jax-rocm7-pjrt" in item["message"] for item in said["wheels"][other])
    assert said["not_looked_at"] == ["whether modules import and the plugin starts (--runs)"]


@pytest.mark.parametrize(("left_out", "status"), [((), 0), (("gfx90c",), 0), (("gfx900",), 6)])
def test_a_wheel_for_all_families_may_lack_what_amds_own_leave_out(
    left_out, status, tmp_path: Path
) -> None:
    every = [each for item in matrix.FAMILIES.values() for each in item.targets]
    library = make_elf(
        needed=("libamdhip64.so.7", "libc.so.6"), runpath=":".join(SHORT_RUNPATH),
        exports=("PyInit__linalg",), imports=("hipMalloc",),
        bundles=(make_bundle(tuple(each for each in every if each not in left_out)),),
    )  # fmt: skip
    made = wheels.plugin()
    path = "jax_rocm7_plugin/_linalg.so"
    made = made.but(files={**made.files, path: File(library, mode=0o755)})
    run("verify", made.write(tmp_path).name, "--family=all", status=status)


def test_inspect_gives_everything_as_one_document(plugin: str, pjrt: str, capsys) -> None:
    run("inspect", "--json", plugin, pjrt)
    first, second = json.loads(capsys.readouterr().out)["wheels"]
    assert first["filename"] == plugin
    assert first["elf"][0]["needed"] == ["libhipblas.so.3", "libamdhip64.so.7", "libc.so.6"]
    assert first["elf"][0]["highest"]["GLIBC"] == "2.17"
    assert first["elf"][0]["bundles"][0]["targets"] == ["gfx942", "gfx1100"]
    assert first["gpu_code"] == {
        "gfx1100": {"objects": 1, "bytes": 1304, "family": "gfx110X-all"},
        "gfx942": {"objects": 1, "bytes": 1304, "family": "gfx94X-dcgpu"},
    }
    assert first["provenance"]["git"] == "a1" * 20
    assert second["elf"][0]["exports_pjrt"]
    assert second["entry_points"] == {"jax_plugins": ["xla_rocm7 = jax_plugins.xla_rocm7"]}
    assert first["compilers"] is None
    run("inspect", "--json", "--thorough", plugin)
    (whole,) = json.loads(capsys.readouterr().out)["wheels"]
    assert whole["compilers"] == ["AMD clang version 22.0.0git (roc 1)"]


def test_inspect_shows_what_a_wheelhouse_says_of_its_wheel(plugin, pjrt, tmp_path, capsys) -> None:
    made = wheels.manifest(tmp_path / plugin, tmp_path / pjrt)
    (tmp_path / "manifest.json").write_bytes(made.to_bytes())
    run("inspect", "--json", plugin)
    (item,) = json.loads(capsys.readouterr().out)["wheels"]
    assert item["provenance"]["manifest"] == made.sha256
    assert item["provenance"]["jax"] == "a" * 40
    assert item["provenance"]["ROCm"].startswith("7.10.0, SHA-256 0000")
    run("verify", "-q", ".")
    other = wheels.plugin(version="0.9.2").write(tmp_path)
    capsys.readouterr()
    run("inspect", "--json", other.name)
    (item,) = json.loads(capsys.readouterr().out)["wheels"]
    assert "manifest" not in item["provenance"]


def test_of_many_findings_of_a_rule_the_first_are_shown_and_the_others_counted() -> None:
    def finding(rule: str, number: int) -> Finding:
        return Finding(rule, Severity.ERROR, f"member {number}", "mend it")

    findings = (*(finding("names", n) for n in range(60_000)), finding("tags", 0))
    lines = list(show.verdict_lines({"a.whl": findings}))
    assert lines[0] == "a.whl: may not ship, 60001 errors"
    assert lines[1] == "  error names: member 0"
    assert sum(line.startswith("  error names: ") for line in lines) == show.MANY == 50
    assert "  error tags: member 0" in lines
    assert "  names: and 59950 more, which --json lists" in lines
    assert lines.count("    mend it") == 2
    assert len(show.verdict_document({"a.whl": findings})["wheels"]["a.whl"]) == 60_001


def test_verify_says_may_ship_and_ends_well(plugin: str, pjrt: str, capsys) -> None:
    run("verify", plugin, pjrt)
    assert capsys.readouterr().out == f"{plugin}: may ship\n{pjrt}: may ship\n"


def test_verify_names_rule_and_remedy_and_ends_with_its_status(tmp_path, capsys) -> None:
    made = wheels.plugin()
    files = {**made.files, "jax_rocm7_plugin/_linalg.so": File(make_elf(), mode=0o755)}
    path = made.but(files=files).write(tmp_path)
    run("verify", path.name, status=6)
    out = capsys.readouterr().out
    assert f"{path.name}: may not ship, 3 errors" in out
    assert "error elf.runpath: jax_rocm7_plugin/_linalg.so: RUNPATH lacks $ORIGIN" in out
    run("verify", "--json", path.name, status=6)
    document = json.loads(capsys.readouterr().out)
    assert document["ships"] is False
    assert {item["rule"] for item in document["wheels"][path.name]} == {
        "elf.runpath", "elf.python", "gfx.none",
    }  # fmt: skip
    assert all(item["remedy"] for item in document["wheels"][path.name])


def test_verify_takes_targets_rocm_and_policy(plugin: str, tmp_path, capsys) -> None:
    run("verify", plugin, "--gfx-targets", "gfx942,gfx1100")
    run("verify", plugin, "--gfx-targets", "gfx942", status=6)
    run("verify", plugin, "--rocm-root", "nowhere", status=10)
    rocm = tmp_path / "rocm" / "lib"
    rocm.mkdir(parents=True)
    (rocm / "libamdhip64.so.7").touch()
    run("verify", plugin, "--rocm-root", "rocm", status=6)
    assert "elf.needed-rocm: jax_rocm7_plugin/_linalg.so: needs libhipblas.so.3" in (
        capsys.readouterr().out
    )
    (rocm / "libhipblas.so.3").touch()
    run("verify", plugin, "--rocm-root", "rocm")
    run("verify", plugin, "--policy", "missing.yaml", status=3)


def test_verify_asks_of_a_wheelhouse_what_it_asks_of_wheels(plugin, pjrt, tmp_path, capsys) -> None:
    made = wheels.manifest(tmp_path / plugin, tmp_path / pjrt)
    (tmp_path / "manifest.json").write_bytes(made.to_bytes())
    (tmp_path / "rocm" / "lib").mkdir(parents=True)
    (tmp_path / "rocm" / "lib" / "libamdhip64.so.7").touch()
    run("verify", ".", "--gfx-targets", "gfx942,gfx1100")
    run("verify", ".", "--gfx-targets", "gfx942", status=6)
    run("verify", ".", "--rocm-root", "rocm", status=6)
    assert "elf.needed-rocm: jax_rocm7_plugin/_linalg.so: needs libhipblas" in (
        capsys.readouterr().out
    )


def test_two_files_of_one_name_are_both_judged(plugin: str, tmp_path, capsys) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / plugin).write_bytes(b"junk")
    run("verify", plugin, f"other/{plugin}", status=6)
    out = capsys.readouterr().out
    assert f"{tmp_path / plugin}: may not ship" in out  # there are two for one Python
    assert f"{other / plugin}: may not ship" in out


def test_verify_takes_a_folder(plugin: str, pjrt: str, tmp_path, capsys) -> None:
    run("verify", ".")
    (tmp_path / pjrt).unlink()
    run("verify", ".", status=6)
    (tmp_path / "empty").mkdir()
    run("verify", "empty", status=6)
    assert "no wheels in it" in capsys.readouterr().err


def test_a_dry_run_plans_and_writes_nothing(plugin: str, tmp_path, capsys) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    run("retag", plugin, "--platform-tag", "linux_x86_64", "--output", OUT, "--dry-run")
    run("reversion", plugin, "--post-release", "1", "--output", OUT, "--dry-run")
    run("repair", plugin, "--output", OUT, "--dry-run")
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"would write {tmp_path / OUT}/jax_rocm7_plugin-0.9.1-cp312-")
    assert out[1].endswith("(new: METADATA, RECORD, version.py)")
    tag = "tag manylinux_2_27_x86_64"
    assert out[2].endswith(f"{plugin}: {tag}; list 5 components in sboms/rocwheel.cdx.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_renaming_prints_the_new_files(plugin: str, pjrt: str, tmp_path, capsys) -> None:
    run("reversion", plugin, pjrt, "--local", "rocm7.10.0", "--output", OUT)
    made = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert [path.name[:30] for path in made] == [
        "jax_rocm7_plugin-0.9.1+rocm7.1", "jax_rocm7_pjrt-0.9.1+rocm7.10.",
    ]  # fmt: skip
    assert all(path.is_file() for path in made)
    run("verify", OUT)


def test_renaming_one_of_a_set_warns_about_the_other(plugin: str, capsys) -> None:
    run("reversion", plugin, "--post-release", "1", "--output", OUT)
    assert "jax-rocm7-pjrt 0.9.1.post1: re-version that wheel too" in capsys.readouterr().err


def test_a_remedy_is_given_once_for_all_findings_of_its_rule(tmp_path, capsys) -> None:
    needed = ("libfoo.so.1", "libbar.so.2", "libc.so.6")
    files = {"demo/_c.so": File(make_elf(needed=needed, runpath="$ORIGIN"), mode=0o755)}
    run("verify", str(wheels.Wheel(files=files, tag="cp312-cp312-linux_x86_64").write(tmp_path)))
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition(": ")[2] for line in lines if "elf.needed:" in line] == [
        "needs libfoo.so.1", "needs libbar.so.2",
    ]  # fmt: skip
    remedies = [n for n, line in enumerate(lines) if line == f"    {RULES['elf.needed']}"]
    assert len(remedies) == 1
    assert lines[remedies[0] - 1].endswith("needs libbar.so.2")


def test_repair_says_what_it_did(tmp_path, capsys) -> None:
    path = wheels.plugin(tag="cp312-cp312-linux_x86_64").write(tmp_path)
    run("repair", "--json", path.name, "--output", OUT)
    (item,) = json.loads(capsys.readouterr().out)["wheels"]
    assert item["platform"] == "manylinux_2_27_x86_64"
    assert item["changed"] is True
    assert Path(item["path"]).is_file()


def test_diff_is_silent_where_nothing_differs(plugin: str, pjrt: str, capsys) -> None:
    run("diff", plugin, plugin)
    assert capsys.readouterr().out == ""
    run("diff", "--json", plugin, plugin, "--exit-code")
    assert json.loads(capsys.readouterr().out) == {"differences": []}
    run("diff", plugin, pjrt)
    assert "project: jax-rocm7-plugin -> jax-rocm7-pjrt" in capsys.readouterr().out
    run("diff", plugin, pjrt, "--exit-code", status=13)


def test_a_difference_is_told_from_an_error_by_its_status(plugin: str, capsys) -> None:
    Path("x-1.0-py3-none-any.whl").write_bytes(b"junk")
    for second, status in (("x-1.0-py3-none-any.whl", 6), ("missing-1.0-py3-none-any.whl", 3)):
        run("diff", plugin, second, "--exit-code", status=status)
        assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize("number", [0, 1, 3])
def test_diff_says_that_it_compares_two(number: int, plugin: str, capsys) -> None:
    run("diff", *[plugin] * number, status=2)
    assert f"error: {number} given: name the two wheels to compare" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["inspect", "verify", "retag", "reversion", "repair", "diff"])
def test_a_wheel_that_is_not_there_is_not_to_be_built_again(
    name: str, plugin: str, tmp_path: Path, capsys
) -> None:
    """Whatever it is called: a folder of wheels that is misspelt has no wheel's name either."""
    more = {"diff": (), "inspect": (), "verify": (), "repair": ("--output", OUT)}.get(
        name, ("--output", OUT, {"retag": "--abi-tag", "reversion": "--version"}.get(name, ""), "1")
    )
    for missing in ("typo.whl", "typo-1.0-py3-none-any.whl", "wheelhouse/current"):
        run(name, plugin, missing, *more, status=3)
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.splitlines() == [
            f"error: {tmp_path / missing}: No such file or directory",
            "hint:  name an existing wheel",
        ]


@pytest.mark.parametrize("name", ["inspect", "reversion", "diff"])
def test_a_pipe_is_no_wheel_and_nothing_waits_for_it(
    name: str, plugin: str, tmp_path: Path, capsys
) -> None:
    os.mkfifo("pipe-1.0-py3-none-any.whl")
    more = ("--output", OUT, "--post-release=1") if name == "reversion" else ()
    run(name, plugin, "pipe-1.0-py3-none-any.whl", *more, status=6)
    assert capsys.readouterr().err.splitlines() == [
        f"error: {tmp_path / 'pipe-1.0-py3-none-any.whl'}: not a regular file",
        "hint:  name a wheel that is a file",
    ]


DRY = {
    "retag": ("--platform-tag", "manylinux_2_31_x86_64"),
    "reversion": ("--post-release", "1"),
    "repair": (),
}


@pytest.mark.parametrize("name", DRY)
def test_a_dry_run_refuses_a_folder_that_cannot_be_written(
    name: str, plugin: str, tmp_path: Path, capsys
) -> None:
    Path("a-file").write_text("mine")
    for folder in ("a-file", "a-file/below"):
        for dry in (("--dry-run",), ()):
            run(name, plugin, *DRY[name], "--output", folder, *dry, status=8)
            error, hint = capsys.readouterr().err.splitlines()[-2:]
            assert error.startswith(f"error: {tmp_path / 'a-file'}")
            assert "--output" in hint
    run(name, plugin, *DRY[name], "--output", "new/folder", "--dry-run")
    assert not Path("new").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("retag", "x.whl", "--output", OUT),
        ("retag", "x.whl", "--platform-tag", "linux_x86_64"),
        ("reversion", "x.whl", "--output", OUT),
        ("reversion", "x.whl", "--output", OUT, "--post-release", "1", "--local", "x"),
        ("reversion", "x.whl", "--output", OUT, "--post-release", "-1"),
        ("inspect",),
        ("verify",),
        ("polish", "x.whl"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_refused(arguments) -> None:
    run(*arguments, status=2)


def test_bad_input_is_two_lines_and_a_status(plugin: str, tmp_path, capsys) -> None:
    for name in ("x-1.0-py3-none-any.whl", "noname.whl"):
        Path(name).write_bytes(b"junk")
    for command in (
        ("inspect", "x-1.0-py3-none-any.whl"),
        ("inspect", "noname.whl"),
        ("retag", "x-1.0-py3-none-any.whl", "--platform-tag", "linux_x86_64", "--output", OUT),
        ("repair", "x-1.0-py3-none-any.whl", "--output", OUT),
        ("diff", plugin, "x-1.0-py3-none-any.whl"),
    ):
        run(*command, status=6)
        error, hint = capsys.readouterr().err.splitlines()
        assert error.startswith("error: ")
        assert hint.startswith("hint:  ")
    assert not (tmp_path / OUT).exists()


def test_no_field_of_a_wheel_reaches_a_terminal_raw_or_forges_a_line(tmp_path, capsys) -> None:
    evil = "\x1b]0;x\x07\x9b2J\u202e\r"
    library = make_elf(
        needed=(f"lib{evil}.so",), soname=f"{evil}\nerror: x", rpath=f"/{evil}\nhint: x",
        versions={f"lib{evil}": (f"X_{evil}",)}, exports=(f"f{evil}\ng",),
    )  # fmt: skip
    made = wheels.Wheel(
        files={"demo/x.so": File(library), "demo/commit_info.py": File(b"a='" + b"0" * 40 + b"'")},
        summary=f"(ROCm:{evil})", requires=(f"x{evil}==1", f"numpy; extra == '{evil}'"),
        requires_python=f">=3{evil}", entry_points=f"[{evil}]\na{evil} = b{evil}\n",
        tag="py3-none-any", tags=(f"py3{evil}-none-any",),
    )  # fmt: skip
    path = made.write(tmp_path)
    other = wheels.Wheel(tag="py3-none-any", version="2.0").write(tmp_path)
    commands = [
        ("inspect", path), ("verify", path), ("diff", path, other), ("diff", other, path),
        ("repair", path, "--output", "out"), ("reversion", path, "--version=3", "--output", "out"),
        ("retag", path, "--platform-tag=win32", "--output", "out", "--dry-run"),
    ]  # fmt: skip
    for command in [(*item, *extra) for item in commands for extra in ((), ("--json",))]:
        main(["wheel", *map(str, command)])
        shown = "".join(capsys.readouterr())
        assert shown
        for line in shown.split("\n"):
            assert line.isprintable(), command
            assert not line.startswith(("hint: x", "error: x")), command


@pytest.fixture
def several(tmp_path: Path) -> list[str]:
    """Wheels of one set, the last in the alphabet first."""
    made = [wheels.pjrt()]
    made += [wheels.plugin(tag=f"cp3{minor}-cp3{minor}-linux_x86_64") for minor in (14, 13, 12)]
    return [wheel.write(tmp_path).name for wheel in made[::-1]][::-1]


MANY = {
    "inspect": ("--json",),
    "verify": (),
    "retag": ("--json", "--platform-tag", "manylinux_2_35_x86_64", "--output", OUT),
    "reversion": ("--json", "--post-release", "1", "--output", OUT),
    "repair": ("--json", "--output", OUT),
}


def names_in(told: str) -> list[str]:
    """The wheels that were given, in the order in which an output names them."""
    if not told.startswith("{"):
        return [line.partition(":")[0] for line in told.splitlines() if not line.startswith(" ")]
    items = json.loads(told)["wheels"]
    return [Path(item.get("source") or item["filename"]).name for item in items]


@pytest.mark.parametrize("name", MANY)
def test_several_wheels_are_shown_in_the_order_given(name: str, several: list[str], capsys) -> None:
    assert main(["wheel", name, *MANY[name], *several]) in (0, 6)
    assert names_in(capsys.readouterr().out) == several


@pytest.mark.parametrize(
    "command",
    [("retag", "--platform-tag=linux_x86_64"), ("reversion", "--post-release=1"), ("repair",)],
)
def test_the_empty_text_is_no_folder_for_new_wheels(command, plugin: str, tmp_path, capsys) -> None:
    run(*command, plugin, "--output", "", status=3)
    assert "--output: an empty path" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == [plugin]


@pytest.mark.parametrize(
    "command",
    [("retag", "--platform-tag=linux_x86_64"), ("reversion", "--post-release=1"), ("repair",)],
)
def test_a_dry_run_refuses_what_the_run_would(command, plugin: str, tmp_path, capsys) -> None:
    run(*command, plugin, "--output", OUT)
    run(*command, plugin, "--output", OUT, "--dry-run")
    (made,) = (tmp_path / OUT).iterdir()
    made.write_bytes(b"other")
    capsys.readouterr()
    run(*command, plugin, "--output", OUT, "--dry-run", status=6)
    dry = capsys.readouterr()
    run(*command, plugin, "--output", OUT, status=6)
    assert dry == capsys.readouterr()
    assert "exists with other content" in dry.err
    assert [each.read_bytes() for each in (tmp_path / OUT).iterdir()] == [b"other"]


@pytest.mark.parametrize("marker", ['"a" in extras', '"a" in dependency_groups', '"3" > "4"'])
def test_a_marker_without_a_value_is_a_finding_and_stops_nothing_else(
    marker: str, tmp_path, capsys
) -> None:
    made = wheels.plugin()
    path = made.but(requires=(*made.requires, f"x; {marker}")).write(tmp_path)
    run("verify", path.name, status=6)
    assert "metadata.field" in capsys.readouterr().out
    run("repair", path.name, "--output", OUT)
    run("reversion", path.name, "--post-release=1", "--output", OUT)


def test_a_command_that_renames_imports_nothing_that_judges(plugin: str) -> None:
    """Its time is that of its imports: a wheel of 130 MB is spliced in a tenth of a second."""
    program = (
        "import sys; from rocwheel.cli import main;"
        f"main(['wheel', 'retag', {plugin!r}, '--platform-tag', 'linux_x86_64', '--output', 'o']);"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    loaded = set(done.stdout.split())
    assert "rocwheel.wheel.rename" in loaded
    unused = ("wheel.inspect", "wheel.verify", "wheel.repair", "wheel.wheel_policy", "manifest")
    assert not loaded & {*(f"rocwheel.{name}" for name in unused), "msgspec", "yaml", "zipfile"}
    assert not loaded & {"concurrent.futures", "logging", "shutil", "lzma"}


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
@pytest.mark.parametrize("command", [("retag", *DRY["retag"]), ("repair",)])
def test_two_wheels_that_would_get_one_name_are_refused(command, dry, tmp_path, capsys) -> None:
    tags = ("cp312-cp312-linux_x86_64", "cp312-cp312-manylinux_2_28_x86_64")
    paths = [str(wheels.plugin(tag=tag).write(tmp_path)) for tag in tags]
    run(*command, *paths, "--output", OUT, *dry, status=6)
    assert "two of the wheels would get this name" in capsys.readouterr().err
    assert not list((tmp_path / OUT).glob("*"))
