"""Degradations, found by comparison with GPUs of the same product and with the previous topology. Pure.

A PCIe card whose NVLink ports are all down is not degraded: most likely it has no bridge. A port that is down is a
degradation where a GPU of the same product has it up, and so is a GPU that left the NVSwitch of its siblings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from agent.discover.ports import GpuPorts
from gputopo.model import Degradation, FabricState, Gpu, Health, Link, NodeTopology, Nvlink, Uplink


def add_expected_lanes(nvlink: Nvlink, gpus: tuple[Gpu, ...], before: NodeTopology | None) -> Nvlink:
    """Add the expected lanes to every edge, and an edge of no lanes for each missing one.

    ``gpus`` are the GPUs whose NVLinks could be read: nothing is missing for the others.
    """
    by_index = {gpu.index: gpu for gpu in gpus}
    uplinks = [_expected_uplink(up, nvlink.uplinks, by_index) for up in nvlink.uplinks]
    uplinks += _missing_uplinks(nvlink, gpus)
    expected = msgspec.structs.replace(nvlink, uplinks=tuple(sorted(uplinks, key=lambda up: up.gpu)))
    return expected if before is None or before.nvlink is None else _expect_previous_lanes(expected, gpus, before)


def _expected_uplink(up: Uplink, all_uplinks: tuple[Uplink, ...], gpus: Mapping[int, Gpu]) -> Uplink:
    product = gpus[up.gpu].product
    most = max(other.lanes for other in all_uplinks if gpus[other.gpu].product == product)
    return up if up.lanes == most else msgspec.structs.replace(up, expected_lanes=most)


def _missing_uplinks(nvlink: Nvlink, gpus: tuple[Gpu, ...]) -> Iterator[Uplink]:
    """Uplinks without lanes, for GPUs without NVLinks whose siblings are on an NVSwitch. MIG hides NVLinks."""
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


def _expect_previous_lanes(nvlink: Nvlink, gpus: tuple[Gpu, ...], before: NodeTopology) -> Nvlink:
    """Expect at least the lanes of ``before``. GPUs are matched by UUID, because indices change."""
    index_of = {gpu.uuid: gpu.index for gpu in gpus if gpu.uuid is not None and gpu.usable and not gpu.mig_enabled}
    now = {gpu.index: index_of[gpu.uuid] for gpu in before.gpus if gpu.uuid in index_of}
    known = before.nvlink or Nvlink()
    uplinks = {up.gpu: up for up in nvlink.uplinks}
    for up in known.uplinks:
        if up.gpu in now:
            missing = Uplink(gpu=now[up.gpu], fabric=up.fabric, lanes=0, expected_lanes=1, gbps=0.0)
            uplinks[now[up.gpu]] = _expect_at_least(uplinks.get(now[up.gpu], missing), up)
    links = {(link.a, link.b): link for link in nvlink.links}
    for link in known.links:
        if link.a in now and link.b in now:
            a, b = sorted((now[link.a], now[link.b]))
            links[a, b] = _expect_at_least(links.get((a, b), Link(a=a, b=b, lanes=0, expected_lanes=1, gbps=0.0)), link)
    return msgspec.structs.replace(
        nvlink,
        links=tuple(links[pair] for pair in sorted(links)),
        uplinks=tuple(uplinks[gpu] for gpu in sorted(uplinks)),
    )


ExpectedEdge = TypeVar("ExpectedEdge", Link, Uplink)


def _expect_at_least(edge: ExpectedEdge, before: Link | Uplink) -> ExpectedEdge:
    lanes = max(before.lanes, before.expected_lanes or 0, edge.expected_lanes or 0)
    return msgspec.structs.replace(edge, expected_lanes=lanes) if lanes > edge.lanes else edge


def find_degradations(
    gpus: tuple[Gpu, ...],
    nvlink: Nvlink | None,
    ports: Mapping[int, GpuPorts],
    *,
    gpus_at_p0: frozenset[int] = frozenset(),
) -> list[Degradation]:
    """Return all degradations, in the order of GPUs.

    ``gpus_at_p0`` are the GPUs in their highest performance state. Only their PCIe links are judged, because an idle
    GPU lowers its link by itself.
    """
    found = [*_lost_gpus(gpus), *_fabric_faults(gpus), *_slow_pcie(gpu for gpu in gpus if gpu.index in gpus_at_p0)]
    if nvlink is not None:
        found += _short_edges(nvlink)
        found += _fewer_than_siblings(gpus, nvlink, ports)
    return sorted(found)


def _lost_gpus(gpus: tuple[Gpu, ...]) -> Iterator[Degradation]:
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


def _short_edges(nvlink: Nvlink) -> Iterator[Degradation]:
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
    """Degradations of direct links, by GPU, because NVML does not report where a port that is down leads.

    Boards may leave ports unwired, and differently from GPU to GPU (a ring of V100s has 3, 4, 3 and 4 links). So a port
    that is down counts only if a GPU of the same product has all of its ports up.
    """
    on_switch = {up.gpu for up in nvlink.uplinks}
    wired = {index: each for index, each in ports.items() if index not in on_switch and each.active and each.ports}
    complete = {_product(gpus, index) for index, each in wired.items() if each.active == each.ports}
    for index, each in wired.items():
        if each.active < (each.ports or 0) and _product(gpus, index) in complete - {None}:
            why = f"{each.active} of {each.ports} NVLinks active; a sibling of the same product has all"
            yield Degradation(f"gpu{index}.nvlink", why)


def _fabric_faults(gpus: tuple[Gpu, ...]) -> Iterator[Degradation]:
    """A failed registration, health bits, and a GPU that is not registered although its siblings are."""
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
