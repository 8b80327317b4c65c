"""No pod is evicted in vain where the cluster changes at random while pods are evicted for a gang."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from gputopo.crd.reservations import ReservationSpec
from gputopo.labels.keys import POD_PREEMPTIBLE
from scheduler_core.planner.commit.actions import Action, EvictPod
from scheduler_core.planner.leader.writer import WriteOutcome
from tests.scheduler_core.planner.commit.apiserver import ApiServer
from tests.scheduler_core.planner.leader.fake_planner import FakePlanner
from tests.scheduler_core.planner.leader.preemption_cases import RUNNING, annotate, planner, running, urgent

STEPS = 150  # seconds
CHANGES = ("lose a GPU", "delete a member", "end a pod", "forbid", "kill the planner", "refuse evictions")


class ChangingCluster:
    """A full cluster, a gang that preempts, and random changes."""

    def __init__(self, seed: int) -> None:
        self.in_vain: list[str] = []  # pods of units that were begun where the gang could not start
        self._random = Random(seed)
        self._nodes = [f"n{at}" for at in range(self._random.randint(2, 5))]
        self._server = ApiServer(dict.fromkeys(self._nodes, 2))
        self._use_nodes()
        self._size = self._random.randint(1, min(3, len(self._nodes)))
        self._gang = urgent(self._server, size=self._size)
        self._changes = [self._random.choice(CHANGES) for _ in range(self._random.randint(0, 3))]
        self._lost: set[str] = set()  # nodes
        self._refused: set[str] = set()
        self._evicted: set[str] = set()
        self._leader = self._new_leader(1)

    def run(self) -> None:
        """Run to the end."""
        for step in range(STEPS):
            self._leader.now, self._server.now = self._leader.now + 1.0, self._server.now + 1.0
            self._leader.run_once()
            self._leader.term.tick(self._leader.watches)
            if self._changes and self._random.random() < 0.12:
                self._change(self._changes.pop(), step)
                self._leader.apply_events()

    def _use_nodes(self) -> None:
        at = 0
        while at < len(self._nodes):
            if self._random.random() < 0.3 and at + 1 < len(self._nodes):
                elastic = {"metadata": {"annotations": {"gputopo.io/gang-minimum": "1"}}}
                more: dict[str, Any] = {**RUNNING, **(elastic if self._random.random() < 0.4 else {})}
                for node in self._nodes[at : at + 2]:
                    made = {**more, "spec": {"nodeName": node}}
                    uid = self._server.create_pod(f"pair-{at}", 2, f"pair-{at}", 2, made)
                    self._server.pods[uid]["spec"]["schedulingGates"] = []
                at += 2
            else:
                self._server.bind(self._server.create_pod(f"single-{at}", 2, more=RUNNING), self._nodes[at])
                at += 1

    def _new_leader(self, number: int) -> FakePlanner:
        made = planner(self._server, f"planner-{number}")
        made.refuses = self._observe
        return made

    def _observe(self, action: Action) -> WriteOutcome | None:
        """Record an eviction; refuse some."""
        if not isinstance(action, EvictPod):
            return None
        unit, spec = action.eviction.unit, action.reservation.spec
        if self._evicted.isdisjoint(_pods_of(spec, unit)) and not self._can_start(spec):
            self.in_vain.append(unit)
        if action.eviction.uid in self._refused and self._random.random() < 0.8:
            return WriteOutcome.REFUSED
        self._evicted.add(action.eviction.uid)
        return None

    def _can_start(self, spec: ReservationSpec) -> bool:
        """Return False if the gang is not complete, or a node of the hold has lost a GPU."""
        is_complete = all(uid in self._server.pods for uid in self._gang)
        return is_complete and self._lost.isdisjoint(each.node for each in spec.held)

    def _change(self, change: str, step: int) -> None:
        victims = sorted(running(self._server))
        if change == "lose a GPU":
            self._lost.add(node := self._random.choice(self._nodes))
            self._server.change_node(node, 1)
        elif change == "delete a member":
            waiting = [uid for uid in self._gang if uid in self._server.pods]
            if waiting and self._server.pods[waiting[0]]["spec"]["schedulingGates"]:
                self._server.delete_pod(waiting[0])
        elif change == "end a pod" and victims:
            self._server.delete_pod(self._random.choice(victims))
        elif change == "forbid" and victims:
            annotate(self._server, self._random.choice(victims), POD_PREEMPTIBLE.key, "never")
        elif change == "kill the planner":
            now = self._leader.now
            self._leader = self._new_leader(step + 2)
            self._leader.now = now + 16.0
        elif change == "refuse evictions":
            self._refused |= {uid for uid in victims if self._random.random() < 0.5}


def _pods_of(spec: ReservationSpec, unit: str) -> set[str]:
    assert spec.preemption is not None
    return {each.uid for each in spec.preemption.evictions if each.unit == unit}


@pytest.mark.parametrize("seeds", [range(at, at + 40) for at in range(0, 160, 40)], ids=str)
def test_no_unit_is_begun_for_a_gang_that_cannot_start(seeds: range) -> None:
    """Without the proof before each unit, pods are evicted in vain in some of these clusters."""
    found = {}
    for seed in seeds:
        cluster = ChangingCluster(seed)
        cluster.run()
        found[seed] = cluster.in_vain

    assert {seed: units for seed, units in found.items() if units} == {}
