"""The list of GPUs, and the facts of each source for each of them. Pure.

The first source that lists GPUs decides which GPUs there are: NVML, then ``topo -m``, ``-q -x``, ``-L``, NCCL. The
other sources are matched to that list by UUID, bus id or index. Left out are cards that are on the PCI bus only, GPUs
that this process may not open, and the display board of a DGX Station, which the device plugin skips too (go-nvlib,
``defaultSkippedDevices``): a pod cannot get any of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from agent.discover.parsed import ParsedSources
from agent.snapshot import NvmlGpu
from agent.sources.bus_id import sysfs_bus_id

if TYPE_CHECKING:
    from agent.sources.nccl import NcclGpu
    from agent.sources.pci import PciDevice
    from agent.sources.smi.listing import ListedGpu
    from agent.sources.smi.query import QueriedGpu
    from agent.sources.smi.topo import TopoGpu


class InventoryEntry(msgspec.Struct, frozen=True):
    """One GPU, with the facts of each source."""

    index: int
    nvml: NvmlGpu | None = None
    topo: TopoGpu | None = None
    query: QueriedGpu | None = None
    listed: ListedGpu | None = None
    nccl: NcclGpu | None = None
    pci: PciDevice | None = None
    unreachable: bool = False  # nvidia-smi listed it and could not reach it

    @property
    def lost(self) -> bool:
        """True if the driver lists the GPU and cannot reach it."""
        return self.unreachable or (self.nvml is not None and self.nvml.access_error is not None)

    @property
    def drives_display(self) -> bool:
        """True if this is the board that drives the display, which a pod cannot get."""
        candidates = (
            self.nvml and self.nvml.name,
            self.query and self.query.product,
            self.listed and self.listed.product,
        )
        return not _DISPLAYS.isdisjoint(candidates)

    @property
    def bus_id(self) -> str | None:
        """The PCI bus id, from the first source that has it."""
        candidates = (
            None if self.nvml is None else sysfs_bus_id(self.nvml.bus_id or ""),
            None if self.query is None else self.query.bus_id,
            None if self.nccl is None else self.nccl.bus_id,
            None if self.pci is None else self.pci.bus_id,
        )
        return next((bus_id for bus_id in candidates if bus_id is not None), None)


_DISPLAYS = frozenset({"DGX Display", "NVIDIA DGX Display"})
_UNPERMITTED = "NO_PERMISSION"  # NVML also counts GPUs that this process may not use (nvml.h, nvmlDeviceGetCount_v2)


def build_inventory(sources: ParsedSources) -> tuple[InventoryEntry, ...]:
    """Return every GPU that the driver lists, by index."""
    nvml = {gpu.index: gpu for gpu in sources.nvml.gpus if not _is_unpermitted(gpu)} if sources.nvml else {}
    topo = {gpu.index: gpu for gpu in sources.topo.gpus} if sources.topo else {}
    query = _queried_gpus(sources, nvml)
    listed = {gpu.index: gpu for gpu in sources.listing.gpus} if sources.listing else {}
    nccl = _nccl_gpus(sources, nvml)
    unreachable = frozenset() if nvml else unreachable_indices(sources)
    indices: Iterable[int] = nvml or topo or query or listed or nccl
    entries = [
        InventoryEntry(
            i, nvml.get(i), topo.get(i), query.get(i), listed.get(i), nccl.get(i), unreachable=i in unreachable
        )
        for i in sorted({*indices, *unreachable})
    ]
    return _match_pci_devices(entries, sources.sysfs.gpus)


def unreachable_indices(sources: ParsedSources) -> frozenset[int]:
    """Return the indices of the GPUs that nvidia-smi lists and cannot reach.

    ``-L`` prints one line for each GPU: where the line has no index, it has one of those that the other lines leave.
    """
    reports = [each.unreachable for each in (sources.listing, sources.query) if each is not None]
    indices = {gpu.index for gpus in reports for gpu in gpus if gpu.index is not None}
    buses = {gpu.bus_id for gpus in reports for gpu in gpus if gpu.index is None and gpu.bus_id is not None}
    queried = sources.query.gpus if sources.query is not None else ()
    indices |= {gpu.index for gpu in queried if gpu.index is not None and gpu.bus_id in buses}
    if sources.listing is None:
        return frozenset(indices)
    printed = {gpu.index for gpu in sources.listing.gpus} | indices
    unnamed = {gpu.bus_id for gpu in sources.listing.unreachable if gpu.index is None and gpu.bus_id is not None}
    missing = set(range(len(printed) + len(unnamed))) - printed
    return frozenset(indices | missing) if len(missing) == len(unnamed) else frozenset(indices)


def unpermitted_gpus(sources: ParsedSources) -> tuple[int, ...]:
    """Return the indices of the GPUs that NVML counts and this process may not open."""
    return tuple(gpu.index for gpu in sources.nvml.gpus if _is_unpermitted(gpu)) if sources.nvml else ()


def _is_unpermitted(gpu: NvmlGpu) -> bool:
    return gpu.handle_error == _UNPERMITTED


def _queried_gpus(sources: ParsedSources, nvml: Mapping[int, NvmlGpu]) -> dict[int, QueriedGpu]:
    """The GPUs of ``-q -x``, by the index of the GPU with the same UUID, else by their own index."""
    listed = {gpu.uuid: gpu.index for gpu in sources.listing.gpus if gpu.uuid is not None} if sources.listing else {}
    by_uuid = listed | {gpu.uuid: index for index, gpu in nvml.items() if gpu.uuid is not None}
    found: dict[int, QueriedGpu] = {}
    alone = not nvml and sources.topo is None and sources.listing is None
    for place, gpu in enumerate(sources.query.gpus if sources.query else ()):
        index = gpu.index if gpu.uuid is None else by_uuid.get(gpu.uuid, gpu.index)
        if index is None and alone:
            index = place  # of the GPUs that `-i` selected: `uncertain_facts` says that others are missing
        if index is not None:
            found[index] = gpu
    return found


def _nccl_gpus(sources: ParsedSources, nvml: Mapping[int, NvmlGpu]) -> dict[int, NcclGpu]:
    """Return NCCL's GPUs by the index of the GPU with their bus id, else by ``dev``, else by the first free index."""
    by_bus_id = {sysfs_bus_id(gpu.bus_id or "") or "": index for index, gpu in nvml.items()}
    gpus = sources.nccl.gpus if sources.nccl else ()
    found = {by_bus_id.get(gpu.bus_id, gpu.dev): gpu for gpu in gpus}
    free = iter(sorted(set(range(2 * len(gpus))) - found.keys()))
    unnumbered = [gpu for gpu in gpus if gpu.dev is None and gpu.bus_id not in by_bus_id]
    numbered = {index: gpu for index, gpu in found.items() if index is not None}
    return numbered | {next(free): gpu for gpu in unnumbered}


def _match_pci_devices(entries: list[InventoryEntry], gpus: tuple[PciDevice, ...]) -> tuple[InventoryEntry, ...]:
    """Match PCI devices by bus id. A lost GPU has none: it gets the only device that is left over."""
    by_bus_id = {gpu.bus_id: gpu for gpu in gpus}
    placed = [msgspec.structs.replace(each, pci=by_bus_id.get(each.bus_id or "")) for each in entries]
    left = [gpu for gpu in gpus if gpu.bus_id not in {each.bus_id for each in placed}]
    without_bus_id = [each for each in placed if each.bus_id is None]
    if len(left) == len(without_bus_id) == 1:
        return tuple(msgspec.structs.replace(each, pci=left[0]) if each.bus_id is None else each for each in placed)
    return tuple(placed)


def hidden_cards(sources: ParsedSources, inventory: tuple[InventoryEntry, ...]) -> tuple[str, ...]:
    """Return the bus ids of cards that are on the bus and not in the inventory."""
    known = {each.bus_id for each in inventory}
    unplaced = sum(bus_id is None for bus_id in (each.bus_id for each in inventory))
    left = tuple(gpu.bus_id for gpu in sources.sysfs.gpus if gpu.bus_id not in known)
    return left if len(left) > unplaced else ()
