"""Source trees of each generation of JAX's build, made in code: what their rc files define.

Only what rocwheel reads is in them: version, BUILD files with the labels, rc files with the configs
by name and the options that decide about compilers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HOST_CLANG = "/usr/lib/llvm-18/bin/clang"
_ALWAYS = """
build:avx_posix --copt=-mavx
build:native_arch_posix --copt=-march=native
build:mkl_open_source_only --define=mkl=1
build:clang --copt=-Qunused-arguments
"""
_LOCAL = "common:{name} --repo_env USE_HERMETIC_CC_TOOLCHAIN=0\n"
_ROCM = (
    "common:rocm_base --config={local}\ncommon:rocm_base --repo_env TF_NEED_ROCM=1\n"
    'common:rocm --config=rocm_base\ncommon:rocm --action_env=CLANG_COMPILER_PATH="{clang}"\n'
)
_RELEASE = "build:rocm_release_wheel --config=rocm\n"
_LATE = (
    "common:rocm --repo_env=TF_NEED_ROCM=1\n"
    "common:rocm --action_env=HIPCC_COMPILE_FLAGS_APPEND=--offload-compress\n"
    "common:rocm_clang_local --config=rocm\n"
    "common:rocm_clang_local --repo_env USE_HERMETIC_CC_TOOLCHAIN=0\n"
    'common:rocm_clang_local --action_env=CLANG_COMPILER_PATH="{clang}"\n'
    "common:rocm_clang_hermetic --config=rocm\n"
    "build:rocm_release_wheel --config=rocm_clang_hermetic\n"
)
_COMPRESS = "common:rocm --action_env=HIPCC_COMPILE_FLAGS_APPEND=--offload-compress\n"


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A release, and what its tree holds besides what all have."""

    version: str
    bazelrc: str = ""  # appended to the one all have
    rocm_bazelrc: str = ""  # build/rocm/rocm.bazelrc, where there is one
    files: Mapping[str, str] = field(default_factory=dict)
    plugin: str = '"jax_rocm{}_plugin".format(ROCM_MAJOR_VERSION)'


def _early(version: str, local: str) -> Generation:
    rc = _LOCAL.format(name=local) + _ROCM.format(local=local, clang="{clang}")
    return Generation(version=version, bazelrc=rc, plugin='"jax_rocm60_plugin"')


def _middle(version: str, *, more: str = _RELEASE, **files: str) -> Generation:
    rc = _ROCM.format(local="clang_local", clang="{clang}") + more
    return Generation(
        version=version, bazelrc=_LOCAL.format(name="clang_local"), rocm_bazelrc=rc, files=files
    )


_OVERRIDE = {"build/build.py": 'command.append("--override_module=xla")\n'}
GENERATIONS = {
    item.version: item
    for item in (
        _early("0.8.0", "clang_local"),
        _early("0.8.3", "linux_clang_local"),
        _early("0.9.1", "clang_local"),
        _middle("0.9.2"),
        _middle("0.10.0", more=_COMPRESS + _RELEASE),
        _middle("0.10.1", more=_COMPRESS + _RELEASE, **_OVERRIDE),
        Generation(
            version="0.11.0",
            bazelrc=_LOCAL.format(name="clang_local"),
            rocm_bazelrc=_LATE,
            files=_OVERRIDE,
        ),
        Generation(
            version="0.11.1",
            bazelrc=_LOCAL.format(name="clang_local"),
            rocm_bazelrc=_LATE,
            files={
                **_OVERRIDE,
                "jaxlib/plugin_support.py": 'PLUGINS = ["jax_rocm10_plugin"]\n',
            },
        ),
    )
}
# Between 0.9.1 and 0.9.2: the new file under the new number, without the release config.
BEFORE_0_9_2 = _middle("0.9.2", more="")


def write(root: Path, generation: Generation, *, says: str = "", clang: str = HOST_CLANG) -> Path:
    """Write the tree; `says` is the version in it, `clang` the compiler its configs name."""
    files = {
        "WORKSPACE": 'workspace(name = "jax")\n',
        ".bazelrc": _ALWAYS + generation.bazelrc.replace("{clang}", clang),
        ".bazelversion": "7.7.0\n",
        "jax/version.py": f'_version = "{says or generation.version}"\n',
        "jaxlib/tools/BUILD.bazel": (
            'string_flag(name = "jaxlib_git_hash")\n'
            'wheel(name = "jaxlib_wheel", wheel_name = "jaxlib")\n'
            f'wheel(name = "jax_rocm_plugin_wheel", wheel_name = {generation.plugin})\n'
            'wheel(name = "jax_rocm_pjrt_wheel")\n'
        ),
        "third_party/xla/revision.bzl": f'XLA_COMMIT = "{"1" * 40}"\n',
        "build/requirements_lock_3_12.txt": "numpy==2.1.0\n",
        **generation.files,
    }
    if generation.rocm_bazelrc:
        files["build/rocm/rocm.bazelrc"] = generation.rocm_bazelrc.replace("{clang}", clang)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root
