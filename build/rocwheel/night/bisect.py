"""From a red night to the commit: which kept set, which input, which commit made a test fail.

Searching, asking and what people read are apart: `Search` asks a function how the test does against
a set (`night.probes`) and never how that is known. Every choice follows from the answers alone, so
that the search, run again, asks the same questions and finds them answered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Literal

from rocwheel import source
from rocwheel.base import git, home
from rocwheel.base.assets import template
from rocwheel.base.console import columns, count, duration
from rocwheel.base.download import Client
from rocwheel.base.errors import CommandError, ConfigError
from rocwheel.base.git import Source
from rocwheel.base.process import Runner
from rocwheel.base.values import Plain, Value, replace
from rocwheel.night import standing
from rocwheel.night.probes import VARIABLE, ProbeAnswer, Run, Side, without
from rocwheel.release.ledger.nights import CHECKOUT, Book, Cell, Nights, WheelRecipe
from rocwheel.rocm import listing, therock

OWN_XLA: Final = "--xla-source-dir"
INPUTS: Final[Mapping[str, tuple[str, ...]]] = {  # of a build, and the words that name each
    "rocwheel": (),
    "settings": (),
    "image": ("--executor", "--builder-image"),
    "ROCm": ("--therock-path", "--therock-sha256", "--rocm-version"),
    "JAX": ("--jax-version", "--jax-source-dir", "--jax-repository", "--jax-ref"),
    "XLA": (OWN_XLA,),  # but for the one that JAX names, which moves with it
}
NO_XLA: Final = Source(repository="", commit="")
SUSPECT: Final = ("rev-list", "-n2", "--first-parent", "--end-of-options")
OWN: Final = ("--wheelhouse", "--wheel-suffix")  # of each build
TURNED: Final = {ProbeAnswer.GOOD: ProbeAnswer.BAD, ProbeAnswer.BAD: ProbeAnswer.GOOD}
STEADY: Final = frozenset(TURNED)


@cache
def _xla() -> str:
    return source.load_layouts(home.find(None).ci / "layouts.yaml")["upstream"].xla.repository


class BisectRequest(Value, frozen=True, kw_only=True):
    """What a bisect is asked."""

    test: str
    good: str = ""  # a night; "" for the one that is found by going back
    bad: str
    family: str = ""
    suite: str = ""
    python: str = ""
    wheels: str = ""
    confirm: int = 3  # probes of both ends, and of the final pair
    suspect: str = ""  # a commit of JAX, or of an own XLA, that is tried first
    metric: str = ""  # a number that the test reports, in place of pass and fail
    threshold: str = ""
    fix: bool = False  # the bad night is the older one: what made it good is looked for

    @property
    def about(self) -> str:
        """The test, and which number of it."""
        return f"{self.test}: {self.metric} {self.threshold}" if self.metric else self.test

    @property
    def ends(self) -> tuple[str, str]:
        """The older and the newer night."""
        return (self.bad, self.good) if self.fix else (self.good, self.bad)


class NightSet(Plain, frozen=True, kw_only=True):
    """The kept set of a night."""

    night: str
    side: Side
    recipe: WheelRecipe
    build: Cell
    xla: Source = NO_XLA  # as its manifest has it


class Tried(Value, frozen=True, kw_only=True):
    """A set that was tried, and what came of it."""

    set: str
    answer: str
    passed: int
    probes: tuple[str, ...]
    why: str = ""
    manifest: str = ""
    milliseconds: int = 0


class Commit(Value, frozen=True, kw_only=True):
    """A commit as people read it."""

    commit: str
    author: str
    title: str
    link: str = ""


class Bisection(Value, frozen=True, kw_only=True):
    """What a bisect came to."""

    asked: BisectRequest
    state: str  # found, range, unsteady, not reproduced, stopped
    about: str  # in a sentence
    input: str = ""
    commits: tuple[Commit, ...] = ()  # the culprit, or all that may be it
    link: str = ""  # to the changes, where it is no commit
    tried: tuple[Tried, ...] = ()
    told: tuple[str, ...] = ()  # what was stepped around
    good: str = ""  # the line that shows the side that passes
    bad: str = ""
    log: str = ""  # of git bisect, for `git bisect replay`
    gpu_milliseconds: int = 0  # that its gates held GPUs
    schema: Literal[2] = 2

    @property
    def is_named(self) -> bool:
        """Return whether a culprit is, or a few of which one is it."""
        return self.state in {"found", "range"}

    @property
    def line(self) -> str:
        """It in a line, for the page and messages of the night."""
        of = self.commits[0] if len(self.commits) == 1 else None
        who = f", {of.author}: {of.title}" if of else ""
        held = duration(self.gpu_milliseconds / 1000)
        return (
            f"bisect of {self.asked.about}: {self.state}: {self.about}{who}; GPUs held for {held}"
        )

    @property
    def issue(self) -> str:
        """Markdown for an issue where the culprit is developed."""
        return template("night/assets/issue.md").render(found=self)

    def lines(self) -> Iterator[str]:
        """Yield it for a person."""
        rows = [
            (item.set, item.answer, f"{item.passed} of {len(item.probes)}",
             duration(item.milliseconds / 1000), item.why[:80])
            for item in self.tried
        ]  # fmt: skip
        yield from columns(("set", "answer", "passed", "took", "why"), rows)
        yield from self.told
        yield f"{self.state}: {self.about}"
        for item in self.commits:
            yield " ".join(filter(None, (item.commit[:12], item.author, item.title, item.link)))
        if self.link:
            yield self.link
        if self.good and self.bad:
            yield from ("it passes:", f"  {self.good}", "it fails:", f"  {self.bad}")


class _End(Exception):  # noqa: N818 - it ends a search, and is no error
    """The search cannot go on: its state, and why."""


def chosen(nights: Nights, asked: BisectRequest) -> BisectRequest:
    """Return the same with family, suite, CPython and set of the gate that failed.

    Raises ConfigError where several may be meant, or none is there, or for nights that are not.
    """
    names = nights.names()
    for name in filter(None, (asked.good, asked.bad)):
        nights.plan(name)
    if asked.good == asked.bad:
        raise ConfigError(f"{asked.bad}: is both ends", hint="name an older night as --good")
    older, newer = asked.ends
    if asked.good and names.index(older) > names.index(newer):
        hint = f"swap --good and --bad, or {'leave out' if asked.fix else 'add'} --find-fix"
        raise ConfigError(f"{older}: is not before {newer}", hint=hint)
    fields = ("family", "suite", "python", "wheels")
    stood = standing.stand(nights.book(asked.bad)).values()
    gates = [item for item in stood if item.cell.kind == "gate" and not item.cell.absent]
    cells = [
        item
        for item in gates
        if all(getattr(asked, n) in {"", getattr(item.cell, n)} for n in fields)
    ]
    red = [item for item in cells if item.attempts and not item.passed] or cells
    of = (item.cell for item in reversed(red))
    one = {(cell.family, cell.suite, cell.wheels): cell.python for cell in of}
    if len(one) != 1:
        which = ", ".join(sorted(item.cell.name for item in red or gates))
        many = f"{count(len(one), 'gate')} may be meant" if red else "none of its gates is meant"
        raise ConfigError(
            f"{asked.bad}: {many}: {which or 'it has none'}",
            hint="name one: --family, --suite, --python, --set",
        )
    [((family, suite, wheels), python)] = one.items()
    return replace(asked, family=family, suite=suite, python=python, wheels=wheels)


def sets(
    nights: Nights, asked: BisectRequest, xla_of: Callable[[str], Source]
) -> tuple[list[NightSet], list[str]]:
    """Return the kept sets of the nights from good to bad, and what is wrong with the others.

    `xla_of` returns the XLA of a manifest. Raises ConfigError where an end has no set, or both have
    the same.
    """
    names = nights.names()
    first, last = (names.index(name) if name else 0 for name in asked.ends)
    made: list[NightSet] = []
    told: list[str] = []
    for name in names[first : last + 1]:
        try:
            one = _of_night(nights.book(name), asked)
        except ConfigError as exc:
            if name in {asked.good, asked.bad}:
                raise
            if asked.good:
                told.append(f"stepped around {name}: {exc}")
            continue
        made.append(replace(one, xla=xla_of(one.side.manifest)))
    ends = made[0].side.manifest, made[-1].side.manifest
    if len(made) == 1:
        what = f"{asked.bad}: no earlier night has a set to compare it with"
        raise ConfigError(what, hint="bisect between later nights")
    if asked.good and len(set(ends)) == 1:
        raise ConfigError(
            f"{made[0].night} and {made[-1].night}: have the same set, so that it is not what "
            "changed",
            hint="compare their machines: `nightly status NIGHT`",
        )
    inner = {one.side.manifest: one for one in made[1:-1] if one.side.manifest not in ends}
    return [made[0], *inner.values(), made[-1]], told


def _of_night(book: Book, asked: BisectRequest) -> NightSet:
    night, of = book.plan.night, (asked.wheels, asked.family, asked.suite, asked.python)
    recipe = next((r for r in standing.built_of(book) if r.name == asked.wheels), None)
    if not recipe or not recipe.manifest:
        raise ConfigError(f"{night}: has no set {asked.wheels}", hint="name another night")
    cells = book.plan.cells
    same = (c for c in cells if (c.wheels, c.family, c.suite, c.python) == of and c.kind == "gate")
    gate = next((cell for cell in same if not cell.absent), None)
    build = next((c for c in cells if c.kind == "build" and c.wheels == asked.wheels), None)
    if not gate or not build:
        what = f"{asked.suite} on {asked.family}, CPython {asked.python}"
        raise ConfigError(f"{night}: has no gate of {what}", hint="name another night")
    side = Side(label=f"night {night}", gate=gate, manifest=recipe.manifest, rocm=recipe.rocm)
    return NightSet(night=night, side=side, recipe=recipe, build=build)


def offered(sets: Sequence[NightSet], client: Client) -> tuple[str, ...]:
    """Return the builds of ROCm from the first set's to the last's that lie beside them, by date.

    Raises FetchError, ConfigError. None where the two do not lie in one place.
    """
    ends = [item.recipe.rocm for item in (sets[0], sets[-1])]
    folder, *others = {rocm.rpartition("/")[0] for rocm in ends}
    names = [therock.parse_name(therock.base_name(rocm)) for rocm in ends]
    if others or not all(names) or len(set(ends)) == 1:
        return ()
    listed = sorted(listing.every(f"{folder}/", client=client, cwd=Path("/")), key=listing.order)
    same = [item.source for item in listed if names[0] and item.name.group == names[0].group]
    first, last = (same.index(rocm) if rocm in same else -1 for rocm in ends)
    return tuple(same[first : last + 1]) if first >= 0 else ()


@dataclass
class Search:
    """A search between kept sets, of which the first passes and the last fails."""

    asked: BisectRequest
    ask: Callable[[Side, int], Run]
    told: list[str]
    line: Callable[[Side, str], str]  # the command that tries the test against a set
    runner: Runner
    note: Callable[[str], None]
    xla_of: Callable[[str], Source]  # of a manifest
    builds: Sequence[str]  # of ROCm, by date
    seconds: float = math.inf  # that GPUs may be held
    gpus: int = 0  # milliseconds that they were
    state: str = "found"
    tried: dict[str, Tried] = field(default_factory=dict)
    failure: str = ""  # as the bad end failed
    # one like the older end, which passes, and one like the newer; with `fix` it is the reverse
    pair: tuple[Side | None, Side | None] = (None, None)
    named: dict[str, Any] = field(default_factory=dict)  # input, commits and link of the result
    log: str = ""

    def find(self, nights: Sequence[NightSet]) -> Bisection:
        """Search. Raises what `ask` raises, and SourceError for a history that cannot be had."""
        try:
            about = self._of_nights(nights)
        except _End as end:
            (self.state, about), self.named = end.args, {}
        pair = self.pair[::-1] if self.asked.fix else self.pair
        shown = [self.line(side, self.tried[side.label].manifest) if side else "" for side in pair]
        return Bisection(
            asked=self.asked,
            state=self.state,
            about=about,
            tried=tuple(self.tried.values()),
            told=tuple(self.told),
            good=shown[0],
            bad=shown[1],
            log=self.log,
            gpu_milliseconds=self.gpus,
            **self.named,
        )

    def judge(self, side: Side, times: int = 1) -> ProbeAnswer:
        """Return what probes say of a set. Raises _End for a test that does not repeat itself."""
        runs: list[Run] = []
        while len(runs) < times:
            if self.gpus / 1000 > self.seconds:
                held = duration(self.gpus / 1000)
                raise _End("stopped", f"GPUs were held for {held}; `nightly bisect` goes on")
            run = self.ask(side, len(runs) + 1)
            self.gpus += run.gpus
            if run.answer is ProbeAnswer.BAD:
                self.failure = self.failure or run.why
                if VARIABLE.sub("#", run.why) != VARIABLE.sub("#", self.failure):
                    run = replace(run, answer=ProbeAnswer.OTHER)
            runs.append(run)
            if run.answer is ProbeAnswer.FLAKY:
                times = max(times, self.asked.confirm)
            if run.answer not in STEADY | {ProbeAnswer.FLAKY}:
                break
        answers = {run.answer for run in runs}
        steady = len(answers) == 1 or runs[-1].answer not in STEADY
        answer = runs[-1].answer if steady else ProbeAnswer.FLAKY
        passed = sum(run.answer is ProbeAnswer.GOOD for run in runs)
        self.tried[side.label] = Tried(
            set=side.label,
            answer=answer.value,
            passed=passed,
            probes=tuple(run.probe for run in runs),
            why=next((run.why for run in runs if run.why), ""),
            manifest=runs[-1].manifest,
            milliseconds=sum(run.took for run in runs),
        )
        self.note(f"{side.label}: {answer.value} ({passed} of {len(runs)} passed)")
        if answer is ProbeAnswer.FLAKY:
            failed, (low, high) = len(runs) - passed, interval(len(runs) - passed, len(runs))
            raise _End(
                "unsteady",
                f"the test does not repeat itself: against {side.label} it failed in {failed} of "
                f"{len(runs)} probes ({low:.0%} to {high:.0%}), so no commit is named",
            )
        answer = TURNED.get(answer, answer) if self.asked.fix else answer
        if answer is ProbeAnswer.GOOD:
            self.pair = side, self.pair[1]
        return answer

    def _ends(self, low: Side, high: Side) -> None:
        """Confirm that one end passes and the other fails. Raises _End."""
        bad, good = (self.judge(side, self.asked.confirm) for side in (high, low))
        if (good, bad) == (ProbeAnswer.GOOD, ProbeAnswer.BAD):
            return
        what = ", ".join(f"{s.label}: {self.tried[s.label].answer}" for s in (high, low))
        if self.asked.fix:
            what += "; there is nothing between that made it good"
        elif (good, bad) == (ProbeAnswer.BAD, ProbeAnswer.GOOD):
            what += "; the sides are swapped: it was made good in between"
        elif bad is ProbeAnswer.BAD and good in {ProbeAnswer.BAD, ProbeAnswer.OTHER}:
            what += "; both sides fail: name an older good night"
        elif good is ProbeAnswer.ABSENT and bad is ProbeAnswer.BAD:
            what += "; the test came later: name a later good night"
        elif bad is ProbeAnswer.GOOD:
            what += "; the failure does not come again: the machine, or packages that changed"
        raise _End("not reproduced", what)

    def _of_nights(self, nights: Sequence[NightSet]) -> str:
        """Return the culprit between the first and the last, in a sentence."""
        if not self.asked.good:
            nights = self._reached(nights)
        self._ends(nights[0].side, nights[-1].side)
        first, last = self._between([item.side for item in nights])
        good, bad = nights[first], nights[last]
        inputs = [n for n in INPUTS if _change(good, bad, n)]
        if not inputs:
            raise _End(
                "range",
                f"the sets of {good.night} and {bad.night} were made of the same inputs: their "
                "build does not come out the same twice",
            )
        self.told.append(f"between {good.night} and {bad.night} changed: {', '.join(inputs)}")
        self.told += [
            f"each is built with the XLA of {fixed}, and not with its JAX's"
            for fixed in _words(bad.recipe, "XLA")
        ]
        mixed = (_mixed(good, bad, inputs[:n]) for n in range(1, len(inputs)))
        sides = [good.side, *mixed, bad.side]
        first, last = self._between(sides)
        names = inputs[first:last]
        self.pair = sides[first], sides[last]
        if first:
            self.told.append(f"tried with {', '.join(inputs[:first])} of {bad.night}")
        changed = {name: _change(good, bad, name) for name in names}
        if names == ["ROCm"] and {good.recipe.rocm, bad.recipe.rocm} <= {*self.builds}:
            return self._of_rocm(good, bad, inputs[:first])
        about = " or ".join(f"{name} ({change})" for name, change in changed.items())
        why = unsearched(good, bad, names)
        links = (url for what, _, url in ranges(bad.recipe, good.recipe) if what in names)
        self.named = {"input": ", ".join(names), "link": next(links, "")}
        if why or len(names) > 1:
            self.state = "range"
        moved = inputs[:first]
        if names == ["XLA"] and not why:
            low, high, where = good.xla.commit, bad.xla.commit, _home_of_xla(bad)
            known = {low: self.pair[0], high: self.pair[1]}
            return self._of_commits(
                "XLA", low, high, {where: [low, high]},
                lambda commit: known.get(commit) or _mixed(good, bad, moved, xla=commit),
            )[0]  # fmt: skip
        if names == ["JAX"] and not why:
            return self._of_jax(good, bad, moved)
        return ": ".join(filter(None, (about, why)))

    def _of_jax(self, good: NightSet, bad: NightSet, moved: Sequence[str]) -> str:
        low, high = good.recipe.jax_commit, bad.recipe.jax_commit
        known = {low: self.pair[0], high: self.pair[1]}

        def side(commit: str, xla: str = "") -> Side:
            old = None if xla else known.get(commit)
            return old or _mixed(good, bad, moved, commit, xla=xla)

        history = _commits(good.recipe, bad.recipe)
        about, pair = self._of_commits("JAX", low, high, history, side)
        xla = [self.xla_of(self.tried[side(commit).label].manifest) for commit in pair]
        return self._of_xla(about, xla, side, pair) if xla else about

    def _reached(self, nights: Sequence[NightSet]) -> Sequence[NightSet]:
        """Go back in growing steps to a set that passes; the last that failed is the bad end."""
        self.judge(nights[-1].side)  # whose failure is looked for
        step = 1
        while len(nights) > 1:
            at = max(0, len(nights) - 1 - step)
            answer = self.judge(nights[at].side)
            if answer is ProbeAnswer.GOOD:
                return nights[at:]
            if answer is not ProbeAnswer.BAD:
                self._skipped(nights[at].side, answer)
            is_bad = answer is ProbeAnswer.BAD
            nights = nights[: at + 1] if is_bad else [*nights[:at], *nights[at + 1 :]]
            step *= 2
        raise _End("not reproduced", f"no kept night before {nights[-1].night} passes")

    def _between(self, sides: Sequence[Side]) -> tuple[int, int]:
        """Return two neighbours in a line, of which the first passes and the second fails.

        What lies between them then could not be tried.
        """
        low, high, untried = 0, len(sides) - 1, set[int]()
        while inner := [n for n in range(low + 1, high) if n not in untried]:
            middle = min(inner, key=lambda n: abs(2 * n - low - high))
            answer = self.judge(sides[middle])
            if answer is ProbeAnswer.GOOD:
                low = middle
            elif answer is ProbeAnswer.BAD:
                high = middle
            else:
                untried.add(middle)
                self._skipped(sides[middle], answer)
        return low, high

    def _skipped(self, side: Side, answer: ProbeAnswer) -> None:
        why = self.tried[side.label].why
        self.told.append(f"stepped around {side.label}: {answer.value}: {why}")

    def _of_rocm(self, good: NightSet, bad: NightSet, moved: Sequence[str]) -> str:
        first, last = (self.builds.index(item.recipe.rocm) for item in (good, bad))
        inner = [_mixed(good, bad, moved, rocm=one) for one in self.builds[first + 1 : last]]
        sides = [self.pair[0] or good.side, *inner, self.pair[1] or bad.side]
        low, high = self._between(sides)
        if inner:
            self._ends(sides[low], sides[high])
        self.pair = sides[low], sides[high]
        self.state = "range" if high > low + 1 else self.state
        old, new = (_version(self.builds[first + place]) for place in (low, high))
        self.named = {"input": "ROCm", "link": therock.changes(old, new)}
        return f"ROCm ({old} → {new})"

    def _of_commits(
        self,
        what: str,
        low: str,
        high: str,
        history: Mapping[str, Sequence[str]],
        side: Callable[[str], Side],
    ) -> tuple[str, tuple[str, ...]]:
        """Return what `git bisect` says of a range: in a sentence, and parent and culprit.

        `history` has the commits of each repository that are needed, the bad end's last.
        """
        *_, repository = history
        with git.history(history, runner=self.runner) as ask:
            left = self._bisected(ask, low, high, side)
            self.log = ask("bisect", "log")
            commits = tuple(_commit(ask, item, repository) for item in left)
            link = _compare(git.public(repository), low, high) if len(left) > 1 else ""
            self.named = {"input": what, "commits": commits, "link": link}
            culprit = side(left[0])
            if len(left) > 1:
                self.state, self.pair = "range", (self.pair[0], culprit)
                return f"one of {count(len(left), 'commit')} of {what}", ()
            parents = ask("rev-list", "--parents", "-n1", left[0]).split()[1:]
            before = side(parents[0])
            answers = [self.judge(item, self.asked.confirm) for item in (culprit, before)]
            if answers[0] is not ProbeAnswer.BAD or answers[1] is ProbeAnswer.BAD:
                words = ", ".join(answer.value for answer in answers)
                raise _End("unsteady", f"{left[0][:12]} and its parent did not repeat: {words}")
            if answers[1] is not ProbeAnswer.GOOD:
                self._skipped(before, answers[1])
            self.pair = self.pair[0], culprit
            merge = ", a merge whose parents pass" if len(parents) > 1 else ""
            return f"{what} {left[0][:12]}{merge}", (parents[0], left[0])

    def _of_xla(
        self,
        about: str,
        moved: Sequence[Source],
        at: Callable[[str, str], Side],
        pair: Sequence[str],
    ) -> str:
        """Return the commit of XLA, where one of JAX that moved XLA fails for that alone.

        `at` returns the set of a commit of JAX with one of XLA.
        """
        (old, new), kept = (xla.commit for xla in moved), self.pair
        if not old or not new or old == new:
            return about
        where = moved[1].repository or _xla()
        self.told.append(f"{about} moves XLA from {old[:12]} to {new[:12]}")
        for commit in reversed(pair):
            side = partial(at, commit)
            without = self.judge(side(old))
            with_it = self.judge(side(new)) if without is ProbeAnswer.GOOD else ProbeAnswer.OTHER
            if with_it is ProbeAnswer.BAD:
                found, _ = self._of_commits("XLA", old, new, {where: [old, new]}, side)
                return f"{found}, which {about} brings"
            if without is ProbeAnswer.BAD or with_it is ProbeAnswer.GOOD:
                self.pair = kept
                return about  # it fails, or passes, with either XLA
        self.state, self.pair = "range", kept
        self.named["link"] = _compare(where, old, new)
        return f"{about}, or XLA {old[:12]} → {new[:12]} that it brings"

    def _bisected(
        self, ask: Callable[..., str], low: str, high: str, side: Callable[[str], Side]
    ) -> list[str]:
        """Return what `git bisect` leaves: the first bad commit, or that and what may be it."""

        def tell(*words: str) -> None:
            with suppress(CommandError):  # its status says no more than its refs do
                ask("bisect", *words)

        ask("update-ref", "--no-deref", "HEAD", high)
        ask("bisect", "start", "--no-checkout", high, low)
        first, asked = list[str](), {low, high}
        if self.asked.suspect:
            with suppress(CommandError):  # one of JAX, where those of XLA are searched
                first = ask(*SUSPECT, self.asked.suspect).split()
        while True:
            span = ("rev-list", "refs/bisect/bad", "--not", "--glob=refs/bisect/good-*")
            left = ask(*span).split()
            if not left:
                raise _End(
                    "not reproduced",
                    f"where the histories of {low[:12]} and {high[:12]} part, the test fails "
                    "already: it was made good on the side of the good night",
                )
            first = [item for item in first if item in left and item not in asked]
            commit = first[0] if first else ask("rev-parse", "BISECT_HEAD")
            if asked.issuperset(left) or commit in asked:
                return left
            asked.add(commit)
            one = side(commit)
            answer = self.judge(one)
            tell({ProbeAnswer.GOOD: "good", ProbeAnswer.BAD: "bad"}.get(answer, "skip"), commit)
            if answer not in STEADY:
                self._skipped(one, answer)


def ranges(recipe: WheelRecipe, old: WheelRecipe) -> Iterator[tuple[str, str, str]]:
    """Yield what differs from an older recipe: its name, the range, a link to the changes."""
    for what, url, before, now in (
        ("JAX", recipe.jax_repository, old.jax_commit, recipe.jax_commit),
        ("XLA", _xla(), old.xla_commit, recipe.xla_commit),
    ):
        if before != now:
            yield what, f"{before[:10] or '?'}…{now[:10] or '?'}", _compare(url, before, now)
    was, is_now = (f"{r.rocm_version or '?'} ({r.rocm_sha256[:8]})" for r in (old, recipe))
    if was != is_now:
        yield "ROCm", f"{was} → {is_now}", therock.changes(old.rocm_version, recipe.rocm_version)
    if old.tool != recipe.tool:
        commits = (f"{one.tool} ".split(" ")[1] for one in (old, recipe))  # after its version
        link = _compare(recipe.tool_repository, *commits)
        yield "rocwheel", f"{old.tool} → {recipe.tool}", link


def _compare(url: str, old: str, new: str) -> str:
    """Return GitHub's URL for the changes between two commits; "" if there is none."""
    known = url.startswith("https://github.com/") and old and new
    return f"{url.removesuffix('.git')}/compare/{old}...{new}" if known else ""


def _words(recipe: WheelRecipe, name: str) -> tuple[str, ...]:
    if name != "settings":
        return tuple(w for w in recipe.argv[1:] if w.partition("=")[0] in INPUTS[name])
    return without(recipe.argv[1:], *OWN, *(word for words in INPUTS.values() for word in words))


def _home_of_xla(one: NightSet) -> str:
    """Return where a set's XLA is fetched from: the night's folder, if that is public nowhere."""
    own = (word.partition("=")[2] for word in _words(one.recipe, "XLA"))
    return one.xla.repository or next(own, "") or _xla()


def unsearched(good: NightSet, bad: NightSet, names: Sequence[str] = tuple(INPUTS)) -> str:
    """Return why the commits of an input that changed cannot be searched; "" if they can."""
    whole = {
        "JAX": all(one.recipe.jax_repository for one in (good, bad)),
        "XLA": all(one.xla.commit and not one.xla.dirty for one in (good, bad)),
    }
    lacks = next((n for n in names if not whole.get(n, True) and _change(good, bad, n)), "")
    why = f"commits of {lacks} are not searched: a night built a folder, not a commit of a branch"
    return why if lacks else ""


def _change(old: NightSet, new: NightSet, name: str) -> str:
    """Return what differs in an input; "" for nothing."""

    def of(one: NightSet) -> str:
        recipe, own = one.recipe, _words(one.recipe, "XLA")
        return {
            "rocwheel": recipe.tool,
            "settings": " ".join(_words(recipe, "settings")),
            "image": recipe.image,
            "ROCm": f"{recipe.rocm_version or recipe.rocm} {recipe.rocm_sha256[:12]}".strip(),
            "JAX": recipe.jax_commit[:12],
            "XLA": (one.xla.digest or one.xla.commit or own[0])[:12] if own else "",
        }[name]

    return f"{of(old) or 'none'} → {of(new) or 'none'}" if of(old) != of(new) else ""


def _version(rocm: str) -> str:
    name = therock.parse_name(therock.base_name(rocm))
    return str(name.version) if name else ""


def _mixed(
    good: NightSet,
    bad: NightSet,
    moved: Sequence[str],
    jax: str = "",
    *,
    rocm: str = "",
    xla: str = "",
) -> Side:
    """Return a set to build: of the good night, but for what moved to the bad night's.

    And for a commit of JAX or of XLA, or a build of ROCm, of neither.
    """
    of = {name: bad if name in moved else good for name in INPUTS}
    words = {name: _words(one.recipe, name) for name, one in of.items()}
    commit, where = of["JAX"].recipe.jax_commit, of["JAX"].recipe.jax_repository
    own, home = of["XLA"].xla, bad
    named = ((f"JAX {jax[:12]}", jax), (f"XLA {xla[:12]}", xla), (f"ROCm {_version(rocm)}", rocm))
    label = " with ".join(text for text, is_it in named if is_it)
    if jax:
        words["JAX"], commit, where = (CHECKOUT,), jax, bad.recipe.jax_repository
    if rocm:
        words["ROCm"] = (f"--therock-path={rocm}",)
    if not xla and words["XLA"] and not own.dirty:
        xla, home = own.commit, of["XLA"]  # the folder has another one by now
    if xla:
        words["XLA"] = (f"{OWN_XLA}={{xla}}",)
    is_fetched, recipe = CHECKOUT in words["JAX"], of["ROCm"].recipe
    build = replace(
        bad.build,
        argv=("dist_wheels", *(word for each in words.values() for word in each)),
        repository=where if is_fetched else "",
        commit=commit if is_fetched else "",
        xla=(_home_of_xla(home), xla) if xla else (),
    )
    return Side(
        label=label or f"{good.night} with {', '.join(moved)} of {bad.night}",
        gate=bad.side.gate,
        build=build,
        rocm=rocm or recipe.rocm,
        suffix=f"+rocm{_version(rocm) or recipe.rocm_version}",
    )


def _commits(*recipes: WheelRecipe) -> dict[str, list[str]]:
    history: dict[str, list[str]] = {}
    for recipe in recipes:
        history.setdefault(recipe.jax_repository, []).append(recipe.jax_commit)
    return history


def _commit(ask: Callable[..., str], commit: str, repository: str) -> Commit:
    author, title = ask("log", "-1", "--format=%an%x00%s", commit).split("\0")
    where = git.public(repository)
    link = f"{where}/commit/{commit}" if where.startswith("https://github.com/") else ""
    return Commit(commit=commit, author=author, title=title, link=link)


def interval(failed: int, tries: int) -> tuple[float, float]:
    """Return where a rate lies with 95 % certainty (Wilson's score interval)."""
    z, rate = 1.96, failed / tries
    middle = rate + z * z / (2 * tries)
    width = z * math.sqrt(rate * (1 - rate) / tries + z * z / (4 * tries * tries))
    scale = 1 + z * z / tries
    return max(0.0, (middle - width) / scale), min(1.0, (middle + width) / scale)


def between(nights: Sequence[NightSet], suspect: str, runner: Runner) -> list[int]:
    """Return how many commits each history has. Raises ConfigError for a suspect in none."""
    good, bad = nights[0], nights[-1]
    xla = {_home_of_xla(bad): [good.xla.commit, bad.xla.commit]}
    counts, is_known = list[int](), not suspect
    for history in (_commits(good.recipe, bad.recipe), xla):
        low, high = (commit for commits in history.values() for commit in commits)
        if low == high or not all((*history, low, high)):
            continue
        with git.history(history, runner=runner) as ask, suppress(CommandError):
            counts.append(int(ask("rev-list", "--count", high, f"^{low}")))
            is_known = is_known or bool(ask(*SUSPECT, suspect))
    if not is_known:
        why = f"{suspect}: no commit of JAX or XLA before the bad night's"
        raise ConfigError(why, hint="check --suspect")
    return counts


def estimate(
    nights: Sequence[NightSet], confirm: int, rocms: int, between: Sequence[int]
) -> dict[str, int]:
    """Return how many gates and builds it takes at most, and how many commits lie between.

    `rocms` is how many builds of ROCm there are from the first to the last.
    """
    inputs = [name for name in INPUTS if _change(nights[0], nights[-1], name)]
    last = max(sum(_steps(n) + 1 for n in between), _steps(rocms - 1))
    builds = _steps(len(inputs)) + last + (2 if len(between) > 1 else 0)  # XLA old and new
    gates = 2 * confirm * (1 + (len(between) or bool(last))) + _steps(len(nights) - 1) + builds
    return {"sets": len(nights), "commits": sum(between), "builds": builds, "gates": gates}


def _steps(number: int) -> int:
    return math.ceil(math.log2(number)) if number > 1 else 0
