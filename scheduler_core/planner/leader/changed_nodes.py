"""Which gangs that did not fit may fit since then, by the free GPUs of the nodes that changed. Pure.

A node can take a member only if it has as many free GPUs as the member requests. So a gang is not tried again while all
nodes that changed have fewer than its smallest member requests. This costs less than to try it.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from scheduler_core.cache.node_record import is_hold
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.leader.queue import QueuedGang
from scheduler_core.planner.packing.model import NodeView
from scheduler_core.request.device_request import WHOLE

_MAX_KEPT = 1 << 13  # gangs


class PlanState(NamedTuple):
    """The state that a plan depends on."""

    generation: int  # of the snapshot of the nodes
    rules_changed: int  # labels, taints and cordons of nodes, which are not in the snapshot
    times_freed: int  # CPU, memory or pod slots, by pods without GPUs
    period: int  # of time: not all that a plan depends on is visible


class ChangedNodes:
    """When nodes changed last, by their number of free GPUs. For one thread."""

    def __init__(self) -> None:
        self._generations: dict[int, int] = {}  # by number of free GPUs
        self._gpus: list[int] = []  # the keys, ascending
        self._latest: list[int] = []  # of each key and all greater ones
        self._unknown = 0  # until this generation any node may have changed
        self._least: dict[GangName, tuple[tuple[Member, ...], int]] = {}  # cache of ``_least_gpus``

    def update(self, nodes: NodeView) -> None:
        """Go on to these nodes. ``nodes.changes``: since the last call."""
        table, changes = nodes.table, nodes.changes
        # Rules also change within a generation: these changes count for gangs that were tried in it, too.
        generation = table.generation + 1
        if changes is None or changes.before is None:
            self._unknown = generation
            return
        if not changes.since:
            return
        for name in changes.since:
            self._generations[_free_gpus(table, name)] = generation
        self._gpus = sorted(self._generations)
        self._latest = [0] * len(self._gpus)
        latest = 0
        for at in reversed(range(len(self._gpus))):
            latest = self._latest[at] = max(latest, self._generations[self._gpus[at]])

    def may_fit(self, waiting: QueuedGang, state: PlanState) -> bool:
        """Return whether a gang that did not fit may fit now. ``state``: the present one."""
        unfit = waiting.unfit_state
        if unfit is None or not isinstance(unfit.state, PlanState) or unfit.state[2:] != state[2:]:
            return True
        tried = unfit.state.generation
        at = bisect_left(self._gpus, self._least_gpus(waiting.gang))
        return self._unknown > tried or (at < len(self._latest) and self._latest[at] > tried)

    def _least_gpus(self, gang: Gang) -> int:
        """Return the GPUs of the smallest member; 0 if a member requests other devices, or none."""
        known = self._least.get(gang.name)
        if known is None or known[0] is not gang.ready:
            if len(self._least) >= _MAX_KEPT:
                self._least.clear()
            known = gang.ready, min((dict(each.devices).get(WHOLE, 0) for each in gang.ready), default=0)
            self._least[gang.name] = known
        return known[1]


def _free_gpus(table: ClusterSnapshot, name: str) -> int:
    """Return the most GPUs that may be free on a node for a gang that ignores all its holds."""
    state = table.states.get(name)
    if state is None:
        return 0
    if state.unreserved is not None and any(map(is_hold, table.records[name].reserved)):
        state = state.unreserved
    return state.free_devices(WHOLE)
