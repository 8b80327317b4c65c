"""A topology as a Mermaid flowchart, as GitHub and many wikis draw it from Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputopo.render.edges import c2c_edges, drawn_edges, fabrics
from gputopo.render.palette import fill, outline
from gputopo.render.places import numa_places
from gputopo.render.wording import ALONE, CPU_NAME, UNKNOWN, degraded_gpus, escape_invisible, format_gib, island_marks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gputopo.model import Gpu, NodeTopology
    from gputopo.render.edges import DrawnEdge
    from gputopo.render.places import DeviceGroup

_HARMLESS = frozenset(" _-.,:/()+@")


def render_mermaid(topology: NodeTopology, name: str | None = None) -> str:
    """Return the flowchart. Each NVSwitch fabric is a node; the NICs of a switch share a node."""
    lines = ["flowchart TB"]
    if title := name or topology.machine:
        lines.append(f'  machine["{_escaped(title)}"]:::title')
    lines += _places(topology)
    lines += [f'  nvswitch{fabric}{{{{"{_escaped(called)}"}}}}' for fabric, called in fabrics(topology).items()]
    drawn = (*drawn_edges(topology), *c2c_edges(topology))
    lines += [_edge(edge) for edge in drawn]
    degraded = [str(place) for place, edge in enumerate(drawn) if edge.degraded]
    if degraded:
        lines.append(f"  linkStyle {','.join(degraded)} stroke:#cf222e,color:#cf222e")
    lines += _classes(topology)
    return "\n".join(lines) + "\n"


def _places(topology: NodeTopology) -> Iterator[str]:
    degraded = degraded_gpus(topology)
    for count, place in enumerate(numa_places(topology)):
        yield f'  subgraph numa{count}["{_escaped("NUMA ?" if place.numa is None else f"NUMA {place.numa}")}"]'
        for number, group in enumerate(place.groups):
            body = list(_group(group, degraded, f"nics{count}x{number}"))
            if group.switched:
                yield f'    subgraph switch{count}x{number}["PCIe switch"]'
                yield from (f"  {line}" for line in body)
                yield "    end"
            else:
                yield from body
        if any(gpu.c2c is not None for gpu in place.gpus):
            yield f'    cpu{count}["{CPU_NAME}"]'
        yield "  end"


def _group(group: DeviceGroup, degraded: frozenset[int], nics: str) -> Iterator[str]:
    for gpu in group.gpus:
        yield f'    gpu{gpu.index}["{_gpu(gpu, is_degraded=gpu.index in degraded)}"]'
    if group.nics:
        yield f'    {nics}(["{"<br/>".join(_escaped(nic.name) for nic in group.nics)}"])'


def _gpu(gpu: Gpu, *, is_degraded: bool) -> str:
    lines = [f"GPU{gpu.index}", gpu.product, None if gpu.memory_mib is None else format_gib(gpu.memory_mib)]
    if not gpu.usable:
        lines.append("LOST")
    elif is_degraded:
        lines.append("degraded")
    return "<br/>".join(_escaped(line) for line in lines if line)


def _edge(edge: DrawnEdge) -> str:
    wire = "-.-" if edge.degraded else "---" if edge.cpu is None else "==="  # Mermaid has no double line
    return f'  gpu{edge.gpu} {wire}|"{_escaped(edge.caption)}"| {edge.far}'


def _classes(topology: NodeTopology) -> Iterator[str]:
    """Yield a class per island, for its colour."""
    marked = island_marks(topology)
    members: dict[str | None, list[str]] = {}
    for gpu in topology.gpus:
        members.setdefault(marked.get(gpu.index), []).append(f"gpu{gpu.index}")
    names = {ALONE: "alone", UNKNOWN: "unknown", None: "lost"}
    for mark, gpus in members.items():
        called = names.get(mark, f"island{mark}")
        yield f"  classDef {called} fill:{fill(mark)},stroke:{outline(mark)},color:#1f2328"
        yield f"  class {','.join(gpus)} {called}"
    degraded = degraded_gpus(topology)
    for index in (gpu.index for gpu in topology.gpus if gpu.index in degraded):
        yield f"  style gpu{index} stroke:#cf222e,stroke-width:3px"
    yield "  classDef title fill:none,stroke:none"


def _escaped(text: str) -> str:
    """Escape a text: every special character becomes an entity (``#35;``).

    Mermaid knows no empty label: a blank stands for it.
    """
    return "".join(
        char if char.isalnum() or char in _HARMLESS else f"#{ord(char)};" for char in escape_invisible(text) or " "
    )
