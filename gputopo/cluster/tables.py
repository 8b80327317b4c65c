"""The columns and rows of `gputopo nodes` and `gputopo pods`. Pure; ``gputopo.render.report`` makes the lines.

To add a column: add its title to ``node_table`` and its cell to ``_node_row`` (or ``_wide``), and describe it in the
help of the command (``gputopo.cli.cluster``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import groupby

from gputopo.cluster.nodes import STALE_AFTER, GpuNode
from gputopo.cluster.pods import PodGpus, is_worse, rate_share
from gputopo.cluster.usage import use_cells
from gputopo.model import Island, NodeTopology
from gputopo.paths import PathKind
from gputopo.render.report import NONE, Cell, Table, age_words, listed
from gputopo.render.wording import UNKNOWN, escape_invisible, format_gib, format_number, gpu_names
from gputopo.rings import Ring
from gputopo.summary import TopologySummary

_USE = ("VRAM USED", "VRAM CLAIMED", "BUSY")
# Columns that a narrow terminal does without, in the order in which they are dropped.
NODE_DROPPABLE = ("PRODUCT", "LAST SEEN", "ISLANDS", "GPUS")
POD_DROPPABLE = ("NUMA", "BEST ON NODE", "ISLANDS", "BEST IN CLUSTER", "RING", "NODE")
_LISTED = 2  # degraded things and missing UUIDs named in a cell; the rest is counted


def node_table(nodes: Iterable[GpuNode], now: datetime, *, wide: bool, has_reports: bool = True) -> Table:
    """Return a row for each node. ``has_reports``: a file may lack the reports of the agents."""
    titles = ("NODE", "PRODUCT", "GPUS", "ISLANDS", "FREE", "DEGRADED", "LAST SEEN")
    more = ("INTERCONNECT", "GB/S", "NUMA", "VRAM", *_USE, "DRIVER", "AGENT", "NOTE") if wide else ()
    rows = [
        _node_row(node, _age(node.age(now)) if has_reports else Cell(UNKNOWN), now) + (_wide(node) if wide else ())
        for node in nodes
    ]
    return Table(titles + more, rows, droppable=() if wide else NODE_DROPPABLE)


def pod_table(pods: Iterable[PodGpus], *, wide: bool = False) -> Table:
    """Return a row for each pod, in the order given. Rates are GB/s, both ways, of a ring's weakest hop."""
    titles = (
        "NAMESPACE",
        "POD",
        "NODE",
        "GPUS",
        "ISLANDS",
        "NUMA",
        "RING",
        "BEST ON NODE",
        "BEST IN CLUSTER",
        "% OF BEST",
    )
    more = (*_USE, "VRAM SHARE") if wide else ()
    rows = [_pod_row(pod) + (_pod_use(pod) if wide else ()) for pod in pods]
    return Table(titles + more, rows, droppable=() if wide else POD_DROPPABLE)


def _node_row(node: GpuNode, last_seen: Cell, now: datetime) -> tuple[Cell, ...]:
    topology = node.topology
    lost = len(topology.gpus) - len(topology.usable)
    number = UNKNOWN if node.annotation_error and not topology.gpus else f"{len(topology.usable)}"
    names = [each.what for each in topology.degraded]
    return (
        Cell(node.name),
        Cell(_products(topology)),
        Cell(number + (f"+{lost} lost" if lost else ""), "bad" if lost else ""),
        Cell(_islands(topology)),
        Cell(f"{_free(node, now)} {_few(node.unusable)}".rstrip()),
        Cell(_few(names), "bad") if names else Cell(NONE),
        last_seen,
    )


def _products(topology: NodeTopology) -> str:
    counts = Counter(gpu.product for gpu in topology.usable)
    if not counts:
        return NONE
    names = [escape_invisible(product) if product else UNKNOWN for product in counts]
    if len(names) == 1:
        return names[0]
    return ", ".join(f"{count} {name}" for name, count in zip(names, counts.values(), strict=True))


def _islands(topology: NodeTopology) -> str:
    """Return the sizes of the islands, by the graph or else by labels."""
    if topology.islands is not None:
        return _sizes(each.size for each in _ordered(topology.islands))
    stated = None if topology.summary is None else topology.summary.island_sizes
    return UNKNOWN if stated is None else _sizes(stated)


def _ordered(islands: Iterable[Island]) -> list[Island]:
    return sorted(islands, key=lambda island: (-island.size, island.gpus))


def _sizes(sizes: Iterable[int]) -> str:
    """Return island sizes as ``4-4``; more than two of the same size as ``8x1``."""
    runs = [(size, len(list(run))) for size, run in groupby(sizes)]
    return "-".join(f"{count}x{size}" if count > 2 else "-".join([str(size)] * count) for size, count in runs) or NONE


def _free(node: GpuNode, now: datetime) -> str:
    """Return the free GPUs of each island, in the order of the sizes; islands of one GPU are counted together."""
    if (free := node.free_at(now)) is None:
        count = node.free_count_at(now)
        return UNKNOWN if count is None else f"{count}/{len(node.topology.usable)}, indices: {UNKNOWN}"
    if node.topology.islands is None:
        return f"{len(free)}/{len(node.topology.usable)}"
    islands = _ordered(node.topology.islands)
    cells = [f"{len(free & set(each.gpus))}/{each.size}" for each in islands if each.size > 1]
    alone = {each.gpus[0] for each in islands if each.size == 1}
    return " ".join([*cells, *([f"{len(free & alone)}/{len(alone)}"] if alone else [])]) or NONE


def _age(age: timedelta | None) -> Cell:
    if age is None:
        return Cell("never", "bad")
    return Cell(age_words(max(0.0, age.total_seconds())), "bad" if age > STALE_AFTER else "")


def _wide(node: GpuNode) -> tuple[Cell, ...]:
    topology = node.topology
    islands = topology.islands
    largest = _ordered(islands)[0] if islands else None
    stated = topology.summary if islands is None and topology.summary is not None else TopologySummary()
    interconnect = largest.interconnect if largest else stated.interconnect
    gbps = largest.gbps if largest else stated.island_gbps
    memory = {gpu.memory_mib for gpu in topology.usable}
    numa = Counter(gpu.numa_node for gpu in topology.usable)
    notes = [node.annotation_error] if node.annotation_error else [problem.why for problem in topology.problems[:1]]
    return (
        Cell(interconnect.value if interconnect is not None else UNKNOWN if islands is None else NONE),
        Cell(NONE if gbps is None else format_number(gbps)),
        Cell(_numa(numa) if stated.numa_gpus is None else "-".join(map(str, stated.numa_gpus))),
        Cell(" ".join(sorted(UNKNOWN if each is None else format_gib(each) for each in memory)) or NONE),
        *map(Cell, use_cells(node.uses)),
        Cell(escape_invisible(topology.driver_version or UNKNOWN)),
        Cell(escape_invisible(node.state.agent_version) if node.state is not None else NONE),
        Cell(escape_invisible("; ".join(notes)), "bad" if node.annotation_error else ""),
    )


def _numa(counts: Counter[int | None]) -> str:
    return UNKNOWN if None in counts else "-".join(str(counts[each]) for each in sorted(counts, key=str)) or NONE


def _pod_row(pod: PodGpus) -> tuple[Cell, ...]:
    known = pod.gpus is not None and not pod.missing
    split = pod.gpus_by_island is not None and len(pod.gpus_by_island) > 1
    return (
        Cell(pod.namespace),
        Cell(pod.name),
        Cell(pod.node),
        _gpus(pod),
        Cell(_gpus_by_island(pod) if known else UNKNOWN, "bad" if split else ""),
        Cell(UNKNOWN if pod.numa is None else "+".join(map(str, pod.numa))),
        Cell(_ring(pod.ring) if known else UNKNOWN),
        Cell(_ring(pod.best_ring_on_node) if known else UNKNOWN),
        Cell(_ring(pod.best_ring_in_cluster) if known else UNKNOWN),
        _share_of_best(pod.ring, pod.best_ring_on_node, pod.best_ring_in_cluster),
    )


def _pod_use(pod: PodGpus) -> tuple[Cell, ...]:
    share = NONE if pod.vram_mib is None else format_gib(pod.vram_mib)
    return (*map(Cell, use_cells(pod.usage)), Cell(share))


def _gpus(pod: PodGpus) -> Cell:
    if pod.missing:
        return Cell(f"{pod.count}, missing: {_few(pod.missing)}", "bad")
    if pod.gpus is None:
        return Cell(f"{pod.count}, indices: {UNKNOWN}")
    return Cell(_cached_gpu_names(pod.gpus) + (" (shared)" if pod.shared else ""))


_cached_gpu_names = lru_cache(maxsize=1 << 10)(gpu_names)


def _gpus_by_island(pod: PodGpus) -> str:
    return UNKNOWN if pod.gpus_by_island is None else "+".join(map(str, pod.gpus_by_island))


@lru_cache(maxsize=1 << 10)
def _ring(ring: Ring | None) -> str:
    if ring is None:
        return NONE
    if ring.kind is PathKind.UNKNOWN:
        return UNKNOWN
    rate = UNKNOWN if ring.gbps is None else format_number(ring.gbps)
    if ring.kind is not PathKind.PCIE:
        return f"{rate} {ring.kind.value}"
    # The path between two GPUs, mainly between sockets, is slower than their links, by an unknown factor.
    distance = UNKNOWN if ring.distance is None else ring.distance.value
    return f"{'' if ring.gbps is None else '<='}{rate} {ring.kind.value} {distance}"


@lru_cache(maxsize=1 << 10)
def _share_of_best(ring: Ring | None, on_node: Ring | None, in_cluster: Ring | None) -> Cell:
    """Return the lower of the shares of the best ring on its node and in the cluster."""
    parts = [part for best in (on_node, in_cluster) if (part := rate_share(ring, best)) is not None]
    less = is_worse(ring, on_node) or is_worse(ring, in_cluster)
    if not parts:
        return Cell("less", "bad") if less else Cell(NONE)
    # Over PCIe the rates can be equal although the distances differ.
    more = "<" if less and min(parts) == 1 else ""
    return Cell(f"{more}{round(100 * min(parts))} %", "bad" if less else "")


def _few(names: Iterable[str]) -> str:
    return listed([escape_invisible(name) for name in names], _LISTED)
