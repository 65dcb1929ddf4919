"""ROCm: from a URL, a tarball or a directory to a checked tree that stays in a shared cache.

`plan` decides without writing anything, `fetch` does what the plan says. See `docs/how-to/
fetch-rocm.md` for what a user sees.
"""

from rocwheel.rocm.obtain import fetch
from rocwheel.rocm.origin import Origin, RocmPlan, plan
from rocwheel.rocm.tree import RocmRoot, missing

__all__ = ["Origin", "RocmPlan", "RocmRoot", "fetch", "missing", "plan"]
