"""Sources: which JAX and XLA are built, where they are, and what they really are."""

from rocwheel.source.bazelrc import RcFiles, joined, variables
from rocwheel.source.bazelrc import read as read_rc
from rocwheel.source.git import head, identify, public, resolve_ref
from rocwheel.source.layouts import Layouts
from rocwheel.source.layouts import load as load_layouts
from rocwheel.source.pins import Pin, Pins
from rocwheel.source.pins import load as load_pins
from rocwheel.source.tree import (
    COMMIT_LATER,
    SourcePlan,
    SourceRequest,
    SourceTree,
    has_target,
    plan,
    preview,
    resolve,
)

__all__ = [
    "COMMIT_LATER",
    "Layouts",
    "Pin",
    "Pins",
    "RcFiles",
    "SourcePlan",
    "SourceRequest",
    "SourceTree",
    "has_target",
    "head",
    "identify",
    "joined",
    "load_layouts",
    "load_pins",
    "plan",
    "preview",
    "public",
    "read_rc",
    "resolve",
    "resolve_ref",
    "variables",
]
