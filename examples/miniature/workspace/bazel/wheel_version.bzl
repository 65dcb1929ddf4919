"""Repository rules that decide a wheel's version: the base from jax/version.py, the rest from env."""

def _wheel_version_impl(repository_ctx):
    text = repository_ctx.read(repository_ctx.path(repository_ctx.attr.version_file))
    for line in text.split("\n"):
        if line.startswith("_version ="):
            version = line[len("_version ="):].strip().strip("\"'")
            repository_ctx.file("BUILD.bazel", "")
            repository_ctx.file("wheel.bzl", "WHEEL_VERSION = {}\n".format(repr(version)))
            return
    fail("{}: no line starts with '_version ='".format(repository_ctx.attr.version_file))

wheel_version = repository_rule(
    doc = "Reads the base version from the `_version` line of a Python file.",
    implementation = _wheel_version_impl,
    attrs = {"version_file": attr.label(mandatory = True, allow_single_file = True)},
)

_ENVIRON = [
    "ML_WHEEL_TYPE",
    "ML_WHEEL_BUILD_DATE",
    "ML_WHEEL_GIT_HASH",
    "ML_WHEEL_VERSION_SUFFIX",
]

def _suffix(environ):
    kind = environ.get("ML_WHEEL_TYPE", "snapshot")
    date = environ.get("ML_WHEEL_BUILD_DATE", "").replace("-", "")
    git_hash = environ.get("ML_WHEEL_GIT_HASH", "").lstrip("0")[:9]
    suffix = environ.get("ML_WHEEL_VERSION_SUFFIX", "").replace("-", "")
    if kind == "snapshot":
        return ".dev0+selfbuilt"
    if kind == "release":
        return suffix
    if kind == "nightly":
        if not date:
            fail("ML_WHEEL_TYPE=nightly needs --repo_env=ML_WHEEL_BUILD_DATE=<YYYYMMDD>")
        return ".dev" + date
    if kind == "custom":
        return (".dev" + date if date else "") + ("+" + git_hash if git_hash else "") + suffix
    fail("ML_WHEEL_TYPE={}: expected snapshot, release, nightly or custom".format(kind))

def _wheel_version_suffix_impl(repository_ctx):
    suffix = _suffix(repository_ctx.os.environ)
    repository_ctx.file("BUILD.bazel", "")
    repository_ctx.file(
        "wheel_version_suffix.bzl",
        "WHEEL_VERSION_SUFFIX = {}\n".format(repr(suffix)),
    )

wheel_version_suffix = repository_rule(
    doc = "Turns the ML_WHEEL_* variables (--repo_env) into the part after the base version.",
    implementation = _wheel_version_suffix_impl,
    environ = _ENVIRON,
)
