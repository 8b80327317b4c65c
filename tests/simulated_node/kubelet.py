"""The kubelet's device manager: which devices a pod is given when its node admits it.

Follows ``pkg/kubelet/cm/devicemanager`` of Kubernetes 1.37; ``topology_manager`` has the Topology Manager and the
managers of CPUs and memory. Go iterates over sets of devices in an order that changes from run to run: here a seeded
generator shuffles them, so a test can be repeated. Pure but for that.

    PluginError(Exception)    a device plugin could not say what it prefers; a policy raises it
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import NamedTuple

from tests.simulated_node.topology_manager import (
    NO_PREFERENCE,
    CpuManager,
    Hint,
    MemoryManager,
    Numa,
    NumaPolicy,
    TopologyConfig,
    TopologyManager,
    mark_preferred,
    masks_of,
)


class PluginError(Exception):
    """The call to the device plugin failed; the text is what the kubelet sees of it."""


class Device(NamedTuple):
    """One device that a plugin offers: a GPU, or a share of one."""

    id: str  # the GPU's UUID; "<uuid>::3" is the fourth replica of a time-sliced GPU
    gpu: int  # NVML index of the GPU behind it
    numa: int | None = None


# (available in the order offered, required of them, how many) -> preferred ones; may be too few, or none
Policy = Callable[[Sequence[Device], Sequence[Device], int], Sequence[Device]]
Allotment = dict[str, tuple[Device, ...]]  # resource -> devices


class Container(NamedTuple):
    """The part of a container that the device manager needs."""

    name: str
    devices: Mapping[str, int]  # resource -> how many
    init: bool = False
    restartable: bool = False  # an init container that stays: a sidecar
    cpus: int = 0  # whole CPUs, of a Guaranteed pod
    memory: int = 0  # bytes, of a Guaranteed pod


class Pod(NamedTuple):
    """The part of a pod that the device manager needs; containers in order of allocation, init containers first."""

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
        self,
        resources: Mapping[str, Resource],
        random: Random,
        numa: NumaPolicy | TopologyConfig = NumaPolicy.NONE,
    ) -> None:
        self._resources = dict(resources)
        self._random = random
        self._config = _config_of(resources, numa) if isinstance(numa, NumaPolicy) else numa
        self._topology = TopologyManager(self._config)
        self.cpus = CpuManager(self._config, random)
        self.memory = MemoryManager(self._config)
        self._pinned: dict[str, tuple[list[set[tuple[int, int]]], int]] = {}  # CPUs of each container, memory blocks
        self._unhealthy: frozenset[str] = frozenset()
        self._pods: dict[str, tuple[Pod, dict[str, Allotment]]] = {}

    @property
    def capacity(self) -> dict[str, int]:
        """The number of devices by resource."""
        return {name: len(resource.devices) for name, resource in self._resources.items()}

    @property
    def allocatable(self) -> dict[str, int]:
        """The number of healthy devices by resource, free or in use."""
        return {name: len(self.healthy(name)) for name in self._resources}

    @property
    def pods(self) -> list[tuple[Pod, Mapping[str, Allotment]]]:
        """The pods here and what each of their containers has, in the order of their admission."""
        return list(self._pods.values())

    def healthy(self, resource: str) -> list[Device]:
        """The healthy devices of a resource."""
        return [device for device in self._resources[resource].devices if device.id not in self._unhealthy]

    def set_unhealthy(self, ids: Collection[str]) -> None:
        """Set the devices that the plugins report as unhealthy. Pods keep their unhealthy devices."""
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
        self._pinned[pod.uid] = ([], len(self.memory.blocks))
        reusable: dict[str, set[Device]] = {}  # what finished init containers leave to the next ones
        cpus: set[tuple[int, int]] = set()
        try:
            of_pod = self._align(_limits(pod), {}, set()) if self._config.pod_scope else None
            for container in pod.containers:
                hint = of_pod or self._align(container, reusable, cpus)
                given[container.name] = {
                    name: self._pick(name, count, reusable.get(name, set()), hint.mask)
                    for name, count in self._wanted(container).items()
                }
                _reuse(container, given[container.name], reusable)
                self._pin(pod.uid, container, hint, cpus)
        except _RejectedError as rejected:
            self.remove(pod.uid)
            return rejected.rejection
        return None

    def reseed(self, random: Random) -> None:
        """Draw from another generator from now on."""
        self._random = self.cpus.random = random

    def remove(self, uid: str) -> None:
        """A pod ended: its devices and CPUs are free; and its memory, if it was admitted last."""
        if self._pods.pop(uid, None) is not None:
            cpus, blocks = self._pinned.pop(uid)
            self.cpus.free |= set().union(*cpus)
            del self.memory.blocks[blocks:]

    def _wanted(self, container: Container) -> dict[str, int]:
        return {name: count for name, count in container.devices.items() if name in self._resources}

    def _align(self, container: Container, reusable: Mapping[str, set[Device]], cpus: set[tuple[int, int]]) -> Hint:
        hints = [
            self._device_hints(name, count, reusable.get(name, set()))
            for name, count in self._wanted(container).items()
        ]
        if self._config.static_cpus and container.cpus:
            hints.append(self.cpus.hints(container.cpus, cpus))
        if self._config.static_memory and container.memory:
            hints.append(self.memory.hints(container.memory))
        hint, admitted = self._topology.merge(hints)
        if not admitted:
            raise _RejectedError("TopologyAffinityError", "Resources cannot be allocated with Topology locality")
        return hint

    def _pin(self, uid: str, container: Container, hint: Hint, reusable: set[tuple[int, int]]) -> None:
        if self._config.static_cpus and container.cpus:
            taken = self.cpus.allocate(container.cpus, hint.mask, reusable)
            if taken is None:
                raise _unexpected("not enough cpus available to satisfy request")
            self._pinned[uid][0].append(taken)
            if container.init and not container.restartable:
                reusable |= taken
            else:
                reusable -= taken
        if self._config.static_memory and container.memory and not self.memory.allocate(container.memory, hint):
            raise _unexpected("[memorymanager] failed to find the default preferred hint")

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
        aligned = {
            device for device in free if numa is not None and device.numa is not None and numa >> device.numa & 1
        }
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

    def _device_hints(self, name: str, wanted: int, reusable: set[Device]) -> Sequence[Hint]:
        """``GetTopologyHints`` and ``generateDeviceTopologyHints``."""
        devices = self._resources[name].devices
        if all(device.numa is None for device in devices):
            return NO_PREFERENCE
        free = self._free(name)
        if len(free | reusable) < wanted:
            return mark_preferred((), 0)
        nodes = {device.numa for device in devices if device.numa is not None}
        fewest, found = len(nodes), []
        for mask in masks_of(nodes):
            inside = {device for device in devices if device.numa is not None and mask >> device.numa & 1}
            if len(inside) >= wanted:
                fewest = min(fewest, mask.bit_count())
            bound = {device for device in reusable if device.numa is not None}
            if bound <= inside and len(bound) + len(free & inside) >= wanted:
                found.append(mask)
        return mark_preferred(found, fewest)

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


def _limits(pod: Pod) -> Container:
    """Return the request that the pod scope aligns (``PodLimits``): the maximum that is needed at any time."""
    names = {name for container in pod.containers for name in container.devices}
    return Container(
        "",
        {name: _most(pod, [each.devices.get(name, 0) for each in pod.containers]) for name in names},
        cpus=_most(pod, [each.cpus for each in pod.containers]),
        memory=_most(pod, [each.memory for each in pod.containers]),
    )


def _most(pod: Pod, counts: Sequence[int]) -> int:
    init = running = 0
    for container, count in zip(pod.containers, counts, strict=True):
        if container.init and not container.restartable:
            init = max(init, running + count)
        else:
            running += count
    return max(init, running)


def _config_of(resources: Mapping[str, Resource], policy: NumaPolicy) -> TopologyConfig:
    ids = {each.numa for resource in resources.values() for each in resource.devices if each.numa is not None}
    return TopologyConfig(policy, nodes=tuple(Numa(node) for node in sorted(ids or {0})))


def _unexpected(why: str) -> _RejectedError:
    return _RejectedError("UnexpectedAdmissionError", f"Allocate failed due to {why}, which is unexpected")
