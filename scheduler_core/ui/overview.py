"""The overview of a cluster from the planner's view of it. Pure; rows of unchanged nodes are kept."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from gputopo.crd.reservations import LEDGERS
from scheduler_core.explain.model import ReservedGpus
from scheduler_core.explain.reservations import devices_by_node, reserved_gpus
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.report.listing import list_gangs
from scheduler_core.planner.report.preemptions import running_preemptions
from scheduler_core.planner.report.read import GangSnapshot
from scheduler_core.ui.model import GpuState, NodeGroup, NodeRow, Overview, Totals
from scheduler_core.ui.node_rows import NodeInput, node_row
from scheduler_core.ui.pending import pending_pods, with_free_gpus
from scheduler_core.ui.suitable_nodes import SuitableNodes

GROUP_SIZE = 128  # nodes of a group by product
_MINUTE = 60.0
_LONG_NAME = 24  # characters
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class RowCache:
    """The rows of all nodes. A row is made again when its node has changed, and while its age counts."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[NodeInput, float, NodeRow | None]] = {}

    def rows(self, view: PlannerView, now: float) -> list[NodeRow]:
        """Return the rows of all GPU nodes, by name."""
        snapshot, rules = view.cache.snapshot, view.rules
        rows = {}
        for name, record in snapshot.records.items():
            node = NodeInput(record, snapshot.states[name], rules.get(name))
            known = self._rows.get(name)
            if known is None or not _is_same(known[0], node) or (node.state.stale and now >= known[1] + _MINUTE):
                known = node, now, node_row(node, now)
            rows[name] = known
        self._rows = rows
        return [rows[name][2] for name in sorted(rows) if rows[name][2] is not None]  # type: ignore[misc]


def _is_same(one: NodeInput, other: NodeInput) -> bool:
    return one.record is other.record and one.state is other.state and one.rules is other.rules


def overview(
    view: PlannerView, rows: Sequence[NodeRow], now: float, troubles: Iterable[str] = (), notice: str = ""
) -> Overview:
    """Return the overview. ``rows``: of ``RowCache``."""
    is_read, nodes = view.cache.synced or bool(notice), SuitableNodes(view, rows)
    gangs = GangSnapshot(view, unread=() if is_read else (LEDGERS,), from_file=bool(notice))
    return Overview(
        at=now,
        totals=totals(rows),
        groups=tuple(grouped(rows)),
        gangs=with_free_gpus(list_gangs(gangs, now), view, nodes),
        reserved=_reserved(view),
        preemptions=running_preemptions(gangs, None),
        pending=pending_pods(view, nodes),
        troubles=tuple(troubles),
        notice=notice,
    )


def with_nodes(found: Overview, names: Collection[str]) -> Overview:
    """Return the overview with only these nodes; gangs and reservations remain."""
    rows = [row for group in found.groups for row in group.rows if row.name in names]
    return found._replace(totals=totals(rows), groups=tuple(grouped(rows)))


def totals(rows: Iterable[NodeRow]) -> Totals:
    """Return the counts of these nodes."""
    states, islands = Counter[GpuState](), Counter[int]()
    nodes = elsewhere = lacking_report = 0
    for row in rows:
        nodes += 1
        lacking_report += row.lacks_report
        for state, number in row.counts:
            states[state] += number
        if row.has_known_islands:
            islands.update(island.free for island in row.islands if island.free)
        else:
            elsewhere += row.count(GpuState.FREE)
    return Totals(
        nodes,
        tuple((state, states[state]) for state in GpuState if states[state]),
        tuple(sorted(islands.items()))[::-1],
        elsewhere,
        lacking_report,
    )


def grouped(rows: Sequence[NodeRow]) -> list[NodeGroup]:
    """Return the nodes by topology domain; nodes without such labels by product, in groups of bounded size."""
    by_domain: dict[tuple[tuple[str, str], ...], list[NodeRow]] = {}
    by_product: dict[str, list[NodeRow]] = {}
    for row in rows:
        if row.domains:
            by_domain.setdefault(row.domains, []).append(row)
        else:
            by_product.setdefault(row.product or "unknown GPUs", []).append(row)
    groups = [
        NodeGroup("/".join(f"{level}={name}" for level, name in path), _domain_title(path), tuple(found), totals(found))
        for path, found in sorted(by_domain.items())
    ]
    for product, found in sorted(by_product.items()):
        parts = [found[start : start + GROUP_SIZE] for start in range(0, len(found), GROUP_SIZE)]
        for number, part in enumerate(parts):
            title = product if len(parts) == 1 else f"{product}: {part[0].name} to {part[-1].name}"
            groups.append(NodeGroup(f"product={product}/{number}", title, tuple(part), totals(part)))
    return groups


def _domain_title(path: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{level} {_shortened(name)}" for level, name in path)


def _shortened(name: str) -> str:
    """Return the name of a domain; of the UUID of an NVLink fabric the first part and the clique."""
    if len(name) <= _LONG_NAME:
        return name
    uuid, _, clique = name.rpartition(".")
    return f"{uuid[:8]}….{clique}" if _UUID.fullmatch(uuid) else name


def _reserved(view: PlannerView) -> tuple[ReservedGpus, ...]:
    """Return the active reservations that keep GPUs, by name."""
    pods, found = view.cache.pods, []
    for active in view.cache.reservations.active.values():
        bound = {seat.uid for seat in active.seats if (pod := pods.get(seat.uid)) is not None and pod.node is not None}
        devices = devices_by_node(active, bound)
        if devices:
            found.append(reserved_gpus(active, devices))
    return tuple(sorted(found, key=lambda each: each.reservation))
