"""Stage 2: the words of a row, told apart even where a terminal glued them or broke a line inside one.

The cells of `topo -m` as its legend names them (drivers 384 to 610; SOC was the name of SYS before), those of
`topo -p2p`, which has the same shape and another meaning, and what stands for a column that somebody left out.
"""

from __future__ import annotations

import re
from itertools import takewhile

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
_PLACEHOLDER = re.compile(
    rf"{_BETWEEN}((?P<first>\?{{1,3}}(?!\S)|C2C\b|ERR!)|(?:[A-Z?#][A-Z0-9?#/!]{{0,5}}|-{{1,3}})(?![\w-]))"
)
# Behind the last cell these are no cells: the beginning of one in a line that is cut, or an affinity.
_NO_LAST_CELL = frozenset({"N", "NO", "NOD", "NV", "S", "SY", "SO", "P", "PI", "PX", "PH", "N/", "N/A", "#"})


class Scan(msgspec.Struct, frozen=True):
    """What a row says after its label: its cells in order, where the last one starts, and the text behind them."""

    cells: tuple[
        str, ...
    ]  # "X", "NV12", "PIX", "SYS", ...; ELLIPSIS; UNKNOWN and the word that is no cell, if it is one
    last_start: int
    end: int


def starts_cells(text: str, at: int) -> bool:
    """Whether the cells of a row begin there: with a plain one, or a word that stands for an unknown one."""
    if found := _NEXT_CELL.match(text, at):
        return found["plain"] is not None
    unknown = _PLACEHOLDER.match(text, at)
    return unknown is not None and unknown["first"] is not None


def scan(body: str, columns: int = 0) -> Scan:
    """Read cells until something else comes.

    A word that is no cell counts as one if cells follow it, or up to the number of ``columns``, where that is known.
    """
    cells: list[str] = []
    doubtful: list[re.Match[str]] = []
    last_start = end = at = 0
    while len(cells) + len(doubtful) < MAX_CELLS:
        if found := _NEXT_CELL.match(body, at):
            cells += [_unknown(word[1]) for word in doubtful]
            doubtful = []
            cells.append(_canonical(found[1]))
            last_start, end = found.start(1), found.end()
            at = end
        elif placeholder := _PLACEHOLDER.match(body, at):
            doubtful.append(placeholder)
            at = placeholder.end()
        else:
            break
    for word in takewhile(lambda word: word[1] not in _NO_LAST_CELL, doubtful[: max(0, columns - len(cells))]):
        cells.append(_unknown(word[1]))
        last_start, end = word.start(1), word.end()
    return Scan(tuple(cells), last_start, end)


def _unknown(word: str) -> str:
    return UNKNOWN + word.strip("?#-")


def _canonical(word: str) -> str:
    word = word.replace(FOLD, "").upper()
    if word.startswith("."):
        return ELLIPSIS
    return "SYS" if word == "SOC" else word
