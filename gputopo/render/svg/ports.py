"""Ports: the points on the inner edge of a GPU where its NVLinks start, a different point for each link.

Links to the left start left of the centre, links to the right start right of it. The link to the nearest neighbour is
outermost, so that links nest like brackets. Links straight across (to the opposite GPU, or into an NVSwitch) start at
the centre.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gputopo.render.svg.geometry import GPU_W

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gputopo.model import Link, Nvlink

ACROSS = None  # the far end of an uplink: the fabric across the channel


class End(NamedTuple):
    """A GPU on the edge of a channel."""

    gpu: int
    x: float  # of its centre
    top: bool  # above the channel; else below


class _Leaving(NamedTuple):
    wire: tuple[int, int | None]
    dx: float  # to the far end's centre
    across: bool


def place_ports(ends: dict[int, End], nvlink: Nvlink) -> dict[tuple[int, int, int | None], float]:
    """Return the x of every port, by (GPU, a, b) for a link a-b and by (GPU, GPU, None) for its uplink.

    A link with a far end outside of ``ends`` goes to the right, towards the gutter.
    """
    leaving: dict[int, list[_Leaving]] = {index: [] for index in ends}
    for link in nvlink.links:
        for near, far in ((link.a, link.b), (link.b, link.a)):
            if near in ends:
                leaving[near].append(_leave(ends[near], ends.get(far), link))
    for up in nvlink.uplinks:
        if up.gpu in ends:
            leaving[up.gpu].insert(0, _Leaving((up.gpu, ACROSS), 0.0, across=True))
    return {(index, *wire): x for index, wires in leaving.items() for wire, x in _spread(ends[index].x, wires).items()}


def _leave(near: End, far: End | None, link: Link) -> _Leaving:
    if far is None:
        return _Leaving((link.a, link.b), float("inf"), across=True)
    return _Leaving((link.a, link.b), far.x - near.x, across=far.top != near.top)


def _spread(centre: float, wires: Sequence[_Leaving]) -> dict[tuple[int, int | None], float]:
    straight = next((each for each in wires if each.across and each.dx == 0), None)
    rest = [each for each in wires if each is not straight]
    left = sorted((each for each in rest if each.dx < 0), key=lambda each: (each.across, -each.dx))
    right = sorted((each for each in rest if each.dx >= 0), key=lambda each: (not each.across, -each.dx))
    if straight is None:
        return _evenly([*left, *right], centre - GPU_W / 2, GPU_W)
    return {
        straight.wire: centre,
        **_evenly(left, centre - GPU_W / 2, GPU_W / 2),
        **_evenly(right, centre, GPU_W / 2),
    }


def _evenly(wires: Sequence[_Leaving], start: float, room: float) -> dict[tuple[int, int | None], float]:
    step = room / (len(wires) + 1)
    return {each.wire: start + step * place for place, each in enumerate(wires, start=1)}
