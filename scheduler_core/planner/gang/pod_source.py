"""The planner's watch sources: pods, nodes with kube-scheduler's rules, NodeGpus, and objects that declare gang sizes.

pod watch ──▶ PlannerPod ──fan_out──▶ PodUpdate (ClusterCache), Member (GangMembers), PodDeadline (PodDeadlines)
          └─▶ PodLoad ──split_loads──▶ PodLoads: of other pods only the resources that they take of their nodes
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from gputopo.kube.projection import WatchSource
from gputopo.kube.rbac import PODS
from gputopo.labels.gate import other_gates
from gputopo.labels.keys import GATE
from gputopo.labels.workloads import JOBSET, MIRROR_POD
from gputopo.timestamps import parse_timestamp
from scheduler_core.cache.events import Batch, PodUpdate
from scheduler_core.cache.full_pods import (
    FULL_POD_SOURCES,
    MAX_LABELS,
    MAX_RULES,
    MAX_VALUES,
    TOO_MANY_RULES,
    CheckedRules,
    host_anti_affinity,
    own_affinity_key,
    rule_count,
    scheduling_rules,
)
from scheduler_core.cache.kube_scheduler_filters import SchedulingRules
from scheduler_core.cache.pod_loads import PodLoad
from scheduler_core.cache.watch import Sources, pod_update, uid_key
from scheduler_core.planner.gang.conventions import (
    conventional_name,
    is_single_pod_gang,
    named_gang,
    parse_gang_request,
    single_pod_request,
)
from scheduler_core.planner.gang.creation_order import exclusive_markers
from scheduler_core.planner.gang.disruption import PodDisruption
from scheduler_core.planner.gang.member import ExpectedRun, GangRequest, Member
from scheduler_core.planner.gang.pod_deadlines import PodDeadline
from scheduler_core.planner.gang.size_sources import SIZE_SOURCES
from scheduler_core.planner.gang.volume_sources import VOLUME_SOURCES
from scheduler_core.request.disruption import MAX_GRACE_S, parse_disruption
from scheduler_core.request.full_pod import FullPod, FullPodSpec
from scheduler_core.request.node_load import pod_load
from scheduler_core.request.pod import Metadata, Pod, pin_claim, required_nodes, reservation_name
from scheduler_core.request.pod_request import InvalidRequest, PodRequest, parse_request

# Owners of pods that come back to the same node; a Node owns static pods. With an API version that exists, so that the
# garbage collector deletes a pod whose owner is invented.
_RECREATED_BY = ("apps/v1/DaemonSet", "v1/Node")

ParsePod = Callable[[Pod], PodRequest | InvalidRequest]

_MAX_GATES = 8  # of other programs, that are kept of a pod
_MAX_ITEMS = 1_000  # kube-apiserver takes seconds for each write of a pod with 4,000 containers


class PlannerPod(NamedTuple):
    """A pod as a user of GPUs and as a member. Its key is its UID."""

    key: str
    update: PodUpdate | None  # None: it needs no GPU, or has ended
    member: Member | None  # None: it has no gang and not our gate
    deadline: float | None = None  # by its own activeDeadlineSeconds, in seconds since 1970, if it holds GPUs
    disruption: PodDisruption | None = None  # None: it has no node
    load: PodLoad | None = None  # None: it uses GPUs, has no node, or has ended


class PodStreams(NamedTuple):
    """One batch of pods for each consumer."""

    pods: Batch[PodUpdate]  # for ClusterCache
    members: Batch[Member]  # for GangMembers
    deadlines: Batch[PodDeadline]  # for PodDeadlines
    disruptions: Batch[PodDisruption]  # for Disruptions


WatchedPod = PlannerPod | PodLoad


def planner_sources(parse: ParsePod = parse_request, sizes: Sources = SIZE_SOURCES) -> Sources:
    """Return the watch sources: ``NodeUpdate`` with rules, ``PlannerPod``, NodeGpus, sizes of gangs, and volumes.

    ``parse``: returns the request of a pod by a policy; called on a watch's thread.
    """
    pods: WatchSource[WatchedPod] = WatchSource(PODS, FullPod, uid_key, partial(watched_pod, parse=parse))
    kept = {kind: source for kind, source in FULL_POD_SOURCES.items() if kind is not PodUpdate}
    return {**kept, PlannerPod: pods, **sizes, **VOLUME_SOURCES}


def watched_pod(uid: str, pod: FullPod, parse: ParsePod = parse_request) -> WatchedPod | None:
    """Return what the planner keeps of a pod; None: nothing."""
    # A pod is nominated to a node while it waits for volumes or evictions there: kube-scheduler keeps CPU and memory.
    return planner_pod(uid, pod, parse) or pod_load_of(uid, pod, pod.spec.node_name or pod.status.nominated_node_name)


def pod_load_of(uid: str, pod: FullPod, node: str | None) -> PodLoad | None:
    """Return what a pod takes of a node; None: it has no node, or has ended."""
    return None if not node or pod.is_finished else PodLoad(uid, sys.intern(node), pod_load(pod))


def planner_pod(uid: str, pod: FullPod, parse: ParsePod = parse_request) -> PlannerPod | None:
    """Return what the planner keeps of a pod with GPUs or in a gang; None: it is neither."""
    parsed: list[PodRequest | InvalidRequest] = []

    def parse_once(pod: Pod) -> PodRequest | InvalidRequest:
        if not parsed:
            parsed.append(parse(pod))
        return parsed[0]

    update, member = pod_update(uid, pod, parse_once, pod_load), _member(uid, pod, parse_once)
    if update is None and member is None:
        return None
    load = pod_load_of(uid, pod, pod.spec.node_name) if update is None else None
    deadline = None if update is None or update.node is None else _deadline(pod)
    disruption = _disruption(uid, pod, member) if pod.spec.node_name else None
    return PlannerPod(uid, update, member, deadline, disruption, load)


def split_loads(
    batch: Batch[WatchedPod], has_load: Callable[[str], bool], is_known: Callable[[str], bool]
) -> tuple[Batch[PodLoad], Batch[PlannerPod]]:
    """Return the loads of a batch, and its pods with GPUs or in a gang.

    ``has_load``, ``is_known``: whether a pod, by its UID, was the one or the other before.
    """
    pods, loads = list[PlannerPod](), list[PodLoad]()
    gone, without_load = [each for each in batch.removed if is_known(each) or not has_load(each)], [*batch.removed]
    for each in batch.updates:
        load = each if isinstance(each, PodLoad) else each.load
        if load is not None:
            loads.append(load)
        elif not batch.is_full_list:
            without_load.append(each.key)
        if isinstance(each, PlannerPod):
            pods.append(each)
        elif not batch.is_full_list and is_known(each.key):
            gone.append(each.key)
    return (
        Batch(PodLoad, tuple(loads), tuple(without_load), batch.is_full_list),
        Batch(PlannerPod, tuple(pods), tuple(gone), batch.is_full_list),
    )


def fan_out(batch: Batch[PlannerPod]) -> PodStreams:
    """Split a batch of pods by consumer. A pod that concerns only one of them counts as removed for the others."""
    found = batch.updates

    def part(kind: type[Any], values: list[Any]) -> Batch[Any]:
        kept = tuple([value for value in values if value is not None])
        if batch.is_full_list or len(kept) == len(found):
            return Batch(kind, kept, batch.removed, batch.is_full_list)
        absent = [each.key for each, value in zip(found, values, strict=True) if value is None]
        return Batch(kind, kept, (*batch.removed, *absent))

    return PodStreams(
        part(PodUpdate, [each.update for each in found]),
        part(Member, [each.member for each in found]),
        part(PodDeadline, [None if each.deadline is None else PodDeadline(each.key, each.deadline) for each in found]),
        part(PodDisruption, [each.disruption for each in found]),
    )


def _member(uid: str, pod: FullPod, parse: ParsePod) -> Member | None:
    """Return the pod as a member; None: the planner need not act on it, nor count it for other members."""
    metadata, spec = pod.metadata, pod.spec
    labels = None if len(metadata.labels or ()) > MAX_LABELS else metadata.labels or {}
    if MIRROR_POD in (metadata.annotations or {}):  # a kubelet may create it in any namespace
        return None
    # A pod may have 20,000 gates. A member with other gates is not ungated, so the rest is never written.
    gates = tuple(gate.name for gate in spec.scheduling_gates or ())
    gates = gates if len(gates) <= _MAX_GATES else (*(GATE,) * (GATE in gates), *other_gates(gates)[:_MAX_GATES])
    reservation = reservation_name(metadata)
    gated = GATE in gates
    group = None if spec.scheduling_group is None else spec.scheduling_group.pod_group_name
    found = parse_gang_request(metadata, group)
    if not (gated or reservation) and (not isinstance(found, GangRequest) or pod.is_finished):  # most pods
        return None
    gang_request, invalid = _gang_request_of(metadata, group, found)
    alone = is_single_pod_gang(gang_request.gang)
    if alone and not (gated or reservation):
        return None
    own_key = None if alone else own_affinity_key(spec, labels or {}, metadata.namespace)
    if own_key is not None and gang_request.required in (None, own_key):
        gang_request = gang_request._replace(required=own_key)
    checked = CheckedRules(anti_affinity=True, affinity=gang_request.required == own_key is not None, volumes=True)
    rules = scheduling_rules(spec, checked) if gated else None
    excess = None if rules is None else _excess_reason(pod, rules)
    if excess is not None:
        invalid = invalid or InvalidRequest(excess)
    planned = gated and excess is None  # of other pods, nothing is kept that only their plans need
    started = pod.status.start_time is not None
    owner = metadata.owner
    claim = pin_claim(pod)
    member = Member(
        uid=uid,
        namespace=metadata.namespace,
        name=metadata.name,
        version="" if started else metadata.resource_version,
        gang_request=gang_request,
        request=invalid or parse(pod),
        created=parse_timestamp(metadata.creation_timestamp) or 0.0,
        priority=spec.priority or 0,
        gates=gates,
        node=spec.node_name or None,
        phase=pod.status.phase or "Pending",
        started=started,
        is_terminating=metadata.deletion_timestamp is not None,
        reservation=reservation,
        owner_kind=None if owner is None else f"{owner.api_version.rpartition('/')[0] or 'core'}/{owner.kind}",
        load=pod_load(pod),
        rules=rules,
        terms=required_nodes(spec.affinity) if planned else None,
        finalizers=metadata.finalizers or (),
        labels=labels,
        anti_affinity=host_anti_affinity(spec),
        bind_error=pod.status.unschedulable_message if reservation and not spec.node_name else None,
        pinned_terms=None if claim is None else claim.node,
        markers=exclusive_markers(metadata.annotations or {}) if gated else (),
        claims=_claims(pod) if planned else (),
        bounded_s=_bounds(spec) if gated else None,
        expected=_expected_run(metadata, spec) if gated else None,
    )
    return member._replace(unplanned=rules.unchecked) if rules is not None and member.asks_for_gpus else member


def _claims(pod: FullPod) -> tuple[str, ...]:
    """Return the names of the pod's volume claims. Kubernetes creates the claim of an ephemeral volume."""
    found = (
        each.persistent_volume_claim.claim_name
        if each.persistent_volume_claim is not None
        else f"{pod.metadata.name}-{each.name}"
        for each in pod.spec.volumes or ()
        if each.persistent_volume_claim is not None or each.ephemeral is not None
    )
    return tuple(sorted(set(found)))


def _gang_request_of(
    metadata: Metadata, group: str | None, found: GangRequest | InvalidRequest | None
) -> tuple[GangRequest, InvalidRequest | None]:
    """Return the pod's gang and why its gang annotations are invalid, if so. Our gate alone: a single pod."""
    if isinstance(found, InvalidRequest):
        return named_gang(metadata, group) or single_pod_request(metadata, "gate"), found
    return found or single_pod_request(metadata, "gate"), None


def _excess_reason(pod: FullPod, rules: SchedulingRules) -> str | None:
    """Return why the pod is too large to be planned; None: it is not."""
    if TOO_MANY_RULES in rules.unchecked:
        return (
            f"nodeSelector, node affinity and tolerations have {rule_count(pod.spec)} entries: gputopo plans pods with "
            f"at most {MAX_RULES} entries and {MAX_VALUES} values; name many nodes as values of one expression, or by "
            "one label"
        )
    if (items := _list_items(pod)) > _MAX_ITEMS:
        return (
            f"its labels, containers, environment variables, ports, volumes and mounts, owners, secrets and spread "
            f"constraints are {items:,} entries: gputopo plans pods with at most {_MAX_ITEMS:,}"
        )
    return None


def _list_items(pod: FullPod) -> int:
    """Return the number of labels and entries in the lists of a pod: the API server takes longer for each write."""
    spec = pod.spec
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    metadata = pod.metadata
    lists = spec.volumes, spec.image_pull_secrets, spec.topology_spread_constraints, metadata.owner_references
    return (
        len(containers)
        + sum(each.items for each in containers)
        + sum(len(each or ()) for each in (*lists, metadata.labels))
    )


def _grace(spec: FullPodSpec) -> float:
    """Return the grace period in seconds."""
    grace = spec.termination_grace_period_seconds
    return 30.0 if grace is None else min(MAX_GRACE_S, max(0.0, float(grace)))


def _bounds(spec: FullPodSpec) -> tuple[float, float] | None:
    """Return the pod's own deadline, which may be set earlier but never later, and its grace period, in seconds."""
    deadline = spec.active_deadline_seconds
    return None if deadline is None or deadline <= 0 else (float(min(deadline, 2**31)), _grace(spec))


def _expected_run(metadata: Metadata, spec: FullPodSpec) -> ExpectedRun | None:
    facts = parse_disruption(metadata.annotations or {})
    if facts.duration_s is None and facts.completion is None:
        return None
    return ExpectedRun(facts.duration_s, facts.completion, _grace(spec))


def _disruption(uid: str, pod: FullPod, member: Member | None) -> PodDisruption:
    metadata, spec, owner = pod.metadata, pod.spec, pod.metadata.owner
    name = (metadata.labels or {}).get(JOBSET)
    jobset = conventional_name("jobset", metadata.namespace, name) if name else None
    if member is not None and member.gang_request.gang == jobset:
        jobset = None
    return PodDisruption(
        uid,
        parse_disruption(metadata.annotations or {}),
        spec.priority or 0,
        parse_timestamp(pod.status.start_time),
        _grace(spec),
        parse_timestamp(metadata.deletion_timestamp),
        owner is not None and f"{owner.api_version}/{owner.kind}" in _RECREATED_BY,
        jobset,
    )


def _deadline(pod: FullPod) -> float | None:
    """Return when the kubelet ends the pod: its deadline counts from its admission."""
    started, deadline = parse_timestamp(pod.status.start_time), pod.spec.active_deadline_seconds
    return None if started is None or deadline is None else started + deadline
