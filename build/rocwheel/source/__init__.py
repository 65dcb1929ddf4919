"""Sources: which JAX and XLA are built, where they are, and what they really are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rocwheel.source import bazelrc, layouts, pins
from rocwheel.source.bazelrc import RcFiles as RcFiles
from rocwheel.source.bazelrc import joined as joined
from rocwheel.source.bazelrc import variables as variables
from rocwheel.source.layouts import Layouts as Layouts
from rocwheel.source.pins import Pins as Pins

if TYPE_CHECKING:
    from rocwheel.source.tree import SourcePlan as SourcePlan
    from rocwheel.source.tree import SourceRequest as SourceRequest
    from rocwheel.source.tree import SourceTree as SourceTree
    from rocwheel.source.tree import has_target as has_target
    from rocwheel.source.tree import plan as plan
    from rocwheel.source.tree import preview as preview
    from rocwheel.source.tree import resolve as resolve

_OF_TREE: Final = frozenset({
    "SourcePlan", "SourceRequest", "SourceTree", "has_target", "plan", "preview", "resolve",
})  # fmt: skip
read_rc, load_layouts, load_pins, pins_of = bazelrc.read, layouts.load, pins.load, pins.of


def __getattr__(name: str) -> Any:
    """Import what makes trees when it is used: who reads pins alone waits for none of it."""
    if name not in _OF_TREE:
        raise AttributeError(name)
    from rocwheel.source import tree

    return getattr(tree, name)
