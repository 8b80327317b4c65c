"""What the planner of one gang is asked, and what it answers. Values only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gputopo.crd.reservations import Seat
from gputopo.labels import domains
from gputopo.labels.reasons import Reason
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.cache.node_table import Snapshot
from scheduler_core.planner.packing.anti_affinity import PlacedMember
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodRequest

Levels = Mapping[str, tuple[str, ...]]

# Narrowest first; of each level the first label that a node has counts.
LEVELS: Levels = {"clique": domains.CLIQUE, "rack": domains.RACK, "block": domains.BLOCK, "zone": domains.ZONE}
STEPS = 200_000  # of a search: a step is a look at one node, or at one class of nodes that are alike


def _never() -> bool:
    return False


class NodeView(NamedTuple):
    """The cluster at one moment, as the planner sees it: what is reserved for others counts as taken."""

    table: Snapshot
    rules: Mapping[str, FullNode]  # by node: labels, taints, cordons; a node that is missing here is not used
    policy_of: Callable[[PodRequest], Policy]


class PlanOptions(NamedTuple):
    """How to plan. All that varies from call to call."""

    placed: tuple[Seat, ...] = ()  # of siblings that have their nodes already
    avoid: frozenset[str] = frozenset()  # nodes that are not to be used now
    minimum: int | None = None  # members that it can start with, those placed among them; None: as the members say
    levels: Levels = LEVELS
    steps: int = STEPS  # the most that a search may take
    out_of_time: Callable[[], bool] = _never  # asked every few steps; what was found until then is the answer
    placed_members: tuple[PlacedMember, ...] = ()  # pods of any gang; those that are planned now may be among them


DEFAULT_OPTIONS = PlanOptions()


class GangPlan(NamedTuple):
    """A place for every member, or for as many as can start if at least the minimum can."""

    seats: tuple[Seat, ...]  # by rank
    domain: str | None = None  # the narrowest that all are in: "clique=7b96.1"; None: they are in none together
    gbps: float | None = None  # bottleneck of the rings inside the nodes, GB/s, both ways; None: unknown, or no ring
    tried: int = 0  # steps
    exact: bool = False  # nothing better exists: the search looked at all that there is


class Unplaced(NamedTuple):
    """There is no place for all."""

    reason: str  # for people; the same as long as the cause is
    missing: tuple[tuple[str, Reason | str], ...] = ()  # name of a member that has no place, and why
    best: int = 0  # members that would fit at once
    tried: int = 0  # steps


class SinglePodPlan(NamedTuple):
    """Places for pods that are on their own."""

    seats: tuple[Seat, ...]  # in the order in which they were asked for
    missing: tuple[tuple[str, Reason | str], ...] = ()  # UID of a pod that fits nowhere, and why
