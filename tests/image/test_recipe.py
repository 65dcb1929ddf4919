"""Recipes: what an image is made from decides its tag; names, bases and budgets fit together."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocwheel.base import home
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion
from rocwheel.gate.suite import suites
from rocwheel.image import recipe

ROOT = Path(__file__).parents[2]
CI = ROOT / "ci"


@pytest.fixture(scope="module")
def images():
    return recipe.load(CI)


@pytest.fixture(scope="module")
def inputs(images):
    return recipe.builder_inputs(
        recipe.builder(CI, "debian_12"), checkout=ROOT, base="sha256:" + "1" * 64
    )


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
    files = (f"docker/{recipe.BUILDER}", f"docker/{recipe.SCRIPT}", "build/requirements.lock",
             "ci/pins.yaml", "suites/one.py", "amdgpu_family_matrix.py", "pyproject.toml")  # fmt: skip
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)

    def gather(changed: str = "", base: str = "1", bazel: str = "", chosen=None):
        if changed:
            (tmp_path / changed).write_text("changed")
        chosen = chosen or recipe.builder(CI, "debian_12")
        return recipe.builder_inputs(
            chosen, checkout=tmp_path, base=f"sha256:{base * 64}", bazel=bazel
        )

    return gather


@pytest.mark.parametrize(
    "change",
    [
        {"base": "2"},
        {"changed": f"docker/{recipe.BUILDER}"},
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
    chosen = recipe.builder(CI, "debian_12")
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


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(ConfigError) as refused:
        recipe.builder(CI, "debian12")
    assert "debian_12" in refused.value.hint


def test_an_installed_rocwheel_has_no_sources_for_images():
    installed = home.Home(root=home.SHARE, ci=home.SHARE / "ci", tests=home.SHARE)
    with pytest.raises(ConfigError, match="images are made from a checkout"):
        _ = installed.sources
    assert home.find(None).sources == home.find(None).root


@pytest.mark.parametrize("name", ["jax", "miniature"])
def test_the_suites_of_a_recipe_exist(name):
    for suite in recipe.runtime(CI, name).suites:
        assert suites.load(CI, suite).name == suite


def tag(base="jax", profile="runtime", rocm="7.2.0", scheme=None, family="gfx90a"):
    """The tag of an image on the first base of a recipe."""
    found = recipe.runtime(CI, "jax")
    found = replace(found, tag=scheme) if scheme else found
    wheels = recipe.ImagedSet(
        set_id="3f2a91c0d7e4" + 52 * "0", jax="0.9.1", rocm=rocm, family=family
    )
    return found.tag_of(
        wheels, PythonVersion.parse("3.12"), recipe.runtime(CI, base).base(""), profile
    )


def test_the_scheme_is_the_one_users_know():
    assert tag() == "rocm7.2.0-jax0.9.1-py3.12"


def test_another_base_or_profile_is_another_tag():
    assert tag("miniature") == "rocm7.2.0-jax0.9.1-py3.12-debian12"
    assert tag(profile="devel") == "rocm7.2.0-jax0.9.1-py3.12-devel"


def test_a_tag_may_tell_families_and_sets_of_one_version_apart():
    scheme = "{jax}-{family}-{set}"
    assert tag(scheme=scheme) == "0.9.1-gfx90a-3f2a91c0d7e4"
    assert tag(scheme=scheme, family="gfx942") != tag(scheme=scheme)


def test_no_two_rocm_versions_share_a_tag_and_none_has_a_plus():
    assert tag(rocm="7.1.1") != tag(rocm="7.11")
    assert "+" not in tag(rocm="7.1.0+local")


def test_a_cpython_that_a_base_lacks_is_an_error_with_those_it_has():
    chosen = recipe.runtime(CI, "jax").base("")
    assert list(chosen.pythons) == ["3.11", "3.12", "3.13", "3.14", "3.15"]
    with pytest.raises(ConfigError, match=r"no CPython 3\.10") as caught:
        chosen.python(PythonVersion.parse("3.10"))
    assert "3.11" in caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("recipes:\n    jax:", "recipes:\n    jaks:", "'jax': not in ci/images.yaml"),
        ("[ubuntu_24_04]", "[ubuntu_26_04]", "'ubuntu_26_04': not in"),
    ],
)
def test_a_mistake_in_a_runtime_recipe_is_refused(tmp_path, old, new, said):
    text = (CI / "images.yaml").read_text()
    assert old in text
    file = tmp_path / "images.yaml"
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        recipe.runtime(tmp_path, "jax")
    assert said in str(caught.value)
