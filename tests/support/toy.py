"""A workspace with JAX's layout and labels whose wheels are made by a few `cat`s: Bazel is real.

A source that contains FAIL breaks its action, one that contains `SLEEP n` takes n seconds.
"""

from __future__ import annotations

from pathlib import Path

_RULES = """
def _object_impl(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".o")
    ctx.actions.run_shell(
        inputs = [ctx.file.src],
        outputs = [out],
        command = '''
            if grep -n FAIL "$1" >&2; then echo "$1: error: told to fail" >&2; exit 3; fi
            if grep -q SLEEP "$1"; then sleep $(sed -n 's/.*SLEEP \\\\([0-9.]*\\\\).*/\\\\1/p' "$1"); fi
            cp "$1" "$2"
        ''',
        arguments = [ctx.file.src.path, out.path],
        mnemonic = "ToyCompile",
        progress_message = "Compiling %s" % ctx.file.src.short_path,
    )
    return [DefaultInfo(files = depset([out]))]

toy_object = rule(_object_impl, attrs = {"src": attr.label(allow_single_file = True)})

def _wheel_impl(ctx):
    out = ctx.actions.declare_file("dist/" + ctx.attr.filename)
    ctx.actions.run_shell(
        inputs = ctx.files.objects,
        outputs = [out],
        command = 'out="$1"; shift; cat "$@" > "$out"',
        arguments = [out.path] + [file.path for file in ctx.files.objects],
        mnemonic = "BuildJaxWheel",
        progress_message = "Packing %s" % ctx.attr.filename,
    )
    return [DefaultInfo(files = depset([out]))]

toy_wheel = rule(_wheel_impl, attrs = {
    "filename": attr.string(),
    "objects": attr.label_list(allow_files = True),
})

def _flag_impl(ctx):
    return []

string_flag = rule(_flag_impl, build_setting = config.string(flag = True))
"""

_REPOSITORY = """
def _settings_impl(repository_ctx):
    environ = repository_ctx.os.environ
    python = environ.get("HERMETIC_PYTHON_VERSION", "3.12").replace(".", "")
    repository_ctx.file("BUILD.bazel", "")
    repository_ctx.file("settings.bzl", "TAG = 'cp%s'\\nSUFFIX = '%s'\\nROCM = '%s'\\n" % (
        python,
        environ.get("ML_WHEEL_VERSION_SUFFIX", ""),
        environ.get("TF_NEED_ROCM", "") and environ["ROCM_PATH"],
    ))

settings = repository_rule(
    implementation = _settings_impl,
    environ = ["HERMETIC_PYTHON_VERSION", "ML_WHEEL_VERSION_SUFFIX", "TF_NEED_ROCM", "ROCM_PATH"],
)
"""

_BUILD = """
load("@settings//:settings.bzl", "SUFFIX", "TAG")
load("//:rules.bzl", "string_flag", "toy_object", "toy_wheel")

string_flag(name = "jaxlib_git_hash", build_setting_default = "")

[toy_object(name = name, src = "src/%s.txt" % name) for name in [
    "host", "kernels", "pjrt", "shared",
]]

toy_wheel(
    name = "jaxlib_wheel",
    filename = "jaxlib-0.11.0%s-%s-%s-linux_x86_64.whl" % (SUFFIX, TAG, TAG),
    objects = ["host", "shared"],
)

toy_wheel(
    name = "jax_rocm_plugin_wheel",
    filename = "jax_rocm7_plugin-0.11.0%s-%s-%s-linux_x86_64.whl" % (SUFFIX, TAG, TAG),
    objects = ["kernels", "shared"],
)

toy_wheel(
    name = "jax_rocm_pjrt_wheel",
    filename = "jax_rocm7_pjrt-0.11.0%s-py3-none-linux_x86_64.whl" % SUFFIX,
    objects = ["pjrt", "shared"],
)
"""

_RC = """
build --nosandbox_debug
build:mkl_open_source_only --define=mkl=1
build:avx_posix --define=avx=1
"""

_ROCM_RC = """
build:rocm --repo_env=TF_NEED_ROCM=1
build:rocm_release_wheel --config=rocm
"""

FILES = {
    "WORKSPACE": 'workspace(name = "toy")\nload("//:repository.bzl", "settings")\n'
    'settings(name = "settings")\n',
    "BUILD.bazel": "",
    ".bazelrc": _RC,
    "rules.bzl": _RULES,
    "repository.bzl": _REPOSITORY,
    "jax/version.py": '_version = "0.11.0"\n',
    "build/rocm/rocm.bazelrc": _ROCM_RC,
    "build/requirements_lock_3_12.txt": "",
    "build/requirements_lock_3_13.txt": "",
    "jaxlib/tools/BUILD.bazel": _BUILD,
    "jaxlib/tools/src/host.txt": "host\n",
    "jaxlib/tools/src/kernels.txt": "kernels\n",
    "jaxlib/tools/src/pjrt.txt": "pjrt\n",
    "jaxlib/tools/src/shared.txt": "shared\n",
}


def make(root: Path) -> Path:
    """Write the workspace to `root`."""
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
