"""Pages that are made from the program are as the program is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rocwheel.errors import RocwheelError

ROOT = Path(__file__).parents[2]


def test_the_reference_of_commands_is_up_to_date():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate_reference.py"), "--check"], check=False
    )
    assert done.returncode == 0, "run: python docs/generate_reference.py"


@pytest.mark.parametrize(
    "page", [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "README.md"], ids=lambda path: path.name
)
def test_relative_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_tutorial_lists_every_exit_status():
    text = (ROOT / "docs" / "tutorial.md").read_text()
    for kind in RocwheelError.__subclasses__():
        if kind.__module__ != RocwheelError.__module__:
            continue  # its instances carry the state of a gate
        assert re.search(rf"^\| {kind.exit_code} \|", text, re.MULTILINE), kind


def test_no_package_name_with_a_fixed_rocm_major_outside_the_one_function():
    """Names come from `model`; `60` and the like anywhere else is how ROCm 10 broke everything."""
    pattern = re.compile(r"jax[-_]rocm\d+[-_](plugin|pjrt)|xla_rocm\d+|rocm_version\[0\]")
    comment = re.compile(r"#.*|\"\"\".*?\"\"\"|`[^`]*`", re.DOTALL)
    for path in (ROOT / "build" / "rocwheel").rglob("*.py"):
        code = comment.sub("", path.read_text())
        assert not pattern.search(code), f"{path}: {pattern.search(code)}"
