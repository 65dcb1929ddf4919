"""`dist_wheels`: from a ROCm source and a JAX source tree to a verified wheelhouse.

`plan` checks what can be checked without touching anything; `build` goes through the stages:
sources, ROCm, Bazel, wheels, wheelhouse. Each stage is a value that the next one takes.
"""

from rocwheel.dist.assemble import Result, build
from rocwheel.dist.inputs import Inputs, gather, preview
from rocwheel.dist.request import Plan, Request, plan
from rocwheel.dist.show import document, dry_run, github_outputs, lines

__all__ = [
    "Inputs",
    "Plan",
    "Request",
    "Result",
    "build",
    "document",
    "dry_run",
    "gather",
    "github_outputs",
    "lines",
    "plan",
    "preview",
]
