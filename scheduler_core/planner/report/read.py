"""What the views of gangs need, read once by the conversions of the planner's watches. I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from gputopo.kube.client import Kube, Query
from gputopo.kube.errors import ForbiddenError, NotFoundError
from gputopo.kube.objects import Partial
from gputopo.kube.projection import Source
from gputopo.kube.rbac import LEASES, NAMESPACES, PODS, Resource
from gputopo.labels.keys import GANGS_ENABLED
from scheduler_core.cache.events import GpusSeen, NodeSeen
from scheduler_core.cache.full_pods import OBSERVED
from scheduler_core.cache.watch import KEPT, Sources, listed_of
from scheduler_core.planner.gang import size_sources
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.pod_source import Candidate, GangPod, planner_sources
from scheduler_core.planner.leader.view import View
from scheduler_core.policy.profiles import Policies
from scheduler_core.runtime.leader_election import Lease, lease_name
from scheduler_core.runtime.leader_election import Spec as LeaseSpec

# Which kinds say the sizes of gangs whose names begin so.
SAID_BY: dict[str, tuple[type[Any], ...]] = {
    "job": (size_sources.OfJob,),
    "jobset": (size_sources.OfJobSet,),
    "group": (size_sources.OfGroup, size_sources.OfAlphaGroup, size_sources.OfOldGroup),
    "podgroup": (size_sources.OfPodGroup, size_sources.OfOldPodGroup),
    "volcano": (size_sources.OfVolcanoGroup,),
    "kubeflow": (
        size_sources.OfPyTorchJob,
        size_sources.OfTfJob,
        size_sources.OfXgboostJob,
        size_sources.OfPaddleJob,
        size_sources.OfJaxJob,
        size_sources.OfMpiJob,
        size_sources.OfMpiJobV2,
    ),
}
_NOT_OURS = (GangPhase.ELSEWHERE, GangPhase.ENDED)
_POOL = ""  # no ledger of that name: what counts is asked of all of them


class Led(NamedTuple):
    """The Lease that a planner wrote into its ledger."""

    lease: str  # NAMESPACE/NAME
    spec: LeaseSpec | None  # None: there is none


class Seen(NamedTuple):
    """What was read."""

    view: View
    unread: tuple[str, ...] = ()  # kinds that may not be read: "placementledgers.gputopo.io"
    planners: tuple[Led, ...] = ()  # of the ledgers; those that may not be read are not among them

    @property
    def ledgers(self) -> bool:
        """Whether it is known which reservations count."""
        return not any(each.startswith("placementledgers") for each in self.unread)


def read_gangs(kube: Kube, namespace: str | None, policies: Policies, now: float) -> Seen:
    """The gangs of a namespace or of all, and what planners wrote down. Raises ``KubeError``."""
    return _read(kube, _pods(policies), namespace, policies, now)


def read_all(kube: Kube, policies: Policies, now: float) -> Seen:
    """All gangs, and the nodes. Raises ``KubeError``."""
    sources = {NodeSeen: OBSERVED[NodeSeen], GpusSeen: OBSERVED[GpusSeen], **_pods(policies)}
    return _read(kube, sources, None, policies, now)


def read_pod(kube: Kube, namespace: str, name: str) -> GangPod | None:
    """One pod; None: there is none of that name. Raises ``KubeError``."""
    return next(iter(kube.items(PODS, GangPod, Query(namespace, fields=f"metadata.name={name}"))), None)


def read_opted_in(kube: Kube, namespace: str) -> bool | None:
    """Whether pods of that namespace are gated as they are created; None: it may not be read. Raises ``KubeError``."""
    try:
        found = kube.get(NAMESPACES, namespace, Partial, Query(metadata_only=True))
    except ForbiddenError:
        return None
    return (found.metadata.labels or {}).get(GANGS_ENABLED.key) == GANGS_ENABLED.example


def _pods(policies: Policies) -> Sources:
    return {Candidate: planner_sources(policies.read)[Candidate]}


def _read(kube: Kube, sources: Sources, namespace: str | None, policies: Policies, now: float) -> Seen:
    view = View(policies.common, _POOL, "")
    for kind, source in sources.items():
        view.take(listed_of(kube, kind, _within(source, namespace)), now)
    unread = [*_optional(kube, KEPT, namespace, view, now)]
    unread += _optional(kube, _telling(view.roster.gangs()), namespace, view, now)
    planners: list[Led] = []
    for name in sorted({each.spec.lease for each in view.knowledge.reserved.ledgers.values() if each.spec.lease}):
        try:
            planners.append(Led(name, _lease(kube, name)))
        except ForbiddenError:
            unread.append(_titled(LEASES))
            break
    return Seen(view, tuple(dict.fromkeys(unread)), tuple(planners))


def _lease(kube: Kube, name: str) -> LeaseSpec | None:
    found = lease_name(name)
    try:
        return kube.get(LEASES, found.name, Lease, Query(found.namespace)).spec
    except NotFoundError:
        return None


def _optional(kube: Kube, sources: Sources, namespace: str | None, view: View, now: float) -> list[str]:
    """Kinds without which there still is something to tell. Answers those that may not be listed."""
    unread = []
    for kind, source in sources.items():
        try:
            view.take(listed_of(kube, kind, _within(source, namespace)), now)
        except ForbiddenError:
            unread.append(_titled(source.resource))
    return unread


def _titled(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def _telling(gangs: Iterable[Gang]) -> Sources:
    """Where to read what the pods of gangs do not say: how many they are."""
    unsaid = {each.name.name.partition(".")[0] for each in gangs if each.need is None and each.phase not in _NOT_OURS}
    kinds = {kind for prefix in unsaid for kind in SAID_BY.get(prefix, ())}
    return {kind: source for kind, source in size_sources.SIZES.items() if kind in kinds}


def _within(source: Source[Any], namespace: str | None) -> Source[Any]:
    if namespace is None or not source.resource.namespaced:
        return source
    return source._replace(query=source.query._replace(namespace=namespace))
