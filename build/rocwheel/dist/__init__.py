"""`dist_wheels`: from a ROCm source and a JAX source tree to a verified wheelhouse.

`plan` checks what can be checked without touching anything; `build` goes through the stages:
sources, ROCm, Bazel, wheels, wheelhouse. Each stage is a value that the next one takes.
"""

from rocwheel.dist.assemble import Result, build
from rocwheel.dist.build_request import Plan, Request, plan, resolved
from rocwheel.dist.inputs import Inputs, gather, preview
from rocwheel.dist.output import (
    contents,
    document,
    dry_run,
    fetching,
    lines,
    pasteable,
    table,
    writing,
)

__all__ = [
    "Inputs",
    "Plan",
    "Request",
    "Result",
    "build",
    "contents",
    "document",
    "dry_run",
    "fetching",
    "gather",
    "lines",
    "pasteable",
    "plan",
    "preview",
    "resolved",
    "table",
    "writing",
]
