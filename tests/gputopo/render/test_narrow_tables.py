"""Tables on narrow terminals: columns are dropped in a fixed order, then lines are folded; no word is cut."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from gputopo.cluster.nodes import gpu_nodes
from gputopo.cluster.pods import PodGpus
from gputopo.cluster.tables import NODE_DROPPABLE, POD_DROPPABLE, node_table, pod_table
from gputopo.kube.objects import ObjectMeta
from gputopo.labels import encode_topology
from gputopo.render.report import NONE, Cell, Table, fit_table, table_lines
from scheduler_core.planner.report.tables import GANG_DROPPABLE, gang_table
from tests.machines import MACHINES
from tests.scheduler_core.planner.report.clusters import crew, only, seen

WIDTHS = (100, 80, 60, 40)


def nodes() -> Table:
    facts = {name: encode_topology(MACHINES[name]()) for name in ("hgx_h100", "a100_bridged", "dgx1")}
    metadata = [
        ObjectMeta(name=f"gpu-pool-a-{name.replace('_', '-')}", labels=each.labels, annotations=each.annotations)
        for name, each in facts.items()
    ]
    return node_table(gpu_nodes(metadata, {}, {}), datetime.now(UTC), wide=False)


def pods() -> Table:
    return pod_table([PodGpus(namespace="team-research", name="llm-train-0", node="gpu-pool-a-17", count=8)])


def gangs() -> Table:
    return gang_table([only(seen(crew(2)))], wide=False)


def words(table: Table) -> set[str]:
    rows = (table.titles, *(tuple(cell.text for cell in row) for row in table.rows))
    return {word for row in rows for text in row for word in text.split()}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("make", [nodes, pods, gangs])
def test_no_word_is_cut(make: Any, width: int) -> None:
    table = make()
    fitted = fit_table(table, width)
    lines = list(table_lines(fitted, columns=width))

    assert {word for line in lines for word in line.split()} == words(fitted)
    assert words(fitted) <= words(table)
    assert all(len(line) <= width for line in lines)


@pytest.mark.parametrize("width", range(50, 130))
@pytest.mark.parametrize("make", [nodes, pods])
def test_no_title_is_folded_while_a_column_can_be_dropped(make: Any, width: int) -> None:
    fitted = fit_table(make(), width)

    if set(fitted.titles) & set(fitted.droppable):
        assert next(table_lines(fitted, columns=width)).endswith(fitted.titles[-1])


@pytest.mark.parametrize(
    ("make", "droppable"), [(nodes, NODE_DROPPABLE), (pods, POD_DROPPABLE), (gangs, GANG_DROPPABLE)]
)
def test_columns_are_dropped_in_the_stated_order(make: Any, droppable: tuple[str, ...]) -> None:
    """Columns without any value come first."""
    table = make()
    places = {title: table.titles.index(title) for title in droppable if title in table.titles}
    empty = [title for title, place in places.items() if all(row[place].text in ("", NONE) for row in table.rows)]
    order = [*empty, *(title for title in droppable if title not in empty)]
    for width in range(200, 20, -1):
        gone = {title for title in droppable if title not in fit_table(table, width).titles}
        assert gone == set(order[: len(gone)])
    assert fit_table(table, 200) == table
    assert not set(droppable) & set(fit_table(table, 1).titles)


def test_the_reason_is_folded_in_its_column() -> None:
    reason = "no rack has 16 free GPUs in one NVLink domain, and 3 nodes are draining"
    rows: list[tuple[Cell, ...]] = [(Cell("team-a"), Cell("llm"), Cell("waiting"), Cell("7"), Cell(reason))]
    table = Table(("NAMESPACE", "GANG", "PHASE", "PRIORITY", "REASON"), rows, droppable=GANG_DROPPABLE)

    lines = list(table_lines(fit_table(table, 60), columns=60))

    start = lines[0].index("REASON")
    assert all(len(line) <= 60 for line in lines)
    assert re.sub(r"\s+", " ", " ".join(line[start:] for line in lines[1:])) == reason
    assert all(not line[:start].strip() for line in lines[2:])


def test_a_name_that_is_longer_than_the_terminal_stays_whole() -> None:
    table = Table(("NODE", "FREE"), [(Cell("n" * 63), Cell("1/2"))])

    assert [*table_lines(table, columns=40)] == ["NODE  FREE", "n" * 63, "    1/2"]


def test_elsewhere_than_on_a_terminal_nothing_is_dropped_or_folded() -> None:
    rows: list[tuple[Cell, ...]] = [(Cell("a" * 300), Cell("b c d"))]

    assert list(table_lines(Table(("A", "B"), rows))) == ["A" + " " * 301 + "B", "a" * 300 + "  b c d"]
