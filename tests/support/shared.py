"""A store with one log for several families: the room's functions on it, and what its users see."""

from __future__ import annotations

import copy
import json
from pathlib import Path

from support.trust import Keyring
from support.wheelset import FAMILY, WHO, Shop, make_set, pass_gate

import amdgpu_family_matrix as matrix
from rocwheel.base.choices import ALL
from rocwheel.base.values import replace
from rocwheel.records.manifest import Manifest
from rocwheel.release import operations, promote, retention, stage, withdraw
from rocwheel.release.index.channels import Retention
from rocwheel.release.index.page import links
from rocwheel.release.ledger.state import Action

X, Y = FAMILY, matrix.family("gfx1151")  # of one GPU each
Z = matrix.family("gfx1153")
BY_NAME = {family.name: family for family in (X, Y, Z)}


class SharedShop(Shop):
    """A channel whose sets lie below `all`, with an index for each of their families."""

    def __init__(self, url: str, console, **changes) -> None:
        super().__init__(url, console, **{"one_build": True, "name": "try", **changes})
        ((self.staging, self.release),) = self.channel.pairs(self.store, ALL, 7)

    def requiring(self, folder: Path, *roles: str) -> Keyring:
        """Let promotions need signatures of these roles; return the keys."""
        keys = Keyring(folder / "keys")
        trust = keys.trust(*roles)
        self.channel = replace(self.channel, trust=replace(trust, rules={"try": trust.rules[""]}))
        return keys

    def made(self, folder: Path, *families: matrix.Family, **options) -> Manifest:
        """A staged set of these families; without any of X and Y."""
        families = families or (X, Y)
        names = tuple(sorted(family.name for family in families))
        gfx = tuple(target for family in families for target in family.targets)
        manifest = make_set(folder, families=names, gfx=gfx, **options)
        planned = stage.plan(folder, None, self.channel, self.store, who=WHO)
        stage.apply(planned, console=self.console)
        return manifest

    def gate(self, manifest: Manifest, *families: matrix.Family) -> None:
        """Let it pass on these."""
        for family in families:
            pass_gate(self.staging.of(family.name), manifest, family=family)

    def promote_plan(self, manifest: Manifest, *families: matrix.Family, **options):
        named = families or [BY_NAME[name] for name in manifest.families]
        options = {"passes_held": not families, **options}
        return promote.plan(manifest, named, self.channel, self.store, who=WHO, **options)

    def release_for(self, manifest: Manifest, *families: matrix.Family) -> dict[str, str]:
        """Promote, and return the state of each family."""
        plan = self.promote_plan(manifest, *families)
        if plan.state == "ready":
            promote.apply(plan, console=self.console)
        document = plan.to_json(state="published" if plan.state == "ready" else "")
        return {name: item["state"] for name, item in document["families"].items()}

    def take(
        self, action: Action, manifest: Manifest, *families: matrix.Family, reason: str = "wrong"
    ) -> None:
        """Roll back or restore for these; none: for all."""
        who, names = withdraw.with_reason(WHO, reason), [family.name for family in families]
        operations.perform(
            withdraw.plan(self.release, action, who=who, set_id=manifest.sha256, families=names)
        )

    def drop(self, manifest: Manifest) -> None:
        """Prune a released set."""
        known = (item for item in self.entries(self.release) for item in item.brings)
        others = tuple({item.set for item in known} - {manifest.sha256})
        shop = copy.copy(self)
        keep = Retention(release_days=1, keep_newest=0, pinned=others)
        shop.channel = replace(self.channel, retention=keep)
        retention.apply(shop.prune_plan(self.release, days=365))

    def index(self, view: str, *, staged: bool = False):
        """The place whose pages a user of this index reads."""
        return (self.staging if staged else self.release).of(view)

    def seen(self, view: str, *, staged: bool = False) -> set[str]:
        """What an installer finds in an index, the same in each form, each where it leads to."""
        index, shown = self.index(view, staged=staged), set()
        info = self.store.info(index.json(""))
        if info is None:
            return shown
        root = json.loads(self.store.read(index.json(""))[0])
        for project in (item["name"] for item in root["projects"]):
            data, _ = self.store.read(index.json(project))
            files = json.loads(data)["files"]
            folder = index.json(project).rpartition("/")[0]
            for item in files:
                key = str(
                    Path("/", folder, item["url"].partition("#")[0].replace("%2B", "+")).resolve()
                )[1:]
                there = self.store.info(key)
                assert there, f"{key}: {view} leads to nothing"
                assert self.store.digest(there) == item["hashes"]["sha256"], key
                shown.add(item["filename"])
            for view_key in index.views(project, folder_keys=False):
                html = links(self.store.read(view_key)[0])
                assert {(i.filename, i.url) for i in html} == {
                    (i["filename"], i["url"].partition("#")[0]) for i in files
                }
        return shown

    def wheels(self) -> list[str]:
        """The keys of all wheels that are stored anywhere."""
        return [item.key for item in self.store.keys("") if item.key.endswith(".whl")]


def names(manifest: Manifest) -> set[str]:
    return {wheel.filename for wheel in manifest.built}
