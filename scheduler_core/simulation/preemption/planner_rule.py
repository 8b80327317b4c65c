"""gputopo's preemption in the simulation: the policy's rules, and the planner's own search with its proof."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

from gputopo.crd.nodegpus import DeviceAllocation, NodeGpus, PodRef
from gputopo.labels.keys import POD_ISLAND
from scheduler_core.allocation.gpu_sets import member_places
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.cache.node import NodeFacts
from scheduler_core.cache.node_record import NodeRecord, parse_occupant
from scheduler_core.cache.node_table import snapshot_of
from scheduler_core.evaluation.job_times import JobTimes
from scheduler_core.evaluation.protection import UnitConditions, protection_of
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName, GangRequest, Member
from scheduler_core.planner.packing.model import NodeView, PlanOptions
from scheduler_core.planner.preemption.inputs import EvictedDevices
from scheduler_core.planner.preemption.model import EvictionUnit, PreemptionPlan, PreemptionTask, VictimPod
from scheduler_core.planner.preemption.search import search_preemption
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.preemption import DEFAULT_PREEMPTION, PreemptionPeer, PreemptionPolicy, PreemptionRule
from scheduler_core.request.device_request import WHOLE
from scheduler_core.request.pod import Container, ContainerResources, Metadata, Pod, PodSpec
from scheduler_core.request.pod_request import PodRequest, parse_request
from scheduler_core.simulation.preemption.eviction_rules import EvictionChoice
from scheduler_core.simulation.preemption.jobs import TieredJob
from scheduler_core.simulation.preemption.running import RunningCluster, RunningJob

GRACE_S = 30.0
_EPOCH = 1_800_000_000.0  # the start of a simulation: seconds since 1970
_NAMESPACE = "simulated"
_TOPOLOGY = "simulated"  # topology hash of every node
_MAX_PLANS = 60  # of a search
_MORE_NODES = 8  # that a search sees, beside two for each pod


class PlannerPreemption:
    """gputopo's search. It sees the nodes where evictions cost least for each GPU, not all nodes of the cluster."""

    def __init__(self, rules: PreemptionPolicy = DEFAULT_PREEMPTION, policy: Policy = Policy()) -> None:  # noqa: B008
        self._rules = rules
        self._policy = policy
        self._evicted: dict[str, EvictedDevices] = {}  # by key of the job

    def choose(self, waiting: RunningJob, cluster: RunningCluster, now: float) -> EvictionChoice:
        """See ``EvictionRule``."""
        if now - waiting.since < self._rules.wait_s:
            return EvictionChoice((), too_early=True)
        if not cluster.has_lower(waiting.job.priority):
            return EvictionChoice(())
        units = {
            key: (running, unit)
            for key, running in {key: each for on in cluster.on for key, each in on.items()}.items()
            if (unit := self._unit(running, waiting.job, cluster, now)) is not None
        }
        if not units:
            return EvictionChoice(())
        numbers = _best_nodes(waiting, cluster, units)
        names = {cluster.specs[number].name for number in numbers}
        within = [unit for _, unit in units.values() if all(pod.node in names for pod in unit.pods)]
        if not within:
            return EvictionChoice(())
        table = snapshot_of([_record(cluster, number, now) for number in numbers], _EPOCH + now, self._policy)
        view = NodeView(table, {name: FullNode(Metadata(name)) for name in names}, lambda _: self._policy)
        task = PreemptionTask(
            _gang(waiting.job), view, tuple(within), PlanOptions(), self._policy, _EPOCH + now, _MAX_PLANS
        )
        found = search_preemption(task)
        if not isinstance(found, PreemptionPlan):
            return EvictionChoice((), found.gave_up)
        victims = tuple(units[unit.name][0] for unit in found.units)
        self._evicted |= {each.key: EvictedDevices(now, each.job.gpus, waiting.job.priority) for each in victims}
        return EvictionChoice(victims, found.gave_up)

    def _unit(
        self, running: RunningJob, beneficiary: TieredJob, cluster: RunningCluster, now: float
    ) -> EvictionUnit | None:
        """Return the job as a unit, where the policy allows to evict it."""
        job = running.job
        if job.priority >= beneficiary.priority:
            return None
        rule = self._rules.rule_for(_peer(job), _peer(beneficiary))
        if rule is None or self._is_protected(running, rule, beneficiary.priority, now):
            return None
        hours = running.lost_gpu_hours(now, GRACE_S) / len(running.pods)
        pods = tuple(
            VictimPod(
                f"{job.name}/{at}",
                _NAMESPACE,
                f"{job.name}-{at}",
                cluster.specs[pod.node].name,
                ((WHOLE, pod.gpus.bit_count()),),
                hours,
            )
            for at, pod in enumerate(running.pods)
        )
        return EvictionUnit(job.name, pods, rule=rule.name, price=rule.price, priority=job.priority)

    def _is_protected(self, running: RunningJob, rule: PreemptionRule, priority: int, now: float) -> bool:
        """Return whether a condition of the rule protects the job now. Its end counts as enforced: it is known."""
        saves = running.job.checkpoint_s is not None
        times = JobTimes(running.started, deadline=running.ends_at(), checkpoints=saves)
        evicted = self._evicted.get(running.key)
        evicted_at = evicted.at if evicted is not None and evicted.protects_from(priority) else None
        conditions = UnitConditions(times, running.unsaved(now), evicted_at)
        return protection_of(conditions, rule, self._rules, now) is not None


def _peer(job: TieredJob) -> PreemptionPeer:
    return PreemptionPeer(_NAMESPACE, job.priority, job.workload)


def _best_nodes(
    waiting: RunningJob, cluster: RunningCluster, units: dict[str, tuple[RunningJob, EvictionUnit]]
) -> list[int]:
    """Return the nodes where evictions cost least for each GPU, and all nodes of the units on them."""

    def cost(number: int) -> tuple[float, int]:
        found = [units[key] for key in cluster.on[number] if key in units]
        freed = sum(pod.gpus.bit_count() for running, _ in found for pod in running.pods if pod.node == number)
        room = cluster.free[number].bit_count() + freed
        if room < waiting.job.gpus:
            return float("inf"), number
        return sum(unit.gpu_hours * unit.price for _, unit in found) / room, number

    best = sorted(range(len(cluster.free)), key=cost)[: 2 * waiting.job.pods + _MORE_NODES]
    with_units = {
        pod.node for number in best for key in cluster.on[number] if key in units for pod in units[key][0].pods
    }
    return sorted({*best, *with_units})


def _record(cluster: RunningCluster, number: int, now: float) -> NodeRecord:
    """Return the node as gputopo observes it."""
    topology = cluster.specs[number].topology
    pods, allocations = [], []
    for running in cluster.on[number].values():
        for at, pod in enumerate(running.pods):
            if pod.node != number:
                continue
            name = f"{running.key}-{at}"
            like = _occupant(pod.gpus.bit_count(), island=running.job.island)
            pods.append(like._replace(uid=f"{running.key}/{at}", name=name))
            allocations += [
                DeviceAllocation(gpu=topology.gpus[place].uuid or "", pod=PodRef(_NAMESPACE, name, "main"))
                for place in member_places(pod.gpus)
            ]
    observed = datetime.fromtimestamp(_EPOCH + now, UTC).isoformat()
    facts = NodeFacts(
        topology=topology,
        described=True,
        topology_hash=_TOPOLOGY,
        allocatable=((WHOLE, cluster.shapes[number].whole.bit_count()),),
    )
    gpus = NodeGpus(observed, _TOPOLOGY, "1", tuple(allocations))
    return NodeRecord(cluster.specs[number].name, facts, gpus, tuple(sorted(pods, key=lambda each: each.uid)))


@lru_cache(maxsize=256)
def _occupant(gpus: int, *, island: bool) -> Occupant:
    """Return an admitted pod: 10,000 pods have a few different profiles."""
    found = parse_occupant(_pod("", "", gpus, island=island))
    assert found is not None  # it requests GPUs
    return found._replace(admitted=True)


@lru_cache(maxsize=256)
def _request(gpus: int, *, island: bool) -> PodRequest:
    found = parse_request(_pod("", "", gpus, island=island))
    assert isinstance(found, PodRequest)  # built here
    return found


def _pod(name: str, uid: str, gpus: int, *, island: bool) -> Pod:
    return Pod(
        metadata=Metadata(name, _NAMESPACE, uid, annotations={POD_ISLAND.key: "required"} if island else {}),
        spec=PodSpec(containers=(Container("main", ContainerResources({WHOLE: str(gpus)})),)),
    )


def _gang(job: TieredJob) -> Gang:
    """Return the job as a gang that is to be planned."""
    name = GangName(_NAMESPACE, job.name)
    like = _request(job.gpus, island=job.island)
    members = [
        Member(
            uid=f"new/{job.name}/{at}",
            namespace=_NAMESPACE,
            name=f"{job.name}-{at}",
            version="1",
            gang_request=GangRequest(name, job.pods),
            request=like._replace(uid=f"new/{job.name}/{at}", name=f"{job.name}-{at}"),
            created=_EPOCH,
            priority=job.priority,
        )
        for at in range(job.pods)
    ]
    return Gang(name, GangPhase.QUEUED, "", ready=tuple(members), size=job.pods, priority=job.priority)
