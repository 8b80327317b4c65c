"""All members of a gang on one snapshot, or none. Pure: the same members, nodes and options give the same plan."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_core.gangs.member import Member
from scheduler_core.gangs.planning import LEVELS, NodeView, Options, Plan, Unplaced

__all__ = ["LEVELS", "NodeView", "Options", "Plan", "Unplaced", "plan"]


def plan(members: Sequence[Member], view: NodeView, options: Options = Options()) -> Plan | Unplaced:
    """Where each member goes; ``members``: those that wait, all of one gang."""
    raise NotImplementedError
