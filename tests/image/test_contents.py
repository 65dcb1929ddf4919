"""What an image's CPythons answered, and what is none of them."""

from __future__ import annotations

import pytest

from rocwheel.image.contents import ImageFacts


@pytest.mark.parametrize("said", ["{}", "[]", '{"implementation": "cpython", "version": [1]}'])
def test_what_is_no_answer_of_a_cpython_is_none_of_the_image(said):
    facts = ImageFacts(
        architecture="", glibc="", bazels=(), compilers=(),
        pythons=(said,),
    )  # fmt: skip
    assert facts.interpreters == ()
