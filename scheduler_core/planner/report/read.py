"""Reads gangs, reservations and nodes once, by the conversions of the planner's watches. I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from gputopo.crd.reservations import LEDGERS
from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import ForbiddenError, NotFoundError
from gputopo.kube.leases import Lease, LeaseSpec
from gputopo.kube.objects import PartialObject
from gputopo.kube.projection import WatchSource
from gputopo.kube.rbac import LEASES, NAMESPACES, Resource
from gputopo.kube.run_ahead import run_ahead
from gputopo.labels.keys import GANGS_ENABLED
from scheduler_core.cache.events import Batch, NodeGpusUpdate, NodeUpdate
from scheduler_core.cache.full_pods import FULL_POD_SOURCES
from scheduler_core.cache.watch import HEARTBEAT_SOURCES, RESERVATION_SOURCES, Sources, list_kind
from scheduler_core.planner.gang import size_sources
from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.pod_source import PlannerPod, planner_sources
from scheduler_core.planner.gang.volume_sources import VOLUME_SOURCES
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.policy.cached_reader import MemoizedParser
from scheduler_core.policy.profiles import BUILT_IN, Policies
from scheduler_core.runtime.leader_election import parse_lease_name

# The kinds that declare the sizes of gangs, by the prefix of the gang's name.
SIZE_SOURCES_BY_PREFIX: dict[str, tuple[type[Any], ...]] = {
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
_Listings = Mapping[type[Any], Callable[[], Batch[Any]]]  # each returns the whole list of a kind
_POOL = ""  # no ledger has this name: all ledgers count


class PlannerLease(NamedTuple):
    """The Lease that a planner named in its ledger."""

    lease: str  # NAMESPACE/NAME
    spec: LeaseSpec | None  # None: no such Lease


class GangSnapshot(NamedTuple):
    """The gangs and the cluster at one moment."""

    view: PlannerView
    unread: tuple[str, ...] = ()  # kinds that this user may not read: "placementledgers.gputopo.io"
    planners: tuple[PlannerLease, ...] = ()  # of the ledgers, without Leases that this user may not read
    damaged_ledgers: bool = False  # a ledger cannot be decoded
    from_file: bool = False  # the file may lack kinds that the cluster has

    @property
    def ledgers(self) -> bool:
        """True if all ledgers could be read. They define which reservations count."""
        return not self.damaged_ledgers and not any(each.startswith(LEDGERS) for each in self.unread)


def read_gangs(kube: Kube, namespace: str | None, now: float) -> GangSnapshot:
    """Return the gangs of a namespace or of all, with reservations and ledgers. Raises ``KubeError``."""
    return _read_snapshot(kube, _pods(BUILT_IN), namespace, BUILT_IN, now)


def read_gang_names(kube: Kube, namespace: str) -> list[str]:
    """Return the names of the gangs of a namespace, from its pods only. Raises ``KubeError``."""
    view = PlannerView(BUILT_IN.node_policy, _POOL, "")
    for wait in _start_lists(kube, _pods(BUILT_IN), namespace).values():
        view.apply_batch(wait(), kube.now())
    return [each.name.name for each in view.gang_members.all_gangs() if not is_single_pod_gang(each.name)]


def read_all(kube: Kube, policies: Policies, now: float) -> GangSnapshot:
    """Return all gangs, with the nodes. Raises ``KubeError``."""
    sources: Sources = {
        NodeUpdate: FULL_POD_SOURCES[NodeUpdate],
        **HEARTBEAT_SOURCES,  # before the NodeGpus that they confirm, so that each of these is applied once
        NodeGpusUpdate: FULL_POD_SOURCES[NodeGpusUpdate],
        **_pods(policies),
    }
    return _read_snapshot(kube, sources, None, policies, now)


def read_opted_in(kube: Kube, namespace: str) -> bool | None:
    """Return whether new pods of that namespace are gated; None: not readable. Raises ``KubeError``."""
    try:
        found = kube.get(NAMESPACES, namespace, PartialObject, ListOptions(metadata_only=True))
    except ForbiddenError:
        return None
    return (found.metadata.labels or {}).get(GANGS_ENABLED.key) == GANGS_ENABLED.example


def _pods(policies: Policies) -> Sources:
    return {PlannerPod: planner_sources(MemoizedParser(lambda: policies))[PlannerPod]}


def _read_snapshot(kube: Kube, sources: Sources, namespace: str | None, policies: Policies, now: float) -> GangSnapshot:
    view = PlannerView(policies.node_policy, _POOL, "")
    listings, optional = _start_lists(kube, sources, namespace), _start_lists(kube, RESERVATION_SOURCES, namespace)
    for wait in listings.values():
        view.apply_batch(wait(), now)
    unread = [*_apply_optional(RESERVATION_SOURCES, optional, view, now)]
    sizes = _size_sources(view.gang_members.all_gangs())
    unread += _apply_optional(sizes, _start_lists(kube, sizes, namespace), view, now)
    if NodeUpdate in sources and any(view.gang_members.members_with_claims()):
        unread += _apply_optional(VOLUME_SOURCES, _start_lists(kube, VOLUME_SOURCES, None), view, now)
    planners: list[PlannerLease] = []
    for name in sorted({each.spec.lease for each in view.cache.reservations.ledgers.values() if each.spec.lease}):
        try:
            planners.append(PlannerLease(name, _lease(kube, name)))
        except ForbiddenError:
            unread.append(_kind_title(LEASES))
            break
    damaged_ledgers = any(each.plural == LEDGERS for each in kube.unreadable)
    return GangSnapshot(view, tuple(dict.fromkeys(unread)), tuple(planners), damaged_ledgers, kube.from_file)


def _lease(kube: Kube, name: str) -> LeaseSpec | None:
    found = parse_lease_name(name)
    try:
        return kube.get(LEASES, found.name, Lease, ListOptions(found.namespace)).spec
    except NotFoundError:
        return None


def _start_lists(kube: Kube, sources: Sources, namespace: str | None) -> _Listings:
    """List kinds side by side."""
    return {
        kind: run_ahead(partial(list_kind, kube, kind, _in_namespace(source, namespace)))
        for kind, source in sources.items()
    }


def _apply_optional(sources: Sources, listings: _Listings, view: PlannerView, now: float) -> list[str]:
    """Apply kinds that this user may not be allowed to list; return the names of the forbidden kinds."""
    unread = []
    for kind, source in sources.items():
        try:
            view.apply_batch(listings[kind](), now)
        except ForbiddenError:
            unread.append(_kind_title(source.resource))
    return unread


def _kind_title(resource: Resource) -> str:
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def _size_sources(gangs: Iterable[Gang]) -> Sources:
    """Return the sources of the sizes that pods of gangs do not declare."""
    prefixes = {
        each.name.name.partition(".")[0]
        for each in gangs
        if each.required_members is None and each.phase not in _NOT_OURS
    }
    kinds = {kind for prefix in prefixes for kind in SIZE_SOURCES_BY_PREFIX.get(prefix, ())}
    return {kind: source for kind, source in size_sources.SIZE_SOURCES.items() if kind in kinds}


def _in_namespace(source: WatchSource[Any], namespace: str | None) -> WatchSource[Any]:
    if namespace is None or not source.resource.namespaced:
        return source
    return source._replace(query=source.query._replace(namespace=namespace))
