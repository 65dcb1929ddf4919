"""A demo: what its dry run prints, and which cells of its night are errors."""

from __future__ import annotations

import json
import os

import pytest

from rocwheel import dist
from rocwheel.base.store.opening import open_store
from rocwheel.cli import main
from rocwheel.night.standing import CellStanding
from rocwheel.records.verdict import State
from rocwheel.release.ledger.nights import Cell, Phase
from rocwheel.tools import demo

CELLS = (
    ("build.x", ""), ("gate.x.a", "a"), ("promote.x.a", "a"),
    ("gate.x.b", "b"), ("promote.x.b", "b"), ("page", ""),
)  # fmt: skip


def stood(*failed: str, cells: tuple[tuple[str, str], ...] = CELLS) -> dict[str, CellStanding]:
    """Cells that ended, these of them with a failure."""
    return {
        name: CellStanding(
            cell=Cell(name=name, kind=name.partition(".")[0], argv=(), family=family),
            phase=Phase.ENDED,
            state=State.FAIL if name in failed else State.PASS,
            reason="because" if name in failed else "",
            attempts=(),
        )
        for name, family in cells
    }


@pytest.mark.parametrize(
    ("failed", "said"),
    [
        ((), ""),
        (("gate.x.b", "promote.x.b"), ""),
        (("gate.x.b", "promote.x.b", "page"), "page"),
        (("gate.x.a", "promote.x.b"), "gate.x.a"),
        (("build.x", "gate.x.b"), "build.x"),
    ],
)
def test_what_one_family_of_several_failed_is_no_error(tmp_path, failed, said):
    error = demo.failure(stood(*failed), open_store(tmp_path.as_uri()))
    assert (str(error) if error else "") == (f"{said}: fail: because" if said else "")


def test_the_only_familys_failure_is_one(tmp_path):
    alone = tuple(cell for cell in CELLS if cell[1] != "b")
    error = demo.failure(stood("gate.x.a", cells=alone), open_store(tmp_path.as_uri()))
    assert str(error) == "gate.x.a: fail: because"


@pytest.mark.integration
@pytest.mark.needs("bazel", "dpkg-query")
def test_the_dry_run_makes_the_tarball_that_its_later_lines_unpack(here):
    asked = dist.Request(
        therock="", wheelhouse=here.cwd / "wheelhouse", cache=here.cache, home=here.home,
        cwd=here.cwd, environ={"PATH": os.environ["PATH"], "HOME": str(here.cwd)},
    )  # fmt: skip
    lines = list(demo.dry_run(asked, here, wheels_only=True))
    making = next(n for n, line in enumerate(lines) if "make_therock.py" in line)
    unpacking = next(n for n, line in enumerate(lines) if line.startswith("ROCM_ROOT="))
    tarball = str(here.cache / "demo" / demo.TARBALL)
    assert tarball in lines[making]
    assert tarball in lines[unpacking]
    assert making < unpacking < next(n for n, line in enumerate(lines) if " build " in line)
    assert not (here.cache / "demo").exists()


# `demo --executor docker` needs no other command first: it finds its image, or makes it.


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
    assert first.endswith(" image build --container-engine docker --recipe debian_12")
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
    assert line.endswith(" image build --container-engine docker --recipe debian_12 --base own:1")
    assert main(["demo", "--executor=docker", "--base=own:1"]) == 8
    assert "own:1" in capsys.readouterr().err
    assert "pull debian@sha256:" not in log.read_text()
