"""A workspace with JAX's layout and labels, and wheels of a few lines of text: Bazel is real.

A source that contains FAIL breaks its action, one that contains `SLEEP n` takes n seconds, one that
contains `WAIT path` takes until there is such a file.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
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
            if grep -q WAIT "$1"; then
                until [ -e "$(sed -n 's/.*WAIT \\\\([^ ]*\\\\).*/\\\\1/p' "$1")" ]; do sleep 0.1; done
            fi
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
        inputs = ctx.files.objects + [ctx.file._pack],
        outputs = [out],
        command = 'python3 "$@"',
        arguments = [ctx.file._pack.path, out.path] + [file.path for file in ctx.files.objects],
        mnemonic = "BuildJaxWheel",
        progress_message = "Packing %s" % ctx.attr.filename,
    )
    return [DefaultInfo(files = depset([out]))]

toy_wheel = rule(_wheel_impl, attrs = {
    "filename": attr.string(),
    "objects": attr.label_list(allow_files = True),
    "_pack": attr.label(default = "//:pack.py", allow_single_file = True),
})

def _flag_impl(ctx):
    return []

string_flag = rule(_flag_impl, build_setting = config.string(flag = True))
"""

_PACK = """
import sys, zipfile

out, sources = sys.argv[1], sys.argv[2:]
project, version, *tag = out.rpartition("/")[2][:-4].split("-")
text = "".join(open(source).read() for source in sources)
info = "%s-%s.dist-info/" % (project, version)
with zipfile.ZipFile(out, "w") as wheel:
    for name, content in (
        (project + "/__init__.py", text),
        (info + "METADATA", "Metadata-Version: 2.1\\nName: %s\\nVersion: %s\\n" % (project, version)),
        (info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: %s\\n" % "-".join(tag)),
        (info + "RECORD", ""),
    ):
        wheel.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
"""

_REPOSITORY = """
def _settings_impl(repository_ctx):
    environ = repository_ctx.os.environ
    python = environ.get("HERMETIC_PYTHON_VERSION", "3.12").replace(".", "")
    suffix = environ.get("ML_WHEEL_VERSION_SUFFIX", "")
    if environ.get("ML_WHEEL_TYPE", "") == "snapshot":
        suffix = ".dev0+selfbuilt"
    repository_ctx.file("BUILD.bazel", "")
    repository_ctx.file("settings.bzl", "TAG = 'cp%s'\\nSUFFIX = '%s'\\nROCM = '%s'\\n" % (
        python,
        suffix,
        environ.get("TF_NEED_ROCM", "") and environ["ROCM_PATH"],
    ))

settings = repository_rule(
    implementation = _settings_impl,
    environ = [
        "HERMETIC_PYTHON_VERSION",
        "ML_WHEEL_TYPE",
        "ML_WHEEL_VERSION_SUFFIX",
        "ROCM_PATH",
        "TF_NEED_ROCM",
    ],
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
build:mkl_open_source_only --define=mkl=1
build:avx_posix --define=avx=1
"""

_ROCM_RC = """
build:rocm --repo_env=TF_NEED_ROCM=1
build:rocm --action_env=HIPCC_COMPILE_FLAGS_APPEND=--offload-compress
build:rocm_clang_local --config=rocm
build:rocm_clang_hermetic --config=rocm
build:rocm_release_wheel --config=rocm_clang_hermetic
"""

# Debian's Bazel looks there for its installation; its own rc file would say so.
DEBIAN_RC = """
startup --install_base=/usr/share/bazel
startup --trust_install_base
build --host_javabase=@local_jdk//:jdk
"""

FILES = {
    "debian.bazelrc": DEBIAN_RC,
    "WORKSPACE": 'workspace(name = "toy")\nload("//:repository.bzl", "settings")\n'
    'settings(name = "settings")\n',
    "BUILD.bazel": 'exports_files(["pack.py"])',
    ".bazelrc": _RC,
    "rules.bzl": _RULES,
    "repository.bzl": _REPOSITORY,
    "pack.py": _PACK,
    "jax/version.py": '_version = "0.11.0"\n',
    "build/rocm/rocm.bazelrc": _ROCM_RC,
    "build/requirements_lock_3_10.txt": "numpy==2.1.0\n",
    "build/requirements_lock_3_11.txt": "numpy==2.1.0\n",
    "build/requirements_lock_3_12.txt": "numpy==2.1.0\n",
    "build/requirements_lock_3_13.txt": "numpy==2.1.0\n",
    "jaxlib/tools/BUILD.bazel": _BUILD,
    "jaxlib/tools/src/host.txt": "host = 1\n",
    "jaxlib/tools/src/kernels.txt": "kernels = 1\n",
    "jaxlib/tools/src/pjrt.txt": "pjrt = 1\n",
    "jaxlib/tools/src/shared.txt": "shared = 1\n",
}


def text_of(wheel: Path) -> str:
    """What the objects of a wheel said."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(archive.namelist()[0]).decode()


def make(root: Path, files: Mapping[str, str] = FILES) -> Path:
    """Write the workspace to `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
