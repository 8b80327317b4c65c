"""The units that the policy allows to evict for a gang, with their cost. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_record import NodeRecord, is_hold
from scheduler_core.evaluation.job_times import (
    JobTimes,
    NearEndSince,
    checkpoint_age,
    job_times,
    known_checkpoint_age,
)
from scheduler_core.evaluation.protection import (
    Protection,
    UnitConditions,
    claims_near_end,
    has_near_deadline,
    protection_of,
)
from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.gang.disruption import PodDisruption
from scheduler_core.planner.gang.gang import FINISHED_PHASES, Gang
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.preemption.cost import gpu_hours, gpus_of, lost_seconds
from scheduler_core.planner.preemption.inputs import CheckpointAges, UnitInputs
from scheduler_core.planner.preemption.model import EvictionUnit, VictimPod
from scheduler_core.policy.preemption import PreemptionPeer, PreemptionRule
from scheduler_core.policy.workload_class import WorkloadClass, workload_class_of
from scheduler_core.request.disruption import DisruptionFacts
from scheduler_core.request.pod_request import InvalidRequest, PodProfile

_LEAVES_S = 60.0  # a terminating pod is gone so long after its grace period, or never
# A gang that starts is not evicted for so long after the start of its first pod: else its owner could protect it for
# ever, by members that never start.
_STARTING_S = 3_600.0
_AT_ONCE = 64  # units that are read before the time is checked
_TURN = 7_919  # a prime: so the first unit of a search is another one each second


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


class _RunningPod(NamedTuple):
    uid: str
    namespace: str
    name: str
    node: str
    profile: PodProfile
    owner: str | None
    state: PodDisruption
    occupant: Occupant | None


class _RunningUnit(NamedTuple):
    key: str
    name: str
    pods: tuple[_RunningPod, ...]
    workload_class: WorkloadClass
    priority: int
    times: JobTimes
    spare: int = 0
    is_starting: bool = False
    needed: frozenset[str] = frozenset()  # UIDs of pods without which the others cannot go on

    @property
    def peer(self) -> PreemptionPeer:
        return PreemptionPeer(self.pods[0].namespace, self.priority, self.workload_class)

    @property
    def grace_s(self) -> float:
        return max(each.state.grace_s for each in self.pods)


def find_units(inputs: UnitInputs) -> UnitsFound:
    """Return the units that may be evicted for the beneficiary."""
    running, ending, protected = _running_pods(inputs)
    near = {uid: since for uid, since in inputs.near_end_since.items() if uid in running}
    sources = list(_unit_sources(running, inputs))
    units = list(_running_units(sources, inputs))
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
        evicted_at, known_age = inputs.evicted_at.get(each.key), known_checkpoint_age(each.times, now)
        conditions = UnitConditions(each.times, known_age, each.grace_s, evicted_at, since)
        why = _structural_protection(each, inputs) or protection_of(conditions, rule, policy, now)
        if why is not None:
            protected[each.name] = why
        else:
            assumed_s = ages.median_of(each.workload_class, policy.default_checkpoint_age_s)
            found.append(_eviction_unit(each, rule, checkpoint_age(each.times, assumed_s, now), inputs))
    return UnitsFound(tuple(found), tuple(ending), protected, near, len(units) == len(sources))


def ending_pods(inputs: UnitInputs) -> tuple[VictimPod, ...]:
    """Return the pods that terminate already: their devices come free without an eviction."""
    return tuple(_running_pods(inputs)[1])


def _peer_of(gang: Gang) -> PreemptionPeer:
    requests = [each.request for each in gang.ready if not isinstance(each.request, InvalidRequest)]
    profile = max((each.profile for each in requests), key=lambda each: each.devices, default=PodProfile())
    return PreemptionPeer(gang.name.namespace, gang.priority, workload_class_of(profile))


def _near_end_since(
    unit: _RunningUnit, rule: PreemptionRule, near: dict[str, NearEndSince], now: float
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


def _structural_protection(unit: _RunningUnit, inputs: UnitInputs) -> Protection | None:
    if any(each.state.is_recreated for each in unit.pods):
        return Protection.RECREATED
    if not unit.spare and len(unit.pods) > _most_pods(inputs):
        return Protection.TOO_MANY_PODS
    return Protection.STARTING if unit.is_starting and unit.times.runtime(inputs.now) < _STARTING_S else None


def _most_pods(inputs: UnitInputs) -> int:
    return max(1, inputs.policy.max_evictions_per_hour)


def _running_pods(inputs: UnitInputs) -> tuple[dict[str, _RunningPod], list[VictimPod], dict[str, Protection]]:
    """Return the running pods by UID, the pods that end soon without an eviction, and why other pods are neither."""
    running: dict[str, _RunningPod] = {}
    ending: list[VictimPod] = []
    protected: dict[str, Protection] = {}
    for node, record in inputs.table.records.items():
        for pod in record.pods:
            if is_hold(pod.uid) or pod.uid in record.reserved:
                continue
            state = inputs.disruptions.pod(pod.uid)
            if state is None:  # assumed, or only a kubelet names it
                protected[f"{pod.namespace}/{pod.name}"] = Protection.UNKNOWN
            elif state.gone_by is None:
                running[pod.uid] = _RunningPod(
                    pod.uid, pod.namespace, pod.name, node, pod.profile, pod.owner, state, pod
                )
            elif state.gone_by > inputs.now + inputs.policy.max_grace_s:
                protected[f"{pod.namespace}/{pod.name}"] = Protection.GRACE
            elif inputs.now <= state.gone_by + _LEAVES_S:
                ending.append(VictimPod(pod.uid, pod.namespace, pod.name, node, pod.profile.device_request.totals))
    return running, ending, protected


_FactsOfGangs = Mapping[GangName, tuple[DisruptionFacts, ...]]  # by their owners


class _UnitSource(NamedTuple):
    """The pods of a unit; without a gang, a single pod."""

    gang: Gang | None
    pods: tuple[_RunningPod, ...]


def _unit_sources(running: dict[str, _RunningPod], inputs: UnitInputs) -> Iterator[_UnitSource]:
    """Yield gangs with all their pods, then single pods. Members without GPUs are evicted with their gang."""
    left = dict(running)
    for gang in inputs.gangs:
        if gang.name == inputs.beneficiary.name:
            for each in gang.placed:
                left.pop(each.uid, None)
            continue
        if is_single_pod_gang(gang.name):
            continue
        pods = [
            pod for each in gang.placed if (pod := left.pop(each.uid, None) or _without_gpus(each, inputs)) is not None
        ]
        if any(each.profile.devices for each in pods):
            yield _UnitSource(gang, tuple(pods))
    for pod in left.values():
        yield _UnitSource(None, (pod,))


def _running_units(sources: list[_UnitSource], inputs: UnitInputs) -> Iterator[_RunningUnit]:
    """Yield the units as far as the time allows, beginning with others in each search."""
    facts_of_gangs = inputs.disruptions.gang_facts()
    first = int(inputs.now) * _TURN % max(1, len(sources))
    for at, (gang, pods) in enumerate(chain(sources[first:], sources[:first])):
        if at % _AT_ONCE == 0 and inputs.is_out_of_time():
            return
        if gang is None:
            yield _single_unit(pods[0], facts_of_gangs, inputs)
        else:
            yield _gang_unit(gang, pods, facts_of_gangs, inputs)


def _without_gpus(member: Member, inputs: UnitInputs) -> _RunningPod | None:
    """Return a running member that requests no GPU; None: it does not run, or it requests some."""
    state = inputs.disruptions.pod(member.uid)
    if state is None or state.gone_by is not None or member.node is None or member.asks_for_gpus:
        return None
    if member.phase in FINISHED_PHASES:
        return None
    return _RunningPod(member.uid, member.namespace, member.name, member.node, PodProfile(), None, state, None)


def _gang_unit(
    gang: Gang, pods: tuple[_RunningPod, ...], facts_of_gangs: _FactsOfGangs, inputs: UnitInputs
) -> _RunningUnit:
    required = gang.required_members if gang.is_elastic else None
    least = None if required is None else max(1, required - len(gang.succeeded))
    # Only members that a planner placed: pods of other schedulers may wait for ever.
    is_starting = any(each.node is None and each.reservation is not None for each in gang.placed)
    makers = {each.gang_request.creator_uid for each in gang.placed}
    maker = next(iter(makers)) if len(makers) == 1 else None
    return _RunningUnit(
        gang.name.title if maker is None else f"{gang.name.namespace}/{maker}",  # a tenant can reuse any name
        gang.name.title,
        pods,
        _class_of(pods),
        min(each.state.priority for each in pods if each.profile.devices),  # as of a gang in the queue
        _times(pods, (gang.name,), facts_of_gangs, inputs),
        0 if least is None else max(0, len(pods) - least),
        is_starting,
        _needed_members(gang),
    )


def _needed_members(gang: Gang) -> frozenset[str]:
    """Return the UIDs of the members that the others need: the first rank, and members of roles without ranks.

    The first rank of a training is its master, or the meeting point of its workers. Pods of a work queue are
    independent.
    """
    ranks = {each.uid: each.gang_request.rank for each in gang.placed}
    first = min((rank for rank in ranks.values() if rank is not None), default=None)
    if first is None or (gang.size is None and gang.minimum == 1):
        return frozenset()
    return frozenset(uid for uid, rank in ranks.items() if rank is None or rank == first)


def _single_unit(pod: _RunningPod, facts_of_gangs: _FactsOfGangs, inputs: UnitInputs) -> _RunningUnit:
    return _RunningUnit(
        f"{pod.namespace}/{pod.owner or pod.uid}",
        f"{pod.namespace}/{pod.name}",
        (pod,),
        workload_class_of(pod.profile),
        pod.state.priority,
        _times((pod,), (), facts_of_gangs, inputs),
    )


_CLASSES = (
    WorkloadClass.SCAVENGER,  # by its PriorityClass
    WorkloadClass.TRAINING,
    WorkloadClass.INFERENCE,
    WorkloadClass.DEFAULT,
    WorkloadClass.BATCH,
)


def _class_of(pods: Iterable[_RunningPod]) -> WorkloadClass:
    """Return the workload class of the gang: of members with GPUs, the first of scavenger, training, ..."""
    classes = {workload_class_of(each.profile) for each in pods if each.profile.devices}
    return next(each for each in _CLASSES if each in classes)


def _times(
    pods: tuple[_RunningPod, ...], gangs: tuple[GangName, ...], facts_of_gangs: _FactsOfGangs, inputs: UnitInputs
) -> JobTimes:
    """Return the limited facts of these pods. The start is that of the first pod: restarts change nothing."""
    names = {*gangs, *(each.state.jobset for each in pods if each.state.jobset is not None)}
    declared = (facts for name in names for facts in facts_of_gangs.get(name, ()))
    owners = [facts for uid in {each.owner for each in pods} for facts in inputs.disruptions.owner_facts(uid)]
    started = min((each.state.started for each in pods if each.state.started is not None), default=None)
    ends = [inputs.deadlines.deadline_of(each.occupant) for each in pods if each.occupant is not None]
    deadline = min((at for at in ends if at is not None), default=None)
    facts = (*(each.state.facts for each in pods), *declared, *owners)
    return job_times(facts, started, deadline, inputs.policy, inputs.now)


def _eviction_unit(unit: _RunningUnit, rule: PreemptionRule, age_s: float, inputs: UnitInputs) -> EvictionUnit:
    lost_s = lost_seconds(unit.times, unit.workload_class, age_s, unit.grace_s, inputs.policy)
    found = (_victim(each, lost_s, inputs.table.records.get(each.node)) for each in unit.pods)
    pods = tuple(each._replace(is_spare=False) if each.uid in unit.needed else each for each in found)
    is_large = len(pods) > _most_pods(inputs)
    return EvictionUnit(
        unit.name,
        pods,
        min(unit.spare, _most_pods(inputs)) if is_large else unit.spare,
        rule.name,
        f"{unit.workload_class.value}, {_age_text(unit, age_s)}",
        rule.price,
        unit.priority,
        unit.grace_s,
        unit.key,
        unit.times.deletion_cost,
        is_large,
    )


def _age_text(unit: _RunningUnit, age_s: float) -> str:
    if unit.workload_class is WorkloadClass.INFERENCE:
        return "no work is lost but the restart"
    if unit.times.last_checkpoint is not None:
        return f"last checkpoint {age_s / 60:.0f} min ago"
    return f"no checkpoint known: counts as {age_s / 60:.0f} min of work"


def _victim(pod: _RunningPod, lost_s: float, record: NodeRecord | None) -> VictimPod:
    devices = pod.profile.device_request.totals
    hours = gpu_hours(gpus_of(record, devices), lost_s)
    per_hour = None if record is None else record.machine.cost.per_gpu_hour
    cost = 0.0 if not devices else None if per_hour is None else hours * per_hour
    return VictimPod(pod.uid, pod.namespace, pod.name, pod.node, devices, hours, cost)
