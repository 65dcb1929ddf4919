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
    assert first == "rocwheel image build --engine docker --recipe debian_12"
    asked = log.read_text()
    assert "label=" in asked
    assert "builder=debian_12" in asked
    assert "build " not in asked


def test_a_dry_run_says_from_what_the_image_is_made(log, capsys):
    assert main(["--dry-run", "demo", "--executor=docker", "--base=bare:12"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("--recipe debian_12 --base bare:12")
    line = ["demo", "--executor=docker", "--base=bare:12", "--build-network=host"]
    assert main(["--dry-run", *line]) == 0
    assert "--base bare:12 --build-network host" in capsys.readouterr().out.splitlines()[0]


def test_where_the_engine_cannot_pull_the_error_names_base(log, capsys):
    assert main(["demo", "--executor=docker"]) == 8
    assert "--base" in capsys.readouterr().err
    assert "pull debian@sha256:" in log.read_text()


@pytest.mark.parametrize("words", [[], ["--executor=docker", "--builder-image=own:1"]])
def test_a_base_of_no_image_is_refused(log, capsys, words):
    assert main(["demo", "--base=bare:12", *words]) == 3
    assert "--base: no image is made here" in capsys.readouterr().err
