"""The parsed matrix of `nvidia-smi topo -m`."""

from __future__ import annotations

import msgspec

from gputopo.model import FactGroup, PcieDistance, Problem

# A PCIe distance; or the number of NVLinks bonded between the two GPUs; None on the diagonal and where unknown.
Cell = PcieDistance | int | None


class TopoGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of the matrix: its index and the affinity columns as printed; None where blank, "N/A" or absent."""

    index: int  # the number in its label: "GPU3"
    cpu_affinity: str | None = None  # cpulist: "0-63,128-191"
    numa_affinity: str | None = None  # "0", "0-1", "0,5-11": a kernel list
    gpu_numa_id: str | None = None  # Grace: the NUMA node that is this GPU's memory


class TopoNic(msgspec.Struct, frozen=True, kw_only=True):
    """An RDMA device of the matrix."""

    label: str  # of its column: "NIC0", or the device's name in older drivers
    name: str | None  # "mlx5_3"; None where the column is "NIC0" and the legend is missing
    distances: tuple[PcieDistance | None, ...]  # to each GPU, in the order of TopoMatrix.gpus


class TopoMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """One matrix, always symmetric. ``problems`` names all that is missing, unusual or contradictory."""

    gpus: tuple[TopoGpu, ...]  # ascending by index
    cells: tuple[tuple[Cell, ...], ...]  # in the order of ``gpus``, both ways
    nics: tuple[TopoNic, ...] = ()  # in the order of the columns
    # False for `topo -mp` (PCIe only): NVLinks are unknown.
    nvlink_shown: bool = True
    may_be_pci_only: bool = False  # no NVLink, and neither a legend nor a command shows that it is not of `topo -mp`
    problems: tuple[Problem, ...] = ()
    uncertain: tuple[FactGroup, ...] = ()  # facts that another reading of a damaged text would change

    @property
    def known_cells(self) -> int:
        """The number of known cells: a truncated copy has fewer than a complete copy."""
        return sum(cell is not None for row in self.cells for cell in row)
