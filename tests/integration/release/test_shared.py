"""One set for several families: released for those that passed, from one copy of its wheels."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.shared import SharedShop, X, Y, Z, names
from support.tiers import merge_tries

from rocwheel.choices import ALL
from rocwheel.ledger.state import Action
from rocwheel.release import audit


@pytest.fixture
def shop(tmp_path: Path, console) -> SharedShop:
    return SharedShop((tmp_path / "store").as_uri(), console)


@pytest.fixture(params=merge_tries("file", "seaweedfs", of=["file", "seaweedfs"]))
def any_shop(request, servers, tmp_path, monkeypatch, console) -> SharedShop:
    if request.param == "file":
        return SharedShop((tmp_path / "store").as_uri(), console)
    for key, value in servers[request.param].environ().items():
        monkeypatch.setenv(key, value)
    return SharedShop(servers.fresh_url(request.param), console)


def sound(shop: SharedShop) -> None:
    for place in (shop.staging, shop.release):
        assert audit.check(place).problems == ()


def test_each_family_sees_what_passed_on_it(any_shop, tmp_path) -> None:
    shop = any_shop
    one = shop.made(tmp_path / "1", X, Y, Z)
    assert shop.seen(X.name, staged=True) == shop.seen(ALL, staged=True) == names(one)
    shop.gate(one, X, Z)
    assert shop.release_for(one) == {
        X.name: "published", Y.name: "blocked", Z.name: "published"
    }  # fmt: skip
    assert shop.seen(X.name) == shop.seen(Z.name) == names(one)
    assert shop.seen(Y.name) == shop.seen(ALL) == set()
    sound(shop)

    shop.gate(one, Y)
    before = {item.key: item.modified for item in shop.store.keys("") if ".whl" in item.key}
    assert shop.release_for(one) == {
        X.name: "nothing-to-do", Y.name: "published", Z.name: "nothing-to-do"
    }  # fmt: skip
    after = {item.key: item.modified for item in shop.store.keys("") if ".whl" in item.key}
    assert after == before
    assert shop.seen(Y.name) == shop.seen(ALL) == names(one)
    assert shop.release_for(one) == dict.fromkeys((X.name, Y.name, Z.name), "nothing-to-do")
    sound(shop)

    shop.take(Action.ROLLBACK, one, Y)
    assert shop.seen(X.name) == shop.seen(Z.name) == names(one)
    assert shop.seen(Y.name) == shop.seen(ALL) == set()
    shop.take(Action.RESTORE, one, Y)
    assert shop.seen(Y.name) == shop.seen(ALL) == names(one)
    sound(shop)
    # each wheel lies once in staging and once in the release
    folders = [key.rpartition("/")[0] for key in shop.wheels()]
    assert sorted(folders) == sorted([shop.staging.root, shop.release.root] * len(one.built))


def test_a_prune_is_of_all_families(shop, tmp_path) -> None:
    one = shop.made(tmp_path / "1")
    shop.gate(one, X, Y)
    shop.release_for(one)
    shop.take(Action.ROLLBACK, one, X)
    shop.drop(one)
    for view in (X.name, Y.name, ALL):
        assert shop.seen(view) == set()
    assert not [key for key in shop.wheels() if key.startswith(shop.release.root)]
    sound(shop)
