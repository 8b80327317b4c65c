"""Facts about a machine as a whole: what is known of its GPUs without knowing which GPU is which. Pure.

Labels of a node give such facts: the sizes of its islands, but not the members. Wherever a fact holds for every set of
a size, it is as good as the link graph.
"""

from __future__ import annotations

from enum import Enum

import msgspec


class Interconnect(Enum):
    """The interconnect of the GPUs of an island, best first."""

    NVSWITCH = "nvswitch"
    NVLINK = "nvlink"
    PCIE = "pcie"  # no NVLink: GPUs reach each other over PCIe
    NONE = "none"  # fewer than two GPUs: nothing to join


class TopologySummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts about all usable GPUs of a machine together; None: unknown.

    Every answer of a method holds for any set of ``size`` of the GPUs; None: some sets may differ from others.
    """

    island_sizes: tuple[int, ...] | None = None  # largest first
    interconnect: Interconnect | None = None  # of the largest island
    island_gbps: int | None = None  # GB/s per GPU over NVLink in the largest island, both directions; a lower bound
    numa_gpus: tuple[int, ...] | None = None  # GPUs of each NUMA node that has some
    min_memory_mib: int | None = None  # of the smallest GPU
    sources: tuple[str, ...] = ()  # the labels that state these facts: "<label>=8"

    def in_one_island(self, size: int) -> bool | None:
        """Return whether the GPUs of a set lie within one island."""
        return _within_one(self.island_sizes, size)

    def on_one_numa_node(self, size: int) -> bool | None:
        """Return whether the GPUs of a set are on one NUMA node."""
        return _within_one(self.numa_gpus, size)

    def ring_interconnect(self, size: int) -> Interconnect | None:
        """Return what every hop of the ring through a set of two or more GPUs uses, or better: PCIE is a hop over PCIe.

        Two GPUs of an island without an NVSwitch need not be linked directly, unless they are the whole island.
        """
        together = self.in_one_island(size)
        if together is False:
            return Interconnect.PCIE
        if together and (self.interconnect is Interconnect.NVSWITCH or size == 2 == sum(self.island_sizes or ())):
            return self.interconnect
        return None


def _within_one(groups: tuple[int, ...] | None, size: int) -> bool | None:
    """Return whether any ``size`` members of these groups are in one group."""
    if size < 2:
        return True
    if groups is None:
        return None
    if size > max(groups, default=0):
        return False
    return True if len(groups) == 1 else None
