"""What an invocation costs: its actions, and what the builds that filled a disk cache left of it.

Bazel itself is asked in tests/dist/test_offline.py.
"""

from __future__ import annotations

import pytest

from rocwheel import bazel
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion, WheelKind
from rocwheel.bazel import Caches, queries
from rocwheel.records.manifest import InvocationRecord
from tests.bazel.test_invocations import spec

DONE = InvocationRecord(
    command="bazel build",
    actions_executed=4000,
    cache_hits=12,
    bytes_made=0,
    bytes_cached=0,
    notes=(),
    warnings=(),
    milliseconds=1,
    critical_path_milliseconds=0,
    critical_path=(),
    slowest_actions=(),
    log="",
    profile="",
)
SUMMARY = """4,014 total actions.

Mnemonics:
  CppCompile: 4012
  CppLink: 2
  Middleman: 9

Configurations:
  k8-opt: 4014
"""
TEXT = "action 'Compiling a.cc'\n  Mnemonic: CppCompile\n  Target: //:a\n\naction 'b'\n  Mnemonic: Middleman\n"


def test_actions_that_start_a_process_are_counted_of_both_forms():
    assert queries.counted(SUMMARY) == {"CppCompile": 4012, "CppLink": 2}
    assert queries.counted(TEXT) == {"CppCompile": 1}


@pytest.mark.parametrize(
    ("changes", "says", "is_cold"),
    [
        ({}, "made from the same", False),
        ({"kinds": (WheelKind.PLUGIN,)}, "made from the same", False),
        ({"pythons": (PythonVersion(3, 14),)}, "differs in CPython: has all but what", False),
        (
            {"git_hash": "2" * 40, "pythons": (PythonVersion(3, 14),)},
            "differs in JAX, CPython: has what did not change since",
            False,
        ),
        ({"rocm_root": "/other"}, "in ROCm: nothing of it serves, since every compile", True),
        ({"gfx_targets": ("gfx90a",)}, "in gfx targets: nothing of it serves", True),
        ({"options": ("--copt=-g",)}, "in set of Bazel options: nothing of it", True),
        ({"kinds": (WheelKind.JAXLIB,)}, "no build of these wheels is known", True),
    ],
)
def test_the_disk_cache_serves_what_a_build_has_in_common(changes, says, is_cold, runner, tmp_path):
    caches = Caches(output_user_root=tmp_path / "out", disk=tmp_path / "disk", repository=None)
    kinds = (WheelKind.PLUGIN, WheelKind.PJRT)
    made = replace(spec(), caches=caches, kinds=kinds, git_hash="1" * 40)
    queries.remember(bazel.invocations(made)[0], DONE, runner, when="2026-11-26 22:10 UTC")
    now = bazel.invocations(replace(made, **changes))[0]
    said, cold = queries.compared(now, queries.earlier(now, runner))
    assert says in said
    assert cold is is_cold
