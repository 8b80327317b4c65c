"""Members of gangs, in one line each."""

from __future__ import annotations

from typing import Any

from gputopo.labels.keys import GATE
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName, GangRequest, Member
from tests.scheduler_core.builders import request

LLM = GangName("team", "llm")
KUEUE = "kueue.x-k8s.io/admission"
GATED, BOUND, RUNNING = "gated", "bound", "running"


def member(name: str, state: str = GATED, /, **changed: Any) -> Member:
    """A member of LLM: gated, bound or running. ``changed``: fields of the member or of its gang request."""
    wanted = {field: changed.pop(field) for field in list(changed) if field in GangRequest._fields}
    placed: dict[str, Any] = {"node": "n1", "reservation": "llm-1", "started": state == RUNNING}
    fields: dict[str, Any] = {"gates": (GATE,)} if state == GATED else placed
    asked = request(1, name)
    plain = Member(
        uid=f"uid-{name}",
        namespace="team",
        name=name,
        version="7",
        gang_request=GangRequest(LLM, creator_uid="job"),
        request=asked,
        created=100.0,
    )
    return plain._replace(**{"gang_request": plain.gang_request._replace(**wanted), **fields, **changed})


def members(count: int, state: str = GATED, /, **changed: Any) -> list[Member]:
    """Members with ranks from 0."""
    return [member(f"w-{rank}", state, **{"rank": rank, "size": count, **changed}) for rank in range(count)]


def queued(name: str = "llm", *, priority: int = 0, created: float = 100.0, **changed: Any) -> Gang:
    """A gang to plan."""
    plain = Gang(GangName("team", name), GangPhase.QUEUED, "", priority=priority, created=created, newest=created)
    return plain._replace(**changed)
