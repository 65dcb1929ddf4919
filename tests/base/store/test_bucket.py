"""What a bucket's answers are taken for."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from rocwheel.base.errors import StoreError
from rocwheel.base.store import bucket

ANSWER = {"ContentLength": 3, "ETag": '"x"', "LastModified": datetime.now(tz=timezone.utc)}


def test_an_answer_of_a_store_is_read():
    assert bucket._info("a/b", ANSWER).etag == "x"


@pytest.mark.parametrize("name", ANSWER)
def test_an_answer_of_no_store_is_an_error(name):
    """Such as the login page of a network, with the status 200."""
    with pytest.raises(StoreError, match="a/b: the answer is none of an object store") as caught:
        bucket._info("a/b", {key: value for key, value in ANSWER.items() if key != name})
    assert caught.value.hint == "check the endpoint"
