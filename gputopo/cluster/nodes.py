"""GPU nodes, from their labels, their topology annotation and their ``NodeGpus``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import msgspec

from gputopo.cluster.usage import GpuUse, gpu_uses
from gputopo.crd.nodegpus import NodeGpus
from gputopo.kube.objects import ObjectMeta
from gputopo.kube.taints import CORDONED, is_draining
from gputopo.labels import AnnotationError, NoTopologyError, decode_topology
from gputopo.labels.keys import GPU_RESOURCES, NVIDIA_COUNT
from gputopo.model import MAX_GPUS, NodeTopology
from gputopo.render.report import age_words, listed
from gputopo.render.wording import counted_noun, escape_invisible, shorten_names
from gputopo.timestamps import parse_timestamp
from gputopo.timing import STALE_AFTER_S

STALE_AFTER = timedelta(seconds=STALE_AFTER_S)


class GpuNode(msgspec.Struct, frozen=True):
    """A node with GPUs, its topology and its allocations."""

    name: str
    topology: NodeTopology
    state: NodeGpus | None = None  # None: no agent has reported
    annotation_error: str | None = None  # why its annotation, or its number of GPUs, is invalid; see ``_gpu_node``
    unusable: tuple[str, ...] = ()  # why it takes no new pods: "cordoned", "not ready"
    # Devices that its pods request, by resource; None: not known. Read where no agent reports the allocations.
    requested: Mapping[str, int] | None = None
    # GPUs that the kubelet offers to pods; less than the usable ones if the device plugin finds one unhealthy. None:
    # not known, or it also offers shares of GPUs or MIG devices.
    allocatable: int | None = None

    @property
    def cordoned(self) -> bool:
        """Return whether the node is cordoned."""
        return CORDONED in self.unusable

    @property
    def held_devices(self) -> dict[int, int] | None:
        """Return the number of allocated devices (shares, MIG devices) of each GPU index; None: unknown."""
        if self.state is None or self.state.allocations is None:
            return None
        index = {gpu.uuid: gpu.index for gpu in self.topology.gpus if gpu.uuid is not None}
        if len(index) < len(self.topology.gpus) and any(each.gpu not in index for each in self.state.allocations):
            return None  # one of the GPUs without a UUID is allocated, and it is not known which
        counts: dict[int, int] = {}
        for allocation in self.state.allocations:
            if allocation.gpu in index:
                counts[index[allocation.gpu]] = counts.get(index[allocation.gpu], 0) + 1
        return counts

    @property
    def unheld(self) -> frozenset[int] | None:
        """The usable GPUs without an allocation; None: unknown."""
        held = self.held_devices
        return None if held is None else frozenset(gpu.index for gpu in self.topology.usable if gpu.index not in held)

    def is_reported_at(self, now: datetime) -> bool:
        """Return whether an agent has reported the allocations, and not too long ago."""
        return self._reported_unheld_at(now) is not None

    def free_at(self, now: datetime) -> frozenset[int] | None:
        """Return the unheld GPUs that new pods may use; None: it is not known which."""
        return frozenset() if self.unusable else self._unheld_at(now)

    def free_count_at(self, now: datetime) -> int | None:
        """Return the number of unheld GPUs that new pods may use, also where it is not known which; None: unknown."""
        return 0 if self.unusable else self._unheld_count_at(now)

    def draining_count_at(self, now: datetime) -> int | None:
        """Return the number of unheld GPUs if the node is cordoned or about to be removed; None: unknown."""
        return self._unheld_count_at(now) if is_draining(self.unusable) else 0

    def tainted_count_at(self, now: datetime) -> int | None:
        """Return the number of unheld GPUs if another taint keeps new pods away; None: unknown."""
        return self._unheld_count_at(now) if self.unusable and not is_draining(self.unusable) else 0

    def _reported_unheld_at(self, now: datetime) -> frozenset[int] | None:
        age = self.age(now)
        return self.unheld if age is not None and age <= STALE_AFTER else None

    def _unheld_at(self, now: datetime) -> frozenset[int] | None:
        """Return the GPUs that ``_unheld_count_at`` counts; None: it is not known which."""
        found = self._reported_unheld_at(now)
        count = self._count_unheld(found)
        if found is None and self.requested is not None and not any(self.requested.values()):
            found = frozenset(gpu.index for gpu in self.topology.usable)
        return frozenset() if count == 0 else found if found is not None and len(found) == count else None

    def _unheld_count_at(self, now: datetime) -> int | None:
        """Return the number of unheld GPUs that the kubelet offers: without a report, by the requests of the pods."""
        return self._count_unheld(self._reported_unheld_at(now))

    def _count_unheld(self, reported: frozenset[int] | None) -> int | None:
        usable = len(self.topology.usable)
        offered = usable if self.allocatable is None else self.allocatable
        if reported is not None:
            return max(0, min(len(reported), offered - (usable - len(reported))))
        if self.requested is None:
            return None
        requested = {name: n for name, n in self.requested.items() if n}
        if not requested:
            return min(usable, offered)
        if set(requested) != {GPU_RESOURCES[0]} or offered > usable:  # shares of GPUs, or MIG devices
            return None
        return max(0, offered - requested[GPU_RESOURCES[0]])

    @property
    def uses(self) -> tuple[GpuUse, ...] | None:
        """Return the use of each GPU that the agent reports; None: unknown."""
        return gpu_uses(self.topology, self.state)

    def age(self, now: datetime) -> timedelta | None:
        """Return the age of the agent's last observation; None: there is none, or its time cannot be parsed."""
        seen = None if self.state is None else parse_timestamp(self.state.observed_at, UTC)
        return None if seen is None else timedelta(seconds=now.timestamp() - seen)


def gpu_nodes(
    nodes: Iterable[ObjectMeta],
    states: Mapping[str, NodeGpus],
    advertised: Mapping[str, int] = MappingProxyType({}),
    unusable: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> list[GpuNode]:
    """Return the nodes with GPUs, by name. ``advertised``: GPUs of nodes without labels about them."""
    found = (_gpu_node(metadata, states.get(metadata.name), advertised.get(metadata.name, 0)) for metadata in nodes)
    known = (msgspec.structs.replace(node, unusable=unusable.get(node.name, ())) for node in found if node is not None)
    return sorted(known, key=lambda node: node.name)


def silent_agents(nodes: Iterable[GpuNode], now: datetime) -> dict[str, str]:
    """Return what is known of the agents that do not report, by node: "no agent on gpu-1 reports", ..."""
    found = {}
    for node in nodes:
        age = node.age(now)
        if age is None:
            found[node.name] = f"no agent on {node.name} reports"
        elif age > STALE_AFTER:
            found[node.name] = f"agent on {node.name} silent for {age_words(age.total_seconds())}"
    return found


def missing_agents_text(nodes: Iterable[GpuNode]) -> str | None:
    """Return how many GPU nodes have no agent, with their GPUs and names; None: all have one."""
    every = list(nodes)
    found = [node for node in every if node.state is None]
    if not found:
        return None
    gpus = counted_noun(sum(len(node.topology.gpus) for node in found), "GPU")
    verb = "has" if len(found) == 1 else "have"
    return (
        f"{len(found)} of {counted_noun(len(every), 'GPU node')}, with {gpus}, {verb} no agent: "
        f"{listed([escape_invisible(shorten_names(node.name)) for node in found], 5)}"
    )


def _gpu_node(metadata: ObjectMeta, state: NodeGpus | None, advertised: int) -> GpuNode | None:
    """Return the node by its annotation, else by its labels, else by the GPUs that it advertises; None: it has none."""
    try:
        try:
            return GpuNode(metadata.name, decode_topology(metadata.labels, metadata.annotations), state)
        except AnnotationError as error:
            return GpuNode(metadata.name, decode_topology(metadata.labels, {}), state, str(error))
    except NoTopologyError:
        if advertised <= 0:
            return None
        if advertised > MAX_GPUS:  # one such node must not hide all others
            why = f"the node advertises {advertised} GPUs; more than {MAX_GPUS} are shares of GPUs, or an error"
            return GpuNode(metadata.name, NodeTopology(), state, why)
        return GpuNode(metadata.name, decode_topology({NVIDIA_COUNT.key: str(advertised)}, {}), state)
