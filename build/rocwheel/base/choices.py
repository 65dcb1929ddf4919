"""Values that options may have, apart from the rooms that use them: help imports no room."""

from __future__ import annotations

import enum
from typing import Final

ALL: Final = "all"  # stands for a family where a set is for several
COMPILERS: Final = ("clang", "hermetic")
CPU_FEATURES: Final = ("release", "native", "default")
JAXLIB_ORIGINS: Final = ("built", "upstream")
CONTAINER_ENGINES: Final = ("docker", "podman")
EXECUTORS: Final = ("host", *CONTAINER_ENGINES)
IMAGE_PROFILES: Final = ("runtime", "devel")
CELL_KINDS: Final = ("build", "gate", "merge", "promote", "image", "rebuild", "page", "prune")
TEST_KINDS: Final = frozenset({"gate", "merge"})  # of cells: those that run tests
TABLE_FORMS: Final = ("text", "md", "html")
ROLES: Final = ("builder", "runner", "imager", "reporter", "promoter")


class Purpose(enum.Enum):
    """What a machine is wanted for; `doctor` looks at what that needs alone."""

    BUILD = "build"
    GATE = "gate"
    RELEASE = "release"
    ALL = "all"
