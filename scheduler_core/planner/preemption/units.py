"""The units that the policy allows to evict for a gang, with their cost. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_record import NodeRecord, is_hold
from scheduler_core.planner.gang.disruption import DisruptionFacts, PodDisruption
from scheduler_core.planner.gang.gang import FINISHED_PHASES, Gang, GangPhase
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.preemption.cost import checkpoint_age, gpu_hours, gpus_of, lost_seconds
from scheduler_core.planner.preemption.inputs import CheckpointAges, JobTimes, UnitInputs, job_times
from scheduler_core.planner.preemption.model import EvictionUnit, VictimPod
from scheduler_core.planner.preemption.protection import Protection, UnitConditions, claims_near_end, protection_of
from scheduler_core.policy.preemption import PreemptionPeer, PreemptionRule
from scheduler_core.policy.workload_class import WorkloadClass, workload_class_of
from scheduler_core.request.pod_request import InvalidRequest, PodProfile

_LEAVES_S = 60.0  # a terminating pod is gone so long after its grace period, or never


class UnitsFound(NamedTuple):
    """The units that may be evicted, and why others may not."""

    units: tuple[EvictionUnit, ...] = ()
    ending: tuple[VictimPod, ...] = ()  # pods that terminate already: their devices come free without an eviction
    protected: Mapping[str, Protection] = {}  # by name of the unit
    near_end_since: Mapping[str, float] = {}  # for ``UnitInputs`` of the next search

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

    @property
    def peer(self) -> PreemptionPeer:
        return PreemptionPeer(self.pods[0].namespace, self.priority, self.workload_class)

    @property
    def grace_s(self) -> float:
        return max(each.state.grace_s for each in self.pods)


def find_units(inputs: UnitInputs) -> UnitsFound:
    """Return the units that may be evicted for the beneficiary."""
    running, ending, unknown = _running_pods(inputs)
    units = list(_running_units(running, inputs))
    ages, now, policy = CheckpointAges(), inputs.now, inputs.policy
    for each in units:
        if each.times.last_checkpoint is not None:
            ages.add(each.workload_class, each.pods[0].namespace, now - each.times.last_checkpoint)
    found: list[EvictionUnit] = []
    protected: dict[str, Protection] = dict.fromkeys(unknown, Protection.UNKNOWN)
    known = {each.key for each in units}
    near = {key: since for key, since in inputs.near_end_since.items() if key in known}
    beneficiary = _peer_of(inputs.beneficiary)
    for each in units:
        if each.priority >= beneficiary.priority:
            protected[each.name] = Protection.PRIORITY
            continue
        rule = policy.rule_for(each.peer, beneficiary)
        if rule is None:
            protected[each.name] = Protection.NO_RULE
            continue
        if claims_near_end(each.times, rule, now):
            near.setdefault(each.key, now)
        age = checkpoint_age(each.times, ages.median_of(each.workload_class, policy.default_checkpoint_age_s), now)
        evicted_at = inputs.evicted_at.get(each.key)
        conditions = UnitConditions(each.times, age, each.grace_s, evicted_at, near.get(each.key))
        why = _structural_protection(each) or protection_of(conditions, rule, policy, now)
        if why is not None:
            protected[each.name] = why
        else:
            found.append(_eviction_unit(each, rule, age, inputs))
    return UnitsFound(tuple(found), tuple(ending), protected, near)


def _peer_of(gang: Gang) -> PreemptionPeer:
    requests = [each.request for each in gang.ready if not isinstance(each.request, InvalidRequest)]
    profile = max((each.profile for each in requests), key=lambda each: each.devices, default=PodProfile())
    return PreemptionPeer(gang.name.namespace, gang.priority, workload_class_of(profile))


def _structural_protection(unit: _RunningUnit) -> Protection | None:
    if any(each.state.is_recreated for each in unit.pods):
        return Protection.RECREATED
    return Protection.STARTING if unit.is_starting else None


def _running_pods(inputs: UnitInputs) -> tuple[dict[str, _RunningPod], list[VictimPod], list[str]]:
    """Return the running pods by UID, the terminating pods, and the names of pods that are not known completely."""
    running: dict[str, _RunningPod] = {}
    ending, unknown = [], []
    for node, record in inputs.table.records.items():
        for pod in record.pods:
            if is_hold(pod.uid) or pod.uid in record.reserved:
                continue
            state = inputs.disruptions.pod(pod.uid)
            if state is None:  # assumed, or only a kubelet names it
                unknown.append(f"{pod.namespace}/{pod.name}")
            elif state.gone_by is None:
                running[pod.uid] = _RunningPod(
                    pod.uid, pod.namespace, pod.name, node, pod.profile, pod.owner, state, pod
                )
            elif inputs.now <= state.gone_by + _LEAVES_S:
                ending.append(VictimPod(pod.uid, pod.namespace, pod.name, node, pod.profile.device_request.totals))
    return running, ending, unknown


def _running_units(running: dict[str, _RunningPod], inputs: UnitInputs) -> Iterable[_RunningUnit]:
    """Yield gangs with all their pods, then single pods. Members without GPUs are evicted with their gang."""
    told_of_gangs = inputs.disruptions.gang_facts()
    left = dict(running)
    for gang in inputs.gangs:
        if gang.name == inputs.beneficiary.name:
            for each in gang.placed:
                left.pop(each.uid, None)
            continue
        pods = [
            pod for each in gang.placed if (pod := left.pop(each.uid, None) or _without_gpus(each, inputs)) is not None
        ]
        if any(each.profile.devices for each in pods):
            yield _gang_unit(gang, pods, told_of_gangs.get(gang.name, ()), inputs)
    for pod in left.values():
        yield _single_unit(pod, inputs)


def _without_gpus(member: Member, inputs: UnitInputs) -> _RunningPod | None:
    """Return a running member that requests no GPU; None: it does not run, or it requests some."""
    state = inputs.disruptions.pod(member.uid)
    if state is None or state.gone_by is not None or member.node is None or member.asks_for_gpus:
        return None
    if member.phase in FINISHED_PHASES:
        return None
    return _RunningPod(member.uid, member.namespace, member.name, member.node, PodProfile(), None, state, None)


def _gang_unit(
    gang: Gang, pods: list[_RunningPod], told: tuple[DisruptionFacts, ...], inputs: UnitInputs
) -> _RunningUnit:
    required = gang.required_members
    least = None if required is None else max(1, required - len(gang.succeeded))
    is_starting = gang.phase is GangPhase.UNGATED or any(each.node is None for each in gang.placed)
    return _RunningUnit(
        f"{gang.name.namespace}/{gang.name.name}",
        f"{gang.name.namespace}/{gang.name.name}",
        tuple(pods),
        _class_of(pods),
        max(each.state.priority for each in pods),
        _times(pods, told, inputs),
        0 if least is None else max(0, len(pods) - least),
        is_starting,
    )


def _single_unit(pod: _RunningPod, inputs: UnitInputs) -> _RunningUnit:
    return _RunningUnit(
        f"{pod.namespace}/{pod.owner or pod.uid}",
        f"{pod.namespace}/{pod.name}",
        (pod,),
        workload_class_of(pod.profile),
        pod.state.priority,
        _times([pod], inputs.disruptions.owner_facts(pod.owner), inputs),
    )


_MOST_PROTECTED = (
    WorkloadClass.TRAINING,
    WorkloadClass.INFERENCE,
    WorkloadClass.DEFAULT,
    WorkloadClass.BATCH,
    WorkloadClass.SCAVENGER,
)


def _class_of(pods: Iterable[_RunningPod]) -> WorkloadClass:
    """Return the workload class of the gang: of members with GPUs, the first of training, inference, ..."""
    classes = {workload_class_of(each.profile) for each in pods if each.profile.devices}
    return next(each for each in _MOST_PROTECTED if each in classes)


def _times(pods: list[_RunningPod], told: tuple[DisruptionFacts, ...], inputs: UnitInputs) -> JobTimes:
    """Return the limited facts of these pods. The start is that of the first pod: restarts change nothing."""
    owners = [facts for uid in {each.owner for each in pods} for facts in inputs.disruptions.owner_facts(uid)]
    started = min((each.state.started for each in pods if each.state.started is not None), default=None)
    ends = [inputs.deadlines.deadline_of(each.occupant) for each in pods if each.occupant is not None]
    deadline = min((at for at in ends if at is not None), default=None)
    facts = (*(each.state.facts for each in pods), *told, *owners)
    return job_times(facts, started, deadline, inputs.policy, inputs.now)


def _eviction_unit(unit: _RunningUnit, rule: PreemptionRule, age_s: float, inputs: UnitInputs) -> EvictionUnit:
    lost_s = lost_seconds(unit.times, unit.workload_class, age_s, unit.grace_s, inputs.policy)
    pods = tuple(_victim(each, lost_s, inputs.table.records.get(each.node)) for each in unit.pods)
    return EvictionUnit(
        unit.name,
        pods,
        unit.spare,
        rule.name,
        f"{unit.workload_class.value}; {_age_text(unit, age_s)}",
        rule.price,
        unit.priority,
        unit.grace_s,
        unit.key,
        unit.times.deletion_cost,
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
