"""Pods that keep held nodes from coming free for longer than expected. No I/O.

A hold is made where pods end soonest. But the owner of a Job can raise its deadline afterwards, a pod can be deleted
with a long grace period, and the end of most pods is unknown. So the planner remembers when each pod on held nodes was
expected to end. A pod that has not ended by then, or whose end was postponed, is late: the hold leaves its node where
the gang would also fit on nodes without late pods, and keeps its other nodes.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from math import inf
from typing import NamedTuple

from scheduler_core.planner.gang.disruption import SKEW_S
from scheduler_core.planner.leader.context import TermContext
from scheduler_core.planner.leader.hold_candidates import PodEnds
from scheduler_core.planner.leader.hold_limits import CapacityHold
from scheduler_core.planner.leader.hold_search import other_pods
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.packing.backfill import hold_start

# Of ``maxHoldAge``: pods are expected to end within this part, and later ends count as unknown. So after a wrong choice
# of nodes there is time for others.
_EXPECTED_SHARE = 0.5


class _ExpectedEnd(NamedTuple):
    end: float | None  # as first seen, seconds since 1970; None: unknown
    by: float  # seconds since 1970


class LatePods:
    """The expected ends of pods on held nodes in one term of leadership. For one thread."""

    def __init__(self, view: PlannerView, context: TermContext) -> None:
        self._view, self._context = view, context
        self._expected: dict[str, _ExpectedEnd] = {}  # by UID
        self._late: frozenset[str] = frozenset()  # UIDs

    def update(self, holds: Iterable[CapacityHold]) -> None:
        """Remember the expected ends of pods on held nodes, and find the late pods."""
        view, now, until = self._view, self._context.clock.wall(), self._until()
        records, ends = view.cache.snapshot.records, PodEnds(view.deadlines, view.disruptions)
        self._expected = {uid: each for uid, each in self._expected.items() if uid in view.cache.pods}
        for name in {name for each in holds for name in each.nodes if name in records}:
            for pod in other_pods(records[name]):
                end = ends.end_of(pod)
                self._expected.setdefault(pod.uid, _ExpectedEnd(end, until if end is None else min(end, until)))
        pods = {uid: view.cache.pods[uid].occupant for uid in self._expected if uid in view.cache.pods}
        self._late = frozenset(
            uid for uid, pod in pods.items() if _is_late(self._expected[uid], ends.end_of(pod) or -inf, now)
        )

    def nodes_of(self, hold: CapacityHold, own: Container[str]) -> frozenset[str]:
        """Return the nodes of a hold that late pods keep from coming free. ``own``: UIDs of pods of its gang."""
        if not self._late or hold.spec.preemption is not None:
            return frozenset()
        snapshot, deadline_of = self._view.cache.snapshot, self._view.deadlines.deadline_of
        records = {name: record for name in hold.nodes if (record := snapshot.records.get(name)) is not None}
        late = {name for name, each in records.items() if any(pod.uid in self._late for pod in other_pods(each, own))}
        return frozenset(
            each.node
            for each in hold.spec.held
            if each.node in late and hold_start((each,), snapshot, deadline_of) != -inf
        )

    def ends(self) -> PodEnds:
        """Return the ends of all pods, for another thread."""
        view = self._view
        return PodEnds(view.deadlines.copy(), view.disruptions.copy(), self._until(), self._late)

    def _until(self) -> float:
        return self._context.clock.wall() + _EXPECTED_SHARE * self._context.policies().limits.max_hold_age_s


def _is_late(expected: _ExpectedEnd, end: float, now: float) -> bool:
    is_postponed = expected.end is not None and end > expected.end + SKEW_S
    return is_postponed or now > expected.by + SKEW_S
