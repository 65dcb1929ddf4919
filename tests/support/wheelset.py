"""Whole wheel sets made in code: small, valid, installable wheels with their manifest."""

from __future__ import annotations

import base64
import copy
import functools
import hashlib
import io
import random
import re
import zipfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

from support import wheels

import amdgpu_family_matrix as matrix
from rocwheel.base import home
from rocwheel.base.git import Source
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion, RocmVersion, WheelKind, module_name, project_name
from rocwheel.gate.suite import suites
from rocwheel.records.manifest import MANIFEST, Manifest, RocmDelivery, RocmSource, WheelEntry
from rocwheel.records.verdict import SILENT, Counts, Device, Ran, RocmProvided, State, Verdict
from rocwheel.release import operations, promote, retention, stage, status, withdraw
from rocwheel.release.index import channels
from rocwheel.release.ledger import log, verdicts
from rocwheel.release.ledger.state import Action, Transition
from rocwheel.release.operations import Who

FAMILY = matrix.family("gfx90a")  # one GPU: `smoke` and `unit` are required, `e2e` is advisory
PLATFORM = "manylinux_2_27_x86_64"
NOW = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)
WHO = Who(by="tester", now=NOW)
# the suites of this checkout, which commands hold verdicts against
SUITES = suites.load_known(home.find(None), today=NOW.date())


def make_wheel(
    folder: Path,
    *,
    project: str,
    version: str,
    tag: str,
    module: str,
    requires: tuple[str, ...] = (),
    requires_python: str = "",
    padding: int = 0,
    stamp: str = "",
) -> Path:
    """One wheel; `padding` incompressible bytes make it large, `stamp` makes it another one."""
    name = project.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {project}", f"Version: {version}"]
    metadata += [f"Requires-Python: {requires_python}"] if requires_python else []
    metadata += [f"Requires-Dist: {item}" for item in requires]
    members = {
        f"{module.replace('.', '/')}/__init__.py": f"version = {version!r}\nstamp = {stamp!r}\n".encode(),
        f"{info}/METADATA": ("\n".join(metadata) + "\n").encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
    }
    if padding:
        data = random.Random(f"{project}{version}{tag}{stamp}").randbytes(padding)
        members[f"{module.replace('.', '/')}/data.bin"] = data
    lines = []
    for member, data in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{member},sha256={digest},{len(data)}")
    members[f"{info}/RECORD"] = ("\n".join([*lines, f"{info}/RECORD,,"]) + "\n").encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for member, data in members.items():
            archive.writestr(zipfile.ZipInfo(member, (1980, 1, 1, 0, 0, 0)), data)
    path = folder / f"{name}-{version}-{tag}.whl"
    path.write_bytes(packed.getvalue())
    return path


@functools.cache
def _sound(kind: WheelKind, number: str, version: str, gfx: tuple[str, ...]) -> wheels.Wheel:
    """A wheel that `stage` takes."""
    if kind is WheelKind.JAXLIB:
        return wheels.jaxlib(version=version)
    make = wheels.plugin if kind is WheelKind.PLUGIN else wheels.pjrt
    more = {} if kind is WheelKind.PLUGIN else {"glibc": "GLIBC_2.27"}
    return make(number=number, version=version, gfx=gfx, **more)


def make_set(
    folder: Path,
    *,
    jax: str = "0.9.1",
    rocm: str = "7.10.0",
    suffix: str | None = None,
    pythons: tuple[str, ...] = ("3.11", "3.12"),
    upstream_jaxlib: bool = False,
    padding: int = 0,
    stamp: str = "",
    gfx: tuple[str, ...] = FAMILY.targets,
    families: tuple[str, ...] = (),
    requires_pjrt: str = "",
    loads: bool = False,
) -> Manifest:
    """A wheelhouse in `folder`: jaxlib and plugin per CPython, one pjrt, and the manifest.

    `loads`: without libraries, which need a ROCm where they are loaded; `stage` refuses such a set.
    """
    folder.mkdir(parents=True, exist_ok=True)
    number = str(RocmVersion.parse(rocm).major)
    version = jax + (RocmVersion.parse(rocm).wheel_suffix if suffix is None else suffix)
    entries = []
    for kind in WheelKind:
        for python in pythons if kind.per_python else ("",):
            abi = PythonVersion.parse(python) if python else None
            tag = f"{abi.interpreter}-{abi.abi}-{PLATFORM}" if abi else f"py3-none-{PLATFORM}"
            project = project_name(kind, number)
            upstream = upstream_jaxlib and kind is WheelKind.JAXLIB
            own = jax if upstream else version
            needs = requires_pjrt or f"=={version}"
            own_gfx = () if kind is WheelKind.JAXLIB else tuple(sorted(gfx))
            made = _sound(kind, number, own, own_gfx)
            module = f"{module_name(kind, number).replace('.', '/')}/"
            text = made.files[f"{module}__init__.py"].content
            text += f"version = {own!r}\nstamp = {stamp!r}\n".encode()
            files = {**made.files, f"{module}__init__.py": wheels.File(text)}
            if loads:
                files = {name: file for name, file in files.items() if not name.endswith(".so")}
            if padding:
                noise = random.Random(f"{project}{own}{tag}{stamp}").randbytes(padding)
                files[f"{module}data.bin"] = wheels.File(noise, method=zipfile.ZIP_STORED)
            pin = (f"{project_name(WheelKind.PJRT, number)}{needs}",)
            path = made.but(
                tag=tag, files=files, requires=pin if kind is WheelKind.PLUGIN else ()
            ).write(folder)
            data = path.read_bytes()
            entries.append(
                WheelEntry(
                    kind=kind.value,
                    filename=path.name,
                    project=project,
                    version=own,
                    tags=(tag,),
                    python=python,
                    size=len(data),
                    sha256=hashlib.sha256(data).hexdigest(),
                    origin="upstream" if upstream else "built",
                    requires_python=">=3.10",
                    gfx_targets=own_gfx,
                )
            )
            if upstream:
                path.unlink()
    source = Source(repository="https://github.com/jax-ml/jax", commit="0" * 40)
    manifest = Manifest(
        jax_version=jax,
        rocm=RocmSource(
            version=rocm,
            header_version=".".join(map(str, RocmVersion.parse(rocm).version.release)),
            sha256="1" * 64,
            origin="tarball",
            name=f"therock-dist-linux-{FAMILY.name}-{rocm}.tar.gz",
            delivery=RocmDelivery(
                url=f"https://rocm.example/therock-dist-linux-{FAMILY.name}-{rocm}.tar.gz",
                size=1,
            ),
        ),
        tool=source,
        jax=source,
        xla=source,
        builder_image="",
        bazel_version="7.7.0",
        gfx_targets=gfx,
        pythons=pythons,
        options={},
        wheels=tuple(entries),
        families=families,
    )
    (folder / MANIFEST).write_bytes(manifest.to_bytes())
    return manifest


def wheel_key(place, filename: str) -> str:
    """Where a wheel lies that a set of this version brought, or would lie."""
    keys = (item.key for item in place.store.keys(place.key("files/")))
    found = (key for key in keys if key.rpartition("/")[2] == filename)
    return next(found, place.wheel(filename, "f" * 64))


def ran(suite: str, manifest: Manifest, **changes) -> Ran:
    """What a runner with our suites would have run."""
    known = SUITES[suite]
    same = Ran(
        definition=known.definition,
        skips=known.skips,
        tests=known.tests or manifest.jax.commit,
        selection=known.selection,
        pytest=known.pytest,
    )
    return replace(same, **changes)


def make_verdict(
    manifest: Manifest,
    *,
    suite: str = "smoke",
    python: str = "3.12",
    state: State = State.PASS,
    family: matrix.Family = FAMILY,
    **changes,
) -> Verdict:
    """What a runner of the family would have written."""
    passed = state in {State.PASS, State.FLAKY, State.UNCALIBRATED}
    demanded = SUITES[suite].demands.of(manifest.jax_version)
    verdict = Verdict(
        manifest=manifest.sha256,
        family=family.name,
        python=python,
        suite=suite,
        state=state,
        reason="" if state is State.PASS else f"made up: {state.value}",
        counts=Counts(
            passed=max(10, demanded.must_run),
            failed=0 if passed or state in SILENT else 1,
            flaky=100 * (state is State.FLAKY),
        ),
        wheels={w.filename: w.sha256 for w in manifest.wheels if w.python in {"", python}},
        backend="rocm",
        runner="linux-gfx90a-1gpu-ossci-rocm",
        host="node1",
        devices=(Device(target=family.targets[0], serial="0x1", memory=1 << 36),),
        rocm=RocmProvided(
            origin="tarball",
            version=manifest.rocm.version,
            sha256=manifest.rocm.sha256,
            name=manifest.rocm.name,
        ),
        jax_version=manifest.jax_version,
        ran=ran(suite, manifest),
        started="2026-05-01T10:00:00Z",
        ended="2026-05-01T11:00:00Z",
        tool="0.1.0",
    )
    return replace(verdict, **changes)


def pass_gate(
    place,
    manifest: Manifest,
    *,
    suites=("smoke", "unit"),
    state: State = State.PASS,
    family: matrix.Family = FAMILY,
):
    """Store a verdict of every suite for every CPython."""
    for python in manifest.pythons:
        for suite in suites:
            verdict = make_verdict(manifest, suite=suite, python=python, state=state, family=family)
            verdicts.add(place, verdict)


class Shop:
    """A channel in one store, with the room's functions on it."""

    def __init__(self, url: str, console, **changes) -> None:
        from rocwheel.base.store import Options

        about = {"options": Options(attempts=3), "suites": SUITES, **changes}
        self.channel = replace(channels.of_store(url), **about)
        self.console = console
        self.store = self.channel.open()
        ((self.staging, self.release),) = self.channel.pairs(self.store, FAMILY.name, 7)

    def over(self, store) -> Shop:
        """The same shop, which reaches its store through another object."""
        other = copy.copy(self)
        other.store = store
        other.staging, other.release = (
            replace(place, store=store) for place in (self.staging, self.release)
        )
        return other

    def stage(self, wheelhouse: Path, who: Who = WHO) -> stage.Stage:
        plan = self.staging_plan(wheelhouse, who)
        stage.apply(plan, console=self.console)
        return plan

    def staging_plan(self, wheelhouse: Path, who: Who = WHO) -> stage.Stage:
        return stage.plan(wheelhouse, FAMILY, self.channel, self.store, who=who)

    def plan(self, manifest: Manifest, who: Who = WHO, **options) -> promote.Promote:
        return promote.plan(manifest, FAMILY, self.channel, self.store, who=who, **options)

    def promote(self, manifest: Manifest, who: Who = WHO, **options) -> int:
        planned = self.plan(manifest, who, **options)
        return 0 if planned.is_done else promote.apply(planned, console=self.console)

    def change_plan(
        self, action: Action, manifest: Manifest | None = None, *, files=(), reason: str = "wrong"
    ) -> withdraw.Change:
        who = withdraw.with_reason(WHO, reason)
        set_id = manifest.sha256 if manifest else ""
        return withdraw.plan(self.release, action, who=who, set_id=set_id, filenames=files)

    def change(self, action: Action, manifest: Manifest | None = None, **options) -> None:
        """Yank, unyank, roll back or restore."""
        operations.perform(self.change_plan(action, manifest, **options))

    def prune_plan(
        self, place, *, days: float, orphans: bool = False, reason: str = "retention"
    ) -> retention.Prune:
        who = replace(WHO, now=NOW + timedelta(days=days), reason=reason)
        return retention.plan(place, self.channel, who=who, orphans=orphans)

    def prune(self, *, days: float, orphans: bool = False) -> list[str]:
        """Prune both places; return the sets that went."""
        gone = []
        for place in (self.staging, self.release):
            plan = self.prune_plan(place, days=days, orphans=orphans)
            gone += [known.id for known, _ in plan.expired(plan.start)]
            retention.apply(plan)
        return gone

    def entries(self, place) -> list[Transition]:
        """The log of a place."""
        first = min(
            (int(re.search(r"(\d+)\.json", item.key)[1]) for item in self.store.keys(place.logs)),
            default=1,
        )
        found = []
        while info := self.store.info(place.log(first + len(found))):
            found.append(Transition.from_bytes(self.store.read(info.key)[0], name=info.key))
        return found

    def entry(self, place, action: Action) -> Transition:
        """The newest entry of a log that does this."""
        return [item for item in self.entries(place) if item.action is action][-1]

    def shown(self, place, project: str):
        """What the log says is listed."""
        return log.read(place, files=True).shown(project)

    def status(self, now: datetime = NOW, **options) -> status.Overview:
        pair, families = (self.staging, self.release), {FAMILY.name: FAMILY}
        return status.overview([pair], families, self.channel, now=now, **options)

    def staged(self, wheelhouse: Path, **options) -> Manifest:
        manifest = make_set(wheelhouse, **options)
        self.stage(wheelhouse)
        return manifest

    def gated(self, wheelhouse: Path, **options) -> Manifest:
        manifest = self.staged(wheelhouse, **options)
        pass_gate(self.staging, manifest)
        return manifest

    def released(self, wheelhouse: Path, **options) -> Manifest:
        manifest = self.gated(wheelhouse, **options)
        self.promote(manifest)
        return manifest

    def listing(self, place) -> list[tuple[str, int, str]]:
        """Everything stored at a place: names, sizes and contents."""
        return [
            (item.key, item.size, hashlib.sha256(self.store.read(item.key)[0]).hexdigest())
            for item in self.store.keys(place.key(""))
        ]
