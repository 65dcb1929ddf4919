"""A runtime image: what is refused first, how the gate starts in it, in which order it is pushed."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace

import pytest
from support.wheelset import FAMILY, Shop, make_set

from rocwheel.cli import main
from rocwheel.night import image_job as job

NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)


@pytest.mark.parametrize("where", ["a test", "collection"])
def test_the_reason_ends_with_the_line_that_names_the_error(where):
    text = "tests/x.py:3: in test\n    import y\nE   ImportError: libhipblas.so.3: no such file\n"
    failed = SimpleNamespace(attempts=[SimpleNamespace(message=text)])
    results = SimpleNamespace(
        failures=[failed] if where == "a test" else [],
        collect_errors=[] if where == "a test" else [SimpleNamespace(message=text)],
    )
    verdict = SimpleNamespace(reason="1 test failed")
    expected = "1 test failed; E ImportError: libhipblas.so.3: no such file"
    assert job.reason_with_cause(verdict, results) == expected
    nothing = SimpleNamespace(failures=[], collect_errors=[])
    assert job.reason_with_cause(verdict, nothing) == "1 test failed"


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


@pytest.mark.integration
def test_a_plan_names_image_set_base_and_suites(asked):
    status, printed = asked("--python=3.12", "--unreleased")
    assert status == 0
    lines = dict(line.split(": ", 1) for line in printed.splitlines())
    assert lines["image"] == "rocm/jax-staging:rocm7.10.0-jax0.9.1-py3.12"
    assert lines["base"].startswith("ubuntu@sha256:")
    assert (lines["CPython"], lines["suites"]) == ("3.12, python3.12", "smoke")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--python=3.12",), "not released"),
        (("--python=3.12", "--unreleased", "--push=here.io", "--tag=latest"), "leave --tag out"),
        (("--python=3.10", "--unreleased"), "no CPython 3.10 for this base"),
        (("--python=3.12", "--unreleased", "--recipe=jaxx"), "'jaxx': not in ci/images.yaml"),
    ],
)
def test_what_cannot_be_made_is_refused_before_an_engine_is_asked(asked, options, problem):
    status, printed = asked(*options)
    assert status == 3
    assert problem in printed
