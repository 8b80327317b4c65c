"""Everything observed of one node, and how pods and PodResources reports change it. Pure values."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from gputopo.crd.nodegpus import NodeGpus
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.allocation.shared_gpus import ReplicaPolicy
from scheduler_core.cache.node import NodeFacts
from scheduler_core.cache.replica_policy import combine_policies, policy_shown
from scheduler_core.request.device_request import MalformedDeviceRequestError, parse_device_request, requests_gpus
from scheduler_core.request.job_key import job_key
from scheduler_core.request.node_load import NO_LOAD, NodeLoad
from scheduler_core.request.pod import Pod
from scheduler_core.request.pod_request import InvalidRequest, PodProfile, PodRequest, parse_request

_MAX_DEPARTED = 64  # kept for a node whose agent is silent; far more than the admission search can follow
_HOLD_PREFIX = "held/"


class NodeRecord(
    msgspec.Struct, frozen=True, gc=False, rename={"hash_mismatch_since": "parted"}
):  # the key in decision logs
    """Everything observed of one node."""

    name: str
    machine: NodeFacts
    gpus: NodeGpus | None = None  # the kubelet's PodResources report, as published by the agent
    pods: tuple[Occupant, ...] = ()  # that hold GPUs, sorted by UID
    departed: tuple[Occupant, ...] = ()  # ended since that report
    # The UIDs in ``pods`` that are there only because a reservation or a capacity hold counts on the node.
    reserved: tuple[str, ...] = ()
    hash_mismatch_since: float | None = None  # when Node and ``gpus`` began to differ; seconds since 1970
    observed_policy: ReplicaPolicy | None = None  # of its device plugin, as allocations of shared GPUs showed it


def hold_uid(node: str) -> str:
    """Return the UID of the placeholder for a capacity hold on a node. UIDs of pods contain no slash."""
    return _HOLD_PREFIX + node


def is_hold(uid: str) -> bool:
    """Return whether the UID is the placeholder for a capacity hold."""
    return uid.startswith(_HOLD_PREFIX)


def parse_occupant(
    pod: Pod,
    parse: Callable[[Pod], PodRequest | InvalidRequest] = parse_request,
    load: Callable[[Any], NodeLoad] = lambda _: NO_LOAD,
) -> Occupant | None:
    """Return the pod as an occupant of a node; None where it requests no GPU or has finished.

    ``load``: the planner's.
    """
    if pod.is_finished or not requests_gpus(pod.spec):
        return None
    request = parse(pod)
    if isinstance(request, PodRequest):
        profile, job = request.profile, request.job
    else:
        job = job_key(pod.metadata)
        try:
            profile = PodProfile(parse_device_request(pod.spec))
        except MalformedDeviceRequestError:  # the API server accepts no such pod
            return None
    if not profile.device_request.steps_by_resource:
        return None
    metadata = pod.metadata
    return Occupant(
        uid=metadata.uid,
        namespace=sys.intern(metadata.namespace),
        name=metadata.name,
        profile=profile,
        admitted=pod.status.start_time is not None,
        owner=None if metadata.owner is None else metadata.owner.uid,
        job=None if job is None else sys.intern(job),
        load=load(pod),
    )


def with_pod(record: NodeRecord, pod: Occupant) -> NodeRecord:
    """Return the record with the pod added, or replaced where it has the UID already."""
    others = [each for each in record.pods if each.uid != pod.uid]
    return msgspec.structs.replace(record, pods=tuple(sorted((*others, pod), key=lambda each: each.uid)))


def without_pod(record: NodeRecord, uid: str) -> NodeRecord:
    """Return the record without the pod, which counts as departed until the next PodResources report."""
    ended = tuple(each for each in record.pods if each.uid == uid)
    return msgspec.structs.replace(
        record,
        pods=tuple(each for each in record.pods if each.uid != uid),
        departed=(record.departed + ended)[-_MAX_DEPARTED:] if record.gpus is not None else (),
    )


def without_pods(record: NodeRecord, uids: Collection[str]) -> NodeRecord:
    """Return the record without these pods. Which NUMA nodes will have free CPUs and memory then is unknown."""
    gone = [pod for pod in record.pods if pod.uid in uids]
    for pod in gone:
        record = without_pod(record, pod.uid)
    gpus = record.gpus
    if gpus is not None and gpus.kubelet is not None and any(pod.profile.device_request.aligned_steps for pod in gone):
        gpus = msgspec.structs.replace(gpus, kubelet=msgspec.structs.replace(gpus.kubelet, numa_nodes=None))
    return msgspec.structs.replace(record, gpus=gpus)


def with_gpus(record: NodeRecord, gpus: NodeGpus | None) -> NodeRecord:
    """Return the record with another PodResources report, or None.

    Departed pods stay only while the report still names them; a new pod may have the same name.
    """
    departed = record.departed
    if departed:  # few nodes
        named = {(each.pod.namespace, each.pod.name) for each in (gpus and gpus.allocations) or ()}
        departed = tuple(each for each in departed if (each.namespace, each.name) in named)
    # A pod that came and went between the reports would make another policy look right.
    shown = None if record.departed else policy_shown(record.machine, record.gpus, gpus)
    observed = combine_policies(record.observed_policy, shown)
    return msgspec.structs.replace(record, gpus=gpus, departed=departed, observed_policy=observed)
