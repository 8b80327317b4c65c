"""What the platform owner decides; the defaults are good without reading anything. Values only.

``policy_file`` reads them from a file; ``policies`` says which pod gets which.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from gputopo.timing import STALE_AFTER_S
from scheduler_core.policy.demand_mix import DEFAULT_MIX, DemandMix


class Handling(Enum):
    """What to do with a node that is worse than it should be."""

    IGNORE = "ignore"
    AVOID = "avoid"  # other nodes score better
    REFUSE = "refuse"


class Weights(NamedTuple):
    """How much each factor of a score counts, relative to the others. What each measures: ``scores``."""

    bandwidth: float = 4.0
    leftover: float = 3.0
    numa: float = 1.0
    nic: float = 1.0
    health: float = 1.0
    contiguous: float = 0.0
    isolation: float = 6.0
    siblings: float = 2.0
    packing: float = 6.0
    spread: float = 4.0
    utilisation: float = 0.0
    cost: float = 0.0
    spot: float = 0.0
    on_demand: float = 0.0
    generation: float = 0.0


class WorkloadWeights(NamedTuple):
    """The weights for pods that are known to be something. ``Policy.weights`` are those of all others."""

    # One slow link slows every rank. Training together on few nodes leaves others empty, which can be scaled down.
    training: Weights = Weights(health=3.0, contiguous=0.5, utilisation=2.0)
    inference: Weights = Weights()
    batch: Weights = Weights()
    scavenger: Weights = Weights(leftover=6.0, spot=6.0)  # left-over fragments, and what may be taken away any time


class FillBand(NamedTuple):
    """How full a card's memory should be, as shares of it. Above ``high`` little is placed, above 1 nothing."""

    low: float = 0.7
    high: float = 0.8


class Policy(NamedTuple):
    """All decisions, in one value."""

    weights: Weights = Weights()
    degraded: Handling = Handling.AVOID
    stale: Handling = Handling.AVOID  # required shapes are refused on a stale node in any case
    stale_after_s: float = STALE_AFTER_S  # age of an observation; the agent confirms it every few minutes
    prefer_numa_zero: bool = True  # the classic rule, where nothing but labels is known of a node
    shortlist: int = 48  # nodes that Filter answers at most; kube-scheduler then scores dozens instead of thousands
    workload_weights: WorkloadWeights = WorkloadWeights()
    fill_bands: FillBand = FillBand()
    half_cost: float = 2.0  # per GPU and hour: what costs that much is worth half of what costs nothing
    enough_generation: int | None = None  # place in ``economy.FAMILIES`` that is as good as any newer one
    name: str = "default"  # of the profile of a policy file that it is
    demand_mix: DemandMix = DEFAULT_MIX  # what pods usually ask for: what is left over is judged by it
    tolerance: float = 0.05  # points: nodes this close to the best are equals, and kube-scheduler chooses among them
