"""Reports of a suite's results: JSON for programs, JUnit for CI systems, one page for people.

Each is a function of the results and what they were judged to be; nothing is looked up again.
"""

from collections.abc import Mapping
from typing import Final

from rocwheel.gate.report import gate_page, junit
from rocwheel.records.results import Fault, LastRun, Results

JSON: Final = "results.json"
JUNIT: Final = "junit.xml"
HTML: Final = "report.html"


def render(
    results: Results, judged: Fault, libraries: Mapping[str, str], last: LastRun | None = None
) -> dict[str, bytes]:
    """Return all reports by file name.

    `libraries` are those to show, each with why it cannot be seen; `last` is the run of the same
    cell that this one is compared with.
    """
    return {
        JSON: results.to_bytes(),
        JUNIT: junit.render(results, judged),
        HTML: gate_page.render(results, judged, libraries, last),
    }
