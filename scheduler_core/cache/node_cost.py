"""What a node costs, whether it may be taken away, and how old its GPUs are. Pure; what is not said is None."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from gputopo.labels import keys
from gputopo.labels.capacity import is_spot
from gputopo.labels.values import gfd_value
from gputopo.model import NodeTopology
from scheduler_core.request.gpu_model import is_model

# GPU Feature Discovery's families, oldest first (k8s-device-plugin, ``getArchFamily``).
FAMILIES = (
    "tesla", "fermi", "kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada-lovelace", "hopper",
    "blackwell", "rubin",
)  # fmt: skip
# Where nodes are labelled by hand nothing but the product may be said. NVIDIA's data centre cards, by a word of it.
_PRODUCTS = (
    ("kepler", ("K80", "K40")),
    ("maxwell", ("M40", "M60")),
    ("pascal", ("P100", "P40", "P4")),
    ("volta", ("V100", "V100S")),
    ("turing", ("T4", "T40")),
    ("ampere", ("A100", "A800", "A30", "A40", "A10", "A10G", "A16", "A2", "RTX-A6000")),
    ("ada-lovelace", ("L40", "L40S", "L20", "L4", "L2")),
    ("hopper", ("H100", "H800", "H200", "H20", "GH200")),
    ("blackwell", ("B100", "B200", "B300", "GB200", "GB300", "RTX-PRO-6000", "RTX-PRO-6000-Blackwell")),
)
_COST = re.compile(r"\d{1,7}(?:\.\d{1,6})?")


class Economy(NamedTuple):
    """The facts, for one GPU of the node."""

    cost: float | None = None  # per GPU and hour, in the owner's currency
    spot: bool = False
    generation: int | None = None  # place in ``FAMILIES`` of its oldest GPU


def read_economy(labels: Mapping[str, str], topology: NodeTopology | None, offered: int) -> Economy:
    """What labels and GPUs tell. ``offered``: GPUs that count where nobody tells which there are."""
    gpus = offered if topology is None else len(topology.usable) or offered
    text = labels.get(keys.COST_PER_HOUR.key, labels.get(keys.COST_PER_HOUR_SHORT.key, ""))
    cost = float(text) / gpus if gpus and _COST.fullmatch(text) else None
    return Economy(cost, is_spot(labels), _generation(topology))


def family_of(product: str | None) -> str | None:
    """The family of a product that is named in the table above."""
    spelled = None if product is None else gfd_value(product)
    if spelled is None:
        return None
    return next((family for family, words in _PRODUCTS if any(is_model(spelled, word) for word in words)), None)


def _generation(topology: NodeTopology | None) -> int | None:
    gpus = () if topology is None else topology.usable
    families = {gpu.architecture or family_of(gpu.product) for gpu in gpus}
    known = {FAMILIES.index(family) for family in families if family in FAMILIES}
    return min(known) if known and len(known) == len(families) else None
