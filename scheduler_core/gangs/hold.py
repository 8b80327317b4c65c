"""Which nodes to hold for a gang that does not fit: those that will be free soonest and on which it will fit. Pure.

What becomes free on held nodes is kept from others, so the gang starts once the pods that are there now have ended.
When that is nobody knows but where deadlines say so; elsewhere, fewer GPUs to wait for are taken to be free sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from scheduler_core.gangs.gang import Declared
from scheduler_core.sightings import Batch, PodSeen

Fits = Callable[[Sequence[str]], bool]


class Ending(NamedTuple):
    """A node, and when the pods that hold GPUs there will have ended."""

    node: str
    at: float | None  # seconds since 1970, the last one's deadline; -inf: none is there; None: nobody can say
    gpus: int  # that they hold

    @property
    def order(self) -> tuple[bool, float, int, str]:
        """Sorts nodes, those that will be free soonest first."""
        return self.at is None, self.at or 0.0, self.gpus, self.node


class Room(NamedTuple):
    """Nodes to hold."""

    nodes: tuple[str, ...]
    estimate: float | None  # when they will be free; None: nobody can say; -inf: they are


class PodEnd(NamedTuple):
    """When a pod that has a node will be ended (activeDeadlineSeconds), in seconds since 1970. Its key is its UID."""

    key: str
    at: float


class Ends:
    """When pods will be ended, by what they and the Jobs that made them say. For one thread."""

    def __init__(self) -> None:
        self._pods: dict[str, float] = {}
        self._makers: dict[type[Any], dict[str, float]] = {}  # by the UID of the Job; kinds that say when they end

    def take(self, batch: Batch[PodEnd]) -> None:
        """Take note of pods' deadlines."""
        _keep(self._pods, batch, {each.key: each.at for each in batch.seen})

    def take_makers(self, batch: Batch[Declared]) -> None:
        """Take note of Jobs' deadlines. ``batch.kind``: one per source; a list of one says nothing of the others."""
        found = {each.key: each.ends for each in batch.seen if each.ends is not None}
        if found or batch.kind in self._makers:
            _keep(self._makers.setdefault(batch.kind, {}), batch, found)

    def of(self, pod: PodSeen) -> float | None:
        """When a pod will have ended at the latest; None: nobody can say."""
        found = (self._pods.get(pod.key), *(each.get(pod.occupant.owner or "") for each in self._makers.values()))
        return min((at for at in found if at is not None), default=None)


def _keep(known: dict[str, float], batch: Batch[PodEnd] | Batch[Declared], found: Mapping[str, float]) -> None:
    if batch.complete:
        known.clear()
    for key in (*batch.gone, *(each.key for each in batch.seen)):
        known.pop(key, None)
    known.update(found)


def endings(nodes: Iterable[str], pods: Iterable[PodSeen], ends: Ends) -> tuple[Ending, ...]:
    """Of each of those nodes, when what holds GPUs there will have ended."""
    found = {name: Ending(name, -inf, 0) for name in nodes}
    for pod in pods:
        before = found.get(pod.node or "")
        if before is not None:
            at = ends.of(pod)
            last = None if at is None or before.at is None else max(before.at, at)
            found[before.node] = Ending(before.node, last, before.gpus + pod.occupant.profile.devices)
    return tuple(found.values())


def room(of: Sequence[Ending], fits: Fits, tries: int = 200) -> Room | None:
    """The nodes that are free soonest, together, on which a gang fits once their present pods have ended.

    ``fits`` is asked at most about ``tries`` times, of nodes soonest first; what fits must fit with more nodes too.
    Where the tries end early, more is held than is needed. None: it does not fit, whoever ends.
    """
    sorted_ = sorted(of, key=lambda each: each.order)
    names = [each.node for each in sorted_]
    if not fits(names):
        return None
    low, high = 1, len(names)  # the shortest beginning that fits is between the two
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(names[:middle]) else (middle + 1, high)
    kept = set(_needed(names[:high], fits, tries - len(names).bit_length() - 1))
    chosen = [each for each in sorted_ if each.node in kept]
    known = [each.at for each in chosen if each.at is not None]
    return Room(tuple(each.node for each in chosen), max(known, default=None) if len(known) == len(chosen) else None)


def _needed(names: list[str], fits: Fits, tries: int) -> list[str]:
    """Without the nodes that can be spared: whole stretches at a time, those that are free last first."""
    kept = list(names)
    stretches = [kept]
    while stretches and tries > 0:
        stretch = stretches.pop()
        without = [name for name in kept if name not in set(stretch)]
        tries -= 1
        if without and fits(without):
            kept = without
        elif len(stretch) > 1:
            half = len(stretch) // 2
            stretches += [stretch[:half], stretch[half:]]
    return kept
