"""Sources: which JAX and XLA are built, where they are, and what they contain."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from rocwheel.source import pins
from rocwheel.source.pins import Pins as Pins

if TYPE_CHECKING:
    from rocwheel.source.bazelrc import RcFiles as RcFiles
    from rocwheel.source.bazelrc import joined as joined
    from rocwheel.source.bazelrc import read_rc as read_rc
    from rocwheel.source.bazelrc import variables as variables
    from rocwheel.source.tree import SourcePlan as SourcePlan
    from rocwheel.source.tree import SourceRequest as SourceRequest
    from rocwheel.source.tree import SourceTree as SourceTree
    from rocwheel.source.tree import has_target as has_target
    from rocwheel.source.tree import plan as plan
    from rocwheel.source.tree import preview as preview
    from rocwheel.source.tree import resolve as resolve

_LATER: Final = {
    **dict.fromkeys(("RcFiles", "joined", "read_rc", "variables"), "bazelrc"),
    **dict.fromkeys(("SourcePlan", "SourceRequest", "SourceTree", "has_target"), "tree"),
    **dict.fromkeys(("plan", "preview", "resolve"), "tree"),
}
load_layouts, load_pins, pins_of = pins.load_layouts, pins.load, pins.of


def __getattr__(name: str) -> Any:
    """Import what reads or makes trees when it is used: who reads pins waits for none of it."""
    if name not in _LATER:
        raise AttributeError(name)
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
