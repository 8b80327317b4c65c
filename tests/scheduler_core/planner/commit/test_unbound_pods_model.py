"""The model check with pods that are ungated and never bind, or bind late: their places do not stay reserved.

A tenant's gated pods wait for something that the planner does not know, as a host port, and have a long
``gang-timeout``. No controller owns them, so a rollback deletes nothing. Some get it at any moment, and kube-scheduler
then tries them on the nodes to which they are pinned.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from gputopo.crd.reservations import ReservationState
from gputopo.labels import keys
from scheduler_core.planner.commit.state import CommitTerms
from tests.scheduler_core.planner.commit.apiserver import OWN, Json, pinned
from tests.scheduler_core.planner.commit.commit_model import OFTEN, TERMS, USUAL, Commit, Mutant, picked, weighed

_MAX_TIMEOUT_S = 60.0
_ASKED = "24h"
_BOUNDED = TERMS._replace(max_timeout_s=_MAX_TIMEOUT_S)


class Unbound(Commit):
    """The same cluster, and pods without a controller that kube-scheduler cannot bind for now."""

    mutant = Mutant(_BOUNDED)
    harmless = mutant
    actions = weighed(OFTEN | {"stuck_pods_come": 14, "port_is_freed": 5, "stuck_pod_goes": 2})

    def __init__(self) -> None:
        super().__init__()
        self.bare: dict[str, str | None] = {}  # UIDs of these pods, with their gangs
        self.stuck: set[str] = set()  # UIDs of pods without their port

    def stuck_pods_come(self, side: int, pick: int) -> None:
        """Create a single pod, or a gang of two: one or both of them without its port."""
        self.bare = {uid: gang for uid, gang in self.bare.items() if uid in self.server.pods}
        if len(self.bare) >= 4:
            return
        gang = f"bare-{self.server.version}" if side else None
        annotations = {keys.POD_GANG_TIMEOUT.key: _ASKED} if gang else {}
        more: Json = {
            "metadata": {"ownerReferences": [], "annotations": annotations},
            "spec": {"schedulingGates": [{"name": keys.GATE}]},
        }
        for number in range(2 if gang else 1):
            uid = self.server.create_pod("pod-0-bare", 1, gang, 2, more)
            self.bare[uid] = gang
            if number == 0 or pick % 2:
                self.stuck.add(uid)

    def port_is_freed(self, _: int, pick: int) -> None:
        if self.stuck:
            self.stuck.discard(picked(sorted(self.stuck), pick))

    def stuck_pod_goes(self, _: int, pick: int) -> None:
        there = sorted(self.stuck & self.server.pods.keys())
        if there:
            self.server.delete_pod(picked(there, pick))

    def _may_try(self, pod: Json, side: int) -> bool:
        """Two schedulers that place ordinary pods on one node do not know of each other's bindings under way.

        That is the same without planners, so a pod of a failed plan is tried only on nodes of its own scheduler.
        """
        uid = pod["metadata"]["uid"]
        if uid not in self.bare:
            return super()._may_try(pod, side)
        is_open = not pod["spec"]["schedulingGates"] and not pod["spec"].get("nodeName")
        is_own = pinned(pod) in OWN[0] or not self._has_failed(uid)
        return side == 0 and is_open and is_own and uid not in self.stuck and uid not in self.schedulers[0].assumed

    def _has_failed(self, uid: str) -> bool:
        plans = [each for each in self.server.reservations.values() if any(seat.uid == uid for seat in each.spec.seats)]
        return all(each.status.state is ReservationState.FAILED for each in plans)

    def teardown(self) -> None:
        """Once its time is over, a pod without a node counts nowhere; and it may still be bound where it fits."""
        super().teardown()
        if self.mutant != self.harmless:
            return
        waiting = {
            uid
            for uid in self.bare.keys() & self.server.pods.keys()
            if uid in self.stuck
            and not self.server.pods[uid]["spec"]["schedulingGates"]
            and not self.server.pods[uid]["spec"].get("nodeName")
        }
        assert not waiting & self._counted(), "a pod that was not bound in time counts"
        self.stuck.clear()
        for _ in range(20):
            self._all_works()
            self.no_node_is_promised_twice()
        left = [uid for uid in waiting & self.server.pods.keys() if self._fits_where_pinned(uid)]
        assert not left, "a pod that got its port late is not bound although it fits"

    def _counted(self) -> set[str]:
        for each in (*self.planners, *self.extenders):
            if each is not None:
                each.tick()
        views = [each.view.cache for each in self.planners if each is not None]
        known = [*views, *(each.cluster_cache for each in self.extenders if each is not None)]
        return {pod.uid for each in known for record in each.snapshot.records.values() for pod in record.pods}

    def _fits_where_pinned(self, uid: str) -> bool:
        pod = self.server.pods[uid]
        extender = self.extenders[0]
        assert extender is not None  # of ``teardown``
        nodes = self.schedulers[0].feasible(pod, frozenset()) if self._may_try(pod, 0) else frozenset()
        return bool(nodes) and bool(extender.filter(pod, nodes))


def test_pods_that_never_bind_give_up_their_places_and_no_gpu_is_assigned_twice() -> None:
    run_state_machine_as_test(Unbound, settings=USUAL)


class Unlimited(Unbound):
    """The same with a planner that takes the time that a pod asks for."""

    mutant = Mutant(CommitTerms(settle_s=TERMS.settle_s, guarded=True, max_timeout_s=float("inf")))
    harmless = mutant


def test_the_model_finds_that_a_long_timeout_keeps_the_places() -> None:
    with pytest.raises(AssertionError, match="was not bound in time"):
        run_state_machine_as_test(Unlimited, settings=settings(USUAL, max_examples=200))
