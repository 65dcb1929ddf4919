"""Checks whether this machine can make a build: what it has and lacks, and what the build takes.

Nothing is fetched or changed. The figures are estimates, or those of this wheelhouse's last build.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from rocwheel import rocm, source
from rocwheel.base.console import duration, silent, size
from rocwheel.base.errors import RocwheelError
from rocwheel.base.here import Here
from rocwheel.base.host import cgroup
from rocwheel.base.process import HostRunner
from rocwheel.base.values import Plain, replace
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
