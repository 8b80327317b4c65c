"""Stage 2: the cells of a row, separated even where a terminal glued them or broke a line inside one.

The cells of `topo -m` as in its legend (drivers 384 to 610; SOC is the old name of SYS), those of `topo -p2p`, which
looks the same and means something else, and placeholders for a column that was left out by hand.
"""

from __future__ import annotations

import re
from itertools import takewhile

import msgspec

FOLD = "\x1f"  # a joined line break; cleaned text has no control characters
SELF = "X"
UNKNOWN = "?"
ELLIPSIS = "..."
MAX_CELLS = 512  # more than any machine has; limits the work on a line of garbage
P2P = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})

_PCIE = "|".join(f"{FOLD}?".join(word) for word in ("PIX", "PXB", "PHB", "NODE", "SYS", "SOC"))
_LANES = rf"[1-9](?:{FOLD}?\d){{0,2}}"
_NV = "|".join(
    (
        rf"N{FOLD}?V{FOLD}?[1-9]\d{{0,2}}(?={FOLD}\d+[-,])",  # broken just before a CPU list
        rf"N{FOLD}?V{FOLD}?{_LANES}(?!{FOLD}?[\d,-])",
        rf"N{FOLD}?V{FOLD}?[1-9]\d?(?=\d+{FOLD}?[-,])",  # glued to a CPU list
    )
)
_X = rf"X(?![A-Za-z0-9_])|X(?={_PCIE}|N{FOLD}?V{FOLD}?\d|X\b)"
_CELL = rf"{_PCIE}|{_NV}|{_X}|(?:OK|CNS|GNS|TNS|NS|DR|U)(?!\w)"
_BETWEEN = rf"[\s,;{FOLD}]*"
# Among other cells there may also be an ellipsis, and an X glued to a CPU list.
_NEXT_CELL = re.compile(rf"{_BETWEEN}((?P<plain>{_CELL})|\.\.\.+|X(?=\d+[-,]))", re.IGNORECASE)
_PLACEHOLDER = re.compile(
    rf"{_BETWEEN}((?P<first>\?{{1,3}}(?!\S)|C2C\b|ERR!)|(?:[A-Z?#][A-Z0-9?#/!]{{0,5}}|-{{1,3}})(?![\w-]))"
)
# After the last cell these are not cells, but the start of a cut cell, or an affinity.
_NO_LAST_CELL = frozenset({"N", "NO", "NOD", "NV", "S", "SY", "SO", "P", "PI", "PX", "PH", "N/", "N/A", "#"})


class CellScan(msgspec.Struct, frozen=True):
    """The scanned text of a row after its label: its cells, and the positions of the last cell."""

    cells: tuple[str, ...]  # "X", "NV12", "PIX", "SYS", ...; ELLIPSIS; UNKNOWN with an unknown word
    last_start: int
    end: int


def cells_start_at(text: str, at: int) -> bool:
    """Return whether the cells of a row begin there: with a known cell, or a placeholder for an unknown one."""
    if found := _NEXT_CELL.match(text, at):
        return found["plain"] is not None
    unknown = _PLACEHOLDER.match(text, at)
    return unknown is not None and unknown["first"] is not None


def scan_cells(body: str, columns: int = 0) -> CellScan:
    """Scan cells up to the first word that is not a cell.

    An unknown word counts as a cell if cells follow it, or up to the number of ``columns``, where that is known.
    """
    cells: list[str] = []
    pending: list[re.Match[str]] = []
    last_start = end = at = 0
    while len(cells) + len(pending) < MAX_CELLS:
        if found := _NEXT_CELL.match(body, at):
            cells += [_unknown(word[1]) for word in pending]
            pending = []
            cells.append(_canonical(found[1]))
            last_start, end = found.start(1), found.end()
            at = end
        elif placeholder := _PLACEHOLDER.match(body, at):
            pending.append(placeholder)
            at = placeholder.end()
        else:
            break
    for word in takewhile(lambda word: word[1] not in _NO_LAST_CELL, pending[: max(0, columns - len(cells))]):
        cells.append(_unknown(word[1]))
        last_start, end = word.start(1), word.end()
    return CellScan(tuple(cells), last_start, end)


def _unknown(word: str) -> str:
    return UNKNOWN + word.strip("?#-")


def _canonical(word: str) -> str:
    word = word.replace(FOLD, "").upper()
    if word.startswith("."):
        return ELLIPSIS
    return "SYS" if word == "SOC" else word
