"""Checks whether this machine can make a build: what it has and lacks, and what the build takes.

Nothing but one small file is fetched, and nothing is changed. The figures are estimates, or those
of this wheelhouse's last build.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit

from rocwheel import bazel, rocm, source
from rocwheel.base import files
from rocwheel.base.console import duration, silent, size
from rocwheel.base.errors import CommandError, RocwheelError
from rocwheel.base.here import Here
from rocwheel.base.host import cgroup
from rocwheel.base.process import Command, GuestPath, HostRunner, Runner
from rocwheel.base.values import Plain, replace
from rocwheel.bazel.invocation import NO_RC
from rocwheel.dist import checks, inputs, wheelhouse
from rocwheel.dist.build_request import Plan, Request
from rocwheel.records.build_record import BUILD_RECORD, BuildRecord

GIB: Final = 1 << 30
BAZEL_DISK: Final = 40 * GIB  # repositories unpacked, objects and the disk cache of one JAX
ROCM_DISK: Final = 35 * GIB  # a tarball of 3 to 8 GB and its tree
WHOLE_DISK: Final = BAZEL_DISK + ROCM_DISK
JOB_MEMORY: Final = 4 * GIB  # a compile takes about 2 GiB, the last links several
NOTE: Final = "note"  # of a row that is no need, but worth knowing
HOSTS: Final = ("github.com", "storage.googleapis.com", "files.pythonhosted.org")


TRIED: Final = "https://github.com/robots.txt"  # where XLA and most of its archives come from
TRYING: Final = """
def _tried(ctx):
    ctx.download("{url}", "file")
    ctx.file("BUILD", "")
tried = repository_rule(_tried)
"""
WITH_MODULES: Final = (7,)  # Bazel that takes repositories from modules unless it is refused
WITHOUT_WORKSPACE: Final = (9,)


class Row(Plain, frozen=True, kw_only=True):
    """One line of a table: what was checked, and what was found."""

    name: str
    found: str
    remedy: str = ""  # empty where nothing is wrong
    is_optional: bool = False  # what is wrong stops nothing that was asked for
    program: str = ""  # what is missed, where a package has it
    looks: str = ""  # the command that would check it: the row is neither ok nor bad

    @property
    def state(self) -> str:
        if self.looks:
            return "not looked at"
        return "ok" if not self.remedy else "optional" if self.is_optional else "bad"


def examine(planned: Plan, here: Here, *, memory: int) -> Iterator[Row]:
    """Check everything that this build needs; `memory` is what the machine has, in bytes.

    Starts short processes. A mistake in the request itself is a row too.
    """
    request = planned.request
    try:
        allowed = replace(planned, request=replace(request, allow_dirty=True))
        seen = inputs.gather(allowed, replace(here, console=silent()), fetch=False)
    except RocwheelError as exc:
        text = str(exc)
        missed = (name for name in checks.PACKAGES if text.startswith((f"{name}:", f"{name},")))
        yield Row(name="request", found=text, remedy=exc.hint, program=next(missed, ""))
        return
    tree, spec, notes = seen.tree, seen.spec, seen.notes
    yield Row(name="JAX", found=f"{tree.jax_version}, {tree.version_class}; {tree.root}")
    at = "the one JAX downloads" if spec.compiler.kind == "hermetic" else f"{spec.compiler.cc}"
    yield Row(name="compiler", found=f"{at} {spec.compiler.major or ''}".rstrip())
    for note in notes:
        yield Row(name=NOTE, found=note)
    for name in ("git", *tree.version_class.needs.programs):
        path = shutil.which(name, path=request.environ.get("PATH", ""))
        remedy, program = ("", "") if path else ("install it", name)
        yield Row(name=name, found=path or "none", remedy=remedy, program=program)
    yield from _rocm(planned, tree, here.runner)
    is_here = planned.rocm.cached or planned.rocm.origin is rocm.Origin.DIRECTORY
    yield disk(request.cache, BAZEL_DISK if is_here else WHOLE_DISK)
    cpus, fitting = cgroup.cpus(), max(1, memory // JOB_MEMORY)
    yield Row(
        name="memory",
        found=f"{size(memory)} for {cpus} jobs; a job takes up to {size(JOB_MEMORY)}",
        remedy="" if fitting >= cpus else f"add --bazel-options=--jobs={fitting}",
    )
    yield _time(request)
    hosts = [urlsplit(planned.rocm.source).hostname] if "://" in planned.rocm.source else []
    if spec.remote.options:
        hosts.append("the remote cache or executor")
    yield Row(
        name="network",
        found=", ".join(filter(None, [*hosts, *HOSTS])),
        looks="`doctor --for build` resolves names, `rocm fetch` reads the tarball",
    )
    is_known = spec.bazel.release < WITHOUT_WORKSPACE and spec.bazel.origin != "missing"
    if seen.place.spec or spec.bazel.url or not is_known:
        looks = "the build itself, whose first step with Bazel downloads"
        yield Row(name="download by Bazel", found="not tried", looks=looks)
    else:
        yield try_download(spec, here.runner)
    for invocation in bazel.invocations(spec):
        builds = bazel.cost.earlier(invocation, here.runner)
        has = f"{invocation.title}: {bazel.cost.compared(invocation, builds)[0]}"
        yield Row(name="disk cache", found=has)


def try_download(spec: bazel.BuildSpec, runner: Runner, url: str = TRIED) -> Row:
    """Let Bazel download one small file, with a server and a workspace that are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="rocwheel-doctor-") as name:
        folder = Path(name)
        (folder / "WORKSPACE").write_text('load("//:tried.bzl", "tried")\ntried(name = "tried")\n')
        (folder / "BUILD").touch()
        (folder / "tried.bzl").write_text(TRYING.format(url=url))
        root = GuestPath(PurePosixPath(folder / "bazel"))
        (folder / "bazel").mkdir()
        own = (word.partition("=") for word in source.joined(spec.startup_options))
        startup = [
            f"{option}={spec.workspace / value}"
            if option == "--bazelrc"
            else f"{option}{eq}{value}"
            for option, eq, value in own
        ]
        if spec.certificates:
            spec.certificates.write(folder / "bazel")
            startup += spec.certificates.startup(root)
        program = (str(spec.bazel.path), *NO_RC, f"--output_user_root={root}", *startup)
        is_new = spec.bazel.release >= WITH_MODULES
        form = ["--noenable_bzlmod", "--enable_workspace"] if is_new else []
        fetch = Command(argv=(*program, "fetch", *form, "@tried//:all"), cwd=folder, timeout=120)
        found, remedy = f"{url}: fetched", ""
        try:
            runner.capture(fetch)
        except CommandError as exc:
            said = exc.detail.splitlines() or [str(exc)]
            why = next((line for line in said if "Error downloading" in line), said[-1])
            found, remedy = why.strip(), "name the proxy (HTTPS_PROXY) and its CA (SSL_CERT_FILE)"
        finally:
            with suppress(CommandError):
                runner.capture(Command(argv=(*program, "shutdown"), cwd=folder, timeout=60))
            files.remove(folder / "bazel")
        return Row(name="download by Bazel", found=found, remedy=remedy)


def install_lines(needs: tuple[Row, ...]) -> tuple[str, ...]:
    """Return one line for Debian and one for Fedora that installs every missing program."""
    missed = [need.program for need in needs if need.program in checks.PACKAGES]
    if not missed:
        return ()
    lines = []
    for number, install in ((0, "apt-get install"), (1, "dnf install")):
        packages = dict.fromkeys(" ".join(checks.PACKAGES[name][number] for name in missed).split())
        lines.append(f"{install} {' '.join(packages)}")
    return tuple(lines)


def _rocm(planned: Plan, tree: source.SourceTree, runner: HostRunner) -> Iterator[Row]:
    folder = planned.rocm.cached
    if planned.rocm.origin is rocm.Origin.DIRECTORY:
        folder = Path(planned.rocm.source)
    if folder is None:
        yield Row(
            name="ROCm",
            found=f"{planned.rocm.shown}: not here yet",
            looks="`rocm fetch` brings and checks it",
        )
        return
    missing = rocm.missing(folder, tree.version_class.needs)
    missing = missing or rocm.uncompiled(folder, planned.gfx_targets, runner=runner)
    shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")  # noqa: PLR2004
    remedy = "use a whole TheRock distribution" if missing else ""
    yield Row(name="ROCm", found=f"{folder}{f' lacks {shown}' if missing else ''}", remedy=remedy)


def disk(cache: Path, needed: int) -> Row:
    """Check that a cache's disk has enough room."""
    free = shutil.disk_usage(existing(cache)).free
    return Row(
        name="disk",
        found=f"{size(free)} free at {cache}, about {size(needed)} are needed",
        remedy="" if free >= needed else "free some space, or choose another disk: --cache-dir",
    )


def existing(folder: Path) -> Path:
    """Return the folder, or the next one above it that is there."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _time(request: Request) -> Row:
    path = request.wheelhouse / wheelhouse.CURRENT / BUILD_RECORD
    try:
        record = BuildRecord.from_bytes(path.read_bytes(), name=str(path))
    except (OSError, RocwheelError):
        return Row(name="time", found="no build here yet; JAX takes hours on 8 cores, 1 on 64")
    took = sum(record.milliseconds.values()) / 1000
    run = sum(item.actions_executed for item in record.bazel.invocations)
    return Row(name="time", found=f"the last build took {duration(took)} for {run} actions")
