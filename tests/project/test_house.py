"""No circles of imports; import-linter checks the layers."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_no_modules_import_each_other_in_a_circle():
    """Imports for annotations and within functions count, too."""
    graph = grimp.build_graph("rocwheel", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert len(imports) > 100
    TopologicalSorter(imports).prepare()  # raises CycleError, with the circle
