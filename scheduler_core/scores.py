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
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gputopo.model import Interconnect, PcieDistance
from gputopo.paths import PathKind
from gputopo.rings import Ring
from scheduler_core.filters import may_be_degraded
from scheduler_core.leftover import leftover as left_over
from scheduler_core.nodes import NodeState
from scheduler_core.outcomes import candidates, outcomes, rings, together
from scheduler_core.policy import Handling, Policy, Weights
from scheduler_core.request import Profile, Wish
from scheduler_core.sets import OneOf, Sets, places
from scheduler_core.shapes import Shape

TOP = 10
_HALF_AT_GBPS = 300.0
_PCIE = {distance: 0.1 - 0.02 * place for place, distance in enumerate(PcieDistance)}
_HINT = {Interconnect.NVSWITCH: 0.2, Interconnect.NVLINK: 0.15}
_BY_ISLAND_WISH = {None: 1.0, Wish.PREFERRED: 2.0, Wish.REQUIRED: 2.0, Wish.IGNORE: 0.0}
_BY_NUMA_WISH = {None: 1.0, Wish.PREFERRED: 3.0, Wish.REQUIRED: 3.0, Wish.IGNORE: 0.0}

Raw = Callable[[Profile, NodeState, Policy], float]


class Part(NamedTuple):
    """What one factor contributes."""

    factor: str
    raw: float  # 0 to 1
    weight: float
    share: float  # of the score: points


class Score(NamedTuple):
    """A node's score, and what it is made of."""

    points: float  # 0 to 10
    parts: tuple[Part, ...]

    @property
    def rounded(self) -> int:
        """As the extender protocol wants it."""
        return int(self.points + 0.5)


def score(profile: Profile, node: NodeState, policy: Policy) -> Score:
    """The score of a node that passed the filters."""
    weights = _weights(profile, policy.weights)
    whole = sum(weights) or 1.0  # a policy may weigh nothing: then all nodes are alike
    parts = []
    for (factor, raw_of), weight in zip(FACTORS.items(), weights, strict=True):
        if weight:
            raw = raw_of(profile, node, policy)
            parts.append(Part(factor, round(raw, 6), weight, round(TOP * weight * raw / whole, 6)))
    # Shares are rounded for the reader, and what was rounded up six times may add up to more than there is.
    return Score(min(TOP, round(sum(part.share for part in parts), 6)), tuple(parts))


def bandwidth(profile: Profile, node: NodeState, _: Policy) -> float:
    """Of the worst ring."""
    found = together(profile.ask, node)
    if node.shape is None or found is None:
        return _HINT.get(node.interconnect, 0.0) if node.interconnect else 0.0
    return min((_of_ring(ring, node.interconnect) for ring in rings(node.shape, found.sets)), default=0.0)


def leftover(profile: Profile, node: NodeState, policy: Policy) -> float:
    """How few fragments remain."""
    found = together(profile.ask, node)
    return left_over(profile, node, policy.mix, None if found is None else found.sets)


def numa(profile: Profile, node: NodeState, policy: Policy) -> float:
    """How few NUMA nodes; the classic rule where labels are all that is known."""
    if node.shape is None:
        return 0.0
    return min(
        (
            _locality(node, node.shape, mask, profile.wishes.numa, policy)
            for each in outcomes(profile.ask, node)
            for mask in candidates(each.sets)
        ),
        default=0.0,
    )


def nic(profile: Profile, node: NodeState, _: Policy) -> float:
    """Mean nearness of the nearest NICs."""
    if node.shape is None or node.shape.nic_nearness is None:
        return 0.0
    near = node.shape.nic_nearness
    means = [
        _worst_mean([near[place] for place in places(mask)], each.sets, mask)
        for each in outcomes(profile.ask, node)
        for mask in candidates(each.sets)
    ]
    return min(means, default=0.0)


def health(profile: Profile, node: NodeState, policy: Policy) -> float:
    """Whether nothing speaks against the hardware."""
    if policy.stale is not Handling.IGNORE and node.stale:
        return 0.0
    if policy.degraded is not Handling.IGNORE and may_be_degraded(profile, node):
        return 0.0
    return 0.0 if any(each.may_crash for each in outcomes(profile.ask, node)) else 1.0


FACTORS: dict[str, Raw] = {
    "bandwidth": bandwidth,
    "leftover": leftover,
    "numa": numa,
    "nic": nic,
    "health": health,
}  # by the names of ``policy.Weights``


def _weights(profile: Profile, weights: Weights) -> Weights:
    """Those of the factors that mean something for the pod."""
    wishes = profile.wishes
    return weights._replace(
        bandwidth=weights.bandwidth * _BY_ISLAND_WISH[wishes.island] if profile.devices > 1 else 0.0,
        leftover=weights.leftover if profile.gpus or profile.wishes.vram_mib else 0.0,
        numa=weights.numa * _BY_NUMA_WISH[wishes.numa],
    )


def _of_ring(ring: Ring, hint: Interconnect | None) -> float:
    if ring.kind is PathKind.PCIE:
        return 0.0 if ring.distance is None else _PCIE[ring.distance]
    if ring.kind is PathKind.UNKNOWN or ring.gbps is None:
        return _HINT.get(hint, 0.0) if hint else 0.0
    return ring.gbps / (ring.gbps + _HALF_AT_GBPS)


def _locality(node: NodeState, shape: Shape, mask: int, wish: Wish | None, policy: Policy) -> float:
    count = shape.numa_nodes(mask)
    if count is None:
        return 0.0
    if policy.prefer_numa_zero and not node.described and wish is None and count == 1:
        return 1.0 if shape.on_numa(0, mask) == mask else 0.0
    return 1 / count


def _worst_mean(near: list[float], sets: Sets, mask: int) -> float:
    """Of one set its mean; of any ``count`` of them that of the worst."""
    size = mask.bit_count() if isinstance(sets, OneOf) else sets.size
    return sum(sorted(near)[:size]) / size
