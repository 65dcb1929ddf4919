"""The miniature: a real Bazel compiles real HIP code for real GPUs and packs real wheels."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from email.parser import HeaderParser
from io import BytesIO
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from examples.miniature import make_therock
from rocwheel.base import yaml_file
from rocwheel.base.host import debian, machine
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion
from rocwheel.wheel.verify import Expectation, verify
from rocwheel.wheel.verify.rules import Severity
from rocwheel.wheel.wheel_policy import WheelPolicy

pytestmark = [
    pytest.mark.integration,
    pytest.mark.needs("bazel", "clang-19", "cc"),
    pytest.mark.slow,
    pytest.mark.xdist_group("miniature"),
]

WORKSPACE = Path(make_therock.__file__).parent / "workspace"
TARGETS = ("gfx90a", "gfx942", "gfx1100", "gfx1201")
PLUGIN, PJRT = "//jaxlib/tools:jax_rocm_plugin_wheel", "//jaxlib/tools:jax_rocm_pjrt_wheel"
JAXLIB = "//jaxlib/tools:jaxlib_wheel"
GIT_HASH = "0123456789abcdef0123456789abcdef01234567"
RELEASE = (
    "--repo_env=ML_WHEEL_TYPE=release",
    "--repo_env=ML_WHEEL_VERSION_SUFFIX=+rocm7.10.0",
)
ALWAYS = (
    "--verbose_failures=true",
    "--define=xnn_enable_avxvnniint8=false",
    "--config=mkl_open_source_only",
    "--config=avx_posix",
)


@dataclass(frozen=True, kw_only=True)
class Built:
    """What one `bazel build` said, by its exit status, its talk and its event file."""

    status: int
    said: str
    outputs: dict[str, list[Path]]  # label -> files
    processes: str  # "8 processes: 1 internal, 7 linux-sandbox."


@dataclass(frozen=True, kw_only=True)
class Bazel:
    """The workspace, one output root, one ROCm root."""

    root: Path
    rocm: Path
    pythons: tuple[machine.Interpreter, ...]

    def run(self, command, *arguments, rocm_rc=True):
        startup = [
            "--nosystem_rc",
            "--bazelrc=bazel/debian.bazelrc",
            f"--output_user_root={self.root}",
        ]
        if rocm_rc:
            startup.append("--bazelrc=build/rocm/rocm.bazelrc")
        env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
        return subprocess.run(
            ["bazel", *startup, command, *arguments],
            cwd=WORKSPACE,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )

    def options(self, python):
        interpreters = (
            f"--repo_env=MINIATURE_PYTHON_3_{p.version.minor}={p.executable}" for p in self.pythons
        )
        return (f"--repo_env=HERMETIC_PYTHON_VERSION={python}", *ALWAYS, *interpreters)

    def rocm_options(self):
        return (
            "--config=rocm",
            "--config=rocm_release_wheel",
            f"--repo_env=ROCM_PATH={self.rocm}",
            f"--repo_env=TF_ROCM_AMDGPU_TARGETS={','.join(TARGETS)}",
        )

    def build(self, *arguments, rocm_rc=True):
        events = self.root / "events.json"
        done = self.run(
            "build",
            "--symlink_prefix=/",
            f"--build_event_json_file={events}",
            *arguments,
            rocm_rc=rocm_rc,
        )
        outputs: dict[str, list[Path]] = {}
        processes = ""
        for line in events.read_text().splitlines():
            event = json.loads(line)
            if done_target := event["id"].get("targetCompleted"):
                files = event.get("completed", {}).get("importantOutput", [])
                paths = [Path(file["uri"].removeprefix("file://")) for file in files]
                outputs[done_target["label"]] = paths
            for log in event.get("buildToolLogs", {}).get("log", []):
                if log["name"] == "process stats":
                    processes = base64.b64decode(log["contents"]).decode()
        return Built(status=done.returncode, said=done.stderr, outputs=outputs, processes=processes)

    def build_gpu_wheels(self, python, *arguments):
        """Plugin and pjrt, with the command line of a release build of JAX."""
        return self.build(
            *self.options(python),
            *self.rocm_options(),
            *RELEASE,
            f"--//jaxlib/tools:jaxlib_git_hash={GIT_HASH}",
            *arguments,
            PLUGIN,
            PJRT,
        )

    def declared_name(self, target, *arguments):
        """The name of the wheel a target would make, without making it."""
        query = f"mnemonic(BuildJaxWheel, {target})"
        done = self.run("aquery", *arguments, query)
        assert done.returncode == 0, done.stderr
        return re.search(r"Outputs: \[.*/dist/([^/\]]+)\]", done.stdout)[1]


def unpack(tarball, folder):
    folder.mkdir()
    subprocess.run(["tar", "-xf", tarball, "-C", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def bazel(miniature_tarball, tmp_path_factory, runner):
    folder = tmp_path_factory.mktemp("bazel")
    pythons = tuple(p for p in machine.pythons(os.environ, runner=runner) if p.headers)
    assert pythons, "no CPython with headers: apt-get install python3-dev"
    rocm = unpack(miniature_tarball, folder / "rocm")
    bazel = Bazel(root=folder / "out", rocm=rocm, pythons=pythons)
    yield bazel
    bazel.run("shutdown")
    subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def wheels(bazel, disk_cache):
    """Plugin and pjrt of the first CPython; every test may read them, none builds over them."""
    # the demo compiles the same
    built = bazel.build_gpu_wheels(bazel.pythons[0].version, f"--disk_cache={disk_cache}")
    assert built.status == 0, built.said
    return {label: files[0] for label, files in built.outputs.items()}


def host_clang():
    """The options of a build whose host compiler is a local clang."""
    clang = shutil.which("clang-19")
    return (
        "--config=clang_local",
        f"--action_env=CLANG_COMPILER_PATH={clang}",
        f"--repo_env=CC={clang}",
        f"--repo_env=CXX={clang.replace('clang', 'clang++')}",
        f"--repo_env=BAZEL_COMPILER={clang}",
        "--config=clang",
    )


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata(wheel):
    found = [data for name, data in contents(wheel).items() if name.endswith("/METADATA")]
    return HeaderParser().parsestr(found[0].decode())


def libraries(wheel):
    return {
        Path(name).name: ELFFile(BytesIO(data))
        for name, data in contents(wheel).items()
        if name.endswith(".so")
    }


def dynamic(elf, tag):
    entries = elf.get_section_by_name(".dynamic").iter_tags(tag)
    kind = {"DT_NEEDED": "needed", "DT_RUNPATH": "runpath", "DT_SONAME": "soname"}[tag]
    return [getattr(entry, kind) for entry in entries]


def exported(elf):
    symbols = elf.get_section_by_name(".dynsym").iter_symbols()
    names = {symbol.name for symbol in symbols if symbol["st_shndx"] != "SHN_UNDEF"}
    return names - {"VERS_1.0"}  # the version itself is a symbol too


def test_the_command_line_of_a_release_build_makes_exactly_the_declared_wheels(bazel, wheels):
    tag = f"cp{bazel.pythons[0].version}".replace(".", "")
    plugin = f"jax_rocm7_plugin-0.11.99+rocm7.10.0-{tag}-{tag}-manylinux_2_27_x86_64.whl"
    assert {path.name for path in wheels.values()} == {
        plugin,
        "jax_rocm7_pjrt-0.11.99+rocm7.10.0-py3-none-manylinux_2_27_x86_64.whl",
    }
    assert {"/".join(path.parts[-4:-1]) for path in wheels.values()} == {"jaxlib/tools/dist"}


def test_the_wheels_hold_what_those_of_jax_hold(wheels):
    plugin, pjrt = contents(wheels[PLUGIN]), contents(wheels[PJRT])
    info = "jax_rocm7_plugin-0.11.99+rocm7.10.0.dist-info"
    assert [*plugin] == [
        "jax_rocm7_plugin/__init__.py",
        "jax_rocm7_plugin/_linalg.so",
        "jax_rocm7_plugin/_prng.so",
        "jax_rocm7_plugin/rocm_plugin_extension.so",
        "jax_rocm7_plugin/version.py",
        *(f"{info}/{name}" for name in ("METADATA", "WHEEL", "top_level.txt", "RECORD")),
    ]
    assert metadata(wheels[PLUGIN])["Requires-Dist"] == "jax-rocm7-pjrt==0.11.99+rocm7.10.0"
    assert metadata(wheels[PJRT])["Name"] == "jax-rocm7-pjrt"
    assert metadata(wheels[PJRT])["Requires-Dist"] is None
    info = "jax_rocm7_pjrt-0.11.99+rocm7.10.0.dist-info"
    assert b"Root-Is-Purelib: true" in pjrt[f"{info}/WHEEL"]
    entry_points = b"[jax_plugins]\nxla_rocm7 = jax_plugins.xla_rocm7\n"
    assert pjrt[f"{info}/entry_points.txt"] == entry_points
    stamped = plugin["jax_rocm7_plugin/version.py"].decode()
    assert '= "0.11.99+rocm7.10.0"\n' in stamped
    assert f'= "{GIT_HASH}"\n' in stamped
    source = (WORKSPACE / "jax/version.py").read_bytes()
    assert pjrt["jax_plugins/xla_rocm7/version.py"] == source


def test_real_code_objects_are_held_against_each_of_several_families(wheels):
    """R44: all targets of each family, in the plugin and in pjrt; what is beyond is listed."""
    policy = yaml_file.read(WORKSPACE.parents[2] / "ci" / "wheel_policy.yaml", WheelPolicy)
    families = {"x": ("gfx90a", "gfx942"), "y": ("gfx1100",), "z": ("gfx1201",)}

    def said(path, **changed):
        meant = Expectation(families={**families, **changed})
        findings = verify(path, policy=policy, expected=meant)
        return [item for item in findings if item.rule == "gfx.targets"]

    for path in (wheels[PLUGIN], wheels[PJRT]):
        assert said(path) == []
        lacking = said(path, y=("gfx1100", "gfx1101"))
        assert lacking
        assert all("lacks gfx1101 of y" in item.message for item in lacking)
        assert {item.severity for item in lacking} == {Severity.ERROR}
        beyond = said(path, z=())
        assert beyond
        assert all(item.message.endswith("has besides gfx1201") for item in beyond)
        assert {item.severity for item in beyond} == {Severity.WARNING}


def test_the_libraries_find_rocm_relative_to_themselves_and_show_only_their_entry(wheels):
    for name, elf in {**libraries(wheels[PLUGIN]), **libraries(wheels[PJRT])}.items():
        runpath = "$ORIGIN/../rocm/lib:$ORIGIN/../../rocm/lib:/opt/rocm/lib"
        assert dynamic(elf, "DT_RUNPATH") == [runpath]
        assert dynamic(elf, "DT_SONAME") == []
        assert "libamdhip64.so.7" in dynamic(elf, "DT_NEEDED")
        entry = "GetPjrtApi" if name == "xla_rocm_plugin.so" else f"PyInit_{name[:-3]}"
        assert exported(elf) == {entry}
    assert "libhipblas.so.3" in dynamic(libraries(wheels[PLUGIN])["_linalg.so"], "DT_NEEDED")


def test_a_local_clang_compiles_host_code_and_its_toolchain_does_not_know_rocms_headers(bazel):
    options = (
        *bazel.options(bazel.pythons[0].version),
        *host_clang(),
        *(o for o in bazel.rocm_options() if o != "--config=rocm_release_wheel"),
        "--config=rocm_clang_local",
        "--@local_config_rocm//rocm:rocm_path_type=link_only",
    )
    extension = "//jaxlib/rocm:rocm_plugin_extension"  # the one without GPU code
    built = bazel.build(*options, extension)
    assert built.status == 0, built.said
    with built.outputs[extension][0].open("rb") as file:
        elf = ELFFile(file)
        assert b"clang version 19" in elf.get_section_by_name(".comment").data()
        runpath = "$ORIGIN/../rocm/lib:$ORIGIN/../../rocm/lib:/opt/rocm/lib"
        assert dynamic(elf, "DT_RUNPATH") == [runpath]
    built = bazel.build(*options, "//jaxlib/rocm:prng_kernels")
    assert built.status == 1
    assert "undeclared inclusion(s) in rule '//jaxlib/rocm:prng_kernels'" in built.said


def under_another_version(interpreter, folder):
    """The same CPython, which says that it is another and has other headers.

    A machine may have one CPython only (Debian 12 packages 3.11, and no registry has another);
    what Bazel builds anew for a second one does not depend on which it is.
    """
    asked = "import sysconfig; print(sysconfig.get_path('include'))"
    argv = [interpreter.executable, "-c", asked]
    include = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
    headers = Path(shutil.copytree(include, folder / "include"))
    with (headers / "patchlevel.h").open("a") as file:
        file.write("/* of another version */\n")
    old = interpreter.version
    new = PythonVersion(3, old.minor - 1 if old.minor > 10 else old.minor + 1)
    program = folder / f"python{new}"
    program.write_text(
        f'#!/bin/sh\n{interpreter.executable} "$@" | sed'
        f""" -e 's|"version": "{old}"|"version": "{new}"|' -e 's|"{include}"|"{headers}"|'\n"""
    )
    program.chmod(0o755)
    return replace(interpreter, version=new, executable=program)


def test_another_cpython_compiles_its_modules_only(bazel, wheels, tmp_path):
    if len(bazel.pythons) == 1:
        stand_in = under_another_version(bazel.pythons[0], tmp_path)
        bazel = replace(bazel, pythons=(*bazel.pythons, stand_in))
    bazel.build_gpu_wheels(bazel.pythons[0].version)  # another test may have relinked a library
    built = bazel.build_gpu_wheels(bazel.pythons[1].version)
    # Three modules compiled and linked, one wheel packed: no kernel, nothing of pjrt.
    assert re.fullmatch(r"8 processes: 1 internal, 7 [a-z]+-sandbox\.", built.processes)
    assert built.outputs[PJRT] == [wheels[PJRT]]
    back = bazel.build_gpu_wheels(bazel.pythons[0].version)
    assert back.processes == "1 process: 1 internal."


@pytest.mark.parametrize(
    ("variables", "suffix"),
    [
        ({}, ".dev0+selfbuilt"),
        ({"TYPE": "release", "VERSION_SUFFIX": ".post3"}, ".post3"),
        ({"TYPE": "nightly", "BUILD_DATE": "2026-05-01"}, ".dev20260501"),
    ],
)
def test_the_version_follows_the_ml_wheel_variables(bazel, variables, suffix):
    options = [f"--repo_env=ML_WHEEL_{name}={value}" for name, value in variables.items()]
    python = bazel.pythons[0].version
    tag = f"cp{python}".replace(".", "")
    name = bazel.declared_name(JAXLIB, *bazel.options(python), *options)
    assert name == f"jaxlib-0.11.99{suffix}-{tag}-{tag}-manylinux_2_27_x86_64.whl"


def test_the_header_of_the_rocm_root_decides_the_name_of_the_package(bazel, tmp_path):
    subprocess.run(["cp", "-rs", f"{bazel.rocm}/.", str(tmp_path)], check=True)
    header = tmp_path / "include/rocm-core/rocm_version.h"
    header.unlink()
    parts = ("MAJOR 10", "MINOR   1", "PATCH 0")
    header.write_text("".join(f"#define ROCM_VERSION_{part}\n" for part in parts))
    options = (*bazel.options(bazel.pythons[0].version), *bazel.rocm_options())
    rocm10 = f"--repo_env=ROCM_PATH={tmp_path}"
    name = bazel.declared_name(PJRT, *options, *RELEASE, rocm10)
    assert name == "jax_rocm10_pjrt-0.11.99+rocm7.10.0-py3-none-manylinux_2_27_x86_64.whl"


def test_a_cpython_that_only_pyenv_has_is_found(bazel, tmp_path):
    """A shim on PATH of a version that is not selected does not run."""
    versions = tmp_path / "versions"
    for patch in (9, 12):  # the newest counts
        (versions / f"3.12.{patch}" / "bin").mkdir(parents=True)
    (versions / "3.12.12" / "bin" / "python3.12").symlink_to("/bin/false")
    options = ("--repo_env=HERMETIC_PYTHON_VERSION=3.12", f"--repo_env=PYENV_ROOT={tmp_path}")
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "python3.12").symlink_to("/bin/false")
    built = bazel.build(*options, f"--repo_env=PATH={shims}:/usr/bin:/bin", *ALWAYS, PLUGIN)
    assert built.status != 0
    assert f"{versions}/3.12.12/bin/python3.12 does not run" in built.said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--repo_env=HERMETIC_PYTHON_VERSION=3.14-ft"], "HERMETIC_PYTHON_VERSION=3.14-ft: this"),
        (["--repo_env=CC=/nowhere/clang"], "name one with --repo_env=CC=<path>"),
        (["--repo_env=ROCM_PATH=/usr"], "ROCM_PATH=/usr is no ROCm root: include/rocm-core/"),
        (["--repo_env=TF_NEED_ROCM=0"], "needs ROCm: build with --config=rocm"),
        (["--repo_env=ML_WHEEL_TYPE=relase"], "ML_WHEEL_TYPE=relase: expected snapshot, release"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_compiled(bazel, options, message):
    python = bazel.pythons[0].version
    built = bazel.build(*bazel.options(python), *bazel.rocm_options(), *options, PLUGIN)
    assert built.status != 0
    assert message in built.said
    assert "sandbox" not in built.processes


def test_a_gpu_that_the_compiler_does_not_know_fails_with_the_compilers_own_words(bazel):
    python = bazel.pythons[0].version
    built = bazel.build_gpu_wheels(python, "--repo_env=TF_ROCM_AMDGPU_TARGETS=gfx942,gfx9999")
    assert built.status == 1
    assert "clang++: error: invalid target ID 'gfx9999'" in built.said
    assert "linux-sandbox.cc" not in built.said  # Debian's rc file asks for that chatter


def test_the_tarball_is_the_same_every_time(miniature_tarball, tmp_path):
    again = make_therock.make_tarball(tmp_path)
    assert again.name == "therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz"
    assert hashlib.sha256(again.read_bytes()).digest() == (
        hashlib.sha256(miniature_tarball.read_bytes()).digest()
    )
    assert [*tmp_path.iterdir()] == [again]


def test_the_tarball_is_laid_out_as_a_rocm_tree(bazel):
    rocm = bazel.rocm
    assert (rocm / ".info/version").read_text() == "7.10.0\n"
    header = (rocm / "include/rocm-core/rocm_version.h").read_text()
    assert "#define ROCM_VERSION_MAJOR 7\n#define ROCM_VERSION_MINOR 10\n" in header
    assert str((rocm / "lib/libamdhip64.so").readlink()) == "libamdhip64.so.7"
    assert str((rocm / "lib/libamdhip64.so.7").readlink()) == "libamdhip64.so.7.10.0"
    assert (rocm / "lib/llvm/amdgcn/bitcode/oclc_isa_version_1201.bc").is_file()
    assert not (rocm / "amdgcn").exists()  # TheRock has it from 7.12 on
    for link in (path for path in rocm.rglob("*") if path.is_symlink()):
        assert link.resolve(strict=True).is_relative_to(rocm)
    with (rocm / "lib/libamdhip64.so").open("rb") as file:
        elf = ELFFile(file)
        assert dynamic(elf, "DT_SONAME") == ["libamdhip64.so.7"]
        assert dynamic(elf, "DT_NEEDED") == ["librocm_sysdeps_numa.so.1"]
    assert (rocm / "lib/rocm_sysdeps/lib/librocm_sysdeps_numa.so.1").is_file()
    clang = [str(rocm / "bin/amdclang++"), "--version"]
    said = subprocess.run(clang, env={}, capture_output=True, text=True, check=True).stdout
    assert f"InstalledDir: {rocm}/lib/llvm/bin" in said


def test_hipcc_compiles_hip_lists_headers_of_the_host_and_obeys_rocm_path(bazel, tmp_path):
    def jobs(*words, **env):
        line = [str(bazel.rocm / "bin/hipcc"), "-###", *words]
        told = {"env": env, "cwd": tmp_path, "capture_output": True, "text": True}
        return subprocess.run(line, check=False, **told).stderr

    (tmp_path / "a.cc").touch()
    compiled = jobs("--offload-arch=gfx942", "-c", "a.cc", "-o", "b.cc")
    assert '"-x" "hip" "a.cc"' in compiled
    assert '"-triple" "amdgcn-amd-amdhsa"' in compiled
    listed = jobs("--offload-arch=gfx942", "-M", "a.cc")
    assert '"-x" "hip" "a.cc"' in listed
    assert '"-triple" "amdgcn-amd-amdhsa"' not in listed
    assert '"-x" "c++" "a.cc"' in jobs("-x", "c++", "-c", "a.cc", HIP_COMPILE_CXX_AS_HIP="0")
    assert "/elsewhere/lib/llvm/bin/clang++" in jobs("-c", "a.cc", ROCM_PATH="/elsewhere")


@pytest.mark.parametrize(
    ("version", "name"), [("6.4.1", "6.4.1"), ("7.2.0rc1", "7.2.0"), ("10.1.0.dev0+abc", "10.1.0")]
)
def test_a_rocm_version_is_read_without_its_ending(version, name):
    assert str(make_therock.RocmVersion.parse(version)) == name


def test_what_cannot_become_a_tarball_is_refused_in_words(tmp_path):
    with pytest.raises(SystemExit, match=r"not a ROCm version: 7\.10\n"):
        make_therock.make_tarball(tmp_path, rocm_version="7.10")
    with pytest.raises(SystemExit, match=r"rocm\.zip: unknown kind of tarball\n"):
        make_therock.make_tarball(tmp_path / "rocm.zip")
    assert [*tmp_path.iterdir()] == []


def test_missing_debian_packages_are_named(tmp_path):
    assert set(make_therock.missing_packages(tmp_path)) >= {"clang-19", "rocm-device-libs"}
    assert make_therock.missing_packages() == []
    assert set(make_therock.DEBIAN_PACKAGES) <= set(debian.MINIATURE_PACKAGES)
