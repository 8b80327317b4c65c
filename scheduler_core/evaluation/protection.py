"""The reasons that protect a running pod from eviction: rules, conditions and limits of the policy. Pure."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from scheduler_core.evaluation.job_times import JobTimes, NearEndSince
from scheduler_core.policy.preemption import PreemptionPolicy, PreemptionRule


class Protection(Enum):
    """The reason for which a unit is not evicted, for people; the same text while the cause is the same."""

    PRIORITY = "its priority is not lower"
    NO_RULE = "no rule of the policy allows it"
    RECREATED = "it comes back to the same node at once (DaemonSet or static pod)"
    STARTING = "its gang is starting"
    YOUNG = "it has run for less than the minimum runtime"
    NEVER = "an annotation forbids it"
    NEAR_END = "it is near its end"
    NO_CHECKPOINTS = "it does not save checkpoints"
    OLD_CHECKPOINT = "its last checkpoint is too old"
    NO_CHECKPOINT_TIME = "it does not report its last checkpoint"
    COOLDOWN = "it was evicted a short time ago"
    ENDING = "it is being deleted, and its grace period does not end soon"
    TOO_MANY_PODS = "it has more pods with GPUs than may still be evicted in this hour"
    UNKNOWN = "it is not observed completely yet"


class UnitConditions(NamedTuple):
    """A unit, as far as conditions of a rule are concerned."""

    times: JobTimes
    age_s: float | None  # of its last checkpoint (``known_checkpoint_age``); None: unknown
    evicted_at: float | None = None
    near_end_since: NearEndSince = NearEndSince()


def protection_of(
    unit: UnitConditions, rule: PreemptionRule, policy: PreemptionPolicy, now: float
) -> Protection | None:
    """Return why the unit stays, though the rule is for it; None: it may be evicted."""
    times = unit.times
    min_runtime = policy.min_runtime_s if rule.min_runtime_s is None else rule.min_runtime_s
    if not rule.allow:
        return Protection.NO_RULE
    if unit.evicted_at is not None and now < unit.evicted_at + policy.cooldown_s:
        return Protection.COOLDOWN
    if times.runtime(now) < min_runtime:
        return Protection.YOUNG
    if rule.honours_never and times.never is not None and now < times.never_until:
        return Protection.NEVER
    if is_near_end(unit, rule, now):
        return Protection.NEAR_END
    return _checkpoint_protection(unit, rule)


def _checkpoint_protection(unit: UnitConditions, rule: PreemptionRule) -> Protection | None:
    """Return why the checkpoints protect the unit. An unknown last checkpoint is older than any limit."""
    if rule.needs_checkpoints and unit.times.checkpoints is False:
        return Protection.NO_CHECKPOINTS
    if rule.max_checkpoint_age_s is None:
        return None
    if unit.age_s is None:
        return Protection.NO_CHECKPOINT_TIME
    return Protection.OLD_CHECKPOINT if unit.age_s > rule.max_checkpoint_age_s else None


def is_near_end(unit: UnitConditions, rule: PreemptionRule, now: float) -> bool:
    """Return whether the unit ends soon, for a limited time: a tenant can change what it says, and its deadline."""
    if rule.near_end_s is None:
        return False
    claim, deadline = (now if each is None else each for each in unit.near_end_since)
    if has_near_deadline(unit.times, rule, now) and now <= deadline + rule.near_end_s:
        return True
    return claims_near_end(unit.times, rule, now) and now <= claim + 2 * rule.near_end_s


def claims_near_end(times: JobTimes, rule: PreemptionRule, now: float) -> bool:
    """Return whether the unit says that it ends within the time of the rule."""
    return rule.near_end_s is not None and times.ends_at is not None and times.ends_at - now <= rule.near_end_s


def has_near_deadline(times: JobTimes, rule: PreemptionRule, now: float) -> bool:
    """Return whether the unit has a deadline within the time of the rule."""
    return rule.near_end_s is not None and times.deadline is not None and now <= times.deadline <= now + rule.near_end_s
