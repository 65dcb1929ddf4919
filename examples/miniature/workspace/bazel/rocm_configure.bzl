"""Repository rule @local_config_rocm: the ROCm root a build compiles against and links with."""

load(":generation.bzl", "LOCAL_CLANG_HEADERS", "LOCAL_LINKER")

_VERSION_HEADER = "include/rocm-core/rocm_version.h"

# What XLA's find_rocm_config.py reads versions from, whether a build includes it or not.
_FOUND_HEADERS = [
    "include/hip/hip_version.h",
    "include/miopen/version.h",
    "include/rocblas/internal/rocblas-version.h",
    "include/rocrand/rocrand_version.h",
    "include/rocfft/rocfft-version.h",
    "include/hipfft/hipfft-version.h",
    "include/roctracer/roctracer.h",
    "include/hipsparse/hipsparse-version.h",
    "include/hipsolver/internal/hipsolver-version.h",
    "include/rocsolver/rocsolver-version.h",
]

_PATH_TYPE_BZL = '''"""How built libraries find ROCm when they are loaded."""

RocmPathTypeInfo = provider(doc = "The chosen path type.", fields = ["value"])

_VALUES = ["link_only", "system"]

def _rocm_path_type_impl(ctx):
    value = ctx.build_setting_value
    if value not in _VALUES:
        fail("rocm_path_type={}: expected one of {}".format(value, ", ".join(_VALUES)))
    return [RocmPathTypeInfo(value = value)]

rocm_path_type = rule(
    implementation = _rocm_path_type_impl,
    build_setting = config.string(flag = True),
)
'''

_BUILD = """load(":rocm_path_type.bzl", "rocm_path_type")

package(default_visibility = ["//visibility:public"])

rocm_path_type(name = "rocm_path_type", build_setting_default = "system")

filegroup(name = "version_header", srcs = {version_header})

# What one HIP compilation reads: clang, its libraries and headers, lld, the bundler, bitcode.
filegroup(name = "toolchain", srcs = glob({toolchain}, allow_empty = True))

filegroup(name = "headers", srcs = glob({headers}, allow_empty = True))

filegroup(name = "libraries", srcs = glob({libraries}, allow_empty = True))
"""

_CROSSTOOL = """load(":crosstool.bzl", "crosstool_config")

package(default_visibility = ["//visibility:public"])

crosstool_config(
    name = "config",
    builtin_include_directories = {builtin},
    compiler = "hipcc",
)

filegroup(name = "empty")

filegroup(
    name = "files",
    srcs = ["hipcc", "//rocm:toolchain"],
)

cc_toolchain(
    name = "compiler",
    all_files = ":files",
    ar_files = ":empty",
    as_files = ":empty",
    compiler_files = ":files",
    dwp_files = ":empty",
    linker_files = ":empty",
    objcopy_files = ":empty",
    strip_files = ":empty",
    toolchain_config = ":config",
    toolchain_identifier = "miniature_rocm",
)

cc_toolchain_suite(
    name = "toolchain",
    toolchains = {{"k8": ":compiler", "k8|compiler": ":compiler"}},
)
"""

# A program in the toolchain's own folder, as XLA's crosstool wrapper is. The local route asks hipcc,
# which finds clang by its real path; then the headers that an action names are this machine's, and a
# disk cache cannot be shared with a machine where ROCm lies elsewhere.
_LOCAL_HIPCC = """#!/bin/sh
exec external/{repository}/rocm/rocm_dist/bin/hipcc "$@"
"""
_HIPCC = """#!/bin/sh
llvm=external/{repository}/rocm/rocm_dist/lib/llvm/bin
PATH="$PWD/$llvm:$PATH" exec "$llvm/clang++" -no-canonical-prefixes -x hip "$@" $HIPCC_COMPILE_FLAGS_APPEND
"""

_TOOLCHAIN = [
    "rocm_dist/bin/hipcc",
    "rocm_dist/lib/llvm/bin/clang*",
    "rocm_dist/lib/llvm/bin/*lld",
    "rocm_dist/lib/llvm/bin/llvm-objcopy",
    "rocm_dist/lib/llvm/lib/*.so*",
    "rocm_dist/lib/llvm/amdgcn/bitcode/*.bc",
    "rocm_dist/lib/llvm/lib/clang/*/include/**",
    "rocm_dist/share/hip/version",
]
_HEADERS = [
    "rocm_dist/include/hip/**",
    "rocm_dist/include/hipblas/**",
    "rocm_dist/include/rocm-core/**",
]
_LIBRARIES = [
    "rocm_dist/lib/libamdhip64.so*",
    "rocm_dist/lib/libhipblas.so*",
]

def _version_number(header):
    """ROCm's version as one number, major * 10000 + minor * 100 + patch."""
    found = {}
    for line in header.split("\n"):
        words = [word for word in line.split(" ") if word]
        if len(words) == 3 and words[0] == "#define" and words[2].isdigit():
            found[words[1]] = int(words[2])
    parts = [found.get("ROCM_VERSION_" + part) for part in ["MAJOR", "MINOR", "PATCH"]]
    if None in parts:
        fail("{} does not define ROCM_VERSION_MAJOR, _MINOR and _PATCH".format(_VERSION_HEADER))
    return parts[0] * 10000 + parts[1] * 100 + parts[2]

def _amdgpu_targets(environ):
    targets = [name for name in environ.get("TF_ROCM_AMDGPU_TARGETS", "").split(",") if name]
    if not targets:
        fail("no GPU targets: pass --repo_env=TF_ROCM_AMDGPU_TARGETS=gfx942,...")
    for target in targets:
        if not target.startswith("gfx"):
            fail("TF_ROCM_AMDGPU_TARGETS: {} does not start with gfx".format(target))
    return targets

def _resource_folder(repository_ctx, compiler):
    """Where a clang has headers of its own, by its own word: `/opt/rocm/lib/llvm/lib/clang/20`."""
    asked = repository_ctx.execute([compiler, "-print-resource-dir"])
    if asked.return_code != 0:
        fail("{}: {}".format(compiler, asked.stderr.strip()))
    return asked.stdout.strip()

def _local_compiler(repository_ctx, environ):
    """The machine's compiler that host code of the ROCm wheels gets, which must be there."""
    compiler = environ.get("CLANG_COMPILER_PATH", "")
    if not repository_ctx.path(compiler or "/nonexistent").exists:
        fail("Cannot find {}, which CLANG_COMPILER_PATH names".format(compiler or "clang"))
    return compiler

def _rocm_configure_impl(repository_ctx):
    environ = repository_ctx.os.environ
    number, targets, lib, builtin, compiler = 0, [], "", [], ""
    if environ.get("TF_NEED_ROCM", "") == "1":
        root = environ.get("ROCM_PATH", "")
        if not root.startswith("/"):
            fail("--config=rocm needs --repo_env=ROCM_PATH=/path/of/rocm; the miniature downloads none")
        for needed in [_VERSION_HEADER, "bin/hipcc", "lib/llvm/bin/clang++", "lib/libamdhip64.so"]:
            if not repository_ctx.path(root + "/" + needed).exists:
                fail("ROCM_PATH={} is no ROCm root: {} is missing".format(root, needed))
        missing = [name for name in _FOUND_HEADERS if not repository_ctx.path(root + "/" + name).exists]
        if missing:
            fail("ROCm Configuration Error: {} has no {}".format(root, ", ".join(missing)))
        number = _version_number(repository_ctx.read(root + "/" + _VERSION_HEADER))
        targets, lib = _amdgpu_targets(environ), root + "/lib"
        repository_ctx.symlink(root, "rocm/rocm_dist")
        dist = str(repository_ctx.path("rocm/rocm_dist"))
        headers = _resource_folder(repository_ctx, root + "/lib/llvm/bin/clang++")
        if environ.get("USE_HERMETIC_CC_TOOLCHAIN", "") == "0":
            compiler = _local_compiler(repository_ctx, environ)
            if LOCAL_CLANG_HEADERS:
                headers = "{}/lib/llvm/lib/clang/{}".format(dist, LOCAL_CLANG_HEADERS)
        builtin = ["/usr/include", "/usr/lib/gcc", dist + "/include", headers + "/include"]
    repository_ctx.file("BUILD.bazel", "")
    repository_ctx.symlink(Label("//bazel:crosstool.bzl"), "crosstool/crosstool.bzl")
    hipcc = _LOCAL_HIPCC if compiler else _HIPCC
    repository_ctx.file("crosstool/hipcc", hipcc.format(repository = repository_ctx.name))
    repository_ctx.file("crosstool/BUILD.bazel", _CROSSTOOL.format(builtin = repr(builtin)))
    repository_ctx.file("rocm/rocm_path_type.bzl", _PATH_TYPE_BZL)
    repository_ctx.file("rocm/build_defs.bzl", """ROCM_VERSION_NUMBER = {}
ROCM_AMDGPU_TARGETS = {}
ROCM_LIBRARY_PATH = {}
ROCM_HOST_COMPILER = {}
ROCM_LINK_FLAGS = {}
""".format(
        number,
        repr(targets),
        repr(lib),
        repr(compiler),
        repr(["-fuse-ld=" + LOCAL_LINKER] if compiler else []),
    ))
    repository_ctx.file("rocm/BUILD.bazel", _BUILD.format(
        version_header = repr(["rocm_dist/" + _VERSION_HEADER] if number else []),
        toolchain = repr(_TOOLCHAIN if number else []),
        headers = repr(_HEADERS if number else []),
        libraries = repr(_LIBRARIES if number else []),
    ))

rocm_configure = repository_rule(
    doc = "Links ROCM_PATH as `rocm_dist`; without TF_NEED_ROCM=1 an empty stand-in, version 0.",
    implementation = _rocm_configure_impl,
    environ = [
        "CLANG_COMPILER_PATH",
        "ROCM_PATH",
        "TF_NEED_ROCM",
        "TF_ROCM_AMDGPU_TARGETS",
        "USE_HERMETIC_CC_TOOLCHAIN",
    ],
    local = True,
)
