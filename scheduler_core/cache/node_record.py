"""All that was observed of one node, and how what comes next changes it. Pure values."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import msgspec

from gputopo.crd.nodegpus import NodeGpus
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node import NodeFacts
from scheduler_core.request.device_request import MalformedDeviceRequestError, parse_device_request, requests_gpus
from scheduler_core.request.pod import Pod
from scheduler_core.request.pod_request import InvalidRequest, PodProfile, PodRequest, parse_request

_MAX_DEPARTED = 64  # remembered of a node whose agent is silent; far more than can be followed anyway
_HOLD_PREFIX = "held/"


class NodeRecord(msgspec.Struct, frozen=True):
    """All that was observed of one node."""

    name: str
    machine: NodeFacts
    gpus: NodeGpus | None = None  # the kubelet's word, as the agent publishes it
    pods: tuple[Occupant, ...] = ()  # that hold GPUs, by UID
    departed: tuple[Occupant, ...] = ()  # gone since the kubelet's word
    # UIDs of those of ``pods`` for which planners keep a place until they are bound; or that stand for what is held.
    reserved: tuple[str, ...] = ()
    parted: float | None = None  # since when Node and ``gpus`` do not speak of one graph, in seconds since 1970


def hold_uid(node: str) -> str:
    """What stands for the UID of a pod where GPUs are held for a gang that does not fit yet. No UID has a slash."""
    return _HOLD_PREFIX + node


def is_hold(uid: str) -> bool:
    """Whether that is no pod's UID but stands for such GPUs."""
    return uid.startswith(_HOLD_PREFIX)


def parse_occupant(pod: Pod, parse: Callable[[Pod], PodRequest | InvalidRequest] = parse_request) -> Occupant | None:
    """A pod on a node; None where it holds no GPU. ``read``: what it asks for, by a policy of its own."""
    if pod.is_finished or not requests_gpus(pod.spec):
        return None
    request = parse(pod)
    if isinstance(request, PodRequest):
        profile = request.profile
    else:
        try:
            profile = PodProfile(parse_device_request(pod.spec))
        except MalformedDeviceRequestError:  # the API server takes no such pod
            return None
    if not profile.device_request.steps_by_resource:
        return None
    metadata = pod.metadata
    admitted = pod.status.start_time is not None
    owner = None if metadata.owner is None else metadata.owner.uid
    return Occupant(metadata.uid, metadata.namespace, metadata.name, _shared_profile(profile), admitted, owner)


@lru_cache(maxsize=1 << 12)
def _shared_profile(profile: PodProfile) -> PodProfile:
    """The one profile of all pods that ask alike: of 100,000 pods a few hundred differ."""
    return profile


def with_pod(record: NodeRecord, pod: Occupant) -> NodeRecord:
    """The same with that pod on it, in place of what was known of the pod."""
    others = [each for each in record.pods if each.uid != pod.uid]
    return msgspec.structs.replace(record, pods=tuple(sorted((*others, pod), key=lambda each: each.uid)))


def without_pod(record: NodeRecord, uid: str) -> NodeRecord:
    """The same after that pod ended. Until the kubelet speaks again it counts among the departed."""
    gone = tuple(each for each in record.pods if each.uid == uid)
    return msgspec.structs.replace(
        record,
        pods=tuple(each for each in record.pods if each.uid != uid),
        departed=(record.departed + gone)[-_MAX_DEPARTED:] if record.gpus is not None else (),
    )


def with_gpus(record: NodeRecord, gpus: NodeGpus | None) -> NodeRecord:
    """The same after the kubelet's word was published anew, or went away.

    Of the departed only those stay whom the kubelet still names: a new pod may bear the same name.
    """
    named = {(each.pod.namespace, each.pod.name) for each in (gpus and gpus.allocations) or ()}
    departed = tuple(each for each in record.departed if (each.namespace, each.name) in named)
    return msgspec.structs.replace(record, gpus=gpus, departed=departed)
