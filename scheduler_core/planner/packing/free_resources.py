"""CPU, memory, ephemeral storage and pod slots that are free on a node, as kube-scheduler counts them. Pure.

Source: ``fitsRequest`` of the plugin NodeResourcesFit; the reasons are in its words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduler_core.cache.node import NodeFacts
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.request.node_load import NO_LOAD, NodeLoad

LITTLE_CPU, LITTLE_MEMORY = "Insufficient cpu", "Insufficient memory"
LITTLE_STORAGE, TOO_MANY_PODS = "Insufficient ephemeral-storage", "Too many pods"
ANY = 1 << 62  # more than any request, also of many pods
_REASONS = (LITTLE_CPU, LITTLE_MEMORY, LITTLE_STORAGE, TOO_MANY_PODS)  # by field of ``FreeResources``


class FreeResources(NamedTuple):
    """The fields of ``NodeLoad``, as far as they are free; negative where pods request more than the node has."""

    cpu_milli: int = ANY
    memory: int = ANY
    storage: int = ANY
    pods: int = ANY

    def shortage(self, load: NodeLoad) -> str | None:
        """Return the reason why pods with these requests do not fit; None: they fit. A pod may request nothing."""
        for free, asked, reason in zip(self, load, _REASONS, strict=True):
            if asked > free and asked:
                return reason
        return None

    def most(self, load: NodeLoad) -> int:
        """Return how many pods with these requests fit; ``ANY``: any number."""
        return min([max(free, 0) // asked for free, asked in zip(self, load, strict=True) if asked], default=ANY)

    def limits_for(self, needed: NodeLoad, kinds: Sequence[NodeLoad]) -> FreeResources:
        """Return what keeps pods of these kinds, ``needed`` together, from the node; ``ANY``: it suffices for all.

        Where the pods are of one kind, nodes for equally many of them are equal.
        """
        if len(kinds) > 1:
            return FreeResources(*(free if asked > free else ANY for free, asked in zip(self, needed, strict=True)))
        (load,), most = kinds, self.most(kinds[0])
        limiting = next(at for at, free in enumerate(self) if load[at] and max(free, 0) // load[at] == most)
        return FreeResources(*(most * load[at] if at == limiting else ANY for at in range(len(load))))


PLENTY = FreeResources()


def free_resources(record: NodeRecord, others: NodeLoad = NO_LOAD) -> FreeResources:
    """Return what is free on a node. ``others``: of its pods that ``record`` does not have, because they use no GPU."""
    used = others
    for pod in record.pods:
        if pod.load is not NO_LOAD:
            used = used.plus(pod.load)
    return _left(record.machine, used)


def free_without_gpu_pods(record: NodeRecord, others: NodeLoad) -> FreeResources:
    """Return what would be free on a node if all pods that use its GPUs ended."""
    return _left(record.machine, others)


def _left(machine: NodeFacts, used: NodeLoad) -> FreeResources:
    return FreeResources(
        ANY if machine.cpu_milli is None else machine.cpu_milli - used.cpu_milli,
        ANY if machine.memory is None else machine.memory - used.memory,
        ANY if machine.storage is None else machine.storage - used.storage,
        ANY if machine.max_pods is None else machine.max_pods - used.pods,
    )
