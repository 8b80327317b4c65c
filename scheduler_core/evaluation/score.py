"""How well a node suits a pod, 0 to 10, on an absolute scale: the same placement always scores the same. Pure.

    score = 10 x (sum of weight x raw) / (sum of weights)

over the factors that mean something for the pod; each raw value is between 0 and 1, and is that of the worst set of
GPUs that may come out:

    bandwidth  of the ring through the GPUs, g GB/s: g / (g + 300), so 900 is 0.75, 600 is 0.67, 300 is 0.5, 50 is 0.14.
               Over PCIe by distance instead: PIX 0.10, PXB 0.08, PHB 0.06, NODE 0.04, SYS 0.02. Unknown is 0, or where
               labels say what joins the GPUs (but not which) 0.2 for NVSwitch and 0.15 for NVLink.
               Of pods with more than one GPU. Weighs double where an island is asked for, nothing where it is ignored.
    leftover   how few fragments the pod leaves: 1 / (1 + e^(-2 gain)), in steps; the gain is how many free GPUs cease
               to be fragments, by what pods usually ask for (``leftover``, ``mix``). Of pods with whole GPUs, and with
               shares of a GPU where the scheduler chooses it.
    numa       1 / (NUMA nodes that the GPUs are on). Where labels are all that is known: 1 on NUMA node 0, 0.5 on
               another (the classic rule; policy can turn it off). Unknown is 0. Weighs triple where asked for, nothing
               where ignored.
    nic        mean nearness of each GPU's nearest NIC: PIX 1.0, PXB 0.8, PHB 0.6, NODE 0.4, SYS 0.2; none is 0.
    health     0 where one of the GPUs may be degraded, where the node's observations are too old, and where the device
               plugin may crash over the pod; else 1.

What the pod's kind and money ask for: ``factors``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from gputopo.model import Interconnect, PcieDistance
from gputopo.paths import PathKind
from gputopo.rings import Ring
from scheduler_core.allocation.gpu_sets import ExactSets, Sets, member_places
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.cache.colocation import is_sensitive, wants_spread
from scheduler_core.cache.node_state import NodeState
from scheduler_core.evaluation import score_workload
from scheduler_core.evaluation.filters import may_be_degraded
from scheduler_core.evaluation.possible_gpus import candidate_sets, possible_gpus, possible_rings, whole_gpu_outcome
from scheduler_core.evaluation.score_fragmentation import fragmentation_score as left_over
from scheduler_core.policy.policy import Handling, Policy, Weights
from scheduler_core.request.device_request import SHARED
from scheduler_core.request.pod_request import PodProfile, Strength
from scheduler_core.request.workload_type import WorkloadType

MAX_POINTS = 10
_REMEMBERED = 1 << 14
_HALF_AT_GBPS = 300.0
_PCIE = {distance: 0.1 - 0.02 * place for place, distance in enumerate(PcieDistance)}
_HINT = {Interconnect.NVSWITCH: 0.2, Interconnect.NVLINK: 0.15}
_BY_ISLAND_WISH = {None: 1.0, Strength.PREFERRED: 2.0, Strength.REQUIRED: 2.0, Strength.IGNORE: 0.0}
_BY_NUMA_WISH = {None: 1.0, Strength.PREFERRED: 3.0, Strength.REQUIRED: 3.0, Strength.IGNORE: 0.0}

Raw = Callable[[PodProfile, NodeState, Policy], float]


class FactorScore(NamedTuple):
    """What one factor contributes."""

    factor: str
    raw: float  # 0 to 1
    weight: float
    share: float  # of the score: points


class Score(NamedTuple):
    """A node's score, and what it is made of."""

    points: float  # 0 to 10
    parts: tuple[FactorScore, ...]

    @property
    def rounded(self) -> int:
        """As the extender protocol wants it."""
        return int(self.points + 0.5)


def score_state(profile: PodProfile, node: NodeState, policy: Policy) -> Score:
    """The score of a node. It says how good the GPUs are that may come; whether they may come at all filters say."""
    return scorer_for(profile, policy)(node)


def scorer_for(profile: PodProfile, policy: Policy) -> Callable[[NodeState], Score]:
    """``score`` for many nodes: what does not depend on them is worked out once."""
    weights = _weights(profile, policy)
    counted = [(factor, FACTORS[factor], weight) for factor, weight in zip(FACTORS, weights, strict=True) if weight]

    def score_of(node: NodeState) -> Score:
        return combine_factors([(factor, raw(profile, node, policy), weight) for factor, raw, weight in counted])

    return score_of


def scoring_key(profile: PodProfile) -> PodProfile:
    """The profile without what decides only whether a node suits, not how well: both score alike."""
    wishes = profile.constraints
    return profile._replace(
        constraints=wishes._replace(
            model=None,
            min_vram_mib=None,
            min_gbps=None,
            interconnect=None,
            parallel=None,
            island=_effective_strength(wishes.island),
            numa=_effective_strength(wishes.numa),
            isolation=_effective_strength(wishes.isolation),
        )
    )


def combine_factors(values: Sequence[tuple[str, float, float]]) -> Score:
    """The score of factors with their raw values (0 to 1) and weights."""
    whole = sum(weight for _, _, weight in values) or 1.0  # a policy may weigh nothing: then all nodes are alike
    parts = [
        FactorScore(factor, round(raw, 6), weight, round(MAX_POINTS * weight * raw / whole, 6))
        for factor, raw, weight in values
    ]
    # Shares are rounded for the reader, and what was rounded up six times may add up to more than there is.
    return Score(min(MAX_POINTS, round(sum(part.share for part in parts), 6)), tuple(parts))


def bandwidth(profile: PodProfile, node: NodeState, _: Policy) -> float:
    """Of the worst ring."""
    found = whole_gpu_outcome(profile.device_request, node)
    if node.shape is None or found is None:
        return _HINT.get(node.interconnect, 0.0) if node.interconnect else 0.0
    return _slowest(node.shape, found.sets, node.interconnect)


def leftover(profile: PodProfile, node: NodeState, policy: Policy) -> float:
    """How few fragments remain."""
    found = whole_gpu_outcome(profile.device_request, node)
    return left_over(profile, node, policy.demand_mix, None if found is None else found.sets)


def numa(profile: PodProfile, node: NodeState, policy: Policy) -> float:
    """How few NUMA nodes; the classic rule where labels are all that is known."""
    if node.shape is None:
        return 0.0
    classic = policy.prefer_numa_zero and not node.described and profile.constraints.numa is None
    return min(
        (_least_local(node.shape, each.sets, classic) for each in possible_gpus(profile.device_request, node)),
        default=0.0,
    )


def nic(profile: PodProfile, node: NodeState, _: Policy) -> float:
    """Mean nearness of the nearest NICs."""
    if node.shape is None:
        return 0.0
    return min(
        (_farthest_from_nics(node.shape, each.sets) for each in possible_gpus(profile.device_request, node)),
        default=0.0,
    )


def health(profile: PodProfile, node: NodeState, policy: Policy) -> float:
    """Whether nothing speaks against the hardware."""
    if policy.stale is not Handling.IGNORE and node.stale:
        return 0.0
    if policy.degraded is not Handling.IGNORE and may_be_degraded(profile, node):
        return 0.0
    return 0.0 if any(each.may_crash for each in possible_gpus(profile.device_request, node)) else 1.0


FACTORS: dict[str, Raw] = {
    "bandwidth": bandwidth,
    "leftover": leftover,
    "numa": numa,
    "nic": nic,
    "health": health,
    "contiguous": score_workload.contiguous,
    "isolation": score_workload.isolation,
    "siblings": score_workload.siblings,
    "packing": score_workload.packing,
    "spread": score_workload.spread,
    "utilisation": score_workload.utilisation,
    "cost": score_workload.cost,
    "spot": score_workload.spot,
    "on_demand": score_workload.on_demand,
    "generation": score_workload.generation,
}  # by the names of ``policy.Weights``, and in their order
MEASURES = {
    "bandwidth": "the weakest hop of the ring through its GPUs",
    "leftover": "how few fragments it leaves, by what pods usually ask for",
    "numa": "on how few NUMA nodes its GPUs are",
    "nic": "how near the nearest NICs are",
    "health": "whether its hardware and its agent are well",
    "contiguous": "how close together by index its GPUs are",
    "isolation": "whether training and inference stay apart",
    "siblings": "whether GPUs and driver are as for the other pods of its job",
    "packing": "how near the memory of its card comes to the band that policy aims for",
    "spread": "how few pods of the same owner would fail with it",
    "utilisation": "how much of the node is in use then",
    "cost": "how little a GPU of it costs per hour",
    "spot": "whether it is spot or preemptible capacity",
    "on_demand": "whether it is not",
    "generation": "how new its GPUs are",
}  # in words


def _effective_strength(wish: Strength | None) -> Strength | None:
    """What must be is also better where it is."""
    return Strength.PREFERRED if wish is Strength.REQUIRED else wish


def _weights(profile: PodProfile, policy: Policy) -> Weights:
    """Those of the factors that mean something for the pod."""
    wishes, weights = profile.constraints, _of_kind(profile, policy)
    return weights._replace(
        bandwidth=weights.bandwidth * _BY_ISLAND_WISH[wishes.island] if profile.devices > 1 else 0.0,
        leftover=weights.leftover if profile.gpus or profile.constraints.vram_mib else 0.0,
        numa=weights.numa * _BY_NUMA_WISH[wishes.numa],
        contiguous=weights.contiguous if profile.devices > 1 else 0.0,
        isolation=weights.isolation if is_sensitive(profile) else 0.0,
        siblings=weights.siblings if profile.sibling_hardware is not None else 0.0,
        packing=weights.packing
        if wishes.vram_mib is not None or SHARED in dict(profile.device_request.totals)
        else 0.0,
        spread=weights.spread if wants_spread(profile) else 0.0,
    )


def _of_kind(profile: PodProfile, policy: Policy) -> Weights:
    kinds, workload = policy.workload_weights, profile.constraints.workload
    if profile.scavenger:
        return kinds.scavenger
    if workload is None:
        return policy.weights
    return {
        WorkloadType.TRAINING: kinds.training,
        WorkloadType.INFERENCE: kinds.inference,
        WorkloadType.BATCH: kinds.batch,
    }[workload]


def _of_ring(ring: Ring, hint: Interconnect | None) -> float:
    if ring.kind is PathKind.PCIE:
        return 0.0 if ring.distance is None else _PCIE[ring.distance]
    if ring.kind is PathKind.UNKNOWN or ring.gbps is None:
        return _HINT.get(hint, 0.0) if hint else 0.0
    return ring.gbps / (ring.gbps + _HALF_AT_GBPS)


# Nodes of one shape with the same GPUs to come are many, and profiles that ask for as many GPUs: so the worst of some
# sets is remembered. Where no set may come at all it is 0.


@lru_cache(maxsize=_REMEMBERED)
def _slowest(shape: MachineShape, sets: Sets, hint: Interconnect | None) -> float:
    return min((_of_ring(ring, hint) for ring in possible_rings(shape, sets)), default=0.0)


@lru_cache(maxsize=_REMEMBERED)
def _least_local(shape: MachineShape, sets: Sets, classic: bool) -> float:
    return min((_locality(shape, mask, classic=classic) for mask in candidate_sets(sets)), default=0.0)


@lru_cache(maxsize=_REMEMBERED)
def _farthest_from_nics(shape: MachineShape, sets: Sets) -> float:
    near = shape.nic_nearness
    if near is None:
        return 0.0
    means = (_worst_mean([near[place] for place in member_places(mask)], sets, mask) for mask in candidate_sets(sets))
    return min(means, default=0.0)


def _locality(shape: MachineShape, mask: int, *, classic: bool) -> float:
    count = shape.count_numa_nodes(mask)
    if count is None:
        return 0.0
    if classic and count == 1:
        return 1.0 if shape.on_numa(0, mask) == mask else 0.0
    return 1 / count


def _worst_mean(near: list[float], sets: Sets, mask: int) -> float:
    """Of one set its mean; of any ``count`` of them that of the worst."""
    size = mask.bit_count() if isinstance(sets, ExactSets) else sets.size
    return sum(sorted(near)[:size]) / size
