"""The reader under random damage, for a bounded time: an error of ours, or nothing.

`ROCWHEEL_FUZZ_SECONDS` goes on for so long, with a seed of chance; `ROCWHEEL_FUZZ_SEED` repeats a
run that failed. Without either the same wheels are tried each time.
"""

from __future__ import annotations

import os
import random
import secrets
import struct
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support import wheels
from support.wheels import Zip

from rocwheel.base import yaml_file
from rocwheel.base.errors import WheelError
from rocwheel.wheel import rename
from rocwheel.wheel.diff import diff
from rocwheel.wheel.inspect import inspect
from rocwheel.wheel.verify import verify
from rocwheel.wheel.wheel_policy import WheelPolicy

pytestmark = pytest.mark.integration

POLICY = yaml_file.read(Path(__file__).parents[2] / "ci" / "wheel_policy.yaml", WheelPolicy)
LEAST = 300  # wheels
VALUES = (0, 1, 2, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF)


def sound(dice: random.Random) -> bytes:
    """A plugin wheel in one of the shapes that an archive may have."""
    made = dice.choice((wheels.plugin(), wheels.pjrt()))
    members = wheels.entries(made)
    for entry in members:
        entry.zip64 = dice.random() < 0.2
        if dice.random() < 0.2:
            entry.descriptor = "signed64" if entry.zip64 else "signed"
        if entry.name.endswith(b".so") and dice.random() < 0.7:
            entry.method = 0  # damage reaches the ELF headers, with a CRC that agrees
            entry.content = damaged(dice, entry.content)
    return Zip(members).to_bytes()


def damaged(dice: random.Random, data: bytes) -> bytes:
    image = bytearray(data)
    for _ in range(dice.choice((0, 1, 1, 2, 5))):
        at = dice.randrange(max(1, len(image) - 8))
        match dice.randrange(5):
            case 0:
                image[at] ^= 1 << dice.randrange(8)
            case 1:
                struct.pack_into("<I", image, at, dice.choice(VALUES))
            case 2:
                struct.pack_into("<Q", image, at, dice.choice(VALUES) << dice.choice((0, 31)))
            case 3:
                del image[at : at + dice.randrange(40)]
            case _:
                image[at:at] = dice.randbytes(dice.randrange(40))
    return bytes(image)


@pytest.mark.soak
def test_no_damage_gets_past_the_readers_own_errors(tmp_path: Path) -> None:
    seconds = float(os.environ.get("ROCWHEEL_FUZZ_SECONDS") or 0)
    chance = secrets.randbits(32) if seconds else 20261122
    seed = int(os.environ.get("ROCWHEEL_FUZZ_SEED") or chance)
    deadline = time.monotonic() + seconds
    dice = random.Random(seed)
    good = [wheels.plugin().write(tmp_path), wheels.pjrt().write(tmp_path)]
    path = tmp_path / "jax_rocm7_plugin-0.9.1-py3-none-manylinux_2_28_x86_64.whl"
    tried = refused = 0
    while tried < LEAST or time.monotonic() < deadline:
        path.write_bytes(damaged(dice, sound(dice)))
        tried += 1
        try:
            verify(path, policy=POLICY)
            for other in good:
                with suppress(WheelError):
                    diff(other, path)
            with suppress(WheelError):
                rename.plan_reversion([path], rename.NewVersion(post=1))
            inspect(path)
        except WheelError:
            refused += 1
        except Exception as exc:  # noqa: BLE001  # that nothing else comes is what is tested
            path.rename(Path.cwd() / "fuzz-failure.whl")
            pytest.fail(f"{exc!r}: ROCWHEEL_FUZZ_SEED={seed}, wheel number {tried}")
    assert 0 < refused < tried
