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
