"""The page /gangs of a running planner: the last attempt for each gang and the time of the next. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gputopo.process.decoding import decode
from scheduler_core.planner.gang.member import GangName


class NotAPlannerError(ValueError):
    """The input is not the page of the leading planner; the text says why."""


class MissingMember(msgspec.Struct, frozen=True):
    """A member without a placement."""

    member: str
    reason: str


class UnitCost(msgspec.Struct, frozen=True):
    """The work that is lost if one gang or single pod is evicted."""

    name: str  # NAMESPACE/NAME
    pods: int  # to be evicted
    gpu_hours: float
    cost: float | None = None  # None: unknown
    rule: str = ""  # of the policy file, that allows it
    reason: str = ""  # the workload class, and the age of the last checkpoint


class DryRunState(msgspec.Struct, frozen=True):
    """The evictions for a gang that a dry run of the planner reports."""

    units: tuple[str, ...]  # NAMESPACE/NAME
    pods: int
    gpu_hours: float
    rule: str
    cost: float | None = None  # None: unknown
    reason: str = ""
    unit_costs: tuple[UnitCost, ...] = ()  # of ``units``; older planners report none


class PlannerGangState(msgspec.Struct, frozen=True):
    """The state of a gang in the planner."""

    namespace: str
    name: str
    phase: str
    reason: str
    missing: tuple[MissingMember, ...] = ()
    rollbacks: int = 0
    next_try_s: float | None = None  # None: at once
    trouble: str | None = None  # why it was rolled back last
    waiting_s: float | None = None  # in its queue; None: not queued
    dry_run: DryRunState | None = None  # of the last search; None: it evicts no pods, or it is not a dry run
    no_eviction: str | None = None  # why the last search for pods to evict for it found none
    judged: bool | None = None  # whether the planner has tried it since it leads; None: not queued, or older planner
    pod: str | None = None  # name of a single pod; None: a gang


class _GangsDocument(msgspec.Struct, kw_only=True):
    leads: bool
    holder: str | None = None
    gangs: tuple[PlannerGangState, ...]
    pods: tuple[PlannerGangState, ...] = ()  # single pods


def parse_planner_page(text: bytes) -> Mapping[GangName, PlannerGangState]:
    """Return the gangs and single pods on the page. Raises ``NotAPlannerError``."""
    try:
        page = decode(text, _GangsDocument)
    except msgspec.DecodeError as error:
        raise NotAPlannerError(f"not the page /gangs of a planner: {error}: {text[:80]!r}") from error
    if not page.leads:
        pod = (page.holder or "").rpartition("_")[0]  # identities are HOSTNAME_UUID
        leader = f"pod {pod}, which holds the Lease" if pod else "the holder of the Lease"
        raise NotAPlannerError(f"this planner does not lead, so it knows no gang: query {leader}")
    return {GangName(each.namespace, each.name): each for each in (*page.gangs, *page.pods)}
