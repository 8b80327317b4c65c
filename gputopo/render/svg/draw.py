"""The drawing itself: boxes, NICs, GPUs, NVLinks and fabrics of a page, as markup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputopo.model import Health, Link
from gputopo.render.svg import captions, gpu_boxes
from gputopo.render.svg.geometry import Rect
from gputopo.render.svg.link_labels import LABEL_TEXT
from gputopo.render.svg.markup import group, rect, rounded, tag, text
from gputopo.render.svg.nic_names import NIC_TEXT, nic_names
from gputopo.render.svg.palette import island_class
from gputopo.render.svg.rows import DETAIL_TEXT, HEAD_TEXT
from gputopo.render.svg.words import fit, longest, text_width
from gputopo.render.wording import CPU_NAME, escape_invisible, format_c2c, format_gib, format_number, island_letter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gputopo.model import Gpu, Nic, NodeTopology, Uplink
    from gputopo.render.svg.assembly import Fabric
    from gputopo.render.svg.grouping import Switch
    from gputopo.render.svg.layout import PageLayout
    from gputopo.render.svg.link_labels import LinkLabel
    from gputopo.render.svg.link_routing import EdgePath, Point
    from gputopo.render.svg.marks import Marks
    from gputopo.render.svg.rows import BoxRow, C2cPath, Framed

_CORNER = 10.0
_C2C_SPREAD = 2.5  # half the distance of the two lines of a C2C link
_CHIP = 10.0  # radius of the disc with the island's letter


def drawing(topology: NodeTopology, page: PageLayout) -> str:
    """Draw all rows, channels and NUMA nodes without GPUs, back to front."""
    stage, marks = page.assembly, page.marks
    parts = [_box(stage.frame)] if stage.frame else []
    names = nic_names(topology)
    for row in (*stage.rows, page.spare):
        parts += _furniture(row, names)
        parts += [_c2c(path) for path in row.c2c]
    parts += [_wire(wire, marks) for wire, _ in stage.wires]
    parts += [_fabric(topology, fabric, marks) for fabric in stage.fabrics]
    parts += [_gpu(shape, gpu, marks) for row in stage.rows for shape, gpu in row.gpus]
    parts += [_sign(wire, pill, marks) for wire, pill in stage.wires if pill]
    return "".join(parts)


def weight(lanes: int) -> float:
    """Return the line width of an NVLink, by its lanes, within limits."""
    return min(6.5, 1.5 + 0.6 * max(lanes, 1))


def double_line(start: Point, end: Point) -> str:
    """Draw an upright or a level line as two lines side by side."""
    (x1, y1), (x2, y2) = start, end
    right, down = (_C2C_SPREAD, 0.0) if x1 == x2 else (0.0, _C2C_SPREAD)
    lines = (rounded(((x1 + s * right, y1 + s * down), (x2 + s * right, y2 + s * down)), 0) for s in (-1, 1))
    return tag("path", d="".join(lines), class_="wire", stroke_width=2.0)


def colour(gpu: int, marks: Marks) -> str:
    """Return the CSS class for the colour of a GPU."""
    return island_class(marks.number[gpu]) if gpu in marks.number else "alone"


def _furniture(row: BoxRow, names: Mapping[str, str]) -> list[str]:
    return [
        *(_box(framed) for framed in row.boxes),
        *(_switch(shape, switch, below=row.heads_below) for shape, switch in row.switches),
        *(_cpu(shape) for shape in row.cpus),
        *(_nic(shape, nic, names[nic.name]) for shape, nic in row.nics),
    ]


def _box(framed: Framed) -> str:
    """Draw a NUMA node: its name, then CPUs and memory, or CPUs only, as far as they fit."""
    shape, head, box = framed
    baseline = head.cy + 4.5
    name = fit(box.label, HEAD_TEXT, head.w - 20, bold=True)
    start = text_width(name, HEAD_TEXT, bold=True) + 18
    cpus = box.detail.split(" · ")[0]
    ranges = cpus.split(",")
    cuts = (",".join(ranges[:count]) + ",…" for count in range(len(ranges) - 1, 0, -1))
    detail = longest((box.detail, cpus, *cuts), DETAIL_TEXT, head.w - start - 8)
    return group(
        "numa",
        (
            rect(shape, "box", _CORNER),
            text((shape.x + 10, baseline), name, HEAD_TEXT, "b"),
            text((shape.x + start, baseline), detail, DETAIL_TEXT, "s"),
        ),
        f"{box.label} · {box.detail}".rstrip(" ·"),
        data_numa=box.label.removeprefix("NUMA "),
    )


def _switch(shape: Rect, switch: Switch, *, below: bool) -> str:
    assert switch.distance is not None  # others are not drawn
    baseline = shape.bottom - 6 if below else shape.y + 13
    words = f"PCIe switch ({switch.distance.value})"
    inside = (
        rect(shape, "switch", 7),
        text((shape.x + 8, baseline), fit(words, DETAIL_TEXT, shape.w - 12), DETAIL_TEXT, "s"),
    )
    return group("pcie-switch", inside)


def _cpu(shape: Rect) -> str:
    words = text((shape.cx, shape.cy + 4), CPU_NAME, DETAIL_TEXT, "m")
    return group("cpu", (rect(shape, "switch", 5), words))


def _c2c(path: C2cPath) -> str:
    """Draw the link of a GPU to its CPU as two parallel lines: NVLinks between GPUs are single lines."""
    line, label, gpu = path
    assert gpu.c2c is not None  # others have no path
    state = (" degraded" if gpu.c2c.short else "") + ("" if gpu.c2c.lanes else " down")
    words = text((label.rect.cx, label.rect.cy + 4), label.text, LABEL_TEXT, "m b sign")
    hover = f"GPU {gpu.index} to its {CPU_NAME} · {gpu.c2c.lanes} of {gpu.c2c.expected_lanes} NVLink-C2C links"
    inside = (
        double_line((line.x, line.y), (line.x, line.bottom)),
        rect(label.rect, "pill", label.rect.h / 2),
        words,
    )
    return group(f"c2c alone{state}", inside, hover, data_gpu=str(gpu.index))


def _nic(shape: Rect, nic: Nic, name: str) -> str:
    rate = f"{nic.rate_gbps} Gb/s" if nic.rate_gbps else ""
    inside = (
        rect(shape, "plate", 5),
        text(
            (shape.cx, shape.y + (13 if rate else 19)),
            name,
            NIC_TEXT,
            "m b",
        ),
        text((shape.cx, shape.y + 24), fit(rate, 8.5, shape.w - 4), 8.5, "m s"),
    )
    hover = " · ".join(each for each in (f"NIC {nic.name}", nic.bus_id, rate) if each)
    return group("nic", inside, hover, data_nic=escape_invisible(nic.name))


def _gpu(shape: Rect, gpu: Gpu, marks: Marks) -> str:
    left, y = shape.x + gpu_boxes.PAD, shape.y
    lost = gpu.health is Health.LOST
    state = "lost " if lost else "degraded " if gpu.index in marks.gpus else ""
    inside = [rect(shape, "face", 8)]
    if lost:
        inside.append(tag("rect", x=shape.x, y=y, width=shape.w, height=shape.h, rx=8, fill="url(#gputopo-hatch)"))
    inside.append(text((left, y + 21), f"GPU {gpu.index}", 14, "b"))
    inside += _chip((shape.right - gpu_boxes.PAD - _CHIP + 2, y + 16), gpu, marks)
    y += gpu_boxes.HEAD
    for line in gpu_boxes.box_lines(gpu):
        y += gpu_boxes.LINE
        inside.append(text((left, y), fit(line, 11, shape.w - 2 * gpu_boxes.PAD + 2), 11))
    inside += _strip(gpu, left, y)
    inside += _alarm(shape, gpu, marks)
    unknown = "" if marks.known else "unknown "
    return group(f"gpu {state}{unknown}{colour(gpu.index, marks)}", inside, _about(gpu, marks), data_gpu=str(gpu.index))


def _chip(at: tuple[float, float], gpu: Gpu, marks: Marks) -> list[str]:
    if gpu.index in marks.number:
        sign = island_letter(marks.number[gpu.index])
    elif gpu.usable and not marks.known:
        sign = "?"
    else:
        return []
    size = 12 if len(sign) == 1 else 9
    return [
        tag("circle", cx=at[0], cy=at[1], r=_CHIP, class_="chip"),
        text((at[0], at[1] + size * 0.36), sign, size, "m b letter"),
    ]


def _strip(gpu: Gpu, left: float, y: float) -> list[str]:
    parts = []
    for each in gpu_boxes.slices(gpu):
        cell = Rect(left + each.x + 0.75, y + 7, each.w - 1.5, gpu_boxes.STRIP - 7)
        inside = (rect(cell, "slice", 2), text((cell.cx, cell.y + 11), each.label, 9, "m b"))
        parts.append(group("mig", inside, f"MIG {each.profile}"))
    return parts


def _alarm(shape: Rect, gpu: Gpu, marks: Marks) -> list[str]:
    """Draw the alert at the right of the third line: LOST, or an exclamation mark."""
    middle = shape.y + gpu_boxes.HEAD + 2 * gpu_boxes.LINE - 4
    if gpu.health is Health.LOST:
        plate = Rect(shape.right - gpu_boxes.PAD - 40, middle - 9, 42, 18)
        return [tag("g", (rect(plate, "", 4), text((plate.cx, plate.y + 13), "LOST", 10.5, "m b")), class_="bad")]
    if gpu.index not in marks.gpus:
        return []
    plate = Rect(shape.right - gpu_boxes.PAD - 2 * _CHIP + 2, middle - _CHIP, 2 * _CHIP, 2 * _CHIP)
    return [tag("g", (rect(plate, "", _CHIP), text((plate.cx, plate.cy + 5), "!", 14, "m b")), class_="bad")]


def _about(gpu: Gpu, marks: Marks) -> str:
    """Return the tooltip of a GPU: the facts that do not fit into its box."""
    pcie = gpu.pcie
    facts = [
        f"GPU {gpu.index}",
        gpu.product,
        None if gpu.memory_mib is None else format_gib(gpu.memory_mib),
        gpu.bus_id,
        gpu.uuid,
        f"PCIe {pcie.max_generation}.0 x{pcie.max_width}" if pcie.max_generation and pcie.max_width else None,
        None if gpu.c2c is None else f"{format_c2c(gpu.c2c)} to its {CPU_NAME}",
        f"island {island_letter(marks.number[gpu.index])}" if gpu.index in marks.number else None,
        "lost" if gpu.health is Health.LOST else "degraded" if gpu.index in marks.gpus else None,
    ]
    return " · ".join(fact for fact in facts if fact)


def _edge_class(edge: Link | Uplink, marks: Marks) -> str:
    degraded = (" degraded" if marks.is_degraded(edge) else "") + ("" if edge.lanes else " down")
    return f"{colour(edge.a if isinstance(edge, Link) else edge.gpu, marks)}{degraded}"


def _wire(wire: EdgePath, marks: Marks) -> str:
    edge = wire.edge
    path = tag("path", d=rounded(wire.points, 10, wire.bend), class_="wire", stroke_width=weight(edge.lanes))
    lanes = f"{edge.lanes} of {edge.expected_lanes} NVLinks" if edge.short else f"{edge.lanes} NVLinks"
    rate = f" · {format_number(edge.gbps)} GB/s" if edge.gbps else ""
    kind = _edge_class(edge, marks)
    if isinstance(edge, Link):
        hover = f"GPU {edge.a} to GPU {edge.b} · {lanes}{rate}"
        return group(f"link {kind}", (path,), hover, data_a=str(edge.a), data_b=str(edge.b))
    hover = f"GPU {edge.gpu} to NVSwitch fabric · {lanes}{rate}"
    return group(f"uplink {kind}", (path,), hover, data_gpu=str(edge.gpu), data_fabric=str(edge.fabric))


def _sign(wire: EdgePath, pill: LinkLabel, marks: Marks) -> str:
    words = text((pill.rect.cx, pill.rect.cy + 4), pill.text, LABEL_TEXT, "m b sign")
    return group(f"lanes {_edge_class(wire.edge, marks)}", (rect(pill.rect, "pill", pill.rect.h / 2), words))


def _fabric(topology: NodeTopology, fabric: Fabric, marks: Marks) -> str:
    uplinks = [up for up in topology.nvlink.uplinks if up.fabric == fabric.number] if topology.nvlink else []
    members = [up.gpu for up in uplinks if up.lanes and up.gpu in marks.number]
    name, facts = captions.fabric_name(topology, uplinks)
    bar = fabric.bars[0]
    detail = longest((" · ".join(facts[:count]) for count in range(len(facts), 0, -1)), 11.5, bar.w - 16)
    inside = (
        tag("path", d=rounded(fabric.outline, _CORNER, closed=True), class_="body"),
        text((bar.cx, bar.y + 21), fit(name, 14, bar.w - 16, bold=True), 14, "m b"),
        text((bar.cx, bar.y + 38), detail, 11.5, "m"),
    )
    assumed = " assumed" if any(up.assumed for up in uplinks) else ""
    kind = colour(members[0], marks) if members else "alone"
    return group(f"fabric{assumed} {kind}", inside, " · ".join((name, *facts)), data_fabric=str(fabric.number))
