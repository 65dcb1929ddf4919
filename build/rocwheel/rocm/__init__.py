"""ROCm: from a URL, a tarball or a directory to a checked tree that stays in a shared cache.

`plan` decides without writing anything, `fetch` carries it out. Users read
`docs/how-to/fetch-rocm.md`.
"""

from rocwheel.rocm.obtain import digest_of as digest_of
from rocwheel.rocm.obtain import fetch as fetch
from rocwheel.rocm.origin import Origin as Origin
from rocwheel.rocm.origin import RocmPlan as RocmPlan
from rocwheel.rocm.origin import check_local as check_local
from rocwheel.rocm.origin import plan as plan
from rocwheel.rocm.origin import recorded as recorded
from rocwheel.rocm.rocm_root import RocmRoot as RocmRoot
from rocwheel.rocm.rocm_root import linking as linking
from rocwheel.rocm.rocm_root import missing as missing
from rocwheel.rocm.rocm_root import of_packages as of_packages
from rocwheel.rocm.rocm_root import uncompiled as uncompiled
