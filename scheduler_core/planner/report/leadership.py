"""The leading planner, if any, and its topology levels, from ledgers and Leases. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gputopo.crd.reservations import LEDGER_KIND, LEDGERS
from gputopo.kube.rbac import LEASES
from gputopo.render.report import age_words, listed
from gputopo.timestamps import parse_timestamp
from scheduler_core.planner.packing.model import Levels
from scheduler_core.planner.report.read import GangSnapshot, PlannerLease
from scheduler_core.planner.settings import parse_levels

_NEVER = (
    f"no planner has led here: there is no {LEDGER_KIND}. A planner that has just been installed needs up to a minute: "
    "it creates the ledger, and its extenders acknowledge it first. Without a planner, install it as gputopo was "
    "installed: helm upgrade gputopo daemonset/chart -n gputopo --reset-then-reuse-values --set planner.enabled=true, "
    "or kubectl apply -k daemonset/scheduler/planner. Or use gputopo release, which releases pods without a placement"
)
_NOT_IN_FILE = f"the file has no {LEDGER_KIND}, so it is not known whether a planner leads"
_GONE = (
    "no planner leads: {}. Gated pods wait for a planner, or for gputopo release, which releases them without a "
    "placement"
)

_ASK_PLANNER = (
    "if it stays queued: only the planner knows whether it was rolled back before and waits for its next attempt: "
    "kubectl -n gputopo port-forward deploy/gputopo-planner 9439, and --server http://127.0.0.1:9439"
)
_PLANNED_WITHIN_S = 10.0  # a leader has tried a gang that is complete for longer, unless its queue is long


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


def no_planner_words(snapshot: GangSnapshot, now: float) -> str | None:
    """Return in a few words that no planner leads, for a table; None: a planner leads, or it is not known."""
    if snapshot.from_file and not snapshot.view.cache.reservations.ledgers:
        return None
    return None if no_planner_reason(snapshot, now) is None else "no planner leads"


def unasked_planner_notes(snapshot: GangSnapshot, complete_for_s: float, now: float) -> Iterator[str]:
    """Yield why a gang that fits is queued all the same, without the state of the planner."""
    unread = [each for each in snapshot.unread if each.startswith((LEDGERS, LEASES.plural))]
    if unread:
        yield f"it is not known whether a planner leads: you may not read {listed(unread)}"
    if _is_led(snapshot, now) and complete_for_s < _PLANNED_WITHIN_S:
        yield f"it has been complete for {max(0.0, complete_for_s):.0f} s, and a planner leads: it plans within seconds"
    elif no_planner_reason(snapshot, now) is None:
        yield _ASK_PLANNER


def _is_led(snapshot: GangSnapshot, now: float) -> bool:
    held = (each for each in snapshot.planners if each.spec is not None and each.spec.holder_identity)
    return any(_absence(each, now) is None for each in held)


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
        return f"its Lease {lease.lease} does not exist"
    renewed = parse_timestamp(spec.renew_time)
    ago = None if renewed is None else f"{age_words(max(0.0, now - renewed))} ago ({spec.renew_time})"
    if not spec.holder_identity:
        return f"its Lease {lease.lease} has no holder" + (f": it was released {ago}" if ago else "")
    if not spec.has_expired(now):  # None: it may be held
        return None
    return f"{spec.holder_identity} last renewed its Lease {lease.lease} {ago}"
