"""A store behind `serve`, in a thread of the test."""

from __future__ import annotations

from contextlib import AbstractContextManager

from rocwheel.release.index.serve import Site


def serving(store, **options) -> AbstractContextManager[Site]:
    """A site that answers while the block lasts."""
    return Site(store, **options).running()
