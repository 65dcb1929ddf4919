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
from rocwheel.dist.rebuilding import Rebuilt, rebuild
from rocwheel.dist.rebuilding import plan as plan_rebuild

__all__ = [
    "Inputs",
    "Plan",
    "Rebuilt",
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
    "plan_rebuild",
    "preview",
    "rebuild",
    "resolved",
    "table",
    "writing",
]
