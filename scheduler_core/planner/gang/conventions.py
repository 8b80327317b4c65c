"""Gang conventions: which gang a pod belongs to, by our annotations or by labels of other projects. Pure; data driven.

To add a gang convention: add it to ``GANG_CONVENTIONS``. If the pods do not state the size of their gang, add the
object that declares it to ``declared_sizes`` and ``size_sources``.

The first of ``GANG_CONVENTIONS`` that names a gang counts. Our own annotation takes precedence over all of them, and
our other annotations (size, minimum, timeout, topology) apply to a gang of any convention. A convention never holds a
pod back: a pod without our gate is left alone.

A gang's name can be part of an object's name: it is the value of our annotation, or the convention's prefix, a dot and
a name ("jobset.train"). The annotation must not contain dots, so the two forms never collide.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

from gputopo.crd.reservations import SINGLE_POD_PREFIX, is_single_pod
from gputopo.labels import keys, workloads
from gputopo.labels.reasons import malformed_text, misplaced_text
from scheduler_core.planner.gang.member import GangName, GangRequest
from scheduler_core.request.gang_annotations import (
    GangAnnotations,
    MalformedGangError,
    parse_gang_annotations,
    parse_member_count,
)
from scheduler_core.request.pod import Metadata
from scheduler_core.request.pod_request import InvalidRequest

BY_ANNOTATIONS = "annotations"  # our own
_DEFAULT = "default"  # the group of replicated Jobs for which a JobSet names none
_INDEX = re.compile(r"\d{1,9}", re.ASCII)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST = 200  # characters; names of reservations begin with the gang's name
_FIRST = ("master", "chief", "launcher")  # of Kubeflow's roles
_THEN = "worker"
RANK_STRIDE = 1 << 16  # more than the pods of one Job: ranks of the next Job of a JobSet follow all of its ranks
_GANG_SIZE = keys.POD_GANG_SIZE.key


class GangConvention(NamedTuple):
    """How pods of one project name their gang. Keys are looked up in labels, then in annotations."""

    name: str  # for people
    prefix: str  # of the gang's name
    source: str  # the project, and the file that defines the convention
    keys: tuple[str, ...]  # the first key that is present names the gang
    native: bool = False  # a field of the pod names the gang, in place of ``keys``
    joined: tuple[str, ...] = ()  # values of these keys, where present, are part of the name
    size: str | None = None  # members
    minimum: str | None = None  # members that the gang can start with
    rank: tuple[str, ...] = ()  # indices, most significant first; without one of them there is no rank
    role: tuple[str, ...] = ()  # the pod's role: some roles have the first rank, others have none
    attempt: str | None = None  # counts recreations of the gang
    maker: str | None = None  # UID of the object that creates all members, where it is not the pod's controller
    needs: tuple[str, ...] = ()  # one of these keys must be present
    unless: tuple[tuple[str, tuple[str, ...]], ...] = ()  # keys and values of pods that are no members
    size_declared_by: str = ""  # the object that declares the size, where pods do not; for people


GANG_CONVENTIONS: tuple[GangConvention, ...] = (
    GangConvention(
        "Kueue",
        "kueue",
        "kubernetes-sigs/kueue, pkg/controller/jobs/pod/constants",
        (workloads.KUEUE_GROUP,),
        size=workloads.KUEUE_GROUP_SIZE,
        rank=(workloads.KUEUE_GROUP_INDEX,),
        unless=((workloads.KUEUE_GROUP_SERVING, ("true",)),),
    ),
    GangConvention(
        "LeaderWorkerSet",
        "lws",
        "kubernetes-sigs/lws, api/leaderworkerset/v1",
        (workloads.LEADER_WORKER_SET,),
        joined=(workloads.LEADER_WORKER_GROUP, workloads.LEADER_WORKER_REVISION),
        size=workloads.LEADER_WORKER_SIZE,
        rank=(workloads.LEADER_WORKER_INDEX,),
        needs=(workloads.LEADER_WORKER_GROUP,),
    ),
    GangConvention(
        "scheduling group",
        "group",
        "kubernetes, core/v1 spec.schedulingGroup.podGroupName (1.36, feature gate GenericWorkload)",
        (),
        native=True,
        rank=(workloads.JOB_INDEX,),
        size_declared_by="its PodGroup (gang.minCount)",
    ),
    GangConvention(
        "Coscheduling",
        "podgroup",
        "kubernetes-sigs/scheduler-plugins, apis/scheduling/v1alpha1",
        (workloads.POD_GROUP, workloads.POD_GROUP_OLD, workloads.POD_GROUP_NAME),
        minimum=workloads.POD_GROUP_MINIMUM,
        rank=(workloads.JOB_INDEX,),
        size_declared_by="its PodGroup (minMember)",
    ),
    GangConvention(
        "Volcano",
        "volcano",
        "volcano-sh/apis, pkg/apis/scheduling/v1beta1",
        (workloads.VOLCANO_GROUP, workloads.VOLCANO_GROUP_NEW),
        size_declared_by="its PodGroup (minMember)",
    ),
    GangConvention(
        "JobSet",
        "jobset",
        "kubernetes-sigs/jobset, api/jobset/v1alpha2; kubeflow/trainer v2 makes JobSets",
        (workloads.JOBSET,),
        joined=(workloads.JOBSET_GROUP,),
        rank=(workloads.JOBSET_JOB_INDEX, workloads.JOB_INDEX),
        attempt=workloads.JOBSET_RESTART,
        maker=workloads.JOBSET_UID,
        unless=(
            (workloads.JOBSET_REPLICATED_JOB, workloads.INITIALIZERS),
            (workloads.TRAINJOB_STEP, workloads.INITIALIZERS),
        ),
        size_declared_by="its JobSet (replicas, parallelism)",
    ),
    GangConvention(
        "Kubeflow",
        "kubeflow",
        "kubeflow/training-operator, pkg/apis/kubeflow.org/v1; kubeflow/mpi-operator, v2beta1",
        (workloads.KUBEFLOW_JOB,),
        rank=(workloads.KUBEFLOW_REPLICA_INDEX,),
        role=(workloads.KUBEFLOW_REPLICA_TYPE, workloads.KUBEFLOW_ROLE),
        size_declared_by="its job (replicas)",
    ),
    GangConvention(
        "Job",
        "job",
        "kubernetes, pkg/apis/batch/v1",
        (workloads.JOB_NAME, workloads.JOB_NAME_CLASSIC),
        rank=(workloads.JOB_INDEX,),
        needs=(workloads.JOB_INDEX, _GANG_SIZE),
        size_declared_by="its Job, where parallelism = completions",
    ),
    GangConvention("training job", "training", "set by hand", (workloads.TRAINING_JOB_ID,), needs=(_GANG_SIZE,)),
)

_GANG_KEYS = frozenset(each.key for each in keys.GANG_KEYS)
_NAMING_KEYS = frozenset(key for each in GANG_CONVENTIONS for key in each.keys)


def parse_gang_request(metadata: Metadata, scheduling_group: str | None = None) -> GangRequest | InvalidRequest | None:
    """Return the gang that a pod asks for; None: no gang. ``scheduling_group``: spec.schedulingGroup.podGroupName."""
    labels = metadata.labels or {}
    if not _GANG_KEYS.isdisjoint(labels):
        key = next(each.key for each in keys.GANG_KEYS if each.key in labels)
        return InvalidRequest(misplaced_text(key, labels[key]))
    try:
        annotations = parse_gang_annotations(metadata.annotations or {})
        found = _by_annotation(metadata, annotations.gang) or _by_conventions(metadata, scheduling_group)
        return _without_gang(metadata, annotations) if found is None else _with_annotations(found, annotations)
    except MalformedGangError as error:
        return InvalidRequest(str(error))


def named_gang(metadata: Metadata, scheduling_group: str | None = None) -> GangRequest | None:
    """Return the gang that a pod names, where its other gang annotations are malformed."""
    found = _annotated(metadata)
    if found is None:
        return _by_conventions(metadata, scheduling_group, sizes=False)
    try:
        return _by_annotation(metadata, parse_gang_annotations({keys.POD_GANG.key: found}).gang)
    except MalformedGangError:
        return None


def conventional_name(prefix: str, namespace: str, name: str, *joined: str) -> GangName:
    """Return the name that a convention gives to a gang, always a valid object name. ``prefix``: its convention's."""
    plain = ".".join((prefix, name, *(part for part in joined if part and part != _DEFAULT)))
    if len(plain) <= _LONGEST and _NAME.fullmatch(plain) is not None:
        return GangName(namespace, plain)
    digest = sha256(plain.encode()).hexdigest()[:10]
    kept = re.sub(r"[^a-z0-9]+", "-", plain.removeprefix(prefix).casefold())[: _LONGEST - 30].strip("-")
    return GangName(namespace, ".".join((prefix, f"{kept}-{digest}".removeprefix("-"))))


def single_pod_request(metadata: Metadata, by: str) -> GangRequest:
    """Return the request of a pod that is planned on its own: a gang of one."""
    return GangRequest(
        GangName(metadata.namespace, SINGLE_POD_PREFIX + metadata.uid),
        1,
        convention=by,
        creator_uid=_controller(metadata),
    )


def is_single_pod_gang(name: GangName) -> bool:
    """Return whether the gang is a single pod."""
    return is_single_pod(name.name)


def _with_annotations(request: GangRequest, annotations: GangAnnotations) -> GangRequest:
    """Return the request with our own annotations, which take precedence over the convention."""
    if annotations.size is None:
        size, minimum = request.size, request.minimum if annotations.minimum is None else annotations.minimum
    else:
        size, minimum = annotations.size, annotations.minimum
    return request._replace(
        size=size,
        minimum=minimum,
        timeout_s=annotations.timeout_s,
        required=annotations.required,
        preferred=annotations.preferred,
        ends_on_failure=annotations.ends_on_failure,
    )


def _without_gang(metadata: Metadata, annotations: GangAnnotations) -> GangRequest | InvalidRequest | None:
    if annotations.planned:
        return single_pod_request(metadata, BY_ANNOTATIONS)
    if _GANG_KEYS.isdisjoint(metadata.annotations or ()):
        return None
    for key in keys.GANG_KEYS:
        text = (metadata.annotations or {}).get(key.key)
        if text is not None and key is not keys.POD_PLANNED:
            return InvalidRequest(
                malformed_text(key.key, text, f"applicable: the pod names no gang; set {keys.POD_GANG.key}")
            )
    return None


def _annotated(metadata: Metadata) -> str | None:
    return (metadata.annotations or {}).get(keys.POD_GANG.key)


def _by_annotation(metadata: Metadata, gang: str | None) -> GangRequest | None:
    if gang is None:
        return None
    rank = _rank(_markers(metadata), (workloads.JOB_INDEX,))
    return GangRequest(
        GangName(metadata.namespace, gang), rank=rank, convention=BY_ANNOTATIONS, creator_uid=_controller(metadata)
    )


def _by_conventions(metadata: Metadata, scheduling_group: str | None, *, sizes: bool = True) -> GangRequest | None:
    markers = _markers(metadata)
    if scheduling_group is None and _NAMING_KEYS.isdisjoint(markers):  # most pods
        return None
    for convention in GANG_CONVENTIONS:
        name = _gang_named_by(convention, markers, scheduling_group)
        if name is not None:
            return GangRequest(
                conventional_name(
                    convention.prefix, metadata.namespace, name, *(markers.get(key, "") for key in convention.joined)
                ),
                size=_count(markers, convention.size) if sizes else None,
                minimum=_count(markers, convention.minimum) if sizes else None,
                rank=_rank_in_role(markers, convention) if convention.role else _rank(markers, convention.rank),
                convention=convention.name,
                attempt=_index(markers.get(convention.attempt or "")) or 0,
                creator_uid=markers.get(convention.maker or "", "")[:_LONGEST] or _controller(metadata),
            )
    return None


def _markers(metadata: Metadata) -> Mapping[str, str]:
    """Return labels and annotations in one mapping: some conventions use both, and none uses a key in two meanings."""
    return {**(metadata.annotations or {}), **(metadata.labels or {})}


def _gang_named_by(convention: GangConvention, markers: Mapping[str, str], scheduling_group: str | None) -> str | None:
    """Return the gang that a convention names; None: it does not apply to the pod."""
    if convention.native:
        return scheduling_group
    found = next((markers[key] for key in convention.keys if markers.get(key)), None)
    if found is None or (convention.needs and not any(key in markers for key in convention.needs)):
        return None
    return None if any(markers.get(key) in values for key, values in convention.unless) else found


def _count(markers: Mapping[str, str], key: str | None) -> int | None:
    """Return a number of members. Raises ``MalformedGangError``."""
    text = None if key is None else markers.get(key)
    if key is None or text is None:
        return None
    found = parse_member_count(text)
    if found is None:
        raise MalformedGangError(malformed_text(key, text, "a number of pods"))
    return found


def _rank(markers: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    rank = 0
    for key in names:
        index = _index(markers.get(key))
        if index is None:
            return None
        rank = rank * RANK_STRIDE + index
    return rank if names else None


def _rank_in_role(markers: Mapping[str, str], convention: GangConvention) -> int | None:
    """Return the rank of a Kubeflow pod. Indices begin with 0 in each role; the master, if there is one, has rank 0."""
    role = next((markers[key].casefold() for key in convention.role if key in markers), None)
    if role in _FIRST:
        return 0
    index = _rank(markers, convention.rank)
    return None if role != _THEN or index is None else index + 1


def _index(text: str | None) -> int | None:
    return None if text is None or _INDEX.fullmatch(text) is None else int(text)


def _controller(metadata: Metadata) -> str | None:
    return None if metadata.owner is None else metadata.owner.uid
