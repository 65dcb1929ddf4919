"""Containers: an engine (Docker or Podman) and a running container in which commands run.

A running container is a `rocwheel.process.Runner`. It ends with the process that started it,
however that ends, and everything made here says which process it belongs to, so that leftovers are
found.
"""

from rocwheel.container.engine import ContainerEngine as ContainerEngine
from rocwheel.container.engine import EngineKind as EngineKind
from rocwheel.container.engine import ask as ask
from rocwheel.container.folders import PLACE as PLACE
from rocwheel.container.folders import claimed as claimed
from rocwheel.container.folders import scratch as scratch
from rocwheel.container.leftovers import leftovers as leftovers
from rocwheel.container.leftovers import remove as remove
from rocwheel.container.running import Container as Container
from rocwheel.container.running import kept as kept
from rocwheel.container.running import running as running
from rocwheel.container.spec import ContainerLimits as ContainerLimits
from rocwheel.container.spec import ContainerSpec as ContainerSpec
from rocwheel.container.spec import DeviceNode as DeviceNode
from rocwheel.container.spec import Mount as Mount
from rocwheel.container.spec import User as User
from rocwheel.container.spec import devices as devices
from rocwheel.container.words import headline as headline
