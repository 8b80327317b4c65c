"""The SVG drawing of a machine: NUMA nodes, PCIe switches, GPUs by island, NVLinks, NVSwitch fabrics, NICs.

Pure and deterministic, standard library only. In the order of drawing:

    marks, grouping             island letters and faults; the NUMA boxes and their order (no coordinates yet)
    gpu_boxes, rows             a row of NUMA boxes in its own coordinates
    ports, link_routing         the paths of the NVLinks between two rows
    link_labels, assembly       the labels on the NVLinks; all rows and channels together
    captions, words, layout     titles, notes and legend; the coordinates of everything
    palette, markup             colours and style sheet; SVG elements
    draw, page_frame            the page as markup
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputopo.render.svg import captions
from gputopo.render.svg.draw import drawing
from gputopo.render.svg.geometry import MAX_WIDTH
from gputopo.render.svg.layout import layout_page
from gputopo.render.svg.markup import coordinate, tag, text_element
from gputopo.render.svg.page_frame import description, page_background, page_frame
from gputopo.render.svg.palette import style_sheet

if TYPE_CHECKING:
    from gputopo.model import NodeTopology

_HATCH = (
    '<defs><pattern id="gputopo-hatch" width="8" height="8" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><path class="hatch" d="M0 0V8" stroke-width="2" stroke-opacity=".35"/>'
    "</pattern></defs>\n"
)


def render_svg(topology: NodeTopology) -> str:
    """Draw a machine as an SVG document, readable on light and on dark pages, at most 1200 pixels wide."""
    page = layout_page(topology)
    scale = min(1.0, MAX_WIDTH / page.width)
    inside = (
        "\n",
        text_element("title", f"{captions.title(topology)}: {captions.hardware(topology)}", id="gputopo-title"),
        text_element("desc", description(topology, page.marks), id="gputopo-desc"),
        tag("style", style_sheet()),
        _HATCH,
        page_background(topology, page),
        drawing(topology, page),
        page_frame(topology, page),
    )
    return (
        tag(
            "svg",
            inside,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {coordinate(page.width)} {coordinate(page.height)}",
            width=page.width * scale,
            height=page.height * scale,
            role="img",
            aria_labelledby="gputopo-title gputopo-desc",
            class_="gputopo",
        )
        + "\n"
    )
