"""Engines that cannot be used: one error each, with a remedy.

The engine is a stand-in here, a script that says what the real ones say when they refuse: what a
daemon answers that is too old, elsewhere or for another machine cannot be had from the one in CI.
"""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest

from rocwheel.base.container import EngineKind, ask
from rocwheel.base.errors import HostError
from rocwheel.base.process import HostRunner

GOOD = {"ServerVersion": "20.10.24", "Architecture": "x86_64", "DockerRootDir": "/var/lib/docker"}
PODMAN = {"version": {"Version": "4.3.1"}, "host": {"arch": "amd64"}, "store": {"graphRoot": "/x"}}


@pytest.fixture
def engine(tmp_path):
    """A client that prints `out` or fails with `err`."""

    def make(name="docker", *, out="", err="", status=0):
        (tmp_path / "out").write_text(out)
        (tmp_path / "err").write_text(err)
        program = tmp_path / name
        program.write_text(
            f"#!/bin/sh\ncat {tmp_path}/out; cat {tmp_path}/err >&2; exit {status}\n"
        )
        program.chmod(0o755)
        runner = HostRunner({"PATH": f"{tmp_path}:/usr/bin:/bin"})
        return lambda **environ: ask(EngineKind(name), environ=environ, runner=runner)

    return make


def test_a_good_one_is_taken(engine):
    found = engine(out=json.dumps(GOOD))(DOCKER_HOST="unix:///x.sock", OTHER="1")
    assert (found.version, found.architecture, found.rootless) == ("20.10.24", "amd64", False)
    assert found.env == {"DOCKER_HOST": "unix:///x.sock"}
    assert str(found.command("ps")) == "DOCKER_HOST=unix:///x.sock docker ps"


@pytest.mark.parametrize(
    ("client", "builds"),
    [
        ({"Plugins": []}, True),  # before 23.0 the client itself had BuildKit
        ({"Version": "28.2.2", "Plugins": []}, False),
        ({"Version": "28.2.2", "Plugins": [{"Name": "compose"}]}, False),
        ({"Version": "28.2.2", "Plugins": [{"Name": "buildx"}]}, True),
        ({"Version": "28.2.2", "Plugins": [{"Name": "buildx", "Err": "exec format"}]}, False),
    ],
)
def test_a_client_without_buildx_is_refused_where_it_would_build(client, builds, engine):
    found = engine(out=json.dumps({**GOOD, "ClientInfo": client}))()
    with nullcontext() if builds else pytest.raises(HostError, match="no buildx") as refused:
        found.refuse_no_buildkit()
    assert builds or "docker-buildx" in refused.value.hint


def test_its_client_gets_no_password_that_a_job_keeps_beside(engine):
    """What the client is given is shown: in dry runs, hints and with --debug."""
    found = engine(out=json.dumps(GOOD))(
        DOCKER_HOST="unix:///x.sock", DOCKER_PASSWORD="hunter2", DOCKER_AUTH_CONFIG="{}"
    )
    assert found.env == {"DOCKER_HOST": "unix:///x.sock"}
    found = engine("podman", out=json.dumps(PODMAN))(
        CONTAINERS_CONF="/c", CONTAINER_REGISTRY_TOKEN="hunter2"
    )
    assert found.env == {"CONTAINERS_CONF": "/c"}


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({**GOOD, "ServerVersion": "19.03.1"}, "too old"),
        ({**GOOD, "ServerVersion": ""}, "too old"),
        ({**GOOD, "Architecture": "aarch64"}, "runs arm64"),
        ({"ServerErrors": ["Cannot connect to the Docker daemon at unix:///x"]}, "does not answer"),
        ({**PODMAN, "version": {"Version": "3.4.2"}}, r"podman 3\.4\.2: too old"),
        ({**PODMAN, "host": {"arch": "amd64", "serviceIsRemote": True}}, "on another machine"),
    ],
)
def test_an_engine_that_cannot_be_used_says_why(document, problem, engine):
    kind = "podman" if "host" in document else "docker"
    with pytest.raises(HostError, match=problem) as refused:
        engine(kind, out=json.dumps(document))()
    assert refused.value.hint


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("Cannot connect to the Docker daemon. Is the docker daemon running?", "does not answer"),
        ("failed to connect to the docker API at unix:///x; check if", "does not answer"),
        ("Got permission denied while trying to connect to the socket", "may not use it"),
        ("Error: crun: unknown cgroup version: cgroup: not supported", "control groups"),
        ("something else", "does not work"),
    ],
)
def test_what_a_client_says_becomes_an_error_with_a_remedy(said, problem, engine):
    with pytest.raises(HostError, match=problem) as refused:
        engine(err=said, status=1)()
    assert refused.value.hint


def test_no_client_at_all(tmp_path):
    with pytest.raises(HostError, match="docker: no such program"):
        ask(EngineKind.DOCKER, environ={}, runner=HostRunner({"PATH": str(tmp_path)}))


@pytest.mark.parametrize(
    ("name", "variable"), [("docker", "DOCKER_HOST"), ("podman", "CONTAINER_HOST")]
)
def test_an_engine_on_another_machine_is_refused_before_it_is_asked(name, variable, engine):
    with pytest.raises(HostError, match="on another machine"):
        engine(name, status=99)(**{variable: "ssh://somebody@elsewhere"})
