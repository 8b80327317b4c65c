"""The names of network cards in their boxes: whole where they fit, else shortened, with the whole name in the legend.

A name is shortened in its middle, because names of one machine differ at their ends (``rocep145s0f0``,
``rocep145s0f1``). Where shortened names would be equal, the box has the number that ``-o matrix`` uses: ``NIC3``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputopo.render.svg.geometry import NIC_W
from gputopo.render.svg.words import ELLIPSIS, text_width
from gputopo.render.wording import escape_invisible

if TYPE_CHECKING:
    from gputopo.model import NodeTopology

NIC_TEXT = 9.5
_BEGIN = 2  # characters before the ellipsis


def nic_names(topology: NodeTopology) -> dict[str, str]:
    """Return the text in the box of each network card, by its name."""
    found: dict[str, str] = {}
    for place, nic in enumerate(topology.nics):
        label = _shortened(escape_invisible(nic.name))
        found.setdefault(nic.name, label if label not in found.values() else f"NIC{place}")
    return found


def shortened_names(topology: NodeTopology) -> list[tuple[str, str]]:
    """Return the text in the box and the whole name of each network card whose name does not fit."""
    names = ((label, escape_invisible(name)) for name, label in nic_names(topology).items())
    return [(label, name) for label, name in names if label != name]


def _shortened(name: str) -> str:
    if _fits(name):
        return name
    return next(
        (cut for end in range(len(name) - 1, 0, -1) if _fits(cut := name[:_BEGIN] + ELLIPSIS + name[-end:])), ELLIPSIS
    )


def _fits(text: str) -> bool:
    return text_width(text, NIC_TEXT, bold=True) <= NIC_W - 4
