"""The pods that run, grouped into the units in which they would be evicted. Pure.

A unit is a gang with all its members, or a single pod. Terminating pods are of three kinds: those that end soon need no
eviction; those that end later than an eviction would end them are evicted like running pods, because tenants choose the
grace period of a deletion; the others are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_record import is_hold
from scheduler_core.evaluation.job_times import JobTimes, job_times
from scheduler_core.evaluation.protection import Protection
from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.gang.disruption import PodDisruption, ends_within
from scheduler_core.planner.gang.gang import FINISHED_PHASES, Gang
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.preemption.inputs import UnitInputs
from scheduler_core.planner.preemption.model import VictimPod
from scheduler_core.policy.preemption import PreemptionPeer
from scheduler_core.policy.workload_class import WorkloadClass, workload_class_of
from scheduler_core.request.disruption import DisruptionFacts
from scheduler_core.request.pod_request import PodProfile

_LEAVES_S = 60.0  # a terminating pod is gone so long after its grace period, or never
_AT_ONCE = 64  # units that are read before the time is checked
_TURN = 7_919  # a prime: so the first unit of a search is another one each second


class CandidatePod(NamedTuple):
    uid: str
    namespace: str
    name: str
    node: str
    profile: PodProfile
    owner: str | None
    state: PodDisruption
    occupant: Occupant | None
    grace_s: float  # that an eviction grants: its own grace period, at most ``maxGrace``


class CandidateUnit(NamedTuple):
    key: str
    name: str
    pods: tuple[CandidatePod, ...]
    workload_class: WorkloadClass
    priority: int
    times: JobTimes
    spare: int = 0
    is_starting: bool = False
    needed: frozenset[str] = frozenset()  # UIDs of pods without which the others cannot go on

    @property
    def gpu_pods(self) -> tuple[CandidatePod, ...]:
        return tuple(each for each in self.pods if each.profile.devices)

    @property
    def peer(self) -> PreemptionPeer:
        return PreemptionPeer(self.pods[0].namespace, self.priority, self.workload_class)


def candidate_pods(inputs: UnitInputs) -> tuple[dict[str, CandidatePod], list[VictimPod], dict[str, Protection]]:
    """Return the running pods by UID, the pods that end soon without an eviction, and why other pods are neither."""
    running: dict[str, CandidatePod] = {}
    ending: list[VictimPod] = []
    protected: dict[str, Protection] = {}
    for node, record in inputs.table.records.items():
        for pod in record.pods:
            if is_hold(pod.uid) or pod.uid in record.reserved:
                continue
            state = inputs.disruptions.pod(pod.uid)
            if state is None:  # assumed, or only a kubelet names it
                protected[f"{pod.namespace}/{pod.name}"] = Protection.UNKNOWN
            elif _is_evictable(state, inputs):
                grace_s = _granted_grace(state, inputs)
                running[pod.uid] = CandidatePod(
                    pod.uid, pod.namespace, pod.name, node, pod.profile, pod.owner, state, pod, grace_s
                )
            elif not ends_within(inputs.ending_s, state.gone_by, inputs.now):
                protected[f"{pod.namespace}/{pod.name}"] = Protection.ENDING
            elif state.gone_by is not None and inputs.now <= state.gone_by + _LEAVES_S:
                ending.append(VictimPod(pod.uid, pod.namespace, pod.name, node, pod.profile.device_request.totals))
    return running, ending, protected


def _granted_grace(state: PodDisruption, inputs: UnitInputs) -> float:
    return min(state.grace_s, inputs.policy.max_grace_s)


def _is_evictable(state: PodDisruption, inputs: UnitInputs) -> bool:
    """Return True if the pod does not terminate, or an eviction would end it earlier."""
    longest_s = max(_granted_grace(state, inputs), inputs.ending_s)
    return not ends_within(longest_s, state.gone_by, inputs.now)


_FactsOfGangs = Mapping[GangName, tuple[DisruptionFacts, ...]]  # by their owners


class UnitSource(NamedTuple):
    """The pods of a unit; without a gang, a single pod."""

    gang: Gang | None
    pods: tuple[CandidatePod, ...]


def unit_sources(running: dict[str, CandidatePod], inputs: UnitInputs) -> Iterator[UnitSource]:
    """Yield gangs with all their pods, then single pods. Members without GPUs are evicted with their gang.

    Pods that come back at once, of a DaemonSet, belong to no gang: else one of them would protect it.
    """
    left = dict(running)
    for gang in inputs.gangs:
        if gang.name == inputs.beneficiary.name:
            for each in gang.placed:
                left.pop(each.uid, None)
            continue
        if is_single_pod_gang(gang.name):
            continue
        members = [each for each in gang.placed if not _is_recreated(each, inputs)]
        pods = [pod for each in members if (pod := left.pop(each.uid, None) or _without_gpus(each, inputs)) is not None]
        if any(each.profile.devices for each in pods):
            yield UnitSource(gang, tuple(pods))
    for pod in left.values():
        yield UnitSource(None, (pod,))


def _is_recreated(member: Member, inputs: UnitInputs) -> bool:
    state = inputs.disruptions.pod(member.uid)
    return state is not None and state.is_recreated


def candidate_units(sources: list[UnitSource], inputs: UnitInputs) -> Iterator[CandidateUnit]:
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


def _without_gpus(member: Member, inputs: UnitInputs) -> CandidatePod | None:
    """Return a running member that requests no GPU; None: it does not run, or it requests some."""
    state = inputs.disruptions.pod(member.uid)
    if state is None or not _is_evictable(state, inputs) or member.node is None or member.asks_for_gpus:
        return None
    if member.phase in FINISHED_PHASES:
        return None
    grace_s = _granted_grace(state, inputs)
    return CandidatePod(
        member.uid, member.namespace, member.name, member.node, PodProfile(), None, state, None, grace_s
    )


def _gang_unit(
    gang: Gang, pods: tuple[CandidatePod, ...], facts_of_gangs: _FactsOfGangs, inputs: UnitInputs
) -> CandidateUnit:
    required = gang.required_members if gang.is_elastic else None
    least = None if required is None else max(1, required - len(gang.succeeded))
    # Only members that a planner places: pods of other schedulers, and of gangs that failed, may wait for ever. A gang
    # that has its minimum runs: else one more member that never binds would protect it.
    is_starting = any(each.node is None and each.uid in inputs.starting for each in gang.placed)
    is_starting &= least is None or sum(each.node is not None for each in gang.placed) < least
    return CandidateUnit(
        gang.name.title,
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


def _single_unit(pod: CandidatePod, facts_of_gangs: _FactsOfGangs, inputs: UnitInputs) -> CandidateUnit:
    return CandidateUnit(
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


def _class_of(pods: Iterable[CandidatePod]) -> WorkloadClass:
    """Return the workload class of the gang: of members with GPUs, the first of scavenger, training, ..."""
    classes = {workload_class_of(each.profile) for each in pods if each.profile.devices}
    return next(each for each in _CLASSES if each in classes)


def _times(
    pods: tuple[CandidatePod, ...], gangs: tuple[GangName, ...], facts_of_gangs: _FactsOfGangs, inputs: UnitInputs
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
