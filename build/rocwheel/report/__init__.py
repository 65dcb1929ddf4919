"""Reports of a suite's results: JSON for programs, JUnit for CI systems, one page for people.

Each is a function of the results and what they were judged to be; nothing is looked up again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocwheel.report import junit, page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocwheel.results import Fault, Results

JSON: Final = "results.json"
JUNIT: Final = "junit.xml"
HTML: Final = "report.html"
FILES: Final = (JSON, JUNIT, HTML)


def render(results: Results, found: Fault, libraries: Mapping[str, str]) -> dict[str, bytes]:
    """All reports by file name. `libraries` are those to show, each with why it cannot be seen."""
    return {
        JSON: results.to_bytes(),
        JUNIT: junit.render(results, found),
        HTML: page.render(results, found, libraries),
    }
