"""When a running job started, saved a checkpoint and ends, with limits for the values that tenants write. Pure.

A value counts only within limits, so that none protects a pod for ever or makes another tenant's pod look cheap
(docs/preemption.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from scheduler_core.policy.preemption import PreemptionPolicy
from scheduler_core.request.disruption import NO_FACTS, DisruptionFacts

MAX_RESTART_S = 3_600.0
_MAX_AHEAD_S = 366 * 86_400.0  # estimates of an end that is later are not believed
_MIN_PROGRESS = 0.05  # an estimate from less progress says little


class NearEndSince(NamedTuple):
    """When a search first saw that a pod is near its end, in seconds since 1970. None: it was not."""

    claim: float | None = None  # by its annotations
    deadline: float | None = None  # by its deadline


class JobTimes(NamedTuple):
    """The limited facts about a running unit. Times in seconds since 1970; None: not set."""

    started: float | None  # None: no kubelet has admitted it
    last_checkpoint: float | None = None  # not before ``started``
    ends_at: float | None = None  # as declared
    deadline: float | None = None  # as enforced
    restart_s: float | None = None
    checkpoints: bool | None = None
    never: str | None = None  # the annotation
    never_until: float = -inf
    deletion_cost: int = 0

    def runtime(self, now: float) -> float:
        """Return the seconds since the start."""
        return 0.0 if self.started is None else max(0.0, now - self.started)


def job_times(
    declared: Iterable[DisruptionFacts],
    started: float | None,
    deadline: float | None,
    policy: PreemptionPolicy,
    now: float,
) -> JobTimes:
    """Return the limited facts. ``declared``: the facts of the pods of a unit and of their owner."""
    facts = [each for each in declared if each is not NO_FACTS]
    if not facts:
        return JobTimes(started, deadline=deadline)
    begin = now if started is None else started
    saved = [each.last_checkpoint for each in facts if each.last_checkpoint is not None and each.last_checkpoint <= now]
    restarts = [each.restart_s for each in facts if each.restart_s is not None]
    saves = [each.checkpoints for each in facts if each.checkpoints is not None]
    never = max((each for each in facts if each.never is not None), key=lambda each: each.never_s, default=None)
    return JobTimes(
        started,
        last_checkpoint=max(begin, *saved) if saved else None,
        ends_at=min((at for each in facts for at in _ends(each, begin, now)), default=None),
        deadline=deadline,
        restart_s=min(MAX_RESTART_S, max(restarts)) if restarts else None,
        checkpoints=any(saves) if saves else None,
        never=None if never is None else never.never,
        never_until=-inf if never is None else begin + min(policy.never_limit_s, never.never_s),
        deletion_cost=min(each.deletion_cost for each in facts),
    )


def _ends(facts: DisruptionFacts, begin: float, now: float) -> Iterable[float]:
    """Yield the end times that follow from the declared facts, where they are possible."""
    found = [facts.completion, None if facts.duration_s is None else begin + facts.duration_s]
    if facts.progress is not None and facts.progress >= _MIN_PROGRESS:
        found.append(begin + (now - begin) / facts.progress)
    return (at for at in found if at is not None and now <= at <= now + _MAX_AHEAD_S)


def known_checkpoint_age(times: JobTimes, now: float) -> float | None:
    """Return the seconds since the last checkpoint that the unit declares; None: it declares none.

    Only this age counts for conditions of rules: values of other tenants must not end the protection of a unit.
    """
    return None if times.last_checkpoint is None else max(0.0, now - times.last_checkpoint)


def checkpoint_age(times: JobTimes, assumed_s: float, now: float) -> float:
    """Return the seconds of work since the last checkpoint, for the cost. ``assumed_s``: without a declared one."""
    known = known_checkpoint_age(times, now)
    if known is not None:
        return known
    if times.checkpoints is False:
        return times.runtime(now)
    return min(times.runtime(now), assumed_s)
