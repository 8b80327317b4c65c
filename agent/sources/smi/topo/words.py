"""Stage 2: the words of a row, told apart even where a terminal glued them or broke a line inside one.

The cells of `topo -m` as its legend names them (drivers 384 to 610; SOC was the name of SYS before), those of
`topo -p2p`, which has the same shape and another meaning, and what stands for a column that somebody left out.
"""

from __future__ import annotations

import re

import msgspec

FOLD = "\x1f"  # where a line was broken in the paste and joined again; cleaned text holds no control characters
SELF = "X"
UNKNOWN = "?"
ELLIPSIS = "..."
MAX_CELLS = 512  # a row of 64 GPUs and more NICs than any machine has; bounds the work on a line of garbage
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
_PLACEHOLDER = re.compile(rf"{_BETWEEN}((?:[A-Z?#][A-Z0-9?#/]{{0,5}}|-{{1,3}})(?![\w-]))")


class Scan(msgspec.Struct, frozen=True):
    """What a row says after its label: its cells in order, where the last one starts, and the text behind them."""

    cells: tuple[str, ...]  # "X", "NV12", "PIX", "SYS", ...; UNKNOWN for a word that is no cell, ELLIPSIS
    last_start: int
    end: int


def starts_cells(text: str, at: int) -> bool:
    """Whether the cells of a row begin there: with a plain one."""
    found = _NEXT_CELL.match(text, at)
    return found is not None and found["plain"] is not None


def scan(body: str) -> Scan:
    """Read cells until something else comes. A word that is no cell counts as one only if cells follow it."""
    cells: list[str] = []
    doubtful = 0
    last_start = end = at = 0
    while len(cells) + doubtful < MAX_CELLS:
        if found := _NEXT_CELL.match(body, at):
            cells += [UNKNOWN] * doubtful
            doubtful = 0
            cells.append(_canonical(found[1]))
            last_start, end = found.start(1), found.end()
            at = end
        elif placeholder := _PLACEHOLDER.match(body, at):
            doubtful += 1
            at = placeholder.end()
        else:
            break
    return Scan(tuple(cells), last_start, end)


def _canonical(word: str) -> str:
    word = word.replace(FOLD, "").upper()
    if word.startswith("."):
        return ELLIPSIS
    return "SYS" if word == "SOC" else word
