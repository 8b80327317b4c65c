"""Explaining a pod, as a ratio to the first decision about it, the slowest case of a Filter request.

500, 5,000 and 15,000 nodes; with free GPUs, and full of small pods, where no node fits and the necessary evictions are
searched (limits: ``scheduler_core/explain/evictions.py``). Run: make bench
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from random import Random

from evaluate import NOW, POLICY, SIZES, fleet, machine, pod, request

from gputopo.crd.nodegpus import DeviceAllocation, NodeGpus, PodRef
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_table import ClusterSnapshot, snapshot_of
from scheduler_core.evaluation.evaluate import evaluate
from scheduler_core.explain import explain, explanation_document
from tests.machines import MACHINES

ROUNDS = 5
FULL = ("hgx_h100", "dgx1", "a100_mesh", "a100_bridged", "dgx2")
ASKED: dict[str, tuple[int, dict[str, str]]] = {
    "2 GPUs": (2, {}),
    "4 GPUs, island required": (4, {"island": "required"}),
    "8 GPUs, island and NUMA required": (8, {"island": "required", "numa": "required"}),
    "4 GPUs, 3000 GB/s, which nobody has": (4, {"min_bandwidth": "3000"}),
    "4 GPUs, 1000 GiB each": (4, {"min_vram": "1000Gi"}),
}


def main() -> None:
    """Print a row per fleet and pod."""
    print(f"\n{'nodes':>6} {'fleet':<12} {'pod':<38} {'decide ms':>9} {'explain ms':>10} {'ratio':>6} {'fits':>6}")
    for size in SIZES:
        for kind, table in (("some room", fleet(size)), ("full", full(size))):
            for name, (gpus, wishes) in ASKED.items():
                _row(table, f"{size:>6} {kind:<12} {name:<38}", gpus, wishes)


def _row(table: ClusterSnapshot, head: str, gpus: int, wishes: dict[str, str]) -> None:
    serial = iter(range(10**9))

    def fresh() -> dict[str, str]:
        """Return an equal request with a new profile, without cached results."""
        return {"vram": f"{next(serial) + 1}Mi", **wishes}

    decide_ms = _median(lambda: evaluate(request("p", gpus, fresh()), table, table.states, POLICY))
    explained = explain(request("p", gpus, wishes), table, None, POLICY, NOW)
    explain_ms = _median(lambda: explanation_document(explain(request("p", gpus, fresh()), table, None, POLICY, NOW)))
    print(f"{head} {decide_ms:9.0f} {explain_ms:10.0f} {explain_ms / decide_ms:6.1f} {len(explained.suited):>6}")


def _median(step: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


def full(size: int) -> ClusterSnapshot:
    """Return nodes with at most two free GPUs; pods of one or two GPUs hold the others."""
    random = Random(size)
    machines = [(MACHINES[name](), machine(MACHINES[name]())) for name in FULL]
    records = []
    for at in range(size):
        topology, facts = random.choice(machines)
        left = random.sample(topology.gpus, len(topology.gpus) - random.randint(0, 2))
        held: list[DeviceAllocation] = []
        pods: list[Occupant] = []
        while left:
            taken, left = left[: (count := random.choice((1, 1, 2)))], left[count:]
            name = f"p{len(pods)}"
            held += [DeviceAllocation(gpu=gpu.uuid or "", pod=PodRef("team", name, "c")) for gpu in taken]
            pods.append(pod(name, len(taken)))
        report = NodeGpus("2026-11-18T11:00:00Z", facts.topology_hash or "", "1", tuple(held))
        records.append(NodeRecord(f"gpu-node-{at:05}", facts, report, tuple(pods)))
    return snapshot_of(records, NOW, POLICY)


if __name__ == "__main__":
    main()
