"""Parses pasted text to the matrix of one machine: all stages, and the choice among several matrices."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from agent.sources.errors import ParseError
from agent.sources.smi.topo.blocks import MatrixBlock, find_blocks
from agent.sources.smi.topo.columns import quote_line
from agent.sources.smi.topo.lines import PastedLine, clean_lines
from agent.sources.smi.topo.matrix import TopoMatrix
from agent.sources.smi.topo.merge import to_matrix
from gputopo.model import FactGroup, Problem, ProblemKind

_EXPECTED = "Paste the output of `nvidia-smi topo -m`: a line of GPU names, then a row for each GPU"


@lru_cache(maxsize=1)  # `--from` parses a paste before discovery does; a node prints the same text again
def parse_topo(text: str) -> TopoMatrix:
    """Parse `nvidia-smi topo -m` as people paste it, in linear time.

    A complete paste is parsed exactly. Of a damaged one only certain facts are used, and ``problems`` says what is
    missing; an island is never wrong without a problem. Of several matrices the most complete copy of the first is
    used, and a problem names matrices that differ or cannot be parsed. Raises ``ParseError`` where there is no matrix,
    or none that can be trusted.
    """
    lines = clean_lines(text)
    blocks = find_blocks(lines)
    cut_at = None if text.rstrip(" \t").endswith(("\n", "\r")) else lines[-1].number
    matrices, unreadable = _read_blocks([block for block in blocks if not block.is_p2p], cut_at)
    if not matrices:
        raise ParseError(_no_matrix_error(lines, blocks))
    return _choose_matrix(matrices, unreadable)


def _read_blocks(
    blocks: list[MatrixBlock], cut_at: int | None
) -> tuple[list[tuple[MatrixBlock, TopoMatrix]], list[MatrixBlock]]:
    """Return the blocks that can be parsed, and the matrices that cannot; raise the first error if none can."""
    matrices, errors, unreadable = [], [], []
    for block in blocks:
        if not block.rows:
            unreadable.append(block)
            continue
        try:
            matrices.append((block, to_matrix(block, cut_at)))
        except ParseError as error:
            errors.append(error)
            unreadable += [block] if block.header is not None or not _repeats_rows(block, blocks) else []
    if errors and not matrices:
        raise errors[0]
    return matrices, unreadable


def _repeats_rows(block: MatrixBlock, others: list[MatrixBlock]) -> bool:
    """Return whether each row without a header is, as far as it goes, a row of a matrix in the text: a quotation."""
    known = [(row.label, row.scanned.cells) for other in others if other is not block for row in other.rows]
    return all(
        any(label == row.label and cells[: len(row.scanned.cells)] == row.scanned.cells for label, cells in known)
        for row in block.rows
    )


def _no_matrix_error(lines: list[PastedLine], blocks: list[MatrixBlock]) -> str:
    rows = [row for block in blocks for row in block.rows]
    if rows:
        row = rows[0]
        return (
            f"topo -m: {quote_line(row.number, row.text)} is of `nvidia-smi topo -p2p`, which shows peer "
            f"capabilities, not links. {_EXPECTED}"
        )
    for line in lines:
        if "GPU0" in line.text.upper():
            return f"topo -m: no row of a matrix follows {quote_line(line.number, line.text)}. {_EXPECTED}"
    first = next((line for line in lines if line.text.strip()), None)
    found = quote_line(first.number, first.text) if first else "the text is empty"
    return f"topo -m: {found}: no matrix found. {_EXPECTED}"


def _choose_matrix(matrices: list[tuple[MatrixBlock, TopoMatrix]], unreadable: list[MatrixBlock]) -> TopoMatrix:
    empty = [block for block, matrix in matrices if not matrix.known_cells and len(matrix.gpus) > 1]
    if len(empty) < len(matrices):  # a matrix without cells gives way to one that has some
        matrices = [each for each in matrices if each[0] not in empty]
        unreadable = unreadable + empty
    with_header = [each for each in matrices if each[0].header is not None]
    shown = with_header or matrices
    shown = [each for each in shown if each[1].nvlink_shown] or shown
    first = shown[0][1]
    copies = [matrix for _, matrix in shown if matrix is first or _is_copy(first, matrix)]
    best = max(copies, key=lambda matrix: (matrix.known_cells, -len(matrix.problems)))
    without_header = (
        [each for each in matrices if each[0].header is None and not _repeats_rows(each[0], _blocks(with_header))]
        if with_header
        else []
    )
    differing = [block for block, matrix in shown + without_header if matrix not in copies]
    others = unreadable + differing
    if not others:
        return best
    lines = " and ".join(quote_line(block.number, _block_name(block)) for block in others[:3])
    why = f"the text has {len(others)} more matrices that cannot be parsed or differ from the one shown: {lines}"
    why += "; paste one machine's"
    problems = (*best.problems, Problem("topo -m", ProblemKind.CONFLICT, why))
    return msgspec.structs.replace(best, problems=problems, uncertain=tuple(FactGroup))


def _blocks(matrices: list[tuple[MatrixBlock, TopoMatrix]]) -> list[MatrixBlock]:
    return [block for block, _ in matrices]


def _block_name(block: MatrixBlock) -> str:
    return block.header.text if block.header else block.rows[0].text


def _is_copy(one: TopoMatrix, other: TopoMatrix) -> bool:
    """Return whether two matrices are of one machine: the same GPUs, and cells and affinities that agree.

    Where no cell is known in both, nothing shows that they are of one machine.
    """
    if [gpu.index for gpu in one.gpus] != [gpu.index for gpu in other.gpus]:
        return False
    pairs = zip((c for row in one.cells for c in row), (c for row in other.cells for c in row), strict=True)
    known = [a == b for a, b in pairs if a is not None and b is not None]
    return all(known) and (bool(known) or len(one.gpus) == 1) and _same_affinities(one, other)


def _same_affinities(one: TopoMatrix, other: TopoMatrix) -> bool:
    """Return whether the NUMA affinities agree. CPU affinities of copies differ where the line was cut."""
    pairs = zip((gpu.numa_affinity for gpu in one.gpus), (gpu.numa_affinity for gpu in other.gpus), strict=True)
    return all(a is None or b is None or a == b for a, b in pairs)
