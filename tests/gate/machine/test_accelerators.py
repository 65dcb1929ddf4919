"""Which devices a run may use: topology, masks, families."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from support.topology import Gpu, hide, machine, mi300x, mi300x_cpx, workstation

from rocwheel.base.errors import CommandError, HostError
from rocwheel.base.values import replace
from rocwheel.gate import InfraError, NoRunnerError
from rocwheel.gate.machine import accelerators
from rocwheel.gate.machine.accelerators import Maker
from rocwheel.records.verdict import State


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (90006, "gfx906"), (90010, "gfx90a"), (90012, "gfx90c"), (90402, "gfx942"),
        (90500, "gfx950"), (100300, "gfx1030"), (110000, "gfx1100"), (110501, "gfx1151"),
        (120001, "gfx1201"), (120500, "gfx1250"),
    ],
)  # fmt: skip
def test_the_kernels_number_becomes_llvms_name(number, name):
    assert accelerators.gfx_name(number) == name


def test_eight_gpus_are_numbered_in_the_kernels_order_with_serial_and_memory(tmp_path):
    devices = accelerators.amd(machine(tmp_path, *mi300x(8)), {}).devices
    assert [device.index for device in devices] == list(range(8))
    assert {device.target for device in devices} == {"gfx942"}
    assert devices[7].serial == "21b6d61638a86f07"
    assert devices[0].memory == 192 << 30
    assert devices[0].maker is Maker.AMD


@pytest.mark.parametrize("seen", range(8))
def test_a_partition_has_the_same_serial_on_the_host_and_alone_in_a_container(tmp_path, seen):
    host = accelerators.amd(machine(tmp_path / "host", *mi300x_cpx()), {}).devices
    inside = machine(tmp_path / "container", *mi300x_cpx())
    hide(inside, *(128 + n for n in range(8) if n != seen))
    (alone,) = accelerators.amd(inside, {}).devices
    assert alone.serial == host[seen].serial, "both lock the same file"


def test_partitions_with_ids_of_their_own_are_of_one_board_all_the_same(tmp_path):
    gpus = (replace(gpu, unique_id=n + 1) for n, gpu in enumerate(mi300x_cpx()))
    devices = accelerators.amd(machine(tmp_path, *gpus), {}).devices
    assert (len({d.serial for d in devices}), len({d.board for d in devices})) == (8, 1)


def test_partitions_that_cannot_be_told_apart_are_infra(tmp_path):
    twins = [replace(gpu, location=0x0500) for gpu in mi300x_cpx()]
    with pytest.raises(InfraError, match="8 devices are called 21b6d61638a86f00"):
        accelerators.amd(machine(tmp_path, *twins), {})


@pytest.mark.parametrize("content", ["", "simd_count\n", "simd_count x\n"])
def test_a_gpu_that_cannot_be_read_is_left_out_and_named_and_keeps_its_number(tmp_path, content):
    root = machine(tmp_path, *mi300x(3))
    (root / "sys/class/kfd/kfd/topology/nodes/3/properties").write_text(content)
    allotment = accelerators.amd(root, {})
    assert [(d.index, d.serial[-1]) for d in allotment.devices] == [(0, "0"), (2, "2")]
    assert allotment.env(allotment.devices)["ROCR_VISIBLE_DEVICES"] == "0,2"
    (why,) = allotment.ill
    assert "nodes/3: " in why
    with pytest.raises(InfraError, match=r"unreadable GPU topology: .*nodes/3"):
        accelerators.amd(root, {"HIP_VISIBLE_DEVICES": "1"})


def test_a_property_of_a_newer_kernel_that_is_no_number_is_not_asked_for(tmp_path):
    root = machine(tmp_path, *mi300x(2))
    with (root / "sys/class/kfd/kfd/topology/nodes/2/properties").open("a") as file:
        file.write("partition_mode SPX NPS1\nempty\n")
    assert len(accelerators.amd(root, {}).devices) == 2


@pytest.mark.parametrize(("number", "hidden"), [(errno.EPERM, True), (errno.EACCES, False)])
def test_what_a_device_cgroup_hides_is_not_ours_and_what_a_mode_hides_is_named(
    tmp_path, monkeypatch, number, hidden
):
    """Root reads everything here, so the kernel's answer is put in its place."""
    root = machine(tmp_path, *mi300x(2))
    read = Path.read_text

    def answer(path, *arguments, **options):
        if path.parts[-2:] == ("3", "properties"):
            raise PermissionError(number, "not for you", str(path))
        return read(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", answer)
    allotment = accelerators.amd(root, {})
    assert len(allotment.devices) == 1
    assert bool(allotment.ill) is not hidden


def test_a_board_without_a_unique_id_is_named_by_its_place(tmp_path):
    devices = accelerators.amd(machine(tmp_path, *workstation()), {}).devices
    assert [(d.target, d.serial) for d in devices] == [
        ("gfx1100", "00000000deadbeef"),
        ("gfx1036", "pci-0000-0e00"),
    ]


def test_a_machine_without_kfd_has_no_gpu(tmp_path):
    assert accelerators.amd(tmp_path, {}).devices == ()


def test_a_gpu_whose_render_node_was_not_given_is_not_counted(tmp_path):
    first, second = mi300x(2)
    hidden = Gpu(version=first.version, unique_id=1, minor=first.minor, given=False)
    devices = accelerators.amd(machine(tmp_path, hidden, second), {}).devices
    assert [(device.index, device.serial) for device in devices] == [(0, "21b6d61638a86f01")]


@pytest.mark.parametrize(
    "text",
    ["simd_count many\n", "simd_count\n", "simd_count 4 5\n", "\xff\n", "drm_render_minor 0\n"],
)
def test_a_malformed_topology_is_infra_never_a_default(tmp_path, text):
    root = machine(tmp_path, *mi300x(1))
    path = root / "sys/class/kfd/kfd/topology/nodes/2/properties"
    path.write_text(path.read_text() + text, encoding="latin-1")
    with pytest.raises(InfraError) as caught:
        accelerators.amd(root, {})
    assert caught.value.state is State.INFRA
    assert "nodes/2" in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "indices", "serials"),
    [
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, [0, 1], "23"),
        ({"HIP_VISIBLE_DEVICES": "2,3"}, [2, 3], "23"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [1], "1"),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, [1], "3"),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, [0], "0"),
        ({"GPU_DEVICE_ORDINAL": "2,3"}, [2, 3], "23"),
        ({"GPU_DEVICE_ORDINAL": "0", "HIP_VISIBLE_DEVICES": "1"}, [1], "1"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-21b6d61638a86f02"}, [0], "2"),
        ({"HIP_VISIBLE_DEVICES": "0,9,1"}, [0], "0"),
        ({"HIP_VISIBLE_DEVICES": "1,1"}, [1], "1"),
        ({"HIP_VISIBLE_DEVICES": "-1"}, [], ""),
        ({"HIP_VISIBLE_DEVICES": ""}, [], ""),
        ({"ROCR_VISIBLE_DEVICES": ""}, [], ""),
        ({"ROCR_VISIBLE_DEVICES": "GPU-"}, [], ""),
    ],
)
def test_an_inherited_mask_is_an_allotment(tmp_path, environ, indices, serials):
    devices = accelerators.amd(machine(tmp_path, *mi300x(4)), environ).devices
    assert [device.index for device in devices] == indices
    assert "".join(device.serial[-1] for device in devices) == serials


def test_a_childs_mask_narrows_what_was_inherited(tmp_path):
    root = machine(tmp_path, *mi300x(4))
    allotment = accelerators.amd(root, {"ROCR_VISIBLE_DEVICES": "2,3"})
    assert allotment.env(allotment.devices[1:]) == {
        "ROCR_VISIBLE_DEVICES": "3",
        "HIP_VISIBLE_DEVICES": "0",
    }
    child = accelerators.amd(root, allotment.env(allotment.devices[1:]))
    assert [device.serial for device in child.devices] == [allotment.devices[1].serial]


def test_a_device_outside_the_allotment_is_never_given(tmp_path):
    root = machine(tmp_path, *mi300x(2))
    everything, less = (
        accelerators.amd(root, {}),
        accelerators.amd(root, {"HIP_VISIBLE_DEVICES": "0"}),
    )
    with pytest.raises(ValueError, match="outside"):
        less.env(everything.devices)


def test_a_family_keeps_only_its_own_targets(tmp_path):
    allotment = accelerators.amd(machine(tmp_path, *workstation()), {})
    kept = accelerators.of_targets(allotment, ("gfx1100", "gfx1101"), name="gfx110X-all")
    assert [device.target for device in kept.devices] == ["gfx1100"]
    with pytest.raises(NoRunnerError, match="gfx942; it has gfx1036, gfx1100") as caught:
        accelerators.of_targets(allotment, ("gfx942",), name="gfx94X-dcgpu")
    assert caught.value.exit_code == State.NO_RUNNER.exit_code


class Answers:
    """A runner whose one command prints, fails or does not exist."""

    def __init__(self, answer):
        self.answer = answer

    def capture(self, _command):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


TWO = "0, GPU-aaa1, 9.0, 143771, NVIDIA H200\n1, GPU-bbb2, 9.0, 143771, NVIDIA H200\n"


def test_nvidia_cards_come_from_nvidia_smi():
    devices = accelerators.nvidia(Answers(TWO), {}).devices
    assert [(d.index, d.target, d.serial, d.name) for d in devices] == [
        (0, "sm_90", "GPU-aaa1", "NVIDIA H200"),
        (1, "sm_90", "GPU-bbb2", "NVIDIA H200"),
    ]
    assert devices[0].memory == 143771 << 20


@pytest.mark.parametrize("mask", ["1", "GPU-bbb2", "GPU-b"])
def test_a_cuda_mask_is_an_allotment_and_children_are_masked_by_uuid(mask):
    allotment = accelerators.nvidia(Answers(TWO), {"CUDA_VISIBLE_DEVICES": mask})
    assert allotment.env(allotment.devices) == {"CUDA_VISIBLE_DEVICES": "GPU-bbb2"}


def test_no_nvidia_smi_is_no_card_but_a_failing_one_is_infra():
    assert accelerators.nvidia(Answers(HostError("none")), {}).devices == ()
    with pytest.raises(InfraError):
        accelerators.nvidia(Answers(CommandError("driver mismatch")), {})
    with pytest.raises(InfraError):
        accelerators.nvidia(Answers("No devices were found\n"), {})
    with pytest.raises(InfraError, match="MIG"):
        accelerators.nvidia(Answers(TWO), {"CUDA_VISIBLE_DEVICES": "MIG-1234"})


def test_gpus_whose_render_nodes_were_not_shared_are_named(tmp_path):
    root = machine(tmp_path, *mi300x(2))
    for node in sorted((root / "dev/dri").glob("renderD*")):
        node.unlink()
    allotment = accelerators.amd(root, {})
    assert allotment.devices == ()
    with pytest.raises(NoRunnerError, match=r"it has no GPU, and GPUs whose /dev/dri/renderD\d+, "):
        accelerators.of_targets(allotment, ["gfx942"], name="gfx94X-dcgpu")
