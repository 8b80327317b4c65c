"""When pods say that they end: by annotations of the pod, its owner or its gang. A claim that nothing enforces. No I/O.

Backfill uses it in the direction that does not delay the holder of the capacity: a claim makes the time for backfill
shorter, and only with ``BackfillMode.ESTIMATE`` does it allow backfill.
"""

from __future__ import annotations

from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.evaluation.job_times import job_times
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.policy.preemption import PreemptionPolicy


class ExpectedEnds:
    """The expected ends of pods, as the view has them at one time. For one thread."""

    def __init__(self, view: PlannerView, policy: PreemptionPolicy, now: float) -> None:
        """``now``: seconds since 1970."""
        self._view, self._policy, self._now = view, policy, now
        self._gang_facts = view.disruptions.gang_facts()

    def end_of(self, pod: Occupant) -> float | None:
        """Return when a running pod ends: by its deadline, or earlier as it says; None: neither is known.

        A claim that was wrong, because the time has passed, does not count.
        """
        view, deadline = self._view, self._view.deadlines.deadline_of(pod)
        state, member = view.disruptions.pod(pod.uid), view.gang_members.get_member(pod.uid)
        if state is None or state.started is None:
            return deadline
        names = {state.jobset, None if member is None else member.gang_request.gang} - {None}
        declared = (
            state.facts,
            *view.disruptions.owner_facts(pod.owner),
            *(facts for name in names if name is not None for facts in self._gang_facts.get(name, ())),
        )
        claimed = job_times(declared, state.started, deadline, self._policy, self._now).ends_at
        return min((at for at in (claimed, deadline) if at is not None), default=None)

    def run_of(self, gang: Gang) -> float | None:
        """Return how long a waiting gang says that it runs, in seconds; None: a member with GPUs does not say it.

        The longest of several claims. A claim of an end in the past does not count.
        """
        found: list[float] = []
        for each in gang.ready:
            if not each.asks_for_gpus:
                continue
            if each.expected is None:
                return None
            runs = [each.expected.duration_s or 0.0, (each.expected.completion or 0.0) - self._now]
            runs = [run_s for run_s in runs if run_s > 0]
            if not runs:
                return None
            found += runs
        return max(found, default=None)
