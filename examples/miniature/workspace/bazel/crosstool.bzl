"""The C++ toolchain of a ROCm build: GPU code goes to hipcc, and Bazel checks what it includes.

As with XLA's crosstool, a header may come from the inputs of an action or from a folder that the
toolchain lists; anything else is an undeclared or absolute inclusion, and the action fails.
"""

load(
    "@bazel_tools//tools/cpp:cc_toolchain_config_lib.bzl",
    "action_config",
    "env_entry",
    "env_set",
    "feature",
    "flag_group",
    "flag_set",
    "tool",
    "tool_path",
)

_COMPILE = "c++-compile"
_TOOLS = ["ar", "cpp", "gcc", "gcov", "ld", "nm", "objdump", "strip"]

def _optional(variable, flags):
    return flag_group(flags = flags, expand_if_available = variable)

def _crosstool_config_impl(ctx):
    flags = flag_set(
        actions = [_COMPILE],
        flag_groups = [
            _optional("dependency_file", ["-MD", "-MF", "%{dependency_file}"]),
            flag_group(
                flags = ["%{user_compile_flags}"],
                iterate_over = "user_compile_flags",
                expand_if_available = "user_compile_flags",
            ),
            _optional("source_file", ["-c", "%{source_file}"]),
            _optional("output_file", ["-o", "%{output_file}"]),
        ],
    )
    env = env_set(
        actions = [_COMPILE],
        env_entries = [env_entry("LC_ALL", "C"), env_entry("PATH", "/usr/bin:/bin")],
    )
    return cc_common.create_cc_toolchain_config_info(
        ctx = ctx,
        abi_libc_version = "local",
        abi_version = "local",
        action_configs = [
            action_config(_COMPILE, enabled = True, tools = [tool(path = ctx.attr.compiler)]),
        ],
        compiler = "compiler",
        cxx_builtin_include_directories = ctx.attr.builtin_include_directories,
        features = [
            feature("no_legacy_features"),
            feature("supports_pic", enabled = True),
            feature("compile", enabled = True, flag_sets = [flags], env_sets = [env]),
        ],
        host_system_name = "local",
        target_cpu = "k8",
        target_libc = "local",
        target_system_name = "local",
        tool_paths = [
            tool_path(name = name, path = ctx.attr.compiler if name == "gcc" else "/bin/false")
            for name in _TOOLS
        ],
        toolchain_identifier = "miniature_rocm",
    )

crosstool_config = rule(
    doc = "A toolchain that compiles and nothing else.",
    implementation = _crosstool_config_impl,
    attrs = {
        "builtin_include_directories": attr.string_list(
            doc = "Folders whose headers no action has to declare.",
        ),
        "compiler": attr.string(mandatory = True, doc = "Its path, seen from the BUILD file."),
    },
    provides = [CcToolchainConfigInfo],
)
