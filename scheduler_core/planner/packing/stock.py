"""What packing speaks of: classes of nodes, what comes onto one, and how much may be tried. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from scheduler_core.planner.packing.node_fit import Load, NodeFit

_ALWAYS = 16  # of the budget: what one packing may take of it, as a part, so that there is something for all


class PlacementClass(NamedTuple):
    """Nodes that are alike for the gang."""

    node_class: int  # as ``Fitting`` numbers them
    allowed: tuple[bool, ...]  # kinds that kube-scheduler would take there
    used: bool = False  # siblings are there already: one more node costs nothing


class Pick(NamedTuple):
    """What comes onto one node of a class."""

    of: PlacementClass
    load: Load
    points: int


class Packing(NamedTuple):
    """Members and their nodes."""

    picks: tuple[Pick, ...] = ()
    exact: bool = True  # there is none that is better

    @property
    def members(self) -> int:
        """How many have a place."""
        return sum(sum(pick.load) for pick in self.picks)

    @property
    def nodes(self) -> int:
        """How many nodes they need that siblings are not on."""
        return sum(not pick.of.used for pick in self.picks)

    @property
    def rank(self) -> tuple[int, int, int]:
        """What packings compare by; smaller is better."""
        return -self.members, self.nodes, -sum(pick.points for pick in self.picks)


class Budget:
    """How many steps are left, for all that is tried for one gang."""

    def __init__(self, steps: int, out_of_time: Callable[[], bool]) -> None:
        self.taken = 0
        self._steps = steps
        self._out_of_time = out_of_time
        self._late = False

    @property
    def share(self) -> int:
        """What the next packing may take."""
        return max(0, self._steps - self.taken) // _ALWAYS

    @property
    def is_exhausted(self) -> bool:
        """Whether to come to an end. Once it is, it stays."""
        self._late = self._late or self._out_of_time()
        return self._late


ClassCounts = Mapping[PlacementClass, int]  # nodes of each class, in the order that decides between equals


def max_members(each: PlacementClass, fitting: NodeFit) -> list[int]:
    """Members of each kind that a node takes at the very most, where there are no others."""
    return [fitting.max_of_kind(each.node_class, at) if suits else 0 for at, suits in enumerate(each.allowed)]
