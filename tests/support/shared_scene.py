"""Real operations on one log that two families and `all` show, and what must hold at every instant.

The places and rules of support/scene.py, for sets of two families and one of one.
"""

from __future__ import annotations

from collections.abc import Collection

from support.scene import Scene, Worlds
from support.shared import SharedShop, X, Y
from support.wheelset import WHO, Shop, pass_gate

from rocwheel.base.choices import ALL
from rocwheel.base.values import replace
from rocwheel.records.places import Place
from rocwheel.release import promote, stage
from rocwheel.release.ledger.state import Action

BOTH = tuple(sorted((X.name, Y.name)))
NAMES = {"x": X, "y": Y}
ALONE = "O"  # was built for X alone
SETS = {
    "A": {"pythons": ("3.12",), "families": BOTH, "gfx": (*X.targets, *Y.targets)},
    "B": {"jax": "0.9.2", "pythons": ("3.12",), "families": BOTH, "gfx": (*X.targets, *Y.targets)},
    ALONE: {"jax": "0.9.0", "pythons": ("3.12",)},
}
STARTS = {
    "nothing": (),
    "staged": ("promote O x",),
    "A": ("promote O x", "promote A xy"),
    "A of x": ("promote O x", "promote A x"),
    "A of x, which leads": ("promote O x", "lead A x"),
    "A, not for y": ("promote O x", "promote A xy", "rollback A y"),
}
OPERATIONS = {
    "nothing": ("promote O x", "promote A x", "repair"),
    "staged": ("promote A xy", "promote A x", "promote A y", "rollback O x"),
    "A": ("promote B x", "rollback A x", "rollback A y", "yank A", "prune A", "rollback O x"),
    "A of x": ("promote A y", "rollback A x", "promote B y", "prune A", "repair"),
    "A of x, which leads": ("promote A y", "rollback A x", "repair"),
    "A, not for y": ("restore A y", "rollback A x", "promote B xy", "prune A"),
}


class SharedScene(Scene):
    """A store with one log for two families, and the operations on it."""

    def run(self, name: str, store) -> bool:
        action, about, *named = [*name.split(), ""]
        families = [NAMES[letter] for letter in "".join(named)]
        shop, manifest = self.shop.over(store), self.manifests.get(about)
        if action in {"promote", "lead"}:
            shop.channel = replace(shop.channel, must=(X.name,) if action == "lead" else ())
            plan = shop.promote_plan(manifest, *families)
            if not plan.is_done:
                promote.apply(plan, console=shop.console)
        elif action in {"rollback", "restore"}:
            shop.take(Action(action), manifest, *families, reason=name)
        else:
            return super().run(name, store)
        return True

    @property
    def indexes(self) -> tuple[Place, ...]:
        return tuple(map(self.shop.release.of, (X.name, Y.name, ALL)))

    def check_index(self, index: Place, listed: Collection[str]) -> None:
        strange = {*listed} - self._passed()[index.family]
        assert not strange, f"{index.family} lists what did not pass there: {strange}"

    def _passed(self) -> dict[str, set[str]]:
        """The files of the sets that an entry ever made pass for each index."""
        files = {
            manifest.sha256: {wheel.filename for wheel in manifest.built}
            for manifest in self.manifests.values()
        }
        passed = {X.name: set(), Y.name: set(), ALL: set()}
        families, must = dict[str, set[str]](), dict[str, tuple[str, ...]]()
        for entry in self.shop.entries(self.shop.release):
            if entry.action is Action.PROMOTE:
                for name in (*entry.sets, *(holding.set for holding in entry.brings)):
                    families.setdefault(name, set()).update(entry.families)
                    must.setdefault(name, entry.must or ())
        for name, own in families.items():
            for view in (*own, *([ALL] if must[name] and own.issuperset(must[name]) else ())):
                passed[view] |= files[name]
        return passed


class SharedWorlds(Worlds):
    """Start states of a store with one log for two families."""

    sets, starts, operations = SETS, STARTS, OPERATIONS
    shop, scene = SharedShop, SharedScene

    def stage(self, shop: Shop, name: str) -> None:
        manifest, folder = self.manifests[name], self.wheelhouses / name
        families = (X,) if name == ALONE else (X, Y)
        only = X if name == ALONE else None
        staged = stage.plan(folder, only, shop.channel, shop.store, who=WHO)
        stage.apply(staged, console=shop.console)
        for family in families:
            pass_gate(shop.staging.of(family.name), manifest, family=family)
