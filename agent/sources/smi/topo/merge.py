"""Stage 5: a table to a symmetric matrix. Each pair is in two rows; the rows complete each other."""

from __future__ import annotations

import re

from agent.sources.errors import ParseError
from agent.sources.kernel_list import parse_single_number
from agent.sources.smi.topo.affinity import RowAffinity, affinity_words, first_run, read_affinity
from agent.sources.smi.topo.blocks import MatrixBlock
from agent.sources.smi.topo.certainty import may_be_pci_only, uncertain_matrix_facts
from agent.sources.smi.topo.columns import PlacedTable, incomplete_problem, place_cells, quote_line
from agent.sources.smi.topo.header import DEVICE
from agent.sources.smi.topo.matrix import Cell, TopoGpu, TopoMatrix, TopoNic
from agent.sources.smi.topo.words import ELLIPSIS, UNKNOWN
from gputopo.model import MAX_GPUS, PcieDistance, Problem, ProblemKind

_MAX_NODE = 63  # NUMA nodes of CPUs; no machine with GPUs has more
_NAMED_PAIRS = 12  # in one message; a half-lost matrix of 64 GPUs has hundreds of unknown pairs
_ORDER = list(PcieDistance)
_DISTANCES = {distance.value: distance for distance in PcieDistance}


def to_matrix(block: MatrixBlock, cut_at: int | None) -> TopoMatrix:
    """Return the matrix of a block. ``cut_at``: the number of the text's last line if it has no line end."""
    table = place_cells(block)
    problems = list(table.problems)
    gpus = _gpu_indices(table)
    cells = _symmetric_cells(table, gpus, problems)
    problems += _missing_parts(table, block, gpus)
    problems += _unknown_pairs(gpus, cells)
    affinities = _affinities(table, block, cut_at, problems)
    problems += _odd_affinities(table, affinities, len(block.header.affinity) if block.header else 0)
    nics = _read_nics(table, block, gpus, problems)
    nvlink_shown = _nvlink_shown(block, cells, problems)
    return TopoMatrix(
        gpus=tuple(_to_gpu(index, affinities.get(f"GPU{index}", RowAffinity())) for index in gpus),
        cells=cells,
        nics=nics,
        nvlink_shown=nvlink_shown,
        may_be_pci_only=nvlink_shown and may_be_pci_only(block, cells),
        problems=tuple(problems),
        uncertain=uncertain_matrix_facts(table, block, gpus, problems),
    )


def _to_gpu(index: int, affinity: RowAffinity) -> TopoGpu:
    return TopoGpu(
        index=index, cpu_affinity=affinity.cpu, numa_affinity=affinity.numa, gpu_numa_id=affinity.gpu_numa_id
    )


def _gpu_indices(table: PlacedTable) -> list[int]:
    labels = {*table.rows, *(column for column in table.columns if column)}
    indices = sorted(int(label[3:]) for label in labels if label.startswith("GPU"))
    if len(indices) > MAX_GPUS:
        raise ParseError(f"topo -m: {len(indices)} GPUs; at most {MAX_GPUS} are supported. Paste one machine's matrix")
    return indices


def _parse_cell(word: str | None) -> Cell:
    if word is None:
        return None
    if word.startswith("NV"):
        return int(word[2:])
    return _DISTANCES.get(word)


def _symmetric_cells(table: PlacedTable, gpus: list[int], problems: list[Problem]) -> tuple[tuple[Cell, ...], ...]:
    size = len(gpus)
    matrix: list[list[Cell]] = [[None] * size for _ in gpus]
    cut = _cells_at_the_end(table)
    for i in range(size):
        for j in range(i + 1, size):
            a, b = f"GPU{gpus[i]}", f"GPU{gpus[j]}"
            there, back = _parse_cell(table.cells.get((a, b))), _parse_cell(table.cells.get((b, a)))
            if (there is None and (b, a) in cut) or (back is None and (a, b) in cut):
                continue  # "NV1" may be the rest of "NV18", and no other row says it
            matrix[i][j] = matrix[j][i] = agreed = _agreed_cell(there, back)
            if there is not None and back is not None and there != back:
                problems.append(_conflict_problem(a, b, (there, back), agreed))
            problems += _unknown_words(table, a, b)
    return tuple(tuple(row) for row in matrix)


def _cells_at_the_end(table: PlacedTable) -> set[tuple[str, str]]:
    """Return the NVLinks at the end of their line, where a cut loses digits."""
    return {
        (label, column)
        for label, row in table.rows.items()
        if not row.tail.strip() and row.scanned.cells
        for column in table.columns[len(row.scanned.cells) - 1 : len(row.scanned.cells)]
        if column is not None and row.scanned.cells[-1].startswith("NV")
    }


def _unknown_words(table: PlacedTable, a: str, b: str) -> list[Problem]:
    """The problem for cells with an unknown word, such as "C2C" and "ERR!"."""
    cells = ((a, table.cells.get((a, b), "")), (b, table.cells.get((b, a), "")))
    odd = [
        f"the row of {label} says {word[1:]}" for label, word in cells if word.startswith(UNKNOWN) and word != UNKNOWN
    ]
    return [Problem(f"topo -m {a}-{b}", ProblemKind.UNKNOWN, f"{', '.join(odd)}: not a known word")] if odd else []


def _agreed_cell(there: Cell, back: Cell) -> Cell:
    """Return the value that both rows support: a link needs both ends, and has the lanes of the smaller number."""
    if there is None or back is None or there == back:
        return back if there is None else there
    if isinstance(there, int) and isinstance(back, int):
        return min(there, back)
    distances = [each for each in (there, back) if isinstance(each, PcieDistance)]
    return max(distances, key=_ORDER.index)


def _cell_text(cell: Cell) -> str:
    return cell.value if isinstance(cell, PcieDistance) else f"NV{cell}"


def _conflict_problem(a: str, b: str, cells: tuple[Cell, Cell], agreed: Cell) -> Problem:
    first, second, used = (_cell_text(cell) for cell in (*cells, agreed))
    why = f"the row of {a} says {first}, the row of {b} says {second}: {used} is used"
    return Problem(f"topo -m {a}-{b}", ProblemKind.CONFLICT, why)


def _missing_parts(table: PlacedTable, block: MatrixBlock, gpus: list[int]) -> list[Problem]:
    """The problems for missing parts: rows, columns, GPU indices and affinity columns."""
    problems = []
    rows = [index for index in gpus if f"GPU{index}" not in table.rows]
    if rows:
        problems.append(
            incomplete_problem("topo -m rows", f"no usable row for {_list_gpus(rows)}: links are taken from other rows")
        )
    columns = [index for index in gpus if f"GPU{index}" not in table.columns]
    if columns:
        problems.append(
            incomplete_problem("topo -m columns", f"no column for {_list_gpus(columns)}: lines are cut on the right")
        )
    nameless = [f"column {at + 1}" for at, column in enumerate(table.columns) if column is None]
    if nameless:
        problems.append(incomplete_problem("topo -m columns", f"{', '.join(nameless)} without a name: left out"))
    skipped = sorted(set(range(gpus[-1])) - set(gpus))
    if skipped:
        problems.append(
            incomplete_problem("topo -m", f"{_list_gpus(skipped[:_NAMED_PAIRS])} not shown, though higher indices are")
        )
    if block.header and block.header.unusual:
        header = quote_line(block.header.number, block.header.text)
        problems.append(
            incomplete_problem("topo -m columns", f"{header} has other affinity columns than nvidia-smi: not used")
        )
    elif block.header and (block.header.cut or not block.header.affinity):
        last = block.header.affinity[-1] if block.header.affinity else block.header.labels[-1]
        header = quote_line(block.header.number, block.header.text)
        why = f"{header} ends after {last}: columns may be missing on the right"
        problems.append(incomplete_problem("topo -m columns", why))
    short = [row for row in table.rows.values() if len(row.scanned.cells) < len(table.columns)]
    if short:
        first = f"{quote_line(short[0].number, short[0].text)} has {len(short[0].scanned.cells)} cells"
        subject = "1 row is" if len(short) == 1 else f"{len(short)} rows are"
        why = f"{subject} shorter than the header's {len(table.columns)} columns, beginning with {first}"
        problems.append(incomplete_problem("topo -m rows", why))
    return problems


def _list_gpus(indices: list[int]) -> str:
    return ", ".join(f"GPU{index}" for index in indices)


def _unknown_pairs(gpus: list[int], cells: tuple[tuple[Cell, ...], ...]) -> list[Problem]:
    size = len(gpus)
    pairs = [(gpus[i], gpus[j]) for i in range(size) for j in range(i + 1, size) if cells[i][j] is None]
    if not pairs:
        return []
    named = ", ".join(f"GPU{a}-GPU{b}" for a, b in pairs[:_NAMED_PAIRS])
    more = f" and {len(pairs) - _NAMED_PAIRS} more" if len(pairs) > _NAMED_PAIRS else ""
    return [incomplete_problem("nvlink", f"the text does not show how these are connected: {named}{more}")]


def _affinities(
    table: PlacedTable, block: MatrixBlock, cut_at: int | None, problems: list[Problem]
) -> dict[str, RowAffinity]:
    """Return the affinities by label. The last word of a text without line end may be cut: "0" of "0-1"."""
    columns = len(block.header.affinity) if block.header else 0
    words = {label: affinity_words(row.tail, columns)[0] for label, row in table.rows.items()}
    runs = [run for each in words.values() if len(each) == columns > 1 and (run := first_run(each[0]))]
    run = runs[0] if runs else None
    found = {label: read_affinity(row.body, row.scanned, columns, run) for label, row in table.rows.items()}
    found = {label: _without_invalid_numa(label, each, block, problems) for label, each in found.items()}
    last = block.rows[-1]
    more = affinity_words(last.tail, columns)[1]
    if last.number != cut_at or last.label not in found or not last.label.startswith("GPU") or more:
        return found
    shown = len(words[last.label])
    others = [each for label, each in found.items() if label != last.label]
    kept = [
        None if place >= shown - 1 and _may_be_cut(value, shown < columns, [each[place] for each in others]) else value
        for place, value in enumerate(found[last.label])
    ]
    if kept != list(found[last.label]) or shown < columns:
        why = f"the text ends in {quote_line(last.number, last.tail)}: its last word may be cut, and is not used"
        problems.append(incomplete_problem(f"topo -m row {last.label}", why))
    return found | {last.label: RowAffinity(*kept)}


def _without_invalid_numa(
    label: str, affinity: RowAffinity, block: MatrixBlock, problems: list[Problem]
) -> RowAffinity:
    """Drop a NUMA affinity that is too large, or too long for a header that may be cut at "NUMA"."""
    node = parse_single_number(affinity.numa)
    cut = block.header is not None and block.header.short and len(affinity.numa or "") >= len("NUMA")
    if not cut and (node is None or node <= _MAX_NODE):
        return affinity
    why = (
        f"NUMA affinity {affinity.numa} is {'cut' if cut else 'not a NUMA node, but the rest of a CPU list'}: not used"
    )
    problems.append(incomplete_problem(f"gpus.{label.removeprefix('GPU')}.numaNode", why))
    return affinity._replace(numa=None)


def _odd_affinities(table: PlacedTable, affinities: dict[str, RowAffinity], columns: int) -> list[Problem]:
    """The problems for rows with too few or too many affinities, or that contradict another row."""
    problems = []
    width = len(table.columns)
    shows_numa = any(affinity.numa for affinity in affinities.values())
    numa_of: dict[str, tuple[str, str | None]] = {}  # by CPU affinity: the first row that has it, and its NUMA affinity
    for label, affinity in affinities.items():
        if not label.startswith("GPU"):
            continue
        what = f"gpus.{label[3:]}.numaNode"
        row = table.rows[label]
        words, rest = affinity_words(row.tail, columns)
        glued = rest[:1].isdigit() or (words and affinity.cpu is not None)
        if len(words) > columns > 0:
            why = f"{quote_line(row.number, row.text)} has more words after its cells than the header has columns"
            problems.append(incomplete_problem(what, why))
        elif 0 < len(words) < columns and affinity.cpu is None and affinity.numa is None and words[0] != "N/A":
            why = f"{quote_line(row.number, row.text)} has {len(words)} of {columns} affinities, and which is unknown"
            problems.append(incomplete_problem(what, why))
        elif glued and len(words) < columns and affinity.numa is None and len(row.scanned.cells) == width:
            why = f"{quote_line(row.number, row.text)} shows no NUMA affinity, or it is glued to the CPUs"
            problems.append(incomplete_problem(what, why))
        elif shows_numa and affinity.numa is None:
            problems.append(incomplete_problem(what, "its row shows no NUMA affinity, though others do"))
        first, node = numa_of.setdefault(affinity.cpu or label, (label, affinity.numa))
        if node != affinity.numa:
            why = f"{first} and {label} share CPUs {affinity.cpu}, but show NUMA affinity {node} and {affinity.numa}"
            problems.append(Problem(what, ProblemKind.CONFLICT, why))
    return problems


def _may_be_cut(value: str | None, ends_early: bool, others: list[str | None]) -> bool:
    if value is None or (value in others and not ends_early):
        return False
    return ends_early or any(other is not None and other.startswith(value) for other in others)


def _read_nics(table: PlacedTable, block: MatrixBlock, gpus: list[int], problems: list[Problem]) -> tuple[TopoNic, ...]:
    names = block.nic_names
    labels = [column for column in table.columns if column and column != ELLIPSIS and not column.startswith("GPU")]
    nics = []
    for label in dict.fromkeys(labels):
        distances = []
        for gpu in gpus:
            there = _parse_cell(table.cells.get((f"GPU{gpu}", label)))
            back = _parse_cell(table.cells.get((label, f"GPU{gpu}")))
            agreed = _agreed_cell(there, back)
            if there is not None and back is not None and there != back:
                problems.append(_conflict_problem(f"GPU{gpu}", label, (there, back), agreed))
            distances.append(agreed if isinstance(agreed, PcieDistance) else None)
        if label not in table.rows and not re.fullmatch(DEVICE, label):
            why = f"the header's word {label} is taken for a network device, but it has no row"
            problems.append(incomplete_problem(f"topo -m column {label}", why))
        name = names.get(label) if label.startswith("NIC") else label
        nics.append(TopoNic(label=label, name=name, distances=tuple(distances)))
    return tuple(nics)


def _nvlink_shown(block: MatrixBlock, cells: tuple[tuple[Cell, ...], ...], problems: list[Problem]) -> bool:
    """Return whether the matrix shows NVLinks: `topo -mp` leaves them out, and NV# out of its legend."""
    if not may_be_pci_only(block, cells):
        return True
    legend = "\n".join(block.legend)
    # `topo -mp` explains every PCIe distance; a legend that was cut or shortened by hand proves nothing.
    silent = all(re.search(rf"\b{word}\s+=", legend) for word in ("PHB", "PXB", "PIX"))
    if not (silent or block.pci_only):
        return True
    why = "the legend does not explain NV#: NVLinks are not shown by `topo -mp`; use `nvidia-smi topo -m`"
    if "SOC" in legend and not block.pci_only:
        why = "the legend does not explain NV#: a driver older than NVLink, or `topo -mp`, which does not show NVLinks"
    problems.append(Problem("nvlink", ProblemKind.UNKNOWN, why))
    return "SOC" in legend and not block.pci_only
