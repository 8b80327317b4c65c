"""The extender and the planner, fed with the JSON of watches, and what they answer for the pods of other tenants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from gputopo.crd.nodegpus import content_hash
from gputopo.kube.projection import Projection
from gputopo.labels import encode_topology, keys
from gputopo.process.decoding import convert
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import Batch, LedgerUpdate
from scheduler_core.cache.watch import HEARTBEAT_SOURCES, RESERVATION_SOURCES, SOURCES, Sources
from scheduler_core.extender.extender import Extender
from scheduler_core.planner.commit.state import CommitTerms
from scheduler_core.planner.gang.pod_source import planner_sources
from scheduler_core.planner.leader.context import PlannerConfig, TermClock
from scheduler_core.planner.leader.plan_task import PlanResult, PlanTask, run_plan
from scheduler_core.planner.leader.queue import QueueTiming
from scheduler_core.planner.leader.term import LeaderTerm
from scheduler_core.planner.packing.model import LEVELS
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.request.pod import Pod
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, OBSERVED
from tests.scheduler_core.planner.leader.idle_executor import IdleExecutor
from tests.scheduler_core.planner.packing.plans import ledger

Json = dict[str, Any]
EXTENDER: Sources = {**SOURCES, **HEARTBEAT_SOURCES, **RESERVATION_SOURCES}
PLANNER: Sources = {**planner_sources(), **RESERVATION_SOURCES}
_TOPOLOGY = encode_topology(MACHINES["hgx_h100"]())
_POOL = {"pool": "shared"}  # nodes that the tenant under attack uses


def node(name: str, labels: Mapping[str, str] = _POOL) -> Json:
    """A Node with eight GPUs, as its agent labels it."""
    return {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **_TOPOLOGY.labels, **labels},
            "annotations": dict(_TOPOLOGY.annotations),
        },
        "status": {"allocatable": {"nvidia.com/gpu": "8", "cpu": "128", "memory": "1Ti", "pods": "110"}},
    }


def node_gpus(name: str) -> Json:
    """The report of that node: no GPU is held."""
    subject = content_hash(_TOPOLOGY.annotations[keys.TOPOLOGY.key])
    return {
        "metadata": {"name": name},
        "observedAt": OBSERVED,
        "contentHash": subject,
        "agentVersion": "0.1.0",
        "allocations": [],
    }


def pod(name: str, namespace: str, gpus: int, gang: str | None = None, **spec: Any) -> Json:
    """A pending pod; of a gang of two, gated."""
    notes = {"gputopo.io/gang": gang, "gputopo.io/gang-size": "2"} if gang else {}
    gates = [{"name": "gputopo.io/gang"}] if gang else []
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"{namespace}-{name}",
            "resourceVersion": "7",
            "creationTimestamp": "2026-11-18T11:00:00Z",
            "annotations": {"gputopo.io/island": "required", **notes},
        },
        "spec": {
            "schedulerName": "gputopo-scheduler",
            "containers": [{"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}],
            "schedulingGates": gates,
            **spec,
        },
        "status": {"phase": "Pending"},
    }


# The other tenant's pods select the pool of the first two.
NODES = [node("a"), node("b"), node("foe-0", {"pool": "foe"})]
REPORTS = [node_gpus(each["metadata"]["name"]) for each in NODES]


def extender_answer(hostile: Mapping[type[Any], list[bytes]]) -> object:
    """Return the answer of Filter for a tenant's pod among the healthy nodes."""
    cache = ClusterCache(Policy(), reservations=True)
    healthy = {"nodes": NODES, "nodegpus": REPORTS}
    for batch in hostile_batches(EXTENDER, healthy, hostile):
        cache.apply_batch(batch, NOW)
    extender = Extender(cache, Policy(), lambda: NOW, lambda _: None)
    asked = convert(pod("asked", "team", 4), Pod)
    found = extender.filter(asked, {"a", "b"})
    scores = sorted(extender.prioritize(asked, {"a", "b"}))
    return found.nodes, dict(found.rejected), scores


class _PlanningExecutor(IdleExecutor):
    """Computes plans at once, and writes nothing."""

    def __init__(self) -> None:
        self.found = PlanResult()

    def start_plan(self, task: PlanTask) -> None:
        self.found = run_plan(task)


def placed_gangs(hostile: Mapping[type[Any], list[bytes]]) -> tuple[str, ...]:
    """Return the gangs that the planner places first, given a tenant's gang of two with four GPUs each."""
    executor = _PlanningExecutor()
    config = PlannerConfig("gpus", "gputopo", CommitTerms(gated=True), QueueTiming(patience_s=0.0), LEVELS)
    own = ledger()
    term = LeaderTerm(config, lambda: BUILT_IN, own.spec.planner, executor, TermClock(lambda: 0.0, lambda: NOW))
    term.apply_ledger(own)
    gang = [pod(f"w-{rank}", "team", 4, "llm", priority=10, nodeSelector=_POOL) for rank in range(2)]
    healthy = {"nodes": NODES, "nodegpus": REPORTS, "pods": gang}
    for batch in hostile_batches(PLANNER, healthy, hostile, own):
        term.apply_batch(batch)
    term.tick()
    term.run_round()
    return tuple(sorted(str(each.spec.gang) for each in executor.found.created))


def hostile_batches(
    sources: Sources,
    healthy: Mapping[str, Iterable[Json]],
    hostile: Mapping[type[Any], list[bytes]],
    own: LedgerUpdate | None = None,
) -> Iterable[Batch[Any]]:
    """Yield the first list of each kind, with the hostile objects before and after the healthy ones.

    ``own``: the planner's ledger.
    """
    for kind, source in sources.items():
        good = [msgspec.json.encode(each) for each in healthy.get(source.resource.plural, ())]
        bad = hostile.get(kind, [])
        found = Projection(source).apply_list(msgspec.Raw(each) for each in (*bad, *good, *bad))
        batch = Batch(kind, *found)
        yield batch._replace(updates=(own,)) if own is not None and kind is LedgerUpdate else batch
