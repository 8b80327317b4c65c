"""Explains why a gang is where it is, or fits nowhere. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from typing import NamedTuple

from msgspec.structs import replace

from gputopo.crd.reservations import EntryPhase, PlannedMember, ReservationSpec
from gputopo.labels import keys
from gputopo.labels.gate import other_gates
from gputopo.labels.keys import GATE
from gputopo.labels.reasons import reason_text
from gputopo.render.report import listed
from gputopo.timestamps import format_timestamp
from scheduler_core.cache.node_nics import network_gbps
from scheduler_core.cache.reservations import ActiveReservation
from scheduler_core.explain.advice import SEE
from scheduler_core.explain.model import ReservedGpus
from scheduler_core.explain.reservations import devices_by_node, reserved_gpus
from scheduler_core.planner.commit.members import is_finished
from scheduler_core.planner.commit.progress import PHASES, ROLLING_BACK, Progress
from scheduler_core.planner.gang.conventions import RANK_STRIDE, is_single_pod_gang
from scheduler_core.planner.gang.creation_order import blocked_creations
from scheduler_core.planner.gang.gang import Gang, GangPhase, single_pod_of
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.leader.hand_over import hand_over_text
from scheduler_core.planner.leader.hold_candidates import HoldCandidate
from scheduler_core.planner.leader.plan_task import placed_seats
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.packing.model import Levels, Unplaced
from scheduler_core.planner.packing.network import NetworkNode, network_rate
from scheduler_core.planner.packing.topology_domains import domain_of
from scheduler_core.planner.report.leadership import (
    leading_for_s,
    no_planner_reason,
    no_planner_words,
    planner_levels,
    unasked_planner_notes,
)
from scheduler_core.planner.report.listing import (
    backfill_in_use,
    gang_summary,
    gangs_with_holds,
    list_gangs,
    progress_of,
)
from scheduler_core.planner.report.model import (
    GangEviction,
    GangExplanation,
    GangPlacement,
    MembersInState,
    MissingReason,
    NodeMembers,
    NoPlacement,
)
from scheduler_core.planner.report.planner_page import PlannerGangState
from scheduler_core.planner.report.preemption_notes import dry_run_notes, intent_note, no_eviction_note
from scheduler_core.planner.report.prospects import GangProspects, PlanRules, evictable_pods, find_prospects
from scheduler_core.planner.report.read import GangSnapshot
from scheduler_core.request.pod_request import InvalidRequest

_QUEUED = (GangPhase.QUEUED.value, PHASES[EntryPhase.HELD])
_WAITS = (GangPhase.WAITING_FOR_MEMBERS.value, GangPhase.WAITING.value, *_QUEUED)
_PLANNED = (*_WAITS, PHASES[EntryPhase.PROPOSED], PHASES[EntryPhase.COMMITTED], GangPhase.UNGATED.value, ROLLING_BACK)
_OUT_OF_TIME = "the time for trials ran out, so this explanation may be incomplete"
_NEW_PLANNER_S = 60.0  # a planner has tried most gangs after this time
_MAX_RANKS = 10_000  # of missing members
_QUOTED = 3  # pods with an invalid gang


class GangQuestion(NamedTuple):
    """The gang to explain, and what it is explained by."""

    name: GangName
    rules: PlanRules
    planner_state: PlannerGangState | None = None  # the state in the planner, if it was queried
    opted_in: bool | None = None  # whether its namespace gates pods; None: not read
    source: str = ""  # the options that name the cluster, for commands in hints: " --from c.json"


class NoGangError(LookupError):
    """No gang has that name; the text lists the nearest names."""


def explain_gang(snapshot: GangSnapshot, about: GangQuestion, now: float) -> GangExplanation:
    """Return the explanation. ``now``: seconds since 1970. Raises ``NoGangError``."""
    found = next((each for each in progress_of(snapshot) if each[0].name == about.name), None)
    if found is None:
        raise NoGangError(_no_gang_message(snapshot, about, now))
    gang, state = found
    explanation = GangExplanation(
        gang=gang_summary(
            gang, state, now, about.planner_state, opted_in=about.opted_in, holders=gangs_with_holds(snapshot)
        ),
        unplanned=no_planner_reason(snapshot, now) if state.phase in _PLANNED else None,
        required=gang.required,
        preferred=gang.preferred,
        timeout_seconds=gang.bind_timeout_s,
        standing=tuple(_members_in_states(snapshot.view.gang_members.members_of(gang.name), gang)),
        absent_ranks=_absent_ranks(gang),
        before=_gangs_before(snapshot, gang) if state.phase in _QUEUED else (),
        places=tuple(_known_placements(snapshot, gang, state)),
        notes=tuple(_notes(snapshot, gang, state, about)),
    )
    gated = (*gang.ready, *gang.held)
    if state.phase not in _WAITS or not gated:
        return explanation
    found_now = find_prospects(snapshot.view, gang._replace(ready=gated), about.rules, now)
    explanation = _with_prospects(explanation, snapshot, gang, found_now)
    fits = state.phase == GangPhase.QUEUED.value and explanation.unfit is None
    more = list(_new_planner_notes(snapshot, state, about.planner_state, now))
    if fits and explanation.unplanned is not None and no_planner_words(snapshot, now) is not None:
        explanation = replace(explanation, unplanned=f"it fits now, but {explanation.unplanned}")
    elif fits and about.planner_state is None:
        more += unasked_planner_notes(snapshot, now - gang.newest, now)
    more += [_OUT_OF_TIME] if about.rules.over() else []
    return replace(explanation, notes=(*explanation.notes, *more))


def _with_prospects(
    explanation: GangExplanation, snapshot: GangSnapshot, gang: Gang, found: GangProspects
) -> GangExplanation:
    if found.fits is not None:
        if gang.unplanned:  # kube-scheduler chooses the nodes, by rules that a plan does not follow
            return explanation
        return replace(
            explanation,
            places=(*explanation.places, _placement("now", gang, found.fits.seats, found.fits, snapshot.view)),
        )
    assert found.unplaced is not None  # one of the two
    return replace(
        explanation,
        unfit=_no_placement(found.unplaced),
        never=None if found.never is None else _no_placement(found.never),
        kept=tuple(map(_blocking_reservation, found.kept)),
        kept_together=found.together,
        relief=None if found.eviction is None else _eviction(snapshot, gang, found.eviction),
    )


def _eviction(snapshot: GangSnapshot, gang: Gang, candidate: HoldCandidate) -> GangEviction:
    own = {each.uid for each in gang.placed}
    pods = [pod for name in candidate.nodes for pod in evictable_pods(snapshot.view.cache.snapshot, name, own)]
    return GangEviction(
        nodes=candidate.nodes,
        pods=tuple(f"{each.namespace}/{each.name}" for each in pods),
        gpus=sum(each.profile.devices for each in pods),
        at=None if candidate.estimate is None else format_timestamp(candidate.estimate),
    )


def _members_in_states(members: Iterable[Member], gang: Gang) -> Iterator[MembersInState]:
    surplus = {each.uid for each in gang.surplus}
    names: dict[str, list[str]] = {}
    for each in members:
        state = "surplus, waits until another member is gone" if each.uid in surplus else _member_state(each)
        names.setdefault(state, []).append(each.name)
    return (MembersInState(state, tuple(found)) for state, found in names.items())


def _member_state(member: Member) -> str:
    if member.is_terminating:
        return "being deleted"
    if is_finished(member):
        return member.phase.lower()
    if isinstance(member.request, InvalidRequest):
        return f"refused: {member.request.reason}"
    if member.gates:
        gates = other_gates(member.gates) or member.gates
        return f"held by the gate{'s' * (len(gates) > 1)} {', '.join(gates)}"
    if member.node is None:
        reason = "" if member.bind_error is None else f" (kube-scheduler: {member.bind_error})"
        return "not bound yet" if member.reservation is None else f"ungated, not bound yet{reason}"
    return "running" if member.started else "bound"


def _absent_ranks(gang: Gang) -> tuple[int, ...]:
    """Return the ranks of missing members, if all others have a rank below the size of the gang."""
    present = (*gang.ready, *gang.held, *gang.placed, *gang.succeeded)
    ranks = {each.gang_request.rank for each in present}
    size = gang.size
    if gang.phase is not GangPhase.WAITING_FOR_MEMBERS or size is None or size > _MAX_RANKS or None in ranks:
        return ()
    absent = tuple(rank for rank in range(size) if rank not in ranks)
    return absent if len(absent) == size - len(present) else ()


def _gangs_before(snapshot: GangSnapshot, gang: Gang) -> tuple[str, ...]:
    """Return the gangs before it by priority and age of pods; the queue itself counts from when a gang is complete."""
    queued = [each for each, state in progress_of(snapshot) if state.phase in _QUEUED]
    before = sorted((each for each in queued if _queue_order(each) < _queue_order(gang)), key=_queue_order)
    pods = [(each.name, single_pod_of(each)) for each in before]
    return tuple(
        f"{name.namespace}/{name.name}" if pod is None else f"pod {name.namespace}/{pod}" for name, pod in pods
    )


def _queue_order(gang: Gang) -> tuple[int, float, GangName]:
    return -gang.priority, gang.newest, gang.name


def _known_placements(snapshot: GangSnapshot, gang: Gang, state: Progress) -> Iterator[GangPlacement]:
    if state.open is not None:
        if state.open.spec.seats:
            yield _placement("plan", gang, state.open.spec.seats, state.open.spec, snapshot.view)
    elif state.plan is not None and gang.phase in (GangPhase.BOUND, GangPhase.RUNNING):
        seats = placed_seats(gang, snapshot.view.reservation_index.seats((gang.name,)))
        yield _placement("there", gang, seats, state.plan.spec, snapshot.view)


def _placement(
    of: str, gang: Gang, seats: Iterable[PlannedMember], spec: ReservationSpec, view: PlannerView
) -> GangPlacement:
    by_node: dict[str | None, list[PlannedMember]] = {}
    for seat in seats:
        by_node.setdefault(seat.node, []).append(seat)
    stops = tuple(
        NodeMembers(
            node=node,
            members=tuple(seat.name for seat in found),
            ranks=tuple(None if (seat.rank or 0) >= RANK_STRIDE else seat.rank for seat in found),
            gpus=sum(number for seat in found for _, number in seat.gpus),
        )
        for node, found in by_node.items()
    )
    own_pods = {(gang.name.namespace, name) for each in stops for name in each.members}
    own_pods |= {(each.namespace, each.name) for each in gang.placed}
    network = network_rate(
        [_network_node(view, each.node, own_pods) for each in stops if each.node is not None and each.gpus]
    )
    return GangPlacement(
        of=of,
        stops=stops,
        domain=spec.domain,
        gbps=spec.gbps,
        network_gbps=None if network is None else network.gbps,
        network_source=None if network is None else network.source,
    )


def _network_node(view: PlannerView, name: str, own_pods: Collection[tuple[str, str]]) -> NetworkNode:
    record, rules = view.cache.snapshot.records.get(name), view.rules.get(name)
    labels = {} if rules is None else rules.metadata.labels or {}
    if record is None:
        return NetworkNode(name, None, labels)
    return NetworkNode(name, record.machine.topology, labels, network_gbps(record, own_pods))


def _no_placement(found: Unplaced) -> NoPlacement:
    names: dict[str, list[str]] = {}
    for name, reason in found.missing:
        names.setdefault(reason_text(reason), []).append(name)
    lacks = tuple(MissingReason(reason, tuple(members)) for reason, members in names.items())
    return NoPlacement(reason=found.reason, best=found.best, lacks=lacks)


def _blocking_reservation(active: ActiveReservation) -> ReservedGpus:
    return reserved_gpus(active, devices_by_node(active))


def _notes(snapshot: GangSnapshot, gang: Gang, state: Progress, about: GangQuestion) -> Iterator[str]:
    if gang.phase is GangPhase.ELSEWHERE:
        yield f"none of its pods has the gate {GATE}, so the planner leaves it to its scheduler"
    if state.open is not None and state.open.status.estimate is not None:
        yield f"its capacity hold is expected to be free at {state.open.status.estimate}"
    if state.open is not None and (intent := state.open.spec.preemption) is not None:
        yield intent_note(intent)
    yield from _backfill_notes(snapshot, gang, state)
    if about.planner_state is not None:
        yield from _planner_notes(about.planner_state)
    yield from blocked_creations(gang, snapshot.view.gang_members.members_of(gang.name))
    yield from _level_notes(snapshot, gang, about.rules.levels)
    yield from _pod_rule_notes((*gang.ready, *gang.held), alone=is_single_pod_gang(gang.name))
    if snapshot.unread:
        yield f"you may not read {', '.join(snapshot.unread)}, so these are not counted"


def _new_planner_notes(
    snapshot: GangSnapshot, state: Progress, planner_state: PlannerGangState | None, now: float
) -> Iterator[str]:
    """Yield that a planner that became the leader a short time ago knows nothing of the gang yet."""
    if state.phase != GangPhase.QUEUED.value:
        return
    leads_for, judged = leading_for_s(snapshot, now), None if planner_state is None else planner_state.judged
    if leads_for is not None and (judged is False or (judged is None and leads_for < _NEW_PLANNER_S)):
        tried = "may not have tried" if judged is None else "has not tried"
        yield (
            f"the planner has been the leader for {leads_for:.0f} s and {tried} this gang yet: it counts waiting times "
            "and rollbacks from the moment when it became the leader"
        )


def _backfill_notes(snapshot: GangSnapshot, gang: Gang, state: Progress) -> Iterator[str]:
    """Yield the notes about backfill: the holder of the capacity that the gang uses, or the gangs on its capacity."""
    plan, name = state.open or state.plan, gang.name.title
    if state.phase == GangPhase.QUEUED.value and (why_not := _no_backfill(snapshot, gang)) is not None:
        yield why_not
    if plan is None:
        return
    if (backfill := backfill_in_use(gang, state, gangs_with_holds(snapshot))) is not None:
        until = f"until {backfill.until}, and is evicted if that gang can start earlier (backfill)"
        yield f"it uses capacity that is held for {backfill.gang} {until}"
    users = [
        f"{each.namespace}/{each.spec.gang}"
        for each in snapshot.view.reservations.values()
        if plan.spec.held
        and each.spec.backfill is not None
        and each.spec.backfill.gang == name
        and (user := snapshot.view.gang_members.get_gang(GangName(each.namespace, each.spec.gang))) is not None
        and user.placed
    ]
    if users:
        yield f"until it can start, its held capacity is used by {listed(tuple(users))} (backfill)"


_BACKFILL_NEEDS = (
    "not all of its pods have activeDeadlineSeconds. The policy must allow it (backfill.mode: deadline, or estimate, "
    f"where {keys.POD_EXPECTED_DURATION.key} or {keys.POD_ESTIMATED_COMPLETION.key} suffices; the default is off), and "
    "the gang must end before the gang that holds the capacity can start"
)


def _no_backfill(snapshot: GangSnapshot, gang: Gang) -> str | None:
    """Return why a waiting gang never uses capacity that is held for another gang, by its pods alone."""
    if not gangs_with_holds(snapshot) - {gang.name.title}:
        return None
    text = "it uses no capacity that is held for other gangs (backfill): "
    if is_single_pod_gang(gang.name):
        return f"{text}a pod that is planned on its own does not; annotate it as a gang of one"
    wants = [each for each in gang.ready if each.asks_for_gpus]
    if wants and any(each.bounded_s is None for each in wants):
        return f"{text}{_BACKFILL_NEEDS}"
    return None


def _planner_notes(planner_state: PlannerGangState) -> Iterator[str]:
    if planner_state.rollbacks:
        again = "at once" if not planner_state.next_try_s else f"in {planner_state.next_try_s:.0f} s"
        often = "once" if planner_state.rollbacks == 1 else f"{planner_state.rollbacks} times"
        reason = "" if planner_state.trouble is None else f" (last reason: {planner_state.trouble})"
        yield f"it was rolled back {often}{reason}; the planner tries again {again}"
    if (dry := planner_state.dry_run) is not None:
        yield from dry_run_notes(dry)
    if planner_state.no_eviction is not None:
        yield no_eviction_note(planner_state.no_eviction)
    if planner_state.missing:
        names: dict[str, list[str]] = {}
        for each in planner_state.missing:
            names.setdefault(each.reason.removesuffix(SEE), []).append(each.member)
        missing = "; ".join(f"{reason} ({listed(members, 1)})" for reason, members in names.items())
        yield f"at the planner's last attempt, {planner_state.reason}: {missing}"


def _level_notes(snapshot: GangSnapshot, gang: Gang, levels: Levels) -> Iterator[str]:
    """Yield a note if no node has a domain of the preferred level; ``unfit`` covers the required level."""
    nodes = [each.metadata.labels or {} for each in snapshot.view.rules.values()]
    level = gang.preferred
    if level is not None and all(domain_of(labels, level, levels) is None for labels in nodes):
        yield f"no node is in any {level}: none has a label {' or '.join(levels.get(level, (level,)))}"
    if planner_levels(snapshot) is None and {gang.required, gang.preferred} & set(levels):
        yield "the planner does not publish the labels of topology levels, so the default labels were used"


def _pod_rule_notes(members: Iterable[Member], *, alone: bool) -> Iterator[str]:
    """Yield why the planner removes the gates of these members without choosing nodes."""
    rules = sorted({rule for each in members for rule in each.unplanned})
    if rules:
        yield f"the planner removes the gates without choosing nodes: {hand_over_text(rules, alone=alone)}"


def _no_gang_message(snapshot: GangSnapshot, about: GangQuestion, now: float) -> str:
    name = about.name
    listing = list_gangs(snapshot, now)
    known = [each for each in listing if each.pod is None]
    invalid = [each.reason for each in listing if each.pod is not None and each.namespace == name.namespace]
    here = [each.name for each in known if each.namespace == name.namespace]
    elsewhere = [f"{each.namespace}/{each.name}" for each in known if each.name == name.name]
    of_controllers = [each for each in here if each.endswith(f".{name.name}")]  # "jobset.NAME"
    near = list(dict.fromkeys([*of_controllers, *get_close_matches(name.name, here, n=3, cutoff=0.4), *elsewhere]))[:6]
    message = f"there is no gang {name.name} in the namespace {name.namespace}"
    if invalid:
        message += f" (pods there with an invalid gang: {'; '.join(invalid[:_QUOTED])})"
    if near:
        return f"{message}; nearest: {', '.join(near)}"
    return f"{message}: `gputopo gangs{about.source}` lists all" if known else f"{message}, nor any other gang"
