"""GPU families (architectures) by name, oldest first, and the family of a product. Pure."""

from __future__ import annotations

from gputopo.labels.aliases import FAMILIES
from gputopo.labels.values import gfd_value
from scheduler_core.request.gpu_model import is_model

GPU_FAMILIES = FAMILIES  # oldest first

# Nodes that are labelled by hand may have nothing but the product. NVIDIA's data centre GPUs, by a word of the product.
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


def family_of(product: str | None) -> str | None:
    """Return the family of a product; None if no word of it is in the table above."""
    spelled = None if product is None else gfd_value(product)
    if spelled is None:
        return None
    return next((family for family, words in _PRODUCTS if any(is_model(spelled, word) for word in words)), None)
