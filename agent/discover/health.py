"""What is worse than it should be, judged against siblings of the same product and against what was seen before. Pure.

"No bridge" is not a fault: a PCIe card whose NVLink ports are all down was most likely never bridged. A port that is
down while the same product beside it has it up is one, and so is a GPU that left the NVSwitch its siblings are on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from agent.discover.ports import GpuPorts
from gputopo.model import Degradation, FabricState, Gpu, Health, Link, NodeTopology, Nvlink, Uplink


def with_expectations(nvlink: Nvlink, gpus: tuple[Gpu, ...], before: NodeTopology | None) -> Nvlink:
    """The graph with what every edge should have, and an edge of no lanes for each one that is gone.

    ``gpus`` are those whose NVLinks are known: nothing is missed of a GPU that nobody could ask.
    """
    by_index = {gpu.index: gpu for gpu in gpus}
    uplinks = [_expected_uplink(up, nvlink.uplinks, by_index) for up in nvlink.uplinks]
    uplinks += _fallen(nvlink, gpus)
    seen = msgspec.structs.replace(nvlink, uplinks=tuple(sorted(uplinks, key=lambda up: up.gpu)))
    return seen if before is None or before.nvlink is None else _remembered(seen, gpus, before)


def _expected_uplink(up: Uplink, all_uplinks: tuple[Uplink, ...], gpus: Mapping[int, Gpu]) -> Uplink:
    product = gpus[up.gpu].product
    most = max(other.lanes for other in all_uplinks if gpus[other.gpu].product == product)
    return up if up.lanes == most else msgspec.structs.replace(up, expected_lanes=most)


def _fallen(nvlink: Nvlink, gpus: tuple[Gpu, ...]) -> Iterator[Uplink]:
    """GPUs without any NVLink whose siblings of the same product are on an NVSwitch. MIG hides NVLinks."""
    linked = {up.gpu for up in nvlink.uplinks} | {end for link in nvlink.links for end in (link.a, link.b)}
    for gpu in gpus:
        if gpu.index in linked or not gpu.usable or gpu.mig_enabled or gpu.product is None:
            continue
        siblings = [up for up in nvlink.uplinks if _product(gpus, up.gpu) == gpu.product]
        if len(siblings) > 1:
            lanes = max(up.lanes for up in siblings)
            yield Uplink(gpu=gpu.index, fabric=siblings[0].fabric, lanes=0, expected_lanes=lanes, gbps=0.0)


def _product(gpus: tuple[Gpu, ...], index: int) -> str | None:
    return next(gpu.product for gpu in gpus if gpu.index == index)


def _remembered(nvlink: Nvlink, gpus: tuple[Gpu, ...], before: NodeTopology) -> Nvlink:
    """Edges expected to have at least the lanes they had before; GPUs are matched by UUID, since indices move."""
    index_of = {gpu.uuid: gpu.index for gpu in gpus if gpu.uuid is not None and gpu.usable and not gpu.mig_enabled}
    now = {gpu.index: index_of[gpu.uuid] for gpu in before.gpus if gpu.uuid in index_of}
    known = before.nvlink or Nvlink()
    uplinks = {up.gpu: up for up in nvlink.uplinks}
    for up in known.uplinks:
        if up.gpu in now:
            gone = Uplink(gpu=now[up.gpu], fabric=up.fabric, lanes=0, expected_lanes=1, gbps=0.0)
            uplinks[now[up.gpu]] = _at_least(uplinks.get(now[up.gpu], gone), up)
    links = {(link.a, link.b): link for link in nvlink.links}
    for link in known.links:
        if link.a in now and link.b in now:
            a, b = sorted((now[link.a], now[link.b]))
            links[a, b] = _at_least(links.get((a, b), Link(a=a, b=b, lanes=0, expected_lanes=1, gbps=0.0)), link)
    return msgspec.structs.replace(
        nvlink,
        links=tuple(links[pair] for pair in sorted(links)),
        uplinks=tuple(uplinks[gpu] for gpu in sorted(uplinks)),
    )


EdgeT = TypeVar("EdgeT", Link, Uplink)


def _at_least(edge: EdgeT, before: Link | Uplink) -> EdgeT:
    lanes = max(before.lanes, before.expected_lanes or 0, edge.expected_lanes or 0)
    return msgspec.structs.replace(edge, expected_lanes=lanes) if lanes > edge.lanes else edge


def degradations(
    gpus: tuple[Gpu, ...], nvlink: Nvlink | None, ports: Mapping[int, GpuPorts], *, awake: frozenset[int] = frozenset()
) -> list[Degradation]:
    """Everything that is worse than it should be, in the order of GPUs.

    ``awake`` are the GPUs at their highest performance state: an idle GPU lowers its PCIe link by itself, so only of
    these is it known that the link ought to be as fast and as wide as it can.
    """
    found = [*_lost(gpus), *_fabric_faults(gpus), *_slow_pcie(gpu for gpu in gpus if gpu.index in awake)]
    if nvlink is not None:
        found += _weak_edges(nvlink)
        found += _fewer_than_siblings(gpus, nvlink, ports)
    return sorted(found)


def _lost(gpus: tuple[Gpu, ...]) -> Iterator[Degradation]:
    for gpu in gpus:
        if gpu.health is Health.LOST:
            yield Degradation(f"gpu{gpu.index}", "lost: the driver lists it and cannot talk to it")


def _slow_pcie(gpus: Iterable[Gpu]) -> Iterator[Degradation]:
    for gpu in gpus:
        link = gpu.pcie
        if link.generation and link.max_generation and link.generation < link.max_generation:
            why = f"PCIe generation {link.generation} of {link.max_generation} under load"
            yield Degradation(f"gpu{gpu.index}.pcie", why)
        if link.width and link.max_width and link.width < link.max_width:
            yield Degradation(f"gpu{gpu.index}.pcie", f"PCIe x{link.width} of x{link.max_width} under load")


def _weak_edges(nvlink: Nvlink) -> Iterator[Degradation]:
    for up in nvlink.uplinks:
        if up.lanes == 0:
            yield Degradation(f"gpu{up.gpu}.nvlink", "fallen out of the NVSwitch fabric: no NVLink is active")
        elif up.short:
            yield Degradation(f"gpu{up.gpu}.nvlink", f"{up.lanes} of {up.expected_lanes} NVLinks active")
    for link in nvlink.links:
        if link.short:
            text = f"{link.lanes} of {link.expected_lanes} NVLinks active"
            yield Degradation(f"gpu{link.a}-gpu{link.b}", text)


def _fewer_than_siblings(gpus: tuple[Gpu, ...], nvlink: Nvlink, ports: Mapping[int, GpuPorts]) -> Iterator[Degradation]:
    """Direct links, told of the GPU because NVML does not say where a port that is down would lead.

    Boards may leave ports unwired, and then differently from GPU to GPU (a ring of V100s has 3, 4, 3 and 4 links). So
    a port that is down counts only beside a sibling of the same product that has all of its ports up.
    """
    on_switch = {up.gpu for up in nvlink.uplinks}
    wired = {index: each for index, each in ports.items() if index not in on_switch and each.active and each.ports}
    complete = {_product(gpus, index) for index, each in wired.items() if each.active == each.ports}
    for index, each in wired.items():
        if each.active < (each.ports or 0) and _product(gpus, index) in complete - {None}:
            why = f"{each.active} of {each.ports} NVLinks active; a sibling of the same product has all"
            yield Degradation(f"gpu{index}.nvlink", why)


def _fabric_faults(gpus: tuple[Gpu, ...]) -> Iterator[Degradation]:
    """A registration that ended badly, health bits, and a GPU left behind by siblings that are registered."""
    completed = any(gpu.fabric is not None and gpu.fabric.state is FabricState.COMPLETED for gpu in gpus)
    for gpu in gpus:
        if gpu.fabric is None:
            continue
        if gpu.fabric.state is FabricState.COMPLETED and gpu.fabric.status is not None:
            yield Degradation(f"gpu{gpu.index}.fabric", f"fabric registration failed: {gpu.fabric.status}")
        elif gpu.fabric.state is FabricState.NOT_STARTED and completed:
            yield Degradation(
                f"gpu{gpu.index}.fabric", f"fabric registration {gpu.fabric.state.value}; siblings completed"
            )
        for fault in gpu.fabric.unhealthy:
            yield Degradation(f"gpu{gpu.index}.fabric", f"the fabric reports: {fault}")
