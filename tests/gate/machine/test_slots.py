"""Locks, quarantine, and what a control group leaves of the machine."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
from support.topology import hide, machine, mi300x, mi300x_cpx

from rocwheel.gate import InfraError
from rocwheel.gate.machine import accelerators
from rocwheel.gate.machine.accelerators import Accelerator, Maker
from rocwheel.gate.machine.devices import Slots


def gpus(count):
    return tuple(
        Accelerator(maker=Maker.AMD, index=n, target="gfx942", serial=f"s{n}") for n in range(count)
    )


class Time:
    """A clock that runs while one waits."""

    def __init__(self):
        self.now = 0.0

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def slots(tmp_path, time):
    return Slots(folder=tmp_path / "slots", boot="boot-1", clock=lambda: time.now, sleep=time.sleep)


def test_a_second_gate_gets_only_what_the_first_left(slots):
    with (
        slots.take(gpus(3), least=1, most=2, patience=0) as first,
        slots.take(gpus(3), least=1, most=3, patience=0) as second,
    ):
        assert [d.serial for d in (*first, *second)] == ["s0", "s1", "s2"]
    with slots.take(gpus(3), least=3, most=3, patience=0) as again:
        assert len(again) == 3


def test_several_devices_are_taken_all_or_none(slots, time):
    with slots.take(gpus(2), least=1, most=1, patience=0):
        with (
            pytest.raises(InfraError, match="1 of 2 devices came free within 5 s"),
            slots.take(gpus(2), least=2, most=2, patience=5),
        ):
            pytest.fail("taken although one was held")
        assert time.now >= 5
        with slots.take(gpus(2)[1:], least=1, most=1, patience=0) as other:
            assert next(iter(other)).serial == "s1"  # the failed attempt holds nothing


@pytest.mark.parametrize(
    ("board", "first", "second"),
    [
        (mi300x_cpx(), range(6), range(2, 8)),  # two containers that overlap, on one CPX board
        (mi300x_cpx(), range(8), range(6, 7)),  # the host, and a container with one partition
        (mi300x(8), range(8), range(4, 8)),  # SPX: each board is one device
    ],
)
def test_containers_over_one_hosts_locks_never_hold_the_same_device(
    tmp_path, slots, board, first, second
):
    """Made trees: each container has the host's topology and only some of its render nodes."""
    seen = []
    for name, given in (("one", first), ("two", second)):
        root = machine(tmp_path / name, *board)
        hide(root, *(gpu.minor for n, gpu in enumerate(board) if n not in given))
        seen.append(accelerators.amd(root, {}).devices)
        assert len(seen[-1]) == len(given)
    half = len(first) // 2
    with (
        slots.take(seen[0], least=1, most=half, patience=0) as one,
        slots.take(seen[1], least=1, most=8, patience=0) as two,
    ):
        mine, theirs = ({d.serial for d in held} for held in (one, two))
        assert len(mine) == half
        assert theirs == {d.serial for d in seen[1]} - mine, "all that the first left"


def test_the_lock_is_an_ordinary_flock_others_can_use(slots):
    with (
        slots.take(gpus(1), least=1, most=1, patience=0),
        (slots.folder / "rocm-s0.lock").open("r+") as file,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_quarantined_device_is_left_alone_until_the_next_boot(slots):
    one, two = gpus(2)
    slots.quarantine(one, "process 7 cannot be killed")
    with slots.take((one, two), least=1, most=2, patience=0) as got:
        assert list(got) == [two]
    with (
        pytest.raises(InfraError, match="process 7 cannot be killed"),
        slots.take((one, two), least=2, most=2, patience=0),
    ):
        pytest.fail("taken")
    rebooted = Slots(folder=slots.folder, boot="boot-2")
    assert rebooted.quarantined(one) == ""


def test_a_folder_that_cannot_be_written_is_infra_and_says_what_helps():
    slots = Slots(folder=Path("/proc/slots"), boot="boot-1")  # not even root can make it
    with (
        pytest.raises(InfraError, match="/proc/slots: No such file") as caught,
        slots.take(gpus(1), least=1, most=1, patience=0),
    ):
        pytest.fail("taken")
    assert "--slots" in caught.value.hint


def test_an_unreadable_quarantine_counts_as_one(slots):
    path = slots.quarantine(gpus(1)[0], "x")
    path.write_text("{")
    assert "unreadable" in slots.quarantined(gpus(1)[0])
