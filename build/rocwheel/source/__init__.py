"""Sources: which JAX and XLA are built, where they are, and what they really are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rocwheel.source.bazelrc import RcFiles, joined, variables
from rocwheel.source.bazelrc import read as read_rc
from rocwheel.source.layouts import Layouts
from rocwheel.source.layouts import load as load_layouts
from rocwheel.source.pins import Pin, Pins
from rocwheel.source.pins import load as load_pins

if TYPE_CHECKING:
    from rocwheel.source.tree import (
        SourcePlan,
        SourceRequest,
        SourceTree,
        has_target,
        plan,
        preview,
        resolve,
    )

__all__ = [
    "Layouts",
    "Pin",
    "Pins",
    "RcFiles",
    "SourcePlan",
    "SourceRequest",
    "SourceTree",
    "has_target",
    "joined",
    "load_layouts",
    "load_pins",
    "plan",
    "preview",
    "read_rc",
    "resolve",
    "variables",
]


def __getattr__(name: str) -> Any:
    """Import what makes trees when it is used: who reads pins alone waits for none of it."""
    if name not in __all__:
        raise AttributeError(name)
    from rocwheel.source import tree

    return getattr(tree, name)
