"""Whether anybody plans, and by which labels of nodes: as ledgers and Leases tell. Pure."""

from __future__ import annotations

from gputopo.crd.reservations import LEDGER_KIND
from gputopo.timestamps import since_epoch
from scheduler_core.planner.packing.model import Levels
from scheduler_core.planner.report.read import GangSnapshot, PlannerLease
from scheduler_core.planner.settings import parse_levels

_SLACK = 2.0  # durations of a Lease that the clocks of its holder and of whoever asks may lie apart
_NEVER = (
    f"no planner has led here: there is no {LEDGER_KIND}. One that was just installed makes it within half a minute; "
    "where there is none: kubectl apply -k daemonset/scheduler/planner, or gputopo release, which lets pods go without "
    "a place"
)
_GONE = (
    "no planner works: {}. Pods that the gate holds wait for one, or for gputopo release, which lets them go without a "
    "place"
)


def no_planner_reason(seen: GangSnapshot, now: float) -> str | None:
    """In words; None: somebody does, or nobody can tell. ``now``: seconds since 1970."""
    ledgers = seen.view.cache.reservations.ledgers
    if not ledgers:
        return _NEVER if seen.ledgers else None
    gone = [_absence(each, now) for each in seen.planners]
    found = [each for each in gone if each is not None]
    leases = {each.spec.lease for each in ledgers.values()}
    return _GONE.format(", and ".join(found)) if found and len(found) == len(leases) else None


def planner_levels(seen: GangSnapshot) -> Levels | None:
    """By which labels of nodes it is planned; None: the planner does not say, or there are several that differ."""
    said = {each.spec.levels for each in seen.view.cache.reservations.ledgers.values()}
    try:
        return parse_levels(said.pop()) if len(said) == 1 and said != {""} else None
    except ValueError:  # of a later planner
        return None


def _absence(led: PlannerLease, now: float) -> str | None:
    spec = led.spec
    if spec is None:
        return f"its Lease {led.lease} is gone"
    if not spec.holder_identity:
        return f"nobody holds its Lease {led.lease}, which was let go at {spec.renew_time}"
    renewed, duration = since_epoch(spec.renew_time), spec.lease_duration_seconds
    if renewed is None or duration is None or now - renewed <= (1 + _SLACK) * duration:
        return None
    return f"{spec.holder_identity} has not renewed its Lease {led.lease} since {spec.renew_time}"
