"""A runtime image: what is refused first, how the gate starts in it, in which order it is pushed."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime, timezone
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from support.wheelset import FAMILY, Shop, make_set

from rocwheel.base.errors import StoreError
from rocwheel.base.versions import PythonVersion
from rocwheel.cli import main
from rocwheel.night import image_job as job
from rocwheel.night import image_record as record
from rocwheel.release.operations import Who

NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)


@pytest.fixture
def steps(monkeypatch):
    """The steps of a push in the order they were taken; none of them is really taken."""
    taken: list[str] = []
    image = SimpleNamespace(reference="here/jax:1", digest="sha256:1")
    monkeypatch.setattr(record, "verdicts", lambda *_: {})
    monkeypatch.setattr(record, "refusals", lambda *_: ())
    monkeypatch.setattr(job, "ImageRecord", lambda **_: image)
    monkeypatch.setattr(job.registry, "push", lambda *_, **__: (MagicMock(), True))
    monkeypatch.setattr(record, "put", lambda *_: taken.append("record"))
    return taken


def push(tags):
    asked = SimpleNamespace(
        who=Who(by="ann", now=NOW, reason=""),
        options=SimpleNamespace(tags=tags), place=None, repository="here/jax",
        subject=MagicMock(tag="1"),
    )  # fmt: skip
    console = SimpleNamespace(step=lambda *_, **__: nullcontext(), info=lambda _: None)
    here = SimpleNamespace(now=lambda: NOW, console=console, environ={}, runner=None)
    return job._pushed(asked, MagicMock(), MagicMock(), None, here)


def test_an_image_is_recorded_once_its_moving_tags_name_it(steps, monkeypatch):
    moved = {"latest": True, "nightly": False}
    monkeypatch.setattr(job.registry, "point", lambda _, tag, *__: steps.append(tag) or moved[tag])
    document = push(("latest", "nightly"))
    assert steps == ["latest", "nightly", "record"]
    assert document == {
        "reference": "here/jax:1", "pull": "here/jax@sha256:1", "tags": ["latest"], "pushed": True,
    }  # fmt: skip


def test_an_image_whose_tag_cannot_be_moved_has_no_record_so_that_it_is_tried_again(
    steps, monkeypatch
):
    def refuse(*_, **__):
        raise StoreError("away", hint="")

    monkeypatch.setattr(job.registry, "point", refuse)
    with pytest.raises(StoreError):
        push(("latest",))
    assert steps == []


def test_the_gate_runs_on_the_images_python_with_the_masks_of_this_process():
    command = job.gate_command(
        "smoke",
        python=PythonVersion.parse("3.12"),
        family=SimpleNamespace(name="gfx94X-dcgpu"),
        mounted={job.TESTS},
        environ={"ROCR_VISIBLE_DEVICES": "3", "OTHER": "1"},
    )
    assert command.argv[:2] == ("/opt/venv/bin/python", "/rocwheel/tool/build/ci_build")
    assert "--installed=/opt/venv/bin/python" in command.argv
    assert "--jax-tests=/rocwheel/jax" in command.argv
    assert not any(word.startswith("--family-file") for word in command.argv)
    assert command.env["ROCR_VISIBLE_DEVICES"] == "3"
    assert "OTHER" not in command.env


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
