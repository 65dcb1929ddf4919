"""A night in the store: its plan, what happened to its cells, and what is left of it.

Everything but `summary.json`, `index.json`, leases and the clock object is written once, so two
engines, or a person beside one, can only add. An attempt is three objects: that it began, which
takes its number, a lease that it renews each minute, and how it ended. One without an end whose
lease was not renewed for three minutes, by the store's clock, is lost, and is counted. See
docs/layout.md for every key.
"""

import enum
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import ClassVar, Final, Literal

from rocwheel.base import files
from rocwheel.base.errors import (
    ConfigError,
    ObjectDiffersError,
    ObjectMissingError,
    ObjectStaleError,
    StoreError,
)
from rocwheel.base.parallel import each
from rocwheel.base.store import JSON, TEXT, Headers, ObjectInfo, Store, glance, swap
from rocwheel.base.values import Plain, Value, replace
from rocwheel.base.versions import suggest, timestamp
from rocwheel.records.places import NIGHT, OURS
from rocwheel.records.results import Outcome
from rocwheel.records.verdict import State

ROOT: Final = f"{OURS}/nights"
INDEX: Final = f"{ROOT}/index.json"
BISECT: Final = "bisect"  # below a store: that of the probes of its bisects
PROBE: Final = f"{ROOT}/_probe"  # no night's name; where all who run cells may write
HOSTS: Final = f"{OURS}/hosts"
LATE: Final = timedelta(hours=1)  # how far a clock may be off the store's
RENEWED: Final = 60.0  # seconds between two renewals of a lease
LAPSED: Final = timedelta(seconds=3 * RENEWED)  # after which an attempt without an end is lost
CHECKOUT: Final = "--jax-source-dir={checkout}"  # of a build of a commit of JAX
AS_JSON: Final = Headers(content_type=JSON)
AS_TEXT: Final = Headers(content_type=TEXT)


class Phase(enum.Enum):
    KEPT = "kept"  # done before this night
    WAITING = "waiting"  # for others, or for a machine
    RUNNING = "running"
    ENDED = "ended"
    OPEN = "open"  # tried, and to be tried again
    BARRED = "barred"  # what it needs did not pass, or a person dropped it
    ABSENT = "absent"  # expected, and cannot be there


class CauseClass(enum.Enum):
    WHEELS = "wheels"
    TESTS = "tests"
    INPUTS = "inputs"
    STORE = "store"
    MACHINE = "machine"
    LOST = "lost"
    ABSENT = "absent"


LASTING: Final = frozenset({CauseClass.WHEELS, CauseClass.INPUTS})  # the same bytes fail again


class Needs(Value, frozen=True, kw_only=True):
    cpus: int = 1
    memory_mib: int = 512
    disk_mib: int = 0
    gpus: int = 0
    label: str = ""  # of the runner, for GitHub; "" where any machine will do
    partition: str = ""  # of Slurm
    gres: str = ""  # of one GPU, for Slurm


class Cell(Value, frozen=True, kw_only=True):
    """One command of a night. Words of it may hold `{<cell>}`: the manifest that cell left."""

    name: str
    kind: str  # source, build, gate, merge, promote, image, rebuild, page, prune
    argv: tuple[str, ...]  # without the program
    after: tuple[str, ...] = ()  # cells that must have passed
    settled: tuple[str, ...] = ()  # cells that must have ended, whichever way
    needs: Needs = Needs()
    seconds: int = 60  # expected
    limit: int = 2400  # seconds it may take
    wheels: str = ""  # the set: its recipe's name
    family: str = ""
    python: str = ""
    suite: str = ""
    shard: str = ""  # "2/4"
    inputs: str = ""  # digest of what it builds from
    stages: tuple[tuple[str, ...], ...] = ()  # commands that stage what it built
    repository: str = ""  # a checkout it needs, and
    commit: str = ""  # of which commit
    xla: tuple[str, ...] = ()  # of another, an XLA: repository and commit
    why: str = ""
    kept: str = ""  # the state it has already; "" when it is to be run
    image: str = ""  # what it made already: NAME:TAG@sha256:…
    absent: str = ""  # why it cannot be there, though the data expect it
    excused: str = ""  # whose excuse for that holds, and until when

    @property
    def is_to_run(self) -> bool:
        """Return whether it has anything to run in its night."""
        return not (self.kept or self.absent)


class WheelRecipe(Value, frozen=True, kw_only=True):
    """What one wheel set is made from, resolved: nothing in it moves any more."""

    name: str
    inputs: str  # digest of what follows
    jax: str  # pin, or version of a branch
    jax_repository: str
    jax_commit: str
    rocm: str  # source
    rocm_version: str
    rocm_sha256: str
    image: str  # by digest, "" when the host builds
    families: tuple[str, ...]
    pythons: tuple[str, ...]
    argv: tuple[str, ...]  # of dist_wheels
    manifest: str = ""  # SHA-256, where it was built before
    xla_commit: str = ""  # of the pin
    tool: str = ""  # what of rocwheel is an input
    tool_repository: str = ""  # of its commits
    authors: tuple[str, ...] = ()  # of the commits of JAX since its last night
    # Days of the newest ROCm build and JAX commit that its sources offer; "" where nothing moves.
    rocm_newest: str = ""
    jax_newest: str = ""


class NightPlan(Value, frozen=True, kw_only=True):
    night: str
    made: str  # time
    by: str
    tool: str  # version of rocwheel
    target: tuple[str, ...]  # options that name the store
    data: tuple[str, ...] = ()  # options that name its settings and the data in use
    recipes: tuple[WheelRecipe, ...]
    cells: tuple[Cell, ...]
    attempts: int = 2  # of a cell that ends `infra`
    quarantine: int = 3  # `infra` ends in a row before a host gets nothing more
    schema: Literal[3] = 3  # 2 is of before a build staged its own wheels
    schema_hint: ClassVar[str] = (
        "run it with the rocwheel that planned it, or plan another: `nightly plan --night NAME`"
    )

    def cell(self, name: str) -> Cell:
        """Look up a cell. Raises ConfigError that names the nearest one."""
        there = next((cell for cell in self.cells if cell.name == name), None)
        if there and not there.absent:
            return there
        if there:
            raise ConfigError(f"{name}: not in the night {self.night}", hint=there.absent)
        raise ConfigError(
            f"{name!r}: no such cell in the night {self.night}",
            hint=suggest(name, tuple(cell.name for cell in self.cells)),
        )


class Begun(Value, frozen=True, kw_only=True):
    token: str  # unique, so that a put whose answer was lost is known again
    cell: str
    plan: str  # SHA-256
    host: str
    engine: str
    job: str = ""  # the engine's own name for it; here, the process
    seen: int = 0  # how much was known of the cells whose ends it waited for
    sets: tuple[str, ...] = ()  # manifests that the cells before it had left
    time: str


class WorstTest(Value, frozen=True, kw_only=True):
    """The test of a gate that went worst, and how its worst attempt did."""

    test: str
    outcome: Outcome
    message: str = ""
    figures: Mapping[str, int] = {}  # that it measured
    control: str = ""  # what a control run says of it


class Ended(Value, frozen=True, kw_only=True):
    cell: str
    plan: str
    host: str
    engine: str
    state: State
    cause: CauseClass | None = None  # of what did not pass
    reason: str = ""
    exit_code: int = 0
    began: str
    time: str
    milliseconds: int
    testing: int = 0  # milliseconds of them in which a test ran
    manifest: str = ""  # SHA-256 of the set it built and staged
    image: str = ""  # that it pushed: NAME:TAG@sha256:…
    link: str = ""  # key of a page about it
    log: str = ""  # key
    worst: WorstTest | None = None  # of a gate, where a test ran
    written_by: str = ""  # which engine, where the attempt itself could not


class Lease(Value, frozen=True, kw_only=True):
    """The sign that an attempt is alive; its time is the store's."""

    token: str  # of the attempt that has it
    times: int  # it was renewed, so that no two have the same bytes


class Order(Value, frozen=True, kw_only=True):
    action: str
    cell: str = ""
    by: str
    reason: str
    time: str
    seen: int = 0  # attempts there were


class HostMark(Value, frozen=True, kw_only=True):
    host: str
    quarantined: bool
    by: str
    reason: str
    time: str


class Index(Value, frozen=True, kw_only=True):
    """Names of all nights, oldest first, so that finding the newest lists no objects."""

    nights: tuple[str, ...] = ()


class CellAttempt(Plain, frozen=True, kw_only=True):
    number: int
    begun: Begun | None = None
    ended: Ended | None = None
    unread: str = ""  # why one of the two cannot be read
    silence: timedelta = timedelta(0)  # since its lease was renewed, by the store's clock

    @property
    def is_lost(self) -> bool:
        return not self.ended and (bool(self.unread) or not self.begun or self.silence > LAPSED)


class Book(Plain, frozen=True, kw_only=True):
    plan: NightPlan
    sha256: str  # of the plan
    attempts: Mapping[str, tuple[CellAttempt, ...]]
    orders: tuple[Order, ...]
    quarantined: Mapping[str, HostMark]
    findings: Mapping[str, bytes] = {}  # of bisects, by key


class Nights:
    """The nights of a store. Every method raises StoreError."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._once: dict[str, bytes] = {}  # what is written once is read once

    def names(self) -> tuple[str, ...]:
        return self._parsed(glance(self.store, INDEX)[0])

    def check_clock(self, now: datetime) -> None:
        """Refuse to write with a clock that is far off the store's. Raises ConfigError."""
        key = f"{ROOT}/clock.json"
        swap(self.store, key, lambda _old: f'"{timestamp(now)}"\n'.encode(), headers=AS_JSON)
        self.compare_clocks(key, now)

    def compare_clocks(self, written: str, now: datetime) -> None:
        """Compare the store's time of an object just written with ours. Raises ConfigError."""
        info = self.store.info(written)
        off = abs(info.modified - now) if info else timedelta(0)
        if off > LATE:
            raise ConfigError(
                f"{self.store.url}: this machine's clock is {off} off the store's",
                hint="set the clock: times of a night, its age and bypasses depend on it",
            )

    def add(self, plan: NightPlan) -> bool:
        """Store a plan, once; False when exactly this one was there. Raises ConfigError."""
        check_name(plan.night)
        fresh = self._create(self.key(plan.night, "plan.json"), plan)
        there = self.plan(plan.night)[0] if fresh is None else None
        # also of one that was there: the client that stored it may have been killed before this
        self._index(lambda names: names if plan.night in names else (*names, plan.night))
        if there:
            raise ConfigError(
                f"{plan.night}: this night has another plan, made by {there.by} at {there.made}",
                hint=f"run that one (`nightly run {plan.night}`), or choose a name: --night",
            )
        return bool(fresh)

    def plan(self, night: str) -> tuple[NightPlan, str]:
        """Read a night's plan and its SHA-256. Raises ConfigError for an unknown or edited one."""
        check_name(night)
        key = self.key(night, "plan.json")
        try:
            data = self._read(key)[1]
        except ObjectMissingError as exc:
            names = self.names()
            raise ConfigError(
                f"{night}: no such night in {self.store.url}",
                hint=suggest(night, names) if names else "it has none yet: `nightly plan`",
            ) from exc
        plan = NightPlan.from_bytes(data, name=self.store.locate(key))
        return plan, files.sha256(data)

    def book(self, night: str) -> Book:
        """Read the plan, the attempts and the orders of a night, and which hosts are held back."""
        plan, sha256 = self.plan(night)
        prefix = self.key(night, "")
        keys = [info.key for info in self.store.keys(prefix)]
        cells = f"{prefix}cells/"
        ordered = sorted((key for key in keys if key.startswith(f"{prefix}orders/")), key=_number)
        wanted = [key for key in keys if key.startswith(cells) and key.endswith(".json")]
        found = [k for k in keys if k.startswith(f"{prefix}bisects/") and k.endswith(".json")]
        every = [*wanted, *ordered, *found]
        read = dict(each(self._read, every, threads=self.store.connections))
        tries: dict[str, dict[int, CellAttempt]] = defaultdict(dict)
        for key in wanted:
            name, _, file = key.removeprefix(cells).rpartition("/")
            number, where = _number(file), self.store.locate(key)
            one = tries[name].get(number, CellAttempt(number=number))
            try:
                if file.endswith(".begun.json"):
                    one = replace(one, begun=Begun.from_bytes(read[key], name=where))
                else:
                    one = replace(one, ended=Ended.from_bytes(read[key], name=where))
            except ConfigError as exc:  # half-written, when a disk or its power failed
                one = replace(one, unread=str(exc))
            tries[name][number] = one
        alive = [(n, one) for n, made in tries.items() for one in made.values() if not one.ended]
        silences = each(lambda of: self._silence(night, *of), alive, threads=self.store.connections)
        for (name, one), silence in zip(alive, silences, strict=True):
            tries[name][one.number] = replace(one, silence=silence)
        orders = tuple(Order.from_bytes(read[key], name=self.store.locate(key)) for key in ordered)
        return Book(
            plan=plan,
            sha256=sha256,
            attempts={n: tuple(made[i] for i in sorted(made)) for n, made in tries.items()},
            orders=orders,
            quarantined=self.quarantined(),
            findings={key: read[key] for key in found},
        )

    def check_there(self, night: str) -> None:
        """Raise StoreError where the store holds the night no more: it would be made again."""
        if self.store.info(self.key(night, "plan.json")) is None:
            raise StoreError(
                f"{self.store.url}: the store went away: it does not hold the night {night}",
                hint="mount it, or move it back, then run the night again",
            )

    def begin(self, night: str, begun: Begun, *, known: int = 0) -> int:
        """Take the number after `known`, the last; return 0 when another attempt took it."""
        key = self.key(night, f"cells/{begun.cell}/{known + 1}.begun.json")
        return 0 if self._create(key, begun) is None else known + 1

    def end(self, night: str, number: int, ended: Ended) -> bool:
        key = self.key(night, f"cells/{ended.cell}/{number}.json")
        return bool(self._create(key, ended))

    def renew(self, night: str, cell: str, number: int, token: str) -> bool:
        """Renew the lease of an attempt; return False once another attempt took it over."""
        key, times = self.lease(night, cell, number), 1
        data, previous = glance(self.store, key)
        if previous:
            there = Lease.from_bytes(data, name=self.store.locate(key))
            times += there.times
            if there.token != token:
                return False
        else:
            self.check_there(night)
        return self._lend(key, Lease(token=token, times=times), previous)

    def take_over(self, night: str, cell: str, number: int, token: str) -> bool:
        """Take the lease of a lost attempt, so that it ends itself; False where it is alive."""
        key = self.lease(night, cell, number)
        previous = glance(self.store, key)[1]
        if previous and _silence(previous) <= LAPSED:
            return False
        return self._lend(key, Lease(token=token, times=0), previous)

    def _lend(self, key: str, lease: Lease, previous: ObjectInfo | None) -> bool:
        with suppress(ObjectStaleError):
            self.store.replace(key, lease.to_bytes(), previous=previous, headers=AS_JSON)
            return True
        return False

    def _silence(self, night: str, cell: str, one: CellAttempt) -> timedelta:
        """Return how long an attempt was silent; for ever once another one took its lease."""
        key = self.lease(night, cell, one.number)
        data, info = glance(self.store, key)
        if info and one.begun:
            token = Lease.from_bytes(data, name=self.store.locate(key)).token
            return _silence(info) if token == one.begun.token else timedelta.max
        info = info or self.store.info(self.key(night, f"cells/{cell}/{one.number}.begun.json"))
        return _silence(info) if info else timedelta(0)

    def lease(self, night: str, cell: str, number: int) -> str:
        return self.key(night, f"cells/{cell}/{number}.lease")

    def order(self, night: str, order: Order) -> None:
        self._append(self.key(night, "orders/"), order)

    def quarantined(self) -> dict[str, HostMark]:
        keys = sorted((info.key for info in self.store.keys(f"{HOSTS}/")), key=_number)
        marks = [
            HostMark.from_bytes(data, name=self.store.locate(key))
            for key, data in each(self._read, keys, threads=self.store.connections)
        ]
        last = {mark.host: mark for mark in marks}  # by number: clocks of hosts differ
        return {host: mark for host, mark in last.items() if mark.quarantined}

    def mark_host(self, mark: HostMark) -> None:
        host = re.sub(r"[^A-Za-z0-9._-]", "-", mark.host)
        self._append(f"{HOSTS}/{host}/", mark)

    def put_summary(self, night: str, body: bytes) -> None:
        swap(self.store, self.key(night, "summary.json"), lambda _old: body, headers=AS_JSON)

    def summary(self, night: str) -> bytes | None:
        return glance(self.store, self.key(night, "summary.json"))[0] or None

    def forget(self, nights: Sequence[str]) -> None:
        """Delete nights, the index last: what is stopped leaves them to the next try."""
        for night in nights:
            keys = [info.key for info in self.store.keys(self.key(night, ""))]
            each(self.store.delete, keys, threads=self.store.connections)
        self._index(lambda known: tuple(name for name in known if name not in nights))

    def key(self, night: str, name: str) -> str:
        return f"{ROOT}/{night}/{name}"

    def _read(self, key: str) -> tuple[str, bytes]:
        """Read an object that is never written again."""
        if key not in self._once:
            self._once[key] = self.store.read(key)[0]
        return key, self._once[key]

    def _parsed(self, data: bytes | None) -> tuple[str, ...]:
        """Return the nights of an index; where it is missing or damaged, those that have a plan."""
        with suppress(ConfigError):
            if data:
                return Index.from_bytes(data, name=self.store.locate(INDEX)).nights
        plans = (info for info in self.store.keys(f"{ROOT}/") if info.key.endswith("/plan.json"))
        return tuple(
            info.key.split("/")[-2] for info in sorted(plans, key=lambda info: info.modified)
        )

    def _index(self, change: Callable[[tuple[str, ...]], tuple[str, ...]]) -> None:
        new = lambda old: Index(nights=change(self._parsed(old))).to_bytes()  # noqa: E731
        swap(self.store, INDEX, new, headers=AS_JSON)

    def _append(self, prefix: str, record: Value) -> None:
        """Create `<prefix><n>.json` under the next free number.

        A put that was applied although its answer was lost is found again by its bytes.
        """
        number = 1 + max((_number(info.key) for info in self.store.keys(prefix)), default=0)
        while self._create(f"{prefix}{number}.json", record) is None:
            number += 1

    def _create(self, key: str, record: Value) -> bool | None:
        """Return whether a record is new under a key; None where another one has it."""
        with suppress(ObjectDiffersError):
            return self.store.create(key, record.to_bytes(), headers=AS_JSON)
        return None


def check_name(night: str) -> None:
    """Raise ConfigError for what cannot name a night: `latest` is the newest, `*.json` a file."""
    if not NIGHT.match(night):
        raise ConfigError(
            f"{night!r}: not the name of a night", hint="write for example 2026-05-01"
        )


def _silence(info: ObjectInfo) -> timedelta:
    return (info.now or datetime.now(tz=timezone.utc)) - info.modified


def _number(key: str) -> int:
    match = re.search(r"/?(\d+)\.[a-z.]+\Z", key)
    return int(match[1]) if match else 0
