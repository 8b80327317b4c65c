"""The SVG elements of the drawing. Every text and attribute is escaped here, and in no other module."""

from __future__ import annotations

from html import escape  # xml.sax.saxutils does the same and loads all of urllib for it
from math import hypot
from typing import TYPE_CHECKING

from gputopo.render.wording import escape_invisible

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gputopo.render.svg.geometry import Rect
    from gputopo.render.svg.link_routing import Point


def tag(name: str, inside: str | Iterable[str] = "", **attributes: str | float | None) -> str:
    """Return an element with markup inside, without None attributes; ``class_`` is class, ``data_x`` data-x."""
    pairs = (
        f' {key.rstrip("_").replace("_", "-")}="{escape(value if isinstance(value, str) else coordinate(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    content = inside if isinstance(inside, str) else "".join(inside)
    start = f"<{name}{''.join(pairs)}"
    return f"{start}>{content}</{name}>" if content else f"{start}/>"


def text_element(name: str, text: str, **attributes: str | float | None) -> str:
    """Return an element with text inside: ``title``, ``desc``."""
    return tag(name, escape(escape_invisible(text), quote=False), **attributes)


def text(at: Point, words: str, size: float, class_: str = "") -> str:
    """Return a line of text at its baseline's start (or middle, with class "m")."""
    return text_element("text", words, x=at[0], y=at[1], font_size=size, class_=class_ or None) if words else ""


def rect(shape: Rect, class_: str, radius: float) -> str:
    """Return a rectangle with round corners."""
    return tag("rect", x=shape.x, y=shape.y, width=shape.w, height=shape.h, rx=radius, class_=class_)


def group(class_: str, inside: Iterable[str], hover: str = "", **attributes: str | float | None) -> str:
    """Return a group with a tooltip."""
    return tag("g", [text_element("title", hover) if hover else "", *inside], class_=class_, **attributes) + "\n"


def rounded(points: Sequence[Point], radius: float, bend: int | None = None, *, closed: bool = False) -> str:
    """Return the path data of a polyline with rounded corners; the segment after corner ``bend`` is S-shaped."""
    if closed:
        ring = [*points, *points[:2]]
        start = _towards(points[0], points[1], _cut(points[0], points[1], radius))
        return f"M{_at(start)}" + "".join(_corner(ring[i : i + 3], radius) for i in range(len(points))) + "Z"
    path = f"M{_at(points[0])}"
    for place in range(1, len(points) - 1):
        if bend is None:
            path += _corner(points[place - 1 : place + 2], radius)
        else:
            path += f"L{_at(points[place])}" if place != bend + 1 else _s(points[bend], points[place])
    return f"{path}L{_at(points[-1])}"


def coordinate(value: float) -> str:
    """Return a number with at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _s(a: Point, b: Point) -> str:
    middle = (a[1] + b[1]) / 2
    return f"C{_at((a[0], middle))} {_at((b[0], middle))} {_at(b)}"


def _corner(three: Sequence[Point], radius: float) -> str:
    before, corner, after = three
    cut = min(_cut(before, corner, radius), _cut(corner, after, radius))
    return f"L{_at(_towards(corner, before, cut))}Q{_at(corner)} {_at(_towards(corner, after, cut))}"


def _cut(a: Point, b: Point, radius: float) -> float:
    return min(radius, hypot(b[0] - a[0], b[1] - a[1]) / 2)


def _towards(a: Point, b: Point, by: float) -> Point:
    length = hypot(b[0] - a[0], b[1] - a[1])
    share = by / length if length else 0.0
    return a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share


def _at(point: Point) -> str:
    return f"{coordinate(point[0])} {coordinate(point[1])}"
