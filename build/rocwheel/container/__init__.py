"""Containers: an engine (Docker or Podman) and a running container in which commands run.

A running container is a `rocwheel.process.Runner`. It ends with the process that started it,
however that ends, and every object made here has labels by which leftovers are found.
"""

from rocwheel.container.engine import ContainerEngine, EngineKind, ask
from rocwheel.container.leftovers import Leftover, folders, leftovers, remove
from rocwheel.container.running import Container, kept, running
from rocwheel.container.spec import DeviceNode, Limits, Mount, Spec, User, devices

__all__ = [
    "Container",
    "ContainerEngine",
    "DeviceNode",
    "EngineKind",
    "Leftover",
    "Limits",
    "Mount",
    "Spec",
    "User",
    "ask",
    "devices",
    "folders",
    "kept",
    "leftovers",
    "remove",
    "running",
]
