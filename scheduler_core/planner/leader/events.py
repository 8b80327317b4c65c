"""What people are told by Events, of what was written and of what cannot be. Pure.

Few: a placement is one Event on its reservation, for kube-scheduler itself tells each pod where it goes. Pods are told
of what their users must know: that they were taken back, that nobody can place them, that they were released.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gputopo.crd.reservations import RESERVATION_KIND, ReservationState, ReservationStatus
from gputopo.render.wording import counted, part
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import ReleasePod, UngateAndPin, WriteStatus
from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.packing.model import Unplaced
from scheduler_core.runtime.event_writer import EventDraft

_PODS = 16  # of a gang that are told; the others are told by their reservation
_REASONS = {
    ReservationState.HELD: "Held",
    ReservationState.COMMITTED: "Committed",
    ReservationState.BOUND: "Bound",
    ReservationState.ROLLING_BACK: "TakenBack",
    ReservationState.FAILED: "Failed",
}
_BAD = (ReservationState.ROLLING_BACK, ReservationState.FAILED)


def status_events(what: WriteStatus, members: Iterable[Member]) -> Iterator[EventDraft]:
    """A reservation's state changed. ``members``: its pods that are there."""
    state = what.status.state
    if state is None or state not in _REASONS or not what.of.spec.gang:
        return
    message = _message(what.of, what.status)
    yield EventDraft(
        RESERVATION_KIND, what.of.namespace, what.of.name, what.of.key, _REASONS[state], message, state in _BAD
    )
    if state in _BAD:
        for each in list(members)[:_PODS]:
            yield _pod(each, f"Gang{_REASONS[state]}", f"reservation {what.of.name}: {message}", warning=True)


def unplaced_events(gang: Gang, why: Unplaced) -> Iterator[EventDraft]:
    """No place was found for a gang."""
    missing = dict(why.missing)
    for each in gang.ready[:1]:
        own = missing.get(each.name)
        more = f"; {each.name}: {getattr(own, 'value', own)}" if own is not None else ""
        yield _pod(each, "GangUnplaced", f"{_whose(gang)}{why.reason}{more}", warning=True)


def refused_events(gang: Gang) -> Iterator[EventDraft]:
    """What its members say cannot be understood."""
    for each in (*gang.ready, *gang.held, *gang.surplus)[:1]:
        yield _pod(each, "GangRefused", f"{_whose(gang)}{gang.reason}", warning=True)


def failed_ungate_event(what: UngateAndPin, error: str) -> EventDraft:
    """A pod has its place, and the API server does not take its gate away."""
    message = f"reservation {what.reservation}: the API server does not let it go: {error}"
    return _pod(what.member, "GangNotLetGo", message, warning=True)


def release_event(what: ReleasePod) -> EventDraft:
    """A pod was released to ordinary scheduling."""
    return _pod(what.member, "GangReleased", f"its gate was taken away without a place: {what.why}", warning=True)


def _whose(gang: Gang) -> str:
    return "" if is_single_pod_gang(gang.name) else f"gang {gang.name.name}: "


def _pod(member: Member, reason: str, message: str, *, warning: bool) -> EventDraft:
    return EventDraft("Pod", member.namespace, member.name, member.uid, reason, message, warning)


def _message(of: ReservationUpdate, status: ReservationStatus) -> str:
    if status.reason is not None:
        return status.reason
    where = "" if of.spec.domain is None else f" in {of.spec.domain}"
    plan = f"{counted(status.gpus, 'GPU')} on {counted(status.nodes, 'node')}{where}"
    if status.state is ReservationState.BOUND:
        return f"{part(status.bound, status.members, 'is', 'are')} bound: {plan}"
    members = f"{counted(status.members, 'member')} with {plan}"
    return f"{members}; to be bound by {status.deadline}" if status.state is ReservationState.COMMITTED else members
