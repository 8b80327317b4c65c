"""Degradations, found by comparison with GPUs of the same product and with the previous topology. Pure.

The largest number of links seen for a product, now or before, is what is expected into an NVSwitch. A port of direct
links that is down is a degradation where a GPU of the same product has all ports up, or where boards of the product
wire all ports (``agent.discover.boards``). A card whose ports are all down is not degraded, because most likely it has
no bridge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from agent.discover.boards import Edge, expect_lanes
from agent.discover.ports import GpuPorts
from agent.discover.products import board_links, bridge_links, is_bridged_card
from gputopo.model import Degradation, FabricState, Gpu, Health, Link, NodeTopology, Nvlink, Uplink


def add_expected_lanes(nvlink: Nvlink, gpus: tuple[Gpu, ...], before: NodeTopology | None) -> Nvlink:
    """Add the expected lanes to every edge, and an edge of no lanes for each missing one.

    ``gpus`` are the GPUs whose NVLinks could be read: nothing is missing for the others.
    """
    by_index = {gpu.index: gpu for gpu in gpus}
    seen = _largest_uplinks(nvlink, by_index, before)
    uplinks = [expect_lanes(up, seen.get(by_index[up.gpu].product, 0)) for up in nvlink.uplinks]
    uplinks += _missing_uplinks(nvlink, gpus, seen)
    links = [expect_lanes(link, _whole_bridges(link, by_index)) for link in nvlink.links]
    expected = msgspec.structs.replace(
        nvlink, links=tuple(links), uplinks=tuple(sorted(uplinks, key=lambda up: up.gpu))
    )
    return expected if before is None or before.nvlink is None else _expect_previous_lanes(expected, gpus, before)


def _largest_uplinks(nvlink: Nvlink, gpus: Mapping[int, Gpu], before: NodeTopology | None) -> dict[str | None, int]:
    """Map each product to the largest number of links into an NVSwitch that a GPU has or had."""
    now = [(gpus[up.gpu].product, up.lanes) for up in nvlink.uplinks]
    earlier = before.nvlink.uplinks if before is not None and before.nvlink is not None else ()
    products = {gpu.index: gpu.product for gpu in before.gpus} if before is not None else {}
    seen: dict[str | None, int] = {}
    for product, lanes in (*now, *((products[up.gpu], up.expected_lanes or up.lanes) for up in earlier)):
        seen[product] = max(lanes, seen.get(product, 0))
    return seen


def _missing_uplinks(nvlink: Nvlink, gpus: tuple[Gpu, ...], seen: Mapping[str | None, int]) -> Iterator[Uplink]:
    """Yield uplinks without lanes for GPUs without NVLinks whose siblings are on an NVSwitch. MIG hides NVLinks.

    Cards with bridges are on no NVSwitch: in a virtual machine a bridge is taken for one, and others may have none.
    """
    linked = {up.gpu for up in nvlink.uplinks} | {end for link in nvlink.links for end in (link.a, link.b)}
    for gpu in gpus:
        if gpu.index in linked or not gpu.usable or gpu.mig_enabled or gpu.product is None:
            continue
        if bridge_links(gpu.product) is not None:
            continue
        fabrics = [up.fabric for up in nvlink.uplinks if _product(gpus, up.gpu) == gpu.product]
        if fabrics:
            yield Uplink(gpu=gpu.index, fabric=fabrics[0], lanes=0, expected_lanes=seen[gpu.product], gbps=0.0)


def _whole_bridges(link: Link, gpus: Mapping[int, Gpu]) -> int:
    """Return the links of the bridges between two cards, which come as a whole; 0 where it is not known."""
    per_bridge = bridge_links(gpus[link.a].product)
    return 0 if per_bridge is None or not link.lanes else -(-link.lanes // per_bridge) * per_bridge


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


def _expect_at_least(edge: Edge, before: Link | Uplink) -> Edge:
    return expect_lanes(edge, max(before.lanes, before.expected_lanes or 0))


def find_degradations(
    gpus: tuple[Gpu, ...],
    nvlink: Nvlink | None,
    ports: Mapping[int, GpuPorts],
    *,
    gpus_at_p0: frozenset[int] = frozenset(),
    bare_metal: bool = False,
) -> list[Degradation]:
    """Return all degradations, in the order of GPUs.

    ``bare_metal``: the machine is not virtual. A virtual machine may have GPUs of a board without its NVLinks.
    ``gpus_at_p0`` are the GPUs in their highest performance state. Only their PCIe links are judged, because an idle
    GPU lowers its link by itself.
    """
    found = [*_lost_gpus(gpus), *_fabric_faults(gpus), *_slow_pcie(gpu for gpu in gpus if gpu.index in gpus_at_p0)]
    if nvlink is not None:
        found += _short_edges(nvlink, ports)
        found += _fewer_than_siblings(gpus, nvlink, ports)
        found += _silent_boards(gpus, nvlink, ports) if bare_metal else ()
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


def _short_edges(nvlink: Nvlink, ports: Mapping[int, GpuPorts]) -> Iterator[Degradation]:
    for up in nvlink.uplinks:
        if up.lanes == 0:
            yield Degradation(f"gpu{up.gpu}.nvlink", "fallen out of the NVSwitch fabric: no NVLink is active")
        elif up.short:
            yield Degradation(f"gpu{up.gpu}.nvlink", f"{up.lanes} of {up.expected_lanes} NVLinks active")
    for link in nvlink.links:
        if link.short:
            text = f"{link.lanes} of {link.expected_lanes} NVLinks active"
            yield Degradation(f"gpu{link.a}-gpu{link.b}", text + (_one_end(link, ports) if link.one_sided else ""))


def _one_end(link: Link, ports: Mapping[int, GpuPorts]) -> str:
    """Return what the ends of a one-sided link report."""
    here, there = (link.a, link.b) if ports[link.a].gpus.get(link.b) else (link.b, link.a)
    lanes = ports[here].gpus.get(there, 0)
    return f" (gpu{here} reports {lanes}, gpu{there} reports none): NVIDIA's device plugin crashes on this"


def _fewer_than_siblings(gpus: tuple[Gpu, ...], nvlink: Nvlink, ports: Mapping[int, GpuPorts]) -> Iterator[Degradation]:
    """Degradations of direct links, by GPU, because NVML does not report where a port that is down leads.

    Boards may leave ports unwired, and differently from GPU to GPU (a ring of V100s has 3, 4, 3 and 4 links). So a port
    that is down counts only if a GPU of the same product has all of its ports up, or boards of the product wire all.
    """
    on_switch = {up.gpu for up in nvlink.uplinks}
    wired = {index: each for index, each in ports.items() if index not in on_switch and each.active and each.ports}
    complete = {_product(gpus, index) for index, each in wired.items() if each.active == each.ports} - {None}
    unlinked = list(_unlinked_gpus(gpus, nvlink, ports))
    yield from unlinked
    for index, each in wired.items():
        product = _product(gpus, index)
        if each.active < (each.ports or 0) and (product in complete or (board_links(product) and not unlinked)):
            hint = "a sibling of the same product has all" if product in complete else "boards of this product wire all"
            yield Degradation(f"gpu{index}.nvlink", f"{each.active} of {each.ports} NVLinks active; {hint}")


def _silent_boards(gpus: tuple[Gpu, ...], nvlink: Nvlink, ports: Mapping[int, GpuPorts]) -> Iterator[Degradation]:
    """Yield a degradation for each GPU of a board where no GPU of its product has an active port."""
    linked = {gpu.product for gpu in gpus if (each := ports.get(gpu.index)) is not None and each.active}
    linked |= {_product(gpus, up.gpu) for up in nvlink.uplinks}
    for gpu in gpus:
        count = ports[gpu.index].ports if gpu.index in ports else None
        if count and gpu.usable and gpu.mig_enabled is False and gpu.product not in linked and board_links(gpu.product):
            why = f"0 of {count} NVLinks active; boards of this product wire all: check nvidia-fabricmanager"
            yield Degradation(f"gpu{gpu.index}.nvlink", why)


def _unlinked_gpus(gpus: tuple[Gpu, ...], nvlink: Nvlink, ports: Mapping[int, GpuPorts]) -> Iterator[Degradation]:
    """Yield a degradation for each GPU without an active port whose board links GPUs of its product."""
    boards = _linked_products(gpus, nvlink, ports)
    skipped = {up.gpu for up in nvlink.uplinks}.union(*nvlink.unknown)
    for gpu in gpus:
        each = ports.get(gpu.index)
        missing = each is not None and not each.active and gpu.usable and not gpu.mig_enabled
        if missing and gpu.product in boards and gpu.index not in skipped:
            most = max(other.active for index, other in ports.items() if _product(gpus, index) == gpu.product)
            hint = "" if gpu.mig_enabled is False else " (or it is in MIG mode: `nvidia-smi -q` shows it)"
            yield Degradation(f"gpu{gpu.index}.nvlink", f"0 of {most} NVLinks active; a sibling has {most}{hint}")


def _linked_products(gpus: tuple[Gpu, ...], nvlink: Nvlink, ports: Mapping[int, GpuPorts]) -> set[str | None]:
    """Return the products of which boards link GPUs.

    Bridges join two cards, so three or more linked GPUs are on one board. Bridges for H200 NVL join four cards, so
    three linked cards lack one. Links of a GPU without bridges that lead to no visible GPU lead to a CPU or NVSwitch.
    """
    direct = any(each.gpus for each in ports.values())
    islands = NodeTopology(gpus=gpus, nvlink=Nvlink(links=nvlink.links)).islands or () if direct else ()
    found = set()
    for each in islands:
        product = _product(gpus, each.gpus[0])
        if each.size == 3 or (each.size > 3 and not is_bridged_card(product)):
            found.add(product)
    for index, port in ports.items():
        product = _product(gpus, index)
        if not is_bridged_card(product) and (port.elsewhere or (port.active and board_links(product))):
            found.add(product)
    return found - {None}


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
