"""Facts that follow from a product's name or architecture and that no source reports. Data, with references. Pure."""

from __future__ import annotations

import re

# NVML_DEVICE_ARCH_* (nvml.h) -> GPU Feature Discovery's family names, which come from the compute capability.
ARCHITECTURES = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada-lovelace",
    9: "hopper",
    10: "blackwell",
}
# Compute capability -> family (k8s-device-plugin, ``getArchFamily``); needed where NVML is newer than this enum.
_FAMILY_OF_MAJOR = {
    1: "tesla",
    2: "fermi",
    3: "kepler",
    5: "maxwell",
    6: "pascal",
    9: "hopper",
    10: "blackwell",
    11: "blackwell",
    12: "blackwell",
    13: "rubin",
}

# GB/s per NVLink, both ways, by product. Used only where no speed is known: a pasted matrix with a product name.
# NVLink 1: 40, 2 and 3 and 4: 50, 5: 100; consumer and workstation Ampere has its own slower links (112.5 over four).
_LANE_GBPS = (
    (r"\bP100\b", 40.0),
    (r"\b(V100|A100|A800|A30|H100|H800|H200|H20|GH200)\b|Quadro RTX [568]000|RTX 2080", 50.0),
    (r"\b(A40|RTX A[456]\d00|3090)\b", 28.125),
    (r"\bG?B[23]00\b", 100.0),
)
# Links that one NVLink bridge adds between two cards (product briefs).
_BRIDGE_LINKS = (
    (r"\b(A100|A800|H100|H800)\b.*\bPCIe\b|\b(A100|A800)-PCIE\b|\bA30\b", 4),
    (r"\b(A40|RTX A[456]\d00|3090)\b", 4),
    (r"Quadro RTX [568]000|RTX 2080", 2),
)
# NVLinks between two GPUs, as ``topo -m`` counts them: behind NVSwitches, on boards with four GPUs, or by bridges.
_PAIR_LINKS = (
    (r"\bA100-SXM", (12, 4)),
    (r"\bH100\b.*\bHBM3\b|\bGH200\b|\bH200\b|\bH20\b", (18, 6)),
    (r"\bG?B[23]00\b", (18,)),
    (r"\b(A100|A800|H100|H800)\b.*\b(PCIe|NVL)\b|\b(A100|A800)-PCIE\b", (12, 8, 4)),
)

# Products without NVLink connectors (NVIDIA's data sheets), as whole names: a longer name may be another product.
_WITHOUT_NVLINK = re.compile(
    r"(NVIDIA )?(Tesla )?(K[468]0[cmst]?|M4|M6|M10|M40( 24GB)?|M60|P4|P6|P40|T4G?|A2|A10[GM]?|A16|L2|L4|L20|L40[SG]?)"
    r"|(NVIDIA )?(GeForce )?GTX \d{3,4}( Ti)?( SUPER)?"
    r"|(NVIDIA )?(GeForce )?RTX (20[56]0|30[5-8]0|[45]0\d0)( D| Ti| SUPER)*"
    r"|(NVIDIA )?RTX (A400|A1000|A2000|A4000)( 12GB)?"
    r"|(NVIDIA )?RTX [2-6]\d{3} Ada Generation"
    r"|(NVIDIA )?RTX PRO \d000 Blackwell( (Workstation|Server|Max-Q Workstation) Edition)?"
)

_DIGITS = str.maketrans("OoIl", "0011")  # letters that people and scanners take for digits


def architecture_family(compute_capability: tuple[int, int] | None, architecture: int | None) -> str | None:
    """Return the architecture as GPU Feature Discovery names it; None where it is unknown."""
    if compute_capability is not None:
        major, minor = compute_capability
        if major == 7:
            return "volta" if minor < 5 else "turing"
        if major == 8:
            return "ampere" if minor < 9 else "ada-lovelace"
        if major in _FAMILY_OF_MAJOR:
            return _FAMILY_OF_MAJOR[major]
    return None if architecture is None else ARCHITECTURES.get(architecture)


def bridge_links(product: str | None) -> int | None:
    """Return the NVLinks of one bridge between two cards of this product; None where it is not in the table."""
    if product is None:
        return None
    return next((links for pattern, links in _BRIDGE_LINKS if re.search(pattern, product)), None)


def product_lane_bandwidth(product: str | None) -> float | None:
    """Return GB/s of one NVLink of this product, both ways; None for a product that is not in the table."""
    if product is None:
        return None
    return next((gbps for pattern, gbps in _LANE_GBPS if re.search(pattern, product)), None)


def board_links(product: str | None) -> tuple[int, ...]:
    """Return ``pair_links`` of a product whose boards wire all NVLinks of a GPU: the first is their number; else ()."""
    return () if is_bridged_card(product) else pair_links(product)


def is_known_product(product: str) -> bool:
    """Return whether a table of this module has the product."""
    return product_lane_bandwidth(product) is not None or has_no_nvlink(product)


def is_superchip(product: str | None) -> bool:
    """Return whether C2C links connect the GPU with the CPU of a superchip: GH200, GB200, GB300."""
    return product is not None and re.search(r"\bG[HB][23]00\b", product) is not None


def misread_product(product: str) -> str | None:
    """Return the known product that this name is with digits for similar letters ("H1O0"); None where it is none."""
    words = re.split(r"([ -])", product)
    name = "".join(each.translate(_DIGITS) if re.search(r"\d", each) else each for each in words)
    return name if name != product and is_known_product(name) else None


def has_no_nvlink(product: str | None) -> bool:
    """Return whether GPUs of this product certainly have no NVLinks."""
    return product is not None and _WITHOUT_NVLINK.fullmatch(product) is not None


def is_bridged_card(product: str | None) -> bool:
    """Return whether only bridges link GPUs of this product: cards for PCIe slots."""
    is_named_so = product is not None and re.search(r"\b(PCI-?E|NVL)\b", product, re.IGNORECASE) is not None
    return is_named_so or bridge_links(product) is not None


def pair_links(product: str | None) -> tuple[int, ...]:
    """Return the possible NVLinks between two GPUs, the largest first; () for a product that is not in the table."""
    if product is None:
        return ()
    return next((links for pattern, links in _PAIR_LINKS if re.search(pattern, product)), ())
