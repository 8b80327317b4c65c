"""Pure renderings of a NodeTopology: text, JSON, drawings. Each format is a module of its own."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from gputopo.model import NodeTopology

Paint = Callable[[str, str], str]  # (role, text) -> text with colour
Renderer = Callable[[NodeTopology], str]


def plain(_role: str, text: str) -> str:
    """No colour."""
    return text


# Format -> module below this package, function, what it can be told. Imported by name so that a command pays for the
# format that it prints and for no other.
_FORMATS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "tree": ("tree", "render_tree", ("ascii_only", "paint")),
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


def renderer(name: str, *, ascii_only: bool = False, paint: Paint = plain) -> Renderer:
    """The function that renders a topology in one of ``FORMATS``."""
    module, function, options = _FORMATS[name]
    render = cast("Callable[..., str]", getattr(import_module(f"{__name__}.{module}"), function))
    given = {"ascii_only": ascii_only, "paint": paint}
    return lambda topology: render(topology, **{option: given[option] for option in options})
