"""Every version class asks Bazel for what JAX's own build does, but for listed differences."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from rocwheel import bazel, source
from rocwheel.base.errors import ConfigError
from rocwheel.base.versions import PythonVersion, RocmVersion, WheelKind, rocm_number
from rocwheel.bazel import BazelBinary, BuildSpec, Caches, Compiler

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
LAYOUTS = source.load_layouts(ROOT / "ci" / "layouts.yaml")
TABLE = json.loads((DATA / "jax_options.json").read_text())
_LISTED = yaml.safe_load((DATA / "jax_differences.yaml").read_text())
TRAPS, DIFFERENCES = _LISTED["traps"], _LISTED["differences"]

# What the recorded sources say about themselves.
VERSIONS = {
    "jax-ml/jax@cec06d116c05f0d52adfceee3d3b730fdbcb0ce5": "0.11.1",
}
# The release flow that JAX has from 0.9.2 on, recorded at sources that have no such config too.
RELEASE_FLOW = {"r1", "r2", "r4"}


def version_of(ref: str) -> Version:
    return Version(VERSIONS.get(ref) or ref.rpartition("jax-v")[2])


def is_real(request: str, ref: str) -> bool:
    return request not in RELEASE_FLOW or version_of(ref) >= Version("0.9.2")


CASES = [
    (request, ref, result)
    for request, entry in TABLE.items()
    for result in entry["results"]
    for ref in result["refs"]
    if is_real(request, ref)
]
IDS = [f"{request}-{ref.rpartition('@')[2]}" for request, ref, _ in CASES]


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A recorded request, as rocwheel would be asked for the same."""

    version: Version
    argv: dict[str, list[str]]

    @classmethod
    def read(cls, request: str, ref: str) -> Recorded:
        argv: dict[str, list[str]] = {}
        for word in TABLE[request]["argv"][3:]:
            name, _, value = word.replace("@ROOT@", "/recorded").partition("=")
            argv.setdefault(name.removeprefix("--"), []).append(value)
        return cls(version=version_of(ref), argv=argv)

    def spec(self, **changes: object) -> BuildSpec:
        layout = LAYOUTS["upstream"]
        version_class = layout.version_class(self.version)
        assert version_class is not None
        options = self.argv.get("bazel_options", [])
        said = dict(
            option.removeprefix("--repo_env=").split("=", 1)
            for option in options
            if option.startswith("--repo_env=")
        )
        names = {"jaxlib": "jaxlib", "jax-rocm-plugin": "plugin", "jax-rocm-pjrt": "pjrt"}
        rocm = RocmVersion.parse("7.2.0")
        suffix = said.get("ML_WHEEL_VERSION_SUFFIX", "")
        settings: dict[str, object] = {
            "bazel": BazelBinary(path=PurePosixPath("/bin/bazel"), version="7.7.0", origin="flag"),
            "workspace": PurePosixPath("/src"),
            "layout": layout,
            "version_class": version_class,
            "jax_version": str(self.version),
            "kinds": tuple(WheelKind(names[name]) for name in self.argv["wheels"][0].split(",")),
            "pythons": (PythonVersion.parse(self.argv.get("python_version", ["3.12"])[0]),),
            "rocm": rocm,
            "rocm_root": PurePosixPath(
                self.argv.get("rocm_path", [said.get("ROCM_PATH", "/recorded/fakerocm")])[0]
            ),
            "rocm_number": rocm_number(jax=self.version, rocm=rocm),
            "gfx_targets": self._targets(),
            "compiler": self._compiler(),
            "cpu_features": self.argv.get("target_cpu_features", ["release"])[0],
            "wheel_type": said.get("ML_WHEEL_TYPE", "snapshot"),
            "wheel_suffix": suffix,
            "git_hash": "0123456789abcdef0123456789abcdef01234567"
            if any("jaxlib_git_hash" in option for option in options)
            else "",
            "xla_dir": PurePosixPath(self.argv["local_xla_path"][0])
            if "local_xla_path" in self.argv
            else None,
            "caches": Caches(
                output_user_root=PurePosixPath("/cache/bazel"),
                disk=PurePosixPath("/cache/disk"),
                repository=PurePosixPath("/cache/repositories"),
            ),
            "options": tuple(option for option in options if not self._is_ours(option)),
        }
        return BuildSpec(**{**settings, **changes})  # type: ignore[arg-type]

    def _is_ours(self, option: str) -> bool:
        """Options that rocwheel has words of its own for."""
        return bool(
            re.match(
                r"--repo_env=(ROCM_PATH|ML_WHEEL_\w+)=|--//jaxlib/tools:jaxlib_git_hash="
                r"|--config=rocm_release_wheel\Z",
                option,
            )
            or any(
                option in step.options
                for step in LAYOUTS["upstream"].recipe
                if self.features.issuperset(step.when)
            )
        )

    @property
    def features(self) -> frozenset[str]:
        version_class = LAYOUTS["upstream"].version_class(self.version)
        assert version_class is not None
        return version_class.features

    def _targets(self) -> tuple[str, ...]:
        if "rocm_amdgpu_targets" in self.argv:
            return tuple(filter(None, self.argv["rocm_amdgpu_targets"][0].split(",")))
        return ("gfx90a", "gfx942")

    def _compiler(self) -> Compiler:
        if "clang_path" in self.argv:
            clang = PurePosixPath(self.argv["clang_path"][0])
            plus = clang.with_name(clang.name.replace("clang", "clang++"))
            return Compiler(kind="clang", cc=clang, cxx=plus, major=19, digest="d" * 64)
        return Compiler(kind="hermetic")


def explained(only: str, option: str, recorded: Recorded) -> int | None:
    """The number of the difference that explains an option only one side has."""
    for number, entry in enumerate(DIFFERENCES):
        if (
            entry["only"] == only
            and re.fullmatch(entry["option"], option)
            and SpecifierSet(entry.get("versions", "")).contains(recorded.version)
        ):
            return number
    return None


def compare(request: str, ref: str, result: dict) -> tuple[list[str], set[int]]:
    """Unexplained differences of one request, and which explanations were used."""
    recorded = Recorded.read(request, ref)
    spec = recorded.spec()
    ours = [option for invocation in bazel.invocations(spec) for option in invocation.options]
    theirs = [_default_targets(option, recorded, spec) for option in result["options"]]
    startup = bazel.invocations(spec)[0].startup
    problems = [
        f"only jax, before the command: {option}"
        for option in result["startup"]
        if option not in startup
    ]
    used: set[int] = set()
    extra, lacking = Counter(ours) - Counter(theirs), Counter(theirs) - Counter(ours)
    for only, options in (("rocwheel", extra), ("jax", lacking)):
        for option in options:
            number = explained(only, option, recorded)
            if number is None:
                problems.append(f"only {only}: {option}")
            else:
                used.add(number)
    problems += [
        f"{name}: {sorted(ours_of)} instead of {sorted(theirs_of)}"
        for name in SPELT_OTHERWISE
        if (ours_of := assigned(name, ours)) != (theirs_of := assigned(name, theirs)) and theirs_of
    ]
    asked = list(spec.options)  # the user's own come last, in their order
    if asked and ours[-len(asked) :] != asked:
        problems.append(f"not last: {asked}")
    common = (Counter(ours) & Counter(theirs)) - Counter(asked)
    if [option for option in ours if option in common] != [
        option for option in theirs if option in common
    ]:
        problems.append(f"order: {ours} instead of {theirs}")
    return problems, used


# Variables that rocwheel gives by another option than JAX does: the value must be the same.
SPELT_OTHERWISE = ("ROCM_PATH", "TF_ROCM_AMDGPU_TARGETS", "CLANG_COMPILER_PATH", "ML_WHEEL_TYPE")


def assigned(name: str, options: list[str]) -> set[str]:
    """The values that options give a variable, by whichever of Bazel's options."""
    pattern = re.compile(rf"--(?:repo|action)_env={name}=(.*)")
    return {match[1] for option in options if (match := pattern.fullmatch(option))}


def _default_targets(option: str, recorded: Recorded, spec: BuildSpec) -> str:
    """JAX's CLI has a default list of targets; rocwheel is always told."""
    if option.startswith("--action_env=TF_ROCM_AMDGPU_TARGETS=") and (
        "rocm_amdgpu_targets" not in recorded.argv
    ):
        return f"--action_env=TF_ROCM_AMDGPU_TARGETS={','.join(spec.gfx_targets)}"
    return option


def refusal(request: str, ref: str) -> ConfigError | None:
    try:
        bazel.invocations(Recorded.read(request, ref).spec())
    except ConfigError as exc:
        return exc
    return None


@pytest.mark.parametrize(("request_id", "ref", "result"), CASES, ids=IDS)
def test_options_equal_those_of_jax_but_for_listed_differences(request_id, ref, result):
    refused = refusal(request_id, ref)
    if refused is None:
        assert result["exit_code"] == 0, "JAX refuses what rocwheel would build"
        problems, _ = compare(request_id, ref, result)
        assert problems == []
        return
    reason = {
        "b6": "no gfx targets",  # JAX would take those of the machine it runs on
    }.get(request_id, "does not build it" if result["exit_code"] else "nothing")
    assert reason in str(refused)


def test_every_listed_difference_is_one():
    used: set[int] = set()
    for request, ref, result in CASES:
        if refusal(request, ref) is None:
            used |= compare(request, ref, result)[1]
    stale = [entry["option"] for number, entry in enumerate(DIFFERENCES) if number not in used]
    assert stale == []


def test_every_difference_avoids_a_known_trap_and_every_trap_is_avoided():
    mended = {entry["trap"] for entry in DIFFERENCES}
    assert mended == {name for name, trap in TRAPS.items() if isinstance(trap, str)}
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("*/**/test_*.py"))
    for trap in TRAPS.values():
        assert isinstance(trap, str) or f"def {trap['test']}(" in tests


def test_no_config_that_names_internal_servers_is_given():
    text = (ROOT / "ci" / "layouts.yaml").read_text()
    assert not re.search("rbe|single_gpu|multi_gpu", text)


@pytest.mark.parametrize(("request_id", "ref", "result"), CASES, ids=IDS)
def test_gfx_targets_stand_after_every_config_that_sets_them(request_id, ref, result):
    recorded = Recorded.read(request_id, ref)
    if refusal(request_id, ref) or recorded.spec().kinds == (WheelKind.JAXLIB,):
        return
    for invocation in bazel.invocations(recorded.spec(options=())):
        configs = [n for n, o in enumerate(invocation.options) if o.startswith("--config=")]
        targets = [n for n, o in enumerate(invocation.options) if "TF_ROCM_AMDGPU_TARGETS" in o]
        assert targets
        assert min(targets) > max(configs)


def test_one_invocation_builds_the_targets_jax_builds_one_by_one():
    request = "b1"
    for result in TABLE[request]["results"]:
        for ref in result["refs"]:
            recorded = Recorded.read(request, ref)
            planned = bazel.invocations(recorded.spec())
            labels = [label for invocation in planned for label in invocation.targets.values()]
            assert labels == result["targets"]
            assert len(planned) == 1


def test_the_rc_file_with_the_rocm_configs_is_named_wherever_there_is_one():
    for result in TABLE["b1"]["results"]:
        for ref in result["refs"]:
            recorded = Recorded.read("b1", ref)
            planned = bazel.invocations(recorded.spec())[0]
            named = "--bazelrc=build/rocm/rocm.bazelrc" in planned.startup
            assert named == (recorded.version >= Version("0.9.2"))


def test_a_path_with_a_blank_is_one_argument_without_quotes():
    for result in TABLE["b15"]["results"]:
        for ref in result["refs"]:
            for invocation in bazel.invocations(Recorded.read("b15", ref).spec()):
                assert "--repo_env=ROCM_PATH=/opt/my rocm" in invocation.command_line().argv
                assert not any('"' in word for word in invocation.command_line().argv)


def test_no_word_of_rocm_reaches_a_jaxlib_build():
    for ref in [ref for result in TABLE["a2"]["results"] for ref in result["refs"]]:
        recorded = Recorded.read("a2", ref)
        (planned,) = bazel.invocations(recorded.spec(kinds=(WheelKind.JAXLIB,)))
        assert not any("rocm" in option.lower() for option in planned.options)


def test_every_recorded_source_is_covered():
    refs = {ref for _, ref, _ in CASES}
    layout = LAYOUTS["upstream"]
    classes = {str(layout.version_class(Recorded.read("b1", ref).version)) for ref in refs}
    upstream = {str(item) for item in layout.classes}
    upstream.remove("JAX <=0.9.2,>0.9.1")  # development commits only: tests/real compares one
    assert classes == upstream
