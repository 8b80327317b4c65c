"""A fake kube-scheduler and fake watches for a real extender, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from gputopo.crd.reservations import EntryPhase
from gputopo.model import NodeTopology
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import (
    Batch,
    CacheChanges,
    LedgerUpdate,
    NodeGpusUpdate,
    NodeUpdate,
    PodUpdate,
    ReservationUpdate,
)
from scheduler_core.cache.node import parse_node
from scheduler_core.cache.node_state import NodeState
from scheduler_core.evaluation.prediction_check import PredictionCheck, check_predictions
from scheduler_core.extender.extender import DecisionRecord, Extender
from scheduler_core.extender.node_choice import FilterResult
from scheduler_core.policy.policy import Policy
from scheduler_core.request.device_request import WHOLE
from scheduler_core.request.pod import AffinityTerm, PinClaim, Pod, SpreadConstraint, Volume
from tests.scheduler_core.builders import NOW, OBSERVED, kubelet_report, node, occupant, pod
from tests.scheduler_core.planner.packing.plans import entry, ledger


def pod_update(
    name: str,
    gpus: int,
    on: str | None = None,
    *,
    nominated: str | None = None,
    admitted: bool = False,
    uid: str | None = None,
    claim: tuple[str, str] | None = None,
    **wishes: str,
) -> PodUpdate:
    """Return a pod as its watch shows it. ``claim``: the reservation and the node that it names."""
    holder = occupant(name, gpus, admitted=admitted, **wishes)
    holder = holder if uid is None else holder._replace(uid=uid)
    return PodUpdate(holder.uid, holder, on, nominated, claim=None if claim is None else PinClaim(*claim))


def unbound_pod(name: str, gpus: int, resource: str = WHOLE, **wishes: str) -> Pod:
    """Return a pod as kube-scheduler sends it."""
    annotations = {key.replace("_", "-"): value for key, value in wishes.items()}
    return pod(name, gpus, annotations=annotations, resource=resource)


def with_volume_claim(asked: Pod) -> Pod:
    """Return the pod with a volume claim."""
    volumes = (Volume(persistent_volume_claim=AffinityTerm()),)
    return msgspec.structs.replace(asked, spec=msgspec.structs.replace(asked.spec, volumes=volumes))


def with_soft_preference(asked: Pod) -> Pod:
    """Return the pod with a soft preference among nodes: topology spread."""
    spread = (SpreadConstraint("ScheduleAnyway"),)
    return msgspec.structs.replace(asked, spec=msgspec.structs.replace(asked.spec, topology_spread_constraints=spread))


class FakeScheduler:
    """An extender with its watches and the scheduler that calls it."""

    def __init__(
        self,
        machines: Mapping[str, NodeTopology],
        policy: Policy = Policy(),  # noqa: B008  frozen
        *,
        reservations: bool = False,
        guarded: bool = False,
    ) -> None:
        self.machines = dict(machines)
        self.labels: Mapping[str, str] = {}  # of every node
        self.now = NOW
        self.records: list[DecisionRecord] = []
        self.cache = ClusterCache(policy, reservations=reservations, guarded=guarded)
        self.extender = Extender(self.cache, policy, lambda: self.now, self.records.append)

    @classmethod
    def synced(cls, machines: Mapping[str, NodeTopology], *pods: PodUpdate, policy: Policy = Policy()) -> FakeScheduler:  # noqa: B008
        """Return an extender whose cache is synced, with these pods, which no report names."""
        stage = cls(machines, policy)
        stage.watch_nodes(complete=True)
        stage.watch_pods(*pods, complete=True)
        stage.watch_reports({name: {} for name in machines}, complete=True)
        return stage

    @classmethod
    def synced_with_reservations(
        cls,
        machines: Mapping[str, NodeTopology],
        *pods: PodUpdate,
        policy: Policy = Policy(),  # noqa: B008
        guarded: bool = False,
        kept: Iterable[ReservationUpdate] = (),
    ) -> FakeScheduler:
        """Return an extender whose cache is synced, with reservations. ``kept``: reservations that no ledger lists."""
        stage = cls(machines, policy, reservations=True, guarded=guarded)
        stage.watch_nodes(complete=True)
        stage.watch_pods(*pods, complete=True)
        stage.watch_reports({name: {} for name in machines}, complete=True)
        stage.cache.apply_batch(Batch(ReservationUpdate, tuple(kept), is_full_list=True), stage.now)
        stage.cache.apply_batch(Batch(LedgerUpdate, (), is_full_list=True), stage.now)
        return stage

    def write_ledger(self, *kept: tuple[ReservationUpdate, EntryPhase], generation: int = 1) -> LedgerUpdate:
        """A planner lists these reservations and no others. Return the ledger as its watch shows it."""
        listing = ledger(*(entry(each, phase) for each, phase in kept), generation=generation)
        self.cache.apply_batch(Batch(ReservationUpdate, tuple(each for each, _ in kept)), self.now)
        self.cache.apply_batch(Batch(LedgerUpdate, (listing,)), self.now)
        return listing

    def watch_nodes(self, *names: str, complete: bool = False, gone: Iterable[str] = ()) -> CacheChanges:
        """Show nodes; without names: all."""
        shown = tuple(
            NodeUpdate(name, parse_node(node(self.machines[name], labels=self.labels)))
            for name in names or self.machines
        )
        return self.cache.apply_batch(Batch(NodeUpdate, () if gone else shown, tuple(gone), complete), self.now)

    def set_allocatable(self, name: str, allocatable: Mapping[str, int]) -> CacheChanges:
        """Show a node that offers these devices instead of whole GPUs."""
        labels = {"gputopo.io/sharing": "distributed"}
        machine = parse_node(node(self.machines[name], labels=labels, allocatable=allocatable))
        return self.cache.apply_batch(Batch(NodeUpdate, (NodeUpdate(name, machine),)), self.now)

    def watch_pods(self, *pods: PodUpdate, complete: bool = False, gone: Iterable[str] = ()) -> CacheChanges:
        """The pod watch."""
        return self.cache.apply_batch(Batch(PodUpdate, pods, tuple(gone), complete), self.now)

    def prediction_checks(
        self, held: Mapping[str, Mapping[str, Iterable[int]]], *, observed: str = OBSERVED
    ) -> tuple[PredictionCheck, ...]:
        """Apply PodResources reports (node -> pod -> GPUs) and return the prediction checks that follow."""
        reports = self.watch_reports(held, observed=observed).kubelet_reports
        return tuple(found for report in reports for found in check_predictions(*report, self.cache.pods))

    def watch_reports(
        self,
        held: Mapping[str, Mapping[str, Iterable[int]] | None],
        *,
        complete: bool = False,
        gone: Iterable[str] = (),
        observed: str = OBSERVED,
    ) -> CacheChanges:
        """Show PodResources reports: node -> pod -> GPUs."""
        shown = tuple(
            NodeGpusUpdate(name, kubelet_report(self.machines[name], each, observed)) for name, each in held.items()
        )
        return self.cache.apply_batch(Batch(NodeGpusUpdate, shown, tuple(gone), complete), self.now)

    def filter(self, asked: Pod, *names: str) -> FilterResult:
        """Call Filter with these nodes; without names: with all."""
        return self.extender.filter(asked, set(names or self.machines))

    def state_of(self, name: str) -> NodeState:
        """Return the state of a node."""
        return self.cache.snapshot.states[name]
