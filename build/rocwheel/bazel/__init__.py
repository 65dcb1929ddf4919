"""Bazel: which one, its command lines as values, and running them."""

from rocwheel.bazel.binary import BazelBinary, locate
from rocwheel.bazel.build import BazelResult, build, shutdown
from rocwheel.bazel.failures import KnownFailure, explained
from rocwheel.bazel.failures import load as load_failures
from rocwheel.bazel.invocation import (
    BazelInvocation,
    BuildSpec,
    Caches,
    Compiler,
    invocations,
)
from rocwheel.bazel.releases import Downloads, load_releases
from rocwheel.bazel.remote import Remote, read_remote
from rocwheel.bazel.runs import Runs, build_all

__all__ = [
    "BazelBinary",
    "BazelInvocation",
    "BazelResult",
    "BuildSpec",
    "Caches",
    "Compiler",
    "Downloads",
    "KnownFailure",
    "Remote",
    "Runs",
    "build",
    "build_all",
    "explained",
    "invocations",
    "load_failures",
    "load_releases",
    "locate",
    "read_remote",
    "shutdown",
]
