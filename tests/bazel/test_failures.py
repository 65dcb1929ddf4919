"""ci/known_failures.yaml: what a failed action printed is recognised and told with its remedy."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from rocwheel.base.errors import BazelError
from rocwheel.bazel import failures
from rocwheel.bazel.build import _failure
from rocwheel.bazel.events import BuildEvents, FailedAction

FILE = Path(__file__).parents[2] / "ci" / "known_failures.yaml"
KNOWN = failures.load(FILE)

# What the programs print; made from their sources' formats, shortened.
LOGS = {
    "packaged-bazel": """\
file is invalid or corrupted (missing end of central directory record)
Opening zip "/proc/self/exe": Cannot find central directory
FATAL: Failed to open '/proc/self/exe' as a zip file: (error: 5): Input/output error
""",
    "development-bazel": """\
ERROR: /cache/external/rules_cc/cc/private/rules_impl/cc_binary.bzl:20:1: name 'macro' is not defined
""",
    "hip-as-cpp": """\
jaxlib/gpu/prng_kernels.cu.cc:87:22: error: use of undeclared identifier 'blockIdx'
""",
    "dependency-file": """\
ERROR: /src/jaxlib/rocm/BUILD:60:11: Compiling jaxlib/gpu/prng_kernels.cu.cc failed: error while parsing .d file: \
/cache/execroot/prng_kernels.cu.d (file does not end in a newline)
""",
    "older-rocm": """\
jaxlib/gpu/solver_kernels_ffi.cc:210:10: error: no matching function for call to 'hipblasCgetrfBatched'
""",
    "missing-input": """\
ERROR: /src/jaxlib/BUILD:12:8: Compiling x failed: missing input file '@@rules_python//python/private:x.bzl'
""",
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
    "missing-compiler": """\
ERROR: An error occurred during the fetch of repository 'local_config_rocm':
	Cannot find clang-18, which CLANG_COMPILER_PATH names
""",
    "undefined-config": "ERROR: Config value 'rocm_relese' is not defined in any .rc file\n",
    "incomplete-rocm": """\
Error in fail: \nROCm Configuration Error: Failed to run find_rocm_config.py: no miopen/version.h
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
# Lines as public reports of failed builds have them: each with the thread it comes from.
REPORTED = (
    # jax-ml/jax#18976, elixir-nx/xla#129, ROCm/tensorflow-upstream#409
    (
        "undeclared-inclusion",
        "ERROR: /j/BUILD:9:8: absolute path inclusion(s) found in rule '@xla//xla:kernels_rocm':",
    ),
    ("undeclared-inclusion", "ERROR: /j/BUILD:9:8: undeclared inclusion(s) in rule '//j:k':"),
    # bazel-contrib/rules_fuzzing#190, openxla/xla#29517
    ("missing-linker", "clang: error: invalid linker name in argument '-fuse-ld=lld'"),
    # aws/aws-lc-rs#858
    ("missing-linker", 'unable to execute command: Executable "ld" doesn\'t exist!'),
    # ROCm/ROCm-Device-Libs#81, ROCm/ROCR-Runtime#110, ROCm/hip#2086
    (
        "device-libraries",
        "clang-13: error: cannot find ROCm device library. Provide its path via --rocm-path or",
    ),
    ("device-libraries", "clang-11: error: cannot find device library for gfx1031. Provide path"),
    ("device-libraries", "clang-11: error: cannot find ROCm installation.  Provide its path via"),
    # bazelbuild/bazel#11836, bazelbuild/bazel#1871
    ("no-space", "ERROR: I/O error while writing action log: No space left on device."),
    # bazelbuild/bazel#8413, #1036, #3020, #1338
    ("out-of-memory", "x): Process terminated by signal 9: Process terminated by signal 9"),
    ("out-of-memory", "arm-linux-androideabi-gcc: internal compiler error: Killed (program cc1)"),
    ("out-of-memory", "Server terminated abruptly (error code: 14, error message: '', log file:"),
    ("out-of-memory", "Error: unexpected EOF from Bazel server."),
    # llvm/llvm-project#188716, #59923, #152826
    (
        "compiler-crash",
        "clang: error: clang frontend command failed due to signal (use -v to see invocation)",
    ),
    ("compiler-crash", "clang-16: error: clang frontend command failed with exit code 136 (use"),
    ("compiler-crash", "clang: error: unable to execute command: Segmentation fault (core dumped)"),
    # buchgr/bazel-remote#584, bazelbuild/bazel#27832, buildbarn/bb-deployments#51
    ("cache-refused", "WARNING: Remote Cache: 403 Forbidden"),
    ("cache-refused", "com.google.devtools.build.lib.remote.http.HttpException: 403 Forbidden"),
    (
        "cache-refused",
        "ERROR: --remote_upload_local_results is set, but the current account is not authorized to",
    ),
    # waymo-research/waymo-open-dataset#216, bazelbuild/bazel#2144, #9323, tensorflow#5924
    (
        "network",
        "java.io.IOException: Error downloading [https://x/y.zip] to /z: connect timed out",
    ),
    (
        "network",
        "no such package '@x//': Error downloading from https://x/y.zip to /z: Remote host",
    ),
    ("network", "to /e/grpc.tar.gz: Read timed out and referenced by '//external:grpc_cpp_plugin'"),
    ("network", "Timed out connecting to https://github.com/x/archive/v1.0.3.tar.gz : Read timed"),
)


@pytest.mark.parametrize(("name", "line"), REPORTED)
def test_a_line_of_a_public_report_is_recognised(name, line):
    found, _ = failures.recognised(f"INFO: Found 1 target...\n{line}\n", KNOWN)
    assert found
    assert found.name == name


@pytest.mark.parametrize(
    "line",
    [
        "collect2: error: ld returned 1 exit status",
        "/usr/bin/ld: cannot find -lldap: No such file or directory",
        "jaxlib/cuda/x.cc:3:10: fatal error: 'ld.h' file not found",
        "ERROR: /j/BUILD:1:1: Linking j/_stablehlo.so failed: (Exit 1): gcc failed: error executing",
        "com.google.gson: signal 95 of 96 handled",
        "[403 / 2,403] Compiling Forbidden.cc",
    ],
)
def test_a_line_that_only_looks_like_one_is_not(line):
    assert failures.recognised(line, KNOWN)[0] is None


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
    others = tuple(item for item in KNOWN if item.name != name)
    assert failures.recognised(LOGS[name], others)[0] is None
    coloured = LOGS[name].replace(" ", " \x1b[0;1;31m")  # as a compiler prints for a terminal
    found, line = failures.recognised(coloured, KNOWN)
    assert (found, "\x1b" in line) == (known, False)


def test_an_ordinary_error_is_shown_by_its_first_line():
    with pytest.raises(BazelError) as caught, failures.explained(KNOWN):
        raise BazelError("//x:y: CppCompile failed", hint="the log", detail=ORDINARY)
    assert str(caught.value).endswith("error: use of undeclared identifier 'hipsolverFoo'")
    assert caught.value.hint == "the log"


def test_a_failure_without_output_stays_as_it_is():
    with pytest.raises(BazelError, match=r"^Bazel stopped$"), failures.explained(KNOWN):
        raise BazelError("Bazel stopped", hint="the log")


PAGE = FILE.parents[1] / "docs" / "how-to" / "first-real-build.md"
CHECKS = FILE.parents[1] / "build" / "rocwheel" / "dist" / "checks.py"


def likeliest() -> list[str]:
    """The first lines of the page's table of failures."""
    table = (
        PAGE.read_text().partition("## The ten likeliest failures")[2].partition("\n\nA failed")[0]
    )
    return re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)


def test_the_page_has_ten_failures():
    assert len(likeliest()) == len(set(likeliest())) == 10


@pytest.mark.parametrize("line", likeliest())
def test_each_failure_on_the_page_is_recognised(line):
    """By a pattern of known failures, or in a message of the checks before Bazel."""
    if failures.recognised(line.replace("…", "gfx942"), KNOWN)[0]:
        return
    parts = [part.strip() for part in re.split(r"…|^\S+:|\d[\d.]*", line)]
    messages = re.findall(r'f"([^"]*)"', CHECKS.read_text())
    assert any(all(part in message for part in parts) for message in messages), parts


def failed(output: str, printed: str) -> BazelError:
    action = FailedAction(
        label="//jaxlib/rocm:solver", mnemonic="CppCompile", command=("clang",), exit_code=1,
        output=output, message="",
    )  # fmt: skip
    read = BuildEvents(failed=[action])
    invocation = SimpleNamespace(title="plugin for CPython 3.12")
    return _failure(invocation, read, printed, Path("/log"))  # type: ignore[arg-type]


def explained(error: BazelError) -> BazelError:
    with pytest.raises(BazelError) as caught, failures.explained(KNOWN):
        raise error
    return caught.value


@pytest.mark.parametrize("coloured", [False, True])
def test_what_bazel_says_beside_a_compilers_warnings_is_the_cause(coloured):
    printed = LOGS["undeclared-inclusion"]
    if coloured:  # as Bazel 7 does with --color=yes
        printed = printed.replace("ERROR: ", "\x1b[31m\x1b[1mERROR: \x1b[0m")
    warned = "\x1b[0;1;35mwarning: \x1b[0munused variable\n" * 3
    error = explained(failed(warned, printed))
    assert "undeclared inclusion(s) in rule '//jaxlib/rocm:solver'" in str(error)
    assert "leave --compiler-path out" in error.hint
    assert "\x1b" not in str(error) + error.detail


def test_an_error_after_many_lines_is_the_cause():
    output = "warning: unused variable\n" * 100 + "\x1b[0;1;31mfatal error: \x1b[0mno such thing\n"
    error = explained(failed(output, ""))
    assert str(error).endswith("fatal error: no such thing")
    assert "… 41 more lines" in error.detail
