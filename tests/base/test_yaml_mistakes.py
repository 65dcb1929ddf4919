"""Where each known mistake in a data file is shown: file, line, column and key, whoever reads it.

`tests/data/yaml_mistakes.jsonl` has one mistake a line: a text, or an edit of a file of ours, and
the line, column and key that its ConfigError names. How errors are worded may change, that not.
"""

from __future__ import annotations

import json
import re
from datetime import date
from functools import partial
from pathlib import Path

import pytest

from rocwheel.base import yaml_file
from rocwheel.base.errors import ConfigError
from rocwheel.bazel import failures
from rocwheel.gate.suite import skips, suites
from rocwheel.image import recipe
from rocwheel.night import settings
from rocwheel.records import families
from rocwheel.release.index import channels
from rocwheel.source import pins
from rocwheel.wheel import wheel_policy

ROOT = Path(__file__).parents[2]
CASES = [
    json.loads(line)
    for line in (ROOT / "tests/data/yaml_mistakes.jsonl").read_text(encoding="utf-8").splitlines()
]
GOOD_NIGHT = "sets: [{name: a, jax: default, rocm: {source: x}}]\n"


def a_suite(file: Path) -> object:
    return suites.load(file.parents[1], file.stem)


def a_skip_list(file: Path) -> object:
    (file.parents[1] / "suites").mkdir()
    (file.parents[1] / "suites" / "unit.yaml").touch()
    return skips.load(file.parents[1], today=date(2026, 1, 1))


def pools(file: Path) -> object:
    file.with_name("nightly.yaml").write_text(GOOD_NIGHT)
    return settings.load_pools(file, settings.load(file.with_name("nightly.yaml")))


READERS = {
    "builder_images": ("ci/images.yaml", lambda file: recipe.load(file.parent)),
    "channels": ("ci/channels.yaml", channels.load),
    "families": ("families.yaml", families.load),
    "known_failures": ("ci/known_failures.yaml", failures.load),
    "layouts": ("ci/layouts.yaml", pins.load_layouts),
    "nightly": ("ci/nightly.yaml", settings.load),
    "pins": (
        "ci/pins.yaml",
        lambda file: pins.load(file, layouts=pins.load_layouts(ROOT / "ci" / "layouts.yaml")),
    ),
    "pools": ("ci/pools.yaml", pools),
    "runtime_images": ("ci/images.yaml", lambda file: recipe.runtime(file.parent, "jax")),
    "skips": ("ci/skips/unit.yaml", a_skip_list),
    "suite": ("ci/suites/own.yaml", a_suite),
    "wheel_policy": (
        "ci/wheel_policy.yaml",
        partial(yaml_file.read, kind=wheel_policy.WheelPolicy),
    ),
}


def test_every_reader_has_mistakes():
    assert {case["reader"] for case in CASES} == set(READERS)
    assert len(CASES) > 100


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['reader']}-{case['key']}")
def test_a_mistake_is_shown_where_it_is(case, tmp_path):
    name, read = READERS[case["reader"]]
    text = case.get("text") or (ROOT / case["file"]).read_text(encoding="utf-8")
    if "old" in case:
        assert case["old"] in text
        text = text.replace(case["old"], case["new"])
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read(file)
    shown = re.match(r"(.+):(\d+):(\d+): ([^ ]+): .", str(caught.value))
    assert shown, str(caught.value)
    where, line, column, key = shown.groups()
    assert str(file).endswith(where)
    assert (text.splitlines()[int(line) - 1].strip(), int(column), key) == (
        case["line"],
        case["column"],
        case["key"],
    )
