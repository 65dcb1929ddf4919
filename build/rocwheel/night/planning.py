"""The plan of a night: its cells, what each needs and depends on, and why it is there.

It is a function of resolved inputs (`night.resolving`) and of what `look` finds in the store.
`release.status` says what a set's verdicts and releases mean, for `promote` as well; the newest
summary has what was built from which inputs.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import amdgpu_family_matrix as matrix
from amdgpu_family_matrix import Family, RunnerPool
from rocwheel import __version__
from rocwheel.base.choices import ALL, CELL_KINDS
from rocwheel.base.errors import ConfigError
from rocwheel.base.parallel import each
from rocwheel.base.store import Store
from rocwheel.base.values import Plain, replace
from rocwheel.base.versions import moment, suggest, timestamp
from rocwheel.gate import subject
from rocwheel.gate.suite import history, suites
from rocwheel.image.recipe import ImagedSet
from rocwheel.night import image_record
from rocwheel.night.image_record import NightImage
from rocwheel.night.settings import Cost, NightSettings, Pools
from rocwheel.night.truth import NightSummary
from rocwheel.records.verdict import SILENT, State
from rocwheel.release import status
from rocwheel.release.index.channels import Channel
from rocwheel.release.ledger import log
from rocwheel.release.ledger.nights import CHECKOUT, Cell, Needs, NightPlan, Nights, WheelRecipe
from rocwheel.release.ledger.state import Standing

HALF_HOUR: Final = 1800
WEEK: Final = timedelta(days=7)
# of a build's options, those that its manifest does not say
AGAIN: Final = ("--executor", "--builder-image", "--jax-source-dir", "--xla-source-dir")
HOSTED: Final = "ubuntu-24.04"  # the label of GitHub's own machines, for what any machine can do
HOSTED_CPUS: Final = 4
RELEASED: Final = "released"
DONE: Final = frozenset({RELEASED, "rolled back", "pruned"})  # not tested or promoted again


class SetSeen(Plain, frozen=True, kw_only=True):
    """The state of one wheel set in a family's places."""

    state: str = ""  # "" when it was never staged; otherwise as `status` says
    cells: Mapping[tuple[str, str], tuple[State, str]] = {}
    # of runtime images with a record: (name of the entry, CPython) -> NAME:TAG@sha256:…
    images: Mapping[tuple[str, str], str] = {}


class StoreContents(Plain, frozen=True, kw_only=True):
    """The contents of the store that matter to a night."""

    manifests: Mapping[str, str] = {}  # inputs -> SHA-256
    sets: Mapping[tuple[str, str], SetSeen] = {}  # (family, manifest)
    tests: Mapping[tuple[str, str], int] = {}  # (family, suite) -> ms
    seconds: Mapping[str, int] = {}  # of cells in the last night
    again: Sequence[tuple[str, WheelRecipe]] = ()  # sets to build again, and a family of each


class PlanInput(Plain, frozen=True, kw_only=True):
    """The inputs of a plan, other than the contents of the store."""

    night: str
    settings: NightSettings
    families: Mapping[str, Family]
    channel: Channel
    target: tuple[str, ...]
    ci: Path  # the folder of data in use
    by: str
    now: datetime
    own: tuple[str, ...] = ()  # --family-file, as an option
    images: tuple[NightImage, ...] = ()
    pools: Pools = Pools()


def look(
    setting: PlanInput, recipes: Sequence[WheelRecipe], store: Store, last: NightSummary | None
) -> StoreContents:
    """Ask the store what it has; `last` is the newest summary, with what was built.

    A recipe counts as built if each of its families has or had its set staged: sets that retention
    removed are not built again.
    """
    known = {item.inputs: item for item in last.builds} if last else {}
    sets = _sets(setting, [(r, known[r.inputs]) for r in recipes if r.inputs in known], store)
    built = {
        r.inputs: known[r.inputs]
        for r in recipes
        if r.inputs in known and all((n, known[r.inputs].manifest) in sets for n in r.families)
    }
    passed = [c for c in last.cells if c.state is State.PASS and c.milliseconds] if last else []
    return StoreContents(
        manifests={inputs: item.manifest for inputs, item in built.items()},
        sets=sets,
        tests=_durations(setting, recipes, built, sets, store),
        seconds={cell.name: max(1, cell.milliseconds // 1000) for cell in passed},
        again=tuple(_again(setting, store, last)) if last else (),
    )


def _again(
    setting: PlanInput, store: Store, last: NightSummary
) -> Iterator[tuple[str, WheelRecipe]]:
    """Yield released sets that this night builds again: in turn, so many in any seven days."""
    if not (most := setting.channel.rebuilds_a_week):
        return
    nights = Nights(store)
    done: list[tuple[datetime, str]] = []
    for name in nights.names()[-setting.settings.keep_nights :]:
        with suppress(ConfigError):  # a plan of an older rocwheel
            plan, _ = nights.plan(name)
            done += ((moment(plan.made), c.inputs) for c in plan.cells if c.kind == "rebuild")
    released = {
        known.id: name
        for _, release in setting.channel.pairs(store, ALL)
        for known in log.read(release).sets.values()
        for name in setting.families
        if (own := known.of(name)) and own.standing is Standing.LISTED
    }
    made = {item.manifest: item for item in last.builds}
    week = [manifest for time, manifest in done if setting.now - time < WEEK]
    before = done[-1][1] if done else ""
    turn = sorted(released.keys() & made.keys() - {*week}, key=lambda name: (name <= before, name))
    for manifest in turn[: max(0, min(most - len(week), math.ceil(most / WEEK.days)))]:
        yield released[manifest], made[manifest]


def _sets(
    setting: PlanInput, built: Sequence[tuple[WheelRecipe, WheelRecipe]], store: Store
) -> dict[tuple[str, str], SetSeen]:
    wanted: dict[tuple[str, int], dict[str, list[WheelRecipe]]] = {}
    for recipe, made in built:
        for name in recipe.families:
            ids = wanted.setdefault((name, _major(made)), {})
            ids.setdefault(made.manifest, []).append(recipe)
    channel = setting.channel

    def of_family(
        item: tuple[tuple[str, int], dict[str, list[WheelRecipe]]],
    ) -> dict[tuple[str, str], SetSeen]:
        (name, major), ids = item
        family, sets = setting.families[name], {}
        for staging, release in channel.pairs(store, name, major or None):
            seen = status.rows(staging, release, family, channel, now=setting.now)
            for row in (item for item in seen if item.set_id in ids):
                asked = [
                    (image, python)
                    for recipe in (ids[row.set_id] if row.state == RELEASED else ())
                    for image, python in image_record.wanted(setting.images, recipe, name)
                ]
                wheels = ImagedSet(set_id=row.set_id, jax=row.jax, rocm=row.first.rocm, family=name)
                cells = row.decision.cells if row.decision else ()
                sets[name, row.set_id] = SetSeen(
                    state=row.state,
                    cells={(c.suite, c.python): (c.state, c.why) for c in cells},
                    images=image_record.recorded(release, wheels, asked),
                )
        return sets

    parts = each(of_family, wanted.items(), threads=4)
    return {key: seen for part in parts for key, seen in part.items()}


def _durations(
    setting: PlanInput,
    recipes: Sequence[WheelRecipe],
    built: Mapping[str, WheelRecipe],
    sets: Mapping[tuple[str, str], SetSeen],
    store: Store,
) -> dict[tuple[str, str], int]:
    asked: dict[tuple[str, str], int] = {}
    for recipe in recipes:
        made = built.get(recipe.inputs)
        major = _major(made or recipe)
        if not major:  # a folder of ROCm: its version is known once it is built
            continue
        for name in recipe.families:
            seen = sets.get((name, made.manifest)) if made else None
            if seen and seen.state in DONE:
                continue
            family = setting.families[name]
            for suite in family.suites:
                if family.need(suite).shards > 1 and family.runners_for(suite):
                    asked[name, suite] = major

    def one(item: tuple[tuple[str, str], int]) -> tuple[tuple[str, str], int]:
        (name, suite), major = item
        past = history.read(setting.channel.pairs(store, name, major)[0][0], suite, setting.ci)
        return (name, suite), sum(past.tests.values())

    durations = each(one, asked.items(), threads=store.connections)
    return {key: took for key, took in durations if took}


def _major(recipe: WheelRecipe) -> int:
    match = re.match(r"\d+", recipe.rocm_version)
    return int(match[0]) if match else 0


def plan(
    setting: PlanInput, recipes: Sequence[WheelRecipe], absent: Sequence[Cell], seen: StoreContents
) -> NightPlan:
    """Make the plan, without asking or writing anything; `absent` are builds that cannot be."""
    made = _Made(setting, seen)
    for cell in absent:
        made.missing(cell)
    for recipe in recipes:
        made.recipe(recipe)
    made.again()
    made.end()
    return NightPlan(
        night=setting.night,
        made=timestamp(setting.now),
        by=setting.by,
        tool=__version__,
        target=setting.target,
        recipes=tuple(
            replace(recipe, manifest=seen.manifests.get(recipe.inputs, "")) for recipe in recipes
        ),
        cells=tuple(made.cells),
        attempts=setting.settings.attempts,
        quarantine=setting.settings.quarantine,
    )


def again(old: NightPlan, *, night: str, by: str, now: datetime) -> NightPlan:
    """Return a plan that repeats another night: the same inputs, and all of its cells."""
    cells = tuple(
        # not one that cannot be, nor a gate without a runner
        cell
        if cell.absent or (cell.kind == "gate" and not cell.needs.label)
        else replace(cell, kept="", why=f"repeats {old.night}")
        for cell in old.cells
    )
    return replace(old, night=night, made=timestamp(now), by=by, tool=__version__, cells=cells)


class _FamilySet(Plain, frozen=True):
    recipe: WheelRecipe
    family: Family
    seen: SetSeen
    words: tuple[str, ...]  # that choose set, family and store

    @property
    def name(self) -> str:
        return f"{self.recipe.name}.{self.family.name}"

    @property
    def tags(self) -> dict[str, Any]:
        return {"family": self.family.name, "wheels": self.recipe.name}


class _Made:
    def __init__(self, setting: PlanInput, seen: StoreContents) -> None:
        self._setting, self._seen = setting, seen
        self._suites = {item.name: item for item in suites.load_all(setting.ci)}
        self._pushed: dict[str, str] = {}  # where an image is pushed, as far as known -> its cell
        self.cells: list[Cell] = []

    def recipe(self, recipe: WheelRecipe) -> None:
        """Add the build of a recipe, and the cells of each family that follow."""
        manifest = self._seen.manifests.get(recipe.inputs, "")
        name = f"build.{recipe.name}"
        rest = (*self._setting.own, *self._setting.target)
        sets = [
            _FamilySet(
                recipe=recipe,
                family=self._setting.families[family],
                seen=self._seen.sets.get((family, manifest), SetSeen()),
                words=(f"--manifest={manifest or f'{{{name}}}'}", f"--family={family}", *rest),
            )
            for family in recipe.families
        ]
        is_one = self._setting.channel.one_build and len(sets) > 1  # one set, which names them
        names = ("all",) if is_one else recipe.families
        build = self._build(
            name,
            recipe.argv,
            recipe,
            stages=tuple(("stage", "{wheelhouse}", f"--family={one}", *rest) for one in names),
            inputs=recipe.inputs,
            wheels=recipe.name,
            why=f"staged before as {manifest[:12]}"
            if manifest
            else "these inputs were never built",
            kept="staged" if manifest else "",
        )
        for of in sets:
            self._family(of, build)

    def _family(self, of: _FamilySet, build: Cell) -> None:
        seen = of.seen
        ends = [
            name
            for python in of.recipe.pythons
            for suite, level in self._setting.channel.levels(of.family, python).items()
            for name in self._gate(of, python, suite, level, build)
        ]
        promote = self._add(
            f"promote.{of.name}",
            ("promote", *of.words, "--night={night}", "--reason=night {night}"),
            after=(build.name,),
            settled=tuple(ends),
            seconds=60,
            needs=Needs(memory_mib=1024),
            kept=seen.state if seen.state in DONE else "",
            why=f"{seen.state} already" if seen.state in DONE else "not released yet",
            **of.tags,
        )
        for image, python in image_record.wanted(self._setting.images, of.recipe, of.family.name):
            self._image(of, python, image, after=(promote.name, build.name))

    def _gate(
        self, of: _FamilySet, python: str, suite: str, level: matrix.Level, build: Cell
    ) -> Iterator[str]:
        """Add the cells of one (suite, CPython); yield the names that a promotion waits for."""
        stem, family = f"gate.{of.name}.{python}.{suite}", of.family
        if suite not in self._suites:
            raise ConfigError(
                f"{family.name}: its policy names the suite {suite!r}, and there is none",
                hint=suggest(suite, tuple(self._suites)),
            )
        runners = family.runners_for(suite)
        tags = {**of.tags, "python": python, "suite": suite}
        kept, why = _earlier(of.seen, suite, python)
        if not runners and kept in {"", *DONE}:  # a verdict from elsewhere does without one
            why = f"{family.name} has no runner for {suite}"
            cell = Cell(name=stem, kind="gate", argv=(), absent=why, why=level.value, **tags)
            self.missing(cell, family.bypass_tests_for_releases)
            return
        need = family.need(suite)
        took = self._seen.tests.get((family.name, suite), 0) // 1000
        target = self._setting.settings.shard_minutes * 60
        count = min(need.shards, max(1, math.ceil(took / target))) if took else need.shards
        count = 1 if kept else count
        limit = self._suites[suite].deadlines.shard + HALF_HOUR
        chosen = (f"--suite={suite}", f"--python={python}", *of.words)
        rocm = subject.rocm_option(of.recipe.rocm)
        names = [f"{stem}.{n}-of-{count}" if count > 1 else stem for n in range(1, count + 1)]
        for number, name in enumerate(names, 1):
            needs = self._needs(self._setting.settings.gate, name, runners, need.gpus)
            part = (f"--shard={number}/{count}",) if count > 1 else ()
            last = (*part, f"--runner={needs.label}", "--output={scratch}/results")
            self._add(
                name,
                ("gate", *chosen, *rocm, *last),
                after=(build.name,),
                needs=needs,
                seconds=max(60, took // count) if took else limit // 2,
                limit=limit,
                shard=f"{number}/{count}" if count > 1 else "",
                kept=kept,
                why=why if kept or why else f"{level.value}, no verdict yet",
                **tags,
            )
        if count == 1:
            yield stem
            return
        merge = self._add(
            f"merge.{stem.removeprefix('gate.')}",
            ("gate", "merge", f"--shards={count}", *chosen, "--output={scratch}/results"),
            after=(build.name,),
            settled=tuple(names),
            seconds=60,
            why=f"one verdict of {count} shards",
            **tags,
        )
        yield merge.name

    def _image(
        self, of: _FamilySet, python: str, image: NightImage, *, after: tuple[str, ...]
    ) -> None:
        recipe, family, seen = of.recipe, of.family, of.seen
        own, cost = image.settings, self._setting.settings.image
        name = f"image.{of.name}.{python}.{own.label}"
        needs = ((family.need(suite).gpus, suite) for suite in image.recipe.suites)
        gpus, suite = max(needs, default=(0, ""))  # of the suite that needs most GPUs
        runners = family.runners_for(suite) if suite else ()
        tags = [tag.format(family=family.name, python=python) for tag in own.tags]
        # what the set will be called is not known yet, but which of them are the same is
        wheels = ImagedSet(
            set_id=recipe.inputs, jax=recipe.jax, rocm=recipe.rocm_version, family=family.name
        )
        pushed = (image.reference(wheels, python), *(f"{image.repository}:{tag}" for tag in tags))
        taken = next((self._pushed[item] for item in pushed if item in self._pushed), "")
        reasons = (
            image.lacks(recipe, python),
            f"{seen.state} already" if seen.state in DONE and seen.state != RELEASED else "",
            f"{family.name} has no runner for {suite}" if suite and not runners else "",
            f"would have a tag of {taken}: say {{family}} or {{set}} in `tag` of the recipe "
            "(ci/images.yaml), {family} or {python} in `tags`"
            if taken
            else "",
        )
        if why := next(filter(None, reasons), ""):
            said: dict[str, Any] = {**of.tags, "python": python, "excused": "(not wanted)"}
            self.missing(Cell(name=name, kind="image", argv=(), absent=why, **said))
            return
        self._pushed |= dict.fromkeys(pushed, name)
        there = seen.images.get((own.label, python), "")
        self._add(
            name,
            (
                "image", "runtime", *of.words, f"--python={python}", f"--recipe={own.recipe}",
                *((f"--base={own.base}",) if own.base else ()), f"--profile={own.profile}",
                f"--container-engine={own.executor}", *subject.rocm_option(recipe.rocm), "--test",
                f"--push={own.push}",
                *(f"--tag={tag}" for tag in tags),
                "--output={scratch}/results", "--reason=night {night}",
            ),
            after=after,
            needs=self._needs(cost, name, runners, gpus),
            seconds=HALF_HOUR,
            limit=cost.hours * 3600,
            kept="pushed" if there else "",
            image=there,
            why="made of this set already" if there else "not made of this set yet",
            python=python,
            **of.tags,
        )  # fmt: skip

    def _needs(
        self, cost: Cost, name: str, runners: Sequence[matrix.RunnerPool], gpus: int
    ) -> Needs:
        needs = Needs(cpus=cost.cpus, memory_mib=cost.memory_mib, disk_mib=cost.disk_mib, gpus=gpus)
        if not runners:
            return needs
        chosen = matrix.choose(runners, f"{self._setting.night}/{name}")
        runner = self._setting.pools.of(chosen)
        gres = runner.gres if gpus else ""
        return replace(needs, label=runner.label, partition=runner.partition, gres=gres)

    def again(self) -> None:
        """Add the cells that build released sets again."""
        place, most = (*self._setting.own, *self._setting.target), self._setting.channel
        for family, recipe in self._seen.again:
            named = {*AGAIN, *(["--therock-path"] if subject.rocm_option(recipe.rocm) else ())}
            own = (word for word in recipe.argv if word.partition("=")[0] in named)
            words = ("wheel", "rebuild", recipe.manifest, f"--family={family}", *place, *own)
            self._build(
                f"rebuild.{recipe.manifest[:12]}",
                (*words, "--wheelhouse={wheelhouse}"),
                recipe,
                inputs=recipe.manifest,
                why=f"{most.rebuilds_a_week} released sets a week are built again",
            )

    def _build(self, name: str, argv: tuple[str, ...], recipe: WheelRecipe, **fields: Any) -> Cell:
        cost, is_branch = self._setting.settings.build, CHECKOUT in recipe.argv
        return self._add(
            name,
            argv,
            needs=self._needs(cost, "", [RunnerPool(cost.label)] if cost.label else [], 0),
            seconds=cost.hours * 3600,
            limit=cost.hours * 3600,
            repository=recipe.jax_repository if is_branch else "",
            commit=recipe.jax_commit if is_branch else "",
            **fields,
        )

    def end(self) -> None:
        """Add the last cells: pruning, then the page, which shows how that ended."""
        target = self._setting.target
        ends = tuple(cell.name for cell in self.cells if not cell.absent)
        keep = f"--keep={self._setting.settings.keep_nights}"
        families = [f"--family={f}" for f in sorted({c.family for c in self.cells} - {""})]
        prune = ("nightly", "prune", keep, *families, *target)
        self._add("prune", prune, settled=ends, why="retention, every night")
        shown = f"--nights={self._setting.settings.shown_nights}"
        page = ("nightly", "report", "--night={night}", shown, *self._setting.own, *target)
        self._add("page", page, settled=(*ends, "prune"), why="every night")

    def missing(self, cell: Cell, bypass: matrix.Bypass | None = None) -> None:
        """Add an expected cell that cannot be there, with its excuse from the data."""
        today = self._setting.now.date()
        excused, ended = self._setting.settings.excuse(cell.name, today)
        if bypass and today <= bypass.expires:
            excused = f"(excused by {bypass.owner} until {bypass.expires}: {bypass.reason})"
        excused = excused or cell.excused
        self.cells.append(replace(cell, excused=excused, absent=f"{cell.absent} {ended}".strip()))

    def _add(self, name: str, argv: tuple[str, ...], **fields: Any) -> Cell:
        fields["seconds"] = self._seen.seconds.get(name, fields.get("seconds", 60))
        excused, _ = self._setting.settings.excuse(name, self._setting.now.date())
        kind = name.partition(".")[0]
        cell = Cell(name=name, kind=kind, argv=argv, excused=excused, **fields)
        self.cells.append(cell)
        return cell


def _earlier(seen: SetSeen, suite: str, python: str) -> tuple[str, str]:
    """Return the state that makes a gate superfluous, or "", and what is known of it."""
    state, why = seen.cells.get((suite, python), (None, ""))
    if seen.state in DONE:
        return seen.state, f"{seen.state} already"
    if state is not None and state not in SILENT:
        return state.value, f"has a verdict: {state.value} {why}".strip()
    if state is not None and why != "no verdict":
        why = f"was {state.value}: {why}"
    return "", why


def github_outputs(plan: NightPlan, family: str = "") -> dict[str, str]:
    """Return a plan's outputs for a workflow's jobs: the night, its families, a matrix per kind.

    Without a family these are cells of no single family: each family has its own limit of jobs.
    Raises ConfigError above it.
    """
    names = sorted({cell.family for cell in plan.cells if cell.family and cell.is_to_run})
    values = {"night": plan.night, "families": json.dumps(names)}
    for kind in CELL_KINDS:
        cells = [c for c in plan.cells if (c.kind, c.family) == (kind, family) and c.is_to_run]
        for cell in cells:
            if cell.needs.cpus > HOSTED_CPUS and not cell.needs.label:
                raise ConfigError(
                    f"{cell.name}: needs {cell.needs.cpus} CPUs, and {HOSTED} has {HOSTED_CPUS}",
                    hint="name the label of its runners: `build: {label: …}` in ci/nightly.yaml",
                )
        if len(cells) > matrix.MOST_JOBS:
            raise ConfigError(
                f"{plan.night}: {len(cells)} {kind} cells are more than the {matrix.MOST_JOBS} "
                "jobs of a GitHub matrix",
                hint="raise shard_minutes in ci/nightly.yaml, or plan fewer families or CPythons",
            )
        rows = [{"cell": cell.name, "runner": cell.needs.label or HOSTED} for cell in cells]
        values |= {kind: json.dumps({"include": rows}), f"{kind}_any": str(bool(rows)).lower()}
    return values
