"""Pods without GPUs come and go: a round of the planner only where a gang that waits may fit now."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_core.cache.events import Batch, NodeUpdate
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.cache.pod_loads import PodLoad
from scheduler_core.planner.commit.state import CommitTerms
from scheduler_core.planner.gang.pod_source import PlannerPod
from scheduler_core.planner.leader.context import PlannerConfig, TermClock
from scheduler_core.planner.leader.queue import QueueTiming
from scheduler_core.planner.leader.term import LeaderTerm
from scheduler_core.planner.packing.model import Unplaced
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.request.node_load import NodeLoad
from scheduler_core.request.pod import Metadata
from tests.machines import MACHINES
from tests.scheduler_core.builders import record
from tests.scheduler_core.planner.gang.gang_pods import member
from tests.scheduler_core.planner.leader.idle_executor import IdleExecutor


class Rounds(IdleExecutor):
    """Notes the rounds that are scheduled."""

    def __init__(self) -> None:
        self.scheduled: list[float] = []

    def schedule_round(self, seconds: float) -> None:
        """Note the delay."""
        self.scheduled.append(seconds)


def loads(*updates: PodLoad, removed: tuple[str, ...] = ()) -> Batch[Any]:
    return Batch(PlannerPod, updates, removed)


@pytest.mark.parametrize(
    ("node", "waits", "rounds"),
    [
        pytest.param("gpu", True, 1, id="a gang waits"),
        pytest.param("gpu", False, 0, id="no gang waits"),
        pytest.param("cpu", True, 0, id="on a node without GPUs"),
    ],
)
def test_only_pods_that_end_wake_a_waiting_gang(node: str, waits: bool, rounds: int) -> None:
    executor = Rounds()
    config = PlannerConfig("gpus", "gputopo", CommitTerms(), QueueTiming(), {})
    term = LeaderTerm(config, lambda: BUILT_IN, "me", executor, TermClock())
    machines = {"gpu": record("gpu", MACHINES["hgx_h100"]()).machine, "cpu": record("cpu", None).machine}
    nodes = tuple(NodeUpdate(name, each, FullNode(Metadata(name))) for name, each in machines.items())
    term.apply_batch(Batch(NodeUpdate, nodes, is_full_list=True))
    alone = member("w", size=1)
    gang = alone.gang_request.gang
    term.apply_batch(Batch(PlannerPod, (PlannerPod(alone.uid, None, alone),), is_full_list=True))
    term.backlog.update_gang(gang, term.view.gang_members.get_gang(gang))
    if waits:
        term.backlog.mark_unplaced(gang, Unplaced("no member fits at once"), "state")
    executor.scheduled.clear()

    term.apply_batch(loads(*(PodLoad(f"u{at}", node, NodeLoad(100, pods=1)) for at in range(9))))
    assert executor.scheduled == []
    term.apply_batch(loads(PodLoad("u0", node, NodeLoad(200, pods=1))))
    assert executor.scheduled == []

    term.apply_batch(loads(removed=("u1", "u2")))

    assert len(executor.scheduled) == rounds
