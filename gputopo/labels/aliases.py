"""Labels of hand-made clusters and other tools, read in place of gputopo's labels where these are absent. Pure.

A value that cannot be understood is ignored, and named: a guess about a unit would place pods on the wrong nodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gputopo.labels import keys
from gputopo.labels.keys import LabelKey
from gputopo.model import Interconnect

FAMILIES = (
    "tesla", "fermi", "kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada-lovelace", "hopper",
    "blackwell", "rubin",
)  # fmt: skip
"""GPU Feature Discovery's GPU families, oldest first (k8s-device-plugin, ``getArchFamily``)."""

_MOST_GB = 512  # per GPU: more is the memory of several GPUs, or another unit
_GIGABYTES = re.compile(r"\d{1,3}(?:\.\d{1,2})?", re.ASCII)
_IN_PRODUCT = re.compile(r"(\d{1,3})GB")
_COST = re.compile(r"\d{1,7}(?:\.\d{1,6})?", re.ASCII)
_NO_DOMAIN = frozenset({"none", "unknown", "null", "nil", "false", "na", "n-a"})


class Alias(NamedTuple):
    """A label that is read in place of another."""

    key: str
    example: str
    replaces: tuple[LabelKey, ...]  # the first is what it stands for; it counts only where all of these are absent
    meaning: str
    parse: Callable[[str, Mapping[str, str]], str | None]  # -> the value of ``replaces[0]``; None: malformed
    expected: str  # for people


class AliasedLabels(NamedTuple):
    """The labels of a node, with the labels that aliases stand for."""

    labels: Mapping[str, str]
    origins: Mapping[str, str] = {}  # gputopo's key -> the label as it is on the node: "gpu-memory-gb=80"
    faults: tuple[str, ...] = ()  # malformed aliases, and what is expected

    def quote(self, key: LabelKey) -> str:
        """Return a label as it is on the node: ``key=value``."""
        return self.origins.get(key.key) or f"{key.key}={self.labels[key.key]}"


def with_aliases(labels: Mapping[str, str]) -> AliasedLabels:
    """Return the labels with those that aliases stand for. Most nodes have no alias: then the same object."""
    if _ALIAS_KEYS.isdisjoint(labels):
        return AliasedLabels(labels)
    added: dict[str, str] = {}
    origins: dict[str, str] = {}
    faults = []
    for alias in ALIASES:
        text = labels.get(alias.key)
        if text is None or any(key.key in labels for key in alias.replaces):
            continue
        value = alias.parse(text.strip(), labels)
        if value is None:
            faults.append(f"the label {alias.key}={text[:63]} is ignored: expected {alias.expected}")
        else:
            key = alias.replaces[0].key
            added[key], origins[key] = value, f"{alias.key}={text[:63]}"
    return AliasedLabels({**labels, **added}, origins, tuple(faults))


def is_domain(text: str | None) -> bool:
    """Return whether a label's value names a domain: words for "none" do not."""
    return bool(text) and str(text).casefold() not in _NO_DOMAIN


def _mebibytes(text: str, labels: Mapping[str, str]) -> str | None:
    """Return at least so much memory: vendors count in 10^9 bytes, and some tools in 2^30."""
    if _GIGABYTES.fullmatch(text) is None or not 0 < float(text) <= _MOST_GB:
        return None
    in_product = _IN_PRODUCT.search(labels.get(keys.NVIDIA_PRODUCT.key, ""))
    if in_product is not None and float(text) > 1.1 * float(in_product[1]):
        return None
    return str(int(float(text) * 10**9 / 2**20))


def _interconnect(text: str, _: Mapping[str, str]) -> str | None:
    return text.casefold() if text.casefold() in {each.value for each in Interconnect} else None


def _family(text: str, _: Mapping[str, str]) -> str | None:
    spelled = "-".join(text.casefold().replace("_", "-").split())
    spelled = "ada-lovelace" if spelled in ("ada", "lovelace") else spelled
    return spelled if spelled in FAMILIES else None


def _domain(text: str, _: Mapping[str, str]) -> str | None:
    return text if is_domain(text) else None


def _cost(text: str, _: Mapping[str, str]) -> str | None:
    return text if _COST.fullmatch(text) else None


ALIASES = (
    Alias(
        "gpu-memory-gb",
        "80",
        (keys.VRAM_MIB, keys.NVIDIA_MEMORY),
        "Memory of each GPU in GB of 10^9 bytes (80 is 76293 MiB: a lower bound where GiB were meant).",
        _mebibytes,
        f"GB of one GPU, a plain number up to {_MOST_GB} that the product does not contradict",
    ),
    Alias(
        "gpu-interconnect",
        "NVLink",
        (keys.INTERCONNECT, keys.NVIDIA_TOPOLOGY),
        "Interconnect of the largest island, in any case.",
        _interconnect,
        "nvswitch, nvlink, pcie or none",
    ),
    Alias(
        "gpu-generation",
        "hopper",
        (keys.NVIDIA_FAMILY,),
        "GPU family, in any case.",
        _family,
        f"one of {', '.join(FAMILIES)}",
    ),
    Alias(
        "nvlink-fabric-id",
        "fabric-7",
        (keys.FABRIC, keys.NVIDIA_CLIQUE),
        "Multi-node NVLink domain: nodes with equal values are in one clique.",
        _domain,
        "the name of a domain",
    ),
    Alias(
        keys.COST_PER_HOUR_SHORT.key,
        keys.COST_PER_HOUR_SHORT.example,
        (keys.COST_PER_HOUR,),
        "Cost of the whole node per hour.",
        _cost,
        "a plain number like 32.77",
    ),
)
_ALIAS_KEYS = frozenset(each.key for each in ALIASES)
