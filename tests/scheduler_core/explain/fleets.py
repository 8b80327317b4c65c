"""Small fleets and the explanations of pods on them."""

from __future__ import annotations

from itertools import combinations

import msgspec

from gputopo.model import PcieDistance
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_table import ClusterSnapshot, snapshot_of
from scheduler_core.explain import Explanation, explain
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodRequest
from tests.machines import MACHINES, bonded
from tests.scheduler_core.builders import NOW

POLICY = Policy()
H100, PAIRS, ACROSS, DGX1, DGX2, MIXED, MIG = (
    MACHINES[name]()
    for name in ("hgx_h100", "a100_bridged", "a100_bridged_across", "dgx1", "dgx2", "mixed", "a100_mig")
)
_QUAD_LINKS = {pair: 4 for quad in (range(4), range(4, 8)) for pair in combinations(quad, 2)}
QUADS = msgspec.structs.replace(H100, nvlink=bonded(_QUAD_LINKS, 50.0))  # two islands of four, one per NUMA node
_ALIKE = tuple(tuple(None if one == other else PcieDistance.NODE for other in range(16)) for one in range(16))
ALIKE = msgspec.structs.replace(DGX2, pcie=_ALIKE)  # so the device plugin may choose any GPUs


def fleet(*records: NodeRecord) -> ClusterSnapshot:
    """A table of those nodes."""
    return snapshot_of(records, NOW, POLICY)


def explained(request: PodRequest, *records: NodeRecord, bound: str | None = None) -> Explanation:
    """Return the explanation of a pod with these nodes."""
    return explain(request, fleet(*records), None, POLICY, NOW, bound)
