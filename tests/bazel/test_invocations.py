"""What cannot work is refused before Bazel starts; what can is said to Bazel in one way."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
from packaging.version import Version

from rocwheel import bazel, source
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion, RocmVersion, WheelKind
from rocwheel.bazel import BazelBinary, BuildSpec, Caches, Compiler, Remote

LAYOUTS = source.load_layouts(Path(__file__).parents[2] / "ci" / "layouts.yaml")
HASH = "0123456789abcdef0123456789abcdef01234567"


OLD = {
    "jax": "0.9.1",
    "compiler": Compiler(kind="clang", cc=PurePosixPath("/clang"), major=19),
}


def spec(jax: str = "0.11.0", **changes: object) -> BuildSpec:
    found = LAYOUTS["upstream"]
    version_class = found.version_class(Version(jax))
    assert version_class is not None
    base = BuildSpec(
        bazel=BazelBinary(path=PurePosixPath("/bin/bazel"), version="7.7.0", origin="flag"),
        workspace=PurePosixPath("/src"),
        layout=found,
        version_class=version_class,
        jax_version=jax,
        kinds=(WheelKind.PLUGIN, WheelKind.PJRT),
        pythons=(PythonVersion(3, 12), PythonVersion(3, 13)),
        rocm=RocmVersion.parse("7.10.0"),
        rocm_root=PurePosixPath("/rocm"),
        rocm_number="7",
        gfx_targets=("gfx942",),
        caches=Caches(output_user_root=PurePosixPath("/c"), disk=None, repository=None),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_a_bazel_whose_version_is_unknown_is_called_so():
    path = PurePosixPath("/bin/bazel")
    made = BazelBinary(path=path, version="unknown", origin="flag")
    assert str(made) == "Bazel of unknown version: /bin/bazel (flag)"
    assert str(replace(made, version="7.7.0")) == "Bazel 7.7.0: /bin/bazel (flag)"


def refusal(**changes: object) -> str:
    with pytest.raises(ConfigError) as caught:
        bazel.invocations(spec(**changes))
    assert caught.value.hint
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gfx_targets": ()}, "no gfx targets"),
        ({"pythons": ()}, "nothing to build"),
        ({"rocm": RocmVersion.parse("10.1.0")}, "ROCm 10.1.0: JAX 0.11.0 needs ROCm <8,>=7.1"),
        ({"rocm": RocmVersion.parse("7.0.2")}, "ROCm 7.0.2: JAX 0.11.0 needs ROCm <8,>=7.1"),
        ({"jax": "0.9.2", "rocm": RocmVersion.parse("6.4.1")}, "JAX 0.9.2 needs ROCm <8,>=7"),
        ({"jax": "0.9.1", "rocm": RocmVersion.parse("10.1.0")}, "JAX 0.9.1 needs ROCm <8"),
        (OLD | {"rocm": RocmVersion.parse("10.1.0")}, "JAX 0.9.1 needs ROCm <8"),
        ({"wheel_suffix": "post3"}, "PEP 440 spells it"),
        ({"workspace": PurePosixPath("/my src")}, "blank in its path"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(changes, reason):
    assert reason in refusal(**changes)


def test_rocm_10_is_refused_for_a_jaxlib_that_does_not_look_for_its_plugin():
    ten = {"rocm": RocmVersion.parse("10.1.0"), "rocm_number": "10"}
    assert "needs ROCm" in refusal(jax="0.11.0", **ten)
    with pytest.raises(ConfigError) as caught:
        bazel.invocations(spec(jax="0.11.0", **ten))
    assert "or another JAX: the first with it is >=0.11.1" in caught.value.hint
    assert bazel.invocations(spec(jax="0.11.1", **ten))
    assert bazel.invocations(spec(jax="0.12.0", **ten))


@pytest.mark.parametrize("rocm", ["8.0.0", "9.1.0a20260811", "11.0.0"])
@pytest.mark.parametrize("jax", ["0.8.0", "0.9.1", "0.10.0", "0.11.0", "0.11.1", "0.12.0.1"])
def test_no_plugin_is_built_for_a_rocm_that_no_jaxlib_looks_for(rocm, jax):
    version = RocmVersion.parse(rocm)
    with pytest.raises(ConfigError, match=f"ROCm {rocm}: JAX {jax} needs ROCm") as caught:
        bazel.invocations(spec(jax=jax, rocm=version, rocm_number=str(version.major)))
    assert caught.value.hint == "choose another ROCm: no JAX has this one yet"


# What JAX's build would declare as file name and setuptools would write: equal or not.
@pytest.mark.parametrize(
    "suffix",
    ["", "rc1", ".post3", ".dev20260501", "+rocm7.2.0", "+rocm7.13.0a20260401", "+rocm07.2",
     "+devrocm7.10.0.dev0efed3c", "+rocm7.10.0.xla012345678.dirty"],
)  # fmt: skip
def test_a_suffix_in_normal_form_is_accepted(suffix):
    planned = bazel.invocations(spec(wheel_suffix=suffix))
    given = f"--repo_env=ML_WHEEL_VERSION_SUFFIX={suffix}" in planned[0].options
    assert given == bool(suffix)


@pytest.mark.parametrize(
    "suffix", ["post3", "+rocm7_2", "+ROCm7", "+012345678", "+007", "+a+b", "+", "/x"]
)
def test_a_suffix_that_would_fail_after_hours_is_refused(suffix):
    assert "PEP 440" in refusal(wheel_suffix=suffix)


@pytest.mark.parametrize(
    ("wheel", "effective"),
    [
        ({"wheel_type": "snapshot"}, ".dev0+selfbuilt"),
        ({"wheel_suffix": ".post1"}, ".post1"),
        ({"wheel_suffix": "+devrocm7.10.0.dev0-efed3c"}, "+devrocm7.10.0.dev0efed3c"),
    ],
)
def test_the_suffix_follows_the_rule_of_jaxs_build(wheel, effective):
    assert spec(**wheel).version_suffix == effective


@pytest.mark.parametrize(
    ("major", "newer", "old"), [(15, False, True), (18, True, True), (19, True, False)]
)
def test_compiler_options_follow_the_version_of_clang(major, newer, old):
    cc, cxx = PurePosixPath("/cc"), PurePosixPath("/c+")
    compiler = Compiler(kind="clang", cc=cc, cxx=cxx, major=major)
    planned = bazel.invocations(spec(jax="0.9.1", compiler=compiler))[0]
    assert ("--config=clang" in planned.options) == newer
    assert ("--define=xnn_enable_avxvnniint8=false" in planned.options) == old
    assert "--repo_env=CC=/cc" in planned.options


@pytest.mark.parametrize(
    ("features", "config"),
    [("release", "avx_posix"), ("native", "native_arch_posix"), ("default", None)],
)
def test_cpu_features_are_one_config_or_none(features, config):
    planned = bazel.invocations(spec(**OLD, cpu_features=features))[0]
    given = {"--config=avx_posix", "--config=native_arch_posix"} & set(planned.options)
    assert given == ({f"--config={config}"} if config else set())


def test_own_startup_options_come_last_before_the_command():
    (planned, _) = bazel.invocations(spec(startup_options=("--host_jvm_args=-Xmx8g",)))
    argv = planned.command_line().argv
    assert argv[argv.index("build") - 1] == "--host_jvm_args=-Xmx8g"


def test_free_threading_needs_the_version_and_the_flag():
    (planned,) = bazel.invocations(
        spec(kinds=(WheelKind.JAXLIB,), pythons=(PythonVersion(3, 14, free_threaded=True),))
    )
    assert "--repo_env=HERMETIC_PYTHON_VERSION=3.14-ft" in planned.options
    assert "--@rules_python//python/config_settings:py_freethreaded=yes" in planned.options


def test_everything_bazel_writes_lies_in_the_cache_folder():
    (planned, _) = bazel.invocations(spec())
    startup = dict(option.split("=", 1) for option in planned.startup if "=" in option)
    assert startup["--output_user_root"] == "/c"
    assert startup["--output_base"].startswith("/c/")
    assert "--symlink_prefix=/" in planned.options
    assert {"--nohome_rc", "--nosystem_rc"} <= {*planned.startup}


def test_own_options_come_last_and_after_those_for_the_remote_cache():
    remote = Remote(cache="http://cache", upload=True)
    (planned, _) = bazel.invocations(spec(remote=remote, options=("--remote_timeout=1", "-k")))
    assert planned.options[-2:] == ("--remote_timeout=1", "-k")
    assert "--remote_cache=http://cache" in planned.options
    assert "--remote_upload_local_results" in planned.options


def test_the_same_build_has_the_same_key_and_another_has_another():
    one, two = (bazel.invocations(spec())[0].key for _ in range(2))
    assert one == two
    assert bazel.invocations(spec(gfx_targets=("gfx90a",)))[0].key != one


def test_trees_have_output_bases_of_their_own():
    assert spec().output_base == spec(pythons=(PythonVersion(3, 11),)).output_base
    assert spec().output_base != spec(workspace=PurePosixPath("/other")).output_base


@pytest.mark.parametrize(
    ("jax", "modules", "given"),
    [
        ("0.9.1", False, ["repository"]),
        ("0.9.1", True, ["repository", "module"]),  # --config=bzlmod: the first is ignored there
        ("0.9.2", None, ["module"]),
        ("0.11.0", False, ["repository", "module"]),  # as JAX's own CLI does
        ("0.12.0", True, ["repository", "module"]),
        ("0.12.0", None, ["module"]),
    ],
)
def test_a_local_xla_is_used_with_and_without_bzlmod(jax, modules, given):
    made = bazel.invocations(spec(jax, xla_dir=PurePosixPath("/xla"), modules=modules))
    overrides = [item for item in made[0].options if item.startswith("--override_")]
    assert overrides == [f"--override_{kind}=xla=/xla" for kind in given]
