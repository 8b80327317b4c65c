"""Which victims of kube-scheduler's preemption the policy protects. No I/O.

The rules of the policy file say which pods may be evicted for which pods, and under which conditions. kube-scheduler
knows neither, so nodes with protected victims are dropped. Limits of the planner's own evictions do not count here: the
mode (except off), time windows, cool-downs, the limit of an hour, the general minimum runtime, the longest grace
period.
"""

from __future__ import annotations

from collections.abc import Container

from scheduler_core.cache.events import PodUpdate
from scheduler_core.evaluation.job_times import NearEndSince, job_times, known_checkpoint_age
from scheduler_core.evaluation.protection import (
    Protection,
    UnitConditions,
    claims_near_end,
    has_near_deadline,
    protection_of,
)
from scheduler_core.policy.preemption import DEFAULT_RULES, PreemptionMode, PreemptionPeer, PreemptionPolicy
from scheduler_core.policy.workload_class import workload_class_of
from scheduler_core.request.disruption import RunningFacts
from scheduler_core.request.pod_request import PodRequest

_MOST = 10_000  # pods whose first time near their end is kept


class ProtectedVictims:
    """The protections of one extender. For one thread."""

    def __init__(self) -> None:
        # By UID. A pod can say again and again that it ends soon: that protects it for a limited time.
        self._near_end_since: dict[str, NearEndSince] = {}

    def forget_pods(self, known: Container[str]) -> None:
        """Forget the pods that are gone. ``known``: UIDs of all pods."""
        self._near_end_since = {uid: since for uid, since in self._near_end_since.items() if uid in known}

    def protection_of(
        self, victim: PodUpdate, beneficiary: PreemptionPeer, policy: PreemptionPolicy, now: float
    ) -> Protection | None:
        """Return why the pod may not be evicted for the other one; None: the policy does not protect it.

        A pod without a rule is protected if the policy file has rules: then they say which pods may be evicted. The
        built-in rules leave that to the priority classes. ``now``: seconds since 1970.
        """
        if policy.mode is PreemptionMode.OFF:
            return None
        workload_class = workload_class_of(victim.occupant.profile)
        peer = PreemptionPeer(victim.occupant.namespace, victim.priority, workload_class)
        rule = policy.rule_for(peer, beneficiary)
        if rule is None:
            return None if policy.rules == DEFAULT_RULES else Protection.NO_RULE
        facts = victim.running or RunningFacts()
        times = job_times((facts.declared,), facts.started, facts.deadline, policy, now)
        since = self._near_end_since.get(victim.key, NearEndSince())
        if since.claim is None and claims_near_end(times, rule, now):
            since = since._replace(claim=now)
        if since.deadline is None and has_near_deadline(times, rule, now):
            since = since._replace(deadline=now)
        if since != NearEndSince() and len(self._near_end_since) < _MOST:
            self._near_end_since[victim.key] = since
        conditions = UnitConditions(times, known_checkpoint_age(times, now), near_end_since=since)
        own_runtime = rule._replace(min_runtime_s=rule.min_runtime_s or 0.0)
        return protection_of(conditions, own_runtime, policy, now)


def beneficiary_of(request: PodRequest, priority: int) -> PreemptionPeer:
    """Return the preempting pod as rules match it."""
    return PreemptionPeer(request.namespace, priority, workload_class_of(request.profile))
