"""Every rule a wheel can break, as data: its id, its severity, what must hold, the remedy."""

import enum
from typing import Final, NamedTuple

from rocwheel.base.console import brief


class Severity(enum.Enum):
    """Whether a wheel with this finding may ship: only with an error it may not."""

    ERROR = "error"
    WARNING = "warning"
    UNSEEN = "not looked at"


class Finding(NamedTuple):
    """One broken rule in one wheel."""

    rule: str
    severity: Severity
    message: str  # begins with the member it is about, where there is one
    remedy: str


ERROR, WARNING, UNSEEN = Severity
# rule -> (severity, what must hold, what to do where it does not)
RULES: Final = {
    "archive": (ERROR,
        "The archive is sound and means the same to every reader.",
        "build or fetch the wheel again"),
    "record.row": (ERROR,
        "RECORD lists every file once, and nothing else.",
        "build the wheel again; never add, remove or rename files by hand"),
    "record.hash": (ERROR,
        "Every file has the SHA-256 (or a stronger digest) and the size that RECORD says.",
        "a file was changed after packing: build the wheel again, change wheels with `wheel` only"),
    "name.agree": (ERROR,
        "File name, dist-info folder and METADATA agree on project and version (PEP 427, 503).",
        "rename with `wheel reversion`, never by hand"),
    "name.canonical": (ERROR,
        "Versions are spelt in PEP 440 normal form.",
        "give the suffix in normal form, for example +rocm7.10.0"),
    "name.expected": (ERROR,
        "Project and version are the ones that were asked for.",
        "check the JAX version, the wheel suffix and the ROCm version of the build"),
    "metadata.field": (ERROR,
        "METADATA and WHEEL have the fields that the specifications require, well formed.",
        "build the wheel again with a current setuptools"),
    "metadata.python": (ERROR,
        "Requires-Python admits a Python; of JAX's wheels those that tag and release are for.",
        "correct python_requires where the wheel is built, or the tag"),
    "tag.agree": (ERROR,
        "WHEEL has exactly the tags and the build number of the file name (PEP 425, 427).",
        "use `wheel retag`, never rename by hand"),
    "tag.expected": (ERROR,
        "The tags are the ones that were asked for.",
        "use `wheel retag`, or check for which CPython the wheel was built"),
    "tag.single": (WARNING,
        "One wheel has one platform tag.",
        "use `wheel repair`: it keeps the one tag that holds"),
    "tag.manylinux": (ERROR,
        "The symbol versions that are needed exist on every system the platform tag promises.",
        "use `wheel repair` to give it the tag that holds, or build with an older sysroot"),
    "tag.kind": (ERROR,
        "Plugins and jaxlib are for one CPython (cp312-cp312), pjrt is py3-none.",
        "use `wheel retag`, or check for which CPython the wheel was built"),
    "version.module": (ERROR,
        "Version modules say the version of METADATA; None or another post-release is a warning.",
        "use `wheel repair`, which writes it; for another release build the wheel again"),
    "layout.required": (ERROR,
        "A wheel of JAX's has every module that JAX takes from it.",
        "build the wheel again; the list for each JAX version is in ci/wheel_policy.yaml"),
    "layout.stray": (ERROR,
        "Only the wheel's own packages are installed, and no leftovers of a build.",
        "remove the file from the wheel's build rule"),
    "layout.mode": (WARNING,
        "Every file can be read by everyone, and none is set-user-id or world-writable.",
        "use `wheel repair`, or correct the modes where the wheel is packed"),
    "layout.entry-point": (ERROR,
        "The entry points are those that JAX needs, as importlib.metadata reads them.",
        "check the wheel's entry_points"),
    "elf.soname": (ERROR,
        "No library of JAX's wheels poses as one of the system or of ROCm.",
        "give it a SONAME of its own where it is linked"),
    "elf.stack": (ERROR,
        "No library of JAX's wheels wants an executable stack, which newer glibc refuses.",
        "link with -z noexecstack"),
    "elf.machine": (ERROR,
        "Shared objects are for the machine that the platform tag names.",
        "build for that machine, or correct the tag"),
    "elf.rpath": (ERROR,
        "DT_RPATH is not used: it would go before LD_LIBRARY_PATH.",
        "link with --enable-new-dtags, or use `wheel repair`"),
    "elf.runpath": (ERROR,
        "RUNPATH is the template of this JAX version: it finds ROCm from pip, a tarball, /opt.",
        "use `wheel repair`, or check the release config of the build"),
    "elf.runpath-leak": (ERROR,
        "RUNPATH names no folder of the build, nor (empty or relative) the current one.",
        "build with the release config (link_only), or use `wheel repair`"),
    "elf.needed": (ERROR,
        "RUNPATH finds every NEEDED library in the wheel, or it is one of the platform or of ROCm.",
        "link one that is there (of ROCm: the one asked for), or allow it in ci/wheel_policy.yaml"),
    "elf.needed-rocm": (ERROR,
        "The ROCm the wheel was built for has every library that is NEEDED and its symbols.",
        "another ROCm was linked: set ROCM_PATH to the requested one and build again"),
    "elf.python": (ERROR,
        "A module exports the function PyInit_<its name>, and links no libpython.",
        "check the module's name and its link options"),
    "elf.pjrt": (ERROR,
        "A pjrt wheel has one library, and it exports GetPjrtApi.",
        "check the version script of the PJRT library"),
    "gfx.targets": (ERROR,
        "GPU code is there for exactly the gfx targets that were asked for, in every bundle.",
        "build with TF_ROCM_AMDGPU_TARGETS set to the targets; --rocm_amdgpu_targets is ignored"),
    "gfx.none": (ERROR,
        "A wheel that runs on GPUs has GPU code, and so has each library that registers some.",
        "check that the build compiled its kernels with ROCm's clang"),
    "gfx.code": (ERROR,
        "GPU code is what its compiler wrote, for the target it is filed under, and HIP gets it.",
        "the code was changed, cut or mixed up after compiling: build the wheel again"),
    "gfx.unread": (UNSEEN,
        "All GPU code is unpacked and checked.",
        "read all of it with --thorough"),
    "gfx.compiler": (WARNING,
        "The ROCm the wheel is for has the compiler that made the GPU code (with --rocm-root).",
        "build with the clang of that ROCm, see ROCM_PATH and CLANG_COMPILER_PATH of the build"),
    "install.refused": (ERROR,
        "pip and uv install the wheels by hash, without a network (with `--installs`).",
        "correct what the client names where the wheel is built"),
    "install.differs": (ERROR,
        "pip and uv install the same files and programs, modes included (with `--installs`).",
        "leave out what the format does not define: .data folders, odd entry points, odd modes"),
    "runs.import": (ERROR,
        "Each module is imported, each library loaded, by the CPythons it is for (with --runs).",
        "build it from sources that import, and link what defines its names"),
    "runs.names": (ERROR,
        "Modules have the names and the version that JAX takes from them (with --runs).",
        "build it from JAX's own sources; the list is in ci/wheel_policy.yaml"),
    "runs.plugin": (ERROR,
        "initialize() registers platform, library and options with JAX (with --runs).",
        "build jax_plugins/xla_rocm from JAX's own sources"),
    "runs.jax": (ERROR,
        "JAX imports and computes on the CPU with the set's jaxlib (with --runs).",
        "build jaxlib from the sources of this JAX version"),
    "runs.unseen": (UNSEEN,
        "All that --runs looks at can be run here.",
        "give it what is missing, or look on a machine that has it"),
    "pin.sibling": (ERROR,
        "Wheels of the same set are pinned, and the set satisfies the pins.",
        "re-version plugin and pjrt together with one `wheel reversion`"),
    "pin.allowed": (ERROR,
        "JAX's wheels require only what the policy lists, in versions that work.",
        "correct install_requires where the wheel is built, or the list in ci/wheel_policy.yaml"),
    "graft.allowed": (ERROR,
        "No library of another project is in a wheel of JAX's.",
        "link without it, or against the ROCm that has it"),
    "set.double": (ERROR,
        "There is one wheel per project and Python.",
        "build into a fresh folder, and keep the wheel with the tag that holds"),
    "set.manifest": (ERROR,
        "A wheelhouse holds exactly the wheels of its manifest, byte for byte.",
        "remove the wheelhouse and build it again"),
    "size.budget": (ERROR,
        "The wheel is not larger than its kind's budget.",
        "see `wheel inspect` for what is large; raise the budget in ci/wheel_policy.yaml if right"),
}  # fmt: skip


def finding(
    rule: str, message: str, *, warn: bool = False, severity: Severity | None = None
) -> Finding:
    """Return a finding with its rule's remedy, and its severity unless another is given."""
    usual, _, remedy = RULES[rule]
    severity = Severity.WARNING if warn else severity or usual
    return Finding(rule=rule, severity=severity, message=brief(message), remedy=remedy)
