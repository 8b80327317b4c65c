"""The frame of the drawing: background card, title, notes, legend, and the description."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputopo.render.svg import captions
from gputopo.render.svg.draw import double_line, weight
from gputopo.render.svg.geometry import MARGIN, Rect
from gputopo.render.svg.layout import (
    CHIP_W,
    LEGEND_TEXT,
    NOTE_LINE,
    NOTE_SIGN,
    NOTE_TEXT,
    SUBTITLE_H,
    TITLE_H,
    sample_width,
)
from gputopo.render.svg.markup import group, rect, tag, text
from gputopo.render.svg.palette import island_class
from gputopo.render.svg.words import fit
from gputopo.render.wording import island_letter

if TYPE_CHECKING:
    from gputopo.model import NodeTopology
    from gputopo.render.svg.captions import Badge, LegendEntry
    from gputopo.render.svg.layout import NoteLines, PageLayout
    from gputopo.render.svg.marks import Marks


def page_background(topology: NodeTopology, page: PageLayout) -> str:
    """Draw the background card, so that the page's colour does not matter."""
    card = Rect(1, 1, page.width - 2, page.height - 2)
    return rect(card, "card partial" if topology.partial else "card", 12) + "\n"


def page_frame(topology: NodeTopology, page: PageLayout) -> str:
    """Draw title, badges, notes and legend."""
    right = page.badges[0][0].x - 12 if page.badges else page.width - MARGIN
    parts = [
        text((MARGIN, 43), fit(captions.title(topology), 20, right - MARGIN, bold=True), 20, "b"),
        *(
            text((MARGIN, MARGIN + TITLE_H + 10 + place * SUBTITLE_H), line, captions.SUBTITLE_TEXT, "s")
            for place, line in enumerate(page.subtitle)
        ),
        "\n",
        *(_badge(shape, badge) for shape, badge in page.badges),
    ]
    if page.message:
        parts.append(_message(page.message))
    parts += [_note(placed) for placed in page.notes]
    if page.legend:
        y = page.legend[0][0].y - 8
        parts.append(tag("path", d=f"M{MARGIN} {y:.2f}H{page.width - MARGIN}", class_="hair"))
    parts += [_entry(shape, entry) for shape, entry in page.legend]
    return "".join(parts)


def description(topology: NodeTopology, marks: Marks) -> str:
    """Return the text description of the drawing, for screen readers."""
    islands = [
        f"Island {island_letter(place)}: GPUs {', '.join(map(str, island.gpus))}, {captions.island_text(island)}"
        for place, island in enumerate(marks.islands)
    ]
    others = [entry.text for entry in captions.legend(topology, marks) if entry.sample != "island"]
    faults = [f"{note.what}: {note.why}".rstrip(": ") for note in captions.notes(topology) if note.bad]
    return (
        ". ".join([*islands, *others, *(f"Degraded: {fault}" for fault in faults)])
        or "No GPU was found on this machine"
    )


def _badge(shape: Rect, badge: Badge) -> str:
    words = text((shape.cx, shape.cy + 4), badge.text, 11, "m b")
    return group("badge bad" if badge.bad else "badge", (rect(shape, "", 5), words))


def _message(place: Rect) -> str:
    shape = Rect(place.x, place.y, place.w, place.h)
    words = (
        text((shape.cx, shape.cy - 4), "No GPU here", 17, "m b"),
        text((shape.cx, shape.cy + 18), "This machine shows no NVIDIA GPU, so there is nothing to join.", 12, "m s"),
    )
    return group("no-gpu", (rect(shape, "box", 10), *words))


def _note(placed: NoteLines) -> str:
    """Draw a note: faults on a coloured background, unknown facts on none."""
    shape, note, what, start, lines = placed
    y = shape.y + 16.5
    inside = [
        rect(Rect(shape.x, shape.y + 2, shape.w, shape.h - 4), "notice", 4) if note.bad else "",
        text((shape.x + NOTE_SIGN / 2, y), "!" if note.bad else "?", NOTE_TEXT, "m b"),
        text((shape.x + NOTE_SIGN, y), what, NOTE_TEXT, "b"),
        *(
            text((shape.x + start, y + place * NOTE_LINE), line, NOTE_TEXT, "" if note.bad else "s")
            for place, line in enumerate(lines)
        ),
    ]
    return group("note", inside)


def _entry(shape: Rect, entry: LegendEntry) -> str:
    start = sample_width(entry)
    words = fit(entry.text, LEGEND_TEXT, shape.w - start)
    sample = _sample(Rect(shape.x, shape.cy - 7, CHIP_W, 14), entry)
    return group("entry", (sample, text((shape.x + start, shape.cy + 4.5), words, LEGEND_TEXT)))


def _sample(shape: Rect, entry: LegendEntry) -> str:
    line = f"M{shape.x:.2f} {shape.cy:.2f}H{shape.right:.2f}"
    if entry.sample == "island":
        return "".join(_chip(shape.moved(CHIP_W * place, 0), island) for place, island in enumerate(entry.islands))
    if entry.sample in ("line", "down"):
        kind = "alone" if entry.sample == "line" else "alone degraded"
        path = tag("path", d=line, class_="wire", stroke_width=weight(entry.lanes or 2))
        return tag("g", path, class_=kind)
    if entry.sample == "c2c":
        return tag("g", double_line((shape.x, shape.cy), (shape.right, shape.cy)), class_="alone")
    if entry.sample == "nic":
        return tag("g", rect(shape, "plate", 4), class_="nic")
    if entry.sample == "mig":
        cells = [Rect(shape.x + i * 8, shape.y, 7, 14) for i in range(3)]
        return tag("g", [rect(cell, "slice", 2) for cell in cells], class_="alone")
    hatch = tag("rect", x=shape.x, y=shape.y, width=shape.w, height=shape.h, rx=4, fill="url(#gputopo-hatch)")
    kind = {"lost": "lost alone", "unknown": "unknown alone", "alone": "alone"}[entry.sample]
    return tag("g", rect(shape, "face", 4) + (hatch if entry.sample == "lost" else ""), class_=kind)


def _chip(shape: Rect, island: int) -> str:
    sign = island_letter(island)
    disc = tag("circle", cx=shape.cx, cy=shape.cy, r=9, class_="chip")
    words = text((shape.cx, shape.cy + 4), sign, 11 if len(sign) == 1 else 8, "m b letter")
    return tag("g", (disc, words), class_=island_class(island))
