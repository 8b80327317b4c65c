"""The published labels, one ``key=value`` per line, as ``kubectl label`` accepts them."""

from __future__ import annotations

from gputopo.labels import EncodeError, encode_topology
from gputopo.model import NodeTopology
from gputopo.render import RenderError


def render_labels(topology: NodeTopology, *, mirrors: bool = True, annotations: bool = False) -> str:
    """Return gputopo's labels, then the mirrors, then the annotation. Raises ``RenderError``."""
    try:
        facts = encode_topology(topology)
    except EncodeError as error:
        raise RenderError(str(error)) from error
    published = facts.labels | (facts.mirrors if mirrors else {}) | (facts.annotations if annotations else {})
    return "".join(f"{key}={value}\n" for key, value in published.items())
