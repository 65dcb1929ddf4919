"""Looks up what the store has already: builds, sets and verdicts, durations.

`release.status` says what a set's verdicts and releases mean, for `promote` as well. The newest
summary has what was built from which inputs.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from amdgpu_family_matrix import Family
from rocwheel.base.parallel import each
from rocwheel.base.store import Store
from rocwheel.base.values import Plain
from rocwheel.gate.suite import history
from rocwheel.image.recipe import ImagedSet
from rocwheel.night import image_record
from rocwheel.night.image_record import NightImage
from rocwheel.night.settings import NightSettings, Pools
from rocwheel.night.truth import NightSummary
from rocwheel.records.verdict import State
from rocwheel.release import status
from rocwheel.release.index.channels import Channel
from rocwheel.release.ledger.nights import WheelRecipe

RELEASED: Final = "released"
# A set that got so far is not tested or promoted again.
DONE: Final = frozenset({RELEASED, "rolled back", "pruned"})


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
    )


def _sets(
    setting: PlanInput, built: Sequence[tuple[WheelRecipe, WheelRecipe]], store: Store
) -> dict[tuple[str, str], SetSeen]:
    """Return what is known of recipes that were built, each family read once."""
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
            seen = status.read(staging, release, family, channel, now=setting.now, asks_pages=False)
            for row in (item for item in seen.sets if item.set_id in ids):
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
    """Return the total duration of suites that may be cut and are to be run."""
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
        past = history.read(setting.channel.staging(store, name, major), suite, setting.ci)
        return (name, suite), sum(past.tests.values())

    durations = each(one, asked.items(), threads=store.connections)
    return {key: took for key, took in durations if took}


def _major(recipe: WheelRecipe) -> int:
    match = re.match(r"\d+", recipe.rocm_version)
    return int(match[0]) if match else 0
