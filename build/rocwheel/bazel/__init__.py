"""Bazel: which one, its command lines as values, and running them."""

from rocwheel.bazel.binary import BazelBinary, locate
from rocwheel.bazel.build import BazelResult, build, shutdown
from rocwheel.bazel.invocation import (
    BazelInvocation,
    BuildSpec,
    Caches,
    Compiler,
    WheelVersion,
    invocations,
)

__all__ = [
    "BazelBinary",
    "BazelInvocation",
    "BazelResult",
    "BuildSpec",
    "Caches",
    "Compiler",
    "WheelVersion",
    "build",
    "invocations",
    "locate",
    "shutdown",
]
