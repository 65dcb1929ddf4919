"""Bazel: which one, its command lines as values, and running them."""

from rocwheel.bazel import failures
from rocwheel.bazel import queries as queries
from rocwheel.bazel.binary import BazelBinary as BazelBinary
from rocwheel.bazel.binary import Downloads as Downloads
from rocwheel.bazel.binary import Releases as Releases
from rocwheel.bazel.binary import locate as locate
from rocwheel.bazel.build import BazelResult as BazelResult
from rocwheel.bazel.build import Runs as Runs
from rocwheel.bazel.build import build as build
from rocwheel.bazel.build import build_all as build_all
from rocwheel.bazel.build import clean as clean
from rocwheel.bazel.build import fetch as fetch
from rocwheel.bazel.build import forget as forget
from rocwheel.bazel.build import price as price
from rocwheel.bazel.build import shutdown as shutdown
from rocwheel.bazel.failures import KnownFailure as KnownFailure
from rocwheel.bazel.failures import explained as explained
from rocwheel.bazel.invocation import BazelInvocation as BazelInvocation
from rocwheel.bazel.invocation import BuildSpec as BuildSpec
from rocwheel.bazel.invocation import Caches as Caches
from rocwheel.bazel.invocation import Compiler as Compiler
from rocwheel.bazel.invocation import check_rocm as check_rocm
from rocwheel.bazel.invocation import invocations as invocations
from rocwheel.bazel.remote import Remote as Remote
from rocwheel.bazel.remote import read_remote as read_remote

load_failures = failures.load
