"""gputopo's policy in the simulated cluster: the ``Extender``, called as kube-scheduler calls it.

kube-scheduler is simulated with the shipped profile for GPU pods (``extender.scheduler_config``): it passes the nodes
with enough capacity, filters by the result, adds our scores to the scores of NodeResourcesBalancedAllocation, and takes
one of the best nodes. Pods without GPUs never reach the extender: they use a profile that prefers nodes with few GPUs,
and the emptiest of these (``daemonset/scheduler/examples/cpu-beside-gpus-profile.yaml``).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from math import inf
from random import Random
from typing import Any

from gputopo.crd.nodegpus import DeviceAllocation, NodeGpus, PodRef
from gputopo.labels.keys import POD_ISLAND, POD_VRAM
from scheduler_core.allocation.gpu_sets import member_places
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import Batch, NodeGpusUpdate, NodeUpdate, PodUpdate
from scheduler_core.cache.node import NodeFacts
from scheduler_core.cache.node_record import parse_occupant
from scheduler_core.evaluation.score_fragmentation import best_gpu_for_share
from scheduler_core.extender.extender import Extender, ExtenderCalls
from scheduler_core.extender.scheduler_config import WEIGHT
from scheduler_core.policy.policy import Policy
from scheduler_core.request.device_request import SHARED, WHOLE
from scheduler_core.request.pod import Container, ContainerResources, Metadata, Pod, PodSpec
from scheduler_core.simulation.baselines.kube import balanced_allocation, least_allocated
from scheduler_core.simulation.baselines.ranked import RankedScheduler, RatedNode
from scheduler_core.simulation.device_plugin import draw_gpus
from scheduler_core.simulation.hosts import UNLIMITED, Placement, SimulatedCluster, SimulatedHost
from scheduler_core.simulation.workload import JobKind, SimulatedJob

_EPOCH = 1_800_000_000.0  # the start of a simulation: seconds since 1970
_NAMESPACE = "simulated"
_TOPOLOGY = "simulated"  # topology hash of every node
_MOST_SHARES = 1000  # pods that may share a GPU
FEW_GPUS = (1, 2, 4, 8)  # preferences of the profile for pods without GPUs: nodes with at most this many GPUs
CPU_WEIGHT = 10  # of these preferences; NodeResourcesFit has 1


class GputopoScheduler:
    """See ``engine.SimulatedScheduler``."""

    def __init__(
        self,
        hosts: SimulatedCluster,
        policy: Policy,
        random: Random,
        through: Callable[[Extender], ExtenderCalls] = lambda extender: extender,
    ) -> None:
        """Create the scheduler. ``through`` wraps the extender, for example to call it over HTTP."""
        self._hosts = hosts
        self._policy = policy._replace(stale_after_s=inf)  # simulated agents never fail
        self._random = random
        self._now = _EPOCH
        self._cache = ClusterCache(self._policy)
        self._extender = through(Extender(self._cache, self._policy, lambda: self._now, lambda _: None))
        self._number = {host.spec.name: host.number for host in hosts.all}
        self._fitting: dict[JobKind, tuple[set[str], int]] = {}
        self._held: list[dict[str, int]] = [{} for _ in hosts.all]  # GPUs by pod
        self._others = RankedScheduler(hosts, _without_gpus, random)
        self._apply_nodes()

    def place(self, job: SimulatedJob, now: float) -> Placement | None:
        """See ``engine.SimulatedScheduler``."""
        if not job.kind.demand:
            return self._others.place(job, now)
        self._now = _EPOCH + now
        pod = pod_of(job)
        names = self._names(job.kind)
        returned = self._extender.filter(pod, names).nodes if names else ()
        if not returned:
            return None
        number = self._number[self._chosen(pod, job.kind, returned)]
        placement = Placement(number, self._gpus(self._hosts.all[number], job.kind))
        self._bind(pod, job, placement)
        return placement

    def ended(self, job: SimulatedJob, placement: Placement, now: float) -> None:
        """See ``engine.SimulatedScheduler``."""
        if job.kind.demand:
            self._now = _EPOCH + now
            del self._held[placement.host][job.name]
            self._cache.apply_batch(Batch(PodUpdate, (), (job.name,)), self._now)
            self._cache.apply_batch(Batch(NodeGpusUpdate, (self._kubelet_report(placement.host),)), self._now)

    def _chosen(self, pod: Pod, kind: JobKind, returned: tuple[str, ...]) -> str:
        """Choose among the nodes that Filter returned, as kube-scheduler does."""
        if len(returned) == 1:
            return returned[0]
        totals = {
            name: 10 * WEIGHT * score + balanced_allocation(kind, self._hosts.all[self._number[name]])
            for name, score in self._extender.prioritize(pod, set(returned))
        }
        best = max(totals.values())
        return self._random.choice([name for name in returned if totals[name] == best])

    def _gpus(self, host: SimulatedHost, kind: JobKind) -> int:
        if not kind.share:
            return draw_gpus(host.shape, host.free, kind.gpus, self._random)
        state = self._cache.snapshot.states[host.spec.name]
        found = best_gpu_for_share(state, kind.share, self._policy.demand_mix, kind.cpu_milli)
        assert found is not None  # the pod fits on the node
        return 1 << found[0]

    def _bind(self, pod: Pod, job: SimulatedJob, placement: Placement) -> None:
        """Deliver the bound pod and then its allocation, as the watches would."""
        self._held[placement.host][job.name] = placement.gpus
        occupant = parse_occupant(pod)
        assert occupant is not None  # it requests GPUs
        update = PodUpdate(job.name, occupant._replace(admitted=True), self._hosts.all[placement.host].spec.name)
        self._cache.apply_batch(Batch(PodUpdate, (update,)), self._now)
        self._cache.apply_batch(Batch(NodeGpusUpdate, (self._kubelet_report(placement.host),)), self._now)

    def _kubelet_report(self, number: int) -> NodeGpusUpdate:
        """Return the report that the agent of the node publishes."""
        host = self._hosts.all[number]
        allocations = tuple(
            DeviceAllocation(gpu=host.spec.topology.gpus[place].uuid or "", pod=PodRef(_NAMESPACE, name, "main"))
            for name, gpus in self._held[number].items()
            for place in member_places(gpus)
        )
        observed = datetime.fromtimestamp(self._now, UTC).isoformat()
        return NodeGpusUpdate(host.spec.name, NodeGpus(observed, _TOPOLOGY, "1", allocations))

    def _names(self, kind: JobKind) -> set[str]:
        """Return the nodes that pass kube-scheduler's own filters."""
        names, mark = self._fitting.get(kind, (set[str](), 0))
        changed: Any = set(self._hosts.changed[mark:]) if kind in self._fitting else range(len(self._hosts.all))
        for number in changed:
            host = self._hosts.all[number]
            (names.add if host.fits(kind) else names.discard)(host.spec.name)
        self._fitting[kind] = names, len(self._hosts.changed)
        return names

    def _apply_nodes(self) -> None:
        """Deliver the initial lists of the watches."""
        nodes = tuple(NodeUpdate(host.spec.name, node_facts(host)) for host in self._hosts.all)
        self._cache.apply_batch(Batch(NodeUpdate, nodes, is_full_list=True), self._now)
        self._cache.apply_batch(Batch(PodUpdate, (), is_full_list=True), self._now)
        reports = tuple(self._kubelet_report(host.number) for host in self._hosts.all)
        self._cache.apply_batch(Batch(NodeGpusUpdate, reports, is_full_list=True), self._now)


def node_facts(host: SimulatedHost) -> NodeFacts:
    """Return the facts of the simulated Node object."""
    return NodeFacts(
        topology=host.spec.topology,
        described=True,
        topology_hash=_TOPOLOGY,
        allocatable=((WHOLE, host.gpus), (SHARED, host.gpus * _MOST_SHARES)),
        cpu_milli=None if host.spec.cpu_milli >= UNLIMITED else host.spec.cpu_milli,
        honours_gpu_choice=True,
    )


def pod_of(job: SimulatedJob) -> Pod:
    """Return the pod as kube-scheduler would send it."""
    kind = job.kind
    annotations = {POD_VRAM.key: f"{kind.share}Mi"} if kind.share else {}
    if kind.island:
        annotations[POD_ISLAND.key] = "required"
    limits: dict[str, str | int | float] = {SHARED: "1"} if kind.share else {WHOLE: str(kind.gpus)}
    requests: dict[str, str | int | float] = {"cpu": f"{kind.cpu_milli}m"} if kind.cpu_milli else {}
    return Pod(
        metadata=Metadata(name=job.name, namespace=_NAMESPACE, uid=job.name, annotations=annotations),
        spec=PodSpec(containers=(Container("main", ContainerResources(limits, requests)),)),
    )


def _without_gpus(kind: JobKind, host: SimulatedHost) -> RatedNode:
    """Rate preferred nodes first, then the emptiest."""
    preferred = sum(host.gpus <= few for few in FEW_GPUS)
    return RatedNode(CPU_WEIGHT * 100 * preferred / len(FEW_GPUS) + least_allocated(kind, host, gpus=False))
