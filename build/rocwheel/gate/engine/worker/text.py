"""Text that every report can hold: one line, no lone surrogates, no control characters."""

import re

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def valid(text: str) -> str:
    """Replace what UTF-8 cannot hold: a lone surrogate of a test must not break the report."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def one_line(text: str) -> str:
    """Return one line that any report can hold; node ids are made so once, here: two stay two."""
    return _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], valid(str(text)))


def readable(text: str) -> str:
    """Return a text for people, on one line."""
    return one_line(" ".join(str(text).split()))
