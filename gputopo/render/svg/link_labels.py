"""The labels with the lanes of a link: each on its own line, apart from other lines and labels."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from gputopo.render.svg.geometry import Rect
from gputopo.render.svg.words import text_width

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gputopo.model import Link, Uplink
    from gputopo.render.svg.link_routing import EdgePath, Point

LABEL_H = 18.0
LABEL_TEXT = 11.0
MAX_LABELS = 60  # more labels in a channel are not readable: only the tooltips of the lines remain
_STEPS = 9  # positions that are tried along a line


class LinkLabel(NamedTuple):
    """A label on a link."""

    rect: Rect
    text: str


def link_label(text: str, centre: Point) -> LinkLabel:
    """Return a label with its centre at a point."""
    width = text_width(text, LABEL_TEXT, bold=True) + 12
    return LinkLabel(Rect(centre[0] - width / 2, centre[1] - LABEL_H / 2, width, LABEL_H), text)


def link_label_text(edge: Link | Uplink) -> str:
    """Return ``NV12``, ``NV11 of 12`` if lanes are missing, or ``down`` if all are."""
    if edge.lanes == 0:
        return "down"
    return f"NV{edge.lanes} of {edge.expected_lanes}" if edge.short else f"NV{edge.lanes}"


def place_link_labels(wires: Sequence[EdgePath]) -> tuple[LinkLabel | None, ...]:
    """Return a label for each link, or no label if there are too many to read."""
    if len(wires) > MAX_LABELS:
        return (None,) * len(wires)
    reach = [[leg.grown(2) for leg in _legs(wire)] for wire in wires]
    taken: list[Rect] = []
    pills = []
    for place, wire in enumerate(wires):
        text = link_label_text(wire.edge)
        others = [leg for other, legs in enumerate(reach) if other != place for leg in legs]
        spots = [link_label(text, spot) for spot in _spots(wire)]
        pill = min(spots, key=lambda spot: _cost(spot.rect, taken, others))
        taken.append(pill.rect)
        pills.append(pill)
    return tuple(pills)


def _cost(spot: Rect, taken: Sequence[Rect], others: Sequence[Rect]) -> int:
    """Return the cost of a position: covering a label costs more than covering any number of lines."""
    near, aura = spot.grown(1), spot.grown(4)
    return 1000 * sum(near.meets(rect) for rect in taken) + sum(aura.meets(leg) for leg in others)


def _spots(wire: EdgePath) -> Iterator[Point]:
    """Yield centres for labels along the segment of a link, the middle first."""
    for step in range(_STEPS):
        share = 0.5 + 0.07 * ((step + 1) // 2) * (1 if step % 2 else -1)
        yield _along(wire.leg[0], wire.leg[1], share, bent=wire.bend is not None)


def _along(a: Point, b: Point, share: float, *, bent: bool) -> Point:
    """Return a point of a segment: straight, or an S-shaped cubic with control points at half its height."""
    right, down = (share**2 * (3 - 2 * share), 1.5 * share * (1 - share) + share**3) if bent else (share, share)
    return a[0] + (b[0] - a[0]) * right, a[1] + (b[1] - a[1]) * down


def _legs(wire: EdgePath) -> Iterator[Rect]:
    for place, (a, b) in enumerate(pairwise(wire.points)):
        samples = [_along(a, b, step / 8, bent=True) for step in range(9)] if place == wire.bend else [a, b]
        for (x1, y1), (x2, y2) in pairwise(samples):
            yield Rect(min(x1, x2), min(y1, y2), abs(x2 - x1), abs(y2 - y1))
