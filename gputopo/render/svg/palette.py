"""Colours for light and dark pages, and the style sheet.

Island colours are those of Okabe and Ito, which colour-blind readers can distinguish, darkened or lightened to a
contrast of 3:1 with the card; vermilion is reserved for faults. Colour is never the only sign: islands have letters,
faults have dashes and text. Text has a contrast of at least 4.5:1 with its background (a test computes it).

The style sheet contains no CSS variables, because image viewers do not support them.
"""

from __future__ import annotations

from typing import NamedTuple


class IslandColours(NamedTuple):
    """Colours of one island: its lines and borders, the body of its GPUs, and the letter on its badge."""

    line: str
    face: str
    letter: str


class Theme(NamedTuple):
    """All colours of one mode."""

    card: str
    edge: str  # of the card, and hairlines
    text: str
    muted: str
    box: str  # NUMA node
    box_edge: str
    switch: str
    switch_edge: str
    nic: str
    nic_edge: str
    alone: IslandColours  # a GPU with no NVLink neighbour
    islands: tuple[IslandColours, ...]
    bad: str
    bad_face: str
    bad_text: str  # on ``bad``


LIGHT = Theme(
    card="#ffffff",
    edge="#d0d7de",
    text="#1f2328",
    muted="#57606a",
    box="#f6f8fa",
    box_edge="#afb8c1",
    switch="#ebeef1",
    switch_edge="#8c959f",
    nic="#ffffff",
    nic_edge="#6e7781",
    alone=IslandColours("#6e7781", "#ffffff", "#ffffff"),
    islands=(
        IslandColours("#0072b2", "#dcedf9", "#ffffff"),
        IslandColours("#9c5d00", "#fdeed3", "#ffffff"),
        IslandColours("#007a5a", "#d6f2e8", "#ffffff"),
        IslandColours("#a8457f", "#f9e4f0", "#ffffff"),
        IslandColours("#24708f", "#dff3fb", "#ffffff"),
        IslandColours("#716800", "#f8f5c9", "#ffffff"),
    ),
    bad="#c23b00",
    bad_face="#ffe9df",
    bad_text="#ffffff",
)

DARK = Theme(
    card="#0d1117",
    edge="#30363d",
    text="#e6edf3",
    muted="#9198a1",
    box="#151b23",
    box_edge="#4a525c",
    switch="#1e252e",
    switch_edge="#6b7580",
    nic="#0d1117",
    nic_edge="#8b949e",
    alone=IslandColours("#8b949e", "#0d1117", "#0d1117"),
    islands=(
        IslandColours("#56b4e9", "#0f2f45", "#0d1117"),
        IslandColours("#e69f00", "#3d2b05", "#0d1117"),
        IslandColours("#2bc497", "#08352a", "#0d1117"),
        IslandColours("#e08fbd", "#40203a", "#0d1117"),
        IslandColours("#8fd3f5", "#1c3947", "#0d1117"),
        IslandColours("#e3d735", "#38340a", "#0d1117"),
    ),
    bad="#ff8a5c",
    bad_face="#47200f",
    bad_text="#0d1117",
)

FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,'DejaVu Sans',sans-serif"

_SHAPES = """
.gputopo text{font-family:%s}
.gputopo .b{font-weight:600}
.gputopo .m{text-anchor:middle}
.gputopo .card,.gputopo .box,.gputopo .switch,.gputopo .nic rect{stroke-width:1}
.gputopo .card.partial{stroke-width:2;stroke-dasharray:9 6}
.gputopo .face{stroke-width:1.5}
.gputopo .wire{fill:none;stroke-linejoin:round}
.gputopo .body{stroke-width:1.5}
.gputopo .assumed .body,.gputopo .unknown .face{stroke-dasharray:5 4}
.gputopo .degraded .face{stroke-width:2.5}
.gputopo .degraded .wire{stroke-dasharray:7 4}
.gputopo .down .wire{stroke-dasharray:2 5}
.gputopo .lost .face{stroke-dasharray:6 4}
""".strip()


def style_sheet() -> str:
    """Return the content of the ``<style>`` element."""
    return "\n".join((_SHAPES % FONT, *_rules(LIGHT), "@media (prefers-color-scheme:dark){", *_rules(DARK), "}"))


def island_class(letter: int) -> str:
    """Return the CSS class of the island with that number; colours repeat after the last, letters do not."""
    return f"i{letter % len(LIGHT.islands)}"


def _rules(theme: Theme) -> list[str]:
    return [
        *_common(theme),
        *(rule for place, island in enumerate(theme.islands) for rule in _island(f"i{place}", island, theme.card)),
        *_island("alone", theme.alone, theme.card),
        *_bad(theme),
    ]


def _common(theme: Theme) -> list[str]:
    return [
        f".gputopo text{{fill:{theme.text}}}",
        f".gputopo text.s{{fill:{theme.muted}}}",
        f".gputopo .card{{fill:{theme.card};stroke:{theme.edge}}}",
        f".gputopo .card.partial{{stroke:{theme.muted}}}",
        f".gputopo .hair{{stroke:{theme.edge}}}",
        f".gputopo .box{{fill:{theme.box};stroke:{theme.box_edge}}}",
        f".gputopo .switch{{fill:{theme.switch};stroke:{theme.switch_edge}}}",
        f".gputopo .nic rect{{fill:{theme.nic};stroke:{theme.nic_edge}}}",
        f".gputopo .badge rect{{fill:{theme.muted}}}",
        f".gputopo .badge text{{fill:{theme.card}}}",
        f".gputopo .hatch{{stroke:{theme.bad}}}",
    ]


def _island(name: str, island: IslandColours, card: str) -> list[str]:
    return [
        f".gputopo .{name} .face,.gputopo .{name} .body{{fill:{island.face};stroke:{island.line}}}",
        f".gputopo .{name} .chip{{fill:{island.line}}}",
        f".gputopo .{name} .letter{{fill:{island.letter}}}",
        f".gputopo .{name} .wire,.gputopo .{name} .slice{{stroke:{island.line}}}",
        f".gputopo .{name} .pill{{fill:{card};stroke:{island.line}}}",
        f".gputopo .{name} .slice{{fill:{card}}}",
    ]


def _bad(theme: Theme) -> list[str]:
    return [
        f".gputopo .degraded .face,.gputopo .degraded .wire,.gputopo .lost .face{{stroke:{theme.bad}}}",
        f".gputopo .degraded .pill,.gputopo .bad rect{{fill:{theme.bad};stroke:{theme.bad}}}",
        f".gputopo .degraded .sign,.gputopo .bad text{{fill:{theme.bad_text}}}",
        f".gputopo .notice{{fill:{theme.bad_face};stroke:{theme.bad}}}",
        f".gputopo .lost .face{{fill:{theme.bad_face}}}",
    ]
