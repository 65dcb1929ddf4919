"""Rules for the miniature's shared libraries: host C++ with the compiler CC names, HIP with ROCm's.

They use Bazel's core API alone. Bazel's own C++ rules come from repositories that have to be
downloaded, differently in each major version; these few lines behave the same in all of them.
GPU code is compiled with the toolchain of `crosstool.bzl`, where Bazel checks the inclusions.
"""

load("@host_compiler//:compiler.bzl", "COMPILER", "COMPILER_VERSION")
load("@host_python//:python.bzl", "PYTHON_TAG")
load(
    "@local_config_rocm//rocm:build_defs.bzl",
    "ROCM_AMDGPU_TARGETS",
    "ROCM_HOST_COMPILER",
    "ROCM_LIBRARY_PATH",
    "ROCM_LINK_FLAGS",
    "ROCM_VERSION_NUMBER",
)
load("@local_config_rocm//rocm:rocm_path_type.bzl", "RocmPathTypeInfo")

# The compiler is no input of an action, so its version takes part in the cache key from here.
_ENV = {
    "HOST_COMPILER_VERSION": COMPILER_VERSION,
    "LC_ALL": "C",
    "PATH": "/usr/bin:/bin",
}
_COMPILE_FLAGS = ["-O2", "-fPIC", "-fvisibility=hidden", "-std=c++17", "-Wall", "-Werror"]

# Where a released wheel looks for ROCm: a `rocm` folder in site-packages, seen from a package at
# the top and from one below jax_plugins/, then the system's. The list of JAX 0.9.2 to 0.10.1.
_RELEASE_RUNPATH = ["$ORIGIN/../rocm/lib", "$ORIGIN/../../rocm/lib", "/opt/rocm/lib"]

def require_rocm(label):
    """Fails, with the way out, when the build was started without ROCm."""
    if not ROCM_VERSION_NUMBER:
        fail("{} needs ROCm: build with --config=rocm and --repo_env=ROCM_PATH=<ROCm root>".format(label))

def _rocm_root(version_header):
    ending = "/include/rocm-core/rocm_version.h"
    return version_header.path[:-len(ending)]

# HIP --------------------------------------------------------------------------------------------

def _hip_objects_impl(ctx):
    require_rocm(ctx.label)
    root = _rocm_root(ctx.files._version_header[0])
    toolchain = ctx.attr._cc_toolchain[cc_common.CcToolchainInfo]
    features = cc_common.configure_features(ctx = ctx, cc_toolchain = toolchain)
    objects = []
    for source in ctx.files.srcs:
        flags = ["-O3", "-fPIC", "-fvisibility=hidden", "-std=c++17", "-Wall"]

        # Only paths below the execution root, so that nothing depends on where ROCm lies.
        flags.append("--rocm-path=" + root)
        flags.append("--rocm-device-lib-path={}/lib/llvm/amdgcn/bitcode".format(root))
        flags += ["--offload-arch=" + target for target in ROCM_AMDGPU_TARGETS]

        # The id of the source in a symbol; clang would hash the absolute path.
        flags.append("-cuid=" + source.short_path.replace("/", "_").replace(".", "_"))
        _, outputs = cc_common.compile(
            actions = ctx.actions,
            additional_inputs = ctx.files._toolchain + ctx.files._version_header,
            cc_toolchain = toolchain,
            feature_configuration = features,
            name = ctx.label.name,
            private_hdrs = ctx.files.hdrs + ctx.files._headers,
            srcs = [source],
            user_compile_flags = flags + ["-I", "."],
        )
        objects += outputs.pic_objects or outputs.objects
    return [DefaultInfo(files = depset(objects))]

hip_objects = rule(
    doc = "Compiles HIP sources with ROCm's clang: host code and one code object per GPU target.",
    implementation = _hip_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu.cc"], mandatory = True),
        "hdrs": attr.label_list(allow_files = [".h"]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
        "_version_header": attr.label(default = "@local_config_rocm//rocm:version_header"),
        "_toolchain": attr.label(default = "@local_config_rocm//rocm:toolchain"),
        "_headers": attr.label(default = "@local_config_rocm//rocm:headers"),
    },
    fragments = ["cpp"],
)

# Host C++ and linking ---------------------------------------------------------------------------

def _shared_library_impl(ctx):
    folder = PYTHON_TAG + "/" if ctx.attr.python else ""
    headers = [depset(ctx.files.hdrs)]
    flags = ["-I", "."]
    if ctx.attr.python:
        # One folder per CPython: going back to an earlier one finds its files still there.
        headers.append(depset(ctx.files._python_headers))
        flags += ["-isystem", _python_include(ctx)]
    compiler, link_flags, libraries = COMPILER, [], []
    if ctx.attr.rocm_libraries:
        require_rocm(ctx.label)
        root = _rocm_root(ctx.files._version_header[0])
        headers.append(depset(ctx.files._rocm_headers))
        flags += ["-isystem", root + "/include", "-D__HIP_PLATFORM_AMD__=1"]
        libraries = ctx.files._rocm_libraries
        compiler = ROCM_HOST_COMPILER or COMPILER
        link_flags += ROCM_LINK_FLAGS + ["-L{}/lib".format(root)] + ["-l" + name for name in ctx.attr.rocm_libraries]
        released = ctx.attr._rocm_path_type[RocmPathTypeInfo].value == "link_only"
        runpath = _RELEASE_RUNPATH if released else [ROCM_LIBRARY_PATH]
        link_flags.append("-Wl,--enable-new-dtags,-rpath," + ":".join(runpath))

    objects = list(ctx.files.objects)
    for source in ctx.files.srcs:
        output = ctx.actions.declare_file("{}{}/{}.o".format(folder, ctx.label.name, source.basename))
        args = ctx.actions.args()
        args.add_all(_COMPILE_FLAGS + flags)
        args.add_all(ctx.fragments.cpp.copts)
        args.add("-c", source)
        args.add("-o", output)
        ctx.actions.run(
            executable = compiler,
            arguments = [args],
            inputs = depset([source], transitive = headers),
            outputs = [output],
            env = dict(ctx.configuration.default_shell_env, **_ENV),
            mnemonic = "CppCompile",
            progress_message = "Compiling {}".format(source.short_path),
        )
        objects.append(output)

    library = ctx.actions.declare_file(folder + ctx.attr.library_name)
    args = ctx.actions.args()
    args.add_all(["-shared", "-Wl,--build-id=none", "-o"])
    args.add(library)
    args.add_all(objects)
    script = ctx.file.exports
    args.add(script, format = "-Wl,--version-script=%s")
    args.add_all(link_flags)
    args.add("-lstdc++")
    ctx.actions.run(
        executable = compiler,
        arguments = [args],
        inputs = depset(objects + libraries + [script]),
        outputs = [library],
        env = dict(ctx.configuration.default_shell_env, **_ENV),
        mnemonic = "CppLink",
        progress_message = "Linking {}".format(library.short_path),
    )
    return [DefaultInfo(files = depset([library]))]

def _python_include(ctx):
    for header in ctx.files._python_headers:
        if header.path.endswith("/include/Python.h"):
            return header.dirname
    fail("@host_python has no Python.h")

shared_library = rule(
    doc = "Links C++ sources and ready objects into a shared library, such as a Python module.",
    implementation = _shared_library_impl,
    attrs = {
        "library_name": attr.string(mandatory = True, doc = "The file's name."),
        "srcs": attr.label_list(allow_files = [".cc"]),
        "hdrs": attr.label_list(allow_files = [".h"]),
        "objects": attr.label_list(allow_files = [".o"]),
        "python": attr.bool(doc = "A CPython extension module, built for the chosen CPython."),
        "rocm_libraries": attr.string_list(doc = "ROCm libraries to link with, as after -l."),
        "exports": attr.label(
            allow_single_file = True,
            default = "//bazel:python_module.lds",
            doc = "The linker's version script: the symbols the library shows.",
        ),
        "_python_headers": attr.label(default = "@host_python//:headers"),
        "_version_header": attr.label(default = "@local_config_rocm//rocm:version_header"),
        "_rocm_headers": attr.label(default = "@local_config_rocm//rocm:headers"),
        "_rocm_libraries": attr.label(default = "@local_config_rocm//rocm:libraries"),
        "_rocm_path_type": attr.label(default = "@local_config_rocm//rocm:rocm_path_type"),
    },
    fragments = ["cpp"],
)
