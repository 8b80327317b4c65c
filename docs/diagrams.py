"""The diagrams of docs/concepts.md as SVG, readable on light and dark pages. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape

_STYLE = """
    :root { color-scheme: light dark; }
    .page { fill: #ffffff; }
    .box { fill: #eef6f5; stroke: #0f766e; stroke-width: 1.5; }
    .other { fill: #f3f4f6; stroke: #6b7280; stroke-width: 1.5; }
    .frame { fill: none; stroke: #0f766e; stroke-width: 2; }
    .free { fill: #ffffff; stroke: #374151; }
    .used { fill: #9ca3af; stroke: #374151; }
    .chosen { fill: #5eead4; stroke: #374151; }
    .line { stroke: #374151; stroke-width: 1.5; fill: none; }
    .tip { fill: #374151; }
    text { font: 13px system-ui, sans-serif; fill: #111827; }
    .strong { font-weight: 600; }
    .note { font-size: 12px; fill: #4b5563; }
    .label { font-size: 12px; fill: #4b5563; stroke: #ffffff; stroke-width: 4px; paint-order: stroke; }
    @media (prefers-color-scheme: dark) {
      .page { fill: #111827; }
      .box { fill: #134e4a; stroke: #5eead4; }
      .other { fill: #374151; stroke: #9ca3af; }
      .frame { stroke: #5eead4; }
      .free { fill: #111827; stroke: #d1d5db; }
      .used { fill: #6b7280; stroke: #d1d5db; }
      .chosen { fill: #0d9488; stroke: #d1d5db; }
      .line { stroke: #d1d5db; }
      .tip { fill: #d1d5db; }
      text { fill: #f9fafb; }
      .note { fill: #d1d5db; }
      .label { fill: #d1d5db; stroke: #111827; }
    }
"""


def _drawing(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    body = "\n  ".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">\n  <title>{escape(title)}</title>\n  <style>{_STYLE}  </style>\n'
        '  <defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path class="tip" d="M0 0L10 5L0 10z"/></marker></defs>\n'
        f'  <rect class="page" width="{width}" height="{height}" rx="8"/>\n  {body}\n</svg>\n'
    )


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "middle") -> str:
    of = f' class="{style}"' if style else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{of}>{escape(text)}</text>'


def _box(x: int, y: int, width: int, lines: tuple[str, ...], style: str = "box") -> str:
    """A box with centred lines, the first of them bold; 44 high for two lines."""
    height = 16 + 17 * len(lines)
    first = y + 22
    texts = (_text(x + width / 2, first + 17 * at, line, "note" if at else "strong") for at, line in enumerate(lines))
    return f'<rect class="{style}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>' + "".join(texts)


def _arrow(x1: int, y1: int, x2: int, y2: int, label: str = "", *, dy: int = -7) -> str:
    line = f'<path class="line" marker-end="url(#tip)" d="M{x1} {y1}L{x2} {y2}"/>'
    return line + (_text((x1 + x2) / 2, (y1 + y2) / 2 + dy, label, "label") if label else "")


def programs() -> str:
    """Return the diagram of the programs and the objects between them."""
    parts = [
        _box(20, 30, 150, ("GPU node", "driver, kubelet"), "other"),
        _arrow(95, 80, 95, 128, "", dy=0),
        _text(103, 108, "NVML, PodResources", "note", "start"),
        _box(20, 130, 150, ("agent", "one on each GPU node")),
        _arrow(170, 155, 268, 155, "publishes"),
        _box(
            270,
            96,
            170,
            ("API server", "Node: labels, annotation", "NodeGpus: GPUs of pods", "reservations, ledger"),
            "other",
        ),
        _arrow(538, 120, 442, 120, "watches"),
        _box(540, 95, 180, ("extender", "filter, prioritize")),
        _arrow(538, 215, 442, 165, "plans", dy=4),
        _box(540, 195, 180, ("planner", "gangs, gated pods")),
        _arrow(630, 45, 630, 93),
        _text(640, 72, "asks for each GPU pod", "note", "start"),
        _box(540, 12, 180, ("kube-scheduler",), "other"),
        _arrow(538, 30, 400, 94, "binds", dy=4),
    ]
    return _drawing(800, 265, "The programs of gputopo and the objects of the API server between them", parts)


def _island(x: int, y: int, states: str, cell: int = 28) -> str:
    """GPUs of one NVLink island in a frame. States: f free, u used, c chosen."""
    styles = {"f": "free", "u": "used", "c": "chosen"}
    cells = "".join(
        f'<rect class="{styles[state]}" x="{x + 8 + (cell + 6) * at}" y="{y + 8}" width="{cell}" height="28" rx="3"/>'
        for at, state in enumerate(states)
    )
    return f'<rect class="frame" x="{x}" y="{y}" width="{10 + (cell + 6) * len(states)}" height="44" rx="6"/>{cells}'


def _key(x: int, style: str, label: str) -> str:
    """One entry of the legend."""
    cell = f'<rect class="{style}" x="{x}" y="168" width="16" height="16" rx="3"/>'
    return cell + _text(x + 22, 181, label, "note", "start")


def islands() -> str:
    """Return the diagram of free GPUs in one NVLink island and in two."""
    parts = [
        _text(20, 30, "Two nodes with four free GPUs each, in islands of four:", "strong", "start"),
        _text(20, 72, "node a", "", "start"),
        _island(90, 45, "uuff"),
        _island(250, 45, "uuff"),
        _text(420, 72, "a pod that requires four GPUs in one island does not fit", "note", "start"),
        _text(20, 132, "node b", "", "start"),
        _island(90, 105, "uuuu"),
        _island(250, 105, "cccc"),
        _text(420, 132, "it fits: all four free GPUs are joined by NVLink", "note", "start"),
        _key(90, "free", "free"),
        _key(160, "used", "used"),
        _key(230, "chosen", "chosen for the pod"),
        _key(390, "frame", "NVLink island"),
    ]
    return _drawing(800, 200, "Free GPUs within one NVLink island and in two islands", parts)


def prediction() -> str:
    """Return the diagram of the choices of the device plugin."""
    parts = [
        _text(
            20,
            30,
            "A pod asks for two GPUs in one island. Which two it gets, the device plugin decides:",
            "strong",
            "start",
        ),
        _text(20, 77, "free now", "", "start"),
        _island(110, 50, "uffu"),
        _island(270, 50, "uuff"),
        _arrow(425, 72, 490, 72),
        _arrow(425, 72, 490, 132),
        _arrow(425, 72, 490, 190),
        *(
            part
            for row, (left, right, note) in enumerate(
                (("uccu", "uuff", "one island"), ("uffu", "uucc", "one island"), ("ucfu", "uucf", "two islands"))
            )
            for part in (
                _island(495, 50 + 60 * row, left, 20),
                _island(650, 50 + 60 * row, right, 20),
                _text(810, 77 + 60 * row, note, "note", "start"),
            )
        ),
        _text(20, 140, "required: every possible choice must be in one island,", "note", "start"),
        _text(20, 157, "so the third choice rejects the node if the plugin may make it.", "note", "start"),
        _text(20, 180, "preferred: the choices change only the score.", "note", "start"),
    ]
    return _drawing(900, 232, "The possible choices of the device plugin for one pod", parts)


def gang() -> str:
    """Return the diagram of the steps in which a gang starts."""
    lanes = (("pods of the gang", 90), ("planner", 290), ("ledger", 470), ("extenders", 640), ("kube-scheduler", 800))
    steps = (
        (90, 290, "created, with a scheduling gate"),
        (290, 470, "1 proposes all places"),
        (640, 470, "2 acknowledge"),
        (290, 470, "3 commits, one write"),
        (290, 90, "4 pins and ungates every pod"),
        (800, 90, "5 binds each pod to its place"),
    )
    parts = [_box(x - 68, 14, 136, (name,), "other" if name == "kube-scheduler" else "box") for name, x in lanes]
    parts += [f'<path class="line" stroke-dasharray="3 4" d="M{x} 47L{x} 345"/>' for _, x in lanes]
    parts += [_arrow(start, 85 + 46 * at, end, 85 + 46 * at, label) for at, (start, end, label) in enumerate(steps)]
    parts.append(
        _text(
            20,
            368,
            "Before step 4 no pod starts. If a step fails, the planner rolls all members back.",
            "note",
            "start",
        )
    )
    return _drawing(900, 385, "The steps in which a gang starts as a whole", parts)


DIAGRAMS: dict[str, Callable[[], str]] = {
    "images/concept-programs.svg": programs,
    "images/concept-islands.svg": islands,
    "images/concept-prediction.svg": prediction,
    "images/concept-gang.svg": gang,
}
