"""The decisions of the platform owner, with defaults that suit most clusters. Values only.

``file`` parses them from a policy file; ``profiles`` chooses the profile of a pod.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from gputopo.timing import STALE_AFTER_S
from scheduler_core.policy.demand_mix import DEFAULT_MIX, DemandMix
from scheduler_core.policy.factors import Weights


class Handling(Enum):
    """How placement treats a node that is degraded or stale."""

    IGNORE = "ignore"
    AVOID = "avoid"  # other nodes score better
    REFUSE = "refuse"


class WorkloadWeights(NamedTuple):
    """The weights for pods of each workload class. ``Policy.weights`` are for all other pods."""

    # One slow link slows every rank. Packed training leaves other nodes empty, which can be scaled down.
    training: Weights = Weights(health=3.0, contiguous=0.5, utilisation=2.0)
    inference: Weights = Weights()
    batch: Weights = Weights()
    scavenger: Weights = Weights(leftover=6.0, spot=6.0)  # leftover fragments and spot capacity


class FillBand(NamedTuple):
    """The target fill level of a shared GPU's memory, 0 to 1. Above ``high`` GPUs are used last, above 1 never."""

    low: float = 0.7
    high: float = 0.8


class NodeReads(NamedTuple):
    """The fields of a node that the weights of a policy file read, beyond those that all evaluations read.

    Nodes in equal states share their results, so a state has only what some profile reads.
    """

    load: bool = False  # the measured load of the GPUs
    labels: tuple[str, ...] = ()  # these labels
    everything: bool = False  # every label that is kept, and the name: for extensions that declare nothing


READS_NOTHING_MORE = NodeReads()


class PodReads(NamedTuple):
    """The fields of a pod that the extensions of a policy file read, beyond its requirements."""

    labels: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    everything: bool = False


READS_NO_MORE_OF_PODS = PodReads()


class FilterUse(NamedTuple):
    """A filter of another package that a profile uses."""

    name: str
    refuse_on_failure: bool = True  # what a failure of the function means for a node


class Policy(NamedTuple):
    """All decisions of a profile."""

    weights: Weights = Weights()
    degraded: Handling = Handling.AVOID
    stale: Handling = Handling.AVOID  # pods with a required shape are rejected on a stale node in any case
    stale_after_s: float = STALE_AFTER_S  # age of an observation; the agent confirms it every few minutes
    prefer_numa_zero: bool = True  # on nodes that only labels describe: GPUs on NUMA node 0 score highest
    shortlist: int = 48  # nodes that Filter returns at most; kube-scheduler then scores dozens instead of thousands
    workload_weights: WorkloadWeights = WorkloadWeights()
    fill_bands: FillBand = FillBand()
    half_cost: float = 2.0  # per GPU and hour; a GPU of this cost has half the raw score of a free one
    enough_generation: int | None = None  # index in ``gpu_families.FAMILIES``; newer families are not better
    name: str = "default"  # of the profile in the policy file
    demand_mix: DemandMix = DEFAULT_MIX  # the usual requests, by which free GPUs count as usable or fragmented
    tolerance: float = 0.05  # points; nodes this close to the best are equal, and kube-scheduler chooses among them
    # New fields are added at the end: decision logs have the fields by position.
    reads: NodeReads = READS_NOTHING_MORE  # of all profiles, because they share the states of nodes
    filters: tuple[FilterUse, ...] = ()  # of other packages
    factors: tuple[tuple[str, float], ...] = ()  # of other packages: name and weight
