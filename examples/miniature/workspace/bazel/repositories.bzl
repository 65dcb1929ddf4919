"""All external repositories of the miniature: what it finds on this machine, downloads nothing."""

load(":host.bzl", "host_compiler", "host_python", "tool_python")
load(":rocm_configure.bzl", "rocm_configure")
load(":wheel_version.bzl", "wheel_version", "wheel_version_suffix")

def miniature_repositories():
    """Declares the repositories, for WORKSPACE."""
    host_compiler(name = "host_compiler")
    host_python(name = "host_python", anchor = "//:BUILD.bazel")
    tool_python(name = "tool_python")
    wheel_version(name = "jax_wheel", version_file = "//jax:version.py")
    wheel_version_suffix(name = "jax_wheel_version_suffix")
    rocm_configure(name = "local_config_rocm")

def _rules_cc_impl(repository_ctx):
    names = [
        "cc_binary",
        "cc_import",
        "cc_library",
        "cc_proto_library",
        "cc_test",
        "cc_toolchain",
        "cc_toolchain_suite",
        "fdo_prefetch_hints",
        "fdo_profile",
        "objc_import",
        "objc_library",
    ]
    repository_ctx.file("BUILD.bazel", "")
    repository_ctx.file("cc/BUILD.bazel", "")
    lines = ["{0} = native.{0}".format(name) for name in names]
    repository_ctx.file("cc/defs.bzl", "\n".join(lines) + "\n")

rules_cc = repository_rule(
    doc = "Stands for the rules that Bazel's own C++ toolchains load, where they are built in.",
    implementation = _rules_cc_impl,
)
