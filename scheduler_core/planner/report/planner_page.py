"""What only a running planner knows, from its page /gangs: what it tried, and when it tries again. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gputopo.process.decoding import decode
from scheduler_core.planner.gang.member import GangName


class NotAPlannerError(ValueError):
    """What was read is not the page of a planner that leads; the text says why."""


class MissingMember(msgspec.Struct, frozen=True):
    """A member that has no place."""

    member: str
    reason: str


class PlannerGangState(msgspec.Struct, frozen=True):
    """Of one gang."""

    namespace: str
    name: str
    phase: str
    reason: str
    missing: tuple[MissingMember, ...] = ()
    rollbacks: int = 0
    next_try_s: float | None = None  # None: at once
    trouble: str | None = None  # why it was rolled back last
    waiting_s: float | None = None  # as its queue counts; None: the gang is not in the queue


class _Page(msgspec.Struct, kw_only=True):
    leads: bool
    holder: str | None = None
    gangs: tuple[PlannerGangState, ...]


def parse_planner_page(text: bytes) -> Mapping[GangName, PlannerGangState]:
    """All gangs that it knows. Raises ``NotAPlannerError``."""
    try:
        page = decode(text, _Page)
    except msgspec.DecodeError as error:
        raise NotAPlannerError(f"this is no planner's page /gangs: {error}: {text[:80]!r}") from error
    if not page.leads:
        pod = (page.holder or "").rpartition("_")[0]  # identities are HOSTNAME_UUID
        whom = f"pod {pod}, which holds the Lease" if pod else "the one that holds the Lease"
        raise NotAPlannerError(f"this planner does not lead, so it knows of no gang: ask {whom}")
    return {GangName(each.namespace, each.name): each for each in page.gangs}
