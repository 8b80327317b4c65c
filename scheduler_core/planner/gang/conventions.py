"""Which gang a pod belongs to: by our annotations, or by the marks of what people have already. Pure; rules are data.

``RULES`` are asked in order, and the first that names a gang counts; our annotation goes before them all, and what the
pod says in other annotations of ours is added to any. Nothing is ever held back because of a convention: who has no
gate of ours is none of our business.

A gang's name is fit to be part of an object's: plain where our annotation gives it, after its convention and a dot else
("jobset.train"). Dots are not allowed in the annotation, so no two of them meet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

from gputopo.crd.reservations import SINGLE_POD_PREFIX, is_single_pod
from gputopo.labels import keys
from gputopo.labels import workloads as seen
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

BY_ANNOTATIONS = "annotations"  # ours
_DEFAULT = "default"  # a JobSet's group that it did not name
_INDEX = re.compile(r"\d{1,9}", re.ASCII)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST = 200  # characters; the names of reservations begin with it
_FIRST = ("master", "chief", "launcher")  # of Kubeflow's roles
_THEN = "worker"
_STRIDE = 1 << 16  # beyond the pods of one Job: the ranks of the next Job of a JobSet come after all of them
_GANG_SIZE = keys.POD_GANG_SIZE.key


class GangConvention(NamedTuple):
    """How the members of one kind of gang are known. All keys are looked for among labels, then annotations."""

    name: str  # for people
    prefix: str  # of the gang's name
    source: str  # whose convention it is, and where it is written down
    keys: tuple[str, ...]  # the first that is there names the gang
    native: bool = False  # a field of the pod names it, in place of ``keys``
    joined: tuple[str, ...] = ()  # whose values are part of the name, where they are there
    size: str | None = None  # members
    minimum: str | None = None  # members that it can start with
    rank: tuple[str, ...] = ()  # indices, all of which must be there; the first weighs most
    role: tuple[str, ...] = ()  # what the pod is among the others: some come first, and some have no rank
    attempt: str | None = None  # which making of the gang it is
    maker: str | None = None  # UID of what makes all members, where that is not the pod's controller
    needs: tuple[str, ...] = ()  # one of these must be there
    unless: tuple[tuple[str, tuple[str, ...]], ...] = ()  # none where one of these has one of those values
    told_by: str = ""  # the object that says the size, where pods do not


GANG_CONVENTIONS: tuple[GangConvention, ...] = (
    GangConvention(
        "Kueue",
        "kueue",
        "kubernetes-sigs/kueue, pkg/controller/jobs/pod/constants",
        (seen.KUEUE_GROUP,),
        size=seen.KUEUE_GROUP_SIZE,
        rank=(seen.KUEUE_GROUP_INDEX,),
        unless=((seen.KUEUE_GROUP_SERVING, ("true",)),),
    ),
    GangConvention(
        "LeaderWorkerSet",
        "lws",
        "kubernetes-sigs/lws, api/leaderworkerset/v1",
        (seen.LEADER_WORKER_SET,),
        joined=(seen.LEADER_WORKER_GROUP, seen.LEADER_WORKER_REVISION),
        size=seen.LEADER_WORKER_SIZE,
        rank=(seen.LEADER_WORKER_INDEX,),
        needs=(seen.LEADER_WORKER_GROUP,),
    ),
    GangConvention(
        "scheduling group",
        "group",
        "kubernetes, core/v1 spec.schedulingGroup.podGroupName (1.36, feature gate GenericWorkload)",
        (),
        native=True,
        rank=(seen.JOB_INDEX,),
        told_by="its PodGroup (gang.minCount)",
    ),
    GangConvention(
        "Coscheduling",
        "podgroup",
        "kubernetes-sigs/scheduler-plugins, apis/scheduling/v1alpha1",
        (seen.POD_GROUP, seen.POD_GROUP_OLD, seen.POD_GROUP_NAME),
        minimum=seen.POD_GROUP_MINIMUM,
        rank=(seen.JOB_INDEX,),
        told_by="its PodGroup (minMember)",
    ),
    GangConvention(
        "Volcano",
        "volcano",
        "volcano-sh/apis, pkg/apis/scheduling/v1beta1",
        (seen.VOLCANO_GROUP, seen.VOLCANO_GROUP_NEW),
        told_by="its PodGroup (minMember)",
    ),
    GangConvention(
        "JobSet",
        "jobset",
        "kubernetes-sigs/jobset, api/jobset/v1alpha2; kubeflow/trainer v2 makes JobSets",
        (seen.JOBSET,),
        joined=(seen.JOBSET_GROUP,),
        rank=(seen.JOBSET_JOB_INDEX, seen.JOB_INDEX),
        attempt=seen.JOBSET_RESTART,
        maker=seen.JOBSET_UID,
        unless=((seen.JOBSET_REPLICATED_JOB, seen.INITIALIZERS), (seen.TRAINJOB_STEP, seen.INITIALIZERS)),
        told_by="its JobSet (replicas, parallelism)",
    ),
    GangConvention(
        "Kubeflow",
        "kubeflow",
        "kubeflow/training-operator, pkg/apis/kubeflow.org/v1; kubeflow/mpi-operator, v2beta1",
        (seen.KUBEFLOW_JOB,),
        rank=(seen.KUBEFLOW_REPLICA_INDEX,),
        role=(seen.KUBEFLOW_REPLICA_TYPE, seen.KUBEFLOW_ROLE),
        told_by="its job (replicas)",
    ),
    GangConvention(
        "Job",
        "job",
        "kubernetes, pkg/apis/batch/v1",
        (seen.JOB_NAME, seen.JOB_NAME_CLASSIC),
        rank=(seen.JOB_INDEX,),
        needs=(seen.JOB_INDEX, _GANG_SIZE),
        told_by="its Job, where parallelism = completions",
    ),
    GangConvention("training job", "training", "set by hand", (seen.TRAINING_JOB_ID,), needs=(_GANG_SIZE,)),
)


def parse_gang_request(metadata: Metadata, scheduling_group: str | None = None) -> GangRequest | InvalidRequest | None:
    """What a pod says of its gang; None: it has none. ``scheduling_group``: spec.schedulingGroup.podGroupName."""
    labels = metadata.labels or {}
    for key in keys.GANG_KEYS:
        if key.key in labels:
            return InvalidRequest(misplaced_text(key.key, labels[key.key]))
    try:
        said = parse_gang_annotations(metadata.annotations or {})
        found = _by_annotation(metadata, said.gang) or _by_rules(metadata, scheduling_group)
        return _unnamed(metadata, said) if found is None else _with_annotations(found, said)
    except MalformedGangError as error:
        return InvalidRequest(str(error))


def named_gang(metadata: Metadata, scheduling_group: str | None = None) -> GangRequest | None:
    """The gang that a pod names, where what it says beside that cannot be understood."""
    found = _annotated(metadata)
    if found is None:
        return _by_rules(metadata, scheduling_group, sizes=False)
    try:
        return _by_annotation(metadata, parse_gang_annotations({keys.POD_GANG.key: found}).gang)
    except MalformedGangError:
        return None


def conventional_name(prefix: str, namespace: str, name: str, *joined: str) -> GangName:
    """The gang's name that a convention gives. ``prefix``: its ``Rule``'s. Always one that an object could have."""
    plain = ".".join((prefix, name, *(part for part in joined if part and part != _DEFAULT)))
    if len(plain) <= _LONGEST and _NAME.fullmatch(plain) is not None:
        return GangName(namespace, plain)
    digest = sha256(plain.encode()).hexdigest()[:10]
    kept = re.sub(r"[^a-z0-9]+", "-", plain.removeprefix(prefix).casefold())[: _LONGEST - 30].strip("-")
    return GangName(namespace, ".".join((prefix, f"{kept}-{digest}".removeprefix("-"))))


def single_pod_request(metadata: Metadata, by: str) -> GangRequest:
    """A pod that is to be placed on its own: a gang of one."""
    return GangRequest(
        GangName(metadata.namespace, SINGLE_POD_PREFIX + metadata.uid), 1, by=by, maker=_controller(metadata)
    )


def is_single_pod_gang(name: GangName) -> bool:
    """Whether that is a single pod's."""
    return is_single_pod(name.name)


def _with_annotations(wanted: GangRequest, said: GangAnnotations) -> GangRequest:
    """What our own annotations say goes before what a convention does."""
    if said.size is None:
        size, minimum = wanted.size, wanted.minimum if said.minimum is None else said.minimum
    else:
        size, minimum = said.size, said.minimum
    return wanted._replace(
        size=size, minimum=minimum, timeout_s=said.timeout_s, required=said.required, preferred=said.preferred
    )


def _unnamed(metadata: Metadata, said: GangAnnotations) -> GangRequest | InvalidRequest | None:
    if said.planned:
        return single_pod_request(metadata, BY_ANNOTATIONS)
    for key in keys.GANG_KEYS:
        text = (metadata.annotations or {}).get(key.key)
        if text is not None and key is not keys.POD_PLANNED:
            return InvalidRequest(
                malformed_text(key.key, text, f"of any gang: the pod names none, as {keys.POD_GANG.key} would")
            )
    return None


def _annotated(metadata: Metadata) -> str | None:
    return (metadata.annotations or {}).get(keys.POD_GANG.key)


def _by_annotation(metadata: Metadata, gang: str | None) -> GangRequest | None:
    if gang is None:
        return None
    rank = _rank(_marks(metadata), (seen.JOB_INDEX,))
    return GangRequest(GangName(metadata.namespace, gang), rank=rank, by=BY_ANNOTATIONS, maker=_controller(metadata))


def _by_rules(metadata: Metadata, scheduling_group: str | None, *, sizes: bool = True) -> GangRequest | None:
    marks = _marks(metadata)
    for rule in GANG_CONVENTIONS:
        name = _names(rule, marks, scheduling_group)
        if name is not None:
            return GangRequest(
                conventional_name(rule.prefix, metadata.namespace, name, *(marks.get(key, "") for key in rule.joined)),
                size=_count(marks, rule.size) if sizes else None,
                minimum=_count(marks, rule.minimum) if sizes else None,
                rank=_rank_in_role(marks, rule) if rule.role else _rank(marks, rule.rank),
                by=rule.name,
                attempt=_index(marks.get(rule.attempt or "")) or 0,
                maker=marks.get(rule.maker or "") or _controller(metadata),
            )
    return None


def _marks(metadata: Metadata) -> Mapping[str, str]:
    """Both in one: no convention gives a key two meanings, and some write both."""
    return {**(metadata.annotations or {}), **(metadata.labels or {})}


def _names(rule: GangConvention, marks: Mapping[str, str], scheduling_group: str | None) -> str | None:
    """The gang that a rule names; None: it says nothing of such a pod."""
    if rule.native:
        return scheduling_group
    found = next((marks[key] for key in rule.keys if marks.get(key)), None)
    if found is None or (rule.needs and not any(key in marks for key in rule.needs)):
        return None
    return None if any(marks.get(key) in values for key, values in rule.unless) else found


def _count(marks: Mapping[str, str], key: str | None) -> int | None:
    """A number of members. Raises ``MalformedGangError``."""
    text = None if key is None else marks.get(key)
    if key is None or text is None:
        return None
    found = parse_member_count(text)
    if found is None:
        raise MalformedGangError(malformed_text(key, text, "a number of pods"))
    return found


def _rank(marks: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    rank = 0
    for key in names:
        index = _index(marks.get(key))
        if index is None:
            return None
        rank = rank * _STRIDE + index
    return rank if names else None


def _rank_in_role(marks: Mapping[str, str], rule: GangConvention) -> int | None:
    """Kubeflow counts the pods of each role from 0; the collective's rank 0 is the master's, where there is one."""
    role = next((marks[key].casefold() for key in rule.role if key in marks), None)
    if role in _FIRST:
        return 0
    index = _rank(marks, rule.rank)
    return None if role != _THEN or index is None else index + 1


def _index(text: str | None) -> int | None:
    return None if text is None or _INDEX.fullmatch(text) is None else int(text)


def _controller(metadata: Metadata) -> str | None:
    return None if metadata.owner is None else metadata.owner.uid
