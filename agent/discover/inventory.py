"""Which GPUs there are, and what each source says of each of them, side by side. Pure.

The first source that lists GPUs at all decides which there are: NVML, then ``topo -m``, ``-q -x``, ``-L``, NCCL. The
others are matched to that list by UUID, bus id or index. A card that is on the PCI bus only is no GPU that a pod could
be given, so the bus adds facts and never GPUs; nor is one that this process may not open, nor the board of a DGX
Station that drives its display, which the device plugin skips too (go-nvlib, ``defaultSkippedDevices``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from agent.discover.parsed import Heard
from agent.snapshot import NvmlGpu
from agent.sources.bus_id import sysfs_bus_id

if TYPE_CHECKING:
    from agent.sources.nccl import NcclGpu
    from agent.sources.pci import PciDevice
    from agent.sources.smi.listing import ListedGpu
    from agent.sources.smi.query import QueriedGpu
    from agent.sources.smi.topo import TopoGpu


class Sighting(msgspec.Struct, frozen=True):
    """One GPU, as each source saw it."""

    index: int
    nvml: NvmlGpu | None = None
    topo: TopoGpu | None = None
    query: QueriedGpu | None = None
    listed: ListedGpu | None = None
    nccl: NcclGpu | None = None
    pci: PciDevice | None = None
    unreachable: bool = False  # nvidia-smi named it and could not talk to it

    @property
    def lost(self) -> bool:
        """Whether the driver counts the GPU and cannot talk to it."""
        return self.unreachable or (self.nvml is not None and self.nvml.refused is not None)

    @property
    def display(self) -> bool:
        """Whether it is the board that drives the display, which no pod can be given."""
        said = (self.nvml and self.nvml.name, self.query and self.query.product, self.listed and self.listed.product)
        return not _DISPLAYS.isdisjoint(said)

    @property
    def bus_id(self) -> str | None:
        """Where it is on the PCI bus, by the first source that knows."""
        said = (
            None if self.nvml is None else sysfs_bus_id(self.nvml.bus_id or ""),
            None if self.query is None else self.query.bus_id,
            None if self.nccl is None else self.nccl.bus_id,
            None if self.pci is None else self.pci.bus_id,
        )
        return next((bus_id for bus_id in said if bus_id is not None), None)


_DISPLAYS = frozenset({"DGX Display", "NVIDIA DGX Display"})
_FORBIDDEN = "NO_PERMISSION"  # NVML counts the GPUs that others may use (nvml.h, nvmlDeviceGetCount_v2)


def sightings(heard: Heard) -> tuple[Sighting, ...]:
    """Everything that the driver calls a GPU, by index."""
    nvml = {gpu.index: gpu for gpu in heard.nvml.gpus if not _forbidden(gpu)} if heard.nvml else {}
    topo = {gpu.index: gpu for gpu in heard.topo.gpus} if heard.topo else {}
    query = _queried(heard, nvml)
    listed = {gpu.index: gpu for gpu in heard.listing.gpus} if heard.listing else {}
    nccl = _told_nccl(heard, nvml)
    gone = frozenset() if nvml else _unreachable(heard)
    indices: Iterable[int] = nvml or topo or query or listed or nccl
    seen = [
        Sighting(i, nvml.get(i), topo.get(i), query.get(i), listed.get(i), nccl.get(i), unreachable=i in gone)
        for i in sorted({*indices, *gone})
    ]
    return _on_the_bus(seen, heard.bus.gpus)


def _unreachable(heard: Heard) -> frozenset[int]:
    """Indices of the GPUs that nvidia-smi names and cannot talk to."""
    told = [each.unreachable for each in (heard.listing, heard.query) if each is not None]
    return frozenset(gpu.index for gpus in told for gpu in gpus if gpu.index is not None)


def forbidden(heard: Heard) -> tuple[int, ...]:
    """Indices of the GPUs that NVML counts and this process may not open."""
    return tuple(gpu.index for gpu in heard.nvml.gpus if _forbidden(gpu)) if heard.nvml else ()


def _forbidden(gpu: NvmlGpu) -> bool:
    return gpu.refused == _FORBIDDEN


def _queried(heard: Heard, nvml: Mapping[int, NvmlGpu]) -> dict[int, QueriedGpu]:
    """The GPUs of ``-q -x`` by the index of the GPU of the same UUID, else by their own."""
    by_uuid = {gpu.uuid: index for index, gpu in nvml.items() if gpu.uuid is not None}
    found: dict[int, QueriedGpu] = {}
    for gpu in heard.query.gpus if heard.query else ():
        index = gpu.index if gpu.uuid is None else by_uuid.get(gpu.uuid, gpu.index)
        if index is not None:
            found[index] = gpu
    return found


def _told_nccl(heard: Heard, nvml: Mapping[int, NvmlGpu]) -> dict[int, NcclGpu]:
    """NCCL's GPUs by the index of the GPU at the same place on the bus, else by ``dev``, else in their order."""
    by_bus_id = {sysfs_bus_id(gpu.bus_id or "") or "": index for index, gpu in nvml.items()}
    gpus = heard.nccl.gpus if heard.nccl else ()
    return {by_bus_id.get(gpu.bus_id, place if gpu.dev is None else gpu.dev): gpu for place, gpu in enumerate(gpus)}


def _on_the_bus(seen: list[Sighting], gpus: tuple[PciDevice, ...]) -> tuple[Sighting, ...]:
    """Match the PCI devices by bus id. A lost GPU tells no bus id: where one card is left over for one, it is that."""
    by_bus_id = {gpu.bus_id: gpu for gpu in gpus}
    placed = [msgspec.structs.replace(each, pci=by_bus_id.get(each.bus_id or "")) for each in seen]
    left = [gpu for gpu in gpus if gpu.bus_id not in {each.bus_id for each in placed}]
    homeless = [each for each in placed if each.bus_id is None]
    if len(left) == len(homeless) == 1:
        return tuple(msgspec.structs.replace(each, pci=left[0]) if each.bus_id is None else each for each in placed)
    return tuple(placed)


def hidden(heard: Heard, seen: tuple[Sighting, ...]) -> tuple[str, ...]:
    """Bus ids of cards that are on the bus but not among the GPUs here: the machine is seen in part."""
    known = {each.bus_id for each in seen}
    unplaced = sum(bus_id is None for bus_id in (each.bus_id for each in seen))
    left = tuple(gpu.bus_id for gpu in heard.bus.gpus if gpu.bus_id not in known)
    return left if len(left) > unplaced else ()
