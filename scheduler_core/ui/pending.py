"""The pods that wait for a node, with the reason as far as the rows of the nodes show it. Pure.

No pod is evaluated here: at each change of a large cluster that would take seconds. So a reason is given only where it
follows from the number of free GPUs, or where a node is already planned. The page of the pod explains the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gputopo.render.wording import counted_noun
from scheduler_core.cache.events import PodUpdate
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.request.pod_request import Strength
from scheduler_core.ui.model import NodeRow, PendingPod


class _MostFree(NamedTuple):
    """The most GPUs that are certainly free together, of all nodes where this is known."""

    on_node: int
    in_island: int


def pending_pods(view: PlannerView, rows: Iterable[NodeRow]) -> tuple[PendingPod, ...]:
    """Return the pods without a node that are in no gang, highest priority first."""
    most = _most_free(list(rows))
    unbound = [pod for pod in view.cache.pods.values() if pod.node is None]
    found = [_pending_pod(pod, most) for pod in unbound if view.gang_members.get_member(pod.key) is None]
    return tuple(sorted(found, key=lambda pod: (-pod.priority, pod.namespace, pod.name)))


def _most_free(rows: Sequence[NodeRow]) -> _MostFree:
    return _MostFree(
        max((row.free for row in rows if row.free is not None), default=0),
        max((row.in_one_island for row in rows if row.in_one_island is not None), default=0),
    )


def _pending_pod(pod: PodUpdate, most: _MostFree) -> PendingPod:
    profile = pod.occupant.profile
    return PendingPod(
        pod.occupant.namespace, pod.occupant.name, profile.devices, pod.priority, pod.scheduler, _reason(pod, most)
    )


def _reason(pod: PodUpdate, most: _MostFree) -> str:
    if pod.nominated_node:
        return f"expected on {pod.nominated_node}"
    profile = pod.occupant.profile
    wanted = profile.gpus
    if wanted > most.on_node:
        return f"no node has {counted_noun(wanted, 'GPU')} known to be free; the most is {most.on_node}"
    if wanted > most.in_island and profile.constraints.island is Strength.REQUIRED:
        return f"no NVLink island has {counted_noun(wanted, 'GPU')} known to be free; the most is {most.in_island}"
    return ""
