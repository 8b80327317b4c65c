"""What the planner watches: pods, as what they hold and as members of gangs; nodes with kube-scheduler's rules; sizes.

Source ──▶ Candidate ──split──▶ PodSeen (Knowledge), Member (Roster), PodEnd (Ends)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from gputopo.kube.projection import WatchSource
from gputopo.kube.rbac import PODS
from gputopo.labels.keys import GATE, POD_RESERVATION
from gputopo.timestamps import parse_timestamp
from scheduler_core.cache.events import Batch, PodUpdate
from scheduler_core.cache.full_pods import FULL_POD_SOURCES, host_anti_affinity, scheduling_rules
from scheduler_core.cache.watch import Sources, pod_update, uid_key
from scheduler_core.planner.gang.conventions import (
    is_single_pod_gang,
    named_gang,
    parse_gang_request,
    single_pod_request,
)
from scheduler_core.planner.gang.member import GangRequest, Member
from scheduler_core.planner.gang.pod_deadlines import PodDeadline
from scheduler_core.planner.gang.size_sources import SIZE_SOURCES
from scheduler_core.request.full_pod import FullPod, FullPodSpec
from scheduler_core.request.pod import Pod, RequiredTerms, pin_claim
from scheduler_core.request.pod_request import InvalidRequest, PodRequest, parse_request

ParsePod = Callable[[Pod], PodRequest | InvalidRequest]


class PlannerPod(NamedTuple):
    """A pod, as what holds GPUs and as a member. Its key is its UID."""

    key: str
    update: PodUpdate | None  # None: it holds and wants no GPU, or has ended
    member: Member | None  # None: it belongs to no gang, and no gate of ours holds it
    deadline: float | None = None  # when its own deadline ends it, in seconds since 1970, where it holds GPUs


class PodStreams(NamedTuple):
    """What each of those takes who keep something of pods."""

    pods: Batch[PodUpdate]  # Knowledge
    members: Batch[Member]  # Roster
    deadlines: Batch[PodDeadline]  # Ends


def planner_sources(read: ParsePod = parse_request, sizes: Sources = SIZE_SOURCES) -> Sources:
    """What the planner watches: ``NodeSeen`` with rules, ``Candidate``, ``GpusSeen``, and kinds of ``Declared``.

    ``read``: what a pod asks for, by a policy; called on a watch's thread.
    """
    pods: WatchSource[PlannerPod] = WatchSource(PODS, FullPod, uid_key, partial(planner_pod, read=read))
    kept = {kind: source for kind, source in FULL_POD_SOURCES.items() if kind is not PodUpdate}
    return {**kept, PlannerPod: pods, **sizes}


def planner_pod(uid: str, pod: FullPod, read: ParsePod = parse_request) -> PlannerPod | None:
    """What is kept of a pod; None: nothing."""
    seen, member = pod_update(uid, pod, read), _member(uid, pod, read)
    if seen is None and member is None:
        return None
    return PlannerPod(uid, seen, member, None if seen is None or seen.node is None else _end(pod))


def fan_out(batch: Batch[PlannerPod]) -> PodStreams:
    """What ``Knowledge`` takes, what the roster does, and what is known of when pods end.

    A pod that is something to one of them only has gone for the others.
    """
    found = batch.updates

    def part(kind: type[Any], values: tuple[Any, ...]) -> Batch[Any]:
        absent = tuple(each.key for each, value in zip(found, values, strict=True) if value is None)
        kept = tuple(value for value in values if value is not None)
        return Batch(kind, kept, () if batch.is_full_list else (*batch.removed, *absent), batch.is_full_list)

    return PodStreams(
        part(PodUpdate, tuple(each.update for each in found)),
        part(Member, tuple(each.member for each in found)),
        part(
            PodDeadline,
            tuple(None if each.deadline is None else PodDeadline(each.key, each.deadline) for each in found),
        ),
    )


def _member(uid: str, pod: FullPod, read: ParsePod) -> Member | None:
    """The pod as a member; None where nothing is to be done about it, nor for anybody because of it."""
    metadata, spec = pod.metadata, pod.spec
    gates = tuple(gate.name for gate in spec.scheduling_gates or ())
    reservation = (metadata.annotations or {}).get(POD_RESERVATION.key)
    gated = GATE in gates
    wanted, refused = _wanted(pod)
    if wanted is None or (
        not (gated or reservation) and (refused or is_single_pod_gang(wanted.gang) or pod.is_finished)
    ):
        return None
    started = pod.status.start_time is not None
    owner = metadata.owner
    claim = pin_claim(pod)
    return Member(
        uid,
        metadata.namespace,
        metadata.name,
        "" if started else metadata.resource_version,
        wanted,
        refused or read(pod),
        parse_timestamp(metadata.creation_timestamp) or 0.0,
        spec.priority or 0,
        gates,
        spec.node_name or None,
        pod.status.phase or "Pending",
        started,
        metadata.deletion_timestamp is not None,
        reservation,
        None if owner is None else f"{owner.api_version.rpartition('/')[0] or 'core'}/{owner.kind}",
        scheduling_rules(spec, apart=True) if gated else None,
        _required(spec) if gated else None,
        metadata.finalizers or (),
        metadata.labels or {},
        host_anti_affinity(spec),
        pod.status.unschedulable_message if reservation and not spec.node_name else None,
        None if claim is None else claim.node,
    )


def _wanted(pod: FullPod) -> tuple[GangRequest | None, InvalidRequest | None]:
    """The pod's gang, and why what it says of it cannot be followed. Our gate alone asks for a place of its own."""
    group = None if pod.spec.scheduling_group is None else pod.spec.scheduling_group.pod_group_name
    found = parse_gang_request(pod.metadata, group)
    if isinstance(found, InvalidRequest):
        return named_gang(pod.metadata, group) or single_pod_request(pod.metadata, "gate"), found
    return found or single_pod_request(pod.metadata, "gate"), None


def _required(spec: FullPodSpec) -> RequiredTerms | None:
    own = None if spec.affinity is None else spec.affinity.node_affinity
    return None if own is None else own.required_during_scheduling_ignored_during_execution


def _end(pod: FullPod) -> float | None:
    """The kubelet ends a pod so long after it took note of it."""
    started, deadline = parse_timestamp(pod.status.start_time), pod.spec.active_deadline_seconds
    return None if started is None or deadline is None else started + deadline
