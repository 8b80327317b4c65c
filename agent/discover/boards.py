"""Expected NVLinks of products whose boards wire all NVLinks and link every GPU with every other GPU. Pure.

Nothing is expected of cards with bridges, and of boards that link only some pairs (V100, P100).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import TypeVar

import msgspec

from agent.discover.ports import GpuPorts
from agent.discover.products import board_links
from gputopo.model import Gpu, Link, Nvlink, Uplink
from gputopo.nvlink import find_islands

_MAX_DOWN = 2  # lanes of a pair: where more are missing, the board may have fewer links

Edge = TypeVar("Edge", Link, Uplink)


def expect_lanes(edge: Edge, lanes: int) -> Edge:
    """Return the edge with that number of expected lanes, if it is larger than the known one."""
    lanes = max(lanes, edge.expected_lanes or 0)
    return msgspec.structs.replace(edge, expected_lanes=lanes) if lanes > edge.lanes else edge


def expect_board_lanes(nvlink: Nvlink, gpus: tuple[Gpu, ...], ports: Mapping[int, GpuPorts]) -> Nvlink:
    """Add the expected lanes to uplinks and links of board products, and a link of no lanes for each missing pair.

    ``find_degradations`` judges links between GPUs whose ports a source counts. ``gpus`` are the GPUs whose NVLinks
    could be read.
    """
    products = {gpu.index: gpu.product for gpu in gpus}
    uplinks = tuple(expect_lanes(up, _switch_links(products[up.gpu], ports.get(up.gpu))) for up in nvlink.uplinks)
    links = {(link.a, link.b): link for link in nvlink.links}
    for island in find_islands(tuple(products), Nvlink(links=nvlink.links), frozenset(products)):
        in_table = board_links(products[island.gpus[0]])
        if in_table and len({products[index] for index in island.gpus}) == 1:
            pairs = set(combinations(sorted(island.gpus), 2)) - set(nvlink.unknown)
            links |= _expect_mesh(links, pairs, in_table, ports)
    return msgspec.structs.replace(nvlink, links=tuple(links[pair] for pair in sorted(links)), uplinks=uplinks)


def _switch_links(product: str | None, ports: GpuPorts | None) -> int:
    """Return the NVLinks of a GPU into its NVSwitches; 0 where they are not known."""
    in_table = board_links(product)
    return 0 if not in_table else (ports.ports if ports is not None and ports.ports else in_table[0])


def _expect_mesh(
    links: Mapping[tuple[int, int], Link],
    pairs: Iterable[tuple[int, int]],
    in_table: tuple[int, ...],
    ports: Mapping[int, GpuPorts],
) -> dict[tuple[int, int], Link]:
    """Return the links of pairs that are all linked with each other, as the pair with the most lanes."""
    uncounted = [(a, b) for a, b in pairs if not (ports[a].ports and ports[b].ports)]
    most = max((links[pair].lanes for pair in uncounted if pair in links), default=0)
    whole = min((each for each in in_table if most <= each <= most + _MAX_DOWN), default=most)
    return {
        (a, b): expect_lanes(links.get((a, b)) or Link(a=a, b=b, lanes=0, expected_lanes=whole, gbps=0.0), whole)
        for a, b in uncounted
        if whole
    }
