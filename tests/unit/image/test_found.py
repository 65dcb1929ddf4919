"""What may be the name of an image."""

from __future__ import annotations

import pytest

from rocwheel.errors import ConfigError
from rocwheel.image.found import refuse_no_tag

GOOD = (
    "kept", "kept:1", "localhost/kept:1", "localhost:5000/a/b_c:V1.2-x", "quay.io/me/kept",
    "127.0.0.1:5000/kept", "rocwheel-test/kept-docker:1", "a__b/c-d.e", "host:1/a:2",
)  # fmt: skip
BAD = (
    "", "UPPER", "a/UPPER:1", "a:b:c", "a@sha256:" + "0" * 64, "a:", "a:-x", "-x", "A B", "a//b",
    "a/", "a:" + "x" * 129, "a\n",
)  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_a_name_and_tag_is_taken(name):
    refuse_no_tag(name)


@pytest.mark.parametrize("name", BAD)
def test_what_no_engine_would_take_is_refused(name):
    with pytest.raises(ConfigError, match="no name to give an image"):
        refuse_no_tag(name)
