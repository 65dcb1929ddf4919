"""What pages are made of: one theme for all, and the rooms' own templates, styles and scripts.

Index, gate's page, the page of the nights and that of two wheels look the same by day and by night
because their colours and their type are `theme.css`. Nothing comes from outside: all of it is
written into each page.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported when the first page is rendered
    from jinja2 import Template


@cache
def text(name: str) -> str:
    """Read a file of an `assets` folder, such as `gate/report/assets/page.js`."""
    from importlib.resources import files

    return files("rocwheel").joinpath(name).read_text("utf-8")


@cache
def style(*names: str) -> str:
    """Return the theme with the styles that a page adds to it."""
    return "".join(map(text, ("base/assets/theme.css", *names)))


def template(name: str, **filters: Callable[[Any], str]) -> Template:
    """Return a template that escapes its values and fails where one is missing."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("rocwheel", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    return environment.get_template(name)
