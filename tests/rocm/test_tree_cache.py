"""The cache: one run at a time per source, trees in use stay, the rest goes by last use."""

from __future__ import annotations

import os
import threading

import pytest
from support.tarballs import FACTS

from rocwheel.base import files
from rocwheel.base.download import Fingerprint
from rocwheel.base.files import Lock, try_locked
from rocwheel.rocm.tree_cache import Cache, CachedTree, FetchedSource


def never() -> None:
    pytest.fail("nobody else holds it")


@pytest.fixture
def cache(tmp_path):
    cache = Cache(tmp_path)
    cache.prepare()
    return cache


def put(cache: Cache, letter: str, *, size: int = 100, used: float = 0.0, source: str = "") -> Lock:
    """A tree of `size` bytes, read-only as real ones are."""
    sha256 = letter * 64
    with cache.claim(source or f"source-{letter}", waiting=never) as staging:
        (staging / "tree/lib").mkdir(parents=True)
        (staging / "tree/lib/file").write_bytes(bytes(size))
        (staging / "tree/lib").chmod(0o555)
        (staging / "tree").chmod(0o555)
        entry = CachedTree(
            sha256=sha256, source="s", packed=1, files=1, bytes=size, links=(), facts=FACTS
        )
        _, _, lease = cache.publish(staging, entry)
    if used:
        os.utime(cache.folder / "locks" / f"{sha256}.lock", (used, used))
    return lease


def trees(cache: Cache) -> str:
    return "".join(sorted(path.name[0] for path in cache.trees.iterdir()))


def trim(cache: Cache, budget: int) -> list[str]:
    gone: list[str] = []
    cache.trim(budget=budget, removed=lambda name, _size: gone.append(name[0]))
    return gone


def test_a_published_tree_is_leased_with_its_facts(cache):
    put(cache, "a").close()
    held = cache.lease("a" * 64)
    assert held is not None
    entry, path, lease = held
    assert (entry.facts, entry.bytes) == (FACTS, 100)
    assert (path / "lib/file").stat().st_size == 100
    lease.close()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema": 99, "sha256": "x"}'])
def test_a_tree_whose_entry_cannot_be_read_does_not_count(cache, text):
    put(cache, "a").close()
    (cache.trees / ("a" * 64) / "entry.json").write_text(text)
    assert cache.lease("a" * 64) is None
    put(cache, "a").close()  # and is replaced
    assert cache.lease("a" * 64) is not None


def test_the_longest_unused_tree_goes_first(cache):
    for letter, used in (("a", 300.0), ("b", 100.0), ("c", 200.0)):
        put(cache, letter, used=used).close()
    assert trim(cache, 250) == ["b"]
    assert trim(cache, 100) == ["c"]
    assert trees(cache) == "a"


def test_partial_downloads_count_and_go_too(cache):
    part = cache.partial("k" * 32)
    part.write_bytes(bytes(500))
    part.with_suffix(".json").write_text("{}")
    os.utime(part, (50.0, 50.0))
    put(cache, "a").close()
    assert trim(cache, 300) == ["k"]
    assert list(part.parent.iterdir()) == []
    assert trees(cache) == "a"


def test_a_partial_download_in_progress_stays(cache):
    cache.partial("key").write_bytes(bytes(500))
    with cache.claim("key", waiting=never) as staging:
        assert trim(cache, 0) == []
        assert staging.is_dir(), "what another run unpacks is left alone, too"
    assert trim(cache, 0) == ["k"]


def test_what_a_killed_run_left_is_removed(cache):
    left = cache.folder / "staging/killed/tree"
    left.mkdir(parents=True)
    (left / "file").write_bytes(b"half")
    left.chmod(0o555)
    trim(cache, 10**9)
    assert list((cache.folder / "staging").iterdir()) == []


def test_a_claim_leaves_nothing_after_a_failure(cache):
    def fail() -> None:
        with cache.claim("key", waiting=never) as staging:
            (staging / "tree").mkdir()
            (staging / "tree").chmod(0o500)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list((cache.folder / "staging").iterdir()) == []


def test_the_second_claim_says_that_it_waits(cache):
    waits, done = threading.Event(), threading.Event()

    def second() -> None:
        with cache.claim("key", waiting=waits.set):
            done.set()

    thread = threading.Thread(target=second)
    with cache.claim("key", waiting=never):
        thread.start()
        assert waits.wait(240)
        assert not done.is_set()
    thread.join(240)
    assert done.is_set()


def test_what_vanishes_while_it_is_counted_is_no_error(cache):
    """Another run trims and finishes downloads between this one's look and its touch."""
    put(cache, "a", used=1).close()
    put(cache, "b", used=2).close()
    cache.partial("c").write_bytes(b"part")
    other = Cache(cache.folder.parent)
    gone: list[str] = []

    def told(name: str, _count: int) -> None:
        gone.append(name[0])
        trim(other, 0)

    cache.trim(budget=0, removed=told)
    assert gone == ["a"]
    assert trees(cache) == ""


def test_what_a_killed_trim_left_does_not_stop_the_next(cache):
    put(cache, "a", used=1).close()
    with try_locked(cache.folder / "locks" / f"{'a' * 64}.lock") or pytest.fail("held"):
        pass
    leftover = cache.folder / "staging" / ("a" * 64)
    (leftover / "tree").mkdir(parents=True)
    holder = files.locked(cache.folder / "locks" / f"{'a' * 64}.lock", shared=True)
    assert trim(cache, 0) == []
    holder.close()
    (leftover / "tree").mkdir(parents=True, exist_ok=True)
    assert cache._removed("a" * 64)  # as if the leftover came after the first look
    assert trees(cache) == ""


def test_a_source_is_recalled_as_it_was(cache):
    remote = Fingerprint(size=5, etag='"x"', modified="m")
    seen = FetchedSource(remote=remote, sha256="a" * 64, source="https://host/x")
    cache.remember("key", seen)
    assert cache.recall("key") == seen
    assert cache.recall("other") is None
    (cache.folder / "sources/key.json").write_text('{"remote": {"colour": 1}}')
    assert cache.recall("key") is None


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (Fingerprint(size=1, etag='"a"'), Fingerprint(size=1, etag='"a"'), True),
        (Fingerprint(size=1, etag='"a"'), Fingerprint(size=2, etag='"a"'), False),
        (
            Fingerprint(size=1, etag='"a"', modified="m"),
            Fingerprint(size=1, etag='"b"', modified="m"),
            False,
        ),
        (Fingerprint(size=1, etag='W/"a"'), Fingerprint(size=1, etag='"a"'), True),
        (Fingerprint(size=1, modified="m"), Fingerprint(size=1, etag='"b"', modified="m"), True),
        (Fingerprint(size=1), Fingerprint(size=1), False),
    ],
)
def test_files_are_the_same_only_when_that_is_certain(one, two, same):
    assert one.same(two) is same
    assert two.same(one) is same
