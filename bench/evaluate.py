"""Decisions about a pod: from scratch (``evaluate``), and as the extender does, with rankings kept between requests.

500, 5,000 and 15,000 nodes of six shapes, each with its own pods, so that some hundred states differ. Names are decoded
from bytes: new strings without cached hashes. Ratios are to decoding the names into a set, the minimum cost of an
answer; steps that include the decoding say so. Run: make bench
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from random import Random

import msgspec

from gputopo.crd.nodegpus import DeviceAllocation, NodeGpus, PodRef
from gputopo.labels import encode_topology
from gputopo.model import NodeTopology
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import Batch, NodeGpusUpdate, NodeUpdate, PodUpdate
from scheduler_core.cache.node import Node, NodeFacts, parse_node
from scheduler_core.cache.node_record import NodeRecord, parse_occupant, with_pod
from scheduler_core.cache.node_table import ClusterSnapshot, snapshot_of, with_records
from scheduler_core.evaluation.evaluate import evaluate
from scheduler_core.evaluation.ranking import Rankings
from scheduler_core.extender.extender import Extender
from scheduler_core.policy.policy import Policy
from scheduler_core.request.device_request import WHOLE
from scheduler_core.request.pod import Pod
from scheduler_core.request.pod_request import PodRequest, parse_request
from tests.machines import MACHINES

SIZES = (500, 5_000, 15_000)
ROUNDS = 25
NAMES = msgspec.json.Decoder(set[str])
Step = Callable[[], object]
NOW = 1_795_000_000.0
POLICY = Policy()
SHAPES = ("hgx_h100", "hgx_b200", "dgx1", "a100_bridged", "a100_mesh", "rtx4090")


def main() -> None:
    """Print a row per number of nodes and step."""
    print(f"\n{'nodes':>6} {'step':<58} {'us':>8} {'ratio':>7}")
    for size in SIZES:
        table = fleet(size)
        names = msgspec.json.encode(list(table.records))
        steps = {**_anew(table, names), **_served(table, names)}
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(ROUNDS):
            for name, step in steps.items():
                start = time.perf_counter_ns()
                step()
                times[name].append((time.perf_counter_ns() - start) / 1000)
        yardstick = statistics.median(next(iter(times.values())))
        for name, each in times.items():
            median = statistics.median(each)
            print(f"{size:>6} {name:<58} {median:8.0f} {median / yardstick:7.2f}")
        print(f"{size:>6} {len(set(table.states.values()))} states differ")


def _anew(table: ClusterSnapshot, body: bytes) -> dict[str, Step]:
    serial = iter(range(10**9))
    one = next(iter(table.records.values()))

    def deciding(gpus: int, **wishes: str) -> Step:
        return lambda: evaluate(request(f"p{next(serial)}", gpus, wishes), table, NAMES.decode(body), POLICY)

    return {
        "decode the names (yardstick)": lambda: NAMES.decode(body),
        "decode and look every name up in a dict": lambda: [table.states.get(name) for name in NAMES.decode(body)],
        "decode and evaluate: 1 GPU": deciding(1),
        "decode and evaluate: 4 GPUs, island required": deciding(4, island="required"),
        "one pod event: the next table, by itself": lambda: with_records(
            table, [with_pod(one, pod("x", 1))], NOW, POLICY
        ),
    }


def _served(table: ClusterSnapshot, body: bytes) -> dict[str, Step]:
    """Decide as the server does: with rankings kept between requests, and updated with the changes."""
    cache = _known(table)
    extender = Extender(cache, POLICY, lambda: NOW, lambda _: None)
    serial = iter(range(10**9))
    name, other = list(table.records)[:2]
    profiles = [request("q", 2, {"min_vram": f"{at}Gi"}).profile for at in range(1, 9)]
    rankings = Rankings(cache)

    def answering(gpus: int, **wishes: str) -> Step:
        def step() -> None:
            asked = _pod(f"p{next(serial)}", gpus, wishes)
            extender.filter(asked, NAMES.decode(body))
            cache.forget_assumed_pod(asked.metadata.uid)

        return step

    def never_seen() -> None:
        answering(2, min_vram=f"{next(serial) + 1}Mi")()

    def pod_event() -> None:
        at = next(serial)
        gone = f"uid-x{at - 1}"
        cache.apply_batch(Batch(PodUpdate, (PodUpdate(f"uid-x{at}", pod(f"x{at}", 1), name),), (gone,)), NOW)
        for profile in profiles:
            rankings.ranking_for(profile, POLICY)

    def node_event() -> None:
        machine = table.records[other].machine
        changed = msgspec.structs.replace(machine, degraded=next(serial) % 2 == 0)
        cache.apply_batch(Batch(NodeUpdate, (NodeUpdate(other, changed),)), NOW)
        for profile in profiles:
            rankings.ranking_for(profile, POLICY)

    def heartbeat() -> None:
        report = table.records[other].gpus
        assert report is not None
        later = msgspec.structs.replace(report, observed_at=f"2026-11-18T11:00:{next(serial) % 60:02}Z")
        cache.apply_batch(Batch(NodeGpusUpdate, (NodeGpusUpdate(other, later),)), NOW)
        for profile in profiles:
            rankings.ranking_for(profile, POLICY)

    return {
        "decode and Filter: 1 GPU": answering(1),
        "decode and Filter: 4 GPUs, island required": answering(4, island="required"),
        "decode and Filter: 8 GPUs, few nodes pass": answering(8, interconnect="nvswitch"),
        "decode and Filter: 16 GPUs, none passes": answering(16),
        "decode and Filter: wishes never seen before": never_seen,
        "one pod event, 8 rankings caught up": pod_event,
        "one node event, 8 rankings caught up": node_event,
        "one heartbeat, 8 rankings caught up": heartbeat,
    }


def _known(table: ClusterSnapshot) -> ClusterCache:
    """Return the same nodes as updates of the watches."""
    cache = ClusterCache(POLICY)
    records = table.records.values()
    pods = [
        PodUpdate(f"{each.uid}-{record.name}", each._replace(uid=f"{each.uid}-{record.name}"), record.name)
        for record in records
        for each in record.pods
    ]
    gpus = [NodeGpusUpdate(record.name, record.gpus) for record in records if record.gpus is not None]
    nodes = tuple(NodeUpdate(record.name, record.machine) for record in records)
    cache.apply_batch(Batch(NodeUpdate, nodes, is_full_list=True), NOW)
    cache.apply_batch(Batch(PodUpdate, tuple(pods), is_full_list=True), NOW)
    cache.apply_batch(Batch(NodeGpusUpdate, tuple(gpus), is_full_list=True), NOW)
    return cache


def fleet(size: int) -> ClusterSnapshot:
    """Return nodes of six shapes, up to half of their GPUs in use; a fifth has a pod without reported allocation."""
    random = Random(size)
    machines = [(MACHINES[name](), machine(MACHINES[name]())) for name in SHAPES]
    return snapshot_of(
        (node(f"gpu-node-{at:05}-pool-a1b2c3", *machines[at % 6], random) for at in range(size)), NOW, POLICY
    )


def node(name: str, topology: NodeTopology, facts: NodeFacts, random: Random) -> NodeRecord:
    """Return a node with random pods."""
    busy = random.sample(topology.gpus, random.randint(0, len(topology.gpus) // 2))
    held = tuple(DeviceAllocation(gpu=gpu.uuid or "", pod=PodRef("team", "busy", "c")) for gpu in busy)
    pods = [pod("busy", len(busy))] if busy else []
    if random.random() < 0.2:
        pods.append(pod("late", random.choice((1, 2))))
    return NodeRecord(name, facts, NodeGpus("2026-11-18T11:00:00Z", facts.topology_hash or "", "1", held), tuple(pods))


def machine(topology: NodeTopology) -> NodeFacts:
    """Return the facts of the Node object."""
    facts = encode_topology(topology)
    metadata = {"labels": facts.labels, "annotations": facts.annotations}
    status = {"allocatable": {WHOLE: str(len(topology.gpus))}}
    return parse_node(msgspec.convert({"metadata": metadata, "status": status}, Node))


def request(name: str, gpus: int, wishes: dict[str, str]) -> PodRequest:
    """Return the request of a pod."""
    found = parse_request(_pod(name, gpus, wishes))
    assert isinstance(found, PodRequest)
    return found


def pod(name: str, gpus: int) -> Occupant:
    """Return a pod on a node."""
    found = parse_occupant(_pod(name, gpus, {}))
    assert found is not None
    return found


def _pod(name: str, gpus: int, wishes: dict[str, str]) -> Pod:
    annotations = {f"gputopo.io/{key.replace('_', '-')}": value for key, value in wishes.items()}
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "annotations": annotations}
    spec = {"containers": [{"resources": {"limits": {WHOLE: str(gpus)}}}]}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Pod)


if __name__ == "__main__":
    main()
