"""What the agent would publish, one ``key=value`` a line: what ``kubectl label`` takes."""

from __future__ import annotations

from gputopo.labels import encode
from gputopo.model import NodeTopology


def render_labels(topology: NodeTopology, *, mirrors: bool = True, annotations: bool = False) -> str:
    """Our labels, then the mirrors, then the annotation."""
    facts = encode(topology)
    published = facts.labels | (facts.mirrors if mirrors else {}) | (facts.annotations if annotations else {})
    return "".join(f"{key}={value}\n" for key, value in published.items())
