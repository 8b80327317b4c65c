"""Machines that break, and what is recorded of them."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from agent.recording.io import load_snapshot
from agent.snapshot import NvmlGpu, NvmlLink
from gputopo.model import Gpu, Health, Link, NodeTopology, Uplink
from tests.simulated_node.kubelet import Container, DeviceManager, Pod, Rejection, Resource
from tests.simulated_node.machine import Machine
from tests.simulated_node.recording import snapshot, write_whole
from tests.simulated_node.shapes import SHAPES, bridged_pairs_8, islands_4_4, nvswitch_8, on_node, pcie_8

GPU = "nvidia.com/gpu"


def test_a_lost_gpu_loses_its_links() -> None:
    machine = Machine(bridged_pairs_8(), lost={3})

    gpu, links = machine.topology.get_gpu(3), machine.topology.nvlink
    assert gpu == Gpu(index=3, bus_id="0000:40:00.0", health=Health.LOST)
    assert links is not None
    assert [(link.a, link.b) for link in links.links] == [(0, 1), (4, 5), (6, 7)]


def test_a_link_without_active_lanes_keeps_its_expected_lanes() -> None:
    machine = Machine(bridged_pairs_8(), dead_links={frozenset({2, 3})})

    links = machine.topology.nvlink
    assert links is not None
    assert links.links[1] == Link(a=2, b=3, lanes=0, expected_lanes=12, gbps=0.0)
    assert machine.topology.islands != machine.built.islands


def test_an_uplink_without_active_lanes_keeps_its_expected_lanes() -> None:
    links = Machine(nvswitch_8(), dead_links={frozenset({5})}).topology.nvlink

    assert links is not None
    assert links.uplinks[5] == Uplink(gpu=5, fabric=0, lanes=0, expected_lanes=18, gbps=0.0)


def test_unknown_nvlinks_stay_unknown() -> None:
    blind = NodeTopology(gpus=(Gpu(index=0),), pcie=((None,),))

    assert Machine(blind).topology.nvlink is None
    assert [device.id for device in Machine(blind).devices()] == ["GPU-0"]


def test_shares_are_named_by_gpu_and_number() -> None:
    machine = Machine(NodeTopology(gpus=(Gpu(index=0, uuid="GPU-a"), Gpu(index=1, uuid="GPU-b"))))

    assert [device.id for device in machine.devices(2)] == ["GPU-a::0", "GPU-a::1", "GPU-b::0", "GPU-b::1"]


def test_lost_gpu_makes_the_plugin_fail_for_all() -> None:
    rejection = _admitted_without_gpu_7(Machine(pcie_8(), lost={7}))

    assert rejection is not None
    assert "unable to get device link information: GPU is lost" in rejection.message


def test_an_unhealthy_gpu_is_not_allocated() -> None:
    assert _admitted_without_gpu_7(Machine(pcie_8(), sick={7})) is None


def test_crash_of_the_plugin_rejects_the_pod() -> None:
    """A bridged pair on one socket, three GPUs on the other, and a pod that wants three."""
    machine = Machine(bridged_pairs_8(), dead_links={frozenset({4, 5}), frozenset({6, 7})})
    devices = machine.devices()
    manager = DeviceManager({GPU: Resource(devices, machine.best_effort())}, Random(0))
    manager.set_unhealthy([devices[gpu].id for gpu in (2, 3, 7)])

    rejection = manager.admit(Pod("a", "default", "a", (Container("c0", {GPU: 3}),)))

    assert rejection is not None
    assert "rpc error: code = Unavailable desc = error reading from server: EOF" in rejection.message


def _admitted_without_gpu_7(machine: Machine) -> Rejection | None:
    devices = machine.devices()
    manager = DeviceManager({GPU: Resource(devices, machine.best_effort())}, Random(0))
    manager.set_unhealthy([devices[7].id])
    return manager.admit(Pod("a", "default", "a", (Container("c0", {GPU: 1}),)))


@pytest.mark.parametrize("name", SHAPES)
def test_uuids_are_stable_on_a_node_and_unique_between_nodes(name: str) -> None:
    shape = SHAPES[name]()

    assert on_node(shape, "a") == on_node(shape, "a")
    uuids = {gpu.uuid for node in ("a", "b") for gpu in on_node(shape, node).gpus}
    assert len(uuids) == 16


def test_recording_of_a_machine_with_links() -> None:
    recorded = snapshot(on_node(bridged_pairs_8(), "gpu-0"), "gpu-0")

    assert recorded.nvml is not None
    assert recorded.sysfs is not None
    assert recorded.nvml.cuda_version == 13000
    first = recorded.nvml.gpus[0]
    assert (first.bus_id, first.memory_bytes, first.mig_mode) == ("00000000:10:00.0", 81920 * 2**20, 0)
    assert first.nvlinks == tuple(
        NvmlLink(link=port, active=True, remote_type="gpu", remote_bus_id="00000000:20:00.0", speed_mbps=25000)
        for port in range(12)
    )
    pair = recorded.nvml.pairs[0]
    assert (pair.a, pair.b, pair.ancestor, pair.p2p_nvlink) == (0, 1, 10, 0)
    assert recorded.sysfs.files["bus/pci/devices/0000:50:00.0/numa_node"] == "1\n"


def test_recording_of_a_broken_machine() -> None:
    machine = Machine(on_node(nvswitch_8(), "gpu-0"), lost={1}, dead_links={frozenset({0})})

    nvml = snapshot(machine.topology, "gpu-0").nvml

    assert nvml is not None
    assert (nvml.device_count, len(nvml.gpus), len(nvml.pairs)) == (8, 8, 7 * 6 // 2)
    assert nvml.gpus[1] == NvmlGpu(index=1, errors={"nvmlDeviceGetHandleByIndex_v2": "GPU_IS_LOST"})
    assert nvml.gpus[0].nvlinks == tuple(NvmlLink(link=port, active=False) for port in range(18))
    assert nvml.gpus[2].nvlinks[0] == NvmlLink(
        link=0, active=True, remote_type="switch", remote_bus_id="00000000:C0:00.0", speed_mbps=25000
    )
    assert [(pair.a, pair.b, pair.p2p_nvlink) for pair in nvml.pairs[:7]] == [
        (0, 2, 5),
        (0, 3, 5),
        (0, 4, 5),
        (0, 5, 5),
        (0, 6, 5),
        (0, 7, 5),
        (2, 3, 0),
    ]


def test_a_recording_contains_only_known_facts() -> None:
    recorded = snapshot(NodeTopology(gpus=(Gpu(index=0), Gpu(index=1))), "bare")

    assert recorded.nvml is not None
    assert recorded.nvml.gpus == (NvmlGpu(index=0), NvmlGpu(index=1))
    assert recorded.nvml.pairs[0].ancestor is None


def test_the_file_is_replaced_atomically(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    write_whole(path, "{}")
    write_whole(path, '{"format": 1}')

    assert json.loads(path.read_text()) == {"format": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["snapshot.json"]


def test_recording_is_a_snapshot_that_the_agent_reads() -> None:
    from agent.recording.io import dump_snapshot

    recorded = snapshot(on_node(islands_4_4(), "gpu-0"), "gpu-0")

    assert load_snapshot(dump_snapshot(recorded)) == recorded
