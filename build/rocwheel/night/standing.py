"""Where each cell of a night stands: a pure function of its plan, attempts and orders.

A failure in any attempt at a test counts, even a late one: a pass beside it is `flaky`. An attempt
without a stored verdict tested nothing, and only its hang counts beside a pass. A cell that waited
for ends (a promotion, a merge, the page) is repeated when one of them changed. An attempt counts
only for the set that its build has now. An attempt without an end that no longer renews its lease
is lost, which counts as the machine's fault. Faults of the machine are tried again, as often as the
plan says.
"""

from collections.abc import Iterable, Iterator, Mapping

from rocwheel.base.choices import TEST_KINDS
from rocwheel.base.values import Plain, replace
from rocwheel.records.verdict import SILENT, State
from rocwheel.release.ledger.nights import (
    LASTING,
    Book,
    CauseClass,
    Cell,
    CellAttempt,
    Ended,
    Order,
    Phase,
    WheelRecipe,
)  # fmt: skip


class CellStanding(Plain, frozen=True, kw_only=True):
    """One cell of a night with its attempts: its phase and its state."""

    cell: Cell
    phase: Phase
    state: State | None  # of all attempts together; None before the first ended
    reason: str
    attempts: tuple[CellAttempt, ...]
    cause: CauseClass | None = None  # of what did not pass
    released: bool = False  # flaky, and after a person's retry its set was released all the same

    @property
    def last(self) -> Ended | None:
        """The newest attempt that ended."""
        return next((item.ended for item in reversed(self.attempts) if item.ended), None)

    @property
    def passed(self) -> bool:
        return self.state is State.PASS

    @property
    def settled(self) -> bool:
        """Return whether it is finished unless a person asks for more."""
        return self.phase in {Phase.KEPT, Phase.ENDED, Phase.BARRED, Phase.ABSENT}

    @property
    def green(self) -> bool:
        """Return whether a person need not look: it passed, or its absence is excused."""
        missing = self.phase is Phase.ABSENT or self.state is State.NO_RUNNER
        return self.passed or self.released or (missing and bool(self.cell.excused))

    @property
    def word(self) -> str:
        """The state as people read it."""
        if self.phase in {Phase.ENDED, Phase.OPEN} and self.state:
            return self.state.value if self.cause is not CauseClass.LOST else self.cause.value
        return f"kept: {self.cell.kept}" if self.phase is Phase.KEPT else self.phase.value

    @property
    def manifest(self) -> str:
        """SHA-256 of the set that the cell made; "" when it makes none."""
        ends = (item.ended for item in reversed(self.attempts))
        return next((ended.manifest for ended in ends if ended and ended.manifest), "")


def stopped(orders: tuple[Order, ...]) -> Order | None:
    """Return the order that stopped the night and is still in force."""
    last = next((o for o in reversed(orders) if o.action in {"stop", "go-on"}), None)
    return last if last and last.action == "stop" else None


def stand(book: Book) -> dict[str, CellStanding]:
    """Return every cell of the plan, in its order; a cell comes after what it depends on."""
    standings: dict[str, CellStanding] = {}
    for cell in book.plan.cells:
        if cell.kept or cell.absent:  # the plan says all of it
            phase, state = (Phase.KEPT, State.PASS) if cell.kept else (Phase.ABSENT, None)
            why = cell.why if cell.kept else f"{cell.absent} {cell.excused}".strip()
            one = CellStanding(
                cell=cell, phase=phase, state=state, reason=why, attempts=(),
                cause=CauseClass.ABSENT if cell.absent else None,
            )  # fmt: skip
        else:
            one = _one(book, cell, standings)
        standings[cell.name] = one
        if cell.kind == "promote" and one.phase is Phase.ENDED and one.passed:
            for name in [n for s in cell.settled for n in (s, *standings[s].cell.settled)]:
                flaky = standings[name].state is State.FLAKY and bool(
                    asked(book.orders, name) or asked(book.orders, cell.name)
                )
                standings[name] = replace(standings[name], released=flaky)
    return standings


def built_of(book: Book) -> tuple[WheelRecipe, ...]:
    """Return the recipes of a night, with the sets that were built and staged of them."""
    standings = stand(book).values()
    made = {item.cell.inputs: item.manifest for item in standings if item.passed and item.manifest}
    return tuple(replace(r, manifest=made.get(r.inputs) or r.manifest) for r in book.plan.recipes)


def grouped(cells: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a line for each text about cells, with the first of them and how many more."""
    names: dict[str, list[str]] = {}
    for name, text in cells:
        names.setdefault(text, []).append(name)
    for text, (first, *more) in names.items():
        yield f"{first}{f' and {len(more)} more' if more else ''}: {text}"


def nothing_built(standings: Mapping[str, CellStanding]) -> bool:
    """Return whether every build has ended and none has wheels."""
    builds = [item for item in standings.values() if item.cell.kind == "build"]
    return all(item.settled and not item.passed for item in builds)


def ready(standings: Mapping[str, CellStanding], cell: Cell) -> bool:
    """Return whether a cell may start now."""
    return all(standings[name].passed for name in cell.after) and all(
        standings[name].settled for name in (*cell.after, *cell.settled)
    )


def _one(book: Book, cell: Cell, standings: Mapping[str, CellStanding]) -> CellStanding:
    attempts = book.attempts.get(cell.name, ())

    def standing(phase: Phase, state: State | None, reason: str) -> CellStanding:
        cause = cause_of(cell, state, tries) if phase in {Phase.ENDED, Phase.OPEN} else None
        return CellStanding(
            cell=cell, phase=phase, state=state, reason=reason, attempts=attempts, cause=cause
        )

    running = [item for item in attempts if not (item.ended or item.is_lost)]
    sets = sets_before(standings, cell)
    tries = tuple(i for i in attempts if not (sets and i.begun and i.begun.sets not in {(), sets}))
    state, reason = _together(cell, tries, book.sha256)
    if running and running[-1].begun:
        return standing(Phase.RUNNING, state, f"on {running[-1].begun.host}")
    order = asked(book.orders, cell.name)
    if order and order.action == "drop":
        return standing(Phase.BARRED, State.NOT_RUN, f"dropped by {order.by}: {order.reason}")
    more = bool(order and order.seen >= len(attempts))
    again = outdated(book, cell, standings) if state is not None else ""
    if cell.after and state is not None and not again:
        again = next((name for name in cell.after if not standings[name].settled), "")
    last = tries[-1].ended if tries else None
    lasts = last and last.link and last.cause in LASTING  # of a test, which its verdict names
    # what was interrupted says nothing of the machine
    counted = [i for i in tries if not (i.ended and i.ended.state is State.NOT_RUN)]
    used = len(tries if state is State.NOT_RUN else counted)
    tries_left = state in SILENT and not lasts and used < book.plan.attempts
    if state is None or more or again or tries_left:
        bad = next((n for n in cell.after if standings[n].settled and not standings[n].passed), "")
        if bad:  # what failed first, however far before it
            root = standings[bad]
            why = root.reason if root.phase is Phase.BARRED else f"{bad}: {root.word}"
            return standing(Phase.BARRED, State.NOT_RUN, why)
        if again:
            state, reason = None, f"to be done again after {again}"
        if attempts and not tries:
            reason = f"to be done again: {cell.after[0]} made another set"
        if more and order and not (tries and tries[-1].is_lost):
            return standing(Phase.WAITING, state, f"for the retry that {order.by} asked for")
        return standing(Phase.OPEN if state else Phase.WAITING, state, reason)
    ended = standing(Phase.ENDED, state, reason)
    return _refused(ended, standings) if cell.kind == "promote" else ended


def _refused(ended: CellStanding, standings: Mapping[str, CellStanding]) -> CellStanding:
    """Return a promotion with the test of its set for which it was refused, if there is one."""
    of = (ended.cell.family, ended.cell.wheels)
    for item in standings.values():
        cell = item.cell
        if cell.kind not in TEST_KINDS or item.green or (cell.family, cell.wheels) != of:
            continue
        if f"{cell.suite} on CPython {cell.python} is " not in ended.reason:
            continue
        if item.phase is Phase.BARRED:  # a person left it out
            why, left_out = item.reason, State.NOT_RUN
            return replace(ended, phase=Phase.BARRED, state=left_out, reason=why, cause=None)
        cause = item.cause or CauseClass.TESTS
        return replace(ended, reason=f"{cell.name}: {item.word}", cause=cause)
    return ended


def ends_seen(book: Book, cell: Cell) -> int:
    """Count the attempts and orders known of the cells whose ends this one waits for."""
    tries = sum(len(book.attempts.get(name, ())) for name in cell.settled)
    return tries + sum(order.cell in cell.settled for order in book.orders)


def sets_before(standings: Mapping[str, CellStanding], cell: Cell) -> tuple[str, ...]:
    """Return the manifests that the cells before this one have left."""
    return tuple(filter(None, (standings[name].manifest for name in cell.after)))


def outdated(book: Book, cell: Cell, standings: Mapping[str, CellStanding]) -> str:
    """Return a cell that this one waited for and that was, or will be, tried since; or ""."""
    looked = [item.begun.seen for item in book.attempts.get(cell.name, ()) if item.begun]
    open_ = next((name for name in cell.settled if not standings[name].settled), "")
    if open_ or not looked or ends_seen(book, cell) <= max(looked):
        return open_
    return "what it waited for"


def usual(kind: str, state: State) -> CauseClass:
    """Return the cause of a kind of cell with a state, without a known text."""
    if state in SILENT:
        return CauseClass.MACHINE
    return CauseClass.TESTS if kind in TEST_KINDS else CauseClass.WHEELS


def cause_of(
    cell: Cell, state: State | None, attempts: tuple[CellAttempt, ...]
) -> CauseClass | None:
    """Return the cause of a state other than a pass: that of its last attempt in that state."""
    if state is None or state is State.PASS or not attempts:
        return None
    if state is State.INFRA and attempts[-1].is_lost:
        return CauseClass.STORE if attempts[-1].unread else CauseClass.LOST
    said = next((i.ended for i in reversed(attempts) if i.ended and i.ended.state is state), None)
    known = said.cause if said else None
    return known or (None if state is State.NOT_RUN else usual(cell.kind, state))


def _together(cell: Cell, attempts: tuple[CellAttempt, ...], plan: str) -> tuple[State | None, str]:
    state: State | None = None
    reason = ""
    attempts, note = _that_tested(cell, attempts)
    for item in attempts:
        ended = item.ended
        if ended is None:
            is_open = state in {None, *SILENT} or (
                state is not State.PASS and cell.kind not in TEST_KINDS
            )
            if item.is_lost and is_open:
                host = item.begun.host if item.begun else "its machine"
                why = f"{host} has given no sign of attempt {item.number} for more than 3 minutes"
                state, reason = State.INFRA, item.unread or why
            continue
        if ended.plan != plan:
            state, reason = State.INFRA, f"attempt {item.number} is of another plan"
            continue
        now, why = ended.state, ended.reason
        if cell.kind in TEST_KINDS and state is not None:
            if (now in SILENT and state not in SILENT) or (
                now is State.PASS and state is State.FLAKY
            ):
                continue
            if now is State.PASS and state not in {*SILENT, State.PASS}:
                now, why = State.FLAKY, f"passed after {state.value}: {reason}"
            elif state is State.PASS and now not in {*SILENT, State.PASS}:
                why = f"{now.value} after a pass: {why}"
        elif now in SILENT and state is State.PASS:
            continue  # an engine's requeue of what is done already
        state, reason = now, why
    return state, reason or note


def _that_tested(
    cell: Cell, attempts: tuple[CellAttempt, ...]
) -> tuple[tuple[CellAttempt, ...], str]:
    """Drop attempts that failed before any test if one passed; note the last of them."""
    ends = [item.ended for item in attempts if item.ended]
    if cell.kind not in TEST_KINDS or not any(ended.state is State.PASS for ended in ends):
        return attempts, ""
    says = {*SILENT, State.PASS, State.TIMEOUT}  # the wheels may hang
    idle = [ended for ended in ends if not ended.link and ended.state not in says]
    lost = [ended for ended in ends if ended in idle or ended.state in SILENT]
    note = f"one attempt tested nothing: {lost[-1].state.value}: {lost[-1].reason}" if lost else ""
    return tuple(item for item in attempts if item.ended not in idle), note


def asked(orders: tuple[Order, ...], name: str) -> Order | None:
    """Return the last order of a person about a cell."""
    return next((o for o in reversed(orders) if o.cell == name), None)
