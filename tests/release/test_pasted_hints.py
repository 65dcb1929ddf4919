"""What an error says to run is pasted as it was printed, into a shell in the same folder.

The channel is of a file of one's own, and the data in use are, too: a line without those looks
elsewhere.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.wheelset import FAMILY, Shop, make_verdict, pass_gate

from rocwheel.cli import main
from rocwheel.records.verdict import Counts, State
from rocwheel.release.ledger import verdicts

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
GIVEN, DATA = ("--channel=mine", "--channels-file=mine.yaml"), "--ci-dir=tool/ci"
OURS = re.compile(r"`(rocwheel [^`]*)`")


class Desk:
    """A folder with a store, its channel and its data; commands are run in it."""

    def __init__(self, folder, console, capsys) -> None:
        self.folder, self.capsys = folder, capsys
        self.shop = Shop((folder / "store").as_uri(), console)
        (folder / "mine.yaml").write_text(
            f"channels:\n  mine:\n    store: {self.shop.store.url}\n    first_sets: free\n"
            '    prefixes:\n      "7": {staging: v2-staging, release: v2}\n'
        )
        (folder / "tool").symlink_to(ROOT)

    def run(self, *line: str) -> tuple[int, str]:
        """Exit status, and what was printed."""
        self.capsys.readouterr()
        status = main([*line, *GIVEN, f"--family={FAMILY.name}"])
        shown = self.capsys.readouterr()
        return status, shown.out + shown.err

    def paste(self, line: str, **names: str) -> tuple[int, str]:
        """The same of a printed line; `names` stand in it for what a person fills in."""
        words = shlex.split(line)
        assert words[0] == "rocwheel"
        self.capsys.readouterr()
        status = main([names.get(word, word) for word in words[1:]])
        shown = self.capsys.readouterr()
        return status, shown.out + shown.err

    def staged(self, **options):
        folder = self.folder / f"set{options.get('jax', '')}"
        return self.shop.staged(folder, pythons=("3.12",), **options)


@pytest.fixture
def desk(tmp_path, console, capsys, monkeypatch) -> Desk:
    monkeypatch.setattr("sys.argv", ["rocwheel"])
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path, console, capsys)


def test_a_set_that_was_never_released_is_looked_at_and_promoted_with_the_lines(desk) -> None:
    manifest = desk.staged()
    pass_gate(desk.shop.staging, manifest)
    status, said = desk.run("rollback", f"--manifest={manifest.sha256}", "--reason=x")
    look, promote = OURS.findall(said)
    assert status == 9
    status, said = desk.paste(look)
    assert (status, manifest.sha256[:12] in said) == (0, True)
    assert desk.paste(promote)[0] == 0
    assert "released" in desk.paste(look)[1]


def test_a_set_that_no_gate_ran_is_gated_with_the_line(desk) -> None:
    manifest = desk.staged()
    status, said = desk.run("promote", f"--manifest={manifest.sha256}", DATA)
    (line,) = OURS.findall(said)
    assert status == 9
    assert f"--ci-dir={desk.folder}/tool/ci" in line
    assert line.startswith("rocwheel gate ")
    status, said = desk.paste(f"{line} --dry-run --device=cpu")
    assert "would gate smoke on gfx90a, CPython 3.12" in said


def test_a_suite_that_failed_and_passed_is_approved_with_the_line(desk) -> None:
    manifest = desk.staged()
    pass_gate(desk.shop.staging, manifest)
    verdicts.add(desk.shop.staging, make_verdict(manifest, suite="unit", state=State.FAIL))
    status, said = desk.run("promote", f"--manifest={manifest.sha256}")
    (line,) = OURS.findall(said)
    assert status == 9
    assert desk.paste(line, NAME="ann", WHY="a known race")[0] == 0


def test_the_line_for_a_familys_first_set_names_a_number_that_later_ones_are_held_to(desk) -> None:
    file = desk.folder / "mine.yaml"
    file.write_text(file.read_text().replace("    first_sets: free\n", ""))

    def promoted(jax: str, ran: int) -> tuple[int, str]:
        manifest = desk.staged(jax=jax)
        pass_gate(desk.shop.staging, manifest, suites=("smoke",))
        unit = make_verdict(manifest, suite="unit", counts=Counts(passed=ran))
        verdicts.add(desk.shop.staging, unit)
        return desk.run("promote", f"--manifest={manifest.sha256}")

    status, said = promoted("0.9.1", 26_000)
    (line,) = OURS.findall(said)
    assert (status, "--approve unit:3.12=26000" in line) == (9, True)
    wrong = line.replace("=26000", "=25000")
    assert desk.paste(wrong, NAME="ann", WHY="looked at")[0] == 9
    assert desk.paste(line, NAME="ann", WHY="looked at")[0] == 0
    status, said = promoted("0.9.2", 24_400)
    assert (status, "24400, on the last released set: 26000; may_lose is 1500" in said) == (9, True)
    assert promoted("0.9.3", 24_500)[0] == 0


def test_pages_that_differ_from_the_log_are_mended_and_a_rollback_is_taken_back(desk) -> None:
    manifest = desk.staged()
    pass_gate(desk.shop.staging, manifest)
    named = f"--manifest={manifest.sha256}"
    assert desk.run("promote", named)[0] == 0
    page = next(desk.folder.glob("store/v2/*/jax-rocm7-plugin/index.html"))
    page.write_text("lost")
    status, said = desk.run("index", "check")
    line = OURS.findall(said)[0]
    assert status == 7
    assert desk.paste(line)[0] == 0
    assert desk.run("index", "check")[0] == 0
    assert desk.run("rollback", named, "--reason=x")[0] == 0
    status, said = desk.run("promote", named)
    (line,) = OURS.findall(said)
    assert status == 9
    assert desk.paste(line, WHY="x")[0] == 0
    assert page.is_file()


@pytest.mark.parametrize("started", ["ci_build", "./tool/build/ci_build"])
def test_a_shell_finds_the_program_as_it_was_started(desk, started) -> None:
    """On PATH, or as a file of a checkout; the line is run by bash as it stands in the answer."""
    desk.staged()
    (desk.folder / "bin").mkdir()
    (desk.folder / "bin" / "python3").symlink_to(sys.executable)
    env = os.environ | {"PATH": f"{desk.folder}/bin:{ROOT}/build:/usr/bin:/bin"}

    def shell(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", line], cwd=desk.folder, env=env, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    asked = shlex.join((*GIVEN, DATA, f"--family={FAMILY.name}", "--manifest=abcdef1"))
    done = shell(f"{started} rollback {asked} --reason=x")
    assert done.returncode == 3, done.stderr
    done = shell(f"{started} rollback {asked[:-2]} --reason=x")
    line = re.search(r"copy it from `([^`]+)`", done.stderr)[1]
    done = shell(line)
    assert done.returncode == 0, done.stderr
    assert "staged" in done.stdout
