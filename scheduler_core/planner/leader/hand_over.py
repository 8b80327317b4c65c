"""Pods that the planner hands over to kube-scheduler: their rules can be followed only by kube-scheduler. Pure.

A plan that ignores such a rule would be refused by kube-scheduler, rolled back, and made again, for ever. So the gate
is removed without a pin. A rule that plans follow only in part (anti-affinity towards pods that no planner places,
volumes) leads to the same after kube-scheduler has refused the plan twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gputopo.labels.keys import POD_GANG_REQUIRED
from scheduler_core.cache.full_pods import POD_AFFINITY
from scheduler_core.planner.commit.actions import ReleasePod
from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.leader.queue import QueuedGang

POLICY = "pod-rules"  # the value of the label ``reason`` of the metric
MAX_ROLLBACKS = 2  # of a gang with rules that plans follow only in part


def hand_overs(queue: Iterable[QueuedGang]) -> Iterator[tuple[Gang, ReleasePod]]:
    """Yield the pods of the queue to hand over, each with its gang."""
    for waiting in queue:
        reason = hand_over_reason(waiting)
        if reason is not None:
            yield from ((waiting.gang, ReleasePod(member, reason, POLICY)) for member in waiting.gang.ready)


def hand_over_reason(waiting: QueuedGang) -> str | None:
    """Return why a gang is handed over to kube-scheduler; None: it is planned."""
    gang = waiting.gang
    if gang.unplanned:
        return hand_over_text(gang.unplanned, alone=is_single_pod_gang(gang.name))
    if waiting.rollbacks < MAX_ROLLBACKS or not gang.may_be_handed_over:
        return None
    reason = "" if waiting.rollback_reason is None else f" ({waiting.rollback_reason})"
    return (
        f"kube-scheduler refused {waiting.rollbacks} plans{reason}, and its pods have anti-affinity or volume claims "
        "that depend on more than plans consider, so kube-scheduler chooses the nodes"
    )


def hand_over_text(rules: Iterable[str], *, alone: bool) -> str:
    """Return why pods with these rules are handed over. ``alone``: a single pod, not a gang."""
    names = ", ".join(rules)
    if alone:
        return f"plans do not follow its rules ({names}), so kube-scheduler chooses its node"
    instead = (
        f" For one domain for all members, use {POD_GANG_REQUIRED.key} in place of it" if POD_AFFINITY in rules else ""
    )
    return (
        f"plans do not follow the rules of its members ({names}), so kube-scheduler chooses their nodes, one by one: "
        f"the gang may start in part.{instead}"
    ).removesuffix(".")
