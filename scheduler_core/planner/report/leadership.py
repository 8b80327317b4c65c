"""The leading planner, if any, and its topology levels, from ledgers and Leases. Pure."""

from __future__ import annotations

from gputopo.crd.reservations import LEDGER_KIND
from gputopo.timestamps import parse_timestamp
from scheduler_core.planner.packing.model import Levels
from scheduler_core.planner.report.read import GangSnapshot, PlannerLease
from scheduler_core.planner.settings import parse_levels

_SLACK = 2.0  # durations of a Lease, for the difference between the clocks of its holder and of this machine
_NEVER = (
    f"no planner has led here: there is no {LEDGER_KIND}. A new planner creates it within half a minute. Without a "
    "planner: kubectl apply -k daemonset/scheduler/planner, or gputopo release, which releases pods without a placement"
)
_NOT_IN_FILE = f"the file has no {LEDGER_KIND}, so it is not known whether a planner leads"
_GONE = (
    "no planner works: {}. Gated pods wait for a planner, or for gputopo release, which releases them without a "
    "placement"
)


def no_planner_reason(snapshot: GangSnapshot, now: float) -> str | None:
    """Return why no planner leads; None: a planner leads, or it is not known. ``now``: seconds since 1970."""
    ledgers = snapshot.view.cache.reservations.ledgers
    if not ledgers and snapshot.from_file:
        return _NOT_IN_FILE
    if not ledgers:
        return _NEVER if snapshot.ledgers else None
    found = [reason for each in snapshot.planners if (reason := _absence(each, now)) is not None]
    leases = {each.spec.lease for each in ledgers.values()}
    return _GONE.format(", and ".join(found)) if found and len(found) == len(leases) else None


def leading_for_s(snapshot: GangSnapshot, now: float) -> float | None:
    """Return for how many seconds the newest leader holds its Lease; None: it is not known."""
    specs = [each.spec for each in snapshot.planners if each.spec is not None and each.spec.holder_identity]
    times = [at for each in specs if (at := parse_timestamp(each.acquire_time)) is not None]
    return max(0.0, now - max(times)) if times else None


def planner_levels(snapshot: GangSnapshot) -> Levels | None:
    """Return the node labels of each topology level; None: not published, or the ledgers differ."""
    texts = {each.spec.levels for each in snapshot.view.cache.reservations.ledgers.values()}
    try:
        return parse_levels(texts.pop()) if len(texts) == 1 and texts != {""} else None
    except ValueError:  # written by a later version
        return None


def _absence(lease: PlannerLease, now: float) -> str | None:
    spec = lease.spec
    if spec is None:
        return f"its Lease {lease.lease} is gone"
    if not spec.holder_identity:
        return f"its Lease {lease.lease} has no holder" + (f" since {spec.renew_time}" if spec.renew_time else "")
    renewed, duration = parse_timestamp(spec.renew_time), spec.lease_duration_seconds
    if renewed is None or duration is None or now - renewed <= (1 + _SLACK) * duration:
        return None
    return f"{spec.holder_identity} has not renewed its Lease {lease.lease} since {spec.renew_time}"
