"""Tells whether this machine can make a build: what it has and lacks, and what the build takes.

Nothing is fetched and nothing is changed. The figures are estimates of ours, or those of this
wheelhouse's last build where there is one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from rocwheel import rocm, source, wheelhouse
from rocwheel.build_record import BUILD_RECORD, BuildRecord
from rocwheel.console import duration, size
from rocwheel.dist import checks, inputs
from rocwheel.dist.build_request import Plan, Request
from rocwheel.errors import RocwheelError
from rocwheel.host import cgroup
from rocwheel.process import HostRunner

GIB: Final = 1 << 30
BAZEL_DISK: Final = 40 * GIB  # repositories unpacked, objects and the disk cache of one JAX
ROCM_DISK: Final = 35 * GIB  # a tarball of 3 to 8 GB and its tree
WHOLE_DISK: Final = BAZEL_DISK + ROCM_DISK
JOB_MEMORY: Final = 4 * GIB  # a compile takes about 2 GiB, the last links several
NOTE: Final = "note"  # of a row that is no need, but worth knowing
HOSTS: Final = ("github.com", "storage.googleapis.com", "files.pythonhosted.org")


@dataclass(frozen=True, kw_only=True)
class BuildNeed:
    """One thing the build needs, and whether it is there."""

    name: str
    found: str
    remedy: str = ""  # empty where nothing is wrong
    program: str = ""  # what is missed, where a package has it
    looks: str = ""  # what would look, where nothing did


def examine(planned: Plan, *, runner: HostRunner, memory: int) -> Iterator[BuildNeed]:
    """Look at all that this build needs; `memory` is what the machine has, in bytes.

    Starts short processes. What the request itself has wrong is a row, too.
    """
    request = planned.request
    try:
        allowed = replace(planned, request=replace(request, allow_dirty=True))
        seen = inputs.preview(allowed, runner=runner)
    except RocwheelError as exc:
        text = str(exc)
        missed = (name for name in checks.PACKAGES if text.startswith((f"{name}:", f"{name},")))
        yield BuildNeed(name="request", found=text, remedy=exc.hint, program=next(missed, ""))
        return
    tree, spec, notes = seen.tree, seen.spec, seen.notes
    yield BuildNeed(name="JAX", found=f"{tree.jax_version}, {tree.version_class}; {tree.root}")
    compiler = spec.compiler
    where = "the one JAX downloads" if compiler.kind == "hermetic" else f"{compiler.cc}"
    yield BuildNeed(name="compiler", found=f"{where} {compiler.major or ''}".rstrip())
    for note in notes:
        yield BuildNeed(name=NOTE, found=note)
    for name in ("git", *tree.version_class.needs.programs):
        where = shutil.which(name, path=request.environ.get("PATH", "")) or ""
        missing = {} if where else {"remedy": "install it", "program": name}
        yield BuildNeed(name=name, found=where or "none", **missing)
    yield from _rocm(planned, tree)
    yield from _disk(planned)
    cpus, fitting = cgroup.cpus(), max(1, memory // JOB_MEMORY)
    yield BuildNeed(
        name="memory",
        found=f"{size(memory)} for {cpus} jobs; a job takes up to {size(JOB_MEMORY)}",
        remedy="" if fitting >= cpus else f"add --bazel-options=--jobs={fitting}",
    )
    yield _time(request)
    hosts = [urlsplit(planned.rocm.source).hostname] if "://" in planned.rocm.source else []
    if spec.remote.options:
        hosts.append("the remote cache or executor")
    yield BuildNeed(
        name="network",
        found=", ".join(filter(None, [*hosts, *HOSTS])),
        looks="rocwheel doctor --for build resolves names, fetch_rocm reads the tarball",
    )


def install_lines(needs: tuple[BuildNeed, ...]) -> tuple[str, ...]:
    """Return one line for Debian and one for Fedora that brings every program that is missed."""
    missed = [need.program for need in needs if need.program in checks.PACKAGES]
    if not missed:
        return ()
    lines = []
    for number, install in ((0, "apt-get install"), (1, "dnf install")):
        packages = dict.fromkeys(" ".join(checks.PACKAGES[name][number] for name in missed).split())
        lines.append(f"{install} {' '.join(packages)}")
    return tuple(lines)


def _rocm(planned: Plan, tree: source.SourceTree) -> Iterator[BuildNeed]:
    folder = planned.rocm.cached
    if planned.rocm.origin is rocm.Origin.DIRECTORY:
        folder = Path(planned.rocm.source)
    if folder is None:
        yield BuildNeed(
            name="ROCm",
            found=f"{planned.rocm.shown}: not here yet",
            looks="rocwheel fetch_rocm brings and checks it",
        )
        return
    missing = rocm.missing(folder, tree.version_class.needs, planned.gfx_targets)
    shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")  # noqa: PLR2004
    remedy = "use a whole TheRock distribution" if missing else ""
    yield BuildNeed(
        name="ROCm", found=f"{folder}{f' lacks {shown}' if missing else ''}", remedy=remedy
    )


def _disk(planned: Plan) -> Iterator[BuildNeed]:
    folder = planned.request.cache
    while not folder.exists():
        folder = folder.parent
    here = planned.rocm.cached or planned.rocm.origin is rocm.Origin.DIRECTORY
    needed = BAZEL_DISK + (0 if here else ROCM_DISK)
    free = shutil.disk_usage(folder).free
    yield BuildNeed(
        name="disk",
        found=f"{size(free)} free at {planned.request.cache}, about {size(needed)} are needed",
        remedy="" if free >= needed else "free some space, or choose another disk: --cache-dir",
    )


def _time(request: Request) -> BuildNeed:
    path = request.wheelhouse / wheelhouse.CURRENT / BUILD_RECORD
    try:
        record = BuildRecord.from_bytes(path.read_bytes(), name=str(path))
    except (OSError, RocwheelError):
        return BuildNeed(
            name="time", found="no build here yet; JAX takes hours on 8 cores, 1 on 64"
        )
    took = sum(record.milliseconds.values()) / 1000
    run = sum(item.actions_executed for item in record.bazel.invocations)
    return BuildNeed(name="time", found=f"the last build took {duration(took)} for {run} actions")
