"""A topology as a Graphviz graph: NUMA nodes and PCIe switches as clusters, each NVSwitch fabric as a node.

gputopo show -o dot | dot -Tsvg > topology.svg
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputopo.render.edges import c2c_edges, drawn_edges, fabrics
from gputopo.render.palette import fill, outline
from gputopo.render.places import numa_places
from gputopo.render.wording import CPU_NAME, degraded_gpus, escape_invisible, format_gib, island_marks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gputopo.model import Gpu, NodeTopology
    from gputopo.render.edges import DrawnEdge
    from gputopo.render.places import DeviceGroup

_HEAD = """\
graph topology {
  graph [fontname="Helvetica", fontsize=12, style="rounded", color="#8c959f", ranksep=0.7, nodesep=0.25];
  node [fontname="Helvetica", fontsize=11, shape=box, style="rounded,filled", fillcolor="#ffffff"];
  edge [fontname="Helvetica", fontsize=10, color="#57606a"];
"""
_LINE, _BAD = "#57606a", "#cf222e"


def render_dot(topology: NodeTopology, name: str | None = None) -> str:
    """Return the graph in the DOT language; the NICs of a switch share a node.

    Every text is escaped, so that no product or NIC name can change the graph.
    """
    title = name or topology.machine
    lines = [f"  label={_quoted(title)};", '  labelloc="t";'] if title else []
    lines += list(_places(topology))
    lines += [
        f'  nvswitch{fabric} [label={_quoted(called)}, shape=box3d, fillcolor="#d0d7de", width=3];'
        for fabric, called in fabrics(topology).items()
    ]
    lines += [_edge(edge) for edge in (*drawn_edges(topology), *c2c_edges(topology))]
    return _HEAD + "".join(f"{line}\n" for line in lines) + "}\n"


def _places(topology: NodeTopology) -> Iterator[str]:
    marked, degraded = island_marks(topology), degraded_gpus(topology)
    for count, place in enumerate(numa_places(topology)):
        yield f"  subgraph cluster_numa{count} {{"
        yield f"    label={_quoted('NUMA ?' if place.numa is None else f'NUMA {place.numa}')};"
        for number, group in enumerate(place.groups):
            body = list(_group(group, marked, degraded, f"nics{count}x{number}"))
            if group.switched:
                yield f"    subgraph cluster_switch{count}x{number} {{"
                yield '      label="PCIe switch"; style="rounded,dashed";'
                yield from (f"  {line}" for line in body)
                yield "    }"
            else:
                yield from body
        if any(gpu.c2c is not None for gpu in place.gpus):
            yield f'    cpu{count} [label={_quoted(CPU_NAME)}, fillcolor="#d0d7de"];'
        yield "  }"


def _group(group: DeviceGroup, marked: dict[int, str], degraded: frozenset[int], nics: str) -> Iterator[str]:
    for gpu in group.gpus:
        yield f"    gpu{gpu.index} [{_gpu(gpu, marked.get(gpu.index), is_degraded=gpu.index in degraded)}];"
    if group.nics:
        label = "\\n".join(_escaped(nic.name) for nic in group.nics)
        yield f'    {nics} [label="{label}", shape=ellipse, fontsize=9];'


def _gpu(gpu: Gpu, mark: str | None, *, is_degraded: bool) -> str:
    lines = [f"GPU{gpu.index}", gpu.product, None if gpu.memory_mib is None else format_gib(gpu.memory_mib)]
    if mark is None:
        lines.append("LOST")
    elif is_degraded:
        lines.append("degraded")
    label = "\\n".join(_escaped(line) for line in lines if line)
    line = f'"{_BAD}", fontcolor="{_BAD}"' if is_degraded else f'"{outline(mark)}"'
    return f'label="{label}", fillcolor="{fill(mark)}", color={line}'


def _edge(edge: DrawnEdge) -> str:
    # A list of colours draws a line in each of them. A C2C link is a double line, as in the SVG.
    bad, plain = (_BAD, "") if edge.cpu is None else (f"{_BAD}:{_BAD}", f', color="{_LINE}:{_LINE}"')
    style = plain or f", penwidth={min(1 + edge.lanes / 4, 4):g}"
    if edge.degraded:
        style = f', color="{bad}", fontcolor="{_BAD}", style=' + ("dashed" if edge.lanes else "dotted")
    return f"  gpu{edge.gpu} -- {edge.far} [label={_quoted(edge.caption)}{style}];"


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    """Escape backslashes, quotes and HTML entities for a quoted label."""
    return escape_invisible(text).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
