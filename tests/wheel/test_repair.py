"""Repair with real compilers and patchelf: what changes, and that it loads."""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import uv
from support import rocm_packages, wheels
from support.wheels import POLICY, File, NoRunner, Wheel

from rocwheel.base.errors import WheelError
from rocwheel.base.values import replace
from rocwheel.records.install import Install, rocm_extras
from rocwheel.wheel.diff import diff
from rocwheel.wheel.inspect import inspect
from rocwheel.wheel.repair import RepairResult, apply, plan_repair
from rocwheel.wheel.verify import verify
from rocwheel.wheel.verify.libraries import Expectation
from rocwheel.wheel.verify.rules import Severity
from rocwheel.wheel.zip_reader import ZipArchive

pytestmark = [pytest.mark.integration, pytest.mark.needs("cc")]

MODULE = "jax_rocm7_plugin/_linalg.so"
SHORT = POLICY.runpath.expanded("short")
WITHOUT_GPUS = replace(
    POLICY,
    kinds={kind: replace(rules, gpu_code=False) for kind, rules in POLICY.kinds.items()},
)


def compile_library(target: Path, source: str, *flags: str) -> Path:
    text = target.with_name(target.name + ".c")
    text.write_text(source)
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", target, text, *flags]
    subprocess.run(list(map(str, command)), check=True)
    return target


@pytest.fixture(scope="module")
def libraries(tmp_path_factory) -> Path:
    """libfoo needs libbar; libamdhip64 is a stand-in that must never be grafted."""
    folder = tmp_path_factory.mktemp("libraries")
    compile_library(folder / "libbar.so.1", "int bar(void){return 2;}", "-Wl,-soname,libbar.so.1")
    compile_library(
        folder / "libfoo.so.1",
        "int bar(void); int foo(void){return 40 + bar();}",
        "-Wl,-soname,libfoo.so.1", folder / "libbar.so.1",
    )  # fmt: skip
    compile_library(
        folder / "libamdhip64.so.7",
        "int hipGetDeviceCount(void){return 0;}",
        "-Wl,-soname,libamdhip64.so.7",
    )
    return folder


def plugin(folder: Path, libraries: Path, *flags: str, source: str = "", **changes) -> Path:
    """A plugin wheel whose module was really compiled."""
    source = source or "int PyInit__linalg(void){return 42;}"
    module = compile_library(folder / "_linalg.so", source, *flags)
    made = wheels.plugin(**changes)
    files = {
        **made.files,
        MODULE: File(module.read_bytes(), mode=0o755),
        "jax_rocm7_plugin/large.bin": File(os.urandom(1 << 20)),
    }
    return made.but(files=files, directories=True).write(folder)


def repair(path: Path, out: Path, runner, console, **options) -> RepairResult:
    plan = plan_repair(path, policy=WITHOUT_GPUS, **options)
    return apply(plan, out, runner=runner, console=console)


def elf(path: Path, name: str = MODULE):
    return next(item for item in inspect(path).elf if item.path == name)


def rpath(*entries: str) -> str:
    return f"-Wl,--enable-new-dtags,-rpath,{':'.join(entries)}"


def untouched(before: Path, after: Path, *changed: str) -> None:
    """Every other member has the same compressed bytes, headers and place in the order."""
    with ZipArchive(before) as old, ZipArchive(after) as new:
        kept = [item for item in new.members if item.name in old.by_name]
        assert [item.name for item in kept] == [item.name for item in old.members]
        for item in kept:
            own = old.by_name[item.name]
            assert (item.mode, item.stamp, item.method) == (own.mode, own.stamp, own.method)
            if not item.name.endswith(("/RECORD", "/WHEEL", *changed)):
                assert item.local == own.local
                assert b"".join(new.raw(item.data, item.end)) == b"".join(
                    old.raw(own.data, own.end)
                )


def test_a_wheel_that_needs_only_its_tag_starts_no_process(tmp_path, libraries, console) -> None:
    path = plugin(tmp_path, libraries, rpath(*SHORT), tag="cp312-cp312-linux_x86_64")
    result = repair(path, tmp_path / "out", NoRunner(), console)
    assert result.platform == "manylinux_2_27_x86_64"
    assert result.changed
    assert result.patched == ()
    untouched(path, result.path)
    assert verify(result.path, policy=WITHOUT_GPUS) == ()


def test_a_wheel_that_needs_nothing_is_copied(tmp_path, libraries, console) -> None:
    bare = plugin(tmp_path, libraries, rpath(*SHORT))  # it lacks the list of what it was made of
    path = repair(bare, tmp_path / "first", NoRunner(), console).path
    untouched(bare, path)
    result = repair(path, tmp_path / "out", NoRunner(), console)
    assert not result.changed
    assert result.path.read_bytes() == path.read_bytes()


def test_the_tag_is_what_the_symbols_of_this_machine_need(tmp_path, libraries, console, runner):
    """Compared with what auditwheel says of the same file."""
    path = plugin(
        tmp_path,
        libraries,
        rpath(*SHORT),
        source="#include <dlfcn.h>\nvoid *PyInit__linalg(void){return dlopen(0, 1);}",
        tag="cp312-cp312-linux_x86_64",
    )
    result = repair(path, tmp_path / "out", NoRunner(), console)
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", "--json", "--ldpaths", tmp_path, result.path],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    document = json.loads(shown)
    assert result.platform in json.dumps(document)
    assert elf(result.path).highest("GLIBC") > (2, 27)


def test_only_a_runpath_that_differs_is_set(tmp_path, libraries, console, runner) -> None:
    path = plugin(
        tmp_path,
        libraries,
        rpath("$ORIGIN/../_solib_x86_64/_Ubazel", "/opt/rocm/lib"),
        libraries / "libamdhip64.so.7",
        source="int hipGetDeviceCount(void); int PyInit__linalg(void){return hipGetDeviceCount();}",
    )
    result = repair(path, tmp_path / "out", runner, console)
    assert result.patched == (MODULE,)
    assert elf(result.path).runpath == SHORT
    assert elf(result.path).needed[0] == "libamdhip64.so.7"
    untouched(path, result.path, MODULE)
    assert verify(result.path, policy=WITHOUT_GPUS) == ()
    site = tmp_path / "site"
    with zipfile.ZipFile(result.path) as archive:
        archive.extractall(site)
    (site / "rocm").mkdir()
    (site / "rocm" / "lib").symlink_to(libraries)
    ctypes.CDLL(str(site / MODULE))  # finds libamdhip64 in $ORIGIN/../rocm/lib


def test_rpath_becomes_runpath(tmp_path, libraries, console, runner) -> None:
    old_style = f"-Wl,--disable-new-dtags,-rpath,{':'.join(SHORT)}"
    path = plugin(tmp_path, libraries, old_style)
    assert elf(path).rpath == SHORT
    result = repair(path, tmp_path / "out", runner, console)
    assert (elf(result.path).rpath, elf(result.path).runpath) == ((), SHORT)


def test_jaxlib_keeps_the_runpath_it_has(tmp_path, libraries, console) -> None:
    module = compile_library(
        tmp_path / "_x.so", "int PyInit__x(void){return 1;}", rpath("$ORIGIN/../_solib_x86_64/x")
    )
    made = Wheel(
        project="jaxlib",
        version="0.9.1",
        tag="cp312-cp312-linux_x86_64",
        files={"jaxlib/_x.so": File(module.read_bytes(), mode=0o755)},
    )
    result = repair(made.write(tmp_path), tmp_path / "out", NoRunner(), console)
    assert result.platform == "manylinux_2_27_x86_64"
    assert elf(result.path, "jaxlib/_x.so").runpath == ("$ORIGIN/../_solib_x86_64/x",)


def test_every_library_that_is_not_allowed_is_named(tmp_path, console) -> None:
    made = wheels.plugin()
    needy = wheels.make_elf(needed=("libX11.so.6", "libc.so.6", "libfoo.so.1", "libhsa.so.9"))
    path = made.but(files={MODULE: File(needy)}).write(tmp_path)
    with pytest.raises(WheelError) as refusal:
        repair(path, tmp_path / "out", NoRunner(), console)
    missing = ", ".join(
        f"{MODULE} needs lib{name}" for name in ("X11.so.6", "foo.so.1", "hsa.so.9")
    )
    assert f"{missing}: the policy" in str(refusal.value)
    assert not (tmp_path / "out").exists()


def test_a_library_under_another_file_name_is_not_found(tmp_path, console) -> None:
    """The loader would know it by its SONAME only if something else had loaded it before."""
    made = wheels.plugin()
    needy = wheels.make_elf(
        needed=("libinner.so.1",), runpath=":".join(SHORT), exports=("PyInit__linalg",)
    )
    inner = wheels.make_elf(
        soname="libinner.so.1", runpath=":".join(SHORT), exports=("PyInit_inner",)
    )
    files = {**made.files, MODULE: File(needy), "jax_rocm7_plugin/inner.so": File(inner)}
    path = made.but(files=files).write(tmp_path)
    assert "elf.needed" in {item.rule for item in verify(path, policy=WITHOUT_GPUS)}
    with pytest.raises(WheelError, match=r"_linalg\.so needs libinner\.so\.1"):
        repair(path, tmp_path / "out", NoRunner(), console)


def test_files_for_two_machines_are_refused(tmp_path, console) -> None:
    made = wheels.plugin()
    files = {**made.files, "jax_rocm7_plugin/_arm.so": File(wheels.make_elf(machine=183))}
    with pytest.raises(WheelError, match="aarch64, x86_64"):
        repair(made.but(files=files).write(tmp_path), tmp_path / "out", NoRunner(), console)


def test_modes_that_only_the_owner_reads_are_mended(tmp_path: Path, runner, console) -> None:
    """As of jax-rocm7-plugin 0.9.2.post1; RECORD, content and everything else stay."""
    made = wheels.plugin()
    files = {
        name: replace(file, mode=file.mode & 0o4700 | 0o4002) for name, file in made.files.items()
    }
    path = made.but(files=files).write(tmp_path)
    result = repair(path, tmp_path / "out", runner, console)
    assert verify(result.path, policy=WITHOUT_GPUS) == ()
    assert result.changed
    with zipfile.ZipFile(result.path) as archive:
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
    assert {name: modes[name] & 0o7777 for name in files} == {
        name: 0o755 if name.endswith(".so") else 0o644 for name in files
    }
    changes = [item for item in diff(path, result.path) if not item.member.endswith("/RECORD")]
    assert {item.aspect for item in changes if item.member} == {"mode"}


@pytest.mark.parametrize("says", ["None", "'0.9.1.post1'"])
def test_a_version_module_gets_the_version_of_the_wheel(says: str, tmp_path: Path, console) -> None:
    """As AMD's pjrt wheels lack it; its module says so when it runs, and nothing else changes."""
    name = "jax_plugins/xla_rocm7/version.py"
    made = wheels.pjrt()
    module = f"_version = '0.9.1'\n_release_version: str | None = {says}\n_git_hash = None\n"
    path = made.but(files={**made.files, name: File(module.encode())}).write(tmp_path)
    (before,) = verify(path, policy=WITHOUT_GPUS)
    assert (before.rule, before.severity) == ("version.module", Severity.WARNING)
    result = repair(path, tmp_path / "out", NoRunner(), console)
    assert result.changed
    assert verify(result.path, policy=WITHOUT_GPUS) == ()
    with zipfile.ZipFile(result.path) as archive:
        scope: dict[str, object] = {}
        exec(archive.read(name), scope)
    assert scope["_release_version"] == "0.9.1"
    untouched(path, result.path, "/version.py")
    again = repair(result.path, tmp_path / "again", NoRunner(), console)
    assert not again.changed
    assert again.path.read_bytes() == result.path.read_bytes()


def test_a_version_module_of_another_release_is_not_written_over(tmp_path: Path, console) -> None:
    made = wheels.pjrt()
    other = File(wheels.version_module("0.9.0"))
    files = {**made.files, "jax_plugins/xla_rocm7/version.py": other}
    path = made.but(files=files).write(tmp_path)
    result = repair(path, tmp_path / "out", NoRunner(), console)
    untouched(path, result.path)
    assert [item.rule for item in verify(result.path, policy=WITHOUT_GPUS)] == ["version.module"]


def test_a_wheel_that_changed_behind_its_size_and_time_is_not_written(
    tmp_path: Path, console
) -> None:
    """Bytes of a stored member are written over in place, and the time put back."""
    made = wheels.plugin(tag="cp312-cp312-linux_x86_64")
    name = "jax_rocm7_plugin/notes.txt"
    path = made.but(files={**made.files, name: File(b"before", method=0)}).write(tmp_path)
    plan = plan_repair(path, policy=WITHOUT_GPUS)
    known, data = path.stat(), path.read_bytes()
    with path.open("r+b") as file:
        file.write(data.replace(b"before", b"behind"))
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))
    with pytest.raises(WheelError, match="was changed while it was read"):
        apply(plan, tmp_path / "out", runner=NoRunner(), console=console)
    assert list((tmp_path / "out").iterdir()) == []


ROCM = "7.10.0a20251120"
EXTRAS = rocm_extras(ROCM, ("gfx942", "gfx1100"))


def test_a_plugin_offers_the_rocm_of_pip_that_it_was_built_with(tmp_path: Path, console) -> None:
    """https://github.com/ROCm/TheRock/issues/6225: the ROCm that was gated, by one extra."""
    (source := tmp_path / "built").mkdir()
    plugin = wheels.plugin().write(source)
    plan = plan_repair(plugin, policy=POLICY, extras=EXTRAS)
    assert "offer the extras device-gfx942, device-gfx1100, device-all" in str(plan)
    (out := tmp_path / "out").mkdir()
    made = apply(plan, out, runner=NoRunner(), console=console).path

    def wrong(extras: dict[str, str] | None) -> list[str]:
        found = verify(made, policy=POLICY, expected=Expectation(extras=extras))
        return [f"{x.rule}: {x.message}" for x in found if x.severity is Severity.ERROR]

    assert (wrong(EXTRAS), wrong(None)) == ([], [])
    assert plan_repair(made, policy=POLICY, extras=EXTRAS).extras == {}
    assert len(wrong({})) == 3, "a set built from a tarball has none"
    other = " ".join(wrong(rocm_extras("7.11.0", ("gfx942",))))
    assert "does not require rocm[libraries,device-gfx942]==7.11.0;" in other
    assert "another ROCm than the set's" in other


@pytest.mark.parametrize("client", ["pip", "uv"])
def test_the_line_for_rocm_is_the_plugins_extra(tmp_path: Path, console, client: str) -> None:
    index = rocm_packages.index(tmp_path / "index", ROCM)
    built = [each(tag="py3-none-any").write(tmp_path) for each in (wheels.plugin, wheels.pjrt)]
    (out := tmp_path / "out").mkdir()
    plan = plan_repair(built[0], policy=POLICY, extras=EXTRAS)
    paths = [apply(plan, out, runner=NoRunner(), console=console).path, built[1]]
    manifest = wheels.manifest(*paths)
    entries = (replace(manifest.wheels[0], extras=tuple(EXTRAS)), manifest.wheels[1])
    delivery = replace(manifest.rocm.delivery, url=index)
    rocm = replace(manifest.rocm, version=ROCM, origin="pip", delivery=delivery)
    line = Install.of(
        replace(manifest, rocm=rocm, wheels=entries), "", targets=("gfx942",)
    ).rocm_lines()["pip"]
    assert line == f"pip install --index-url {index} 'jax-rocm7-plugin[device-gfx942]==0.9.1'"
    environment = tmp_path / "environment"
    own = [uv.find_uv_bin(), "pip", "install", "--python", environment]
    subprocess.run([uv.find_uv_bin(), "venv", "--quiet", environment], check=True)
    subprocess.run([*own, "--quiet", "--no-deps", *paths], check=True)
    words = shlex.split(line)[2:]
    by_pip = [sys.executable, "-m", "pip", "--python", environment, "install", "--quiet"]
    subprocess.run([*(own if client == "uv" else by_pip), *words], check=True)
    installed = {path.name for path in environment.glob("lib/python3*/site-packages/_rocm_sdk_*")}
    assert installed == {"_rocm_sdk_core", "_rocm_sdk_libraries", "_rocm_sdk_device_gfx942"}
