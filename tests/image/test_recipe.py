"""What an image is made from decides its tag."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rocwheel.base import home, yaml_file
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import replace
from rocwheel.image import recipe

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def images():
    return yaml_file.read(ROOT / "ci" / "images.yaml", recipe.Images)


@pytest.fixture(scope="module")
def inputs(images):
    return recipe.gather(images.builder("debian_12"), checkout=ROOT, base="sha256:" + "1" * 64)


def test_every_base_has_a_dated_tag(images):
    assert images.builders
    for item in images.builders.values():
        assert any(
            (part.isdigit() and len(part) >= 8) or "." in part for part in item.base.tag.split("-")
        )
        assert item.base.digest


@pytest.fixture
def gathered(images, tmp_path):
    """Gathers the inputs in a small checkout; `changed` is a file of it that another one wrote."""
    files = (f"docker/{recipe.DOCKERFILE}", f"docker/{recipe.SCRIPT}", "build/requirements.lock",
             "ci/pins.yaml", "suites/one.py", "amdgpu_family_matrix.py", "pyproject.toml")  # fmt: skip
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)

    def gather(changed: str = "", base: str = "1", bazel: str = "", chosen=None):
        if changed:
            (tmp_path / changed).write_text("changed")
        chosen = chosen or images.builder("debian_12")
        return recipe.gather(chosen, checkout=tmp_path, base=f"sha256:{base * 64}", bazel=bazel)

    return gather


@pytest.mark.parametrize(
    "change",
    [
        {"base": "2"},
        {"changed": f"docker/{recipe.DOCKERFILE}"},
        {"changed": f"docker/{recipe.SCRIPT}"},
        {"changed": "build/requirements.lock"},
        {"changed": "ci/pins.yaml"},
        {"bazel": "a" * 64},
    ],
    ids=lambda change: next(iter(change.values())),
)
def test_every_input_changes_the_tag(change, gathered):
    before = gathered()
    assert gathered().tag == before.tag
    assert gathered(**change).tag != before.tag


def test_a_package_more_changes_the_tag_and_their_order_does_not(images, gathered):
    chosen = images.builder("debian_12")
    more = replace(chosen, packages=(*chosen.packages, "zip"))
    turned = replace(chosen, packages=tuple(reversed(chosen.packages)))
    assert gathered(chosen=more).tag != gathered().tag
    assert gathered(chosen=turned).tag == gathered().tag


def test_a_changed_file_of_the_tool_changes_its_digest(tmp_path):
    for part in ("build", "ci", "suites"):
        (tmp_path / part).mkdir()
    for name in ("amdgpu_family_matrix.py", "pyproject.toml", "build/one.py"):
        (tmp_path / name).write_text("1")
    first = recipe.tree_digest(tmp_path)
    (tmp_path / "build" / "__pycache__").mkdir()
    (tmp_path / "build" / "__pycache__" / "one.pyc").write_text("cached")
    assert recipe.tree_digest(tmp_path) == first
    (tmp_path / "build" / "one.py").write_text("2")
    assert recipe.tree_digest(tmp_path) != first


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("tag: bookworm-20260918-slim", "tag: latest", "not a tag that stays"),
        ("digest: sha256:", "digest: sha256:123", "not a digest"),
        ("family: apt", "family: zypper", "unknown"),
        ("glibc:", "glibcc:", "unknown key"),
    ],
)
def test_a_recipe_that_cannot_be_right_is_refused_with_its_line(old, new, problem, tmp_path):
    file = tmp_path / "images.yaml"
    shutil.copy(ROOT / "ci" / "images.yaml", file)
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=rf"images\.yaml:\d+:\d+: .*{problem}"):
        yaml_file.read(file, recipe.Images)


def test_an_unknown_recipe_names_the_nearest(images):
    with pytest.raises(ConfigError) as refused:
        images.builder("debian12")
    assert "debian_12" in refused.value.hint


def test_an_installed_rocwheel_has_no_sources_for_images():
    installed = home.Home(root=home.SHARE, ci=home.SHARE / "ci", tests=home.SHARE)
    with pytest.raises(ConfigError, match="images are made from a checkout"):
        _ = installed.sources
    assert home.find(None).sources == home.find(None).root
