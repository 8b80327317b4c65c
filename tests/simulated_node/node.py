"""One simulated GPU node: a machine, its kubelet's device manager, and where the agent finds both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from random import Random

import msgspec

from agent.recording.io import dump_snapshot
from gputopo.model import NodeTopology
from tests import api_objects
from tests.api_objects import Object
from tests.simulated_node import recording
from tests.simulated_node.kubelet import DeviceManager, Policy, Resource
from tests.simulated_node.machine import Machine, distributed
from tests.simulated_node.shapes import on_node
from tests.simulated_node.topology_manager import NumaPolicy, TopologyConfig

BEST_EFFORT, DISTRIBUTED, ANY = "best-effort", "distributed", "any"


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The specification of a simulated node."""

    name: str
    shape: NodeTopology  # see ``shapes``; UUIDs and boot id are put in
    policy: str | Policy = BEST_EFFORT  # best-effort, distributed (shares of GPUs), any (no preference), or a function
    numa_policy: NumaPolicy | TopologyConfig = NumaPolicy.NONE
    labels: Mapping[str, str] = {}
    resource: str = api_objects.GPU
    replicas: int = 1  # shares of each GPU


class SimulatedNode:
    """A node as its kubelet holds it. Its methods are for the fleet, which calls them on its own thread."""

    def __init__(self, spec: NodeSpec, folder: Path, random: Random) -> None:
        folder.mkdir(parents=True)
        self.spec = spec
        self.name = spec.name
        self.machine = Machine(on_node(spec.shape, spec.name))
        self.socket = folder / "kubelet.sock"
        self.config = folder / "kubelet.yaml"  # its KubeletConfiguration
        self.config.write_text(_kubelet_configuration(spec.numa_policy))
        self.snapshot = folder / "snapshot.json"  # what the agent's sources would say now (agent.snapshot)
        devices = self.machine.devices(spec.replicas)
        policies = {BEST_EFFORT: self.machine.best_effort(), DISTRIBUTED: distributed(devices), ANY: None}
        policy = policies[spec.policy] if isinstance(spec.policy, str) else spec.policy
        self.devices = DeviceManager({spec.resource: Resource(devices, policy)}, random, spec.numa_policy)
        self.pods: dict[str, Object] = {}  # the admitted ones, by uid, as last seen
        # Those that it rejected, finished or let go: an event from before must not bring them back.
        self.settled: set[str] = set()
        self.record()

    @property
    def topology(self) -> NodeTopology:
        """The machine as it is now."""
        return self.machine.topology

    def record(self) -> None:
        """Write the snapshot file, and tell the device manager who is ill: after every change of the machine."""
        ill = self.machine.lost | self.machine.sick
        self.devices.set_unhealthy([each.id for each in self.machine.devices(self.spec.replicas) if each.gpu in ill])
        text = dump_snapshot(recording.snapshot(self.topology, self.name))
        recording.write_whole(self.snapshot, text)

    def node_object(self) -> Object:
        """The Node as the kubelet registers it."""
        node = api_objects.gpu_node(self.name, 0, dict(self.spec.labels))
        node["status"] |= self.status(node["status"])
        return node

    def status(self, status: Object) -> Object:
        """Capacity and allocatable now, over those of a status."""
        return {
            "capacity": status["capacity"] | {name: str(count) for name, count in self.devices.capacity.items()},
            "allocatable": status["allocatable"]
            | {name: str(count) for name, count in self.devices.allocatable.items()},
        }

    def gpus_of(self, uid: str) -> tuple[int, ...]:
        """Indices of the GPUs that a pod has, or has shares of."""
        return tuple(sorted({device.gpu for device in self.devices.devices_of(uid)}))


def _kubelet_configuration(numa: NumaPolicy | TopologyConfig) -> str:
    config = TopologyConfig(numa) if isinstance(numa, NumaPolicy) else numa
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "topologyManagerPolicy": config.policy.value,
            "topologyManagerScope": "pod" if config.pod_scope else "container",
            "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": str(config.prefer_closest).lower()},
        }
    )
