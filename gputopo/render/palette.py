"""The colours of islands in Graphviz and Mermaid: for black text, and distinguishable for colour-blind readers."""

from __future__ import annotations

from gputopo.render.wording import ALONE, UNKNOWN, role_of

# Fill and outline by island: Okabe and Ito's set of hues, lightened. A ninth island starts over.
_ISLANDS = (
    ("#bfe3f5", "#0072b2"),
    ("#fbd9a5", "#b36b00"),
    ("#bfe8d6", "#00795a"),
    ("#f3cfe2", "#a8467f"),
    ("#f7f1a8", "#8a7f00"),
    ("#f5c4a8", "#b14a00"),
    ("#d4d0f0", "#5a4fb0"),
    ("#d9ead3", "#4f7a3a"),
)
_ALONE = ("#f6f8fa", "#57606a")
_UNKNOWN = ("#ffffff", "#8c959f")
_LOST = ("#ffd7d5", "#cf222e")


def _pair(mark: str | None) -> tuple[str, str]:
    if mark is None:
        return _LOST
    if mark in (ALONE, UNKNOWN):
        return _ALONE if mark == ALONE else _UNKNOWN
    return _ISLANDS[int(role_of(mark).removeprefix("island-")) % len(_ISLANDS)]


def fill(mark: str | None) -> str:
    """Return the fill colour of a GPU by its island's mark; None is a lost GPU."""
    return _pair(mark)[0]


def outline(mark: str | None) -> str:
    """Return the outline colour for ``fill``."""
    return _pair(mark)[1]
