"""A night and one set for several families: what it sees of each, sums up, prunes and makes images of."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest
from support.shared import SharedShop, X, Y
from support.states import summary
from support.wheelset import NOW

from rocwheel.base.console import silent
from rocwheel.base.values import replace
from rocwheel.base.versions import timestamp
from rocwheel.cli import main
from rocwheel.night import planning, truth
from rocwheel.night import settings as settings_file
from rocwheel.records.manifest import BUILD_RECORD
from rocwheel.release import retention
from rocwheel.release.ledger.nights import Book, NightPlan, WheelRecipe
from rocwheel.release.ledger.state import Action
from rocwheel.release.operations import Who

RECIPE = WheelRecipe(
    name="jax", inputs="1" * 64, jax="0.9.1", jax_repository="", jax_commit="", rocm="/rocm.tar.gz",
    rocm_version="7.10.0", rocm_sha256="", image="", families=(X.name, Y.name),
    pythons=("3.12",), argv=("dist_wheels",),
)  # fmt: skip


class OneSet:
    """A set for two families in a store, of which one has passed and released it."""

    def __init__(self, folder) -> None:
        self.shop = SharedShop((folder / "store").as_uri(), silent())
        self.manifest = self.shop.made(folder / "house", X, Y, pythons=("3.12",))
        (folder / "house" / BUILD_RECORD).write_bytes(b"{}\n")
        self.shop.gate(self.manifest, X)
        self.shop.release_for(self.manifest)
        ci = Path(__file__).parents[2] / "ci"
        self.setting = planning.PlanInput(
            night="one", settings=settings_file.load(ci / "nightly.yaml"), ci=ci, by="me", now=NOW,
            families={X.name: X, Y.name: Y}, channel=self.shop.channel, target=(),
        )  # fmt: skip

    def plan(self):
        built = replace(RECIPE, manifest=self.manifest.sha256)
        last = replace(summary(0, families=1), builds=(built,))
        seen = planning.look(self.setting, [RECIPE], self.shop.store, last)
        return seen, planning.plan(self.setting, [RECIPE], [], seen)


@pytest.fixture
def one(tmp_path):
    return OneSet(tmp_path)


def test_a_family_that_has_it_is_left_alone_and_the_other_goes_on(one):
    seen, plan = one.plan()
    states = {name: seen.sets[name, one.manifest.sha256].state for name in RECIPE.families}
    assert states == {X.name: "released", Y.name: "staged"}
    runs = [cell.name for cell in plan.cells if cell.is_to_run]
    assert not [name for name in runs if name.startswith("build")]
    assert {plan.cell(name).family for name in runs if name.startswith("promote")} == {Y.name}
    one.shop.gate(one.manifest, Y)
    seen, _ = one.plan()
    assert seen.sets[Y.name, one.manifest.sha256].state == "gated"
    one.shop.release_for(one.manifest)
    one.shop.take(Action.ROLLBACK, one.manifest, X)
    seen, plan = one.plan()
    assert seen.sets[X.name, one.manifest.sha256].state == "rolled back"
    assert seen.sets[Y.name, one.manifest.sha256].state == "released"
    assert {c.kind for c in plan.cells if c.is_to_run} == {"prune", "page"}


def test_the_summary_says_of_each_family_what_its_users_have(one):
    plan = NightPlan(
        night="one", made=timestamp(NOW), by="me", tool="0", target=(), cells=(),
        recipes=(replace(RECIPE, manifest=one.manifest.sha256),),
    )  # fmt: skip
    book = Book(plan=plan, sha256="", attempts={}, orders=(), quarantined={})
    made = truth._summary(
        book, one.setting.families, one.shop.channel, one.shop.store, now=NOW, before=None
    )
    green, held = made.families
    assert (green.family, green.green, green.blocked) == (X.name, one.manifest.sha256, "")
    assert green.install.index.endswith(f"/v2/{X.name}/")
    assert (held.family, held.green, held.blocked_set) == (Y.name, "", one.manifest.sha256)
    assert "not-run" in held.blocked


def test_what_is_for_several_families_is_pruned_once_for_all(one):
    store = one.shop.store
    who = Who(by="me", now=datetime.now(tz=timezone.utc))  # the store's clock is this one
    pairs = [pair for name in (X.name, Y.name) for pair in one.shop.channel.pairs(store, name)]
    sets = retention.plans(pairs, one.shop.channel, who=who, orphans=False)
    places = [plan.place for plan in sets]
    roots = [place.root for place in places]
    assert len(roots) == len(set(roots))
    assert set(roots) == {"v2", "v2-staging"}


def test_an_image_is_made_for_a_family_that_has_the_set_and_refused_for_others(one, capsys):
    words = [
        "runtime_images", "--dry-run", f"--manifest={one.manifest.sha256}", "--python=3.12",
        f"--store={one.shop.store.url}",
    ]  # fmt: skip
    assert main([*words, f"--family={X.name}"]) == 0
    assert f"set: {one.manifest.sha256[:12]}" in capsys.readouterr().out
    for family, problem in (
        (Y.name, "not released"),
        ("gfx950-dcgpu", f"gfx950-dcgpu: the set is for {Y.name}, {X.name}"),
    ):
        assert main([*words, f"--family={family}"]) == 3
        said = capsys.readouterr().err
        assert problem in said
        assert said.count("error:") == 1
