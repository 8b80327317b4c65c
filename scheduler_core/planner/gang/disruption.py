"""The annotations of pods and their owners about evictions: checkpoints, progress, "never". Pure.

Tenants write these values. An invalid value counts as not set, and every number is bounded here. The package
``preemption`` limits the effect of valid values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from typing import Any, NamedTuple

from gputopo.durations import parse_duration
from gputopo.labels import keys, workloads
from gputopo.timestamps import parse_timestamp
from scheduler_core.cache.events import Batch
from scheduler_core.planner.gang.member import GangName

MAX_DURATION_S = 366 * 86_400.0
MAX_GRACE_S = 86_400.0 * 7
_PERCENT = re.compile(r"\d{1,3}(?:\.\d{1,6})?", re.ASCII)
_INTEGER = re.compile(r"-?\d{1,10}", re.ASCII)
_MAX_DELETION_COST = 2**31 - 1
_KEYS = (
    *(each.key for each in keys.DISRUPTION_KEYS),
    workloads.DO_NOT_DISRUPT,
    workloads.SAFE_TO_EVICT,
    workloads.PREFER_NO_EVICTION,
    workloads.DELETION_COST,
)


class DisruptionFacts(NamedTuple):
    """The facts in the annotations of a pod or its owner. None: not set."""

    last_checkpoint: float | None = None  # seconds since 1970
    checkpoints: bool | None = None  # it saves checkpoints and resumes from them
    completion: float | None = None  # estimated end, seconds since 1970
    duration_s: float | None = None  # expected, from its start
    progress: float | None = None  # 0 to 1, since its start
    restart_s: float | None = None
    never: str | None = None  # the annotation that forbids evictions
    never_s: float = inf  # for so long after the start
    deletion_cost: int = 0  # among replicas, the lowest goes first


NO_FACTS = DisruptionFacts()


class PodDisruption(NamedTuple):
    """The facts that matter for the eviction of a pod that has a node. The key is the UID of the pod."""

    key: str
    facts: DisruptionFacts = NO_FACTS
    priority: int = 0
    started: float | None = None  # when a kubelet admitted it, seconds since 1970; None: not yet
    grace_s: float = 30.0  # terminationGracePeriodSeconds
    gone_by: float | None = None  # end of its grace period, seconds since 1970; None: it is not terminating
    is_recreated: bool = False  # of a DaemonSet, or a static pod: it comes back to the same node at once


class OwnerDisruption(NamedTuple):
    """The facts in the annotations or the status of an object that creates pods."""

    facts: DisruptionFacts
    gangs: tuple[GangName, ...] = ()  # of its pods, beside the gangs that it declares the size of


def parse_disruption(annotations: Mapping[str, str]) -> DisruptionFacts:
    """Return the facts in annotations."""
    if not any(key in annotations for key in _KEYS):  # most pods
        return NO_FACTS
    text = annotations.get
    never, never_s = _never(annotations)
    return DisruptionFacts(
        last_checkpoint=parse_timestamp(text(keys.POD_LAST_CHECKPOINT.key)),
        checkpoints={"true": True, "false": False}.get(text(keys.POD_CHECKPOINTS.key, "")),
        completion=parse_timestamp(text(keys.POD_ESTIMATED_COMPLETION.key)),
        duration_s=_duration(text(keys.POD_EXPECTED_DURATION.key)),
        progress=_progress(text(keys.POD_PROGRESS.key)),
        restart_s=_duration(text(keys.POD_RESTART_TIME.key)),
        never=never,
        never_s=never_s,
        deletion_cost=_deletion_cost(text(workloads.DELETION_COST)),
    )


def _never(annotations: Mapping[str, str]) -> tuple[str | None, float]:
    """Return the annotation that forbids evictions for the longest time, and that time in seconds."""
    found: list[tuple[float, str]] = []
    if annotations.get(keys.POD_PREEMPTIBLE.key) == "never":
        found.append((inf, keys.POD_PREEMPTIBLE.key))
    karpenter = annotations.get(workloads.DO_NOT_DISRUPT)
    limit = inf if karpenter == "true" else _duration(karpenter)
    if limit is not None:
        found.append((limit, workloads.DO_NOT_DISRUPT))
    if annotations.get(workloads.SAFE_TO_EVICT) == "false":
        found.append((inf, workloads.SAFE_TO_EVICT))
    if workloads.PREFER_NO_EVICTION in annotations:
        found.append((inf, workloads.PREFER_NO_EVICTION))
    if not found:
        return None, inf
    never_s, key = max(found, key=lambda each: each[0])
    return key, never_s


def _duration(text: str | None) -> float | None:
    found = None if text is None or len(text) > 64 else parse_duration(text)
    return None if found is None else min(found, MAX_DURATION_S)


def _progress(text: str | None) -> float | None:
    found = None if text is None else _PERCENT.fullmatch(text.removesuffix("%"))
    return None if found is None or float(found[0]) > 100 else float(found[0]) / 100


def _deletion_cost(text: str | None) -> int:
    found = None if text is None else _INTEGER.fullmatch(text)
    return 0 if found is None else max(-_MAX_DELETION_COST, min(_MAX_DELETION_COST, int(found[0])))


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
        """Return the facts of the owners of each gang."""
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
