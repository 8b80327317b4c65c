"""Time to find the pods to evict for a gang, on 5,000 nodes that are full.

Nodes with 8 GPUs in racks of 16, with single pods of 1, 2, 4 and 8 GPUs and gangs of 2 to 16 pods: scavengers, batch,
inference and training, half of which tell when they saved a checkpoint. The times are those of a whole search of the
planner, with the built-in limit: units that the policy allows with their costs, then plans. "units" is the first part.
CPU times, as the limit counts them. Run: make bench
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from random import Random
from typing import NamedTuple

from evaluate import NOW, POLICY

from gputopo.crd.nodegpus import DeviceAllocation, NodeGpus, PodRef
from gputopo.labels.domains import RACK_LABELS
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.events import Batch
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_table import snapshot_of
from scheduler_core.planner.gang.disruption import Disruptions, PodDisruption
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName, GangRequest, Member
from scheduler_core.planner.gang.pod_deadlines import PodDeadlines
from scheduler_core.planner.leader.hold_throttle import HoldThrottle
from scheduler_core.planner.leader.plan_task import ReservationNames
from scheduler_core.planner.leader.preemption_search import PreemptionSearch
from scheduler_core.planner.packing.model import NodeView, PlanOptions
from scheduler_core.planner.preemption.inputs import UnitInputs
from scheduler_core.planner.preemption.model import PreemptionPlan
from scheduler_core.planner.preemption.units import find_units
from scheduler_core.policy.preemption import DEFAULT_PREEMPTION
from scheduler_core.request.disruption import NO_FACTS, DisruptionFacts
from scheduler_core.request.pod import Metadata
from scheduler_core.request.pod_request import PodRequest
from tests.machines import MACHINES
from tests.scheduler_core.builders import record, request

NODES = 5_000
ROUNDS = 10
SHAPES = ("hgx_h100", "hgx_b200", "dgx1", "rtx4090")
CLASSES = (("scavenger", -1_000), ("batch", 0), ("inference", 0), ("training", 0), ("training", 1_000))


class Wanted(NamedTuple):
    """A gang for which pods may be evicted."""

    members: int
    gpus: int
    wishes: dict[str, str] = {}  # noqa: RUF012  never changed
    required: str | None = None

    def __str__(self) -> str:
        words = [f"{self.members} x {self.gpus}", *(f"{key} {value}" for key, value in self.wishes.items())]
        return ", ".join([*words, *([] if self.required is None else [f"one {self.required}"])])


GANGS = (
    Wanted(1, 8),
    Wanted(1, 4, {"island": "required"}),
    Wanted(16, 8),
    Wanted(16, 8, required="rack"),
    Wanted(32, 2, {"island": "required"}, "rack"),
    Wanted(64, 8),
)


class Cluster(NamedTuple):
    """A full cluster."""

    view: NodeView
    gangs: tuple[Gang, ...]
    disruptions: Disruptions


def main(nodes: int) -> None:
    """Print a row per gang."""
    limit = DEFAULT_PREEMPTION.max_search_s
    columns = f"{'units p50 ms':>13} {'whole p50 ms':>13} {'p95 ms':>8} {'max ms':>8}"
    head = f"{columns} {'plans':>6} {'found':>6} {'gave up':>8}"
    fleets = [full_cluster(seed, nodes) for seed in range(3)]
    gc.collect()
    gc.freeze()  # as in the planner
    print(f"\n{f'gang, {nodes:,} nodes, limit {limit:g} s':<38} {head}")
    for gang in GANGS:
        rows = [_search(fleets[at % len(fleets)], gang, at) for at in range(ROUNDS)]
        units, whole = sorted(each[0] for each in rows), sorted(each[1] for each in rows)
        plans, found, gave_up = (sum(each[part] for each in rows) for part in (2, 3, 4))
        p95 = whole[min(len(whole) - 1, int(0.95 * len(whole)))]
        print(
            f"{gang!s:<38} {statistics.median(units):13.0f} {statistics.median(whole):13.0f} {p95:8.0f} "
            f"{whole[-1]:8.0f} {plans / ROUNDS:6.0f} {found:>6.0f} {gave_up:>8.0f}"
        )


def _search(cluster: Cluster, gang: Wanted, seed: int) -> tuple[float, float, int, int, int]:
    """Return the CPU times in ms, the plans, and whether victims were found and the search gave up."""
    members = tuple(_crew(gang, seed))
    queued = Gang(GangName("team", "urgent"), GangPhase.QUEUED, "", ready=members, size=len(members), priority=100_000)
    units = UnitInputs(
        queued, cluster.view.table, cluster.gangs, cluster.disruptions, PodDeadlines(), DEFAULT_PREEMPTION, NOW + seed
    )
    start = time.thread_time()
    find_units(units)
    units_s = time.thread_time() - start
    names = ReservationNames("gputopo", lambda: "bench")
    result = HoldThrottle().search_preemption(PreemptionSearch(units, cluster.view, PlanOptions(), POLICY, names))
    found = result.found
    is_found = isinstance(found, PreemptionPlan)
    return 1e3 * units_s, 1e3 * result.cpu_s, found.plans, int(is_found), int(found.gave_up)


def full_cluster(seed: int, nodes: int = NODES) -> Cluster:
    """Return a cluster whose GPUs are all in use."""
    random = Random(seed)
    machines = [record("n", MACHINES[name](), held={}) for name in SHAPES]
    requests = {(kind, gpus): _request(kind, gpus) for kind, _ in CLASSES for gpus in (1, 2, 4, 8)}
    records, states, whole = [], [], []
    gangs: list[Gang] = []
    for at in range(nodes):
        shape, name = machines[at // 16 % len(SHAPES)], f"gpu-node-{at:05}"
        uuids = [gpu.uuid or "" for gpu in shape.machine.topology.gpus]  # type: ignore[union-attr]
        pods: list[Occupant] = []
        held: list[DeviceAllocation] = []
        left = list(uuids)
        random.shuffle(left)
        is_whole = random.random() < 0.5
        while left:
            gpus = 8 if is_whole else random.choice([each for each in (1, 2, 4) if each <= len(left)])
            kind, priority = random.choice(CLASSES)
            pod = f"p-{at}-{len(pods)}"
            asked = requests[kind, gpus]
            pods.append(Occupant(pod, "team", pod, asked.profile, admitted=True, owner=pod))
            held += [DeviceAllocation(gpu=uuid, pod=PodRef("team", pod, "c")) for uuid in left[:gpus]]
            left = left[gpus:]
            facts = (
                DisruptionFacts(last_checkpoint=NOW - random.uniform(0, 7_200)) if random.random() < 0.5 else NO_FACTS
            )
            states.append(PodDisruption(pod, facts, priority, NOW - random.uniform(0, 1e5)))
            if is_whole:
                whole.append((pod, name, asked, priority))
        assert shape.gpus is not None
        report = NodeGpus(shape.gpus.observed_at, shape.gpus.content_hash, "1", tuple(held))
        records.append(NodeRecord(name, shape.machine, report, tuple(sorted(pods, key=lambda each: each.uid))))
    while len(whole) > 16:
        size = random.choice((1, 1, 2, 4, 8, 16))
        taken, whole = whole[:size], whole[size:]
        if size > 1:
            gangs.append(_gang(f"g-{len(gangs)}", taken, random))
    disruptions = Disruptions()
    disruptions.apply_pods(Batch(PodDisruption, tuple(states)))
    rules = {
        each.name: FullNode(metadata=Metadata(name=each.name, labels={RACK_LABELS[0]: f"r{at // 16}"}))
        for at, each in enumerate(records)
    }
    return Cluster(NodeView(snapshot_of(records, NOW, POLICY), rules, lambda _: POLICY), tuple(gangs), disruptions)


def _request(kind: str, gpus: int) -> PodRequest:
    asked = request(gpus, **({} if kind == "scavenger" else {"workload": kind}))
    return asked._replace(profile=asked.profile._replace(scavenger=kind == "scavenger"))


def _gang(name: str, pods: list[tuple[str, str, PodRequest, int]], random: Random) -> Gang:
    wanted = GangRequest(GangName("team", name), len(pods))
    placed = tuple(
        Member(pod, "team", pod, "", wanted, asked, NOW, priority, node=node, phase="Running", started=True)
        for pod, node, asked, priority in pods
    )
    minimum = random.randint(1, len(pods)) if random.random() < 0.3 else None
    return Gang(wanted.gang, GangPhase.RUNNING, "", placed=placed, size=len(pods), minimum=minimum)


def _crew(gang: Wanted, seed: int) -> list[Member]:
    wanted = GangRequest(GangName("team", "urgent"), gang.members, required=gang.required)
    requests = [request(gang.gpus, f"u-{seed}-{at}", **gang.wishes) for at in range(gang.members)]
    return [Member(each.uid, "team", each.name, "1", wanted, each, NOW) for each in requests]


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else NODES)
