"""Tasks of preemption searches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.packing.model import PlanOptions
from scheduler_core.planner.preemption.model import EvictionUnit, PreemptionTask, VictimPod
from scheduler_core.policy.policy import Policy
from tests.scheduler_core.builders import NOW
from tests.scheduler_core.planner.packing.member_groups import GANG, view


def victim(name: str, node: str, gpus: int = 8, hours: float = 1.0) -> VictimPod:
    """A running pod that holds GPUs of the node."""
    return VictimPod(f"uid-{name}", "team", name, node, (("nvidia.com/gpu", gpus),), hours)


def unit(*pods: VictimPod, name: str = "", **more: Any) -> EvictionUnit:
    """Pods that are evicted together."""
    return EvictionUnit(f"team/{name or pods[0].name}", pods, **more)


def task(members: list[Member], units: Iterable[EvictionUnit], *records: NodeRecord, **changed: Any) -> PreemptionTask:
    """Return a task on these nodes."""
    gang = Gang(GANG, GangPhase.QUEUED, "", ready=tuple(members), size=len(members), priority=100_000)
    plain = PreemptionTask(gang, view(*records), tuple(units), PlanOptions(), Policy(), NOW)
    return plain._replace(**changed)
