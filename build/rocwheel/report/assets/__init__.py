"""What pages are made of: templates, one style sheet, scripts. Nothing comes from outside."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def text(name: str) -> str:
    """One of the files beside this one."""
    return files("rocwheel").joinpath(f"report/assets/{name}").read_text("utf-8")


def environment() -> Environment:
    """Templates that escape what they are given, and fail where something is missing."""
    from jinja2 import Environment, StrictUndefined

    return Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
