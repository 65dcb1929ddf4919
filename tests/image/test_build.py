"""Why an engine's `build` failed, from what it said."""

from __future__ import annotations

import pytest

from rocwheel.base.errors import CommandError
from rocwheel.image.build import explained
from rocwheel.image.contents import ImageFacts


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            "#7 12.3 install.sh: this base has neither apt-get nor dnf",
            "without its package manager",
        ),
        ("#9 ERROR: write /layer: no space left on device", "the disk of the engine is full"),
        ("error during connect: Post http://docker/build: EOF", "the engine ended in mid-build"),
        ("#7 0.3 Temporary failure resolving 'deb.debian.org'", "has no network"),
        ("something new", "was not built: something new"),
    ],
)
def test_a_failed_build_is_reported_with_cause_and_hint(said, message):
    told = explained("builder:1", "debian:12", CommandError("exit status 1", detail=said))
    assert message in str(told)
    assert told.hint
    assert told.detail == said


# What an image's CPythons answered, and what is none of them.


@pytest.mark.parametrize("said", ["{}", "[]", '{"implementation": "cpython", "version": [1]}'])
def test_what_is_no_answer_of_a_cpython_is_none_of_the_image(said):
    facts = ImageFacts(
        architecture="", glibc="", bazels=(), compilers=(),
        pythons=(said,),
    )  # fmt: skip
    assert facts.interpreters == ()
