"""Input and result of planning one gang. Values only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gputopo.crd.reservations import PlannedMember
from gputopo.labels import domains
from gputopo.labels.reasons import Reason
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.planner.packing.placed_pods import PlacedMember
from scheduler_core.policy.policy import Policy
from scheduler_core.request.node_load import NodeLoad
from scheduler_core.request.pod_request import PodRequest

Levels = Mapping[str, tuple[str, ...]]

# Narrowest first; for each level the first label that a node has counts.
LEVELS: Levels = {
    "clique": domains.CLIQUE_LABELS,
    "rack": domains.RACK_LABELS,
    "block": domains.BLOCK_LABELS,
    "zone": domains.ZONE_LABELS,
}
STEPS = 200_000  # of a search; one step evaluates a node, or a class of equal nodes


def _never() -> bool:
    return False


class ViewChanges(NamedTuple):
    """The nodes that may differ between views: all others have the same record, state and rules in each of them."""

    main: ClusterSnapshot  # the snapshot of the cache
    before: ClusterSnapshot | None  # an earlier snapshot of the cache; None: there is none
    since: frozenset[str] = frozenset()  # nodes that may differ between ``before`` and ``main``
    view_only: frozenset[str] = frozenset()  # nodes that may differ between ``main`` and the table of the view


NO_HOLDS: frozenset[str] = frozenset()


class NodeView(NamedTuple):
    """The cluster at one moment: capacity that is reserved for others counts as used."""

    table: ClusterSnapshot
    rules: Mapping[str, FullNode]  # labels, taints, cordon by node; a node without an entry is not used
    policy_of: Callable[[PodRequest], Policy]
    changes: ViewChanges | None = None  # None: any node may differ from other views
    others: Mapping[str, NodeLoad] = {}  # by node: of its pods without GPUs, which ``table`` does not have; read only
    ignored_holds: frozenset[str] = NO_HOLDS  # UIDs of the holds that ``table`` leaves out

    def with_table(self, variant: TableVariant | None) -> NodeView:
        """Return the view with another snapshot; None: the view itself."""
        if variant is None:
            return self
        changes = self.changes and self.changes._replace(view_only=variant.nodes)
        return self._replace(table=variant.table, changes=changes, ignored_holds=variant.ignored_holds)


class TableVariant(NamedTuple):
    """A snapshot without some of the reservations."""

    table: ClusterSnapshot
    nodes: frozenset[str]  # that may differ from the snapshot of the cache
    ignored_holds: frozenset[str] = NO_HOLDS  # UIDs of these reservations


class PlanOptions(NamedTuple):
    """Options of one call."""

    placed: tuple[PlannedMember, ...] = ()  # of siblings that are placed already
    avoid: frozenset[str] = frozenset()  # nodes not to use now
    minimum: int | None = None  # that the gang can start with, including ``placed``; None: as members declare
    levels: Levels = LEVELS
    steps: int = STEPS  # limit of a search
    out_of_time: Callable[[], bool] = _never  # asked every few steps; the result is the best found until then
    placed_members: tuple[PlacedMember, ...] = ()  # pods of any gang; may include members that are planned now


DEFAULT_OPTIONS = PlanOptions()


class GangPlan(NamedTuple):
    """A node for every member, or for as many members as fit, at least the minimum."""

    seats: tuple[PlannedMember, ...]  # by rank
    domain: str | None = None  # the narrowest domain of all members: "clique=7b96.1"; None: no common domain
    gbps: float | None = None  # bottleneck of the rings inside the nodes, GB/s, both ways; None: unknown, or no ring
    steps: int = 0  # steps
    exact: bool = False  # no better plan exists: the search was complete


class Unplaced(NamedTuple):
    """The gang does not fit."""

    reason: str  # for people; stable while the cause is the same
    missing: tuple[tuple[str, Reason | str], ...] = ()  # name of a member that does not fit, and the reason
    best: int = 0  # members that would fit at once
    steps: int = 0  # steps


class RequestId:
    """Stands for equal requests of gangs that ignore the same holds. Compared by identity."""

    def __init__(self, ignored_holds: frozenset[str] = NO_HOLDS) -> None:
        """``ignored_holds``: UIDs."""
        self.ignored_holds = ignored_holds


class SinglePodPlan(NamedTuple):
    """Nodes for single pods."""

    seats: tuple[PlannedMember, ...]  # in the order of the request
    missing: tuple[tuple[str, Reason | str], ...] = ()  # UID of a pod that fits no node, and the reason
    # By UID: the same one for all pods in ``missing`` with equal requests. Left out: pods that may fit if the plan is
    # not carried out, and pods for which siblings, anti-affinity or avoided nodes matter.
    request_ids: Mapping[str, RequestId] = {}
