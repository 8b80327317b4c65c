"""What an extender can vouch for: proposed reservations that fit with all that it knows of. Pure.

It knows of pods that are bound, and of those that it let in and has not seen bound: on one node, or on one of several.
A reservation fits where every member would pass Filter on its node beside all others, whichever of the doubtful pods
are on their way there. From the moment that its seats count others are refused what conflicts with them, so what fits
once keeps fitting, but for what nobody asks an extender about.

Cost: what did not change on a node is not judged again; pods of one profile are judged once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import product
from math import prod
from typing import NamedTuple

from gputopo.crd.reservations import EntryPhase, ExtenderAck
from gputopo.labels.reasons import Reason
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.assumed_pods import AssumedPod
from scheduler_core.cache.events import LedgerUpdate, PodUpdate
from scheduler_core.cache.node_record import NodeRecord, is_hold
from scheduler_core.cache.node_state import NodeState
from scheduler_core.cache.node_table import Snapshot, state_if
from scheduler_core.cache.reservations import ActiveReservation, ReservationIndex
from scheduler_core.evaluation.evaluate import evaluator_for
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.profiles import Policies
from scheduler_core.request.pod_request import PodProfile, PodRequest

MAX_CASES = 64  # which of the doubtful pods come, told apart by profile; beyond that it waits until some are bound

PolicyOf = Callable[[PodUpdate], Policy]


class ExtenderView(NamedTuple):
    """What the extender knows at one moment."""

    table: Snapshot
    pods: Mapping[str, PodUpdate]
    doubtful: Sequence[AssumedPod]


class _NodeCheck(NamedTuple):
    record: NodeRecord
    coming: tuple[str, ...]  # UIDs of doubtful pods
    fits: bool


class ReservationChecker:
    """What was found of each proposal on each of its nodes, kept as long as nothing changes there."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, _NodeCheck]] = {}  # reservation -> node

    def acknowledge(
        self, ledger: LedgerUpdate, reserved: ReservationIndex, known: ExtenderView, policy_of: PolicyOf, pod: str
    ) -> ExtenderAck:
        """What can be said of that ledger now. ``pod``: in which this process runs, NAMESPACE/NAME."""
        proposed = [entry.uid for entry in ledger.spec.entries if entry.phase is EntryPhase.PROPOSED]
        seen = [counting for uid in proposed if (counting := reserved.active.get(uid)) is not None]
        coming = _in_flight_by_node(known.doubtful, {node for counting in seen for node in counting.nodes})
        clear = {each.entry.uid for each in seen if self._fits(each, known, coming, policy_of)}
        # Of the others some were not shown yet, or are not what was proposed.
        return ExtenderAck(pod, ledger.generation, tuple(uid for uid in sorted(proposed) if uid not in clear))

    def retain_only(self, uids: Iterable[str]) -> None:
        """Forget what was found of all other reservations."""
        self._found = {uid: self._found[uid] for uid in uids if uid in self._found}

    def reset(self) -> None:
        """Judge everything anew: by another policy."""
        self._found.clear()

    def _fits(
        self,
        counting: ActiveReservation,
        known: ExtenderView,
        doubtful: Mapping[str, Sequence[Occupant]],
        policy_of: PolicyOf,
    ) -> bool:
        found = self._found.setdefault(counting.entry.uid, {})
        for node, uids in _members(counting).items():
            record = known.table.records.get(node)
            if record is None or any(uid not in known.pods for uid in uids):
                return False
            before, coming = found.get(node), doubtful.get(node, ())
            names = tuple(pod.uid for pod in coming)
            if before is None or before.record is not record or before.coming != names:
                waiting = [known.pods[uid] for uid in uids if known.pods[uid].node is None]
                before = found[node] = _NodeCheck(record, names, _fit(known.table, node, waiting, coming, policy_of))
            if not before.fits:
                return False
        return True


def _members(counting: ActiveReservation) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for seat in counting.seats:
        found.setdefault(seat.node or "", []).append(seat.uid)
    return found


def _in_flight_by_node(doubtful: Iterable[AssumedPod], nodes: AbstractSet[str]) -> dict[str, list[Occupant]]:
    """Who may be on the way to each of these nodes."""
    found: dict[str, list[Occupant]] = {}
    for each in doubtful:
        for node in nodes & each.nodes:
            found.setdefault(node, []).append(each.pod)
    return found


def _fit(
    table: Snapshot, node: str, members: Iterable[PodUpdate], coming: Sequence[Occupant], policy_of: PolicyOf
) -> bool:
    """Whether these members fit on a node on which they are counted already."""
    present = [pod for pod in table.records[node].pods if not is_hold(pod.uid)]
    cases = _cases(coming)
    if cases is None:
        return False
    kinds: dict[tuple[PodProfile, Policy], str] = {
        (each.occupant.profile, policy_of(each)): each.key for each in members
    }
    for (profile, policy), uid in kinds.items():
        judged = evaluator_for(profile, policy)
        others = [pod for pod in present if pod.uid != uid]
        states = (_state(table, node, uid, (*others, *case)) for case in cases)
        if any(isinstance(judged(state), Reason) for state in states):
            return False
    return True


def _state(table: Snapshot, node: str, uid: str, others: Sequence[Occupant]) -> NodeState:
    """The node as that member finds it."""
    record, unreserved = table.records[node], table.states[node].open
    if unreserved is not None and record.reserved == (uid,) and len(others) == len(record.pods) - 1:
        return unreserved  # known already: nothing is kept there but this place
    return state_if(table, node, others)


def _cases(coming: Sequence[Occupant]) -> list[tuple[Occupant, ...]] | None:
    """Every subset, all of them first, of pods that are alike any; None where these are too many."""
    alike: dict[PodProfile, list[Occupant]] = {}
    for pod in coming:
        alike.setdefault(pod.profile, []).append(pod)
    if prod(len(pods) + 1 for pods in alike.values()) > MAX_CASES:
        return None
    prefixes = [[tuple(pods[:count]) for count in range(len(pods), -1, -1)] for pods in alike.values()]
    return [tuple(pod for group in chosen for pod in group) for chosen in product(*prefixes)]


def policy_for_pod(policies: Policies, pod: PodUpdate) -> Policy:
    """By which the pod is judged when it is asked about."""
    occupant = pod.occupant
    request = PodRequest(pod.key, occupant.namespace, occupant.name, pod.scheduler, occupant.profile)
    return policies.profile_for(request).policy
