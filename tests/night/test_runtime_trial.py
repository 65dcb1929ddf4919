"""How the gate is started in an image: on the image's Python, with what this process may use."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rocwheel.base.versions import PythonVersion
from rocwheel.night import runtime_trial as trial


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
    assert trial._reason(verdict, results) == expected
    nothing = SimpleNamespace(failures=[], collect_errors=[])
    assert trial._reason(verdict, nothing) == "1 test failed"
