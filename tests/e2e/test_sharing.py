"""Two people who share a remote cache and nothing else: the second one compiles nothing."""

from __future__ import annotations

import json

import pytest
from e2e.conftest import World, stop_servers
from e2e.test_faults import WORKSPACE, arguments
from support import cache_server

pytestmark = [
    pytest.mark.needs("bazel", "clang-19", "cc", "nginx"),
    pytest.mark.slow,
    pytest.mark.xdist_group("demo"),
]


@pytest.mark.soak
def test_another_user_with_another_home_executes_no_action(demo, tmp_path):
    shared, _ = demo
    done = []
    with cache_server.nginx(tmp_path / "nginx") as url:
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            world = World(tmp_path / name, env={"HOME": str(tmp_path / name), "USER": name})
            done.append(
                world.run(
                    "--json",
                    *arguments(shared, WORKSPACE),
                    f"--rocm-dir={tmp_path}/rocm",
                    f"--remote-cache={url}",
                    "--remote-upload",
                )
            )
            stop_servers(world)
    first, second = done
    assert first.returncode == 0, first.stderr[-3000:]
    assert second.returncode == 0, second.stderr[-3000:]
    assert first.document["bazel"]["actions_executed"] > 0
    assert second.document["bazel"]["actions_executed"] == 0, json.dumps(second.document["bazel"])
    assert second.document["manifest_sha256"] == first.document["manifest_sha256"]
    assert "home folder" not in first.stderr
