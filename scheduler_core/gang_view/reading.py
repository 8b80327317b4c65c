"""What the views of gangs need, read once by the conversions of the planner's watches. I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from gputopo.kube.access import PODS
from gputopo.kube.client import Kube, Query
from gputopo.kube.errors import ForbiddenError
from gputopo.kube.reduction import Source
from scheduler_core.gangs.gang import Gang, GangPhase
from scheduler_core.observe.sources import OBSERVED
from scheduler_core.planner import sizes
from scheduler_core.planner.seen import Candidate, GangPod, planner_sources
from scheduler_core.planner.view import View
from scheduler_core.policies import Policies
from scheduler_core.watch import KEPT, Sources, listed_of

# Which kinds say the sizes of gangs whose names begin so.
SAID_BY: dict[str, tuple[type[Any], ...]] = {
    "job": (sizes.OfJob,),
    "jobset": (sizes.OfJobSet,),
    "group": (sizes.OfGroup,),
    "podgroup": (sizes.OfPodGroup, sizes.OfOldPodGroup),
    "volcano": (sizes.OfVolcanoGroup,),
    "kubeflow": (
        sizes.OfPyTorchJob,
        sizes.OfTfJob,
        sizes.OfXgboostJob,
        sizes.OfPaddleJob,
        sizes.OfJaxJob,
        sizes.OfMpiJob,
        sizes.OfMpiJobV2,
    ),
}
_NOT_OURS = (GangPhase.ELSEWHERE, GangPhase.ENDED)
_POOL = ""  # no ledger of that name: what counts is asked of all of them


class Seen(NamedTuple):
    """What was read."""

    view: View
    unread: tuple[str, ...] = ()  # kinds that may not be listed: "placementledgers.gputopo.io"

    @property
    def ledgers(self) -> bool:
        """Whether it is known which reservations count."""
        return not any(each.startswith("placementledgers") for each in self.unread)


def read_gangs(kube: Kube, namespace: str | None, policies: Policies, now: float) -> Seen:
    """The gangs of a namespace or of all, and what planners wrote down. Raises ``KubeError``."""
    return _read(kube, (_pods(policies),), namespace, policies, now)


def read_all(kube: Kube, policies: Policies, now: float) -> Seen:
    """All gangs, and the nodes. Raises ``KubeError``."""
    nodes, _, gpus = OBSERVED
    return _read(kube, (nodes, gpus, _pods(policies)), None, policies, now)


def read_pod(kube: Kube, namespace: str, name: str) -> GangPod | None:
    """One pod; None: there is none of that name. Raises ``KubeError``."""
    return next(iter(kube.items(PODS, GangPod, Query(namespace, fields=f"metadata.name={name}"))), None)


def _pods(policies: Policies) -> tuple[type[Any], Source[Any]]:
    return next(each for each in planner_sources(policies.read) if each[0] is Candidate)


def _read(kube: Kube, sources: Sources, namespace: str | None, policies: Policies, now: float) -> Seen:
    view = View(policies.common, _POOL, "")
    for kind, source in sources:
        view.take(listed_of(kube, kind, _within(source, namespace)), now)
    unread = [*_optional(kube, KEPT, namespace, view, now)]
    unread += _optional(kube, _telling(view.roster.gangs()), namespace, view, now)
    return Seen(view, tuple(unread))


def _optional(kube: Kube, sources: Sources, namespace: str | None, view: View, now: float) -> list[str]:
    """Kinds without which there still is something to tell. Answers those that may not be read."""
    unread = []
    for kind, source in sources:
        try:
            view.take(listed_of(kube, kind, _within(source, namespace)), now)
        except ForbiddenError:
            resource = source.resource
            unread.append(f"{resource.plural}.{resource.group}" if resource.group else resource.plural)
    return unread


def _telling(gangs: Iterable[Gang]) -> Sources:
    """Where to read what the pods of gangs do not say: how many they are."""
    unsaid = {each.name.name.partition(".")[0] for each in gangs if each.need is None and each.phase not in _NOT_OURS}
    kinds = {kind for prefix in unsaid for kind in SAID_BY.get(prefix, ())}
    return tuple(each for each in sizes.SIZES if each[0] in kinds)


def _within(source: Source[Any], namespace: str | None) -> Source[Any]:
    if namespace is None or not source.resource.namespaced:
        return source
    return source._replace(query=source.query._replace(namespace=namespace))
