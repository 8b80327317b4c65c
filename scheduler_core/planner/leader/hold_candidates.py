"""Chooses nodes of a capacity hold: nodes that will be free soonest, and on which the gang will fit. Pure.

GPUs that become free on held nodes are kept from other gangs, so the gang starts when the pods that run there now have
ended. Only deadlines and deletions say when a pod ends. Of nodes without known ends, those with fewer GPUs in use are
preferred. Nodes with pods that did not end when they should have come last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.planner.gang.disruption import Disruptions
from scheduler_core.planner.gang.pod_deadlines import PodDeadlines

Fits = Callable[[Sequence[str]], Collection[str] | None]


class PodEnds(NamedTuple):
    """When pods end, as far as a hold relies on it."""

    deadlines: PodDeadlines
    disruptions: Disruptions
    until: float = inf  # seconds since 1970: pods with later ends are like pods without known ends
    late: Container[str] = frozenset[str]()  # UIDs of pods that did not end when they should have

    def end_of(self, pod: Occupant) -> float | None:
        """Return when a pod has ended, its grace period included; None: unknown."""
        state, deadline = self.disruptions.pod(pod.uid), self.deadlines.deadline_of(pod)
        if state is not None and state.gone_by is not None:  # a kubelet applies no deadline to a pod that terminates
            return state.gone_by
        return deadline if deadline is None or state is None else deadline + state.grace_s


class NodeDeadline(NamedTuple):
    """A node, and when the pods that hold GPUs on it will have ended."""

    node: str
    at: float | None  # seconds since 1970, the last end; -inf: no such pod; None: unknown
    gpus: int  # held by these pods
    is_far: bool = False  # this is too late to prefer the node
    is_late: bool = False  # one of these pods should have ended

    @property
    def order(self) -> tuple[bool, bool, float, int, float, str]:
        """Sort key: nodes that will be free soonest come first."""
        at = inf if self.at is None else self.at
        is_unknown = self.at is None or self.is_far
        return self.is_late, is_unknown, 0.0 if is_unknown else at, self.gpus, at, self.node


class HoldCandidate(NamedTuple):
    """Nodes to hold."""

    nodes: tuple[str, ...]
    estimate: float | None  # when they will be free; None: unknown; -inf: they are free


def node_deadlines(pods: Mapping[str, Iterable[Occupant]], ends: PodEnds) -> tuple[NodeDeadline, ...]:
    """Return, for each node, when its pods that hold GPUs will have ended. ``pods``: by node."""
    return tuple(_node_deadline(node, there, ends) for node, there in pods.items())


def _node_deadline(node: str, pods: Iterable[Occupant], ends: PodEnds) -> NodeDeadline:
    last: float | None = -inf
    gpus, is_late = 0, False
    for pod in pods:
        at = ends.end_of(pod)
        last = None if at is None or last is None else max(last, at)
        gpus += pod.profile.devices
        is_late = is_late or pod.uid in ends.late
    return NodeDeadline(node, last, gpus, last is not None and last > ends.until, is_late)


def find_hold_nodes(
    candidates: Sequence[NodeDeadline],
    fits: Fits,
    least: int = 1,
    tries: int = 200,
    first: Container[str] = (),
) -> HoldCandidate | None:
    """Return the nodes, free soonest together, on which a gang fits when their present pods have ended.

    ``fits`` returns the nodes that the gang would use, or None where it does not fit. A gang that fits on some nodes
    must also fit on more nodes. ``fits`` is called with few nodes first, because its cost may grow with their number,
    and at most ``tries`` times to drop spare nodes. ``least``: the gang never fits on fewer nodes. ``first``: nodes
    that are preferred to all others. Returns None where the gang fits on no nodes, whatever pods end.
    """
    sorted_ = sorted(candidates, key=lambda each: (each.node not in first, each.order))
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
    """Return the nodes used of the shortest prefix that fits, found by doubling and then bisecting its length."""
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
    """Return the nodes without the spare nodes: drop whole ranges where possible, latest free nodes first."""
    kept = list(names)
    ranges = [kept]
    while ranges and tries > 0 and len(kept) > least:
        spare = ranges.pop()
        without = [name for name in kept if name not in set(spare)]
        tries -= 1
        if without and fits(without) is not None:
            kept = without
        elif len(spare) > 1:
            half = len(spare) // 2
            ranges += [spare[:half], spare[half:]]
    return kept
