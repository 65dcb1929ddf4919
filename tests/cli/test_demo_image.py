"""`demo --executor docker` needs no other command first: it finds its image, or makes it."""

from __future__ import annotations

import json
import os

import pytest

from rocwheel.cli import main

INFO = {
    "ServerVersion": "24.0.7", "Architecture": "x86_64", "OSType": "linux",
    "DockerRootDir": "/var/lib/docker", "SecurityOptions": [],
}  # fmt: skip
# A client that answers and has no image, and no network: what is asked of it is noted.
CLIENT = """#!/bin/sh
echo "$*" >> {log}
case "$1" in
  info) echo '{info}' ;;
  images) ;;
  *) echo "Error response from daemon: no route to host" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def log(tmp_path, monkeypatch):
    client, log = tmp_path / "docker", tmp_path / "log"
    client.write_text(CLIENT.format(log=log, info=json.dumps(INFO)))
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.chdir(tmp_path)
    return log


@pytest.mark.parametrize("named", [[], ["--builder-image=search"]])
def test_a_dry_run_says_how_the_image_is_made(log, capsys, named):
    assert main(["--dry-run", "demo", "--executor=docker", *named]) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert first.endswith(" image build --engine docker --recipe debian_12")
    asked = log.read_text()
    assert "label=" in asked
    assert "builder=debian_12" in asked
    assert "build " not in asked


def test_where_the_engine_cannot_pull_the_error_names_base(log, capsys):
    assert main(["demo", "--executor=docker"]) == 8
    assert "choose another: --base" in capsys.readouterr().err
    assert "pull debian@sha256:" in log.read_text()


def test_the_base_of_the_image_can_be_named(log, capsys):
    assert main(["--dry-run", "demo", "--executor=docker", "--base=own:1"]) == 0
    line, *_ = capsys.readouterr().out.splitlines()
    assert line.endswith(" image build --engine docker --recipe debian_12 --base own:1")
    assert main(["demo", "--executor=docker", "--base=own:1"]) == 8
    assert "own:1" in capsys.readouterr().err
    assert "pull debian@sha256:" not in log.read_text()


@pytest.mark.parametrize("where", [[], ["--executor=docker", "--builder-image=own:2"]])
def test_a_base_that_no_image_would_be_made_of_is_refused(log, capsys, where):
    assert main(["demo", *where, "--base=own:1"]) == 2
    assert "--base: no image is made here; add --executor" in capsys.readouterr().err
    assert not log.exists() or "build " not in log.read_text()
