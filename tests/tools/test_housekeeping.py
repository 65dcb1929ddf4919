"""The cache: what is there, what goes, and what stays because somebody uses it."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

from rocwheel.base import files
from rocwheel.base.errors import ConfigError, HostError
from rocwheel.base.values import replace
from rocwheel.base.versions import byte_count
from rocwheel.cli import main
from rocwheel.tools import housekeeping

DAY = 86400


def put(cache: Path, name: str, *, mib: int, days: float) -> Path:
    path = cache / name
    path.mkdir(parents=True)
    (path / "data").write_bytes(b"x" * (mib << 20))
    for item in (path / "data", path):
        os.utime(item, (time.time() - days * DAY,) * 2)
    return path


@pytest.fixture
def cache(tmp_path):
    put(tmp_path, "environments/old", mib=1, days=50)
    put(tmp_path, "sources/jax/abc", mib=2, days=20)
    tree = put(tmp_path, "rocm/trees-3/aaaa", mib=3, days=40)
    (tree / "data").chmod(0o444)
    tree.chmod(0o555)
    (tmp_path / "not-ours").mkdir()
    return tmp_path


def names(found):
    return [item.path.name for item in found]


def test_everything_is_listed_with_size_and_last_use(cache):
    found = housekeeping.look(cache)
    assert names(found) == ["old", "aaaa", "abc"]
    assert [round(item.bytes / (1 << 20)) for item in found] == [1, 3, 2]
    assert [round((time.time() - item.used) / DAY) for item in found] == [50, 40, 20]


def test_old_things_go_and_young_ones_stay(cache):
    found = housekeeping.look(cache)
    chosen = housekeeping.choose(found, now=time.time(), older=30 * DAY, most=None)
    assert names(housekeeping.remove(cache, chosen)) == ["old", "aaaa"]
    assert names(housekeeping.look(cache)) == ["abc"]
    assert (cache / "not-ours").is_dir()


def test_down_to_a_size_the_longest_unused_go_first(cache):
    found = housekeeping.look(cache)
    chosen = housekeeping.choose(found, now=time.time(), older=None, most=3 << 20)
    assert names(chosen) == ["old", "aaaa"]


@pytest.mark.parametrize("place", ["bazel", "bazel-in-containers"])
def test_output_bases_of_the_host_and_of_containers_are_things_like_others(cache, place):
    """They are the largest things that a build leaves."""
    put(cache, f"{place}/0123456789abcdef/execroot", mib=4, days=60)
    found = housekeeping.look(cache)
    assert "0123456789abcdef" in names(found)
    chosen = housekeeping.choose(found, now=time.time() + 90 * DAY, older=80 * DAY, most=None)
    assert "0123456789abcdef" in names(housekeeping.remove(cache, chosen))
    assert not (cache / place / "0123456789abcdef").exists()


def test_a_tree_under_a_lease_stays(cache):
    with files.locked(cache / "rocm" / "locks" / "aaaa.lock", shared=True):
        chosen = housekeeping.choose(housekeeping.look(cache), now=time.time(), older=0, most=None)
        assert "aaaa" not in names(housekeeping.remove(cache, chosen))
    assert (cache / "rocm/trees-3/aaaa").is_dir()


def test_what_a_running_build_shares_with_others_stays(cache):
    for name in ("logs", "bazel-disk", "demo/abc"):
        put(cache, name, mib=1, days=60)
    with housekeeping.using(cache):
        found = housekeeping.look(cache)
        assert {item.path.name for item in found if item.in_use} == {
            "logs", "bazel-disk", "abc",
        }  # fmt: skip
        free = [replace(item, in_use=False) for item in found]  # looked at before the build began
        assert names(housekeeping.remove(cache, free)) == ["old", "aaaa"]
    chosen = housekeeping.choose(housekeeping.look(cache), now=time.time(), older=0, most=None)
    assert "bazel-disk" in names(housekeeping.remove(cache, chosen))


def test_an_output_base_whose_server_runs_stays(cache):
    server = cache / "bazel" / "base" / "server"
    server.mkdir(parents=True)
    (server / "server.pid.txt").write_text(str(os.getpid()))
    found = {item.path.name: item for item in housekeeping.look(cache)}
    assert found["base"].in_use
    assert "base" not in names(
        housekeeping.choose(list(found.values()), now=time.time() + DAY, older=0, most=None)
    )


def test_the_commands_say_what_they_did(cache, capsys):
    where = f"--cache-dir={cache}"
    assert main(["cache", "list", where]) == 0
    assert "environments/old" in capsys.readouterr().out
    assert main(["cache", "clean", "--older-than=30", "--dry-run", where]) == 0
    assert "2 things" in capsys.readouterr().out
    assert (cache / "environments/old").is_dir()
    assert main(["cache", "clean", "--older-than=30", where]) == 0
    assert not (cache / "environments/old").exists()
    assert main(["cache", "clean", where]) == 2


def test_a_size_without_a_unit_is_refused():
    """`--cache-budget 60` once meant 60 bytes, and removed everything."""
    with pytest.raises(ConfigError, match="a size without a unit") as caught:
        byte_count("60")
    assert caught.value.hint == "write for example 60G"
    assert byte_count("1.5 GiB") == 3 << 29
    assert byte_count("60 B") == 60
    assert byte_count("0") == 0


def test_what_cannot_be_written_can_be_looked_at():
    """Of another user, or on a read-only disk."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        cache = Path(folder, "cache")
        put(cache, "logs", mib=1, days=60)
        housekeeping.using(cache).close()
        (cache / housekeeping.IN_USE).chmod(0o444)
        user = os.geteuid()
        os.seteuid(user or 65534)  # root may write everywhere
        try:
            with pytest.raises(PermissionError):
                (cache / housekeeping.IN_USE).write_text("")
            assert [item.in_use for item in housekeeping.look(cache)] == [False]
            with housekeeping.using(cache):  # which is held for reading
                assert [item.in_use for item in housekeeping.look(cache)] == [True]
        finally:
            os.seteuid(user)


def test_a_cache_that_cannot_be_made_is_one_error_with_a_setting_that_there_is(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match="Not a directory") as refused:
        housekeeping.using(tmp_path / "file" / "cache")
    assert "ROCWHEEL_CACHE_DIR" in refused.value.hint
