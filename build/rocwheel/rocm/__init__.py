"""ROCm: from a URL, a tarball or a directory to a checked tree that stays in a shared cache.

`plan` decides without writing anything, `fetch` does what the plan says. See `docs/how-to/
fetch-rocm.md` for what a user sees.
"""

from rocwheel.rocm.obtain import digest_of, fetch
from rocwheel.rocm.origin import Origin, RocmPlan, check_local, plan, recorded
from rocwheel.rocm.rocm_root import RocmRoot, missing

__all__ = [
    "Origin",
    "RocmPlan",
    "RocmRoot",
    "check_local",
    "digest_of",
    "fetch",
    "missing",
    "plan",
    "recorded",
]
