"""Which nodes to hold for a gang that does not fit: those that will be free soonest and on which it will fit. Pure.

What becomes free on held nodes is kept from others, so the gang starts once the pods that are there now have ended.
When that is nobody knows but where deadlines say so; elsewhere, fewer GPUs to wait for are taken to be free sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.planner.gang.pod_deadlines import PodDeadlines

Fits = Callable[[Sequence[str]], Collection[str] | None]


class NodeDeadline(NamedTuple):
    """A node, and when the pods that hold GPUs there will have ended."""

    node: str
    at: float | None  # seconds since 1970, the last one's deadline; -inf: none is there; None: nobody can say
    gpus: int  # that they hold

    @property
    def order(self) -> tuple[bool, float, int, str]:
        """Sorts nodes, those that will be free soonest first."""
        return self.at is None, self.at or 0.0, self.gpus, self.node


class HoldCandidate(NamedTuple):
    """Nodes to hold."""

    nodes: tuple[str, ...]
    estimate: float | None  # when they will be free; None: nobody can say; -inf: they are


def node_deadlines(there: Mapping[str, Iterable[Occupant]], ends: PodDeadlines) -> tuple[NodeDeadline, ...]:
    """Of each of those nodes, when the pods there that hold GPUs will have ended."""
    return tuple(_ending(node, pods, ends) for node, pods in there.items())


def _ending(node: str, pods: Iterable[Occupant], ends: PodDeadlines) -> NodeDeadline:
    last: float | None = -inf
    gpus = 0
    for pod in pods:
        at = ends.deadline_of(pod)
        last = None if at is None or last is None else max(last, at)
        gpus += pod.profile.devices
    return NodeDeadline(node, last, gpus)


def find_hold_nodes(of: Sequence[NodeDeadline], fits: Fits, least: int = 1, tries: int = 200) -> HoldCandidate | None:
    """The nodes that are free soonest, together, on which a gang fits once their present pods have ended.

    ``fits``: those of some nodes that it would take; None: it does not fit there. What fits must fit with more nodes
    too. It is asked of few nodes first, for it may cost what they are many; to spare nodes, at most ``tries`` times.
    ``least``: it fits on fewer nodes never. None: it does not fit, whoever ends.
    """
    sorted_ = sorted(of, key=lambda each: each.order)
    enough = _shortest_prefix([each.node for each in sorted_], fits, least)
    if enough is None:
        return None
    kept = set(_without_spare_nodes([each.node for each in sorted_ if each.node in enough], fits, least, tries))
    chosen = [each for each in sorted_ if each.node in kept]
    known = [each.at for each in chosen if each.at is not None]
    return HoldCandidate(
        tuple(each.node for each in chosen), max(known, default=None) if len(known) == len(chosen) else None
    )


def _shortest_prefix(names: list[str], fits: Fits, least: int) -> set[str] | None:
    """What it takes of the shortest beginning that fits: first that is found between two powers of two."""
    low, high = least, min(least, len(names))
    while (enough := fits(names[:high])) is None:
        if high == len(names):
            return None
        low, high = high + 1, min(2 * high, len(names))
    while low < high:
        middle = (low + high) // 2
        found = fits(names[:middle])
        enough = enough if found is None else found
        low, high = (middle + 1, high) if found is None else (low, middle)
    return set(enough)


def _without_spare_nodes(names: list[str], fits: Fits, least: int, tries: int) -> list[str]:
    """Without the nodes that can be spared: whole stretches at a time, those that are free last first."""
    kept = list(names)
    stretches = [kept]
    while stretches and tries > 0 and len(kept) > least:
        stretch = stretches.pop()
        without = [name for name in kept if name not in set(stretch)]
        tries -= 1
        if without and fits(without) is not None:
            kept = without
        elif len(stretch) > 1:
            half = len(stretch) // 2
            stretches += [stretch[:half], stretch[half:]]
    return kept
