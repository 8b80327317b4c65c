"""The drawing: all rows and the channels between them, without title, notes and legend."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gputopo.render.svg.geometry import BOX_GAP, BOX_HEAD, BOX_PAD, MARGIN, MIN_CONTENT, Rect
from gputopo.render.svg.link_labels import LinkLabel, place_link_labels
from gputopo.render.svg.link_routing import Channel, EdgePath, Pair, Point, route
from gputopo.render.svg.ports import End
from gputopo.render.svg.rows import Framed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gputopo.model import Link, Nvlink
    from gputopo.render.svg.grouping import NumaBox
    from gputopo.render.svg.rows import BoxRow

FRAME_PAD = BOX_PAD + 4
SPINE = 20.0  # the part of a fabric's body that joins its parts in several channels
_GUTTER = 14.0  # between what stands in the gutter right of the rows
_LANES = 160.0  # the gutter is not wider than this for links between far rows


class Fabric(NamedTuple):
    """An NVSwitch fabric: a bar per channel, connected at their right ends; the name is on the first bar."""

    number: int
    bars: tuple[Rect, ...]

    @property
    def outline(self) -> tuple[Point, ...]:
        """Return the corners of the outline, clockwise from the upper left."""
        first, *rest = self.bars
        spine = first.right - SPINE
        corners = [(first.x, first.y), (first.right, first.y), (self.bars[-1].right, self.bars[-1].bottom)]
        for bar, over in zip(reversed(rest), reversed(self.bars[:-1]), strict=True):
            corners += [(bar.x, bar.bottom), (bar.x, bar.y), (spine, bar.y), (spine, over.bottom)]
        return (*corners, (first.x, first.bottom))


class Assembly(NamedTuple):
    """The drawing. ``content``: its width between the margins. ``bottom``: its lower edge."""

    rows: tuple[BoxRow, ...]
    frame: Framed | None  # around all rows, where one NUMA box holds every GPU
    wires: tuple[tuple[EdgePath, LinkLabel | None], ...]
    fabrics: tuple[Fabric, ...]
    content: float
    bottom: float


class _Band(NamedTuple):
    """A pair of rows, or a row alone, with the channel between or under them."""

    rows: tuple[BoxRow, ...]
    channel: Channel  # its y are the page's
    bottom: float


class _Gutter(NamedTuple):
    """The strip right of the rows for links between channels; x from the right edge of the rows."""

    spines: dict[int, float]  # right edge by fabric
    lanes: dict[Pair, float]
    width: float


def assemble_rows(rows: Sequence[BoxRow], nvlink: Nvlink, y: float, frame: NumaBox | None) -> Assembly:
    """Place the rows from ``y`` on, centred between the margins, in pairs with their NVLinks between them."""
    together = 2 if nvlink.links or nvlink.uplinks else 1
    pairs = [tuple(rows[place : place + together]) for place in range(0, len(rows), together)]
    gutter = _gutter(pairs, nvlink)
    widest = max((row.width for row in rows), default=0.0)
    pad, head = (FRAME_PAD, BOX_HEAD) if frame else (0.0, 0.0)
    content = max(MIN_CONTENT, widest + gutter.width + 2 * pad)
    left = MARGIN + (content - widest - gutter.width) / 2
    spines = {fabric: left + widest + x for fabric, x in gutter.spines.items()}

    bands: list[_Band] = []
    top = y + head
    for pair in pairs:
        bands.append(_band(pair, nvlink, (left, top, widest), spines))
        top = bands[-1].bottom + BOX_GAP
    bottom = bands[-1].bottom + pad if bands else y
    around = Rect(left - pad, y, widest + gutter.width + 2 * pad, bottom - y)
    far = _far_wires(bands, nvlink, {key: left + widest + x for key, x in gutter.lanes.items()})
    return Assembly(
        tuple(row for band in bands for row in band.rows),
        Framed(around, Rect(around.x, y, around.w, BOX_HEAD), frame) if frame else None,
        (*(each for band in bands for each in _signed(band.channel.wires)), *_signed(far)),
        _fabrics(bands),
        content,
        bottom,
    )


def _gutter(pairs: Sequence[tuple[BoxRow, ...]], nvlink: Nvlink) -> _Gutter:
    """Return the space for fabrics and links with GPUs in several channels."""
    home = {gpu.index: place for place, pair in enumerate(pairs) for row in pair for _, gpu in row.gpus}
    homes: dict[int, set[int]] = {}
    for up in nvlink.uplinks:
        homes.setdefault(up.fabric, set()).add(home[up.gpu])
    wide = sorted(fabric for fabric, where in homes.items() if len(where) > 1)
    spines = {fabric: (place + 1) * (_GUTTER + SPINE) for place, fabric in enumerate(wide)}
    start = len(wide) * (_GUTTER + SPINE) + _GUTTER
    far = [(link.a, link.b) for link in nvlink.links if home[link.a] != home[link.b]]
    pitch = min(_GUTTER, _LANES / max(1, len(far)))
    lanes = {pair: start + place * pitch for place, pair in enumerate(far)}
    return _Gutter(spines, lanes, max([0.0, *spines.values(), *lanes.values()]))


def _band(
    rows: tuple[BoxRow, ...], nvlink: Nvlink, at: tuple[float, float, float], spines: Mapping[int, float]
) -> _Band:
    """Place one or two rows with their channel at (left, y), centred in the width."""
    left, y, width = at
    upper = rows[0].placed_at(left + (width - rows[0].width) / 2, y + rows[0].depth, upwards=True)
    edge = y + rows[0].depth
    ends = {gpu.index: End(gpu.index, rect.cx, top=True) for rect, gpu in upper.gpus}
    insets = (rows[0].gpus[0][0].y, rows[-1].gpus[0][0].y)
    if len(rows) == 1:
        channel = route(ends, insets, nvlink, spines)
        return _Band((upper,), _lowered(channel, edge), edge + channel.height)
    x = left + (width - rows[1].width) / 2
    ends |= {gpu.index: End(gpu.index, rect.cx + x, top=False) for rect, gpu in rows[1].gpus}
    channel = route(ends, insets, nvlink, spines)
    lower = rows[1].placed_at(x, edge + max(channel.height, BOX_GAP), upwards=False)
    return _Band((upper, lower), _lowered(channel, edge), edge + max(channel.height, BOX_GAP) + lower.depth)


def _lowered(channel: Channel, by: float) -> Channel:
    def shift(points: tuple[Point, ...]) -> tuple[Point, ...]:
        return tuple((x, y + by) for x, y in points)

    return Channel(
        channel.height,
        tuple(wire._replace(points=shift(wire.points), leg=shift(wire.leg)) for wire in channel.wires),
        tuple(body._replace(rect=body.rect.moved(0.0, by)) for body in channel.bodies),
        {key: shift(points) for key, points in channel.exits.items()},
    )


def _far_wires(bands: Sequence[_Band], nvlink: Nvlink, lanes: Mapping[Pair, float]) -> list[EdgePath]:
    """Links between GPUs of different bands: out of one channel, along the gutter, into the other."""
    channels = [band.channel for band in bands]
    return [_far_wire(link, channels, lanes[link.a, link.b]) for link in nvlink.links if (link.a, link.b) in lanes]


def _far_wire(link: Link, channels: Sequence[Channel], x: float) -> EdgePath:
    key = (link.a, link.b)
    (start, out), (end, back) = (channel.exits[key] for channel in channels if key in channel.exits)
    corner = (x, out[1])
    return EdgePath(link, (start, out, corner, (x, back[1]), back, end), (out, corner))


def _fabrics(bands: Sequence[_Band]) -> tuple[Fabric, ...]:
    bars: dict[int, list[Rect]] = {}
    for band in bands:
        for body in band.channel.bodies:
            bars.setdefault(body.fabric, []).append(body.rect)
    return tuple(Fabric(number, tuple(rects)) for number, rects in sorted(bars.items()))


def _signed(wires: Sequence[EdgePath]) -> tuple[tuple[EdgePath, LinkLabel | None], ...]:
    return tuple(zip(wires, place_link_labels(wires), strict=True))
