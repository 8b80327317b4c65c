"""Values of packing: classes of nodes, picks, packings and the step budget. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from scheduler_core.planner.packing.node_fit import FitClass, Load, NodeFit

_MIN_SHARES = 16  # one packing may use at most this part of the budget: some is left for the others


class PlacementClass(NamedTuple):
    """Nodes that are equal for the gang."""

    node_class: FitClass
    allowed: tuple[bool, ...]  # by kind: whether kube-scheduler would take the node
    has_siblings: bool = False  # a placed sibling is there: the node does not count as one more


class Pick(NamedTuple):
    """The members that one node of a class takes."""

    of: PlacementClass
    load: Load
    points: int


class Packing(NamedTuple):
    """Members on nodes of classes."""

    picks: tuple[Pick, ...] = ()
    exact: bool = True  # no better packing exists

    @property
    def members(self) -> int:
        """Number of placed members."""
        return sum(sum(pick.load) for pick in self.picks)

    @property
    def nodes(self) -> int:
        """Number of nodes without placed siblings."""
        return sum(not pick.of.has_siblings for pick in self.picks)

    @property
    def rank(self) -> tuple[int, int, int]:
        """Sort key of packings; smaller is better."""
        return -self.members, self.nodes, -sum(pick.points for pick in self.picks)


class Budget:
    """Step budget of the search for one gang."""

    def __init__(self, steps: int, out_of_time: Callable[[], bool]) -> None:
        self.taken = 0
        self._steps = steps
        self._out_of_time = out_of_time
        self._exhausted = False

    @property
    def share(self) -> int:
        """Steps that the next packing may take."""
        return self.share_after(0)

    def share_after(self, steps: int) -> int:
        """Return the steps that the next packing may take after so many more steps."""
        return max(0, self._steps - self.taken - steps) // _MIN_SHARES

    @property
    def is_exhausted(self) -> bool:
        """True if the time is over; once true, it stays true."""
        self._exhausted = self._exhausted or self._out_of_time()
        return self._exhausted


CountsKey = frozenset[tuple[PlacementClass, int]]  # number of nodes by class, in no order
OrderedCounts = tuple[tuple[PlacementClass, int], ...]  # the same in the order that decides between equals
ClassCounts = Mapping[PlacementClass, int]  # number of nodes by class, in the order that decides between equals


def max_members(each: PlacementClass, node_fit: NodeFit) -> list[int]:
    """Return an upper bound of members of each kind on a node without other kinds."""
    return [node_fit.max_of_kind(each.node_class, at) if suits else 0 for at, suits in enumerate(each.allowed)]
