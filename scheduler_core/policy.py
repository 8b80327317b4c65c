"""What the platform owner decides; the defaults are good without reading anything. Values only."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from scheduler_core.mix import USUAL, Mix


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


class Policy(NamedTuple):
    """All decisions, in one value."""

    weights: Weights = Weights()
    degraded: Handling = Handling.AVOID
    stale: Handling = Handling.AVOID  # required shapes are refused on a stale node in any case
    stale_after_s: float = 900.0  # age of an observation; the agent confirms it every few minutes
    prefer_numa_zero: bool = True  # the classic rule, where nothing but labels is known of a node
    shortlist: int = 48  # nodes that Filter answers at most; kube-scheduler then scores dozens instead of thousands
    mix: Mix = USUAL  # what pods usually ask for: what is left over is judged by it
    tolerance: float = 0.05  # points: nodes this close to the best are equals, and kube-scheduler chooses among them
