"""Makes the story of one gang. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from msgspec.structs import replace

from gputopo.crd.reservations import EntryPhase, ReservationSpec, Seat, gang_title
from gputopo.labels.gate import other_gates
from gputopo.labels.keys import GATE
from gputopo.labels.reasons import Reason
from gputopo.render.wording import first_of
from gputopo.timestamps import timestamp
from scheduler_core.cache.full_pods import OF_PODS, SPREAD
from scheduler_core.cache.reservations import ActiveReservation
from scheduler_core.explain.advice import SEE
from scheduler_core.planner.commit.members import is_finished
from scheduler_core.planner.commit.progress import PHASES, ROLLING_BACK, Progress
from scheduler_core.planner.gang.gang import Gang, GangPhase, single_pod_of
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.leader.plan_task import DEFAULT_BIND_TIMEOUT_S, placed_seats
from scheduler_core.planner.packing.model import Levels, Unplaced
from scheduler_core.planner.packing.topology_domains import domain_of
from scheduler_core.planner.report.leadership import no_planner_reason, planner_levels
from scheduler_core.planner.report.listing import gang_summary, list_gangs, progress_of
from scheduler_core.planner.report.model import (
    BlockingReservation,
    GangEviction,
    GangExplanation,
    GangPlacement,
    MembersInState,
    MissingReason,
    NodeMembers,
    NoPlacement,
)
from scheduler_core.planner.report.planner_page import PlannerGangState
from scheduler_core.planner.report.prospects import GangProspects, PlanRules, evictable_pods, find_prospects
from scheduler_core.planner.report.read import GangSnapshot
from scheduler_core.request.pod_request import InvalidRequest

_QUEUED = (GangPhase.QUEUED.value, PHASES[EntryPhase.HELD])
_WAITS = (GangPhase.WAITING_FOR_MEMBERS.value, GangPhase.WAITING.value, *_QUEUED)
_PLANNED = (*_WAITS, PHASES[EntryPhase.PROPOSED], PHASES[EntryPhase.COMMITTED], GangPhase.UNGATED.value, ROLLING_BACK)
_UNTRIED = "the time for trials ran out, so there may be more to say"
_ONLY_IT = (
    "where it stays so, whether it was taken back before and waits for its next try only the planner knows: kubectl -n "
    "gputopo port-forward deploy/gputopo-planner 9439, and --server http://127.0.0.1:9439"
)
_LISTED = 10_000  # ranks that have not come
_QUOTED = 3  # pods whose gang cannot be understood


class GangQuestion(NamedTuple):
    """What to tell of, and by what."""

    name: GangName
    rules: PlanRules
    said: PlannerGangState | None = None  # by the planner, where it was asked
    opted_in: bool | None = None  # whether the namespace has; None: nobody looked


class NoGangError(LookupError):
    """There is no gang of that name; the text names the nearest ones."""


def explain_gang(seen: GangSnapshot, about: GangQuestion, now: float) -> GangExplanation:
    """The story. ``now``: seconds since 1970. Raises ``NoGangError``."""
    found = next((each for each in progress_of(seen) if each[0].name == about.name), None)
    if found is None:
        raise NoGangError(_unknown(seen, about.name, now))
    gang, state = found
    story = GangExplanation(
        gang=gang_summary(gang, state, now, about.said, opted_in=about.opted_in),
        unplanned=no_planner_reason(seen, now) if state.phase in _PLANNED else None,
        required=gang.required,
        preferred=gang.preferred,
        timeout_seconds=DEFAULT_BIND_TIMEOUT_S if gang.timeout_s is None else gang.timeout_s,
        standing=tuple(_members_in_states(seen.view.gang_members.members_of(gang.name), gang)),
        absent_ranks=_absent(gang),
        before=_before(seen, gang) if state.phase in _QUEUED else (),
        places=tuple(_places(seen, gang, state)),
        notes=tuple(_notes(seen, gang, state, about)),
    )
    there = (*gang.ready, *gang.held)
    if state.phase not in _WAITS or not there:
        return story
    told = _with(story, seen, gang, find_prospects(seen.view, gang._replace(ready=there), about.rules, now))
    fits = state.phase == GangPhase.QUEUED.value and told.unfit is None
    more = [_ONLY_IT] if fits and about.said is None and story.unplanned is None else []
    more += [_UNTRIED] if about.rules.over() else []
    return replace(told, notes=(*told.notes, *more))


def _with(story: GangExplanation, seen: GangSnapshot, gang: Gang, found: GangProspects) -> GangExplanation:
    if found.fits is not None:
        return replace(story, places=(*story.places, _place("now", found.fits)))
    assert found.unplaced is not None  # one of the two
    room = found.eviction
    relief = None
    if room is not None:
        own = {each.uid for each in gang.placed}
        pods = [pod for name in room.nodes for pod in evictable_pods(seen.view.cache.table, name, own)]
        relief = GangEviction(
            nodes=room.nodes,
            pods=tuple(f"{each.namespace}/{each.name}" for each in pods),
            gpus=sum(each.profile.devices for each in pods),
            at=None if room.estimate is None else timestamp(room.estimate),
        )
    return replace(
        story,
        unfit=_unfit(found.unplaced),
        kept=tuple(map(_keeper, found.kept)),
        kept_together=found.together,
        relief=relief,
    )


def _members_in_states(members: Iterable[Member], gang: Gang) -> Iterator[MembersInState]:
    surplus = {each.uid for each in gang.surplus}
    found: dict[str, list[str]] = {}
    for each in members:
        state = "more than its size, so it waits until another goes" if each.uid in surplus else _state(each)
        found.setdefault(state, []).append(each.name)
    return (MembersInState(state, tuple(names)) for state, names in found.items())


def _state(member: Member) -> str:
    if member.is_terminating:
        return "being deleted"
    if is_finished(member):
        return member.phase.lower()
    if isinstance(member.request, InvalidRequest):
        return f"refused: {member.request.reason}"
    if member.gates:
        gates = other_gates(member.gates) or member.gates
        return f"held by the gate {', '.join(gates)}" if len(gates) == 1 else f"held by the gates {', '.join(gates)}"
    if member.node is None:
        said = "" if member.bind_error is None else f" (kube-scheduler: {member.bind_error})"
        return "not bound yet" if member.reservation is None else f"let go, and not bound yet{said}"
    return "running" if member.started else "bound"


def _absent(gang: Gang) -> tuple[int, ...]:
    """Ranks of a gang that is gathering, where all that are there have one below its size."""
    there = (*gang.ready, *gang.held, *gang.placed, *gang.succeeded)
    ranks = {each.gang_request.rank for each in there}
    size = gang.size
    if gang.phase is not GangPhase.WAITING_FOR_MEMBERS or size is None or size > _LISTED or None in ranks:
        return ()
    absent = tuple(rank for rank in range(size) if rank not in ranks)
    return absent if len(absent) == size - len(there) else ()


def _before(seen: GangSnapshot, gang: Gang) -> tuple[str, ...]:
    """By priority, then age, as far as pods tell: a gang that became complete late may have waited for less."""
    queued = [
        each for each, state in progress_of(seen) if state.phase in _QUEUED and _queue_order(each) < _queue_order(gang)
    ]
    return tuple(map(_called, sorted(queued, key=_queue_order)))


def _called(gang: Gang) -> str:
    pod, namespace = single_pod_of(gang), gang.name.namespace
    return f"{namespace}/{gang.name.name}" if pod is None else f"pod {namespace}/{pod}"


def _queue_order(gang: Gang) -> tuple[int, float, GangName]:
    return -gang.priority, gang.newest, gang.name


def _places(seen: GangSnapshot, gang: Gang, state: Progress) -> Iterator[GangPlacement]:
    if state.open is not None:
        if state.open.spec.seats:
            yield _place("plan", state.open.spec)
    elif state.plan is not None and gang.phase in (GangPhase.BOUND, GangPhase.RUNNING):
        yield _placed("there", placed_seats(gang, seen.view.reservation_index.seats((gang.name,))), state.plan.spec)


def _place(of: str, spec: ReservationSpec) -> GangPlacement:
    return _placed(of, spec.seats, spec)


def _placed(of: str, seats: Iterable[Seat], spec: ReservationSpec) -> GangPlacement:
    on: dict[str | None, list[Seat]] = {}
    for seat in seats:
        on.setdefault(seat.node, []).append(seat)
    return GangPlacement(
        of=of, stops=tuple(_stop(node, those) for node, those in on.items()), domain=spec.domain, gbps=spec.gbps
    )


def _stop(node: str | None, seats: Sequence[Seat]) -> NodeMembers:
    gpus = sum(number for seat in seats for _, number in seat.gpus)
    return NodeMembers(node, tuple(seat.name for seat in seats), tuple(seat.rank for seat in seats), gpus)


def _unfit(found: Unplaced) -> NoPlacement:
    lacks: dict[str, list[str]] = {}
    for name, why in found.missing:
        lacks.setdefault(why.value if isinstance(why, Reason) else why, []).append(name)
    return NoPlacement(
        reason=found.reason,
        best=found.best,
        lacks=tuple(MissingReason(why, tuple(names)) for why, names in lacks.items()),
    )


def _keeper(counting: ActiveReservation) -> BlockingReservation:
    entry, reservation = counting.entry, counting.reservation
    held = entry.phase is EntryPhase.HELD
    seats = sum(number for seat in counting.seats for _, number in seat.gpus)
    return BlockingReservation(
        gang=gang_title(reservation.namespace, reservation.spec),
        reservation=f"{entry.namespace}/{entry.name}",
        phase=entry.phase.value,
        until=reservation.status.estimate if held else reservation.status.deadline,
        gpus=seats + sum(each.gpus for each in counting.holdings),
        nodes=tuple(sorted(counting.nodes)),
    )


def _notes(seen: GangSnapshot, gang: Gang, state: Progress, about: GangQuestion) -> Iterator[str]:
    if gang.phase is GangPhase.ELSEWHERE:
        yield f"none of its pods has the gate {GATE}, so the planner leaves it to its scheduler"
    if state.open is not None and state.open.status.estimate is not None:
        yield f"what is held for it is expected to be free at {state.open.status.estimate}"
    if about.said is not None:
        yield from _by_planner(about.said)
    yield from _of_levels(seen, gang, about.rules.levels)
    yield from _of_others((*gang.ready, *gang.held))
    if seen.unread:
        yield f"you may not read {', '.join(seen.unread)}, so what these say is not counted"


def _by_planner(said: PlannerGangState) -> Iterator[str]:
    if said.rollbacks:
        again = "at once" if not said.next_try_s else f"in {said.next_try_s:.0f} s"
        often = "once" if said.rollbacks == 1 else f"{said.rollbacks} times"
        why = "" if said.trouble is None else f" (the last time: {said.trouble})"
        yield f"it was taken back {often}{why}; it is tried again {again}"
    if said.missing:
        yield f"when the planner tried last, {said.reason}: {_last_tried(said)}"


def _of_levels(seen: GangSnapshot, gang: Gang, levels: Levels) -> Iterator[str]:
    """Whether any node is in such a domain as it prefers. Of what it requires, ``unfit`` says that."""
    nodes = [each.metadata.labels or {} for each in seen.view.rules.values()]
    level = gang.preferred
    if level is not None and all(domain_of(labels, level, levels) is None for labels in nodes):
        yield f"no node is in any {level}: none has a label {' or '.join(levels.get(level, (level,)))}"
    if planner_levels(seen) is None and {gang.required, gang.preferred} & set(levels):
        yield "the planner does not say which labels make racks and the like, so the usual ones were looked at"


def _of_others(members: Iterable[Member]) -> Iterator[str]:
    """Rules about other pods that no plan follows."""
    rules = [set() if each.rules is None else set(each.rules.unchecked) for each in members]
    for rule in (OF_PODS, SPREAD):
        number = sum(rule in those for those in rules)
        if number:
            require = "requires" if number == 1 else "require"
            yield (
                f"{number} of its members {require} {rule} that the planner does not look at: "
                "kube-scheduler may refuse the node that it chooses"
            )


def _last_tried(said: PlannerGangState) -> str:
    found: dict[str, list[str]] = {}
    for each in said.missing:
        found.setdefault(each.reason.removesuffix(SEE), []).append(each.member)
    return "; ".join(f"{why} ({first_of(names)})" for why, names in found.items())


def _unknown(seen: GangSnapshot, name: GangName, now: float) -> str:
    known = [each for each in list_gangs(seen, now) if each.pod is None]
    refused = [
        each.reason for each in list_gangs(seen, now) if each.pod is not None and each.namespace == name.namespace
    ]
    here = [each.name for each in known if each.namespace == name.namespace]
    elsewhere = [f"{each.namespace}/{each.name}" for each in known if each.name == name.name]
    near = [*get_close_matches(name.name, here, n=3, cutoff=0.4), *elsewhere[:3]]
    said = f"there is no gang {name.name} in the namespace {name.namespace}"
    if refused:
        said += f" (pods there whose gang cannot be understood: {'; '.join(refused[:_QUOTED])})"
    if near:
        return f"{said}; nearest: {', '.join(near)}"
    return f"{said}: `gputopo gangs` lists all" if known else f"{said}, nor any other gang"
