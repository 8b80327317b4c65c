"""Many pods that are on their own, one after the other on one snapshot, each seeing those before it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_core.gangs.member import Member
from scheduler_core.gangs.planning import NodeView, Options, Singles


def plan_singles(members: Sequence[Member], view: NodeView, options: Options = Options()) -> Singles:
    """Where each goes, in that order."""
    raise NotImplementedError
