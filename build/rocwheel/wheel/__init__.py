"""Wheels: read, judged, renamed, repaired and compared without unpacking them.

`inspect` reads a wheel once and flat in memory, `verify` judges it by `ci/wheel_policy.yaml`,
`retag` and `reversion` change its names and `repair` makes it fit to ship by splicing new texts
between the compressed members of the old archive. Nothing here needs more of a wheel in memory
than a few MiB, and nothing writes a file under its final name before it is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocwheel.wheel.findings import Finding as Finding
    from rocwheel.wheel.findings import Severity as Severity
    from rocwheel.wheel.mend import RepairResult as RepairResult
    from rocwheel.wheel.mend import repair as repair
    from rocwheel.wheel.policy import WheelPolicy as WheelPolicy
    from rocwheel.wheel.policy import load as load_policy  # noqa: F401
    from rocwheel.wheel.report import WheelReport as WheelReport
    from rocwheel.wheel.report import inspect as inspect
    from rocwheel.wheel.rules import Expectation as Expectation
    from rocwheel.wheel.rules import verify as verify
    from rocwheel.wheel.rules import verify_set as verify_set
    from rocwheel.wheel.rules import verify_wheelhouse as verify_wheelhouse

_HOME = {
    "Expectation": ("rules", "Expectation"),
    "Finding": ("findings", "Finding"),
    "RepairResult": ("mend", "RepairResult"),
    "Severity": ("findings", "Severity"),
    "WheelPolicy": ("policy", "WheelPolicy"),
    "WheelReport": ("report", "WheelReport"),
    "inspect": ("report", "inspect"),
    "load_policy": ("policy", "load"),
    "repair": ("mend", "repair"),
    "verify": ("rules", "verify"),
    "verify_set": ("rules", "verify_set"),
    "verify_wheelhouse": ("rules", "verify_wheelhouse"),
}


def __getattr__(name: str) -> object:
    """Import what is asked for only then: renaming a wheel needs no ELF reader."""
    import importlib

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOME[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
