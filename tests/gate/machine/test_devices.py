"""From the GPUs of a machine to lanes: how many each process gets, and what it is told of them."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from support.topology import GIB, Gpu, machine, mi300x, mi300x_cpx

import amdgpu_family_matrix as matrix
from rocwheel.base.values import replace
from rocwheel.gate import NoRunnerError
from rocwheel.gate.machine import devices
from rocwheel.gate.request import DeviceChoice


def asked(
    *,
    gpus=(1,),
    family="gfx94X-dcgpu",
    lanes=0,
    jobs=0,
    memory=0,
    device=DeviceChoice.FAMILY,
    partitions=False,
):
    return SimpleNamespace(
        suite=SimpleNamespace(
            name="own",
            gpus=gpus,
            needs_gpu=gpus != (0,),
            process_memory=memory,
            partitions=partitions,
        ),
        jobs=jobs,
        family=matrix.family(family),
        lanes=lanes,
        device=device,
    )


@pytest.fixture
def host(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))

    def of(*gpus, **environ):
        root = machine(tmp_path_factory.mktemp("machine"), *gpus)
        return SimpleNamespace(root=root, environ=environ, runner=None)

    return of


def share(request, host):
    allotted = devices.choose(request, host)
    return list(devices.lanes(allotted, allotted.allotment.devices, {"FROM": "suite"}))


@pytest.mark.parametrize(
    ("count", "lanes"),
    [(8, ["gpu0-7"]), (7, ["gpu0-3"]), (4, ["gpu0-3"]), (3, ["gpu0-1"]), (2, ["gpu0-1"])],
)
def test_a_suite_for_several_gpus_takes_the_largest_number_there_is(host, count, lanes):
    found = share(asked(gpus=(8, 4, 2)), host(*mi300x(count)))
    assert [lane.name for lane in found] == lanes


@pytest.mark.parametrize(("gib", "lanes", "most"), [(8, 2, 2), (24, 2, 6), (1024, 8, 32)])
def test_a_process_may_hold_half_its_share_of_the_hosts_memory(monkeypatch, gib, lanes, most):
    monkeypatch.setattr(devices.cgroup, "memory", lambda: gib << 30)
    assert devices.host_memory(lanes) == most << 30


def test_each_process_has_a_gpu_and_a_part_of_the_cpus(host):
    found = share(asked(), host(*mi300x(8)))
    assert [lane.env["ROCR_VISIBLE_DEVICES"] for lane in found] == list("01234567")
    assert {lane.env["OMP_NUM_THREADS"] for lane in found} == {"2"}
    assert {lane.env["FROM"] for lane in found} == {"suite"}
    assert devices.choose(asked(lanes=3), host(*mi300x(8))).most == 3


def test_partitions_of_one_board_are_devices_of_their_own(host):
    found = share(asked(), host(*mi300x_cpx()))
    assert len({lane.devices[0].serial for lane in found}) == 8
    (one,) = share(asked(gpus=(8, 4, 2), partitions=True), host(*mi300x_cpx()))
    assert one.env["HIP_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"


def test_of_a_mixed_machine_only_the_familys_gpus_are_taken_by_their_numbers(host):
    mixed = (
        Gpu(version=110000, unique_id=1, minor=128),
        *(Gpu(version=90402, unique_id=n, minor=128 + n) for n in (2, 3)),
    )
    found = share(asked(), host(*mixed))
    assert [lane.env["ROCR_VISIBLE_DEVICES"] for lane in found] == ["1", "2"]
    assert {lane.env["HIP_VISIBLE_DEVICES"] for lane in found} == {"0"}
    (other,) = share(asked(family="gfx110X-all"), host(*mixed))
    assert other.devices[0].target == "gfx1100"


def test_an_inherited_mask_leaves_fewer_gpus(host):
    found = share(asked(gpus=(8, 4, 2)), host(*mi300x(8), ROCR_VISIBLE_DEVICES="2,3,4"))
    assert [lane.env["HIP_VISIBLE_DEVICES"] for lane in found] == ["0,1"]
    assert found[0].env["ROCR_VISIBLE_DEVICES"] == "2,3"


def test_the_cpu_is_taken_only_when_named_or_nothing_else_is_needed(host):
    with pytest.raises(NoRunnerError):
        devices.choose(asked(), host())
    for request in (asked(device=DeviceChoice.CPU), asked(gpus=(0,))):
        found = share(request, host())
        assert [lane.name for lane in found] == [f"cpu{n}" for n in range(8)]
        assert {lane.env["HIP_VISIBLE_DEVICES"] for lane in found} == {"-1"}


def test_processes_share_a_gpu_where_the_suite_says_what_one_takes(host, monkeypatch):
    monkeypatch.setattr(devices.cgroup, "memory", lambda: 1 << 40)
    found = share(asked(memory=2), host(*mi300x(2)))
    assert [lane.name for lane in found] == [f"gpu{g}.{n}" for g in (0, 1) for n in range(8)]
    assert [lane.env["ROCR_VISIBLE_DEVICES"] for lane in found] == ["0"] * 8 + ["1"] * 8
    assert {lane.env["OMP_NUM_THREADS"] for lane in found} == {"1"}, "of 16 CPUs"
    assert set(found[0].devices) == set(found[7].devices)
    assert not set(found[0].devices) & set(found[8].devices)


@pytest.mark.parametrize(
    ("changes", "host_gib", "jobs"),
    [
        ({"memory": 100}, 1024, 1),  # the GPU's memory: 192 GiB
        ({"memory": 60}, 1024, 3),
        ({"memory": 2}, 13, 2),  # the host's: 6 GiB each
        ({"memory": 2, "jobs": 5}, 1024, 5),  # what was asked
        ({"memory": 0}, 1024, 1),  # a suite that says nothing
        ({"memory": 2, "lanes": 3}, 1024, 3),  # most processes at once
        ({"memory": 2, "gpus": (2, 1)}, 1024, 16),
    ],
)
def test_memory_cpus_and_what_was_asked_limit_the_processes_of_a_gpu(
    host, monkeypatch, changes, host_gib, jobs
):
    monkeypatch.setattr(devices.cgroup, "memory", lambda: host_gib << 30)
    assert devices.choose(asked(**changes), host(*mi300x(1))).jobs == jobs


def cpus_of(lanes):
    """Which of 16 CPUs each lane has, counted on from 0 again."""
    return [sorted(number % 16 for number in lane.cpus) for lane in lanes]


@pytest.mark.parametrize(("count", "jobs"), [(8, 1), (3, 1), (2, 2), (1, 5)])
def test_the_processes_of_a_machine_divide_its_cpus(host, count, jobs):
    found = cpus_of(share(asked(jobs=jobs), host(*mi300x(count))))
    assert len(found) == count * jobs
    assert sorted(number for cpus in found for number in cpus) == list(range(16))
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_gates_and_pods_with_a_gpu_each_have_cpus_of_their_own(host):
    """A pod sees its own GPU alone, and all CPUs; nothing but its request says what is its."""
    pods = []
    for mine in mi300x(4):
        gpus = (replace(gpu, given=gpu == mine) for gpu in mi300x(4))
        (lane,) = share(asked(), host(*gpus, KUBE_CPU_REQUEST="4"))
        assert lane.env["OMP_NUM_THREADS"] == "4"
        pods.append(lane)
    assert sorted(number for cpus in cpus_of(pods) for number in cpus) == list(range(16))


def test_processes_on_the_cpu_divide_it_and_more_than_there_are_get_one_each(host):
    found = cpus_of(share(asked(device=DeviceChoice.CPU), host()))
    assert sorted(number for cpus in found for number in cpus) == list(range(16))
    many = cpus_of(share(asked(device=DeviceChoice.CPU, lanes=40), host()))
    assert {len(cpus) for cpus in many} == {1}
    assert {number for cpus in many for number in cpus} == set(range(16))


def test_partitions_of_one_board_are_several_gpus_only_where_the_suite_says_so(host):
    with pytest.raises(NoRunnerError, match="needs 2 GPUs, this machine has 1"):
        devices.choose(asked(gpus=(8, 4, 2)), host(*mi300x_cpx()))
    other = (
        replace(gpu, unique_id=7, minor=gpu.minor + 8, location=gpu.location + 256)
        for gpu in mi300x_cpx()
    )
    two = host(*mi300x_cpx(), *other)
    (lane,) = share(asked(gpus=(8, 4, 2)), two)
    assert len({device.board for device in lane.devices}) == len(lane.devices) == 2
    assert len(share(asked(), two)) == 16, "a process with one GPU may have a partition"


STRIX = Gpu(version=110501, unique_id=0, minor=128, memory=GIB // 2, location=0xC300)


@pytest.mark.parametrize(
    ("gtt_used", "available", "jobs"),
    [(0, 120, 7), (64, 120, 3), (0, 20, 2), (125, 120, 1)],  # 2 GiB and 6 of the host's each
)
def test_processes_on_an_apu_are_as_many_as_memory_is_really_free(
    host, monkeypatch, gtt_used, available, jobs
):
    monkeypatch.setattr(devices.cgroup, "memory", lambda _root=None: 128 * GIB)
    strix = host(STRIX)
    folder = strix.root / "sys/class/drm/renderD128/device"
    folder.mkdir(parents=True)
    sizes = {"vram_total": GIB // 2, "vram_used": GIB // 4, "gtt_total": 60 * GIB,
             "gtt_used": gtt_used * GIB // 2}  # fmt: skip
    for name, size in sizes.items():
        (folder / f"mem_info_{name}").write_text(f"{size}\n")
    (strix.root / "proc").mkdir()
    (strix.root / "proc/meminfo").write_text(
        f"MemTotal: 1 kB\nMemAvailable: {available << 20} kB\n"
    )
    assert devices.choose(asked(family="gfx1151", memory=2), strix).jobs == jobs
