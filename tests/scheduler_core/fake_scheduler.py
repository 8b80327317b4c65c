"""What the three watches show and kube-scheduler asks, in one line each, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from gputopo.crd.reservations import Phase
from gputopo.model import NodeTopology
from scheduler_core.cache.cluster_cache import Knowledge, News
from scheduler_core.cache.events import Batch, GpusSeen, LedgerSeen, NodeSeen, PodSeen, ReservationSeen
from scheduler_core.cache.node import read_node
from scheduler_core.cache.node_state import NodeState
from scheduler_core.evaluation.prediction_check import Settled, settled_pods
from scheduler_core.extender.extender import Extender, Filtered, Record
from scheduler_core.policy.policy import Policy
from scheduler_core.request.device_request import WHOLE
from scheduler_core.request.pod import PinClaim, Pod, SpreadConstraint, Term, Volume
from tests.scheduler_core.builders import NOW, OBSERVED, node, occupant, pod, word
from tests.scheduler_core.planner.packing.plans import entry, ledger


def seen(
    name: str,
    gpus: int,
    on: str | None = None,
    *,
    nominated: str | None = None,
    admitted: bool = False,
    uid: str | None = None,
    claim: tuple[str, str] | None = None,
    **wishes: str,
) -> PodSeen:
    """A pod as its watch shows it. ``claim``: the reservation and the node that it names."""
    holder = occupant(name, gpus, admitted=admitted, **wishes)
    holder = holder if uid is None else holder._replace(uid=uid)
    return PodSeen(holder.uid, holder, on, nominated, claim=None if claim is None else PinClaim(*claim))


def asking(name: str, gpus: int, resource: str = WHOLE, **wishes: str) -> Pod:
    """A pod as kube-scheduler sends it."""
    annotations = {key.replace("_", "-"): value for key, value in wishes.items()}
    return pod(name, gpus, annotations=annotations, resource=resource)


def with_claim(asked: Pod) -> Pod:
    """The same with a volume."""
    volumes = (Volume(persistent_volume_claim=Term()),)
    return msgspec.structs.replace(asked, spec=msgspec.structs.replace(asked.spec, volumes=volumes))


def preferring(asked: Pod) -> Pod:
    """The same with a preference among nodes: it would rather be spread."""
    spread = (SpreadConstraint("ScheduleAnyway"),)
    return msgspec.structs.replace(asked, spec=msgspec.structs.replace(asked.spec, topology_spread_constraints=spread))


class Stage:
    """An extender, the watches it hears, and the scheduler that asks it."""

    def __init__(
        self,
        machines: Mapping[str, NodeTopology],
        policy: Policy = Policy(),  # noqa: B008  frozen
        *,
        reservations: bool = False,
        guarded: bool = False,
    ) -> None:
        self.machines = dict(machines)
        self.now = NOW
        self.records: list[Record] = []
        self.knowledge = Knowledge(policy, reservations=reservations, guarded=guarded)
        self.extender = Extender(self.knowledge, policy, lambda: self.now, self.records.append)

    @classmethod
    def set(cls, machines: Mapping[str, NodeTopology], *pods: PodSeen, policy: Policy = Policy()) -> Stage:  # noqa: B008
        """All lists have been shown: nodes where nothing runs but those pods, which no kubelet has named."""
        stage = cls(machines, policy)
        stage.nodes(complete=True)
        stage.pods(*pods, complete=True)
        stage.words({name: {} for name in machines}, complete=True)
        return stage

    @classmethod
    def planned(
        cls,
        machines: Mapping[str, NodeTopology],
        *pods: PodSeen,
        policy: Policy = Policy(),  # noqa: B008
        guarded: bool = False,
        kept: Iterable[ReservationSeen] = (),
    ) -> Stage:
        """The same where what planners keep is looked at. ``kept``: reservations that no ledger lists."""
        stage = cls(machines, policy, reservations=True, guarded=guarded)
        stage.nodes(complete=True)
        stage.pods(*pods, complete=True)
        stage.words({name: {} for name in machines}, complete=True)
        stage.knowledge.take(Batch(ReservationSeen, tuple(kept), complete=True), stage.now)
        stage.knowledge.take(Batch(LedgerSeen, (), complete=True), stage.now)
        return stage

    def keep(self, *kept: tuple[ReservationSeen, Phase], generation: int = 1) -> LedgerSeen:
        """A planner lists these reservations, and no other. Answers the ledger as its watch shows it."""
        listing = ledger(*(entry(each, phase) for each, phase in kept), generation=generation)
        self.knowledge.take(Batch(ReservationSeen, tuple(each for each, _ in kept)), self.now)
        self.knowledge.take(Batch(LedgerSeen, (listing,)), self.now)
        return listing

    def nodes(self, *names: str, complete: bool = False, gone: Iterable[str] = ()) -> News:
        """The nodes' watch; without names: all."""
        shown = tuple(NodeSeen(name, read_node(node(self.machines[name]))) for name in names or self.machines)
        return self.knowledge.take(Batch(NodeSeen, () if gone else shown, tuple(gone), complete), self.now)

    def offer(self, name: str, allocatable: Mapping[str, int]) -> News:
        """That node hands out such devices instead of whole GPUs."""
        machine = read_node(node(self.machines[name], allocatable=allocatable))
        return self.knowledge.take(Batch(NodeSeen, (NodeSeen(name, machine),)), self.now)

    def pods(self, *pods: PodSeen, complete: bool = False, gone: Iterable[str] = ()) -> News:
        """The pods' watch."""
        return self.knowledge.take(Batch(PodSeen, pods, tuple(gone), complete), self.now)

    def checks(
        self, held: Mapping[str, Mapping[str, Iterable[int]]], *, observed: str = OBSERVED
    ) -> tuple[Settled, ...]:
        """Apply PodResources reports (node -> pod -> GPUs) and return the prediction checks that follow."""
        return tuple(settled_pods(self.words(held, observed=observed).reports, self.knowledge.pods))

    def words(
        self,
        held: Mapping[str, Mapping[str, Iterable[int]] | None],
        *,
        complete: bool = False,
        gone: Iterable[str] = (),
        observed: str = OBSERVED,
    ) -> News:
        """The kubelets' words: node -> pod -> GPUs."""
        shown = tuple(GpusSeen(name, word(self.machines[name], each, observed)) for name, each in held.items())
        return self.knowledge.take(Batch(GpusSeen, shown, tuple(gone), complete), self.now)

    def ask(self, asked: Pod, *names: str) -> Filtered:
        """kube-scheduler asks about those nodes; without names: about all."""
        return self.extender.filter(asked, set(names or self.machines))

    def state(self, name: str) -> NodeState:
        """A node as it is taken to be."""
        return self.knowledge.table.states[name]
