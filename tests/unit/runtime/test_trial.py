"""How the gate is started in an image: on the image's Python, with what this process may use."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from rocwheel.model import PythonVersion
from rocwheel.runtime import trial


def test_the_gate_runs_on_the_images_python_with_the_masks_of_this_process():
    asked = trial.Trial(
        plan=SimpleNamespace(subject=SimpleNamespace(python=PythonVersion.parse("3.12"))),
        image=None,
        family=SimpleNamespace(name="gfx94X-dcgpu"),
        families=None,
        suite=SimpleNamespace(name="smoke"),
        home=None,
        jax_tests=Path("/here/jax"),
        slots=Path("/run/lock/rocwheel"),
        masks={"ROCR_VISIBLE_DEVICES": "3"},
        folder=Path("/scratch"),
        output=Path("/out"),
    )
    command = trial._gate(asked)
    assert command.argv[:2] == ("/opt/venv/bin/python", "/rocwheel/tool/build/ci_build")
    assert "--installed=/opt/venv/bin/python" in command.argv
    assert "--jax-tests=/rocwheel/jax" in command.argv
    assert not any(word.startswith("--families") for word in command.argv)
    assert command.env["ROCR_VISIBLE_DEVICES"] == "3"


def test_the_line_that_says_what_failed_is_the_error():
    text = "tests/x.py:3: in test\n    import y\nE   ImportError: libhipblas.so.3: no such file\n"
    assert trial._last(text) == "E   ImportError: libhipblas.so.3: no such file"
    assert trial._last("") == ""
