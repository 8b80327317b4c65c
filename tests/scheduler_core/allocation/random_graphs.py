"""Random machines, and a simulated kubelet with the device plugin's best-effort policy."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from gputopo.model import Gpu, Link, NodeTopology, Nvlink, PcieDistance
from scheduler_core.request.device_request import ContainerStep
from tests.simulated_node.kubelet import Container, Device, DeviceManager, PluginError, Pod, Resource
from tests.simulated_node.preferred import PluginCrashError, Scores, best_effort
from tests.simulated_node.topology_manager import NumaPolicy


@st.composite
def graphs(draw: st.DrawFn, most: int = 6) -> NodeTopology:
    """Small machines with any PCIe tree and any links: ties, near ties, one-sided links, and crashes of the plugin."""
    size = draw(st.integers(2, most))
    pairs = [(a, b) for a in range(size) for b in range(a + 1, size)]
    distance = {pair: draw(st.sampled_from(PcieDistance)) for pair in pairs}
    lanes = {pair: draw(st.sampled_from((0, 0, 1, 2, 12, 20))) for pair in pairs}
    if draw(st.integers(0, 7)) == 0:
        lanes[draw(st.sampled_from(pairs))] = -1
    numa = [draw(st.sampled_from((0, 1))) for _ in range(size)]
    return NodeTopology(
        gpus=_gpus(size, numa),
        nvlink=Nvlink(links=tuple(_link(a, b, n) for (a, b), n in lanes.items() if n)),
        pcie=tuple(tuple(None if a == b else distance[min(a, b), max(a, b)] for b in range(size)) for a in range(size)),
    )


def _link(a: int, b: int, lanes: int) -> Link:
    """-1: only one end reports the link."""
    return Link(a=a, b=b, lanes=0, expected_lanes=1, one_sided=True) if lanes < 0 else Link(a=a, b=b, lanes=lanes)


def _gpus(size: int, numa: list[int] | None = None) -> tuple[Gpu, ...]:
    return tuple(Gpu(index=each, uuid=f"GPU-{each}", numa_node=numa[each] if numa else None) for each in range(size))


def best_effort_resource(devices: tuple[Device, ...], scores: Scores) -> Resource:
    """Return a resource whose plugin has the best-effort policy."""
    by_index = {device.gpu: device for device in devices}

    def prefer(available: object, required: object, size: int) -> list[Device]:
        assert isinstance(available, list)
        assert isinstance(required, list)
        try:
            chosen = best_effort([each.gpu for each in available], [each.gpu for each in required], size, scores)
        except PluginCrashError as crash:
            raise PluginError(str(crash)) from crash
        return [by_index[each] for each in chosen]

    return Resource(devices, prefer)


def kubelet(
    topology: NodeTopology, scores: Scores, random: Random, policy: NumaPolicy = NumaPolicy.NONE
) -> DeviceManager:
    """A node with the plugin's best-effort policy."""
    devices = tuple(Device(gpu.uuid or "", gpu.index, gpu.numa_node) for gpu in topology.gpus)
    return DeviceManager({"nvidia.com/gpu": best_effort_resource(devices, scores)}, random, policy)


def kubelet_pod(uid: str, program: list[ContainerStep]) -> Pod:
    """A pod with one container per step; init containers that end come first, as Kubernetes orders them."""
    return Pod(
        uid,
        "team",
        uid,
        tuple(
            Container(f"c{at}", {"nvidia.com/gpu": step.devices}, init=not step.holds_until_end)
            for at, step in enumerate(program)
        ),
    )
