"""No circles of imports; import-linter checks the layers."""

from __future__ import annotations

import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp


def test_no_modules_import_each_other_in_a_circle():
    """Imports for annotations and within functions count, too."""
    graph = grimp.build_graph("rocwheel", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert len(imports) > 100
    TopologicalSorter(imports).prepare()  # raises CycleError, with the circle


def test_the_runner_refuses_words_it_does_not_know_before_any_check():
    runner = Path(__file__).parents[1] / "run.py"
    done = subprocess.run(
        [sys.executable, runner, "--nope"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 4
    assert "unrecognized arguments: --nope" in done.stderr
    assert "ruff" not in done.stdout
