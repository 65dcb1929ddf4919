"""Sources: which JAX and XLA are built, where they are, and what they really are."""

from rocwheel.source.tree import SourcePlan, SourceRequest, SourceTree, plan, resolve

__all__ = ["SourcePlan", "SourceRequest", "SourceTree", "plan", "resolve"]
