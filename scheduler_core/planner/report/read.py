"""What the views of gangs need, read once by the conversions of the planner's watches. I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import ForbiddenError, NotFoundError
from gputopo.kube.objects import PartialObject
from gputopo.kube.projection import WatchSource
from gputopo.kube.rbac import LEASES, NAMESPACES, PODS, Resource
from gputopo.labels.keys import GANGS_ENABLED
from scheduler_core.cache.events import NodeGpusUpdate, NodeUpdate
from scheduler_core.cache.full_pods import FULL_POD_SOURCES
from scheduler_core.cache.watch import RESERVATION_SOURCES, Sources, list_kind
from scheduler_core.planner.gang import size_sources
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.pod_source import GangPod, PlannerPod, planner_sources
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.policy.profiles import Policies
from scheduler_core.runtime.leader_election import Lease, LeaseSpec, parse_lease_name

# Which kinds say the sizes of gangs whose names begin so.
SIZE_DECLARERS: dict[str, tuple[type[Any], ...]] = {
    "job": (size_sources.JobSizes,),
    "jobset": (size_sources.JobSetSizes,),
    "group": (size_sources.GroupSizes, size_sources.AlphaGroupSizes, size_sources.OldGroupSizes),
    "podgroup": (size_sources.PodGroupSizes, size_sources.OldPodGroupSizes),
    "volcano": (size_sources.VolcanoGroupSizes,),
    "kubeflow": (
        size_sources.PyTorchJobSizes,
        size_sources.TfJobSizes,
        size_sources.XgboostJobSizes,
        size_sources.PaddleJobSizes,
        size_sources.JaxJobSizes,
        size_sources.MpiJobSizes,
        size_sources.MpiJobV2Sizes,
    ),
}
_NOT_OURS = (GangPhase.ELSEWHERE, GangPhase.FINISHED)
_POOL = ""  # no ledger of that name: what counts is asked of all of them


class PlannerLease(NamedTuple):
    """The Lease that a planner wrote into its ledger."""

    lease: str  # NAMESPACE/NAME
    spec: LeaseSpec | None  # None: there is none


class GangSnapshot(NamedTuple):
    """What was read."""

    view: PlannerView
    unread: tuple[str, ...] = ()  # kinds that may not be read: "placementledgers.gputopo.io"
    planners: tuple[PlannerLease, ...] = ()  # of the ledgers; those that may not be read are not among them

    @property
    def ledgers(self) -> bool:
        """Whether it is known which reservations count."""
        return not any(each.startswith("placementledgers") for each in self.unread)


def read_gangs(kube: Kube, namespace: str | None, policies: Policies, now: float) -> GangSnapshot:
    """The gangs of a namespace or of all, and what planners wrote down. Raises ``KubeError``."""
    return _read(kube, _pods(policies), namespace, policies, now)


def read_all(kube: Kube, policies: Policies, now: float) -> GangSnapshot:
    """All gangs, and the nodes. Raises ``KubeError``."""
    sources = {
        NodeUpdate: FULL_POD_SOURCES[NodeUpdate],
        NodeGpusUpdate: FULL_POD_SOURCES[NodeGpusUpdate],
        **_pods(policies),
    }
    return _read(kube, sources, None, policies, now)


def read_pod(kube: Kube, namespace: str, name: str) -> GangPod | None:
    """One pod; None: there is none of that name. Raises ``KubeError``."""
    return next(iter(kube.list_objects(PODS, GangPod, ListOptions(namespace, fields=f"metadata.name={name}"))), None)


def read_opted_in(kube: Kube, namespace: str) -> bool | None:
    """Whether pods of that namespace are gated as they are created; None: it may not be read. Raises ``KubeError``."""
    try:
        found = kube.get(NAMESPACES, namespace, PartialObject, ListOptions(metadata_only=True))
    except ForbiddenError:
        return None
    return (found.metadata.labels or {}).get(GANGS_ENABLED.key) == GANGS_ENABLED.example


def _pods(policies: Policies) -> Sources:
    return {PlannerPod: planner_sources(policies.parse_pod)[PlannerPod]}


def _read(kube: Kube, sources: Sources, namespace: str | None, policies: Policies, now: float) -> GangSnapshot:
    view = PlannerView(policies.node_policy, _POOL, "")
    for kind, source in sources.items():
        view.apply_batch(list_kind(kube, kind, _within(source, namespace)), now)
    unread = [*_optional(kube, RESERVATION_SOURCES, namespace, view, now)]
    unread += _optional(kube, _size_sources(view.gang_members.all_gangs()), namespace, view, now)
    planners: list[PlannerLease] = []
    for name in sorted({each.spec.lease for each in view.cache.reservations.ledgers.values() if each.spec.lease}):
        try:
            planners.append(PlannerLease(name, _lease(kube, name)))
        except ForbiddenError:
            unread.append(_titled(LEASES))
            break
    return GangSnapshot(view, tuple(dict.fromkeys(unread)), tuple(planners))


def _lease(kube: Kube, name: str) -> LeaseSpec | None:
    found = parse_lease_name(name)
    try:
        return kube.get(LEASES, found.name, Lease, ListOptions(found.namespace)).spec
    except NotFoundError:
        return None


def _optional(kube: Kube, sources: Sources, namespace: str | None, view: PlannerView, now: float) -> list[str]:
    """Kinds without which there still is something to tell. Answers those that may not be listed."""
    unread = []
    for kind, source in sources.items():
        try:
            view.apply_batch(list_kind(kube, kind, _within(source, namespace)), now)
        except ForbiddenError:
            unread.append(_titled(source.resource))
    return unread


def _titled(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def _size_sources(gangs: Iterable[Gang]) -> Sources:
    """Where to read what the pods of gangs do not say: how many they are."""
    unsaid = {
        each.name.name.partition(".")[0]
        for each in gangs
        if each.required_members is None and each.phase not in _NOT_OURS
    }
    kinds = {kind for prefix in unsaid for kind in SIZE_DECLARERS.get(prefix, ())}
    return {kind: source for kind, source in size_sources.SIZE_SOURCES.items() if kind in kinds}


def _within(source: WatchSource[Any], namespace: str | None) -> WatchSource[Any]:
    if namespace is None or not source.resource.namespaced:
        return source
    return source._replace(query=source.query._replace(namespace=namespace))
