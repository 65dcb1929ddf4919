"""ci/known_failures.yaml: what a failed action printed is recognised and told with its remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocwheel.bazel import failures
from rocwheel.errors import BazelError, ConfigError

FILE = Path(__file__).parents[3] / "ci" / "known_failures.yaml"
KNOWN = failures.load(FILE)

# What the programs print; made from their sources' formats, shortened.
LOGS = {
    "undeclared-inclusion": """\
ERROR: /src/jaxlib/rocm/BUILD:12:11: Compiling jaxlib/rocm/solver.cc failed: undeclared inclusion(s) in rule '//jaxlib/rocm:solver':
this rule is missing dependency declarations for the following files included by 'solver.cc':
  '/cache/rocm/lib/llvm/lib/clang/22/include/stddef.h'
""",
    "compiler-headers": """\
In file included from <built-in>:1:
/cache/rocm/lib/llvm/lib/clang/22/include/__clang_hip_runtime_wrapper.h:50:10: fatal error: 'stdint.h' file not found
""",
    "missing-linker": """\
clang: error: invalid linker name in argument '-fuse-ld=lld'
clang: error: linker command failed with exit code 1 (use -v to see invocation)
""",
    "device-libraries": """\
clang: error: cannot find ROCm device library for gfx1250; provide its path via '--rocm-path' or '--rocm-device-lib-path'
""",
    "no-space": "LLVM ERROR: IO failure on output stream: No space left on device\n",
    "out-of-memory": """\
clang: error: unable to execute command: Killed
c++: fatal error: Killed signal terminated program cc1plus
compilation terminated.
""",
    "compiler-crash": """\
PLEASE submit a bug report to https://github.com/ROCm/llvm-project/issues and include the crash backtrace.
Stack dump:
0.	Program arguments: clang-20 -cc1 -triple amdgcn-amd-amdhsa
clang: error: clang frontend command failed with exit code 139 (use -v to see invocation)
""",
    "cache-refused": """\
WARNING: Remote Cache: PERMISSION_DENIED: caller has no permission to write
""",
    "network": """\
ERROR: An error occurred during the fetch of repository 'llvm-raw':
	java.io.IOException: Error downloading [https://example.org/llvm.tar.gz] to /tmp/x: Connect timed out
""",
}
ORDINARY = """\
jaxlib/rocm/solver.cc:40:3: warning: unused variable 'error' [-Wunused-variable]
jaxlib/rocm/solver.cc:44:12: error: use of undeclared identifier 'hipsolverFoo'
1 error generated.
"""


def test_every_pattern_has_a_log_here_and_every_log_a_pattern():
    assert set(LOGS) == {item.name for item in KNOWN}


@pytest.mark.parametrize("name", LOGS)
def test_a_failure_is_recognised_by_its_line_with_the_remedy(name):
    with pytest.raises(BazelError) as caught, failures.explained(KNOWN):
        raise BazelError("//x:y: CppCompile failed", hint="the log is in /log", detail=LOGS[name])
    (known,) = [item for item in KNOWN if item.name == name]
    assert caught.value.hint == f"{known.remedy}; the log is in /log"
    assert str(caught.value).startswith("//x:y: CppCompile failed: ")
    assert caught.value.detail == LOGS[name]
    assert "\n" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize("name", LOGS)
def test_no_other_pattern_takes_it(name):
    found, _ = failures.recognised(LOGS[name], KNOWN)
    assert found
    assert found.name == name
    others = tuple(item for item in KNOWN if item.name != name)
    assert failures.recognised(LOGS[name], others)[0] is None


def test_an_ordinary_error_is_told_by_its_first_line_and_not_explained_away():
    with pytest.raises(BazelError) as caught, failures.explained(KNOWN):
        raise BazelError("//x:y: CppCompile failed", hint="the log", detail=ORDINARY)
    assert str(caught.value).endswith("error: use of undeclared identifier 'hipsolverFoo'")
    assert caught.value.hint == "the log"


def test_a_failure_without_output_stays_as_it_is():
    with pytest.raises(BazelError, match=r"^Bazel stopped$"), failures.explained(KNOWN):
        raise BazelError("Bazel stopped", hint="the log")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("No space left on device|", "(", "regular expression"),
        ('line: "write: No space', 'line: "write: no room', "does not match the example"),
        ("remedy: give a ROCm", "remedi: give a ROCm", "unknown key"),
    ],
)
def test_a_mistake_is_located(tmp_path, old, new, problem):
    text = FILE.read_text()
    assert old in text
    (tmp_path / "known.yaml").write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=r"known\.yaml:\d+:\d+") as caught:
        failures.load(tmp_path / "known.yaml")
    assert problem in f"{caught.value} {caught.value.hint}"
