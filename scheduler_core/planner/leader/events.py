"""Events that the planner writes about its writes and about failures. Pure.

Few are written. A placement is one Event on its reservation, because kube-scheduler itself writes an Event for each
pod. Pods get Events that their users need: a rollback, a gang without a place, a release.

Users of a namespace read its Events. So no Event names pods or gangs of another namespace; statuses of reservations do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from gputopo.crd.reservations import (
    RESERVATION_KIND,
    PlannedEviction,
    Preemption,
    ReservationState,
    ReservationStatus,
    gang_title,
)
from gputopo.labels.keys import POD_ON_MEMBER_FAILURE
from gputopo.render.wording import counted_noun, first_of, part_of
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import EndPod, EvictPod, ReleasePod, RequestNodes, UngateAndPin, WriteStatus
from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.packing.model import Unplaced
from scheduler_core.planner.preemption.model import EvictionUnit
from scheduler_core.runtime.event_writer import EventDraft

_MAX_PODS = 16  # pods of a gang that get an Event; for the others, the reservation has it


class EventReason(StrEnum):
    """The reasons of all Events of planners. An admission policy denies Events with other reasons."""

    HELD = "Held"
    COMMITTED = "Committed"
    BOUND = "Bound"
    ROLLED_BACK = "RolledBack"
    FAILED = "Failed"
    GANG_ROLLED_BACK = "GangRolledBack"
    GANG_FAILED = "GangFailed"
    GANG_UNPLACED = "GangUnplaced"
    GANG_REFUSED = "GangRefused"
    GANG_NOT_UNGATED = "GangNotUngated"
    GANG_RELEASED = "GangReleased"
    GANG_ENDED = "GangEnded"
    NODES_REQUESTED = "NodesRequested"
    NODES_NOT_REQUESTED = "NodesNotRequested"
    EVICTED_FOR_GANG = "EvictedForGang"
    EVICTS = "Evicts"
    EVICTION_STUCK = "EvictionStuck"
    EVICTION_STOPPED = "EvictionStopped"


# By the state of a reservation: the reason on the reservation, and on the pods of its gang (None: they get no Event).
_STATE_REASONS = {
    ReservationState.HELD: (EventReason.HELD, None),
    ReservationState.COMMITTED: (EventReason.COMMITTED, None),
    ReservationState.BOUND: (EventReason.BOUND, None),
    ReservationState.ROLLING_BACK: (EventReason.ROLLED_BACK, EventReason.GANG_ROLLED_BACK),
    ReservationState.FAILED: (EventReason.FAILED, EventReason.GANG_FAILED),
}


def status_events(action: WriteStatus, members: Iterable[Member]) -> Iterator[EventDraft]:
    """Yield the Events of a changed state of a reservation. ``members``: its pods that exist."""
    state, reservation = action.status.state, action.reservation
    if state is None or state not in _STATE_REASONS:
        return
    if not reservation.spec.gang:
        if state is ReservationState.FAILED:
            yield from _failed_single_pods(reservation, members)
        return
    message = _status_message(reservation, action.status)
    reason, pod_reason = _STATE_REASONS[state]
    yield _reservation_event(reservation, reason, message, warning=pod_reason is not None)
    if pod_reason is not None:
        for each in list(members)[:_MAX_PODS]:
            yield _warning(each, pod_reason, f"reservation {reservation.name}: {message}")


def _failed_single_pods(reservation: ReservationUpdate, members: Iterable[Member]) -> Iterator[EventDraft]:
    """Yield an Event for each pod that was not bound. The reason of the status names pods of other namespaces too."""
    for each in members:
        if each.node is None and each.reservation == reservation.name:
            cause = f" (kube-scheduler: {each.bind_error})" if each.bind_error else ""
            message = f"not bound in time{cause}; its GPUs on {each.pinned_terms} are no longer reserved"
            yield _warning(each, EventReason.GANG_FAILED, f"reservation {reservation.name}: {message}")


def unplaced_events(gang: Gang, unplaced: Unplaced) -> Iterator[EventDraft]:
    """Yield the Event of a gang for which no place was found, on its first ready pod."""
    missing = dict(unplaced.missing)
    for each in gang.ready[:1]:
        reason = missing.get(each.name)
        detail = f"; {each.name}: {getattr(reason, 'value', reason)}" if reason is not None else ""
        yield _warning(each, EventReason.GANG_UNPLACED, f"{_gang_prefix(gang)}{unplaced.reason}{detail}")


def refused_events(gang: Gang) -> Iterator[EventDraft]:
    """Yield the Event of a gang with invalid annotations, on its first pod."""
    for each in (*gang.ready, *gang.held, *gang.surplus)[:1]:
        yield _warning(each, EventReason.GANG_REFUSED, f"{_gang_prefix(gang)}{gang.reason}")


def failed_ungate_event(action: UngateAndPin, error: str) -> EventDraft:
    """Return the Event of a placed pod whose gate the API server refuses to remove."""
    message = f"reservation {action.reservation}: the API server refuses to remove the gate: {error}"
    return _warning(action.member, EventReason.GANG_NOT_UNGATED, message)


def release_event(action: ReleasePod) -> EventDraft:
    """Return the Event of a pod that was released to ordinary scheduling."""
    return _warning(action.member, EventReason.GANG_RELEASED, f"its gate was removed without a place: {action.reason}")


def end_event(action: EndPod) -> EventDraft:
    """Return the Event of a member that was deleted because another member failed."""
    message = f"deleted, because {action.failed} of its gang failed ({POD_ON_MEMBER_FAILURE.key}: end-gang)"
    return _warning(action.member, EventReason.GANG_ENDED, message)


def eviction_events(action: EvictPod, unit: EvictionUnit | None = None) -> Iterator[EventDraft]:
    """Yield the Events of an eviction: on the pod, and on the reservation of the gang that it is evicted for.

    ``unit``: of the pod, as the search chose it; None: unknown, another leader chose it.
    """
    pod, hold = action.eviction, action.reservation
    preemption = hold.spec.preemption
    if preemption is None:
        return
    is_own = pod.namespace == hold.namespace
    rule = _eviction_rule(preemption, unit)
    why = rule if unit is None else f"{rule}: {unit.reason}"
    message = f"evicted for {_beneficiary(hold, is_named=is_own)} ({why})"
    yield EventDraft("Pod", pod.namespace, pod.name, pod.uid, EventReason.EVICTED_FOR_GANG, message, warning=True)
    evicted = f"{pod.namespace}/{pod.name}" if is_own else "a pod of another namespace"
    freed = f"to free {counted_noun(pod.gpus, 'GPU')} on {pod.node}" if pod.gpus else f"on {pod.node}"
    message = f"evicts {evicted} {freed} ({why if is_own else rule})"  # no facts about pods of others
    yield _reservation_event(hold, EventReason.EVICTS, message, warning=False)


def _eviction_rule(preemption: Preemption, unit: EvictionUnit | None) -> str:
    """Return the rule that allows to evict the pod. The spec of the hold has only the rules of all units together."""
    if unit is not None:
        return f"rule {unit.rule}"
    return f"one of the rules {preemption.rule}" if ", " in preemption.rule else f"rule {preemption.rule}"


def _beneficiary(hold: ReservationUpdate, *, is_named: bool) -> str:
    """Return who gets the GPUs. ``is_named``: with names, which only users of its namespace may read."""
    if gang_title(hold.namespace, hold.spec) is None:
        kind = "a single pod"
    else:
        kind = f"gang {hold.spec.gang}" if is_named else "a gang"
    return f"{kind} of priority {hold.spec.priority}" + (f", reservation {hold.name}" if is_named else "")


def stuck_event(action: WriteStatus) -> EventDraft:
    """Return the Event of a preemption with a pod that does not end in time."""
    pods = counted_noun(len(action.status.stuck), "pod")
    message = f"{pods} did not end in time: gangs of this priority may evict other pods"
    return _reservation_event(action.reservation, EventReason.EVICTION_STUCK, message, warning=True)


def stopped_events(hold: ReservationUpdate, left: Sequence[PlannedEviction]) -> Iterator[EventDraft]:
    """Yield the Events of a preemption that ended inside a unit: on the reservation, and on pods that are not evicted.

    ``left``: these pods.
    """
    units = counted_noun(len({each.unit for each in left}), "unit")
    message = f"the preemption has ended before {counted_noun(len(left), 'pod')} of {units} could be evicted"
    yield _reservation_event(hold, EventReason.EVICTION_STOPPED, message, warning=True)
    for each in left[:_MAX_PODS]:
        message = f"not evicted, because the preemption has ended; other pods of {each.unit} were evicted"
        yield EventDraft(
            "Pod", each.namespace, each.name, each.uid, EventReason.EVICTION_STOPPED, message, warning=True
        )


def node_request_event(action: RequestNodes, error: str | None) -> EventDraft:
    """Return the Event of a request for nodes. ``error``: why it could not be made; None: it was made."""
    member, what = action.owner, f"ProvisioningRequest {action.name} ({action.provisioning_class})"
    if error is not None:
        return _warning(member, EventReason.NODES_NOT_REQUESTED, f"{what} was not made: {error}")
    message = f"{what} asks the cluster autoscaler for nodes for {sum(count for _, count in action.groups)} pods"
    return EventDraft(
        "Pod", member.namespace, member.name, member.uid, EventReason.NODES_REQUESTED, message, warning=False
    )


def _gang_prefix(gang: Gang) -> str:
    return "" if is_single_pod_gang(gang.name) else f"gang {gang.name.name}: "


def _reservation_event(
    reservation: ReservationUpdate, reason: EventReason, message: str, *, warning: bool
) -> EventDraft:
    kind, namespace, name, uid = RESERVATION_KIND, reservation.namespace, reservation.name, reservation.key
    return EventDraft(kind, namespace, name, uid, reason, message, warning)


def _warning(member: Member, reason: EventReason, message: str) -> EventDraft:
    return EventDraft("Pod", member.namespace, member.name, member.uid, reason, message, warning=True)


def _status_message(reservation: ReservationUpdate, status: ReservationStatus) -> str:
    if status.state is ReservationState.HELD:
        return _hold_message(reservation)
    if status.reason is not None:
        return status.reason
    where = "" if reservation.spec.domain is None else f" in {reservation.spec.domain}"
    plan = f"{counted_noun(status.gpus, 'GPU')} on {counted_noun(status.nodes, 'node')}{where}"
    if status.state is ReservationState.BOUND:
        return f"{part_of(status.bound, status.members, 'is', 'are')} bound: {plan}"
    members = f"{counted_noun(status.members, 'member')} with {plan}"
    return f"{members}; to be bound by {status.deadline}" if status.state is ReservationState.COMMITTED else members


def _hold_message(reservation: ReservationUpdate) -> str:
    """Return the message of a capacity hold without the names in the reason of its status."""
    nodes, preemption = first_of(sorted(each.node for each in reservation.spec.held)), reservation.spec.preemption
    begun = (
        "" if preemption is None else f"; evicts {counted_noun(len(preemption.evictions), 'pod')} ({preemption.rule})"
    )
    return f"does not fit yet; capacity that becomes free on {nodes} is reserved{begun}"
