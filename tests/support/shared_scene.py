"""Real operations on one log that two families and `all` show, and what must hold at every instant.

The places and rules of support/scene.py, for a set of several families. One family's pages have
lines of its own log, too: that of before the channel moved.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePosixPath
from urllib.parse import unquote

from support.scene import JAXLIB, PJRT, PLUGIN, Scene, Worlds
from support.shared import SharedShop, X, Y
from support.wheelset import FAMILY, WHO, Shop, applied, pass_gate

from rocwheel.base.choices import ALL
from rocwheel.base.values import replace
from rocwheel.records.places import Place
from rocwheel.release import promote, stage, withdraw
from rocwheel.release.ledger.state import Action

BOTH = tuple(sorted((X.name, Y.name)))
NAMES = {"x": X, "y": Y}
OLD = "O"  # lies in the log of X alone
SETS = {
    "A": {"pythons": ("3.12",), "families": BOTH, "gfx": (*X.targets, *Y.targets)},
    "B": {"jax": "0.9.2", "pythons": ("3.12",), "families": BOTH, "gfx": (*X.targets, *Y.targets)},
    OLD: {"jax": "0.9.0", "pythons": ("3.12",)},
}
STARTS = {
    "staged": ("old promote O",),
    "A": ("old promote O", "promote A xy"),
    "A of x": ("old promote O", "promote A x"),
    "A of x, which leads": ("old promote O", "lead A x"),
    "A, not for y": ("old promote O", "promote A xy", "rollback A y"),
}
OPERATIONS = {
    "staged": ("promote A xy", "promote A x", "promote A y", "old rollback O"),
    "A": ("promote B x", "rollback A x", "rollback A y", "yank A", "prune A", "old rollback O"),
    "A of x": ("promote A y", "rollback A x", "promote B y", "prune A", "repair"),
    "A of x, which leads": ("promote A y", "rollback A x", "repair"),
    "A, not for y": ("restore A y", "rollback A x", "promote B xy", "prune A"),
}


class SharedScene(Scene):
    """A store with one log for two families, and the operations on it."""

    @property
    def old(self) -> Place:
        """The release of X by itself, as it was before the channel moved."""
        return self.shop.release.shown_as(X.name).beside

    @property
    def places(self) -> tuple[Place, ...]:
        return (*super().places, self.old)

    def run(self, name: str, store) -> bool:
        action, about, *named = [*name.split(), ""]
        if action == "old":
            return self._run_old(about, store)
        families = [NAMES[letter] for letter in "".join(named)]
        if action in {"promote", "lead"}:
            must = (X.name,) if action == "lead" else ()
            channel = replace(self.shop.channel, must=must)
            plan = promote.plan(self.manifests[about], families, channel, store, who=WHO)
            if not plan.is_done:
                promote.apply(plan, console=self.shop.console)
            return True
        if action in {"rollback", "restore"}:
            change = withdraw.plan(
                replace(self.shop.release, store=store),
                Action(action),
                who=withdraw.with_reason(WHO, name),
                set_id=self.manifests[about].sha256,
                families=[family.name for family in families],
            )
            applied(change)
            return True
        return super().run(name, store)

    def _run_old(self, action: str, store) -> bool:
        """An operation of the log of X alone."""
        manifest, place = self.manifests[OLD], replace(self.old, store=store)
        if action == "promote":
            channel = replace(self.shop.channel, layout="family")
            plan = promote.plan(manifest, FAMILY, channel, store, who=WHO)
            promote.apply(plan, console=self.shop.console)
            return True
        who = withdraw.with_reason(WHO, action)
        applied(withdraw.plan(place, Action(action), who=who, set_id=manifest.sha256))
        return True

    def look(self, changed: Collection[str] | None = None) -> None:
        """What must hold at every instant, in every index."""
        for known in (self._pages, self._digests):
            for key in tuple(known if changed is None else changed):
                known.pop(key, None)
        passed = self._passed()
        for view in (X.name, Y.name, ALL):
            index = self.shop.release.shown_as(view)
            listed = {}
            for project in (PJRT, JAXLIB, PLUGIN):
                listed[project] = set()
                for key in index.views(project, folder_keys=False):
                    for link in self._links(key):
                        self._is_there(_resolved(key, unquote(link.url)), link)
                        listed[project].add(link.filename)
                strange = listed[project] - passed[view]
                assert not strange, f"{view} lists what did not pass there: {strange}"
            for plugin in listed[PLUGIN]:
                for project in (PJRT, JAXLIB):
                    version = plugin.split("-")[1]
                    assert any(name.split("-")[1] == version for name in listed[project]), (
                        f"{view}: {plugin} is listed without its {project}"
                    )
            if view == X.name and len(self.shop.entries(self.old)) == 1:
                old = {wheel.filename for wheel in self.manifests[OLD].built}
                assert old <= set().union(*listed.values()), "a line of the other log is gone"

    def _passed(self) -> dict[str, set[str]]:
        """The files of the sets that an entry ever made pass for each index."""
        files = {
            manifest.sha256: {wheel.filename for wheel in manifest.built}
            for manifest in self.manifests.values()
        }
        passed = {X.name: set(files[self.manifests[OLD].sha256]), Y.name: set(), ALL: set()}
        families, must = dict[str, set[str]](), dict[str, tuple[str, ...]]()
        for entry in self.shop.entries(self.shop.release):
            if entry.action is Action.PROMOTE:
                for name in (*entry.sets, *(holding.set for holding in entry.brings)):
                    families.setdefault(name, set()).update(entry.families)
                    must.setdefault(name, entry.must)
        for name, own in families.items():
            for view in (*own, *([ALL] if own.issuperset(must[name]) else ())):
                passed[view] |= files[name]
        return passed


def _resolved(page: str, url: str) -> str:
    """The key that a page's link leads to."""
    parts: list[str] = []
    for part in (*PurePosixPath(page).parent.parts, *PurePosixPath(url).parts):
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


class SharedWorlds(Worlds):
    """Start states of a store with one log for two families."""

    sets, starts, operations = SETS, STARTS, OPERATIONS
    shop, scene = SharedShop, SharedScene

    def stage(self, shop: Shop, name: str) -> None:
        manifest, folder = self.manifests[name], self.wheelhouses / name
        if name == OLD:
            channel = replace(shop.channel, layout="family")
            staged = stage.plan(folder, FAMILY, channel, shop.store, who=WHO)
            stage.apply(staged, console=shop.console)
            pass_gate(channel.staging(shop.store, X.name, 7), manifest)
            return
        staged = stage.plan(folder, None, shop.channel, shop.store, who=WHO)
        stage.apply(staged, console=shop.console)
        for family in (X, Y):
            pass_gate(shop.staging.of(family.name), manifest, family=family)
