"""The facts about evictions of all pods and their owners, as watches deliver them. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from scheduler_core.cache.events import Batch
from scheduler_core.planner.gang.member import GangName
from scheduler_core.request.disruption import NO_FACTS, DisruptionFacts, parse_disruption

SKEW_S = 60.0  # the clocks of the API server, of kubelets and of the planner may differ so much


class PodDisruption(NamedTuple):
    """The facts that matter for the eviction of a pod that has a node. The key is the UID of the pod."""

    key: str
    facts: DisruptionFacts = NO_FACTS
    priority: int = 0
    started: float | None = None  # when a kubelet admitted it, seconds since 1970; None: not yet
    grace_s: float = 30.0  # terminationGracePeriodSeconds
    gone_by: float | None = None  # end of its grace period, seconds since 1970; None: it is not terminating
    is_recreated: bool = False  # of a DaemonSet, or a static pod: it comes back to the same node at once
    jobset: GangName | None = None  # the gang that its JobSet names, where its gang has another name


def ends_within(seconds: float, gone_by: float | None, now: float) -> bool:
    """Return True if a pod terminates, and its grace period ends within this time.

    An eviction can make the grace period of a terminating pod shorter. ``gone_by``: as in ``PodDisruption``.
    """
    return gone_by is not None and gone_by <= now + seconds + SKEW_S


class OwnerDisruption(NamedTuple):
    """The facts in the annotations or the status of an object that creates pods."""

    facts: DisruptionFacts
    gangs: tuple[GangName, ...] = ()  # of its pods, beside the gangs that it declares the size of


class Disruptions:
    """The facts about evictions of all pods and their owners. For one thread."""

    def __init__(self) -> None:
        self._pods: dict[str, PodDisruption] = {}
        self._owners: dict[type[Any], dict[str, OwnerDisruption]] = {}  # by kind, then by UID

    def apply_pods(self, batch: Batch[PodDisruption]) -> None:
        """Apply a batch of pods."""
        if batch.is_full_list:
            self._pods.clear()
        for uid in batch.removed:
            self._pods.pop(uid, None)
        self._pods.update((each.key, each) for each in batch.updates)

    def apply_owners(self, batch: Batch[Any], declared: Mapping[str, OwnerDisruption]) -> None:
        """Apply a batch of objects that create pods. ``declared``: the facts by UID, of the objects that have any."""
        known = self._owners.setdefault(batch.kind, {})
        if batch.is_full_list:
            known.clear()
        for uid in (*batch.removed, *(each.key for each in batch.updates)):
            known.pop(uid, None)
        known.update(declared)

    def copy(self) -> Disruptions:
        """Return a copy for another thread."""
        found = Disruptions()
        found._pods, found._owners = dict(self._pods), {kind: dict(each) for kind, each in self._owners.items()}
        return found

    def pod(self, uid: str) -> PodDisruption | None:
        """Return a pod that has a node; None: it is not known."""
        return self._pods.get(uid)

    def pods(self) -> Mapping[str, PodDisruption]:
        """Return all pods by UID."""
        return self._pods

    def owner_facts(self, uid: str | None) -> tuple[DisruptionFacts, ...]:
        """Return the facts of the owner with this UID."""
        found = (each.get(uid or "") for each in self._owners.values())
        return tuple(each.facts for each in found if each is not None)

    def gang_facts(self) -> dict[GangName, tuple[DisruptionFacts, ...]]:
        """Return the facts of the owners of each gang. Those of a JobSet are also under its name without a group."""
        found: dict[GangName, tuple[DisruptionFacts, ...]] = {}
        for owners in self._owners.values():
            for each in owners.values():
                for name in each.gangs:
                    found[name] = (*found.get(name, ()), each.facts)
        return found


def owner_disruption(
    annotations: Mapping[str, str] | None, gangs: tuple[GangName, ...], facts: DisruptionFacts | None = None
) -> OwnerDisruption | None:
    """Return the facts of an object; None: it has none. ``facts``: from its status, in place of its annotations."""
    found = facts or parse_disruption(annotations or {})
    return None if found == NO_FACTS else OwnerDisruption(found, gangs)
