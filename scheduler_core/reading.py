"""The cluster as placement looks at it, read once: for a person who asks, not for the extender. I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from gputopo.kube.access import PODS
from gputopo.kube.client import Kube, Query
from gputopo.kube.errors import NotFoundError
from scheduler_core.nodes import NodeRecord, NodeTable, table_of
from scheduler_core.occupancy import Occupant
from scheduler_core.pods import Pod, PodStatus
from scheduler_core.policy import Policy
from scheduler_core.sightings import GpusSeen, NodeSeen, PodSeen
from scheduler_core.watch import listed


class Condition(msgspec.Struct, frozen=True):
    """One of ``status.conditions``."""

    type: str
    status: str
    message: str = ""


class AskedStatus(PodStatus, frozen=True, rename="camel"):
    """``status`` with what kube-scheduler said."""

    conditions: tuple[Condition, ...] | None = None


class AskedPod(Pod, frozen=True, rename="camel"):
    """The pod that somebody asks about."""

    status: AskedStatus = AskedStatus()

    @property
    def scheduler_said(self) -> str | None:
        """Why kube-scheduler has not placed it; None: it has, or has not tried."""
        return next(
            (
                each.message
                for each in self.status.conditions or ()
                if (each.type, each.status) == ("PodScheduled", "False") and each.message
            ),
            None,
        )


def read_pod(kube: Kube, namespace: str, name: str) -> AskedPod:
    """One pod. By a list of one, so that who may list pods may ask. Raises ``NotFoundError``, ``KubeError``."""
    found = kube.items(PODS, AskedPod, Query(namespace, fields=f"metadata.name={name}"))
    if not found:
        raise NotFoundError(f"there is no pod {name} in the namespace {namespace}", kind_missing=False)
    return found[0]


def read_table(kube: Kube, now: float, policy: Policy) -> NodeTable:
    """All nodes, by the conversion that the extender's watch uses. Raises ``KubeError``."""
    nodes, pods, gpus = (batch.seen for batch in listed(kube))
    return table_of(records(nodes, pods, gpus), now, policy)


def records(nodes: Iterable[NodeSeen], pods: Iterable[PodSeen], gpus: Iterable[GpusSeen]) -> list[NodeRecord]:
    """What was seen, node by node. Pods that are not bound, or bound to a node that is not there, are left out."""
    occupants: dict[str, list[Occupant]] = {}
    for pod in pods:
        if pod.node is not None:
            occupants.setdefault(pod.node, []).append(pod.occupant)
    words: Mapping[str, GpusSeen] = {each.key: each for each in gpus}
    return [
        NodeRecord(
            name=node.key,
            machine=node.machine,
            gpus=words[node.key].gpus if node.key in words else None,
            pods=tuple(sorted(occupants.get(node.key, ()), key=lambda each: each.uid)),
        )
        for node in nodes
    ]
