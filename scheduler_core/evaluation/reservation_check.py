"""The reservation check: which proposed reservations an extender can acknowledge. Pure.

The extender knows the bound pods and the assumed pods, on one node or on one of several. A reservation fits if every
member would pass Filter on its node beside all other pods, whichever in-flight pods come there. Once its members count,
Filter rejects pods that conflict with them. So a reservation that fits keeps fitting, except for pods that bypass the
extender.

Cost: nodes that did not change are not checked again; pods of one profile are checked once.
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
from scheduler_core.cache.node_table import ClusterSnapshot, state_if
from scheduler_core.cache.reservations import ActiveReservation, ReservationIndex
from scheduler_core.evaluation.evaluate import evaluator_for
from scheduler_core.evaluation.in_flight import fits_with_any_gpus, leaves_enough
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile

MAX_CASES = 64  # subsets of in-flight pods, by profile; with more, a member fits only if any free GPUs suit it

PolicyOf = Callable[[PodUpdate], Policy]


class ExtenderView(NamedTuple):
    """The pods and nodes that the extender knows at one moment."""

    snapshot: ClusterSnapshot
    pods: Mapping[str, PodUpdate]
    in_flight: Sequence[AssumedPod]


class _NodeCheck(NamedTuple):
    record: NodeRecord
    coming: tuple[str, ...]  # UIDs of in-flight pods
    fits: bool


class ReservationChecker:
    """Checks proposed reservations, and keeps the result of each node while nothing changes there."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, _NodeCheck]] = {}  # reservation -> node

    def acknowledge(
        self, ledger: LedgerUpdate, reserved: ReservationIndex, known: ExtenderView, policy_of: PolicyOf, pod: str
    ) -> ExtenderAck:
        """Return the acknowledgement of a ledger. ``pod``: the pod of this process, as NAMESPACE/NAME."""
        proposed = [entry.uid for entry in ledger.spec.entries if entry.phase is EntryPhase.PROPOSED]
        proposals = [active for uid in proposed if (active := reserved.active.get(uid)) is not None]
        coming = _in_flight_by_node(known.in_flight, {node for active in proposals for node in active.nodes})
        clear = {each.entry.uid for each in proposals if self._fits(each, known, coming, policy_of)}
        # Reservations that the watch has not shown, or that differ from the proposal, are blocked as well.
        return ExtenderAck(pod, ledger.generation, tuple(uid for uid in sorted(proposed) if uid not in clear))

    def retain_only(self, uids: Iterable[str]) -> None:
        """Forget the results of all other reservations."""
        self._found = {uid: self._found[uid] for uid in uids if uid in self._found}

    def reset(self) -> None:
        """Forget all results, as after a change of policy."""
        self._found.clear()

    def _fits(
        self,
        active: ActiveReservation,
        known: ExtenderView,
        in_flight: Mapping[str, Sequence[Occupant]],
        policy_of: PolicyOf,
    ) -> bool:
        found = self._found.setdefault(active.entry.uid, {})
        for node, uids in _members(active).items():
            record = known.snapshot.records.get(node)
            if record is None or any(uid not in known.pods for uid in uids):
                return False
            before, coming = found.get(node), in_flight.get(node, ())
            names = tuple(pod.uid for pod in coming)
            if before is None or before.record is not record or before.coming != names:
                waiting = [known.pods[uid] for uid in uids if known.pods[uid].node is None]
                before = found[node] = _NodeCheck(record, names, _fit(known.snapshot, node, waiting, coming, policy_of))
            if not before.fits:
                return False
        return True


def _members(active: ActiveReservation) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for seat in active.seats:
        found.setdefault(seat.node or "", []).append(seat.uid)
    return found


def _in_flight_by_node(in_flight: Iterable[AssumedPod], nodes: AbstractSet[str]) -> dict[str, list[Occupant]]:
    """Return the in-flight pods that may come to each of these nodes."""
    found: dict[str, list[Occupant]] = {}
    for each in in_flight:
        for node in nodes & each.nodes:
            found.setdefault(node, []).append(each.pod)
    return found


def _fit(
    snapshot: ClusterSnapshot, node: str, members: Iterable[PodUpdate], coming: Sequence[Occupant], policy_of: PolicyOf
) -> bool:
    """Return whether these members fit on their node, where they count already."""
    present = [pod for pod in snapshot.records[node].pods if not is_hold(pod.uid)]
    cases = _cases(coming)
    uid_by_kind: dict[tuple[PodProfile, Policy], str] = {
        (each.occupant.profile, policy_of(each)): each.key for each in members
    }
    for (profile, policy), uid in uid_by_kind.items():
        evaluator = evaluator_for(profile, policy)
        others = [pod for pod in present if pod.uid != uid]
        if coming:  # else there is one case
            alone = _state(snapshot, node, uid, others)
            enough = leaves_enough(profile, alone, coming)
            if enough and fits_with_any_gpus(profile, alone, others, coming, evaluator):
                continue
        if cases is None:
            return False
        states = (_state(snapshot, node, uid, (*others, *case)) for case in cases)
        if any(isinstance(evaluator(state), Reason) for state in states):
            return False
    return True


def _state(snapshot: ClusterSnapshot, node: str, uid: str, others: Sequence[Occupant]) -> NodeState:
    """Return the state of the node on which the member does not count."""
    record, unreserved = snapshot.records[node], snapshot.states[node].unreserved
    if unreserved is not None and record.reserved == (uid,) and len(others) == len(record.pods) - 1:
        return unreserved  # already derived: nothing else is reserved there
    return state_if(snapshot, node, others)


def _cases(coming: Sequence[Occupant]) -> list[tuple[Occupant, ...]] | None:
    """Return every subset, the full set first; pods of equal profiles are interchangeable. None: too many subsets."""
    by_profile: dict[PodProfile, list[Occupant]] = {}
    for pod in coming:
        by_profile.setdefault(pod.profile, []).append(pod)
    if prod(len(pods) + 1 for pods in by_profile.values()) > MAX_CASES:
        return None
    prefixes = [[tuple(pods[:count]) for count in range(len(pods), -1, -1)] for pods in by_profile.values()]
    return [tuple(pod for group in chosen for pod in group) for chosen in product(*prefixes)]
