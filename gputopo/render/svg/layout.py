"""The coordinates of everything on the page, without markup."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gputopo.model import Nvlink
from gputopo.render.svg import captions
from gputopo.render.svg.assembly import Assembly, assemble_rows
from gputopo.render.svg.geometry import BOX_GAP, MARGIN, MIN_CONTENT, Rect
from gputopo.render.svg.gpu_boxes import box_height
from gputopo.render.svg.grouping import arrange_boxes
from gputopo.render.svg.marks import Marks, mark
from gputopo.render.svg.rows import layout_row, layout_spare
from gputopo.render.svg.words import fit, text_width, wrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gputopo.model import NodeTopology
    from gputopo.render.svg.captions import Badge, LegendEntry, Note
    from gputopo.render.svg.rows import BoxRow

TITLE_H = 32.0
SUBTITLE_H = 20.0  # per line
HEADER_AIR = 12.0
NOTE_H = 24.0
NOTE_TEXT = 12.0
NOTE_LINE = 16.0  # further lines of a note
NOTE_SIGN = 28.0  # space for its symbol
_NOTE_LINES = 3
LEGEND_H = 24.0
LEGEND_TEXT = 12.0
CHIP_W = 24.0  # a sample of the legend
NO_GPU_H = 96.0
_COLUMN_GAP = 26.0  # between the legend's columns
_SECTION = 18.0  # between drawing, notes and legend


class NoteLines(NamedTuple):
    """A note with its coordinates: its subject, and from ``start`` (right of the left edge) the lines of its reason."""

    rect: Rect
    note: Note
    what: str
    start: float
    lines: tuple[str, ...]


class PageLayout(NamedTuple):
    """The finished layout, in coordinates of the page."""

    width: float
    height: float
    marks: Marks
    subtitle: tuple[str, ...]
    badges: tuple[tuple[Rect, Badge], ...]
    assembly: Assembly
    message: Rect | None  # position of the text "no GPU"
    spare: BoxRow
    notes: tuple[NoteLines, ...]
    legend: tuple[tuple[Rect, LegendEntry], ...]


def layout_page(topology: NodeTopology) -> PageLayout:
    """Return the layout of the page of a topology."""
    marks = mark(topology)
    plan = arrange_boxes(topology)
    framed = len(plan.rows) == 1 or not plan.single
    rows = [layout_row(boxes, box_height(topology, marks), framed=framed) for boxes in plan.rows]
    widest = max((row.width for row in rows), default=0.0)
    subtitle = captions.subtitle(topology, max(MIN_CONTENT, widest))
    header = TITLE_H + SUBTITLE_H * len(subtitle) + HEADER_AIR
    frame = None if framed else plan.rows[0][0]
    stage = assemble_rows(rows, topology.nvlink or Nvlink(), MARGIN + header, frame)
    content, y = stage.content, stage.bottom
    message = Rect(MARGIN, y, content, NO_GPU_H) if not topology.gpus else None
    y = y + NO_GPU_H if message else y
    spare = layout_spare(plan.spare, Rect(MARGIN, y + (BOX_GAP if plan.spare else 0.0), content, 0.0))
    y += spare.depth + (BOX_GAP if plan.spare else 0.0)
    notes = _lines(captions.notes(topology), y + _SECTION, content)
    y = notes[-1].rect.bottom if notes else y
    legend = _grid(captions.legend(topology, marks), y + _SECTION * 1.4, content)
    y = legend[-1][0].bottom if legend else y
    return PageLayout(
        content + 2 * MARGIN,
        y + MARGIN,
        marks,
        subtitle,
        _badges(captions.badges(topology), MARGIN + content),
        stage,
        message,
        spare,
        notes,
        legend,
    )


def sample_width(entry: LegendEntry) -> float:
    """Return the x of the text of a legend's entry, right of its symbols."""
    return CHIP_W * max(1, len(entry.islands)) + 10


def _badges(badges: Sequence[Badge], right: float) -> tuple[tuple[Rect, Badge], ...]:
    placed = []
    for badge in reversed(badges):
        width = text_width(badge.text, 11, bold=True) + 18
        placed.append((Rect(right - width, MARGIN, width, 22), badge))
        right -= width + 8
    return tuple(reversed(placed))


def _lines(notes: Sequence[Note], y: float, content: float) -> tuple[NoteLines, ...]:
    placed = []
    for note in notes:
        what = fit(note.what, NOTE_TEXT, content / 2, bold=True)
        start = NOTE_SIGN + text_width(what, NOTE_TEXT, bold=True) + 10
        lines = wrap(note.why, NOTE_TEXT, content - start - 8, _NOTE_LINES)
        placed.append(
            NoteLines(Rect(MARGIN, y, content, NOTE_H + NOTE_LINE * (len(lines) - 1)), note, what, start, lines)
        )
        y = placed[-1].rect.bottom
    return tuple(placed)


def _grid(entries: Sequence[LegendEntry], y: float, content: float) -> tuple[tuple[Rect, LegendEntry], ...]:
    """Return the entries in as many columns as fit, each as wide as its longest text."""
    widths = [sample_width(entry) + text_width(entry.text, LEGEND_TEXT) + _COLUMN_GAP for entry in entries]
    for columns in range(min(4, len(entries)), 0, -1):
        wide = [max(widths[place::columns]) for place in range(columns)]
        if sum(wide) - _COLUMN_GAP <= content or columns == 1:
            break
    return tuple(
        (
            Rect(
                MARGIN + sum(wide[: place % columns]),
                y + place // columns * LEGEND_H,
                min(wide[place % columns], content),
                LEGEND_H,
            ),
            entry,
        )
        for place, entry in enumerate(entries)
    )
