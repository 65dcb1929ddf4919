"""What `runtime_images` would do, of a real set in a real store; the rest is in tests/e2e."""

from __future__ import annotations

import pytest
from support.wheelset import FAMILY, Shop, make_set

from rocwheel.cli import main

pytestmark = pytest.mark.integration


@pytest.fixture
def asked(tmp_path, console, capsys):
    """`runtime_images --dry-run` of a set that is only staged: its status and what it prints."""
    shop = Shop((tmp_path / "store").as_uri(), console)
    manifest = make_set(tmp_path / "wh", pythons=("3.12",))
    shop.stage(tmp_path / "wh")
    words = ("runtime_images", "--dry-run", f"--manifest={manifest.sha256}")
    place = (f"--family={FAMILY.name}", f"--store={shop.store.url}")

    def ask(*options: str) -> tuple[int, str]:
        status = main([*words, *place, *options])
        printed = capsys.readouterr()
        return status, printed.out if status == 0 else printed.err

    return ask


def test_a_plan_names_image_set_base_and_suites(asked):
    status, printed = asked("--python=3.12", "--unreleased")
    assert status == 0
    lines = dict(line.split(": ", 1) for line in printed.splitlines())
    assert lines["image"] == "rocm/jax-staging:rocm7.10.0-jax0.9.1-py3.12"
    assert lines["base"].startswith("ubuntu@sha256:")
    assert (lines["CPython"], lines["suites"]) == ("3.12, python3.12", "smoke")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--python=3.12",), "not released"),
        (("--python=3.12", "--unreleased", "--push=here.io", "--tag=latest"), "leave --tag out"),
        (("--python=3.13", "--unreleased"), "no CPython 3.13 for this base"),
        (("--python=3.12", "--unreleased", "--recipe=jaxx"), "'jaxx': not in ci/images.yaml"),
    ],
)
def test_what_cannot_be_made_is_refused_before_an_engine_is_asked(asked, options, problem):
    status, printed = asked(*options)
    assert status == 3
    assert problem in printed
