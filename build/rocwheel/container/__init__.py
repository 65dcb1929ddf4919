"""Containers: an engine (Docker or Podman) and a running container in which commands run.

A running container is a `rocwheel.process.Runner`. It ends with the process that started it,
however that ends, and everything made here says which process it belongs to, so that leftovers are
found.
"""

from rocwheel.container.engine import ContainerEngine, EngineKind, ask
from rocwheel.container.folders import PLACE, claimed, scratch
from rocwheel.container.leftovers import Leftover, leftovers, remove
from rocwheel.container.running import Container, kept, running
from rocwheel.container.spec import ContainerLimits, ContainerSpec, DeviceNode, Mount, User, devices
from rocwheel.container.words import headline

__all__ = [
    "PLACE",
    "Container",
    "ContainerEngine",
    "ContainerLimits",
    "ContainerSpec",
    "DeviceNode",
    "EngineKind",
    "Leftover",
    "Mount",
    "User",
    "ask",
    "claimed",
    "devices",
    "headline",
    "kept",
    "leftovers",
    "remove",
    "running",
    "scratch",
]
