"""The known reasons why a real build fails: each is seen before Bazel starts, on a tree of its age.

The trees are made in code (support.generations); the compilers are scripts that answer as clang
does, because what is tested is which one is asked and what its answer means.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path, PurePosixPath

import pytest
from support import generations, tarballs
from support.generations import GENERATIONS

from rocwheel import bazel, dist, rocm
from rocwheel.base import home
from rocwheel.base.console import silent
from rocwheel.base.errors import ConfigError, HostError, RocmError, SourceError
from rocwheel.base.host.machine import Programs
from rocwheel.base.values import replace
from rocwheel.base.versions import RocmVersion
from rocwheel.dist import checks, inputs

ROOT = Path(__file__).parents[2]
TARBALL = "therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz"
OWN_CLANG = {"0.8.0", "0.8.3", "0.9.1", "0.9.2", "0.10.0", "0.10.1"}


@pytest.fixture
def clang(tmp_path):
    """A folder with clang and clang++; `linkers` are what they find."""

    def make(*linkers):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        names = [f"ld.{name}" for name in linkers]
        answers = "".join(f"-print-prog-name={name}) echo {folder}/{name};;\n" for name in names)
        script = (
            f'#!/bin/sh\ncase "$1" in\n-dumpversion) echo 19.1.0;;\n{answers}'
            "-print-prog-name=*) echo ${1#*=};;\nesac\n"
        )
        for name in ("clang", "clang++", *names):
            (folder / name).write_text(script)
            (folder / name).chmod(0o755)
        return folder

    return make


@pytest.fixture
def look(tmp_path, here, clang):
    """A tree, its build specification, and what the checks say of it."""

    def run(generation, *, says="", named=None, linkers=("gold", "lld"), **changes):
        folder = clang(*linkers)
        root = tmp_path / "jax"
        generations.write(root, generation, says=says, clang=str(named or folder / "clang"))
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        for words in (
            ("init", "-q"),
            ("add", "-A"),
            (*identity, "commit", "-qm", "t", "--allow-empty"),
        ):
            subprocess.run(["git", "-C", str(root), *words], check=True)
        asked = dist.Request(
            allow_dirty=True,  # of the checkout that the tests stand in
            therock=f"https://example.com/{TARBALL}",
            jax_source_dir=root,
            jaxlib="built",
            wheelhouse=tmp_path / "wheelhouse",
            cache=tmp_path / "cache",
            home=home.find(None),
            cwd=tmp_path,
            environ={"PATH": f"{folder}:{os.environ['PATH']}"},
        )
        planned = dist.plan(replace(asked, **changes))
        found = inputs.gather(planned, here, fetch=False)
        return planned, found.tree, found.spec, found.notes

    return run


def recipe(spec):
    (first, *_) = bazel.invocations(spec)
    return first.recipe


# Cause 1: the machine's own clang, where the class can be built with it.


@pytest.mark.parametrize("version", GENERATIONS)
def test_clang_is_the_machines_own_only_where_the_class_can_be_built_with_it(version, look):
    _, _, spec, notes = look(GENERATIONS[version])
    assert (spec.compiler.kind == "clang") == (version in OWN_CLANG)
    said = [note for note in notes if "not this machine's own" in note]
    assert bool(said) == (version not in OWN_CLANG)
    assert ("--config=rocm_clang_local" in recipe(spec)) is False


def test_a_compiler_that_is_named_is_taken_with_a_warning_that_says_why_not(look, clang):
    _, _, spec, notes = look(GENERATIONS["0.11.0"], compiler_path=clang("lld") / "clang")
    assert spec.compiler.kind == "clang"
    assert "--config=rocm_clang_local" in recipe(spec)
    assert any("will probably fail" in note and "46297" in note for note in notes)


@pytest.mark.parametrize(
    ("changed", "compiler"),
    [("clang", "clang"), ("clang++", "clang"), ("ld.lld", "clang"), ("clang", "hermetic")],
)
def test_the_bytes_of_the_machines_compiler_are_in_the_keys_of_actions(
    look, clang, tmp_path, changed, compiler
):
    own = clang("gold", "lld").rename(tmp_path / "own")
    for name in ("clang", "clang++"):
        (own / name).write_text((own / name).read_text().replace(f"{tmp_path}/bin", str(own)))

    named = "compiler_path" if compiler == "clang" else "named"  # by the tree's rc file

    def keys():
        asked = {"compiler": compiler, named: own / "clang"}
        options = recipe(look(GENERATIONS["0.10.1"], **asked)[2])
        parts = (option.partition("=ROCWHEEL_HOST_COMPILER=") for option in options)
        return {name: digest for name, _, digest in parts if digest}

    before = keys()
    assert {*before} == {"--action_env", "--host_action_env"}
    assert keys() == before
    with (own / changed).open("a") as script:
        script.write("# of another release\n")
    assert keys().items().isdisjoint(before.items())


# Cause 2: `hermetic` is not hermetic up to 0.10.1.


@pytest.mark.parametrize("version", sorted(OWN_CLANG))
def test_hermetic_says_which_compiler_of_the_machine_it_takes(version, look):
    _, _, _, notes = look(GENERATIONS[version], compiler="hermetic")
    assert any("all the same" in note and "bin/clang" in note for note in notes)


@pytest.mark.parametrize("version", sorted(OWN_CLANG))
def test_hermetic_is_refused_where_the_compiler_it_takes_is_not_there(version, look):
    with pytest.raises(HostError, match=f"JAX {version} compiles its ROCm wheels") as caught:
        look(GENERATIONS[version], compiler="hermetic", named="/nowhere/clang")
    assert "--compiler clang" in caught.value.hint


def test_hermetic_is_hermetic_from_0_10_2_on(look):
    _, _, _, notes = look(GENERATIONS["0.11.0"], compiler="hermetic", named="/nowhere/clang")
    assert not any("all the same" in note for note in notes)


# Cause 3: what a tree has decides, not what it says.


@pytest.mark.parametrize(
    ("has", "says", "expected"),
    [
        (GENERATIONS["0.11.0"], "0.10.1", "JAX <0.11.1,>=0.10.2"),  # jax-ml/jax d521deb88b
        (generations.BEFORE_0_9_2, "0.9.2", "JAX <=0.9.2,>0.9.1"),  # jax-ml/jax 66dbacad76
        (GENERATIONS["0.11.1"], "0.11.2.dev3", "JAX >=0.11.1"),
        (GENERATIONS["0.9.1"], "0.9.0", "JAX <0.9.2,>=0.9"),
        (GENERATIONS["0.8.3"], "0.9.1", "JAX <0.9,>=0.8.1"),
        # 0.8.0 had these configs, too, and an XLA that needs less: 58154561ec, edf82d1088
        (GENERATIONS["0.9.1"], "0.8.3", "JAX <0.9.2,>=0.9"),
        (GENERATIONS["0.9.1"], "0.9.2", "JAX <0.9.2,>=0.9"),
    ],
)
def test_the_class_follows_from_what_the_tree_has(has, says, expected, look):
    _, tree, _, notes = look(has, says=says)
    assert str(tree.version_class) == expected
    fits = says.split(".dev")[0] in tree.version_class.versions
    assert any("but has what" in note for note in notes) is not fits


def test_the_number_in_the_wheels_names_is_read_from_the_tree(look):
    plugin = replace(generations.BEFORE_0_9_2, plugin='"jax_rocm7_plugin"')
    assert look(plugin)[2].rocm_number == "7"
    assert look(GENERATIONS["0.9.1"])[2].rocm_number == "60"


def test_a_version_without_a_comparison_is_warned_of(look):
    _, _, _, notes = look(GENERATIONS["0.11.1"], says="0.13.0")
    assert any("newer than what rocwheel was compared with" in note for note in notes)


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        (".bazelrc", "mkl_open_source_only", "--config=mkl_open_source_only: no rc file"),
        ("jaxlib/tools/BUILD.bazel", "jaxlib_git_hash", "jaxlib_git_hash=.*: no BUILD file"),
    ],
)
def test_every_config_and_flag_is_looked_up_before_bazel_starts(file, text, problem, look):
    good = GENERATIONS["0.11.0"]
    root = look(good)[1].root
    changed = (root / file).read_text().replace(text, "renamed")
    with pytest.raises(SourceError, match="options that its class needs") as caught:
        look(replace(good, files={**good.files, file: changed}))
    assert caught.value.detail
    assert re.search(problem, caught.value.detail)


# Cause 4: the linker.


@pytest.mark.parametrize("version", sorted(OWN_CLANG))
def test_gold_is_asked_for_up_to_0_10_1(version, look):
    with pytest.raises(HostError, match=r"ld.gold") as caught:
        look(GENERATIONS[version], linkers=("lld",))
    assert "binutils" in caught.value.hint


def test_lld_is_asked_for_where_the_machines_own_clang_links_a_late_jax(look, clang):
    own = {"compiler_path": clang("gold") / "clang", "linkers": ("gold",)}
    with pytest.raises(HostError, match=r"ld.lld") as caught:
        look(GENERATIONS["0.11.0"], **own)
    assert "apt-get install lld" in caught.value.hint
    assert look(GENERATIONS["0.11.0"], linkers=("gold",))  # the hermetic clang brings its own


@pytest.mark.parametrize("version", ["0.9.2", "0.10.1"])
def test_the_linker_is_looked_for_before_the_tree_is_fetched_too(version, look, clang, tmp_path):
    pin = {"jax_source_dir": None, "jaxlib": None, "jax_version": version}
    with pytest.raises(HostError, match=r"ld\.gold"):
        look(GENERATIONS["0.11.0"], linkers=("lld",), **pin)
    assert look(GENERATIONS["0.11.0"], linkers=("gold",), **pin)
    notes = look(GENERATIONS["0.11.0"], compiler="hermetic", **pin)[3]
    assert any("that its rc file names" in note for note in notes)


def test_a_linker_that_only_the_rc_files_ask_for_is_looked_for_too(look):
    old = GENERATIONS["0.9.1"]
    more = replace(old, bazelrc=old.bazelrc + 'common:clang_local --linkopt="-fuse-ld=lld"\n')
    with pytest.raises(HostError, match=r"ld.lld"):
        look(more, linkers=("gold",))


# Cause 5: ROCm has what XLA looks for.


@pytest.mark.parametrize("version", GENERATIONS)
def test_a_rocm_is_checked_for_all_that_this_jax_looks_for_at_once(version, look, tmp_path, runner):
    _, tree, _, _ = look(GENERATIONS[version])
    folder = tarballs.rocm_folder(tmp_path / "rocm")
    asked = rocm.plan(str(folder), sha256=None, version=None, cache=tmp_path, cwd=tmp_path)
    root = rocm.fetch(asked, console=silent())
    checks.check_rocm(tree, root.root, name=root.name, targets=("gfx942",), runner=runner)
    gone = ("include/miopen/version.h", "lib/librocsolver.so", "include/roctracer/roctracer.h")
    for name in gone:
        (folder / name).unlink()
    with pytest.raises(RocmError, match=f"3 of the files JAX {version} looks for") as caught:
        checks.check_rocm(tree, root.root, name=root.name, targets=("gfx942",), runner=runner)
    assert {line.split(" or ")[0] for line in caught.value.detail.splitlines()} == set(gone)


@pytest.mark.parametrize(
    ("place", "hint"),
    [
        ("site-packages/_rocm_sdk_core", "`rocm-sdk init` makes _rocm_sdk_devel"),
        ("rocm", "ln -s lib/llvm/amdgcn"),
    ],
)
def test_a_rocm_whose_clang_fails_is_an_error_with_a_hint(place, hint, look, tmp_path, runner):
    _, tree, _, _ = look(GENERATIONS["0.11.0"])
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    folder = tarballs.rocm_folder(tmp_path / place)
    (folder / "amdgcn").unlink()
    clang = folder / "lib/llvm/bin/clang-20"
    clang.write_text(
        "#!/bin/sh\necho 'clang: error: cannot find ROCm device library' >&2\nexit 1\n"
    )
    with pytest.raises(RocmError, match="compiles nothing for 1 of 1 gfx targets") as caught:
        checks.check_rocm(tree, folder, name="rocm", targets=("gfx942",), runner=runner)
    assert caught.value.detail == "gfx942: cannot find ROCm device library"
    assert hint in caught.value.hint
    if hint.startswith("`rocm-sdk"):  # as `rocm fetch` says of it, and of the folder around it
        clang.unlink()
        for named in (folder, folder.parent):
            with pytest.raises(RocmError) as refused:
                rocm.check_local(
                    rocm.plan(str(named), sha256=None, version=None, cache=tmp_path, cwd=tmp_path)
                )
            assert refused.value.hint == caught.value.hint


def test_the_links_that_bring_what_is_missing_are_named_and_no_others(look, tmp_path, runner):
    _, tree, _, _ = look(GENERATIONS["0.9.2"])
    folder = tarballs.rocm_folder(tmp_path / "rocm")
    (folder / "amdgcn").unlink()
    (folder / "llvm").unlink()

    with pytest.raises(RocmError, match="lacks 5 of the files") as caught:
        checks.check_rocm(tree, folder, name="rocm", targets=("gfx942",), runner=runner)
    lines = caught.value.hint.partition("; or name")[0]
    (folder / "lib/llvm/bin/lld").rename(tmp_path / "lld")
    with pytest.raises(RocmError, match="lacks 5 of the files") as whole:
        checks.check_rocm(tree, folder, name="rocm", targets=("gfx942",), runner=runner)
    assert whole.value.hint.startswith("use a whole TheRock distribution")
    (tmp_path / "lld").rename(folder / "lib/llvm/bin/lld")
    subprocess.run(lines, shell=True, check=True)
    checks.check_rocm(tree, folder, name="rocm", targets=("gfx942",), runner=runner)


def test_readelf_is_a_program_of_the_machine_that_old_rules_run(look, runner):
    _, tree, _, _ = look(GENERATIONS["0.10.1"])
    with pytest.raises(HostError, match="readelf"):
        checks.check_programs(tree, Programs(runner=runner, path="/nowhere"))


# Cause 7: GPU code is compressed for every generation.


@pytest.mark.parametrize("version", GENERATIONS)
def test_gpu_code_is_compressed_by_the_tree_or_by_us_never_twice(version, look):
    _, tree, spec, _ = look(GENERATIONS[version])
    options = tree.rc.flatten(recipe(spec))
    said = [option for option in options if option.endswith("--offload-compress")]
    assert said == ["--action_env=HIPCC_COMPILE_FLAGS_APPEND=--offload-compress"]


# Cause 8: options that would silently undo another one.


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("--repo_env=HERMETIC_PYTHON_VERSION=3.13", "--python-versions"),
        ("--repo_env=ML_WHEEL_VERSION_SUFFIX=+x", "--wheel-suffix"),
        ("--action_env=ROCM_PATH=/opt/rocm", "--therock-path"),
        ("--repo_env=ROCM_DISTRO_URL=https://example.org/x", "--therock-path"),
        ("--repo_env=TF_ROCM_AMDGPU_TARGETS=gfx90a", "--gfx-targets"),
        ("--action_env=ROCM_PATH", "--therock-path"),
        ("--repo_env ROCM_PATH=/opt/rocm", "--therock-path"),
        ('--repo_env="ROCM_PATH=/opt/rocm"', "--therock-path"),
        ("--repo_env=TF_NEED_ROCM=1", "--therock-path"),
        ("--client_env=ROCM_PATH=/opt/rocm", "--therock-path"),
        ("--override_repository=xla=/x", "--xla-source-dir"),
        ("--inject_repository=xla=/x", "--xla-source-dir"),
        ("--build_event_json_file=/x", "finds the wheels with it"),
        ("--@rules_python//python/config_settings:py_freethreaded=yes", "--python-versions"),
        ("--config=rocm", "--config=rocm holds --repo_env=TF_NEED_ROCM=1: decided by"),
        ("--config=rocm_clang_local", "decided by --therock-path"),
    ],
)
def test_an_option_that_another_one_decides_is_refused(option, instead, look):
    with pytest.raises(ConfigError, match="decided by") as caught:
        look(GENERATIONS["0.11.0"], bazel_options=tuple(option.split(" ")))
    assert instead in str(caught.value)


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        (("--output_base=/x",), "--cache-dir"),
        (("--output_user_root", "/x"), "--cache-dir"),
        (("--noworkspace_rc",), "the tree"),
        (("--ignore_all_rc_files",), "the tree"),
    ],
)
def test_an_option_before_the_command_that_another_one_decides_is_refused(options, instead, look):
    with pytest.raises(ConfigError, match="decided by") as caught:
        look(GENERATIONS["0.11.0"], bazel_startup_options=options)
    assert instead in str(caught.value)


@pytest.mark.parametrize(
    "option",
    [
        "--",
        "",
        "jobs=3",
        "//some:target",
        "--repo_env ROCM_PATH=/x",
        '"--jobs=3"',
        "'--repo_env=ROCM_PATH=/x'",
        "-c opt",
    ],
)
def test_what_bazel_would_not_take_as_one_option_is_refused(option, look):
    with pytest.raises(ConfigError, match="not one option as Bazel takes it"):
        look(GENERATIONS["0.11.0"], bazel_options=(option,))


def test_a_misspelt_config_is_an_error_with_the_nearest_one(look):
    with pytest.raises(ConfigError, match=r"no rc file of .* defines it") as caught:
        look(GENERATIONS["0.11.0"], bazel_options=("--config", "native_arch_posx"))
    assert caught.value.hint == "did you mean native_arch_posix?"


def test_a_config_of_the_users_own_rc_file_is_known_and_taken_apart(look, tmp_path):
    own = tmp_path / "own.bazelrc"
    own.write_text("build:fast --jobs=3\nbuild:other --repo_env ROCM_PATH=/opt/rocm\n")
    startup = {"bazel_startup_options": (f"--bazelrc={own}",)}
    assert look(GENERATIONS["0.11.0"], bazel_options=("--config=fast",), **startup)
    with pytest.raises(ConfigError, match="--config=other holds --repo_env=ROCM_PATH=/opt/rocm"):
        look(GENERATIONS["0.11.0"], bazel_options=("--config=other",), **startup)


def test_a_value_in_a_word_of_its_own_is_no_mistake(look):
    options = ("--jobs", "3", "-c", "opt", "--repo_env=TMPDIR=/x")
    assert look(GENERATIONS["0.11.0"], bazel_options=options)


def test_an_rc_file_of_the_user_that_is_not_there_is_named(look):
    with pytest.raises(ConfigError, match=r"/nowhere\.rc: no such file"):
        look(GENERATIONS["0.11.0"], bazel_startup_options=("--bazelrc=/nowhere.rc",))


def test_what_a_personal_rc_file_decides_behind_ones_back_is_refused(look):
    good = GENERATIONS["0.10.1"]
    rc = good.bazelrc + "try-import %workspace%/.bazelrc.user\n"
    for text, refused in (
        ("build --jobs=3\nbuild:own --repo_env=ROCM_PATH=/x\n", False),
        ("build --repo_env ROCM_PATH=/x\n", True),
    ):
        tree = replace(good, bazelrc=rc, files={**good.files, ".bazelrc.user": text})
        if refused:
            with pytest.raises(ConfigError, match=r"\.bazelrc\.user:1 holds --repo_env=ROCM_PATH"):
                look(tree)
        else:
            assert any("your own Bazel options" in note for note in look(tree)[3])


def test_a_path_beside_the_hermetic_compiler_is_refused(look, clang):
    with pytest.raises(ConfigError, match="--compiler hermetic is the one JAX chooses"):
        look(GENERATIONS["0.11.0"], compiler="hermetic", compiler_path=clang("lld") / "clang")


def test_the_compiler_that_a_users_option_names_is_the_one_that_is_looked_for(look):
    option = "--action_env=CLANG_COMPILER_PATH=/nowhere/clang"
    with pytest.raises(HostError, match="/nowhere/clang: not found"):
        look(GENERATIONS["0.10.1"], bazel_options=(option,))


def test_a_checked_tree_gives_the_specification_of_its_rocm(look):
    _, _, spec, _ = look(GENERATIONS["0.11.0"])
    assert spec.rocm == RocmVersion.parse("7.10.0a20251120")
    assert isinstance(spec.rocm_root, PurePosixPath)


VENDOR = """
#if defined(JAX_GPU_CUDA)
#include "third_party/gpus/cuda/include/cuda.h"
#elif defined(JAX_GPU_HIP)
#include "rocm/include/hip/hip_runtime_api.h"
#include "rocm/include/hipsolver/hipsolver.h"
#include "rocm/include/miopen/miopen.h"
#include "rocm/rocm_config.h"
#if TF_ROCM_VERSION >= 80000
#include "rocm/include/hipdnn/hipdnn.h"
#endif
#endif
"""


@pytest.mark.needs("clang-19")
def test_headers_that_the_trees_sources_include_are_looked_for(look, tmp_path, runner):
    """Their conditions count, what headers include counts, and a vendor's own are left out."""
    _, tree, _, _ = look(GENERATIONS["0.11.0"])
    (tree.workspace / "jaxlib" / "gpu").mkdir(parents=True)
    (tree.workspace / "jaxlib" / "gpu" / "vendor.h").write_text(VENDOR)
    root = tmp_path / "rocm"
    for name, text in {
        "hip/hip_runtime_api.h": "#include <cstdint>\n",
        "hipsolver/hipsolver.h": "#include <hipblas-common/hipblas-common.h>\n",
        "rocm-core/rocm_version.h": "#define ROCM_VERSION_MAJOR 7\n#define ROCM_VERSION_MINOR 10\n"
        "#define ROCM_VERSION_PATCH 0\n",
    }.items():
        path = root / "include" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "lib/llvm/bin").mkdir(parents=True)
    (root / "lib/llvm/bin/clang++").symlink_to("/usr/bin/clang++-19")
    missing = checks.lacking_headers(tree, root, runner)
    assert missing == ["include/hipblas-common/hipblas-common.h", "include/miopen/miopen.h"]

    (root / "lib/llvm/bin/clang++").unlink()
    (root / "lib/llvm/bin/clang++").write_text("#!/bin/sh\nexit 1\n")
    assert checks.lacking_headers(tree, root, runner) == [], "a clang that fails says nothing"
