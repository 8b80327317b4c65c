"""A machine whose GPUs and links die and come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from gputopo.model import Gpu, Health, Link, NodeTopology, Nvlink, Uplink
from tests.simulated_node.kubelet import Device, PluginError, Policy
from tests.simulated_node.preferred import PluginCrashError, best_effort, pair_scores

_Edge = TypeVar("_Edge", Link, Uplink)


@dataclass
class Machine:
    """A machine as built, and what is broken of it."""

    built: NodeTopology
    lost: set[int] = field(default_factory=set)  # GPUs that fell off the bus: NVML says GPU_IS_LOST (XID 79)
    sick: set[int] = field(default_factory=set)  # GPUs that the plugin calls unhealthy, while NVML still answers
    dead_links: set[frozenset[int]] = field(default_factory=set)  # {a, b}, or {a}: the uplink of a GPU

    @property
    def topology(self) -> NodeTopology:
        """The machine as it is now."""
        gpus = tuple(_lost(gpu) if gpu.index in self.lost else gpu for gpu in self.built.gpus)
        return msgspec.structs.replace(self.built, gpus=gpus, nvlink=self._nvlink())

    def devices(self, replicas: int = 1) -> tuple[Device, ...]:
        """Return the devices that the device plugin offers: the GPUs at its start, or ``replicas`` shares of each."""
        gpus = [(gpu, gpu.uuid or f"GPU-{gpu.index}") for gpu in self.built.gpus]
        if replicas == 1:
            return tuple(Device(uuid, gpu.index, gpu.numa_node) for gpu, uuid in gpus)
        shares = ((gpu, f"{uuid}::{number}") for gpu, uuid in gpus for number in range(replicas))
        return tuple(Device(name, gpu.index, gpu.numa_node) for gpu, name in shares)

    def best_effort(self) -> Policy:
        """The device plugin's policy for whole GPUs, on this machine as it is at the time of each call."""

        def prefer(available: Sequence[Device], required: Sequence[Device], size: int) -> list[Device]:
            if self.lost:  # it looks at every GPU of the machine before it looks at what is available
                raise PluginError(
                    "rpc error: code = Unknown desc = error getting list of preferred allocation devices: "
                    "unable to get device link information: GPU is lost"  # NVIDIA/k8s-device-plugin#2038
                )
            by_index = {device.gpu: device for device in available}
            offered, needed = [device.gpu for device in available], [device.gpu for device in required]
            try:
                chosen = best_effort(offered, needed, size, pair_scores(self.topology))
            except PluginCrashError as crash:
                raise PluginError("rpc error: code = Unavailable desc = error reading from server: EOF") from crash
            return [by_index[index] for index in chosen]

        return prefer

    def _nvlink(self) -> Nvlink | None:
        if self.built.nvlink is None:
            return None
        links = (link for link in self.built.nvlink.links if not {link.a, link.b} & self.lost)
        uplinks = (uplink for uplink in self.built.nvlink.uplinks if uplink.gpu not in self.lost)
        return Nvlink(
            links=tuple(_down(link) if {link.a, link.b} in self.dead_links else link for link in links),
            uplinks=tuple(_down(uplink) if {uplink.gpu} in self.dead_links else uplink for uplink in uplinks),
        )


def distributed(replicas: Sequence[Device]) -> Policy:
    """The device plugin's policy for shares of GPUs: each from the GPU of which the fewest are taken.

    ``replicas`` are all shares of the node. Source: ``internal/rm/allocate.go`` of NVIDIA/k8s-device-plugin.
    """

    def prefer(available: Sequence[Device], required: Sequence[Device], size: int) -> list[Device]:
        free = [device for device in available if device not in required]
        chosen = list(required)
        while len(chosen) < size:
            left = [device.gpu for device in free]
            taken = {gpu: sum(device.gpu == gpu for device in replicas) - left.count(gpu) for gpu in left}
            chosen.append(min(free, key=lambda device: taken[device.gpu]))
            free.remove(chosen[-1])
        return chosen

    return prefer


def _lost(gpu: Gpu) -> Gpu:
    """Return a GPU that NVML cannot read: only its index and bus ID are known."""
    return Gpu(index=gpu.index, bus_id=gpu.bus_id, health=Health.LOST)


def _down(edge: _Edge) -> _Edge:
    return msgspec.structs.replace(edge, lanes=0, gbps=0.0)
