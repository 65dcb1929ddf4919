"""CPUs, memory and kills as control groups of both versions say them, and the thread pools."""

from __future__ import annotations

import pytest

from rocwheel.base.host import cgroup


def group(root, files, line="0::/\n"):
    for name, text in {"proc/self/cgroup": line, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "line", "expected"),
    [
        ({}, "0::/\n", 128),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, "0::/\n", 128),
        ({"sys/fs/cgroup/cpu.max": "250000 100000\n"}, "0::/\n", 2),
        ({"sys/fs/cgroup/cpu.max": "50000 100000\n"}, "0::/\n", 1),
        # a limit on an outer group holds for the inner one
        (
            {"sys/fs/cgroup/a/cpu.max": "400000 100000\n", "sys/fs/cgroup/a/b/cpu.max": "max 1\n"},
            "0::/a/b\n",
            4,
        ),
        # a container whose /proc names the host's path
        ({"sys/fs/cgroup/cpu.max": "300000 100000\n"}, "0::/kubepods/pod7/c1\n", 3),
        (
            {
                "sys/fs/cgroup/cpu,cpuacct/d/cpu.cfs_quota_us": "600000\n",
                "sys/fs/cgroup/cpu,cpuacct/d/cpu.cfs_period_us": "100000\n",
            },
            "4:cpu,cpuacct:/d\n3:memory:/d\n",
            6,
        ),
        (
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            "4:cpu:/\n",
            128,
        ),
    ],
)
def test_cpus_are_those_of_the_control_group(tmp_path, files, line, expected):
    assert cgroup.cpus(group(tmp_path, files, line), online=128) == expected


def test_affinity_may_be_less_than_the_quota(tmp_path):
    files = {"sys/fs/cgroup/cpu.max": "800000 100000\n"}
    assert cgroup.cpus(group(tmp_path, files), online=2) == 2


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ("4", 4), (" 16 ", 16), ("2.5", 2), ("3500m", 3), ("200", 128),
        ("", 128), ("0", 128), ("500m", 128), ("-3", 128), ("many", 128), ("4 cores", 128),
    ],
)  # fmt: skip
def test_what_a_pod_requested_is_what_it_has_and_nonsense_is_nothing(tmp_path, requested, expected):
    root = group(tmp_path, {})
    assert cgroup.cpus(root, online=128, requested=requested) == expected
    quota = group(tmp_path / "quota", {"sys/fs/cgroup/cpu.max": "300000 100000\n"})
    assert cgroup.cpus(quota, online=128, requested=requested) == min(3, expected)


def test_kills_for_memory_are_counted(tmp_path):
    assert cgroup.oom_kills(tmp_path) == 0
    two = group(tmp_path / "v2", {"sys/fs/cgroup/memory.events": "low 0\noom 2\noom_kill 2\n"})
    assert cgroup.oom_kills(two) == 2
    old = {"sys/fs/cgroup/memory/memory.oom_control": "under_oom 0\noom_kill 5\n"}
    assert cgroup.oom_kills(group(tmp_path / "v1", old, "3:memory:/\n")) == 5


def test_thread_pools_share_the_cpus():
    assert set(cgroup.thread_env(3).values()) == {"3"}
    assert set(cgroup.thread_env(0).values()) == {"1"}


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({"sys/fs/cgroup/memory.max": "1048576\n"}, "0::/\n"),
        ({"sys/fs/cgroup/a/memory.max": "1048576\n", "sys/fs/cgroup/a/b/x": ""}, "0::/a/b\n"),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "1048576\n"}, "3:memory:/\n"),
    ],
)
def test_memory_is_what_the_control_group_allows(tmp_path, files, line):
    assert cgroup.memory(group(tmp_path / "limited", files, line)) == 1 << 20
    free = group(tmp_path / "free", {"sys/fs/cgroup/memory.max": "max\n"})
    assert cgroup.memory(free) == cgroup.memory(tmp_path / "none") > 1 << 20
