"""Two containers on one machine with GPUs: real control groups, real locks, made devices.

The nodes of the devices are real, their numbers are those of an AMD GPU; no driver is behind them.
"""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.engines import BASE
from support.topology import machine, mi300x

pytestmark = [
    pytest.mark.integration,
    pytest.mark.needs("dockerd", "podman", "mmdebstrap"),
    pytest.mark.xdist_group("containers"),
]

ROOT = Path(__file__).parents[3]
RENDER = 226  # the major number of /dev/dri
HOLD = """
import sys, time
from pathlib import Path
from rocwheel.gate.machine import accelerators
from rocwheel.gate.machine.devices import Slots
seen = accelerators.amd(Path("/machine"), {}).devices
slots = Slots(folder=Path("/slots"), boot="boot-1")
least, most = map(int, sys.argv[1:])
with slots.take(seen, least=least, most=most, patience=60) as held:
    print(len(seen), *(device.serial for device in held), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def board(tmp_path):
    """Four boards as the host has them, and the folder of its locks."""
    boards = mi300x(4)
    root = machine(tmp_path / "machine", *boards)
    for gpu in boards:
        node = root / f"dev/dri/renderD{gpu.minor}"
        node.unlink()
        os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(RENDER, gpu.minor))
    (tmp_path / "slots").mkdir()
    return tmp_path, [gpu.minor for gpu in boards]


@contextmanager
def gate(engine, board, given, *, least=1, most=4):
    """What a gate in a container of its own sees and holds, until the block is left."""
    folder, minors = board
    name = f"test-gpus-{random.randrange(10**9)}"
    argv = [engine.kind, "run", "--rm", "--interactive", f"--name={name}", "--network=none"]
    argv += [f"--device-cgroup-rule=c {RENDER}:{minors[number]} rw" for number in given]
    for path in {sys.prefix, sys.base_prefix, str(ROOT)}:
        argv.append(f"--volume={path}:{path}:ro")
    argv += [f"--volume={folder / 'machine'}:/machine:ro", f"--volume={folder / 'slots'}:/slots"]
    argv += [f"--env=PYTHONPATH={ROOT / 'build'}:{ROOT}", BASE]
    argv += [sys.executable, "-c", HOLD, str(least), str(most)]
    with subprocess.Popen(
        argv, env={**os.environ, **engine.env}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as client:  # fmt: skip
        try:
            line = client.stdout.readline()
            assert line, client.stderr.read()
            count, *serials = line.split()
            yield name, int(count), set(serials)
        finally:
            engine.remove(name)


def test_gates_in_containers_see_what_their_cgroup_gives_and_never_hold_the_same_gpu(engine, board):
    with ExitStack() as both:
        name, seen, first = both.enter_context(gate(engine, board, range(3), most=2))
        assert (seen, len(first)) == (3, 2), "of four boards three were given"
        _, seen, second = both.enter_context(gate(engine, board, range(1, 4)))
        assert seen == 3
        assert len(second) == 2, "boards 2 and 3; board 1 is the first gate's"
        assert not first & second
        engine("kill", "--signal=KILL", name)
        engine("wait", name, check=False)
        with gate(engine, board, range(4), least=2) as (_, seen, third):
            assert seen == 4
            assert third == first, "the kernel freed what the killed one held"
