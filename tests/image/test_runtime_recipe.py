"""Recipes of runtime images: names, bases and budgets are data that is held against itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocwheel.base.errors import ConfigError
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion
from rocwheel.gate.suite import suites
from rocwheel.image import runtime_recipe as image_recipe
from rocwheel.image.runtime_recipe import ImagedSet

CI = Path(__file__).parents[2] / "ci"


@pytest.mark.parametrize("name", ["jax", "miniature"])
def test_the_suites_of_a_recipe_exist(name):
    for suite in image_recipe.load(CI / "images.yaml", name).suites:
        assert suites.load(CI, suite).name == suite


def tag(name="ubuntu_24_04", profile="runtime", rocm="7.2.0", scheme=None, family="gfx90a"):
    found = image_recipe.load(CI / "images.yaml", "jax")
    found = replace(found, tag=scheme) if scheme else found
    wheels = ImagedSet(set_id="3f2a91c0d7e4" + 52 * "0", jax="0.9.1", rocm=rocm, family=family)
    return found.tag_of(wheels, PythonVersion.parse("3.12"), found.base(name), profile)


def test_the_scheme_is_the_one_users_know():
    assert tag() == "rocm7.2.0-jax0.9.1-py3.12"


def test_another_base_or_profile_is_another_tag():
    assert tag("ubuntu_22_04") == "rocm7.2.0-jax0.9.1-py3.12-ubuntu22.04"
    assert tag(profile="devel") == "rocm7.2.0-jax0.9.1-py3.12-devel"


def test_a_tag_may_tell_families_and_sets_of_one_version_apart():
    scheme = "{jax}-{family}-{set}"
    assert tag(scheme=scheme) == "0.9.1-gfx90a-3f2a91c0d7e4"
    assert tag(scheme=scheme, family="gfx942") != tag(scheme=scheme)


def test_no_two_rocm_versions_share_a_tag_and_none_has_a_plus():
    assert tag(rocm="7.1.1") != tag(rocm="7.11")
    assert "+" not in tag(rocm="7.1.0+local")


def test_a_cpython_that_a_base_lacks_is_an_error_with_those_it_has():
    chosen = image_recipe.load(CI / "images.yaml", "jax").base("ubuntu_22_04")
    with pytest.raises(ConfigError, match=r"no CPython 3\.13") as caught:
        chosen.python(PythonVersion.parse("3.13"))
    assert "3.10" in caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("recipes:\n    jax:", "recipes:\n    jaks:", "'jax': not in ci/images.yaml"),
        ("[ubuntu_24_04, ubuntu_22_04]", "[ubuntu_26_04]", "'ubuntu_26_04': not in"),
        ("[ubuntu_24_04, ubuntu_22_04]", "[]", "no base"),
        ("-jax{jax}-", "-jax{jaxlib}-", "names something else than a set has"),
        ("-jax{jax}-", "-jax{jax-", "names something else than a set has"),
        ("{runtime: 12288, devel: 40960}", "{runtime: 12288}", "'devel' is missing"),
    ],
)
def test_mistakes_are_told_where_they_are(tmp_path, old, new, said):
    text = (CI / "images.yaml").read_text()
    assert old in text
    file = tmp_path / "images.yaml"
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        image_recipe.load(file, "jax")
    assert said in str(caught.value)
