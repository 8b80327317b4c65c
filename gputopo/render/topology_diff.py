"""The differences between two topologies, as text like a diff."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gputopo.render.wording import escape_invisible, without_colour
from gputopo.topology_diff import TopologyChange

if TYPE_CHECKING:
    from gputopo.render.wording import Paint


def render_changes(found: Iterable[TopologyChange], *, paint: Paint = without_colour) -> str:
    """Return a line for a fact on one side only, two lines for a changed fact; a sentence if nothing differs."""
    lines = []
    for change in found:
        what = escape_invisible(change.what)
        if change.before is not None:
            lines.append(paint("bad", f"- {what}: {escape_invisible(change.before)}"))
        if change.after is not None:
            lines.append(paint("good", f"+ {what}: {escape_invisible(change.after)}"))
    return "\n".join(lines or ["no difference"]) + "\n"
