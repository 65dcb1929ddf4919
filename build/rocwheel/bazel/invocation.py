"""From a build specification to Bazel's command lines, as values.

Everything but secret headers stands in Bazel's argv, and nothing is put into the checkout (no
`bazel-*` links; output base and caches are in the user's cache folder). Neither the
user's `~/.bazelrc` nor the system's `/etc/bazel.bazelrc` is read. What cannot work is refused here,
before Bazel starts.
"""

from __future__ import annotations

from typing import Final, Literal

from packaging.version import Version

from rocwheel.base import files
from rocwheel.base.errors import ConfigError
from rocwheel.base.process import Command, GuestPath
from rocwheel.base.values import Plain, replace
from rocwheel.base.versions import PythonVersion, RocmVersion, WheelKind, canonical_version
from rocwheel.bazel.binary import BazelBinary
from rocwheel.bazel.remote import LOCAL, Certificates, Remote
from rocwheel.records.source_layout import Layout, VersionClass, expand

NO_RC: Final = ("--nohome_rc", "--nosystem_rc")
IDLE_SECONDS: Final = 900  # a server waits this long for the next build, then frees its memory
BAZEL_WITH_MODULES: Final = (6,)
CLANG_WITH_CONFIG: Final = 16
OVERRIDE: Final = "override-module"  # the feature of a class that always overrides the module
CLANG_WITH_AVXVNNIINT8: Final = 19


class Compiler(Plain, frozen=True, kw_only=True):
    """What compiles host code; `hermetic` is the compiler the tree downloads itself."""

    kind: str
    cc: GuestPath | None = None
    cxx: GuestPath | None = None
    major: int = 0
    digest: str = ""  # of what the machine compiles with, by its bytes


class Caches(Plain, frozen=True, kw_only=True):
    """Where Bazel keeps what outlives a run; all below the user's cache folder."""

    output_user_root: GuestPath
    disk: GuestPath | None
    repository: GuestPath | None


class BuildSpec(Plain, frozen=True, kw_only=True):
    """One build: which wheels of which tree, for what, with what, and where Bazel works."""

    bazel: BazelBinary
    workspace: GuestPath
    tree_key: str = ""  # identity of a tree that is mounted where all are; "" is the workspace
    layout: Layout
    version_class: VersionClass
    jax_version: str
    kinds: tuple[WheelKind, ...]
    pythons: tuple[PythonVersion, ...]
    rocm: RocmVersion  # these four belong to plugin and pjrt
    rocm_root: GuestPath
    rocm_number: str
    gfx_targets: tuple[str, ...]
    compiler: Compiler = Compiler(kind="hermetic")
    cpu_features: str = "release"
    wheel_type: Literal["release", "snapshot"] = "release"  # as XLA's python_wheel.bzl knows it
    wheel_suffix: str = ""  # of a release: `+rocm7.10.0`, `.post1`
    git_hash: str = ""  # of the tree; written into version.py
    xla_dir: GuestPath | None = None
    modules: bool | None = False  # bzlmod is on; None: it is, and the tree has no WORKSPACE
    caches: Caches
    remote: Remote = LOCAL
    certificates: Certificates | None = None  # that Bazel's JVM trusts in place of its own
    wants_release: bool = False  # the tree names a Bazel release, so no development version
    startup_options: tuple[str, ...] = ()
    options: tuple[str, ...] = ()  # given last, so they win

    @property
    def version_suffix(self) -> str:
        """The part after JAX's version, by the rule of JAX's build."""
        is_snapshot = self.wheel_type == "snapshot"
        return ".dev0+selfbuilt" if is_snapshot else self.wheel_suffix.replace("-", "")

    @property
    def output_base(self) -> GuestPath:
        """One output base, so one Bazel server, per tree.

        A base per CPython would save evaluating repository rules again when the CPython changes
        (about a second each on the miniature). But each costs a server of 250 MiB or more, a slower
        first build, and for JAX tens of gigabytes of unpacked repositories.
        """
        key = self.tree_key or str(self.workspace)
        name = files.sha256(key.encode())[:16]
        return GuestPath(self.caches.output_user_root / name)


class BazelInvocation(Plain, frozen=True, kw_only=True):
    """One start of Bazel, which makes wheels of some kinds for one CPython."""

    spec: BuildSpec
    python: PythonVersion
    kinds: tuple[WheelKind, ...]

    @property
    def targets(self) -> dict[WheelKind, str]:
        """The label of each wheel."""
        return {kind: self.spec.layout.targets[kind] for kind in self.kinds}

    @property
    def startup(self) -> tuple[str, ...]:
        """Every option before the command."""
        spec = self.spec
        headers = spec.remote.rc_file(spec.caches.output_user_root)
        return (
            *NO_RC,
            *(f"--bazelrc={name}" for name in spec.version_class.startup_files),
            f"--output_user_root={spec.caches.output_user_root}",
            f"--output_base={spec.output_base}",
            f"--max_idle_secs={IDLE_SECONDS}",
            *((f"--bazelrc={headers}",) if headers else ()),
            *(spec.certificates.startup(spec.caches.output_user_root) if spec.certificates else ()),
            *spec.startup_options,
        )

    @property
    def recipe(self) -> tuple[str, ...]:
        """Options by the layout."""
        spec, caches = self.spec, self.spec.caches
        rocm = any(kind.needs_rocm for kind in self.kinds)
        return (
            "--symlink_prefix=/",
            *((f"--disk_cache={caches.disk}",) if caches.disk else ()),
            *((f"--repository_cache={caches.repository}",) if caches.repository else ()),
            *expand(
                spec.layout.recipe,
                conditions=_conditions(spec, self.python, rocm=rocm),
                values={
                    "cc": str(spec.compiler.cc or ""),
                    "cxx": str(spec.compiler.cxx or ""),
                    "gfx_targets": ",".join(spec.gfx_targets),
                    "git_hash": spec.git_hash,
                    "host_compiler": spec.compiler.digest,
                    "python": str(self.python),
                    "rocm_path": str(spec.rocm_root),
                    "wheel_suffix": spec.wheel_suffix,
                    "wheel_type": spec.wheel_type,
                    "xla_dir": str(spec.xla_dir or ""),
                    **spec.version_class.values,
                },
            ),
        )

    @property
    def options(self) -> tuple[str, ...]:
        """Every option of the command, in order: of two that contradict, the later one wins."""
        return (*self.recipe, *self.spec.remote.options, *self.spec.options)

    @property
    def title(self) -> str:
        names = ", ".join(kind.value for kind in self.kinds)
        return f"{names} for CPython {self.python}"

    @property
    def key(self) -> str:
        """A digest of the command line, to compare it with the last run's."""
        return files.sha256("\0".join(self.command_line().argv).encode())[:16]

    def command_line(self, *more: str) -> Command:
        """Return the command; `more` are options of this one run, last before the targets."""
        return Command(
            argv=(
                str(self.spec.bazel.path),
                *self.startup,
                "build",
                *self.options,
                *more,
                *self.targets.values(),
            ),
            cwd=self.spec.workspace,
        )

    def locally(self) -> BazelInvocation:
        """Return the same without remote cache and executor, and without their headers' file."""
        return replace(self, spec=replace(self.spec, remote=LOCAL))

    @property
    def shutdown(self) -> Command:
        """What ends the server of this invocation's output base."""
        return self.ask("shutdown", timeout=60)

    def ask(self, *words: str, timeout: float | None = None) -> Command:
        """Return another command for the same server."""
        argv = (str(self.spec.bazel.path), *self.startup, *words)
        return Command(argv=argv, cwd=self.spec.workspace, timeout=timeout)


def invocations(spec: BuildSpec) -> tuple[BazelInvocation, ...]:
    """Plan the fewest starts of Bazel that make every wheel of the specification.

    Plugin and pjrt of the first CPython are one invocation, further CPythons get the plugin
    alone; jaxlib is built apart, without ROCm. Raises ConfigError for what cannot work.
    """
    check(spec)
    planned = []
    rocm_kinds = tuple(kind for kind in spec.kinds if kind.needs_rocm)
    for number, python in enumerate(spec.pythons):
        kinds = tuple(kind for kind in rocm_kinds if kind.per_python or number == 0)
        if kinds:
            planned.append(BazelInvocation(spec=spec, python=python, kinds=kinds))
    if WheelKind.JAXLIB in spec.kinds:
        only = (WheelKind.JAXLIB,)
        planned += [BazelInvocation(spec=spec, python=each, kinds=only) for each in spec.pythons]
    return tuple(planned)


def check(spec: BuildSpec) -> None:
    """Refuse what cannot work, with the reason. Raises ConfigError."""
    if " " in str(spec.workspace):
        raise ConfigError(
            f"{spec.workspace}: Bazel does not work in a folder with a blank in its path",
            hint="move or link the checkout to a path without blanks",
        )
    if not spec.pythons or not spec.kinds:
        raise ConfigError("nothing to build", hint="name at least one CPython and one wheel")
    canonical_version(spec.jax_version, spec.version_suffix)
    if not any(kind.needs_rocm for kind in spec.kinds):
        return
    check_rocm(spec.rocm, spec.jax_version, spec.layout, spec.version_class)
    if not spec.gfx_targets:
        raise ConfigError("no gfx targets", hint="add --gfx-targets or --family")


def check_rocm(
    rocm: RocmVersion, jax_version: str, layout: Layout, version_class: VersionClass | None = None
) -> None:
    """Refuse a ROCm whose plugin this JAX never loads. Raises ConfigError."""
    base = rocm.version.base_version
    version_class = version_class or layout.version_class(Version(jax_version))
    if not version_class or version_class.rocm.contains(base, prereleases=True):
        return
    others = (item for item in layout.classes if item.rocm.contains(base, prereleases=True))
    first = next((f" or another JAX: the first with it is {i.versions}" for i in others), None)
    raise ConfigError(
        f"ROCm {rocm}: JAX {jax_version} needs ROCm {version_class.rocm}",
        hint=f"choose another ROCm{first or ': no JAX has this one yet'}",
    )


def _conditions(spec: BuildSpec, python: PythonVersion, *, rocm: bool) -> frozenset[str]:
    compiler = spec.compiler
    clang = compiler.kind == "clang"
    holds = {
        "bazel-6-or-newer": spec.bazel.release >= BAZEL_WITH_MODULES,
        "clang": clang,
        "clang-16-or-newer": clang and compiler.major >= CLANG_WITH_CONFIG,
        "clang-before-19": clang and compiler.major < CLANG_WITH_AVXVNNIINT8,
        "cpu-native": spec.cpu_features == "native",
        "cpu-release": spec.cpu_features == "release",
        "free-threaded": python.free_threaded,
        "git-hash": bool(spec.git_hash),
        "hermetic": compiler.kind == "hermetic",
        "host-compiler": bool(compiler.digest),
        "modules": spec.modules is not False and OVERRIDE not in spec.version_class.features,
        "rocm": rocm,
        "wheel-suffix": bool(spec.wheel_suffix),
        "workspace": spec.modules is not None,
        "xla-dir": spec.xla_dir is not None,
    }
    return frozenset(name for name, true in holds.items() if true) | spec.version_class.features
