"""Pure renderings of a NodeTopology: text, JSON, drawings. Each format is a module of its own.

RenderError(ValueError)     the topology cannot be expressed in the format
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, cast

from gputopo.model import NodeTopology
from gputopo.render.wording import without_colour

if TYPE_CHECKING:
    from gputopo.render.wording import Paint

Renderer = Callable[[NodeTopology], str]


class RenderError(ValueError):
    """The topology cannot be expressed in this format; the message contains the reason."""


# Format -> module of this package, function, options. A format's module is imported when the format is used.
_FORMATS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "tree": ("tree", "render_tree", ("ascii_only", "paint", "width")),
    "matrix": ("matrix", "render_matrix", ("ascii_only", "paint")),
    "json": ("document", "render_json", ()),
    "yaml": ("yaml_out", "render_yaml", ()),
    "labels": ("label_lines", "render_labels", ()),
    "dot": ("dot", "render_dot", ()),
    "svg": ("svg", "render_svg", ()),
    "nccl-xml": ("nccl_xml", "render_nccl_xml", ()),
    "mermaid": ("mermaid", "render_mermaid", ()),
}
FORMATS = tuple(_FORMATS)


def renderer(
    name: str, *, ascii_only: bool = False, paint: Paint = without_colour, width: int | None = None
) -> Renderer:
    """Return the function that renders a topology in a format of ``FORMATS``.

    ``width``: columns of the terminal, for formats that adapt to it; None: unlimited.
    """
    module, function, options = _FORMATS[name]
    render = cast("Callable[..., str]", getattr(import_module(f"{__name__}.{module}"), function))
    given = {"ascii_only": ascii_only, "paint": paint, "width": width}
    return lambda topology: render(topology, **{option: given[option] for option in options})
