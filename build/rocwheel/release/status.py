"""`status`: every wheel set of a family: staged, gated or released, and what blocks it."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import msgspec

from amdgpu_family_matrix import Family
from rocwheel.base.choices import ALL
from rocwheel.base.console import columns, duration
from rocwheel.base.errors import ConfigError, ObjectDiffersError
from rocwheel.base.values import Plain
from rocwheel.base.versions import moment
from rocwheel.records.manifest import Manifest
from rocwheel.records.places import Place
from rocwheel.release import operations
from rocwheel.release.index.channels import Channel
from rocwheel.release.ledger import log, manifests, verdicts
from rocwheel.release.ledger.state import IndexState, Known, Standing, is_foreign
from rocwheel.release.ledger.verdicts import FoundVerdict
from rocwheel.release.policy import Decision
from rocwheel.release.proof import judge
from rocwheel.release.trust import TrustError, verifier
from rocwheel.release.trust.policy import NEVER


class SetStatus(Plain, frozen=True, kw_only=True):
    known: Known  # as the release knows it, else as staging does
    here: Known | None  # as staging knows it
    is_released: bool  # the release knows it
    age: timedelta  # since it was staged (or released, where it was not staged here)
    decision: Decision | None = None  # of a staged set that is not released
    problem: str = ""  # why there is none although it should be, or what is wrong with a release
    rollback: str = ""  # the command that takes a release back that rests on a revoked key alone
    family: str  # of a set for several, which has a row for each

    @property
    def set_id(self) -> str:
        return self.known.id

    @property
    def first(self) -> Known:
        return self.here or self.known

    @property
    def jax(self) -> str:
        return self.first.jax or ("-" if is_foreign(self.set_id) else "")

    @property
    def released(self) -> str:
        return self.known.first if self.is_released else ""

    @property
    def files(self) -> int:
        return self.known.files if self.known.standing is Standing.LISTED else 0

    @property
    def state(self) -> str:
        """Released, gated (staged, and may be promoted), staged, rolled back, pruned, foreign."""
        if self.known.standing is not Standing.LISTED:
            return "rolled back" if self.known.standing is Standing.HELD else "pruned"
        if is_foreign(self.set_id):
            return "foreign"
        if self.is_released:
            return "released"
        return "gated" if self.decision and not self.decision.blocking else "staged"

    @property
    def blocked_by(self) -> str:
        """The first thing that holds the set up, "" when nothing does."""
        cells = self.decision.blocking if self.decision else ()
        if not cells:
            return self.problem
        more = f" (+{len(cells) - 1})" if len(cells) > 1 else ""
        cell = cells[0]
        return f"{cell.suite} on {cell.python}: {cell.state.value}: {cell.why}{more}"

    @property
    def next(self) -> str:
        """What holds the set up, or notes on one that may be promoted: tests that no longer run."""
        if self.state != "gated" or not self.decision:
            return self.blocked_by
        cells = self.decision.cells
        notes = [f"{cell.suite} on {cell.python}: {note}" for cell in cells for note in cell.notes]
        return "; ".join(("may be promoted", *notes))

    def row(self) -> tuple[str, ...]:
        yanked = f", {self.known.yanked} yanked" if self.known.yanked else ""
        return (
            self.set_id[:12],
            f"{self.state} {self.family}",
            self.jax,
            self.first.rocm,
            " ".join(self.first.pythons),
            duration(self.age.total_seconds()),
            f"{self.files}{yanked}",
            self.next,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "set": self.set_id,
            "family": self.family,
            "state": self.state,
            "jax": self.jax,
            "rocm": self.first.rocm,
            "pythons": self.first.pythons,
            "staged": self.here.first if self.here else "",
            "released": self.released,
            "age_seconds": round(self.age.total_seconds()),
            "files": self.files,
            "yanked": self.known.yanked,
            "blocked_by": msgspec.to_builtins(self.decision.blocking if self.decision else ()),
            "next": self.next,
            "rollback": self.rollback,
        }


NOT_LOOKED: Final = "not looked at (--look)"
HEADER: Final = ("set", "state", "JAX", "ROCm", "CPython", "age", "files", "next")


class Overview(Plain, frozen=True, kw_only=True):
    """The sets of two places, the youngest first, and problems of their logs."""

    sets: tuple[SetStatus, ...]
    problems: tuple[str, ...]
    is_damaged: bool = False  # the log of a release is, so that nothing may be changed there
    releases: tuple[tuple[Place, IndexState], ...] = ()  # as they were read

    def lines(self) -> list[str]:
        rows = [item.row() for item in self.sets]
        commands = [item.rollback for item in self.sets if item.rollback]
        return [*columns(HEADER, rows), *commands] if rows else ["no set"]

    def to_json(self) -> dict[str, Any]:
        return {"sets": [item.to_json() for item in self.sets], "problems": self.problems}


def rows(
    staging: Place,
    release: Place,
    family: Family,
    channel: Channel,
    *,
    now: datetime,
    look: int | None = None,
    states: Sequence[IndexState] = (),
) -> list[SetStatus]:
    """Read a family's sets, and what proves those that are staged and not released.

    `look` limits the latter to the youngest; the logs alone, which `states` are if they are at
    hand, say nothing about verdicts.
    """
    states = states or [*map(log.read, (staging, release))]
    staged, released = (state.of(staging.family) for state in states)
    waiting = sorted(
        (known for known in staged.listed if known.id not in released.sets),
        key=lambda known: (known.first, known.id),
        reverse=True,
    )
    files = staging.each(lambda known: _file(staging.at(known.home), known.id), waiting[:look])
    cells = {cell for _, _, found in files for cell in verdicts.cells(found)}
    before = verdicts.released_coverage(release, released, cells)
    doubts = dict(release.each(partial(_doubt, release, channel), released.sets.values()))
    judged: dict[str, tuple[Decision | None, str]] = {
        known.id: (None, NOT_LOOKED) for known in waiting
    }
    for known, (manifest, why, found) in zip(waiting, files, strict=False):
        judged[known.id] = None, why
        try:
            if manifest:
                at = staging.at(known.home)
                said, _ = judge(at, manifest, family, channel, found, before=before, now=now)
                judged[known.id] = said, ""
        except TrustError as exc:
            judged[known.id] = None, str(exc)
    sets = []
    for set_id, known in {**staged.sets, **released.sets}.items():
        here = staged.sets.get(set_id)
        doubt, rollback = doubts.get(set_id, ("", ""))
        decision, problem = judged.get(set_id, (None, doubt))
        row = SetStatus(
            known=known,
            here=here,
            is_released=set_id in released.sets,
            age=now - moment((here or known).first),
            decision=decision,
            problem=problem,
            rollback=rollback,
            family=family.name,
        )
        sets.append(row)
    return sorted(sets, key=lambda item: (item.age, item.set_id))


def _doubt(release: Place, channel: Channel, known: Known) -> tuple[str, tuple[str, str]]:
    """Return a set, which revoked keys its release rests on, and the command that takes it back."""
    trust = channel.trust
    is_sound = all(key.revoked is NEVER for key in trust.keys.values())
    if is_sound or known.standing is not Standing.LISTED:
        return known.id, ("", "")
    data = manifests.bundle(release, known)
    if release.family in known.bundles and not data:
        return known.id, ("its statements cannot be read: they are not what the log names", "")
    try:
        names, is_alone = verifier.revoked(data, trust, released=moment(known.first))
    except (TrustError, ConfigError, TypeError) as exc:
        return known.id, (f"its statements cannot be read: {exc}", "")
    text = f"{', '.join(sorted(names))} revoked"
    if not names or not is_alone:
        return known.id, (f"{text}; other keys signed the same" if names else "", "")
    words = (f"--manifest={known.id}", f"--family={release.family}", f"--reason={text}")
    command = shlex.join(("rollback", *words))
    return known.id, (f"{text}: it rests on nothing else: roll it back", command)


def unknown_families(
    channel: Channel, states: Iterable[IndexState], families: Mapping[str, Family]
) -> str:
    """Say whose sets are in no table, "" for none. Raises ConfigError where that is all of them."""
    every = {n for state in states for known in state.sets.values() for n in known.families} - {ALL}
    if not (unknown := every - families.keys()):
        return ""
    what = f"{channel.store}: has sets for {', '.join(sorted(unknown))}, unknown to this data"
    hint = "name their file: --family-file FILE"
    if unknown == every:
        raise ConfigError(what, hint=hint)
    return f"{what}: {hint}"


def overview(
    pairs: Iterable[tuple[Place, Place]],
    families: Mapping[str, Family],
    channel: Channel,
    *,
    now: datetime,
    hours: float | None = None,
    look: int | None = None,
) -> Overview:
    """Read each pair of staging and release; with `hours` only the sets that wait for longer.

    A pair that is looked at as `all` is read for each family of its sets, of those that are given.
    Pages of a release show whether its log lost its end. Raises ConfigError where none of those
    families is given.
    """
    sets, said, releases, is_damaged = list[SetStatus](), list[str](), [], False
    whole = list[IndexState]()
    for staging, release in pairs:
        staged, released = log.read(staging), log.read(release)
        releases.append((release, released))
        views = [staging.family]
        if views == [ALL]:
            every = (item for state in (staged, released) for item in state.sets.values())
            views = sorted({name for item in every for name in item.families} & families.keys())
            whole += (staged, released)
        for view in views:
            about: Any = {"now": now, "look": look, "states": (staged, released)}
            sets += rows(staging.of(view), release.of(view), families[view], channel, **about)
        seen = released if staging.family == ALL else released.of(staging.family)
        damage = operations.damage(release, seen, seen.projects)
        is_damaged |= bool(damage)
        said += (*problems(staging, staged, staged.damage), *problems(release, released, damage))
    if unknown := unknown_families(channel, whole, families):
        said.insert(0, unknown)
    return Overview(
        sets=tuple(sets if hours is None else waiting(sets, hours=hours)),
        problems=tuple(dict.fromkeys(said)),
        is_damaged=is_damaged,
        releases=tuple(releases),
    )


def problems(place: Place, state: IndexState, damage: Mapping[int, str]) -> tuple[str, ...]:
    texts = [f"{place.location}: {text}" for text in dict.fromkeys(damage.values())]
    if damage and not place.is_staging:
        error = operations.damaged(place, state, damage)
        rest = (text for text in texts if not text.endswith(damage[min(damage)]))
        texts = [f"{error}: {error.hint}", *rest]  # which may follow from it
    if not operations.is_settled(state) and (place.is_staging or not damage):
        ways = f"`{place.command('repair')}`, or any command that changes this index,"
        texts.append(
            f"{place.location}: entry {state.number} of the log is committed and may not be shown "
            f"yet: {ways} completes it"
        )
    return tuple(texts)


def waiting(sets: Iterable[SetStatus], *, hours: float) -> list[SetStatus]:
    limit = timedelta(hours=hours)
    return [item for item in sets if item.state in {"staged", "gated"} and item.age > limit]


def _file(staging: Place, set_id: str) -> tuple[Manifest | None, str, tuple[FoundVerdict, ...]]:
    """Return what policy asks of a staged set; or why it has no manifest."""
    try:
        manifest, why = manifests.find(staging, set_id), "its manifest is missing"
    except (ConfigError, ObjectDiffersError) as exc:
        manifest, why = None, f"its manifest cannot be read: {exc}"
    return manifest, why, verdicts.find(staging, set_id) if manifest else ()
