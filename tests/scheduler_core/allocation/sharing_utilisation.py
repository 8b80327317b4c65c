"""The memory of shared GPUs that pods can claim, where the device plugin's policy is known and where it is not.

``python -m tests.scheduler_core.allocation.sharing_utilisation``: nodes of four GPUs of 80 GiB with eight replicas each
are filled until the extender refuses every further pod of the mix. The kubelet reports after each pod. The plugin
distributes.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from scheduler_core.cache.node_record import with_gpus, with_pod
from scheduler_core.cache.node_state import state_of
from scheduler_core.evaluation.filters import rejection_reason
from scheduler_core.policy.policy import Policy
from scheduler_core.request.device_request import WHOLE
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, kubelet_report, occupant, profile, record

PAIRS = MACHINES["a100_bridged"]()
REPLICAS, GPU_GIB = 8, 80
MIXES = {
    "10 GiB": (10,),
    "15 GiB": (15,),
    "10 to 40 GiB": (10, 15, 20, 30, 40),
    "5 to 70 GiB": (5, 10, 20, 40, 70),
    "30 GiB": (30,),
    "50 GiB, more than half of a GPU": (50,),
}


def claimed(shares: tuple[int, ...], label: str | None, seed: int) -> float:
    """Return the share of the memory that pods claim when no further pod of the mix fits."""
    random = Random(seed)
    labels = {"nvidia.com/gpu.replicas": str(REPLICAS)} | ({} if label is None else {"gputopo.io/sharing": label})
    node = record("n", PAIRS, held={}, labels=labels, allocatable={WHOLE: 4 * REPLICAS})
    held: dict[str, list[int]] = {}
    total = refusals = 0
    while refusals < 20:
        share, name = random.choice(shares), f"p{len(held)}"
        if rejection_reason(profile(1, vram=f"{share}Gi"), state_of(node, NOW, Policy()), Policy()) is not None:
            refusals += 1
            continue
        used = Counter(gpu for gpus in held.values() for gpu in gpus)
        fewest = min(used[gpu] for gpu in range(4))
        held[name] = [random.choice([gpu for gpu in range(4) if used[gpu] == fewest])]
        node = with_gpus(with_pod(node, occupant(name, 1, vram=f"{share}Gi")), kubelet_report(PAIRS, held))
        total, refusals = total + share, 0
    return total / (4 * GPU_GIB)


def mean_claimed(shares: tuple[int, ...], label: str | None, nodes: int) -> float:
    """Return the mean over several nodes."""
    return sum(claimed(shares, label, seed) for seed in range(nodes)) / nodes


def main() -> None:
    """Print a table."""
    for name, shares in MIXES.items():
        found = [f"{mean_claimed(shares, label, 40):.0%}" for label in ("distributed", None)]
        print(f"| {name} | {' | '.join(found)} |")


if __name__ == "__main__":
    main()
