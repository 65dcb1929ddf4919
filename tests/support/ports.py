"""Ports for servers that tests start: nobody else is given them meanwhile.

Asking the kernel for any free port and closing it again leaves that port to whoever comes next: a
connection of another test, or its server. These lie below the range that the kernel hands out
(`net.ipv4.ip_local_port_range`), each worker of pytest-xdist has a part of its own, and none is
given twice.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import socket
from typing import Final

FIRST: Final = 12_000
EACH: Final = 2_000
WORKERS: Final = 10


def _own() -> range:
    """The ports of this process's worker; several runs on one machine begin at other places."""
    number = int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or 0) % WORKERS
    return range(FIRST + number * EACH, FIRST + (number + 1) * EACH)


_places = itertools.count(random.SystemRandom().randrange(EACH))


def free_port() -> int:
    """A port of loopback that nothing listens on and no other test is given."""
    ports = _own()
    for place in itertools.islice(_places, EACH):
        port = ports[place % EACH]
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port from {ports.start} to {ports.stop - 1}")
