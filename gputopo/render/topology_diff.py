"""What differs between two topologies, as a person reads a diff."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gputopo.render.wording import plain, visible
from gputopo.topology_diff import Change

if TYPE_CHECKING:
    from gputopo.render.wording import Paint


def render_changes(found: Iterable[Change], *, paint: Paint = plain) -> str:
    """One line for what is only on one side, two for what differs; a sentence where nothing does."""
    lines = []
    for change in found:
        what = visible(change.what)
        if change.before is not None:
            lines.append(paint("bad", f"- {what}: {visible(change.before)}"))
        if change.after is not None:
            lines.append(paint("good", f"+ {what}: {visible(change.after)}"))
    return "\n".join(lines or ["no difference"]) + "\n"
