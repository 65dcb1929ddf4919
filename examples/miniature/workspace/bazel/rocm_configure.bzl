"""Repository rule @local_config_rocm: the ROCm root a build compiles against and links with."""

_VERSION_HEADER = "include/rocm-core/rocm_version.h"

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

# The folders whose headers an action may read without listing them, in the way of a crosstool's
# cxx_builtin_include_directories: of the local route a list, of the other what ROCm has.
_LOCAL_BUILTIN_INCLUDES = ["lib/llvm/lib/clang/*/include"]

_TOOLCHAIN = [
    "rocm_dist/lib/llvm/bin/clang*",
    "rocm_dist/lib/llvm/bin/*lld",
    "rocm_dist/lib/llvm/bin/llvm-objcopy",
    "rocm_dist/lib/llvm/lib/*.so*",
    "rocm_dist/lib/llvm/amdgcn/bitcode/*.bc",
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

def _local_toolchain(repository_ctx, environ):
    """The machine's own compiler: it must find the linker, or the failure comes at the last link."""
    compiler = environ.get("CLANG_COMPILER_PATH", "")
    if compiler:
        found = repository_ctx.execute([compiler, "-print-prog-name=ld.lld"]).stdout.strip()
        if not found.startswith("/") and not repository_ctx.which("ld.lld"):
            fail("{} finds no ld.lld, which this toolchain links with".format(compiler))
    return _LOCAL_BUILTIN_INCLUDES

def _own_toolchain(repository_ctx, root):
    """The compiler of the tree: the resource folders that are there, whatever their version."""
    folder = repository_ctx.path(root + "/lib/llvm/lib/clang")
    versions = [entry.basename for entry in folder.readdir()] if folder.exists else []
    return ["lib/llvm/lib/clang/{}/include".format(version) for version in versions]

def _rocm_configure_impl(repository_ctx):
    environ = repository_ctx.os.environ
    number, targets, lib, builtin = 0, [], "", []
    if environ.get("TF_NEED_ROCM", "") == "1":
        root = environ.get("ROCM_PATH", "")
        if not root.startswith("/"):
            fail("--config=rocm needs --repo_env=ROCM_PATH=/path/of/rocm; the miniature downloads none")
        for needed in [_VERSION_HEADER, "lib/llvm/bin/clang++", "lib/libamdhip64.so"]:
            if not repository_ctx.path(root + "/" + needed).exists:
                fail("ROCM_PATH={} is no ROCm root: {} is missing".format(root, needed))
        number = _version_number(repository_ctx.read(root + "/" + _VERSION_HEADER))
        targets, lib = _amdgpu_targets(environ), root + "/lib"
        if environ.get("USE_HERMETIC_CC_TOOLCHAIN", "") == "0":
            builtin = _local_toolchain(repository_ctx, environ)
        else:
            builtin = _own_toolchain(repository_ctx, root)
        repository_ctx.symlink(root, "rocm/rocm_dist")
    repository_ctx.file("BUILD.bazel", "")
    repository_ctx.file("rocm/rocm_path_type.bzl", _PATH_TYPE_BZL)
    repository_ctx.file("rocm/build_defs.bzl", """ROCM_VERSION_NUMBER = {}
ROCM_AMDGPU_TARGETS = {}
ROCM_LIBRARY_PATH = {}
""".format(number, repr(targets), repr(lib)))
    repository_ctx.file("rocm/BUILD.bazel", _BUILD.format(
        version_header = repr(["rocm_dist/" + _VERSION_HEADER] if number else []),
        toolchain = repr(_TOOLCHAIN + ["rocm_dist/" + folder + "/**" for folder in builtin] if number else []),
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
