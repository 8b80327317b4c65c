"""Proof that a gang fits once some pods are evicted: the planner plans it on the snapshot without them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from immutables import Map

from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_state import NodeState, state_of
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.explain.what_if_changes import after_evictions
from scheduler_core.planner.packing.gang_planner import GangPlanner
from scheduler_core.planner.packing.model import GangPlan, NodeView
from scheduler_core.planner.packing.plan import plan_gang
from scheduler_core.planner.preemption.model import PreemptionTask, VictimPod

_STEPS = 2_000  # of one plan: a search makes many plans


class FitProof:
    """Plans a gang on some nodes of the cluster without some of their pods. For one thread."""

    def __init__(self, task: PreemptionTask) -> None:
        self.plans = 0
        self._task = task
        self._options = task.options._replace(steps=_STEPS, out_of_time=task.is_out_of_time)
        self._planner = GangPlanner()
        self._changed: dict[tuple[str, frozenset[str]], tuple[NodeRecord, NodeState]] = {}

    @property
    def is_over(self) -> bool:
        """Return True if no more plans may be made."""
        return self.plans >= self._task.max_plans or self._task.is_out_of_time()

    def plan_on(self, nodes: Iterable[str], evicted: Collection[VictimPod]) -> GangPlan | None:
        """Return the places of the gang on these nodes without the pods; None: it does not fit, or no plan is left."""
        if self.is_over:
            return None
        self.plans += 1
        found = self._planner.plan_gang(
            self._task.gang.ready, self._view_of(nodes, evicted), self._options, diagnose=False
        )
        return found if isinstance(found, GangPlan) else None

    def confirm(self, nodes: Iterable[str], evicted: Collection[VictimPod]) -> GangPlan | None:
        """Return the places by a plan that uses nothing of earlier plans; the limits do not apply."""
        self.plans += 1
        found = plan_gang(
            self._task.gang.ready, self._view_of(nodes, evicted), self._task.options._replace(steps=_STEPS)
        )
        return found if isinstance(found, GangPlan) else None

    def _view_of(self, nodes: Iterable[str], evicted: Collection[VictimPod]) -> NodeView:
        """Return a view of these nodes, and of the nodes of placed members, without the pods."""
        view = self._task.view
        names = {*nodes, *(seat.node for seat in self._options.placed if seat.node is not None)}
        records = {name: view.table.records[name] for name in names if name in view.table.records}
        states = {name: view.table.states[name] for name in records}
        rules = {name: view.rules[name] for name in records if name in view.rules}
        table = self._without(ClusterSnapshot(0, Map(records), Map(states)), evicted)
        return view._replace(table=table, rules=rules, changes=None)

    def _without(self, table: ClusterSnapshot, evicted: Iterable[VictimPod]) -> ClusterSnapshot:
        """Return the snapshot as it is when the kubelets have released the devices of these and of ending pods."""
        uids: dict[str, set[str]] = {}
        for pod in (*evicted, *self._task.ending):
            if pod.node in table.records:
                uids.setdefault(pod.node, set()).add(pod.uid)
        records, states = {}, {}
        for name, gone in uids.items():
            records[name], states[name] = self._node_without(name, frozenset(gone))
        return ClusterSnapshot(table.generation + 1, table.records.update(records), table.states.update(states))

    def _node_without(self, name: str, gone: frozenset[str]) -> tuple[NodeRecord, NodeState]:
        found = self._changed.get((name, gone))
        if found is None:
            record = self._task.view.table.records[name]
            # A place that is reserved on the node stays: only what runs there is evicted.
            ended = [each for each in record.pods if each.uid in gone and each.uid not in record.reserved]
            changed = after_evictions(record, ended)
            found = self._changed[name, gone] = changed, state_of(changed, self._task.now, self._task.policy)
        return found
