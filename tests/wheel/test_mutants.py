"""One change to a wheel that works: `verify` refuses it where it cannot work any more, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import wheels
from support.mutants import BROKEN, SOUND, mutants

from rocwheel.base import yaml_file
from rocwheel.wheel.verify import verify
from rocwheel.wheel.verify.rules import Severity
from rocwheel.wheel.wheel_policy import WheelPolicy

POLICY = yaml_file.read(Path(__file__).parents[2] / "ci" / "wheel_policy.yaml", WheelPolicy)
MADE = {"pjrt": wheels.pjrt, "plugin": wheels.plugin, "jaxlib": wheels.jaxlib}


def may_ship(path: Path) -> bool:
    return all(item.severity is not Severity.ERROR for item in verify(path, policy=POLICY))


@pytest.fixture(params=MADE)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def test_what_cannot_work_may_not_ship(kind: str, tmp_path: Path) -> None:
    path = MADE[kind]().write(tmp_path)
    (tmp_path / "made").mkdir()
    judged = {
        title: may_ship(made) for title, made in mutants(path, tmp_path / "made", BROKEN[kind])
    }
    assert len(judged) == len(BROKEN[kind]) > 20
    assert [title for title, ships in judged.items() if ships] == []


def test_what_still_works_may_ship(kind: str, tmp_path: Path) -> None:
    path = MADE[kind]().write(tmp_path)
    (tmp_path / "made").mkdir()
    judged = {
        title: may_ship(made) for title, made in mutants(path, tmp_path / "made", SOUND[kind])
    }
    assert [title for title, ships in judged.items() if not ships] == []
