"""Requests for nodes to the cluster autoscaler, for gangs that do not fit on the present nodes. Pure.

The cluster autoscaler does not see gated pods. A ProvisioningRequest lists the waiting pods of a gang for it. The
planner repeats a request from time to time: its name follows from its pods, so an existing request is not created
twice, and no state is needed. Kubernetes deletes the request with the first pod of the gang.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256

from scheduler_core.planner.commit.actions import RequestNodes
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.leader.queue import QueuedGang
from scheduler_core.request.pod_request import PodRequest

REQUEST_AFTER_S = 10.0  # that a complete gang has waited; a gang often fits a moment later
REPEAT_S = 60.0
MAX_OPEN = 16  # gangs: more requests do not make nodes appear faster
_NAME_LENGTH = 40  # characters of the gang's name in the name of its request


class NodeRequests:
    """The requests of one term of leadership. For one thread."""

    def __init__(self, provisioning_class: str | None) -> None:
        self._class = provisioning_class
        self._next: dict[GangName, float] = {}  # monotonic seconds

    def due_requests(
        self, queue: Iterable[QueuedGang], is_free: Callable[[Gang], bool], now: float
    ) -> Iterator[RequestNodes]:
        """Yield the requests to create now. ``queue``: in order. ``now``: monotonic seconds."""
        if self._class is None:
            return
        unfit = _in_turns([each for each in queue if _needs_nodes(each, now) and is_free(each.gang)])[:MAX_OPEN]
        names = {each.gang.name for each in unfit}
        self._next = {name: at for name, at in self._next.items() if name in names}
        for each in unfit:
            if self._next.get(each.gang.name, 0.0) <= now:
                self._next[each.gang.name] = now + REPEAT_S
                yield node_request(each.gang, self._class)


def _in_turns(queue: Iterable[QueuedGang]) -> list[QueuedGang]:
    """Return the first gang of each namespace, then the second of each, and so on: each time in the queue's order.

    Otherwise the gangs of one namespace that fit no node at all would keep all others from being requested.
    """
    before = Counter[str]()
    turns: list[tuple[int, QueuedGang]] = []
    for each in queue:
        namespace = each.gang.name.namespace
        turns.append((before[namespace], each))
        before[namespace] += 1
    return [each for _, each in sorted(turns, key=lambda pair: pair[0])]


def node_request(gang: Gang, provisioning_class: str) -> RequestNodes:
    """Return the request for the members of a gang that wait for a place."""
    first: dict[object, str] = {}
    counts = Counter[object]()
    for each in gang.ready:
        kind = _kind(each)
        first.setdefault(kind, each.name)
        counts[kind] += 1
    digest = sha256("".join(sorted(each.uid for each in gang.ready)).encode()).hexdigest()[:10]
    stem = gang.name.name[:_NAME_LENGTH].replace(".", "-").rstrip("-")
    groups = tuple((pod, counts[kind]) for kind, pod in first.items())
    return RequestNodes(gang.name, f"{stem}-{digest}", provisioning_class, gang.ready[0], groups)


def _needs_nodes(waiting: QueuedGang, now: float) -> bool:
    """Return whether a gang was planned on the present nodes, and did not fit."""
    gang = waiting.gang
    waited = waiting.unfit_state is not None and now - waiting.queued_since >= REQUEST_AFTER_S
    return waited and not gang.unplanned and not any(each.blocked for each in gang.ready)


def _kind(member: Member) -> object:
    profile = member.request.profile if isinstance(member.request, PodRequest) else None
    return profile, member.rules and member.rules.key, tuple(each.key for each in member.anti_affinity)
