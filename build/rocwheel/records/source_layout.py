"""Values of `ci/layouts.yaml`: what a source tree contains, and the options of its Bazel.

`source` checks trees against a `Layout`, `bazel` turns its recipe into options; both rooms share
these values and nothing else. A recipe is a list of steps whose options are given when their
conditions hold; conditions and values that do not exist are refused when the file is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Final, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from rocwheel.base.values import Value
from rocwheel.base.versions import PythonVersion, WheelKind

Linker = Literal["gold", "lld"]
_FROM: Final = frozenset({">=", ">", "=="})  # operators that say where a range begins

# What a step may depend on; a version class adds its own `features`.
CONDITIONS: Final = frozenset({
    "bazel-6-or-newer",  # the first with modules
    "clang",  # a local clang compiles host code
    "clang-16-or-newer",
    "clang-before-19",
    "cpu-native",
    "cpu-release",
    "free-threaded",
    "git-hash",
    "hermetic",  # the compiler the tree downloads itself
    "host-compiler",  # a compiler of the machine is used, and its digest is known
    "modules",  # bzlmod is on, though the class does not always override the module
    "rocm",  # a wheel of this invocation needs ROCm
    "wheel-suffix",
    "workspace",  # Bazel may take external repositories from WORKSPACE
    "xla-dir",
})  # fmt: skip

# What a step may name; a version class adds its own `values`.
VALUES: Final = frozenset({
    "cc",
    "cxx",
    "gfx_targets",
    "git_hash",
    "host_compiler",
    "python",
    "rocm_path",
    "wheel_suffix",
    "wheel_type",
    "xla_dir",
})  # fmt: skip

PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")


class ConditionalOptions(Value, frozen=True, kw_only=True):
    """Options that a build gets when all of `when` holds."""

    when: tuple[str, ...] = ()
    options: tuple[str, ...]


class Marks(Value, frozen=True, kw_only=True):
    """What a tree of a version class contains; its version does not matter."""

    configs: tuple[str, ...] = ()  # defined in its rc files
    without: tuple[str, ...] = ()  # not defined there
    contains: Mapping[str, str] = {}  # file: a text in it
    modules: bool | None = None  # whether its rc files enable bzlmod; None where that is not asked


class RocmNeeds(Value, frozen=True, kw_only=True):
    """What the build rules of some JAX versions look for in a ROCm tree.

    A path may be a pattern, and `a|b` is satisfied by either. A library is `lib<name>.so`; of
    `a|b` one is enough.
    """

    files: tuple[str, ...] = ()
    macros: Mapping[str, str] = {}  # header: a number it must define
    executables: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()  # of the machine

    @property
    def paths(self) -> tuple[str, ...]:
        """Return every file that must be there."""
        libraries = (
            "|".join(f"{lib}/lib{one}.so" for one in name.split("|") for lib in ("lib", "lib64"))
            for name in self.libraries
        )
        return (*self.files, *libraries)


class VersionClass(Value, frozen=True, kw_only=True):
    """JAX versions whose Bazel takes the same options."""

    versions: SpecifierSet
    rocm: SpecifierSet  # ROCm versions these sources can be built against
    marks: Marks
    linker: Linker  # of the ROCm toolchain, where the machine's own clang compiles
    own_configs: tuple[str, ...] = ()  # JAX's own that a user may add, before our gfx targets
    own_clang: str = ""  # why the machine's own clang is not the one to use; "" where it is
    remark: str = ""  # what a person should know who builds it
    startup_files: tuple[str, ...] = ()  # rc files, relative to the workspace
    features: frozenset[str] = frozenset()
    values: Mapping[str, tuple[str, ...]] = {}
    needs: RocmNeeds

    def __str__(self) -> str:
        return f"JAX {self.versions}"


class LockFiles(Value, frozen=True, kw_only=True):
    """Where a tree shows which CPythons it accepts: `<folder>/<prefix>3_12<suffix>`.

    A free-threaded CPython has a file of its own, or shares that of its version: from `shared_from`
    on, where that file does not hold the text `apart`.
    """

    folder: str
    prefix: str
    suffix: str
    shared_from: str
    apart: str

    def name(self, python: PythonVersion) -> str:
        variant = "_ft" if python.free_threaded else ""
        return f"{self.folder}/{self.prefix}{python.major}_{python.minor}{variant}{self.suffix}"

    def accepts(self, python: PythonVersion, root: Path) -> bool:
        """Return whether a tree has a lock file for a CPython. Raises OSError."""

        def text(of: PythonVersion) -> str:
            file = root / self.name(of)
            return file.read_text("utf-8", "replace").strip() if file.is_file() else ""

        if text(python):
            return True
        if not python.free_threaded or python < PythonVersion.parse(self.shared_from):
            return False
        shared = text(PythonVersion(python.major, python.minor))
        return bool(shared) and self.apart not in shared


class Assignment(Value, frozen=True, kw_only=True):
    """`variable = "value"` in a file of the tree."""

    file: str
    variable: str


class FileText(Value, frozen=True, kw_only=True):
    """A regular expression to look for in a file of the tree."""

    file: str
    pattern: re.Pattern[str]


class XlaPin(Value, frozen=True, kw_only=True):
    """Where a tree names the XLA it builds; paths are relative to the checkout."""

    repository: str  # where its commits are
    folder: str
    files: tuple[str, ...]  # below `folder`; the first one that has the variable counts
    variable: str
    # Where bzlmod is on: the module's entry in MODULE.bazel, with `repository` and `commit`.
    module: FileText
    linkers: Mapping[str, Linker] = {}  # by commit, where it is another than the class's


class Layout(Value, frozen=True, kw_only=True):
    """The interface to one kind of source tree; paths are relative to the checkout."""

    name: str = ""  # its key in the file
    description: str
    workspace: str
    markers: tuple[str, ...]
    version: Assignment
    xla: XlaPin
    known: SpecifierSet  # JAX versions that were compared with their sources
    fixed_number: FileText | None = None  # where wheels carry a number instead of ROCm's major
    lock_files: LockFiles
    left_behind: tuple[str, ...] = ()  # rc files of earlier builds, which would leak into ours
    personal: tuple[str, ...] = ()  # the user's own rc files
    targets: Mapping[WheelKind, str]
    recipe: tuple[ConditionalOptions, ...]
    rocm_needs: Mapping[str, RocmNeeds]  # what classes name by a YAML alias
    classes: tuple[VersionClass, ...]

    @property
    def oldest(self) -> Version:
        """The first JAX version that has a class."""
        bounds = [each for item in self.classes for each in item.versions]
        return min(
            Version(each.version.removesuffix(".*")) for each in bounds if each.operator in _FROM
        )

    def version_class(self, jax: Version) -> VersionClass | None:
        """Find the class of a JAX version; development versions count as their release."""
        for candidate in self.classes:
            if candidate.versions.contains(jax.base_version, prereleases=True):
                return candidate
        return None


def expand(
    steps: tuple[ConditionalOptions, ...],
    *,
    conditions: frozenset[str],
    values: Mapping[str, str | tuple[str, ...]],
) -> tuple[str, ...]:
    """Give the options of every step whose conditions hold, in order.

    An option that names a list is repeated for each element; an empty list gives none.
    """
    options: list[str] = []
    for step in steps:
        for template in step.options if conditions.issuperset(step.when) else ():
            options += filled(template, values)
    return tuple(options)


def filled(template: str, values: Mapping[str, str | tuple[str, ...]]) -> Iterator[str]:
    """Return a template once for each choice among the lists that it names; `values` has them."""
    parts = PLACEHOLDER.split(template)  # texts, and between them names
    choices: list[tuple[str, ...]] = [(part,) for part in parts]
    for at, name in enumerate(parts):
        value = values.get(name, ())
        if at % 2:
            choices[at] = (value,) if isinstance(value, str) else value
    return map("".join, product(*choices))
