"""Searches of pods to evict, fed with hostile objects of one tenant, and what follows for the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any

import msgspec

from agent.allocation.kubelet_config import KubeletConfig
from agent.allocation.node_resource_topology import NodeResourceTopology, topology_manager_settings
from gputopo.crd.reservations import PlannedEviction
from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.objects import ListMetadata, ListPage
from gputopo.kube.rbac import DISRUPTION_BUDGETS, PODS, Resource
from gputopo.process.decoding import decode
from scheduler_core.planner.commit.actions import CheckBudgets
from scheduler_core.planner.commit.budgets import DisruptionBudget
from scheduler_core.planner.commit.state import CommitTerms
from scheduler_core.planner.leader.budget_reads import LabelledPod, check_budgets
from scheduler_core.planner.leader.context import PlannerConfig, TermClock
from scheduler_core.planner.leader.hold_search import HoldResult, HoldTask
from scheduler_core.planner.leader.plan_task import PlanTask, run_plan
from scheduler_core.planner.leader.preemption_search import (
    PreemptionSearch,
    PreemptionSearchResult,
    run_preemption_search,
)
from scheduler_core.planner.leader.queue import QueueTiming
from scheduler_core.planner.leader.term import LeaderTerm
from scheduler_core.planner.packing.model import LEVELS
from scheduler_core.planner.preemption.model import PreemptionPlan
from scheduler_core.policy.preemption import DEFAULT_RULES, PreemptionMode, PreemptionPolicy
from scheduler_core.policy.profiles import BUILT_IN
from tests.campaign.programs import PLANNER, Json, hostile_batches, node, node_gpus, pod
from tests.scheduler_core.builders import NOW
from tests.scheduler_core.planner.leader.idle_executor import IdleExecutor
from tests.scheduler_core.planner.packing.plans import ledger

_POLICY = BUILT_IN._replace(
    preemption=PreemptionPolicy(PreemptionMode.EVICT, DEFAULT_RULES, wait_s=0.0, min_runtime_s=0.0)
)
_ROUNDS = 12
_STARTED = {"status": {"phase": "Running", "startTime": "2026-11-18T11:00:00Z"}}
_NODES = [node(name, {"pool": "shared"}) for name in ("a", "foe-0")]


def running_pod(namespace: str, where: str) -> Json:
    """A running pod with all GPUs of a node, of a Job."""
    made = pod("h", namespace, 8, nodeName=where) | _STARTED
    made["spec"]["schedulingGates"] = []
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "h", "uid": f"{namespace}-job", "controller": True}
    made["metadata"]["ownerReferences"] = [owner]
    made["metadata"]["annotations"] = {"gputopo.io/workload": "batch"}
    return made


class _SearchingExecutor(IdleExecutor):
    """Computes plans and searches, and writes nothing."""

    def __init__(self) -> None:
        self.pending: list[Callable[[LeaderTerm], None]] = []
        self.found: PreemptionSearchResult | None = None
        self.has_places = False

    def start_plan(self, task: PlanTask) -> None:
        result = run_plan(task)
        self.has_places |= bool(result.created)
        self.pending.append(lambda term: term.apply_plan(result))

    def start_hold_search(self, task: HoldTask) -> None:
        self.pending.append(lambda term: term.apply_hold_result(HoldResult(task.gang)))

    def start_preemption_search(self, search: PreemptionSearch) -> None:
        self.found = run_preemption_search(search)


def search_answer(hostile: Mapping[type[Any], list[bytes]]) -> object:
    """Return whether a critical gang finds places, or pods to evict, beside running pods of two tenants.

    The victim may be either of them, because a tenant may tell that an eviction of its own pod costs more.
    """
    executor, now = _SearchingExecutor(), [0.0]
    config = PlannerConfig("gpus", "gputopo", CommitTerms(gated=True), QueueTiming(patience_s=0.0), LEVELS)
    own = ledger()
    clock = TermClock(lambda: now[0], lambda: NOW + now[0])
    term = LeaderTerm(config, lambda: _POLICY, own.spec.planner, executor, clock)
    term.apply_ledger(own)
    pods = [running_pod("calm", "a"), running_pod("foe", "foe-0"), *_urgent()]
    healthy = {"nodes": _NODES, "nodegpus": [node_gpus(each["metadata"]["name"]) for each in _NODES], "pods": pods}
    for batch in hostile_batches(PLANNER, healthy, hostile, own):
        term.apply_batch(batch)
    for _ in range(_ROUNDS):
        now[0] += 5.0
        term.tick()
        term.run_round()
        todo, executor.pending = executor.pending, []
        for each in todo:
            each(term)
        if executor.has_places:  # without an eviction: the hostile object says that its pod is elsewhere
            return True
        if executor.found is not None:
            return _is_sound(executor.found)
    return "no search"


def _urgent() -> Iterator[Json]:
    made = pod("urgent", "team", 8, "urgent", priority=100_000)
    made["metadata"]["annotations"]["gputopo.io/gang-size"] = "1"
    yield made


def _is_sound(result: PreemptionSearchResult) -> object:
    found = result.found
    if not isinstance(found, PreemptionPlan) or result.create is None:
        return found.reason
    lost = found.gpu_hours
    ours = {each.namespace for each in found.pods} <= {"calm", "foe"}
    return ours and isfinite(lost) and len(msgspec.json.encode(result.create.spec)) < 20_000


class _ListedBudgets(Kube):
    """Lists budgets from their JSON, and pods without labels."""

    def __init__(self, texts: list[bytes]) -> None:
        self._texts = texts

    def list_readable(self, resource: Resource, kind: type[Any], query: ListOptions = ListOptions()) -> Iterator[Any]:  # noqa: B008
        if resource is PODS:
            yield ListPage(ListMetadata(), (msgspec.Raw(msgspec.json.encode(self.get(PODS, "h", LabelledPod, query))),))
            return
        assert resource is DISRUPTION_BUDGETS
        assert kind is DisruptionBudget
        found = self._texts if query.namespace == "foe" else []
        yield ListPage(ListMetadata(), tuple(msgspec.Raw(each) for each in found))

    def get(self, resource: Resource, name: str, kind: type[Any], query: ListOptions = ListOptions()) -> Any:  # noqa: ARG002, B008
        text = b'{"metadata":{"name":"%s","uid":"%s-%s","labels":{"app":"x"}}}'
        namespace = str(query.namespace).encode()
        return decode(text % (name.encode(), namespace, name.encode()), LabelledPod)


def budget_answer(hostile: Mapping[type[Any], list[bytes]]) -> object:
    """Return the units of the other tenant that budgets of one tenant forbid."""
    victims = tuple(PlannedEviction(f"{each}-h", each, "h", "n", f"{each}/h", 8) for each in ("foe", "calm"))
    action = CheckBudgets("hold", victims, finds_forbidden=True)
    found = check_budgets(_ListedBudgets(hostile[DisruptionBudget]), action)
    return found.blocked.keys() - {"foe/h"} | found.forbidden - {"foe-h"}


def agent_answer(hostile: Mapping[type[Any], list[bytes]]) -> object:
    """Return whether the agent reads settings of the Topology Manager, or none."""
    for text in hostile[NodeResourceTopology]:
        try:
            found = topology_manager_settings(decode(text, NodeResourceTopology))
        except msgspec.DecodeError:
            continue
        if found is not None and not isinstance(found, KubeletConfig):
            return found
    return True
