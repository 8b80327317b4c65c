"""Labels of a Node -> facts about the machine as a whole. Pure.

Only labels that agree with the number of GPUs are used: a label that contradicts it was left behind by other hardware,
or was set by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gputopo.labels import keys
from gputopo.labels.aliases import AliasedLabels
from gputopo.labels.values import MAX_LENGTH
from gputopo.model import Interconnect, Problem, ProblemKind, TopologySummary

_SIZES = re.compile(r"[1-9][0-9]?(?:-[1-9][0-9]?)*")


def summarize_labels(aliased: AliasedLabels, count: int) -> tuple[TopologySummary | None, tuple[Problem, ...]]:
    """Return the facts that labels state of all ``count`` GPUs, and which labels contradict that number.

    None: the labels state no such fact.
    """
    labels = aliased.labels
    islands, island_key = _islands(labels, count)
    numa = _sizes(labels.get(keys.NUMA_LAYOUT.key, ""))
    contradictions = tuple(
        Problem(key.key, ProblemKind.CONFLICT, f"{key.key}={labels[key.key]} is not about {count} GPUs: ignored")
        for key, sizes in ((keys.ISLANDS, _sizes(labels.get(keys.ISLANDS.key, ""))), (keys.NUMA_LAYOUT, numa))
        if key.key in labels and (sizes is None or sum(sizes) != count)
    )
    if numa is not None and sum(numa) != count:
        numa = None
    used: list[keys.LabelKey] = [*island_key, *((keys.NUMA_LAYOUT,) if numa else ())]
    interconnect_key = keys.INTERCONNECT if keys.INTERCONNECT.key in labels else keys.NVIDIA_TOPOLOGY
    interconnect = parse_interconnect(labels)
    if interconnect is not None and count > 1:
        used.append(interconnect_key)
        if islands is None:
            islands = _islands_by_interconnect(interconnect, count)
        elif (max(islands) > 1) is not (interconnect in (Interconnect.NVSWITCH, Interconnect.NVLINK)):
            text = f"{aliased.quote(interconnect_key)} contradicts the island sizes: both ignored"
            contradictions += (Problem(interconnect_key.key, ProblemKind.CONFLICT, text),)
            islands, interconnect, used = None, None, [keys.NUMA_LAYOUT] if numa else []
    gbps = plain_number(labels.get(keys.ISLAND_BANDWIDTH.key, "")) if islands is not None else None
    memory = plain_number(labels.get(keys.VRAM_MIB.key, "")) or None
    used += [key for key, value in ((keys.ISLAND_BANDWIDTH, gbps), (keys.VRAM_MIB, memory)) if value is not None]
    if not used:
        return None, contradictions
    if numa is None and keys.NVIDIA_NUMA.key in labels:
        used.append(keys.NVIDIA_NUMA)
    sources = tuple(map(aliased.quote, used))
    return TopologySummary(islands, interconnect, gbps, numa, memory, sources), contradictions


def parse_interconnect(labels: Mapping[str, str]) -> Interconnect | None:
    """Return the interconnect that labels state; None: none, or an unknown word."""
    value = labels.get(keys.INTERCONNECT.key, labels.get(keys.NVIDIA_TOPOLOGY.key))
    return next((each for each in Interconnect if each.value == value), None)


def plain_number(text: str) -> int | None:
    """Return a number of ASCII digits, at most nine; None for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def _islands(labels: Mapping[str, str], count: int) -> tuple[tuple[int, ...] | None, tuple[keys.LabelKey, ...]]:
    """Return the island sizes, and the label that states them."""
    if keys.ISLANDS.key in labels:
        sizes = _sizes(labels[keys.ISLANDS.key])
        return (sizes, (keys.ISLANDS,)) if sizes is not None and sum(sizes) == count else (None, ())
    if count and plain_number(labels.get(keys.LARGEST_ISLAND.key, "")) == count:
        return (count,), (keys.LARGEST_ISLAND,)
    return None, ()


def _islands_by_interconnect(interconnect: Interconnect, count: int) -> tuple[int, ...] | None:
    """Return the sizes where the interconnect of the largest island alone determines them."""
    if interconnect in (Interconnect.PCIE, Interconnect.NONE):
        return (1,) * count
    return (2,) if count == 2 else None


def _sizes(text: str) -> tuple[int, ...] | None:
    if len(text) > MAX_LENGTH or not _SIZES.fullmatch(text):
        return None
    return tuple(sorted(map(int, text.split("-")), reverse=True))
