"""`check_install.py`: made trees and made environments; each line is ok, bad or not looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import wheels

from rocwheel import check_install, cli
from rocwheel.check_install import look

SET = {
    "jax": "0.11.0",
    "jaxlib": "0.11.0",
    "jax-rocm7-plugin": "0.11.0+rocm7.10.0",
    "jax-rocm7-pjrt": "0.11.0+rocm7.10.0",
}
GPU = ["gpu", ["AMD Instinct MI300X"], 56.0]


@pytest.fixture
def tree(tmp_path):
    """A machine with a driver, device files and a ROCm in /opt/rocm."""
    for name in ("sys/module/amdgpu", "dev/dri", "opt/rocm/lib", "opt/rocm/.info"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("dev/kfd", "dev/dri/renderD128", "opt/rocm/lib/libamdhip64.so.7"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "opt/rocm/.info/version").write_text("7.10.0\n")
    hip = wheels.make_elf(soname="libamdhip64.so.7")
    (tmp_path / "opt/rocm/lib/libamdhip64.so.7").write_bytes(hip)
    return tmp_path


@pytest.fixture
def lines(tmp_path, tree, monkeypatch):
    """Look at an environment with these versions, whose JAX answers so."""

    def run(versions=SET, answer=GPU, *, plugin=True, start=True, needs=(), code=("gfx942",)):
        packages = tmp_path / "packages"
        for name, version in versions.items():
            folder = packages / f"{name.replace('-', '_')}-{version}.dist-info"
            folder.mkdir(parents=True)
            (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
        if plugin:
            place = packages / "jax_plugins" / "xla_rocm7"
            place.mkdir(parents=True)
            runpath = f"$ORIGIN/../../rocm/lib:{tree / 'opt/rocm/lib'}"
            needed = ("libamdhip64.so.7", "libc.so.6", *needs)
            bundle = wheels.pack_bundle(wheels.make_bundle(code))
            made = wheels.make_elf(needed=needed, runpath=runpath, bundles=(bundle,))
            (place / "plugin.so").write_bytes(made)
        monkeypatch.setattr(sys, "path", [str(packages)])
        kernel = f"print({json.dumps(answer)!r})" if isinstance(answer, list) else answer
        monkeypatch.setattr(check_install, "KERNEL", kernel)
        found = [*look(tree, run=start)]
        assert len({line.what for line in found}) == len(found)
        assert found[-1].what == "conclusion"
        return {line.what: line for line in found}

    return run


def bad(found):
    wrong = {name for name, line in found.items() if line.state == "bad"}
    assert ("conclusion" in wrong) == bool(wrong)
    return wrong - {"conclusion"}


def test_a_whole_install_is_ok_in_every_line(lines):
    found = lines()
    assert bad(found) == set()
    assert found["libamdhip64.so.7"].found.startswith("ROCm 7.10.0, ")
    assert found["backend"].found == "gpu: AMD Instinct MI300X"
    assert {line.state for line in found.values()} == {"ok"}


@pytest.mark.parametrize(
    ("missing", "what"),
    [
        ("sys/module/amdgpu", "amdgpu driver"),
        ("dev/kfd", "/dev/kfd"),
        ("dev/dri/renderD128", "/dev/dri"),
        ("opt/rocm/lib/libamdhip64.so.7", "ROCm"),
    ],
)
def test_what_the_machine_lacks_is_bad_and_says_what_to_do(lines, tree, missing, what):
    path = tree / missing
    path.rmdir() if path.is_dir() else path.unlink()
    found = lines()
    assert bad(found) == {what}
    assert found[what].todo


@pytest.mark.skipif(os.geteuid() == 0, reason="root may open everything")
def test_a_device_that_only_others_may_open_is_bad(lines, tree):
    (tree / "dev/kfd").chmod(0)
    assert "render and video" in lines()["/dev/kfd"].todo


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"jaxlib": None}, {"jaxlib"}),
        ({"jaxlib": "0.10.1"}, {"versions"}),
        ({"jax-rocm7-pjrt": "0.11.0+rocm7.2.0"}, {"rocm7"}),
        ({"jax-rocm7-pjrt": "0.10.1"}, {"versions"}),
        ({"jax": "0.10.1"}, {"jax and jaxlib"}),
        # a jaxlib that was repaired takes the plugins of its release; before 0.9.1 it compares
        ({"jax": "0.11.0.1", "jaxlib": "0.11.0.1"}, set()),
        (
            {
                "jax": "0.9.0.1", "jaxlib": "0.9.0.1",
                "jax-rocm7-plugin": "0.9.0", "jax-rocm7-pjrt": "0.9.0",
            },
            {"versions"},
        ),
        ({"jax-rocm60-plugin": "0.11.0", "jax-rocm60-pjrt": "0.11.0"}, {"plugins"}),
        (
            {"jax-rocm7-plugin": None, "jax-rocm7-pjrt": None},
            {"packages"},
        ),
    ],
)  # fmt: skip
def test_versions_that_do_not_fit_are_bad(lines, change, what):
    versions = {name: version for name, version in {**SET, **change}.items() if version}
    assert bad(lines(versions)) == what


def test_a_jaxlib_that_does_not_know_the_plugin_is_bad(lines, tmp_path):
    """JAX 0.11.0 looks for its kernels in jax_rocm7_plugin and jax_rocm60_plugin alone."""
    versions = {name.replace("rocm7", "rocm10"): version for name, version in SET.items()}
    (tmp_path / "packages/jaxlib").mkdir(parents=True)
    support = tmp_path / "packages/jaxlib/plugin_support.py"
    support.write_text('{"rocm": ["jax_rocm7_plugin", "jax_rocm60_plugin"]}\n')
    found = lines(versions, start=False)
    assert bad(found) == {"kernels of rocm10"}
    assert found["kernels of rocm10"].found == "jaxlib 0.11.0 takes them from rocm7, rocm60 alone"


def test_below_wsl_the_lacking_topology_is_named_and_not_a_driver(lines, tree):
    """https://github.com/ROCm/librocdxg/issues/5: the plugin counts GPUs where WSL has none."""
    for path in ("sys/module/amdgpu", "dev/kfd", "dev/dri/renderD128"):
        (tree / path).rmdir() if (tree / path).is_dir() else (tree / path).unlink()
    (tree / "dev/dxg").touch()
    found = lines(answer=["cpu", ["cpu"], 56.0])
    assert found["/dev/dxg"].state == "ok"
    assert bad(found) == {"kfd topology", "backend"}
    assert "HSA_ENABLE_DXG_DETECTION=1" in found["kfd topology"].todo


def test_a_topology_beside_dev_dxg_is_an_ordinary_machine(lines, tree):
    (tree / "dev/dxg").touch()
    node = tree / "sys/class/kfd/kfd/topology/nodes/0"
    node.mkdir(parents=True)
    (node / "properties").touch()
    found = lines()
    assert bad(found) == set()
    assert "/dev/kfd" in found


def test_a_library_of_rocm_that_is_nowhere_is_named(lines, tree):
    """https://github.com/ROCm/TheRock/issues/8163: no package of that ROCm has it."""
    name = "librocm_sysdeps_hwloc.so.5"
    found = lines(needs=[name, "librocblas.so.5"])
    assert bad(found) == {name, "librocblas.so.5"}
    assert "0.11.1" in found[name].todo


def test_where_there_is_no_rocm_at_all_one_line_says_so_and_jax_is_not_started(lines, tree):
    (tree / "opt/rocm/lib/libamdhip64.so.7").unlink()
    found = lines(needs=["librocblas.so.5", "librccl.so.1"])
    assert bad(found) == {"ROCm"}
    assert found["ROCm"].found == "the loader does not find libamdhip64.so.7 and 2 more"
    assert found["backend"].state == found["conclusion"].state.replace("bad", "not looked at")
    assert found["conclusion"].found.startswith("ROCm: ")
    assert "/opt/rocm" in found["conclusion"].todo


def gpu(tree, number: int) -> None:
    node = tree / "sys/class/kfd/kfd/topology/nodes/1"
    node.mkdir(parents=True)
    (node / "properties").write_text(f"simd_count 4\ngfx_target_version {number}\n")


@pytest.mark.parametrize(
    ("number", "code", "wrong"),
    [
        (90402, ("gfx942", "gfx950"), ""),
        (90010, ("gfx942", "gfx950"), "gfx90a"),
        (120001, ("gfx942", "gfx1201"), ""),
        (110501, ("gfx11-generic",), ""),
        (110501, ("gfx12-generic",), "gfx1151"),
    ],
)
def test_a_gpu_for_which_the_wheels_have_no_code_is_named(lines, tree, number, code, wrong):
    """https://github.com/ROCm/TheRock/issues/7839: JAX only says "invalid device function"."""
    gpu(tree, number)
    found = lines(code=code)
    assert bad(found) == ({"GPU code"} if wrong else set())
    assert f"no code for {wrong}" in found["GPU code"].found or not wrong


def test_a_device_package_of_another_gpu_is_named(lines, tree):
    gpu(tree, 90402)
    found = lines({**SET, "rocm-sdk-device-gfx90a": "7.13.0"})
    assert bad(found) == {"device packages"}
    assert found["conclusion"].todo.endswith("rocm[device-gfx942]")


def test_a_machine_without_an_amd_card_is_not_told_to_load_a_driver(lines, tree):
    (tree / "sys/module/amdgpu").rmdir()
    card = tree / "sys/bus/pci/devices/0000:01:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x10de\n")
    (card / "class").write_text("0x030000\n")
    found = lines(answer=["cpu", ["cpu"], 56.0])
    assert bad(found) == {"AMD GPU", "backend"}
    assert found["conclusion"].found.startswith("AMD GPU: no AMD card in PCI")
    assert not any("modprobe" in line.todo for line in found.values())


def test_columns_are_as_wide_as_the_longest_name(lines, capsys, tree):
    versions = {name: version for name, version in SET.items() if "rocm" not in name}
    lines(versions, plugin=False)
    assert check_install.main(["--no-run", "--root", str(tree)]) == 8
    rows = [row for row in capsys.readouterr().out.splitlines() if not row.startswith(" ")]
    width = max(len(row.split("  ")[-2].strip()) for row in rows if "  " in row) if rows else 0
    assert width
    assert rows[-1].startswith("bad           conclusion")


def test_a_virtual_environment_stands_for_its_python(tmp_path, capsys):
    program = tmp_path / "venv/bin/python"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    words = ["--json", "check-install", "--no-run", f"--python={tmp_path / 'venv'}"]
    assert cli.main(words) in (0, 8)
    assert json.loads(capsys.readouterr().out)["checks"]


def test_libraries_of_rocm_that_are_there_take_no_line(lines, tree):
    (tree / "opt/rocm/lib/librocblas.so.5").touch()
    assert "librocblas.so.5" not in lines(needs=["librocblas.so.5"])


def test_the_silent_fallback_is_bad_and_no_kernel_counts(lines):
    found = lines(answer=["cpu", ["cpu"], 56.0])
    assert bad(found) == {"backend"}
    assert found["backend"].found == "JAX fell back to cpu without an error"
    assert found["kernel"].state == "not looked at"


@pytest.mark.parametrize(
    ("answer", "what"),
    [(["gpu", ["x"], 55.0], "kernel"), ("raise RuntimeError('no HSA')", "backend")],
)
def test_a_wrong_kernel_and_a_jax_that_fails_are_bad(lines, answer, what):
    assert bad(lines(answer=answer)) == {what}


def test_jax_is_not_started_where_it_is_not_installed(lines):
    found = lines({}, plugin=False)
    assert bad(found) == {"packages"}
    assert found["backend"].state == "not looked at"
    assert found["conclusion"].found.startswith("packages: jax, jaxlib")


def test_what_was_not_looked_at_is_said_with_the_flag(lines):
    found = lines(
        {k: v for k, v in SET.items() if not k.endswith("-pjrt")}, plugin=False, start=False
    )
    assert found["ROCm"].state == found["backend"].state == "not looked at"
    assert "--no-run" in found["backend"].found


def test_it_is_one_file_of_the_standard_library(tree):
    """Alone, in an empty folder, with a Python that has nothing installed."""
    alone = tree / "check_install.py"
    alone.write_bytes(Path(check_install.__file__).read_bytes())
    argv = [sys.executable, "-I", "-S", alone, "--json", "--no-run", "--root", tree]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 8, done.stderr
    document = json.loads(done.stdout)
    assert not document["ok"]
    assert {row["state"] for row in document["checks"]} == {"ok", "bad", "not looked at"}


def test_a_package_whose_files_are_gone_is_bad(lines):
    """As a removal that was cut short leaves it: versions fit, and JAX finds no plugin."""
    found = lines(plugin=False, start=False)
    assert bad(found) == {"pjrt"}
    assert "install the pjrt wheel again" in found["pjrt"].todo


def test_a_package_with_empty_metadata_is_passed_over(lines, tmp_path, recwarn):
    (tmp_path / "packages/broken-1.dist-info").mkdir(parents=True)
    (tmp_path / "packages/broken-1.dist-info/METADATA").touch()
    assert bad(lines()) == set()
    assert not recwarn.list
