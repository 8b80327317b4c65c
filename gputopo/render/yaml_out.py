"""The public JSON document as YAML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputopo.render.document import topology_document

if TYPE_CHECKING:
    from gputopo.model import NodeTopology


def render_yaml(topology: NodeTopology, name: str | None = None) -> str:
    """Return the document as YAML, keys in the document's order, in ASCII like the JSON."""
    import yaml  # noqa: PLC0415  20 ms of start-up that no other output needs

    # No line is folded: folded lines do not survive a copy from a terminal.
    text: str = yaml.safe_dump(topology_document(topology, name), sort_keys=False, allow_unicode=False, width=1_000_000)
    return text
