"""Deciding about a pod, as ratios to looking every name up in a dict: what no decision by name can do without.

500, 5,000 and 15,000 nodes of six shapes, each with its own pods, so that some hundred states differ. Names are decoded
anew for each pod, as they come off the wire: fresh strings whose hashes are not known yet. Run: make bench
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from random import Random

import msgspec

from gputopo.labels import encode
from gputopo.labels.nodegpus import Allocation, NodeGpus, PodRef
from gputopo.model import NodeTopology
from scheduler_core.asks import WHOLE
from scheduler_core.evaluate import evaluate
from scheduler_core.nodes import (
    Machine,
    Node,
    NodeRecord,
    NodeTable,
    read_node,
    read_occupant,
    table_of,
    with_pod,
    with_records,
)
from scheduler_core.occupancy import Occupant
from scheduler_core.pods import Pod
from scheduler_core.policy import Policy
from scheduler_core.request import PodRequest, read_request
from tests.machines import MACHINES

SIZES = (500, 5_000, 15_000)
ROUNDS = 25
NOW = 1_795_000_000.0
POLICY = Policy()
SHAPES = ("hgx_h100", "hgx_b200", "dgx1", "a100_bridged", "a100_mesh", "rtx4090")


def main() -> None:
    """Print a row per number of nodes and step."""
    print(f"\n{'nodes':>6} {'step':<44} {'us':>8} {'ratio':>7}")
    for size in SIZES:
        table = fleet(size)
        body = msgspec.json.encode(list(table.records))
        decoder = msgspec.json.Decoder(list[str])
        steps = _steps(table)
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(ROUNDS):
            for name, step in steps.items():
                names = decoder.decode(body)
                start = time.perf_counter_ns()
                step(names)
                times[name].append((time.perf_counter_ns() - start) / 1000)
        yardstick = statistics.median(next(iter(times.values())))
        for name, each in times.items():
            median = statistics.median(each)
            print(f"{size:>6} {name:<44} {median:8.0f} {median / yardstick:7.2f}")
        print(f"{size:>6} {len(set(table.states.values()))} states differ")


def _steps(table: NodeTable) -> dict[str, Callable[[list[str]], object]]:
    serial = iter(range(10**9))
    one = next(iter(table.records.values()))

    def deciding(gpus: int, **wishes: str) -> Callable[[list[str]], object]:
        return lambda names: evaluate(request(f"p{next(serial)}", gpus, wishes), table, names, POLICY)

    return {
        "dict lookup of every name (yardstick)": lambda names: [table.states.get(name) for name in names],
        "evaluate: 1 GPU": deciding(1),
        "evaluate: 4 GPUs, island required": deciding(4, island="required"),
        "evaluate: 8 GPUs, few nodes pass": deciding(8, interconnect="nvswitch"),
        "evaluate: wishes never seen before": lambda names: evaluate(
            request("p", 2, {"min_vram": f"{next(serial) + 1}Mi"}), table, names, POLICY
        ),
        "one pod event: the next table": lambda _: with_records(table, [with_pod(one, pod("x", 1))], NOW, POLICY),
    }


def fleet(size: int) -> NodeTable:
    """Nodes of six shapes in turn, up to half of the GPUs in use; a fifth has a pod whose GPUs nobody has named."""
    random = Random(size)
    machines = [(MACHINES[name](), machine(MACHINES[name]())) for name in SHAPES]
    return table_of(
        (node(f"gpu-node-{at:05}-pool-a1b2c3", *machines[at % 6], random) for at in range(size)), NOW, POLICY
    )


def node(name: str, topology: NodeTopology, told: Machine, random: Random) -> NodeRecord:
    """One node with a life of its own."""
    busy = random.sample(topology.gpus, random.randint(0, len(topology.gpus) // 2))
    held = tuple(Allocation(gpu=gpu.uuid or "", pod=PodRef("team", "busy", "c")) for gpu in busy)
    pods = [pod("busy", len(busy))] if busy else []
    if random.random() < 0.2:
        pods.append(pod("late", random.choice((1, 2))))
    return NodeRecord(name, told, NodeGpus("2026-11-18T11:00:00Z", "hash", "1", held), tuple(pods))


def machine(topology: NodeTopology) -> Machine:
    """What its Node object tells."""
    facts = encode(topology)
    metadata = {"labels": facts.labels, "annotations": facts.annotations}
    status = {"allocatable": {WHOLE: str(len(topology.gpus))}}
    return read_node(msgspec.convert({"metadata": metadata, "status": status}, Node))


def request(name: str, gpus: int, wishes: dict[str, str]) -> PodRequest:
    """What a pod asks."""
    found = read_request(_pod(name, gpus, wishes))
    assert isinstance(found, PodRequest)
    return found


def pod(name: str, gpus: int) -> Occupant:
    """A pod on a node."""
    found = read_occupant(_pod(name, gpus, {}))
    assert found is not None
    return found


def _pod(name: str, gpus: int, wishes: dict[str, str]) -> Pod:
    annotations = {f"gputopo.io/{key.replace('_', '-')}": value for key, value in wishes.items()}
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "annotations": annotations}
    spec = {"containers": [{"resources": {"limits": {WHOLE: str(gpus)}}}]}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Pod)


if __name__ == "__main__":
    main()
