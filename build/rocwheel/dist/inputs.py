"""What a build is made from: sources, Bazel, compiler, ROCm, and the specification of it all."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

from packaging.version import Version

from rocwheel import bazel, rocm, source
from rocwheel.base import git, home
from rocwheel.base.console import Console, silent
from rocwheel.base.container import Mount
from rocwheel.base.errors import ConfigError, HostError
from rocwheel.base.git import Source
from rocwheel.base.here import Here
from rocwheel.base.process import Command, GuestPath, Runner
from rocwheel.base.values import Plain, replace
from rocwheel.base.versions import RocmVersion, WheelKind, rocm_number
from rocwheel.bazel import remote
from rocwheel.dist import checks, executor
from rocwheel.dist.build_request import Plan, Request
from rocwheel.dist.executor import BuildEnvironment
from rocwheel.image.contents import ImageFacts
from rocwheel.records.source_layout import VersionClass

_ROOT: Final = GuestPath(PurePosixPath("/"))
AFRESH: Final = ("--disk_cache=", "--noremote_accept_cached")
ROCM_LATER: Final = Path("<ROCm root>")  # of a plan whose ROCm is not here yet


class Inputs(Plain, frozen=True, kw_only=True):
    """The checked inputs of a build, or, with nothing fetched, what they would be."""

    planned: Plan
    tree: source.SourceTree
    tool: Source  # rocwheel itself
    fetched: rocm.RocmRoot | None  # None where it is not here yet
    rocm_root: Path
    spec: bazel.BuildSpec
    place: BuildEnvironment  # where Bazel will run
    notes: tuple[str, ...]  # for a caller that fetched nothing
    llvm: str = ""  # the commit that XLA takes, once Bazel has unpacked XLA

    @property
    def root(self) -> rocm.RocmRoot:
        assert self.fetched, "of a dry run"  # noqa: S101
        return self.fetched

    def commands(
        self, invocations: Sequence[bazel.BazelInvocation], here: Here
    ) -> Iterator[tuple[str, Command]]:
        """Yield what runs Bazel, in the container that it needs, each command with a title."""
        place, opening = self.place.opened(here.runner)
        kept = place.executor.keep_minutes
        ends = f"it ends after {kept} min without a turn" if kept else "the last lines remove it"
        yield from ((f"the container: {ends}", command) for command in opening)
        for number, invocation in enumerate(invocations, 1):
            if self.planned.request.is_again and number == 1:
                yield "every action again", place.command(invocation.ask("clean"), 0)
            command = invocation.command_line()
            yield f"Bazel: {invocation.title}", place.command(command, number)
        if place.spec and not kept:
            yield from (("the end of the container", end) for end in place.spec.end_by_hand)


def gather(
    planned: Plan,
    here: Here,
    *,
    place: BuildEnvironment | None = None,
    fetch: bool = True,
    asks_compiler: bool = True,
) -> Inputs:
    """Get and check the inputs of a build, before Bazel starts.

    Without `fetch` nothing is fetched or written, and a pin describes sources that are not here. It
    refuses and warns as a build does, as far as is known. A build begins with it, and asks its
    compiler for a digest later.
    """
    request, notes = planned.request, list[str]()
    console = here.console if fetch else silent()  # which shows no steps
    place = place or executor.choose(request, replace(here, console=console), pull=fetch)

    def warn(found: Iterable[str]) -> None:
        for note in found:
            notes.append(note)
            here.console.warn(note, once=True)

    # Sources without a pin borrow the facts of another release, which refuse nothing.
    is_checked = bool(
        fetch
        and (planned.rocm.version or planned.rocm.origin is rocm.Origin.DIRECTORY)
        and planned.sources.commands
        and planned.sources.like is None
    )
    if is_checked:
        gather(planned, here, place=place, fetch=False, asks_compiler=False)
    with console.step("Sources", key="source"):
        take = source.resolve if fetch else source.preview
        tree = take(planned.sources, pins=planned.pins, runner=here.runner, console=console)
        tool = _own(request, tree, here.runner)
        tree.accept(request.pythons)
    if not fetch:  # or the tree was taken with its warnings
        warn(tree.warnings)
    executor.check(place, request, bazel_version=tree.bazel)
    place = place.with_tree(tree)
    compiler, compiler_notes = find_compiler(
        request, tree.version_class, place=place, runner=here.runner
    )
    for note in compiler_notes:
        console.info(note)
    version = _known_version(planned, fetch=fetch)
    spec = partial(specification, planned, tree, compiler=compiler)
    check = partial(_check, place=place, here=here, request=request, asks=asks_compiler)
    if version:  # what cannot work is refused before Bazel and ROCm are fetched
        early = spec(version=version, rocm_root=_ROOT, binary=_missing(tree), place=place)
        compiler, remarks = check(tree, early)
        warn(remarks)
    binary, found = _bazel(request, tree, place, here, fetch=fetch)
    root = None
    if fetch or planned.rocm.origin is rocm.Origin.DIRECTORY:
        with console.step("ROCm", key="rocm"):
            budget = request.cache_budget
            root = rocm.fetch(
                planned.rocm, console=console, budget_bytes=budget, env=request.environ
            )
    if root and fetch:
        checks.check_rocm(
            tree, root.root, name=root.name, targets=planned.gfx_targets, runner=here.runner
        )
    where = root.root if root else planned.rocm.cached or ROCM_LATER
    place = place.with_mounts(Mount(host=where, guest=executor.ROCM))
    known = root.version if root else version
    assert known  # noqa: S101 - else it was refused above
    final = spec(version=known, rocm_root=place.path(where), binary=binary, place=place)
    if version is None:
        compiler, remarks = check(tree, final)
        warn(remarks)
    final = replace(final, compiler=compiler)
    warn(checks.option_warnings(planned, final))
    return Inputs(
        planned=planned,
        tree=tree,
        tool=tool,
        fetched=root,
        rocm_root=where,
        spec=final,
        place=place,
        notes=(*found, *compiler_notes, *notes),
    )


def _known_version(planned: Plan, *, fetch: bool) -> RocmVersion | None:
    if planned.rocm.version is None and planned.rocm.origin is rocm.Origin.DIRECTORY:
        return rocm.fetch(planned.rocm, console=silent()).version
    if planned.rocm.version is None and not fetch:
        raise ConfigError(
            f"{planned.rocm.name}: its name does not say which ROCm it is",
            hint="add --rocm-version, which a dry run cannot read from the tree",
        )
    return planned.rocm.version


def _bazel(
    request: Request, tree: source.SourceTree, place: BuildEnvironment, here: Here, *, fetch: bool
) -> tuple[bazel.BazelBinary, tuple[str, ...]]:
    try:
        console = here.console if fetch else None
        binary = find_bazel(request, tree, place=place, runner=here.runner, console=console)
    except HostError as exc:
        if fetch or request.bazel_path:  # only another option can help
            raise
        return _missing(tree), (f"{exc}; {exc.hint}",)
    others = (f"not used: {other}" for other in binary.passed_over)
    later = (f"fetch {binary.url} to {binary.path}",) if binary.url else ()
    return binary, (*others, str(binary), *later)


def _check(
    tree: source.SourceTree,
    spec: bazel.BuildSpec,
    *,
    place: BuildEnvironment,
    here: Here,
    request: Request,
    asks: bool,
) -> tuple[bazel.Compiler, tuple[str, ...]]:
    checks.check_own_options(tree, spec)
    invocations = bazel.invocations(spec)
    checks.check_options(tree, invocations)
    with place.programs(request, here.runner) as programs:
        checks.check_programs(tree, programs)
        remarks = tuple(checks.check_toolchain(tree, spec, invocations, programs=programs))
        named = checks.host_compilers(tree, spec, invocations) if asks else ()
        digest = programs.digest(named)
    return replace(spec.compiler, digest=digest), remarks


def _own(request: Request, tree: source.SourceTree, runner: Runner) -> Source:
    """Return which rocwheel this is; refuse sources that no manifest could name.

    A developer's turn skips this.
    """
    if request.allow_dirty and request.is_snapshot:
        return Source(repository="", commit="")
    tool = home.tool(request.home, partial(git.identify, runner=runner))
    dirty = [*tree.dirty, *(["rocwheel"] if tool.dirty else [])]
    if dirty and not request.allow_dirty:
        no_git = any(
            name in dirty and not each.commit
            for name, each in (("JAX", tree.jax), ("XLA", tree.xla))
        )
        how = "make its folder a git checkout" if no_git else "commit them"
        raise ConfigError(
            f"{' and '.join(dirty)}: changes that are in no commit",
            hint=f"{how}, or add --allow-dirty: the wheels' version will say so",
        )
    return tool


def find_bazel(
    request: Request,
    tree: source.SourceTree,
    *,
    place: BuildEnvironment,
    runner: Runner,
    console: Console | None = None,
) -> bazel.BazelBinary:
    """Return the Bazel the user names, else one of the version the tree asks for.

    With a console it may be downloaded; an image must have it. Raises HostError, ConfigError,
    FetchError.
    """
    if place.facts:
        return _of_image(place.facts, request.bazel_path, tree.bazel)
    named = request.bazel_path or ""
    alone = bool(request.is_alone and tree.bazel and not named)
    binary = bazel.locate(
        str(request.cwd / named) if "/" in named else named,
        wanted=tree.bazel,
        search_path="" if alone else request.environ.get("PATH", ""),
        workspace=tree.workspace,
        runner=runner,
        downloads=bazel.Downloads(
            releases=bazel.Releases.of(request.home.ci),
            folder=request.cache / "bazel-binaries",
            mirror=request.bazel_mirror,
            only_verified=request.locked,
            env=request.environ,
        ),
        console=None if request.is_offline else console,
    )
    if request.is_offline and binary.url:
        raise HostError(
            f"Bazel {tree.bazel}: is not in {request.cache}, and this tree asks for it",
            hint="fill the folder again where there is a network: --fetch-only",
        )
    return binary


def _missing(tree: source.SourceTree) -> bazel.BazelBinary:
    return bazel.BazelBinary(
        path=GuestPath(PurePosixPath("bazel")), version=tree.bazel, origin="missing"
    )


def find_compiler(
    request: Request, version_class: VersionClass, *, place: BuildEnvironment, runner: Runner
) -> tuple[bazel.Compiler, tuple[str, ...]]:
    """Return the host compiler that `--compiler` means for these JAX versions, and a remark.

    `clang` is the machine's own (or the image's) where the class can be built with it, else the
    one JAX downloads; `--compiler-path` insists on the machine's own. Raises HostError.
    """
    notes: tuple[str, ...] = ()
    if request.compiler == "clang" and (why := version_class.own_clang):
        if request.compiler_path is None:
            note = f"compiler: the clang that JAX downloads; not this machine's own: {why}"
            return bazel.Compiler(kind="hermetic"), (note,)
        notes = (f"{request.compiler_path}: will probably fail: {why}",)
    return place.compiler(request, runner=runner), notes


def _of_image(facts: ImageFacts, named: str | None, wanted: str) -> bazel.BazelBinary:
    known = {item.path: item for item in facts.bazels}
    if named and named not in known:
        raise HostError(
            f"{named}: the image has no such Bazel", hint=f"it has: {', '.join(known) or 'none'}"
        )
    binary = known[named] if named else facts.bazel(wanted)
    if binary is None:
        raise HostError(f"Bazel {wanted}: not in the image", hint="`image build`")
    path = GuestPath(PurePosixPath(binary.path))
    return bazel.BazelBinary(path=path, version=binary.version, origin="image")


def specification(
    planned: Plan,
    tree: source.SourceTree,
    *,
    version: RocmVersion,
    rocm_root: GuestPath,
    binary: bazel.BazelBinary,
    compiler: bazel.Compiler,
    place: BuildEnvironment,
) -> bazel.BuildSpec:
    """Return the specification for Bazel's command lines."""
    request = planned.request
    number = tree.fixed_number or rocm_number(
        jax=None if tree.rc else Version(tree.jax_version),  # a tree that is here says so itself
        rocm=version,
    )
    built_here = (request.jaxlib or tree.jaxlib_origin) == "built"
    kinds = (WheelKind.PLUGIN, WheelKind.PJRT, *((WheelKind.JAXLIB,) if built_here else ()))
    pythons = tuple(dict.fromkeys(request.pythons)) or tree.pythons  # one wheel per cell
    if not built_here:
        for python in pythons:
            tree.upstream_jaxlib(python)  # or nothing is built: it would lack its jaxlib
    version_class, options = _with_own_configs(tree.version_class, request.bazel_options)
    return bazel.BuildSpec(
        bazel=binary,
        workspace=place.path(tree.workspace),
        tree_key=place.tree_key(tree.workspace),
        layout=tree.layout,
        version_class=version_class,
        jax_version=tree.jax_version,
        kinds=kinds,
        pythons=pythons,
        rocm=version,
        rocm_root=rocm_root,
        rocm_number=number,
        gfx_targets=planned.gfx_targets,
        compiler=compiler,
        cpu_features=request.cpu_features,
        wheel_suffix=_wheel_suffix(request.wheel_suffix, tree.local_suffix, version),
        git_hash=tree.jax.commit,
        xla_dir=place.path(tree.xla_dir) if tree.xla_dir else None,
        modules=tree.modules,
        caches=place.caches(request),
        remote=request.remote,
        certificates=remote.in_use(
            request.environ, options=source.joined(request.bazel_startup_options)
        ),
        wants_release=bool(tree.bazel),
        startup_options=request.bazel_startup_options,
        options=(*request.machine_options, *(AFRESH if request.is_again else ()), *options),
    )


def _with_own_configs(
    version_class: VersionClass, options: tuple[str, ...]
) -> tuple[VersionClass, tuple[str, ...]]:
    wanted = [name for name in version_class.own_configs if f"--config={name}" in options]
    values = dict(version_class.values)
    if wanted:
        values["rocm_config"] = (*values["rocm_config"], *wanted)
    left = tuple(item for item in options if item not in {f"--config={name}" for name in wanted})
    return replace(version_class, values=values), left


def _wheel_suffix(asked: str | None, mark: str, version: RocmVersion) -> str:
    suffix = version.wheel_suffix if asked is None else asked
    return suffix + (mark if "+" in suffix else mark.replace(".", "+", 1))
