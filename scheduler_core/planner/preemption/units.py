"""The units that the policy allows to evict for a gang, with their cost. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.evaluation.job_times import (
    NearEndSince,
    checkpoint_age,
    known_checkpoint_age,
)
from scheduler_core.evaluation.protection import (
    Protection,
    UnitConditions,
    claims_near_end,
    has_near_deadline,
    protection_of,
)
from scheduler_core.planner.gang.disruption import SKEW_S
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.preemption.candidates import (
    CandidatePod,
    CandidateUnit,
    candidate_pods,
    candidate_units,
    unit_sources,
)
from scheduler_core.planner.preemption.cost import gpu_hours, gpus_of, lost_seconds
from scheduler_core.planner.preemption.inputs import CheckpointAges, UnitInputs
from scheduler_core.planner.preemption.model import EvictionUnit, VictimPod
from scheduler_core.policy.preemption import PreemptionPeer, PreemptionRule
from scheduler_core.policy.workload_class import WorkloadClass, workload_class_of
from scheduler_core.request.pod_request import InvalidRequest, PodProfile

# A gang that starts is not evicted for so long after the start of its first pod: else its owner could protect it for
# ever, by members that never start.
_STARTING_S = 3_600.0


class UnitsFound(NamedTuple):
    """The units that may be evicted, and why others may not."""

    units: tuple[EvictionUnit, ...] = ()
    ending: tuple[VictimPod, ...] = ()  # pods that terminate already: their devices come free without an eviction
    protected: Mapping[str, Protection] = {}  # by name of the unit
    near_end_since: Mapping[str, NearEndSince] = {}  # for ``UnitInputs`` of the next search
    is_complete: bool = True  # False: there was no time for the others

    @property
    def reasons(self) -> Counter[Protection]:
        """Return how many units each reason protects."""
        return Counter(self.protected.values())


def find_units(inputs: UnitInputs) -> UnitsFound:
    """Return the units that may be evicted for the beneficiary."""
    running, ending, protected = candidate_pods(inputs)
    near = {uid: since for uid, since in inputs.near_end_since.items() if uid in running}
    sources = list(unit_sources(running, inputs))
    units = list(candidate_units(sources, inputs))
    replacements = _replacements(units, inputs)
    ages, now, policy = CheckpointAges(), inputs.now, inputs.policy
    for each in units:
        if each.times.last_checkpoint is not None:
            ages.add(each.workload_class, each.pods[0].namespace, now - each.times.last_checkpoint)
    found: list[EvictionUnit] = []
    beneficiary = _peer_of(inputs.beneficiary)
    for each in units:
        if each.priority >= beneficiary.priority:
            protected[each.name] = Protection.PRIORITY
            continue
        rule = policy.rule_for(each.peer, beneficiary)
        if rule is None:
            protected[each.name] = Protection.NO_RULE
            continue
        since = _near_end_since(each, rule, near, now)
        evicted = [replacements.get(pod.uid) for pod in each.gpu_pods]
        evicted_at = None if None in evicted else max(at for at in evicted if at is not None)
        conditions = UnitConditions(each.times, known_checkpoint_age(each.times, now), evicted_at, since)
        why = _structural_protection(each, inputs) or protection_of(conditions, rule, policy, now)
        if why is not None:
            protected[each.name] = why
        else:
            assumed_s = ages.median_of(each.workload_class, policy.default_checkpoint_age_s)
            needed = each.needed | replacements.keys()
            found.append(
                _eviction_unit(each._replace(needed=needed), rule, checkpoint_age(each.times, assumed_s, now), inputs)
            )
    return UnitsFound(tuple(found), tuple(ending), protected, near, len(units) == len(sources))


def ending_pods(inputs: UnitInputs) -> tuple[VictimPod, ...]:
    """Return the pods that terminate already: their devices come free without an eviction."""
    return tuple(candidate_pods(inputs)[1])


def _replacements(units: Iterable[CandidateUnit], inputs: UnitInputs) -> dict[str, float]:
    """Return the UIDs of pods that replace evicted ones, and when those were evicted; not if it protects no longer.

    Of each workload these have not more devices than were evicted, and they started since: a tenant can give many pods
    one controller, or name a gang like an evicted one.
    """
    pods: dict[str, list[CandidatePod]] = {}
    for unit in units:
        if unit.key in inputs.evicted:
            pods.setdefault(unit.key, []).extend(unit.gpu_pods)
    found: dict[str, float] = {}
    for key, candidates in pods.items():
        left = sorted(candidates, key=lambda each: (each.state.started or inputs.now, each.uid))
        protecting = (each for each in inputs.evicted[key] if each.protects_from(inputs.beneficiary.priority))
        for evicted in sorted(protecting, key=lambda each: each.at, reverse=True):
            devices, others = evicted.devices, []
            for each in left:
                is_later = (each.state.started or inputs.now) >= evicted.at - SKEW_S
                if is_later and each.profile.devices <= devices:
                    devices -= each.profile.devices
                    found[each.uid] = evicted.at
                else:
                    others.append(each)
            left = others
    return found


def _peer_of(gang: Gang) -> PreemptionPeer:
    requests = [each.request for each in gang.ready if not isinstance(each.request, InvalidRequest)]
    profile = max((each.profile for each in requests), key=lambda each: each.devices, default=PodProfile())
    return PreemptionPeer(gang.name.namespace, gang.priority, workload_class_of(profile))


def _near_end_since(
    unit: CandidateUnit, rule: PreemptionRule, near: dict[str, NearEndSince], now: float
) -> NearEndSince:
    """Return when searches first saw the unit near its end, and add its pods to ``near``.

    By pod, because owners and gangs of running pods can be changed.
    """
    before = [near[each.uid] for each in unit.pods if each.uid in near]
    claims = [each.claim for each in before if each.claim is not None]
    deadlines = [each.deadline for each in before if each.deadline is not None]
    claims += [now] if claims_near_end(unit.times, rule, now) else []
    deadlines += [now] if has_near_deadline(unit.times, rule, now) else []
    found = NearEndSince(min(claims, default=None), min(deadlines, default=None))
    if found != NearEndSince():
        near |= {each.uid: found for each in unit.pods}
    return found


def _structural_protection(unit: CandidateUnit, inputs: UnitInputs) -> Protection | None:
    if any(each.state.is_recreated for each in unit.pods):
        return Protection.RECREATED
    if not unit.spare and len(unit.gpu_pods) > _most_pods(unit, inputs):
        return Protection.TOO_MANY_PODS
    return Protection.STARTING if unit.is_starting and unit.times.runtime(inputs.now) < _STARTING_S else None


def _most_pods(unit: CandidateUnit, inputs: UnitInputs) -> int:
    """Return how many pods with GPUs of this unit may be evicted in this hour. Members without GPUs do not count."""
    is_own = unit.pods[0].namespace == inputs.beneficiary.name.namespace
    own = inputs.most_own_pods if is_own else None
    return max(1, inputs.policy.max_evictions_per_hour if own is None else own)


def _eviction_unit(unit: CandidateUnit, rule: PreemptionRule, age_s: float, inputs: UnitInputs) -> EvictionUnit:
    grace_s = max(each.grace_s for each in unit.pods)
    lost_s = lost_seconds(unit.times, unit.workload_class, age_s, grace_s, inputs.policy)
    found = (_victim(each, lost_s, inputs.table.records.get(each.node)) for each in unit.pods)
    pods = tuple(each._replace(is_spare=False) if each.uid in unit.needed else each for each in found)
    most = _most_pods(unit, inputs)
    is_large = len(unit.gpu_pods) > most
    return EvictionUnit(
        unit.name,
        pods,
        min(unit.spare, most) if is_large else unit.spare,
        rule.name,
        f"{unit.workload_class.value}, {_age_text(unit, age_s)}",
        rule.price,
        unit.priority,
        unit.key,
        unit.times.deletion_cost,
        is_large,
    )


def _age_text(unit: CandidateUnit, age_s: float) -> str:
    if unit.workload_class is WorkloadClass.INFERENCE:
        return "no work is lost but the restart"
    if unit.times.last_checkpoint is not None:
        return f"last checkpoint {age_s / 60:.0f} min ago"
    return f"no checkpoint known: counts as {age_s / 60:.0f} min of work"


def _victim(pod: CandidatePod, lost_s: float, record: NodeRecord | None) -> VictimPod:
    devices = pod.profile.device_request.totals
    hours = gpu_hours(gpus_of(record, devices), lost_s)
    per_hour = None if record is None else record.machine.cost.per_gpu_hour
    cost = 0.0 if not devices else None if per_hour is None else hours * per_hour
    return VictimPod(pod.uid, pod.namespace, pod.name, pod.node, devices, hours, cost, pod.grace_s)
