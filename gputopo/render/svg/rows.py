"""The layout of a row of NUMA boxes: the coordinates of its boxes, switches, NICs and GPUs.

A row has depth instead of height: depth 0 is the inner edge, where NVLinks start, and depth grows outwards. The inner
edge is the lower edge of a row above its links and the upper edge of a row below them: the same layout, mirrored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gputopo.render.svg.geometry import (
    BOX_GAP,
    BOX_HEAD,
    BOX_PAD,
    C2C_GAP,
    CPU_H,
    GPU_GAP,
    GPU_W,
    MIN_CONTENT,
    NIC_GAP,
    NIC_H,
    NIC_W,
    SWITCH_GAP,
    SWITCH_HEAD,
    SWITCH_PAD,
    Rect,
)
from gputopo.render.svg.link_labels import LinkLabel, link_label
from gputopo.render.svg.words import text_width
from gputopo.render.wording import c2c_label_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gputopo.model import Gpu, Nic
    from gputopo.render.svg.grouping import NumaBox, Switch


HEAD_TEXT = 12.0  # font sizes of a box's name and of its CPUs
DETAIL_TEXT = 10.5
_SPARE_W = 230.0  # least width of a NUMA box without GPUs


class Framed(NamedTuple):
    """A NUMA box: its frame, and the space for its name."""

    frame: Rect
    head: Rect
    box: NumaBox


class C2cPath(NamedTuple):
    """The NVLink-C2C link of a GPU: the line to its CPU, without width, and the label on it."""

    line: Rect
    label: LinkLabel
    gpu: Gpu


class BoxRow(NamedTuple):
    """A row: in depths (see above) first, in coordinates of the page after ``standing``."""

    width: float
    depth: float
    gpus: tuple[tuple[Rect, Gpu], ...] = ()
    nics: tuple[tuple[Rect, Nic], ...] = ()
    switches: tuple[tuple[Rect, Switch], ...] = ()
    boxes: tuple[Framed, ...] = ()
    cpus: tuple[Rect, ...] = ()  # with NVLink-C2C links
    c2c: tuple[C2cPath, ...] = ()
    heads_below: bool = False  # captions are at the lower edge of switches

    def placed_at(self, x: float, edge: float, *, upwards: bool) -> BoxRow:
        """Return the row in coordinates of the page: left edge at ``x``, inner edge at y = ``edge``, up or down."""

        def place(rect: Rect) -> Rect:
            return Rect(rect.x + x, edge - rect.bottom if upwards else edge + rect.y, rect.w, rect.h)

        return BoxRow(
            self.width,
            self.depth,
            tuple((place(rect), gpu) for rect, gpu in self.gpus),
            tuple((place(rect), nic) for rect, nic in self.nics),
            tuple((place(rect), switch) for rect, switch in self.switches),
            tuple(Framed(place(frame), place(head), box) for frame, head, box in self.boxes),
            tuple(map(place, self.cpus)),
            tuple(C2cPath(place(line), label._replace(rect=place(label.rect)), gpu) for line, label, gpu in self.c2c),
            heads_below=not upwards,
        )


def layout_row(boxes: Sequence[NumaBox], gpu_height: float, *, framed: bool) -> BoxRow:
    """Lay out a row. Without frames, a single frame around all rows is drawn instead of the boxes."""
    pad = BOX_PAD if framed else 0.0
    base = pad + (SWITCH_PAD if any(_boxed(switch) for box in boxes for switch in box.switches) else 0.0)
    x = 0.0
    parts: list[BoxRow] = []
    frames: list[Rect] = []
    slack = _slack(boxes) if framed else [0.0] * len(boxes)
    for box, more in zip(boxes, slack, strict=True):
        parts.append(_lay_box(box, (x + pad + more / 2, base, gpu_height)))
        frames.append(Rect(x, 0.0, parts[-1].width + 2 * pad + more, 0.0))
        x = frames[-1].right + BOX_GAP
    inner = max(part.depth for part in parts)
    depth = inner + max(_head_height(box, rect.w, framed=framed) for box, rect in zip(boxes, frames, strict=True))
    heads = [
        _lay_head(box, Rect(rect.x, inner, rect.w, depth - inner), pad) for box, rect in zip(boxes, frames, strict=True)
    ]
    return BoxRow(
        x - BOX_GAP,
        depth,
        tuple(item for part in parts for item in part.gpus),
        tuple(item for part in (*parts, *heads) for item in part.nics),
        tuple(item for part in parts for item in part.switches),
        tuple(
            Framed(Rect(rect.x, 0.0, rect.w, depth), Rect(rect.x, depth - BOX_HEAD, head.width, BOX_HEAD), box)
            for rect, head, box in zip(frames, heads, boxes, strict=True)
            if framed
        ),
        tuple(item for part in parts for item in part.cpus),
        tuple(item for part in parts for item in part.c2c),
    )


def layout_nics(nics: Sequence[Nic], at: tuple[float, float], width: float) -> tuple[tuple[Rect, Nic], ...]:
    """Lay out NICs in lines that fill a width from a corner."""
    per_line = _per_line(width)
    step_x, step_y = NIC_W + NIC_GAP, NIC_H + NIC_GAP
    return tuple(
        (Rect(at[0] + i % per_line * step_x, at[1] + i // per_line * step_y, NIC_W, NIC_H), nic)
        for i, nic in enumerate(nics)
    )


def _per_line(width: float) -> int:
    return max(1, int((width + NIC_GAP + 0.01) // (NIC_W + NIC_GAP)))  # 0.01 for rounding errors


def _nic_lines(count: int, width: float) -> int:
    return -(-count // _per_line(width))


def layout_spare(boxes: Sequence[NumaBox], within: Rect) -> BoxRow:
    """Lay out NUMA boxes without GPUs, in equal columns from an upper left corner of the page.

    Those with NICs come first, so that the others can be lines of their names only.
    """
    boxes = sorted(boxes, key=lambda box: not box.nics)
    columns = min(max(1, len(boxes)), max(1, int((within.w + BOX_GAP) // (_SPARE_W + BOX_GAP))))
    width = (within.w + BOX_GAP) / columns - BOX_GAP
    y = within.y
    framed: list[Framed] = []
    nics: list[tuple[Rect, Nic]] = []
    for start in range(0, len(boxes), columns):
        line = boxes[start : start + columns]
        height = max(_stacked(box, width) for box in line)
        for place, box in enumerate(line):
            frame = Rect(within.x + place * (width + BOX_GAP), y, width, height)
            framed.append(Framed(frame, Rect(frame.x, y, width, BOX_HEAD), box))
            nics += layout_nics(box.nics, (frame.x + BOX_PAD, y + BOX_HEAD), width - 2 * BOX_PAD)
        y += height + SWITCH_GAP
    return BoxRow(within.w, max(0.0, y - SWITCH_GAP - within.y), nics=tuple(nics), boxes=tuple(framed))


def _stacked(box: NumaBox, width: float) -> float:
    """Return the height of a head with its NICs below it."""
    return BOX_HEAD + (_nic_lines(len(box.nics), width - 2 * BOX_PAD) * (NIC_H + NIC_GAP) + NIC_GAP if box.nics else 0)


def _beside(box: NumaBox, width: float) -> bool:
    """Return whether the NICs fit beside the box's name and CPUs."""
    return bool(box.nics) and _words(box.label, box.detail.split(" · ")[0]) + len(box.nics) * (NIC_W + NIC_GAP) <= width


def _words(label: str, detail: str) -> float:
    return text_width(label, HEAD_TEXT, bold=True) + text_width(detail, DETAIL_TEXT) + 30


def _head_height(box: NumaBox, width: float, *, framed: bool) -> float:
    if not framed:
        return _nic_lines(len(box.nics), width) * (NIC_H + NIC_GAP)
    return NIC_H + 2 * NIC_GAP if _beside(box, width) else _stacked(box, width)


def _lay_head(box: NumaBox, zone: Rect, pad: float) -> BoxRow:
    """Lay out the NICs without a switch in the outer part of a box; the width remains for its name."""
    if pad and _beside(box, zone.w):
        taken = len(box.nics) * (NIC_W + NIC_GAP) - NIC_GAP
        left = zone.right - pad - taken
        return BoxRow(left - zone.x, 0.0, nics=layout_nics(box.nics, (left, zone.bottom - NIC_H - NIC_GAP), taken))
    return BoxRow(zone.w, 0.0, nics=layout_nics(box.nics, (zone.x + pad, zone.y + NIC_GAP), zone.w - 2 * pad))


def _slack(boxes: Sequence[NumaBox]) -> list[float]:
    """Return how much each box is widened for its name, as long as the row stays narrow."""
    widths = [sum(_switch_width(each) + SWITCH_GAP for each in box.switches) + SWITCH_GAP for box in boxes]
    words = [_words(box.label, box.detail) + len(box.nics) * (NIC_W + NIC_GAP) for box in boxes]
    wanted = [max(0.0, need - width) for need, width in zip(words, widths, strict=True)]
    room = max(0.0, MIN_CONTENT - sum(widths) - BOX_GAP * (len(boxes) - 1))
    return [min(want, room / len(boxes)) for want in wanted]


def _switch_width(switch: Switch) -> float:
    return len(switch.gpus) * (GPU_W + GPU_GAP) - GPU_GAP + (2 * SWITCH_PAD if _boxed(switch) else 0.0)


def _boxed(switch: Switch) -> bool:
    return switch.distance is not None


def _lay_box(box: NumaBox, at: tuple[float, float, float]) -> BoxRow:
    """Lay out the switches of a NUMA box from (x, depth of the GPUs' inner edge, height of a GPU) on."""
    left, base, gpu_height = at
    x = left
    parts = []
    for switch in box.switches:
        parts.append(_lay_switch(switch, (x, base, gpu_height)))
        x += parts[-1].width + SWITCH_GAP
    depth = max(part.depth for part in parts)
    gpus = tuple(item for part in parts for item in part.gpus)
    linked = [(rect, gpu) for rect, gpu in gpus if gpu.c2c is not None]
    row = BoxRow(
        x - SWITCH_GAP - left,
        depth,
        gpus,
        tuple(item for part in parts for item in part.nics),
        tuple((frame._replace(h=depth - frame.y), switch) for part in parts for frame, switch in part.switches),
    )
    return _with_cpu(row, linked) if linked else row


def _with_cpu(row: BoxRow, linked: Sequence[tuple[Rect, Gpu]]) -> BoxRow:
    """Add a CPU outside of a box's GPUs, and the NVLink-C2C links of these GPUs to it."""
    left, right = linked[0][0].x, linked[-1][0].right
    cpu = Rect(left, row.depth + C2C_GAP, right - left, CPU_H)
    paths = tuple(
        C2cPath(
            Rect(rect.cx, rect.bottom, 0.0, cpu.y - rect.bottom),
            link_label(c2c_label_text(gpu.c2c), (rect.cx, cpu.y - C2C_GAP / 2)),
            gpu,
        )
        for rect, gpu in linked
        if gpu.c2c is not None
    )
    return row._replace(depth=cpu.bottom, cpus=(cpu,), c2c=paths)


def _lay_switch(switch: Switch, at: tuple[float, float, float]) -> BoxRow:
    """Lay out a switch with its NICs outside its GPUs; a GPU without a switch has no frame, but the same line."""
    left, base, gpu_height = at
    pad = SWITCH_PAD if _boxed(switch) else 0.0
    gpus = tuple(
        (Rect(left + pad + i * (GPU_W + GPU_GAP), base, GPU_W, gpu_height), gpu) for i, gpu in enumerate(switch.gpus)
    )
    inner = len(gpus) * (GPU_W + GPU_GAP) - GPU_GAP
    nics = layout_nics(switch.nics, (left + pad, base + gpu_height + NIC_GAP), inner)
    lines = _nic_lines(len(nics), inner) * (NIC_H + NIC_GAP)
    depth = base + gpu_height + lines + (SWITCH_HEAD if _boxed(switch) else 0.0)
    frame = Rect(left, base - SWITCH_PAD, inner + 2 * pad, depth - base + SWITCH_PAD)
    return BoxRow(_switch_width(switch), depth, gpus, nics, ((frame, switch),) if _boxed(switch) else ())
