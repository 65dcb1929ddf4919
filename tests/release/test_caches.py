"""Copies of pages on their way to installers: what must wait until none is left that is too old."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.wheelset import WHO, Shop, wheel_key

from rocwheel.base.store.file import FileStore
from rocwheel.base.values import replace
from rocwheel.release import audit, operations, retention
from rocwheel.release.index import publish
from rocwheel.release.index.channels import Retention
from rocwheel.release.ledger.state import Action

pytestmark = pytest.mark.integration

SECONDS = 60


class Clock:
    """Time that passes only while somebody sleeps, and what happened when."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.changes: list[tuple[float, str]] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now

    def when(self, project: str) -> list[float]:
        return [at for at, key in self.changes if key.split("/")[-2] == project]


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    for module in (publish, retention):
        monkeypatch.setattr(module, "time", clock)
    replace_, delete, read = FileStore.replace, FileStore.delete, FileStore.read

    def put(self, key, body, /, **options) -> None:
        replace_(self, key, body, **options)
        clock.changes.append((clock.now, key))

    def gone(self, key, /) -> None:
        delete(self, key)
        clock.changes.append((clock.now, f"deleted/{key.rpartition('/')[2]}"))

    def seen(self, key, /):
        """The store's own clock: the page was changed when we changed it."""
        data, info = read(self, key)
        changed = [at for at, name in clock.changes if name == key]
        if not changed:
            return data, info
        age = timedelta(seconds=clock.now - changed[-1])
        return data, replace(info, modified=info.now - age)

    monkeypatch.setattr(FileStore, "replace", put)
    monkeypatch.setattr(FileStore, "delete", gone)
    monkeypatch.setattr(FileStore, "read", seen)
    return clock


@pytest.fixture
def shop(tmp_path, console) -> Shop:
    cached = f"public, max-age={SECONDS}"
    return Shop((tmp_path / "store").as_uri(), console, page_cache=cached)


def test_a_plugin_is_listed_when_no_copy_without_its_pjrt_is_left(shop, tmp_path, clock) -> None:
    shop.released(tmp_path / "a", pythons=("3.12",))
    first = max(*clock.when("jax-rocm7-pjrt"), *clock.when("jaxlib"))
    assert min(clock.when("jax-rocm7-plugin")[-2:]) >= first + SECONDS


def test_a_pjrt_leaves_when_no_copy_with_its_plugin_is_left(shop, tmp_path, clock) -> None:
    manifest = shop.released(tmp_path / "a", pythons=("3.12",))
    clock.changes.clear()
    shop.change(Action.ROLLBACK, manifest)
    last = max(clock.when("jax-rocm7-plugin"))
    assert min(*clock.when("jax-rocm7-pjrt"), *clock.when("jaxlib")) >= last + SECONDS


def test_whoever_completes_what_was_stopped_waits_as_long(shop, tmp_path, clock) -> None:
    manifest = shop.gated(tmp_path / "a", pythons=("3.12",))
    plan = shop.plan(manifest)
    plan.prepare(plan.start, None)
    clock.changes.clear()

    class Stopped(BaseException):
        pass

    put = publish._put

    def stop(place, seen):
        if "plugin" in seen.form.key:
            raise Stopped
        return put(place, seen)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "_put", stop)
        with pytest.raises(Stopped):
            operations.perform(plan)
    first = max(clock.when("jax-rocm7-pjrt"))
    clock.sleep(5 - SECONDS)  # killed five seconds after, wherever it stood
    shop.promote(manifest)
    assert len(clock.when("jax-rocm7-pjrt")) == 4  # of the family, and of its last good: not again
    assert min(clock.when("jax-rocm7-plugin")) >= first + SECONDS


def test_bytes_are_deleted_when_no_copy_that_lists_them_is_left(shop, tmp_path, clock) -> None:
    shop.staged(tmp_path / "a", pythons=("3.12",))
    shop.channel = replace(shop.channel, retention=Retention(staging_days=1))
    clock.changes.clear()
    shop.prune(days=2)
    pages = max(at for at, key in clock.changes if "/index." in key)
    assert min(clock.when("deleted")) >= pages + SECONDS


def test_what_asks_each_time_is_not_waited_for(tmp_path, console, clock) -> None:
    shop = Shop((tmp_path / "store").as_uri(), console)
    shop.released(tmp_path / "a", pythons=("3.12",))
    assert clock.now == 1000.0


def test_copies_live_as_long_as_the_page_was_stored_with_not_as_the_channel_says_now(
    tmp_path, console, clock, monkeypatch
) -> None:
    """The channel's max-age was lowered; caches hold what they were given before."""
    shop = Shop((tmp_path / "store").as_uri(), console)
    shop.released(tmp_path / "a", pythons=("3.12",))
    read = FileStore.read

    def stored(self, key, /):
        data, info = read(self, key)
        return data, replace(info, cache_control=f"public, max-age={SECONDS}")

    monkeypatch.setattr(FileStore, "read", stored)
    clock.changes.clear()
    shop.released(tmp_path / "b", jax="0.9.2", pythons=("3.12",))
    release = [(at, key) for at, key in clock.changes if key.startswith("v2/")]
    first = max(at for at, key in release if "jax-rocm7-pjrt" in key)
    assert min(at for at, key in release if "jax-rocm7-plugin" in key) >= first + SECONDS


@pytest.mark.parametrize("command", ["prune", "repair"])
def test_deleting_waits_as_long_as_the_pages_were_stored_with(
    tmp_path, console, clock, monkeypatch, command
) -> None:
    """The channel's max-age was lowered since: copies that list a file outlived it."""
    shop = Shop((tmp_path / "store").as_uri(), console)
    manifest = shop.staged(tmp_path / "a", pythons=("3.12",))
    shop.channel = replace(shop.channel, retention=Retention(staging_days=1))
    wheel = shop.store.root / wheel_key(shop.staging, manifest.built[0].filename)
    data = wheel.read_bytes()
    if command == "repair":
        shop.prune(days=2)
        wheel.write_bytes(data)  # an upload that ended after all
    info = FileStore.info

    def stored(self, key, /):
        found = info(self, key)
        is_new = any(name == key for _, name in clock.changes)
        age = 0 if is_new and command == "prune" else SECONDS
        return found and replace(found, cache_control=f"public, max-age={age}")

    monkeypatch.setattr(FileStore, "info", stored)
    clock.changes.clear()
    before = clock.now
    if command == "prune":
        shop.prune(days=2)
    else:
        audit.repair(shop.staging, WHO)
    assert not wheel.exists()
    assert min(clock.when("deleted")) >= before + SECONDS


def test_prune_leaves_no_bytes_of_a_spent_name(shop, tmp_path, clock) -> None:
    """Whatever an upload that was stopped put back under it, sooner or later."""
    manifest = shop.staged(tmp_path / "a", pythons=("3.12",))
    folder = shop.store.root / shop.staging.key("")
    wheels = {path: path.read_bytes() for path in folder.glob("files/*/*.whl*")}
    assert len(wheels) == 2 * len(manifest.built)
    shop.channel = replace(shop.channel, retention=Retention(staging_days=1))
    for _ in range(2):
        shop.prune(days=2)
        assert not list(folder.glob("files/*/*.whl*"))
        for path, data in wheels.items():
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
