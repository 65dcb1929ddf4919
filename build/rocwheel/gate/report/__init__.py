"""Reports of a suite's results: JSON for programs, JUnit for CI systems, one page for people.

Each is a function of the results and what they were judged to be; nothing is looked up again.
"""

from collections.abc import Mapping

from rocwheel.gate.report import ci, gate_page
from rocwheel.records.results import Fault, LastRun, Results


def render(
    results: Results, judged: Fault, libraries: Mapping[str, str], last: LastRun | None = None
) -> dict[str, bytes]:
    """Return all reports by file name.

    `libraries` are those to show, each with why it cannot be seen; `last` is the run of the same
    cell that this one is compared with.
    """
    return {
        "results.json": results.to_bytes(),
        "junit.xml": ci.junit(results, judged),
        "report.html": gate_page.render(results, judged, libraries, last),
    }
