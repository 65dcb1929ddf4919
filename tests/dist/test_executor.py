"""What is asked of the place a build runs in, before anything is started there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rocwheel.base.container import ContainerEngine, EngineKind
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import replace
from rocwheel.dist.build_request import Executor
from rocwheel.dist.executor import BuildEnvironment, container_spec
from rocwheel.image.registry import Found

ENGINE = ContainerEngine(
    kind=EngineKind.DOCKER,
    program="docker",
    version="20.10.24",
    architecture="amd64",
    root=Path("/var/lib/docker"),
    rootless=False,
)
IMAGE = Found(reference="x:1", identity="sha256:1", config="sha256:1")


def spec(tmp_path, executor, **environ):
    return container_spec(executor, ENGINE, IMAGE, cache=tmp_path, environ=environ)


def test_proxies_are_handed_on_when_somebody_asks(tmp_path):
    asked = {"HTTP_PROXY": "http://proxy:3128", "no_proxy": "localhost"}
    assert spec(tmp_path, Executor(pass_proxies=True), **asked).env == asked
    assert spec(tmp_path, Executor(), **asked).env == {}


@pytest.mark.parametrize("value", ["http://me:hunter2@proxy:3128", "me:hunter2@proxy:3128"])
def test_a_password_never_gets_into_the_environment_of_a_container(tmp_path, value):
    with pytest.raises(ConfigError, match="HTTPS_PROXY: has a user name or password") as refused:
        spec(tmp_path, Executor(pass_proxies=True), HTTPS_PROXY=value)
    assert "hunter2" not in f"{refused.value} {refused.value.hint}"


def test_a_dry_run_of_a_turn_shows_the_container_that_is_kept(tmp_path):
    executor = Executor(kind="docker", image="x:1", keep_minutes=30)
    kept = replace(spec(tmp_path, executor), keep_minutes=30)
    place = BuildEnvironment(executor=executor, spec=kept, image=IMAGE)
    nothing_runs = SimpleNamespace(capture=lambda _: "")
    same, (*files, start) = place.opened(nothing_runs)
    assert same == place
    assert "--detach" in start.argv
    assert any(str(kept.folder / "alive") in line.argv for line in files)
