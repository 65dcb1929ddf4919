"""Containers: an engine (Docker or Podman) and a running container in which commands run.

A running container is a `rocwheel.base.process.Runner`. It ends with the process that started it,
however that ends, and everything made here says which process it belongs to, so that leftovers are
found.
"""

from rocwheel.base.container.engine import ContainerEngine as ContainerEngine
from rocwheel.base.container.engine import EngineKind as EngineKind
from rocwheel.base.container.engine import ask as ask
from rocwheel.base.container.engine import headline as headline
from rocwheel.base.container.leftovers import PLACE as PLACE
from rocwheel.base.container.leftovers import claimed as claimed
from rocwheel.base.container.leftovers import leftovers as leftovers
from rocwheel.base.container.leftovers import remove as remove
from rocwheel.base.container.leftovers import scratch as scratch
from rocwheel.base.container.running import Container as Container
from rocwheel.base.container.running import find_kept as find_kept
from rocwheel.base.container.running import kept as kept
from rocwheel.base.container.running import running as running
from rocwheel.base.container.spec import ContainerLimits as ContainerLimits
from rocwheel.base.container.spec import ContainerSpec as ContainerSpec
from rocwheel.base.container.spec import DeviceNode as DeviceNode
from rocwheel.base.container.spec import Mount as Mount
from rocwheel.base.container.spec import User as User
from rocwheel.base.container.spec import devices as devices
