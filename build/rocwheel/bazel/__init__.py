"""Bazel: which one, its command lines as values, and running them."""

from rocwheel.bazel.binary import BazelBinary, locate
from rocwheel.bazel.build import BazelResult, build, shutdown
from rocwheel.bazel.invocation import (
    COMPILERS,
    CPU_FEATURES,
    WHEEL_TYPES,
    BazelInvocation,
    BuildSpec,
    Caches,
    Compiler,
    WheelVersion,
    invocations,
)
from rocwheel.bazel.releases import Downloads, load_releases
from rocwheel.bazel.remote import Remote, read_remote

__all__ = [
    "COMPILERS",
    "CPU_FEATURES",
    "WHEEL_TYPES",
    "BazelBinary",
    "BazelInvocation",
    "BazelResult",
    "BuildSpec",
    "Caches",
    "Compiler",
    "Downloads",
    "Remote",
    "WheelVersion",
    "build",
    "invocations",
    "load_releases",
    "locate",
    "read_remote",
    "shutdown",
]
