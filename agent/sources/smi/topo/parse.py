"""From pasted text to one machine's matrix: the stages in order, and the choice among several matrices."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from agent.sources.smi.errors import ParseError
from agent.sources.smi.topo.blocks import Block, find_blocks
from agent.sources.smi.topo.columns import quote
from agent.sources.smi.topo.lines import Line, clean
from agent.sources.smi.topo.matrix import TopoMatrix
from agent.sources.smi.topo.merge import to_matrix
from gputopo.model import Problem, ProblemKind

_WANTED = "Paste the output of `nvidia-smi topo -m`: a line of GPU names, then a row for each GPU"


@lru_cache(maxsize=1)  # `--from` refuses a bad paste before discovery reads it; a running node prints the same again
def parse_topo(text: str) -> TopoMatrix:
    """Read `nvidia-smi topo -m` as people paste it, in linear time.

    A whole paste is read exactly. From a damaged one comes what is certain, and ``problems`` says what is not there;
    an island is never wrong in silence. Of several matrices the one that the others are copies of is taken, else the
    first, and a problem names the others. Raises ``ParseError`` where there is none, or none that can be trusted.
    """
    lines = clean(text)
    blocks = find_blocks(lines)
    cut_at = None if text.rstrip(" \t").endswith(("\n", "\r")) else lines[-1].number
    matrices = _readable([block for block in blocks if not block.is_p2p], cut_at)
    if not matrices:
        raise ParseError(_nothing_here(lines, blocks))
    return _choose(matrices)


def _readable(blocks: list[Block], cut_at: int | None) -> list[tuple[Block, TopoMatrix]]:
    """The blocks that can be read; where none can, the first one's error."""
    matrices, errors = [], []
    for block in blocks:
        try:
            matrices.append((block, to_matrix(block, cut_at)))
        except ParseError as error:
            errors.append(error)
    if errors and not matrices:
        raise errors[0]
    return matrices


def _nothing_here(lines: list[Line], blocks: list[Block]) -> str:
    if blocks:
        row = blocks[0].rows[0]
        return (
            f"topo -m: {quote(row.number, row.text)} is of `nvidia-smi topo -p2p`, which shows what peers may do, "
            f"not how they are connected. {_WANTED}"
        )
    for line in lines:
        if "GPU0" in line.text.upper():
            return f"topo -m: no row of a matrix follows {quote(line.number, line.text)}. {_WANTED}"
    first = next((line for line in lines if line.text.strip()), None)
    return f"topo -m: {quote(first.number, first.text) if first else 'the text is empty'}: no matrix in it. {_WANTED}"


def _choose(matrices: list[tuple[Block, TopoMatrix]]) -> TopoMatrix:
    with_header = [each for each in matrices if each[0].header is not None]
    matrices = with_header or matrices
    matrices = [each for each in matrices if each[1].nvlink_shown] or matrices
    first = next((matrix for _, matrix in matrices if not matrix.problems), matrices[0][1])
    copies = [matrix for _, matrix in matrices if _is_copy(first, matrix)]
    best = max(copies, key=lambda matrix: (matrix.known_cells, -len(matrix.problems)))
    others = [block for block, matrix in matrices if not _is_copy(first, matrix)]
    if not others:
        return best
    lines = " and ".join(quote(block.rows[0].number, _name(block)) for block in others[:3])
    why = f"the text holds {len(others)} more matrices that differ from the one shown: {lines}; paste one machine's"
    return msgspec.structs.replace(best, problems=(*best.problems, Problem("topo -m", ProblemKind.CONFLICT, why)))


def _name(block: Block) -> str:
    return block.header.text if block.header else block.rows[0].text


def _is_copy(one: TopoMatrix, other: TopoMatrix) -> bool:
    """Whether two matrices can be of one machine: the same GPUs, and no pair said in two ways."""
    if [gpu.index for gpu in one.gpus] != [gpu.index for gpu in other.gpus]:
        return False
    pairs = zip((c for row in one.cells for c in row), (c for row in other.cells for c in row), strict=True)
    return all(a is None or b is None or a == b for a, b in pairs)
