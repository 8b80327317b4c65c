"""What a node costs, whether it may be taken away, and how old its GPUs are. Pure; what is not said is None."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from gputopo.labels import keys
from gputopo.labels.capacity import is_spot
from gputopo.model import NodeTopology
from scheduler_core.policy.gpu_families import GPU_FAMILIES, family_of

_COST = re.compile(r"\d{1,7}(?:\.\d{1,6})?")


class NodeCost(NamedTuple):
    """The facts, for one GPU of the node."""

    cost: float | None = None  # per GPU and hour, in the owner's currency
    spot: bool = False
    generation: int | None = None  # place in ``FAMILIES`` of its oldest GPU


def parse_node_cost(labels: Mapping[str, str], topology: NodeTopology | None, offered: int) -> NodeCost:
    """What labels and GPUs tell. ``offered``: GPUs that count where nobody tells which there are."""
    gpus = offered if topology is None else len(topology.usable) or offered
    text = labels.get(keys.COST_PER_HOUR.key, labels.get(keys.COST_PER_HOUR_SHORT.key, ""))
    cost = float(text) / gpus if gpus and _COST.fullmatch(text) else None
    return NodeCost(cost, is_spot(labels), _generation(topology))


def _generation(topology: NodeTopology | None) -> int | None:
    gpus = () if topology is None else topology.usable
    families = {gpu.architecture or family_of(gpu.product) for gpu in gpus}
    known = {GPU_FAMILIES.index(family) for family in families if family in GPU_FAMILIES}
    return min(known) if known and len(known) == len(families) else None
