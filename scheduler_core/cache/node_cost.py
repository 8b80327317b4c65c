"""The price of a node's GPUs, whether the node is spot capacity, and its GPU generation. Pure; None means unknown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from gputopo.labels import keys
from gputopo.labels.aliases import with_aliases
from gputopo.labels.capacity import is_spot
from gputopo.model import NodeTopology
from scheduler_core.policy.gpu_families import GPU_FAMILIES, family_of

_COST = re.compile(r"\d{1,7}(?:\.\d{1,6})?")


class NodeCost(NamedTuple):
    """The price and kind of a node's capacity."""

    per_gpu_hour: float | None = None  # in the platform owner's currency
    spot: bool = False
    generation: int | None = None  # place of its oldest GPU in ``GPU_FAMILIES``


class LabelledCost(NamedTuple):
    """The price and kind of a node's capacity by its labels alone."""

    per_hour: float | None
    spot: bool


def parse_cost_labels(labels: Mapping[str, str]) -> LabelledCost:
    """Return the cost of a whole node by its labels."""
    text = with_aliases(labels).labels.get(keys.COST_PER_HOUR.key, "")
    return LabelledCost(float(text) if _COST.fullmatch(text) else None, is_spot(labels))


def cost_of_node(labelled: LabelledCost, topology: NodeTopology | None, allocatable: int) -> NodeCost:
    """Return the cost by labels and GPUs. ``allocatable``: GPUs, used where the topology lists none."""
    usable = () if topology is None else topology.usable
    gpus = len(usable) or allocatable
    per_gpu_hour = labelled.per_hour / gpus if gpus and labelled.per_hour is not None else None
    families = frozenset([gpu.architecture or family_of(gpu.product) for gpu in usable])
    return _shared_cost(NodeCost(per_gpu_hour, labelled.spot, _generation(families)))


@lru_cache(maxsize=1 << 10)
def _shared_cost(cost: NodeCost) -> NodeCost:
    """Return one object for all equal costs."""
    return cost


@lru_cache(maxsize=1 << 10)
def _generation(families: frozenset[str | None]) -> int | None:
    known = {GPU_FAMILIES.index(family) for family in families if family in GPU_FAMILIES}
    return min(known) if known and len(known) == len(families) else None
