"""Members of gangs in one line."""

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
    """A member of LLM: gated, bound or running. What is changed may be a field of what it wants, too."""
    wanted = {field: changed.pop(field) for field in list(changed) if field in GangRequest._fields}
    placed: dict[str, Any] = {"node": "n1", "reservation": "llm-1", "started": state == RUNNING}
    fields: dict[str, Any] = {"gates": (GATE,)} if state == GATED else placed
    asked = request(1, name)
    plain = Member(f"uid-{name}", "team", name, "7", GangRequest(LLM, maker="job"), asked, 100.0)
    return plain._replace(**{"gang_request": plain.gang_request._replace(**wanted), **fields, **changed})


def members(count: int, state: str = GATED, /, **changed: Any) -> list[Member]:
    """As many, of ranks 0 and on."""
    return [member(f"w-{rank}", state, **{"rank": rank, "size": count, **changed}) for rank in range(count)]


def queued(name: str = "llm", *, priority: int = 0, created: float = 100.0, **changed: Any) -> Gang:
    """A gang that is to be planned."""
    plain = Gang(GangName("team", name), GangPhase.QUEUED, "", priority=priority, created=created, newest=created)
    return plain._replace(**changed)
