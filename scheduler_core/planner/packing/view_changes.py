"""Nodes to compare when a reader goes from one view of the cluster to the next. Pure."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.planner.packing.model import NodeView

_NONE: frozenset[str] = frozenset()


class ViewReader:
    """Collects the nodes that may have changed since a reader last compared them. For one thread."""

    def __init__(self) -> None:
        self._main: ClusterSnapshot | None = None
        self._view_only: AbstractSet[str] = _NONE
        self._changed: set[str] | None = None  # None: any node

    def see_view(self, view: NodeView) -> None:
        """Go on to this view, without comparing nodes."""
        changes, main, view_only = view.changes, self._main, self._view_only
        if changes is None:
            self._main, self._view_only, self._changed = view.table, _NONE, None
            return
        self._main, self._view_only = changes.main, changes.view_only
        if main is None or not (changes.main is main or changes.before is main):
            self._changed = None
        elif self._changed is not None:
            self._changed |= view_only
            self._changed |= changes.view_only
            if changes.main is not main:
                self._changed |= changes.since

    def take_changed(self, view: NodeView) -> AbstractSet[str] | None:
        """Go on to this view. Return all nodes that may differ from the last comparison; None: any may differ."""
        self.see_view(view)
        found, self._changed = self._changed, set()
        return found
