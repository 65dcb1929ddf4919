"""Every rule a wheel can break, as data: its id, its severity, the remedy."""

import enum
from collections.abc import Iterable
from typing import Final, NamedTuple

from rocwheel.base.console import brief
from rocwheel.base.errors import WheelError


class Severity(enum.Enum):
    """Whether a wheel with this finding may ship: only with an error it may not."""

    ERROR = "error"
    WARNING = "warning"
    UNSEEN = "not looked at"


class Finding(NamedTuple):
    rule: str
    severity: Severity
    message: str  # begins with the member it is about, where there is one
    remedy: str


# rule -> what to do where it is broken; what must hold says docs/how-to/inspect-verify-wheels.md
RULES: Final = {
    "archive": "build or fetch the wheel again",
    "record.row": "build the wheel again; never add, remove or rename files by hand",
    "record.hash": (
        "a file was changed after packing: build the wheel again, change wheels with `wheel` only"
    ),
    "name.agree": "rename with `wheel reversion`, never by hand",
    "name.canonical": "give the suffix in normal form, for example +rocm7.10.0",
    "name.expected": "check the JAX version, the wheel suffix and the ROCm version of the build",
    "metadata.field": "build the wheel again with a current setuptools",
    "metadata.python": "correct python_requires where the wheel is built, or the tag",
    "tag.agree": "use `wheel retag`, never rename by hand",
    "tag.expected": "use `wheel retag`, or check for which CPython the wheel was built",
    "tag.single": "use `wheel repair`: it keeps the one tag that holds",
    "tag.manylinux": (
        "use `wheel repair` to give it the tag that holds, or build with an older sysroot"
    ),
    "tag.kind": "use `wheel retag`, or check for which CPython the wheel was built",
    "version.module": (
        "use `wheel repair`, which writes it; for another release build the wheel again"
    ),
    "layout.required": (
        "build the wheel again; the list for each JAX version is in ci/wheel_policy.yaml"
    ),
    "layout.stray": "remove the file from the wheel's build rule",
    "layout.mode": "use `wheel repair`, or correct the modes where the wheel is packed",
    "layout.entry-point": "check the wheel's entry_points",
    "elf.soname": "give it a SONAME of its own where it is linked",
    "elf.stack": "link with -z noexecstack",
    "elf.machine": "build for that machine, or correct the tag",
    "elf.rpath": "link with --enable-new-dtags, or use `wheel repair`",
    "elf.runpath": "use `wheel repair`, or check the release config of the build",
    "elf.runpath-leak": "build with the release config (link_only), or use `wheel repair`",
    "elf.needed": (
        "link one that is there (of ROCm: the one asked for), or allow it in ci/wheel_policy.yaml"
    ),
    "elf.needed-rocm": (
        "another ROCm was linked: set ROCM_PATH to the requested one and build again"
    ),
    "elf.python": "check the module's name and its link options",
    "elf.pjrt": "check the version script of the PJRT library",
    "gfx.targets": (
        "build with TF_ROCM_AMDGPU_TARGETS set to the targets; --rocm_amdgpu_targets is ignored"
    ),
    "gfx.none": "check that the build compiled its kernels with ROCm's clang",
    "gfx.code": "the code was changed, cut or mixed up after compiling: build the wheel again",
    "gfx.unread": "read all of it with --thorough",
    "gfx.compiler": (
        "build with the clang of that ROCm, see ROCM_PATH and CLANG_COMPILER_PATH of the build"
    ),
    "install.refused": "correct what the client names where the wheel is built",
    "install.differs": (
        "leave out what the format does not define: .data folders, odd entry points, odd modes"
    ),
    "runs.import": "build it from sources that import, and link what defines its names",
    "runs.names": "build it from JAX's own sources; the list is in ci/wheel_policy.yaml",
    "runs.plugin": "build jax_plugins/xla_rocm from JAX's own sources",
    "runs.jax": "build jaxlib from the sources of this JAX version",
    "runs.unseen": "give it what is missing, or look on a machine that has it",
    "pin.sibling": "re-version plugin and pjrt together with one `wheel reversion`",
    "pin.allowed": (
        "correct install_requires where the wheel is built, or the list in ci/wheel_policy.yaml"
    ),
    "graft.allowed": "link without it, or against the ROCm that has it",
    "set.double": "build into a fresh folder, and keep the wheel with the tag that holds",
    "set.manifest": "remove the wheelhouse and build it again",
    "size.budget": (
        "see `wheel inspect` for what is large; raise the budget in ci/wheel_policy.yaml if right"
    ),
}
# Those that are no errors.
_SEVERITIES: Final = {
    "tag.single": Severity.WARNING,
    "layout.mode": Severity.WARNING,
    "gfx.unread": Severity.UNSEEN,
    "gfx.compiler": Severity.WARNING,
    "runs.unseen": Severity.UNSEEN,
}


def finding(rule: str, message: str, *, warn: bool = False) -> Finding:
    severity = Severity.WARNING if warn else _SEVERITIES.get(rule, Severity.ERROR)
    return Finding(rule, severity, brief(message), RULES[rule])


def refuse(filename: str, findings: Iterable[Finding]) -> None:
    """Raise WheelError where one is an error."""
    errors = [item for item in findings if item.severity is Severity.ERROR]
    if errors:
        raise WheelError(
            f"{filename}: {len(errors)} rules are broken, the first is {errors[0].rule}",
            hint=errors[0].remedy,
            detail="\n".join(f"{item.rule}: {item.message}" for item in errors),
        )
