"""Uncertain facts of a damaged matrix: its GPUs, its NVLinks, its NUMA nodes. Pure."""

from __future__ import annotations

from itertools import combinations

from agent.sources.smi.topo.blocks import MatrixBlock
from agent.sources.smi.topo.columns import PlacedTable
from agent.sources.smi.topo.matrix import Cell
from agent.sources.smi.topo.words import ELLIPSIS
from gputopo.model import FactGroup, Problem, ProblemKind


def may_be_pci_only(block: MatrixBlock, cells: tuple[tuple[Cell, ...], ...]) -> bool:
    """Return whether the matrix is, or may be, one of `topo -mp`: it has no NVLink, and nothing shows that it would."""
    if len(cells) < 2 or any(isinstance(cell, int) for row in cells for cell in row):
        return False
    return block.pci_only is not False and not any("NV#" in line for line in block.legend)


def uncertain_matrix_facts(
    table: PlacedTable, block: MatrixBlock, gpus: list[int], problems: list[Problem]
) -> tuple[FactGroup, ...]:
    """Return the facts that another reading of the damaged text would change.

    A pair without a cell is not among them: it is unknown in the matrix itself.
    """
    odd_rows = any(each.kind is ProblemKind.CONFLICT and each.what.startswith("topo -m row") for each in problems)
    found = {
        FactGroup.GPUS: not _lists_all_gpus(table, block, gpus, problems),
        FactGroup.NVLINK: odd_rows or _has_contradictory_links(table, gpus),
        FactGroup.NUMA: odd_rows or any(each.what.endswith(".numaNode") for each in problems),
    }
    return tuple(group for group, uncertain in found.items() if uncertain)


def _lists_all_gpus(table: PlacedTable, block: MatrixBlock, gpus: list[int], problems: list[Problem]) -> bool:
    """Return whether the matrix certainly shows all GPUs of the text.

    A header that reaches the affinity columns names all GPUs. Without these columns the rows must name the same GPUs,
    and something must follow them: the text may end anywhere.
    """
    header = block.header
    named = {column for column in table.columns if column is not None and column.startswith("GPU")}
    rows = {row.label for row in block.rows if row.label.startswith("GPU")}
    if header is None or gpus != list(range(len(gpus))) or None in table.columns or ELLIPSIS in table.columns:
        return False
    if any(each.what == "topo -m header" or each.what.startswith("topo -m column ") for each in problems):
        return False
    if header.affinity:
        return rows <= named
    return rows == named and (bool(block.legend) or not block.rows[-1].label.startswith("GPU"))


def _has_contradictory_links(table: PlacedTable, gpus: list[int]) -> bool:
    """Return whether two rows show different NVLinks for a pair."""
    pairs = combinations([f"GPU{index}" for index in gpus], 2)
    cells = ({table.cells.get((a, b)), table.cells.get((b, a))} - {None} for a, b in pairs)
    return any(len(both) > 1 and any(cell is not None and cell.startswith("NV") for cell in both) for both in cells)
