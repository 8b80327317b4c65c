"""The kubelet's device manager: which devices a pod is given when its node admits it.

Follows ``pkg/kubelet/cm/devicemanager`` of Kubernetes 1.37, and for the single-numa-node policy of the Topology
Manager (container scope, its default) ``pkg/kubelet/cm/topologymanager``. Go iterates over sets of devices in an order
that changes from run to run: here a seeded generator shuffles them, so a test can be repeated. Pure but for that.

    PluginError(Exception)    a device plugin could not say what it prefers; a policy raises it
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from random import Random
from typing import NamedTuple


class PluginError(Exception):
    """The call to the device plugin failed; the text is what the kubelet sees of it."""


class NumaPolicy(Enum):
    """The kubelet's ``topologyManagerPolicy``."""

    NONE = "none"
    SINGLE_NUMA_NODE = "single-numa-node"


class Device(NamedTuple):
    """One device that a plugin offers: a GPU, or a share of one."""

    id: str  # the GPU's UUID; "<uuid>::3" is the fourth replica of a time-sliced GPU
    gpu: int  # NVML index of the GPU behind it
    numa: int | None = None


# (available in the order offered, required of them, how many) -> preferred ones; may be too few, or none
Policy = Callable[[Sequence[Device], Sequence[Device], int], Sequence[Device]]
Allotment = dict[str, tuple[Device, ...]]  # resource -> devices


class Container(NamedTuple):
    """What matters of a container here."""

    name: str
    devices: Mapping[str, int]  # resource -> how many
    init: bool = False
    restartable: bool = False  # an init container that stays: a sidecar


class Pod(NamedTuple):
    """What matters of a pod here; containers in the order in which the kubelet allocates, init containers first."""

    uid: str
    namespace: str
    name: str
    containers: tuple[Container, ...]


class Rejection(NamedTuple):
    """Why the node does not take a pod: the reason and the message of its status."""

    reason: str
    message: str


class Resource(NamedTuple):
    """The devices of one plugin and its policy. Without a policy the kubelet takes any."""

    devices: tuple[Device, ...]
    policy: Policy | None = None


class _RejectedError(Exception):
    def __init__(self, reason: str, message: str) -> None:
        self.rejection = Rejection(reason, f"Pod was rejected: {message}")


class DeviceManager:
    """The devices of one node and who has them."""

    def __init__(
        self, resources: Mapping[str, Resource], random: Random, numa_policy: NumaPolicy = NumaPolicy.NONE
    ) -> None:
        self._resources = dict(resources)
        self._random = random
        self._numa_policy = numa_policy
        self._unhealthy: frozenset[str] = frozenset()
        self._pods: dict[str, tuple[Pod, dict[str, Allotment]]] = {}

    @property
    def capacity(self) -> dict[str, int]:
        """How many devices of each resource there are."""
        return {name: len(resource.devices) for name, resource in self._resources.items()}

    @property
    def allocatable(self) -> dict[str, int]:
        """How many of them are healthy, whether free or not."""
        return {name: len(self.healthy(name)) for name in self._resources}

    @property
    def pods(self) -> list[tuple[Pod, Mapping[str, Allotment]]]:
        """The pods here and what each of their containers has, in the order of their admission."""
        return list(self._pods.values())

    def healthy(self, resource: str) -> list[Device]:
        """The healthy devices of a resource."""
        return [device for device in self._resources[resource].devices if device.id not in self._unhealthy]

    def set_unhealthy(self, ids: Collection[str]) -> None:
        """What the plugins report. Pods keep a device that falls ill."""
        self._unhealthy = frozenset(ids)

    def devices_of(self, uid: str) -> tuple[Device, ...]:
        """All devices of a pod, without duplicates; () for one that is not here."""
        _, containers = self._pods.get(uid, (None, {}))
        found = {device for allotment in containers.values() for devices in allotment.values() for device in devices}
        return tuple(sorted(found))

    def admit(self, pod: Pod) -> Rejection | None:
        """Give a pod its devices, or say why not. A pod that is here already keeps what it has."""
        if pod.uid in self._pods:
            return None
        given: dict[str, Allotment] = {}
        self._pods[pod.uid] = (pod, given)
        reusable: dict[str, set[Device]] = {}  # what finished init containers leave to the next ones
        try:
            for container in pod.containers:
                given[container.name] = self._allocate(container, reusable)
                _reuse(container, given[container.name], reusable)
        except _RejectedError as rejected:
            del self._pods[pod.uid]
            return rejected.rejection
        return None

    def remove(self, uid: str) -> None:
        """A pod ended: its devices are free."""
        self._pods.pop(uid, None)

    def _allocate(self, container: Container, reusable: Mapping[str, set[Device]]) -> Allotment:
        wanted = {name: count for name, count in container.devices.items() if name in self._resources}
        numa = self._numa_node(wanted, reusable) if self._numa_policy is NumaPolicy.SINGLE_NUMA_NODE else None
        return {name: self._pick(name, count, reusable.get(name, set()), numa) for name, count in wanted.items()}

    def _pick(self, name: str, count: int, reusable: set[Device], numa: int | None) -> tuple[Device, ...]:
        """In this order: reused ones, then by the Topology Manager's hint, then by the plugin's word, then any."""
        if not self.healthy(name):
            raise _unexpected(f"no healthy devices present; cannot allocate unhealthy devices {name}")
        picked = self._shuffled(reusable)[:count]
        missing = count - len(picked)
        free = self._free(name)
        if missing == 0:
            return tuple(picked)
        if len(free) < missing:
            raise _unexpected(
                f"requested number of devices unavailable for {name}. Requested: {missing}, Available: {len(free)}"
            )
        aligned = {device for device in free if numa is not None and device.numa == numa}
        if missing < len(aligned):
            turns = [self._preferred(name, aligned, picked, count), aligned]
        else:
            picked += self._shuffled(aligned)
            preferred = self._preferred(name, free, picked, count) if len(picked) < count else set()
            elsewhere = {device for device in free if numa is not None and device.numa is not None}
            turns = [preferred, elsewhere, free]
        for turn in turns:
            picked += self._shuffled(turn - set(picked))[: count - len(picked)]
        return tuple(picked)

    def _preferred(self, name: str, offered: set[Device], required: Sequence[Device], count: int) -> set[Device]:
        policy = self._resources[name].policy
        if policy is None:
            return set()
        try:
            preferred = policy(self._shuffled(offered | set(required)), required, count)
        except PluginError as failed:
            raise _unexpected(f"device plugin GetPreferredAllocation rpc failed with err: {failed}") from failed
        return set(preferred) & offered

    def _numa_node(self, wanted: Mapping[str, int], reusable: Mapping[str, set[Device]]) -> int | None:
        """The lowest NUMA node from which all devices can come; None where nothing says on which one they are."""
        common: set[int] | None = None
        for name, count in wanted.items():
            all_nodes = [device.numa for device in self._resources[name].devices if device.numa is not None]
            if not all_nodes:
                continue
            kept = reusable.get(name, set())
            usable = [device.numa for device in self._free(name) | kept]
            fit = {node for node in set(all_nodes) if all_nodes.count(node) >= count and usable.count(node) >= count}
            fit = {node for node in fit if all(device.numa in {node, None} for device in kept)}
            common = fit if common is None else common & fit
        if common is None:
            return None
        if not common:
            message = "Resources cannot be allocated with Topology locality"
            raise _RejectedError("TopologyAffinityError", message)
        return min(common)

    def _free(self, name: str) -> set[Device]:
        taken = {
            device
            for _, containers in self._pods.values()
            for allotment in containers.values()
            for device in allotment.get(name, ())
        }
        return set(self.healthy(name)) - taken

    def _shuffled(self, devices: Collection[Device]) -> list[Device]:
        ordered = sorted(devices, key=lambda device: (device.gpu, device.id))
        self._random.shuffle(ordered)
        return ordered


def _reuse(container: Container, given: Allotment, reusable: dict[str, set[Device]]) -> None:
    """Devices of a finished init container may be given again; those of one that stays, or of the pod, may not."""
    for name, devices in given.items():
        if container.init and not container.restartable:
            reusable.setdefault(name, set()).update(devices)
        else:
            reusable.get(name, set()).difference_update(devices)


def _unexpected(why: str) -> _RejectedError:
    return _RejectedError("UnexpectedAdmissionError", f"Allocate failed due to {why}, which is unexpected")
