"""The channel between two rows of GPUs (or below a row): the paths of its NVLinks, and its NVSwitch fabrics.

From top to bottom, each part as low as possible:

    brackets     links among GPUs of the row above, on separate tracks if they overlap
    uplinks      from the row above into a fabric
    fabrics      a box each, side by side if they fit
    exits        links to another channel
    crossings    links between the two rows
    uplinks      from the row below
    brackets     links among GPUs of the row below

x is in coordinates of the page, y in coordinates of the channel: 0 at its upper edge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from gputopo.render.svg.geometry import GPU_W, Rect
from gputopo.render.svg.ports import ACROSS, End, place_ports

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gputopo.model import Link, Nvlink, Uplink

TRACK = 25.0  # distance of two tracks: a label and space
FIRST_TRACK = 24.0
LAST_TRACK = 14.0  # space after the last track
UPLINK = 48.0
BODY_H = 48.0
BODY_GAP = 12.0
MIN_BODY = 200.0
EXIT = 14.0
CROSSING = 36.0
SLANT = 44.0  # extra height for crossings that are not all straight
AIR = 8.0  # between two links on a track

Point = tuple[float, float]
Pair = tuple[int, int]
Key = TypeVar("Key", int, Pair)


class EdgePath(NamedTuple):
    """The path of an edge: corners of a polyline, and the segment for its label.

    The segment from corner ``bend``, if any, is S-shaped.
    """

    edge: Link | Uplink
    points: tuple[Point, ...]
    leg: tuple[Point, ...]  # both ends of the segment
    bend: int | None = None


class FabricBody(NamedTuple):
    """The part of an NVSwitch fabric in this channel."""

    fabric: int
    rect: Rect


class Channel(NamedTuple):
    """The contents of a channel. ``exits``: the paths of links to the height where they leave the channel."""

    height: float
    wires: tuple[EdgePath, ...]
    bodies: tuple[FabricBody, ...]
    exits: dict[Pair, tuple[Point, ...]]


class _ChannelEdges(NamedTuple):
    """The edges of a channel, by the part of the channel that they use."""

    above: tuple[Link, ...]
    below: tuple[Link, ...]
    crossing: tuple[Link, ...]
    leaving: tuple[Link, ...]
    uplinks: tuple[Uplink, ...]


class _Heights(NamedTuple):
    """The y of each part of a channel."""

    track: dict[Pair, float]
    body: dict[int, float]  # upper edge by fabric
    exit: dict[Pair, float]
    uplinks: tuple[float, float]  # middle of the parts for uplinks from above and from below
    crossing: tuple[float, float]
    total: float


def route(ends: dict[int, End], insets: tuple[float, float], nvlink: Nvlink, spines: Mapping[int, float]) -> Channel:
    """Route all edges of ``ends``. ``insets``: distance of the GPUs' edges above and below the channel.

    ``spines``: x of the right edge of fabrics that are also in other channels.
    """
    channel_edges = _channel_edges(ends, nvlink)
    ports = place_ports(ends, nvlink)
    spans = _body_spans(ends, channel_edges.uplinks, spines)
    heights = _stack(channel_edges, ends, ports, spans)
    edge = {index: -insets[0] if end.top else heights.total + insets[1] for index, end in ends.items()}
    bodies = tuple(
        FabricBody(fabric, Rect(left, heights.body[fabric], right - left, BODY_H))
        for fabric, (left, right) in spans.items()
    )
    wires = [
        _uplink(up, ends[up.gpu], (ports[up.gpu, up.gpu, ACROSS], edge[up.gpu]), heights)
        for up in channel_edges.uplinks
    ]
    for link in (*channel_edges.above, *channel_edges.below, *channel_edges.crossing):
        a, b = ((ports[end, link.a, link.b], edge[end]) for end in (link.a, link.b))
        wires.append(
            _crossing(link, a, b, heights) if link in channel_edges.crossing else _bracket(link, a, b, heights)
        )
    exits: dict[Pair, tuple[Point, ...]] = {}
    for link in channel_edges.leaving:
        near = link.a if link.a in ends else link.b
        x = ports[near, link.a, link.b]
        exits[link.a, link.b] = ((x, edge[near]), (x, heights.exit[link.a, link.b]))
    return Channel(heights.total, tuple(wires), bodies, exits)


def pack(spans: Mapping[Key, tuple[float, float]]) -> dict[Key, int]:
    """Return the lowest level for each span so that spans on a level do not touch; short spans choose first."""
    levels: list[list[tuple[float, float]]] = []
    chosen: dict[Key, int] = {}
    for key, (start, end) in sorted(spans.items(), key=lambda item: (item[1][1] - item[1][0], item[1])):
        free = (
            place
            for place, level in enumerate(levels)
            if all(end + AIR <= other[0] or other[1] + AIR <= start for other in level)
        )
        place = next(free, len(levels))
        if place == len(levels):
            levels.append([])
        levels[place].append((start, end))
        chosen[key] = place
    return chosen


def _channel_edges(ends: dict[int, End], nvlink: Nvlink) -> _ChannelEdges:
    inner = [link for link in nvlink.links if link.a in ends and link.b in ends]
    level = [link for link in inner if ends[link.a].top == ends[link.b].top]
    return _ChannelEdges(
        above=tuple(link for link in level if ends[link.a].top),
        below=tuple(link for link in level if not ends[link.a].top),
        crossing=tuple(link for link in inner if ends[link.a].top != ends[link.b].top),
        leaving=tuple(link for link in nvlink.links if (link.a in ends) != (link.b in ends)),
        uplinks=tuple(up for up in nvlink.uplinks if up.gpu in ends),
    )


def _body_spans(
    ends: dict[int, End], uplinks: Iterable[Uplink], spines: Mapping[int, float]
) -> dict[int, tuple[float, float]]:
    """Return left and right edge of each fabric: over all its GPUs, wide enough for its name, out to its spine."""
    row = [end.x for end in ends.values()]
    places: dict[int, list[float]] = {}
    for up in uplinks:
        places.setdefault(up.fabric, []).append(ends[up.gpu].x)
    spans = {}
    for fabric, xs in sorted(places.items()):
        left, width = min(xs) - GPU_W / 2, max(xs) - min(xs) + GPU_W
        if width < MIN_BODY:
            left, width = _within(row, left + width / 2 - MIN_BODY / 2), MIN_BODY
        spans[fabric] = (left, spines.get(fabric, left + width))
    return spans


def _within(row: list[float], left: float) -> float:
    """Return the left edge of a fabric of minimum width, moved into the row if the row is wider."""
    first, last = min(row) - GPU_W / 2, max(row) + GPU_W / 2
    return (first + last - MIN_BODY) / 2 if last - first < MIN_BODY else min(max(left, first), last - MIN_BODY)


def _stack(
    channel_edges: _ChannelEdges,
    ends: dict[int, End],
    ports: Mapping[tuple[int, int, int | None], float],
    spans: dict[int, Point],
) -> _Heights:
    """Stack the parts that are needed."""
    above, below = _levels(channel_edges.above, ports), _levels(channel_edges.below, ports)
    uplinked = {ends[up.gpu].top for up in channel_edges.uplinks}
    y = _tracks_height(above)
    middle_above = y + UPLINK / 2
    y += UPLINK if True in uplinked else BODY_GAP if spans else 0.0
    levels = pack(spans)
    body = {fabric: y + levels[fabric] * (BODY_H + BODY_GAP) for fabric in spans}
    y += max((level + 1 for level in levels.values()), default=0) * (BODY_H + BODY_GAP) - (BODY_GAP if spans else 0.0)
    exits = {(link.a, link.b): y + EXIT * (place + 1) for place, link in enumerate(channel_edges.leaving)}
    y += EXIT * (len(exits) + 1) if exits else 0.0
    straight = all(ports[a, a, b] == ports[b, a, b] for a, b in ((link.a, link.b) for link in channel_edges.crossing))
    crossing = (
        (y + AIR, y + AIR + CROSSING + (0.0 if straight else SLANT + 4 * len(channel_edges.crossing)))
        if channel_edges.crossing
        else (y, y)
    )
    y = crossing[1] + (AIR if channel_edges.crossing else 0.0)
    middle_below = y + UPLINK / 2
    y += UPLINK if False in uplinked else BODY_GAP if spans and len({end.top for end in ends.values()}) == 2 else 0.0
    total = y + _tracks_height(below)
    track = {key: FIRST_TRACK + TRACK * level for key, level in above.items()}
    track |= {key: total - FIRST_TRACK - TRACK * level for key, level in below.items()}
    return _Heights(track, body, exits, (middle_above, middle_below), crossing, total)


def _levels(links: Iterable[Link], ports: Mapping[tuple[int, int, int | None], float]) -> dict[Pair, int]:
    spans = {}
    for link in links:
        a, b = sorted((ports[link.a, link.a, link.b], ports[link.b, link.a, link.b]))
        spans[link.a, link.b] = (a, b)
    return pack(spans)


def _tracks_height(levels: Mapping[Pair, int]) -> float:
    return FIRST_TRACK + TRACK * max(levels.values()) + LAST_TRACK if levels else 0.0


def _bracket(link: Link, a: Point, b: Point, heights: _Heights) -> EdgePath:
    y = heights.track[link.a, link.b]
    corners = ((a[0], y), (b[0], y))
    return EdgePath(link, (a, *corners, b), corners)


def _crossing(link: Link, a: Point, b: Point, heights: _Heights) -> EdgePath:
    upper, lower = (a, b) if a[1] < b[1] else (b, a)
    leg = ((upper[0], heights.crossing[0]), (lower[0], heights.crossing[1]))
    return EdgePath(link, (upper, *leg, lower), leg, bend=1)


def _uplink(up: Uplink, end: End, start: Point, heights: _Heights) -> EdgePath:
    y = heights.body[up.fabric]
    sign = (start[0], heights.uplinks[0 if end.top else 1])
    return EdgePath(up, (start, (start[0], y if end.top else y + BODY_H)), (sign, sign))
