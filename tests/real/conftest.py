"""Only where the real sources are: never in CI, which has none of them."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from checkouts import FOLDER

from examples.miniature import make_therock


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip everything here without the folder of checkouts."""
    if FOLDER.is_dir():
        return
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="ROCWHEEL_REAL_SOURCES names no folder"))


@pytest.fixture(scope="session")
def therock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("therock")
    with tarfile.open(make_therock.make_tarball(folder, rocm_version="7.12.0")) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since 3.11.4
        archive.extractall(folder / "tree")
    return folder / "tree"


MATRIX: list[tuple[str, str, str, str]] = []


@pytest.fixture(scope="session")
def matrix() -> list[tuple[str, str, str, str]]:
    """Rows of the table that is printed at the end: tree, compiler, what is known, how."""
    return MATRIX


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the run showed of each tree and compiler."""
    if MATRIX:
        terminalreporter.section("real sources: tree x compiler")
        for row in sorted(MATRIX):
            terminalreporter.line("  ".join(f"{cell:22}" for cell in row).rstrip())
