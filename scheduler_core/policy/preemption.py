"""The policy of preemption: the running pods that may be evicted for a gang, and their price. Values only.

The first rule that matches the victim and the beneficiary decides; without a rule, a pod is not evicted. A victim
always has a lower priority than the beneficiary: so two gangs never evict each other in turn. The limit of evictions
per hour and the other defaults are here; ``planner.leader.eviction_history`` counts the evictions.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from typing import NamedTuple
from zoneinfo import ZoneInfo

from scheduler_core.policy.workload_class import WorkloadClass

CRITICAL_PRIORITY = 100_000  # of the PriorityClass gputopo-critical
NORMAL_PRIORITY = 1_000  # of the PriorityClass gputopo-normal
_DAY_S = 86_400.0
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class PreemptionMode(Enum):
    """The planner's action on a found set of victims."""

    OFF = "off"  # nothing is searched
    DRY_RUN = "dry-run"  # it is reported, and no pod is evicted
    EVICT = "evict"


class PreemptionPeer(NamedTuple):
    """A gang or pod, as far as rules match it."""

    namespace: str
    priority: int
    workload_class: WorkloadClass


class PreemptionMatch(NamedTuple):
    """The pods on one side of a rule. An empty criterion matches all; the others must all match."""

    workload_classes: frozenset[WorkloadClass] = frozenset()
    namespaces: frozenset[str] = frozenset()
    at_least: int | None = None  # priority
    below: int | None = None  # priority

    def matches(self, peer: PreemptionPeer) -> bool:
        """Return True if the pod is on this side."""
        return (
            (not self.workload_classes or peer.workload_class in self.workload_classes)
            and (not self.namespaces or peer.namespace in self.namespaces)
            and (self.at_least is None or peer.priority >= self.at_least)
            and (self.below is None or peer.priority < self.below)
        )


class PreemptionRule(NamedTuple):
    """The pods that may be evicted for certain gangs, and the conditions."""

    name: str
    victims: PreemptionMatch = PreemptionMatch()
    beneficiaries: PreemptionMatch = PreemptionMatch()
    allow: bool = True  # False: these victims are protected
    price: float = 1.0  # factor of the lost work, by which victims are compared
    min_runtime_s: float | None = None  # younger pods are protected; None: as for all rules
    near_end_s: float | None = None  # pods that end within this time are protected
    needs_checkpoints: bool = False  # pods without checkpoints are protected
    max_checkpoint_age_s: float | None = None  # pods that have not saved for longer are protected
    honours_never: bool = True  # "never" annotations protect, for a limited time


class PreemptionWindow(NamedTuple):
    """A time of the week in which pods may be evicted."""

    days: frozenset[int] = frozenset(range(7))  # 0 is Monday: of the day on which the window opens
    opens_s: float = 0.0  # after midnight
    closes_s: float = _DAY_S  # after midnight; less than ``opens_s``: on the next day
    zone: str = "UTC"

    def is_open(self, now: float) -> bool:
        """Return True if the window is open. ``now``: seconds since 1970."""
        local = datetime.fromtimestamp(now, UTC)
        if self.zone != "UTC":  # which needs no time zone database
            local = local.astimezone(ZoneInfo(self.zone))
        at, day = local.hour * 3600.0 + local.minute * 60.0 + local.second, local.weekday()
        if self.opens_s < self.closes_s:
            return day in self.days and self.opens_s <= at < self.closes_s
        return (day in self.days and at >= self.opens_s) or ((day - 1) % 7 in self.days and at < self.closes_s)


class PreemptionPolicy(NamedTuple):
    """All decisions about preemption."""

    mode: PreemptionMode = PreemptionMode.DRY_RUN
    rules: tuple[PreemptionRule, ...] = ()  # the first match decides
    wait_s: float = 60.0  # a gang waits so long before pods are evicted for it
    min_runtime_s: float = 600.0  # of victims
    cooldown_s: float = 3_600.0  # a workload is not evicted again for so long
    max_evictions_per_hour: int = 256  # pods with GPUs of the whole cluster
    windows: tuple[PreemptionWindow, ...] = ()  # (): at any time
    # "never" annotations of pods protect for so long after the start of the pod; 0: they do not protect.
    never_limit_s: float = _DAY_S
    default_checkpoint_age_s: float = 3_600.0  # where too few pods say when they saved a checkpoint
    default_restart_s: float = 300.0  # where a pod does not say how long its restart takes
    max_lost_work_s: float = _DAY_S  # per GPU: more does not count
    max_grace_s: float = 3_600.0  # the longest time that an eviction gives a pod to end
    timeout_s: float = 600.0  # refused evictions are retried for so long
    max_plans: int = 400  # of one search
    max_search_s: float = 2.0

    @property
    def unit_time_s(self) -> float:
        """Return the time from the start of a search until no more units are found: the rest is for plans."""
        return 0.55 * self.max_search_s

    @property
    def plan_time_s(self) -> float:
        """Return the time from the start of a search to its last plan; the rest is for the check of the result."""
        return 0.75 * self.max_search_s

    def is_open(self, now: float) -> bool:
        """Return True if pods may be evicted at this time. ``now``: seconds since 1970."""
        return not self.windows or any(each.is_open(now) for each in self.windows)

    def rule_for(self, victim: PreemptionPeer, beneficiary: PreemptionPeer) -> PreemptionRule | None:
        """Return the first rule that matches; None: the victim is protected."""
        return next(
            (each for each in self.rules if each.victims.matches(victim) and each.beneficiaries.matches(beneficiary)),
            None,
        )


_ONLY_CRITICAL = PreemptionMatch(at_least=CRITICAL_PRIORITY)
DEFAULT_RULES = (
    PreemptionRule(
        "scavengers-preemptible",
        PreemptionMatch(frozenset({WorkloadClass.SCAVENGER})),
        min_runtime_s=0.0,
        honours_never=False,
    ),
    PreemptionRule(
        "normal-preemptible-by-critical",
        PreemptionMatch(frozenset({WorkloadClass.INFERENCE, WorkloadClass.BATCH, WorkloadClass.DEFAULT})),
        _ONLY_CRITICAL,
    ),
    PreemptionRule(
        "important-training-protected",
        PreemptionMatch(frozenset({WorkloadClass.TRAINING}), at_least=NORMAL_PRIORITY),
        allow=False,
    ),
    PreemptionRule(
        "checkpointed-training-preemptible",
        PreemptionMatch(frozenset({WorkloadClass.TRAINING})),
        near_end_s=7_200.0,
        needs_checkpoints=True,
        max_checkpoint_age_s=1_800.0,
    ),
)
DEFAULT_PREEMPTION = PreemptionPolicy(rules=DEFAULT_RULES)


def window_text(window: PreemptionWindow) -> str:
    """Return a window for people: ``mon tue 22:00-06:00 UTC``."""
    times = "-".join(f"{int(at // 3600):02}:{int(at % 3600 // 60):02}" for at in (window.opens_s, window.closes_s))
    days = " ".join(_DAYS[day] for day in sorted(window.days)) if len(window.days) < len(_DAYS) else "every day"
    return f"{days} {times} {window.zone}"


def rule_text(rule: PreemptionRule) -> str:
    """Return a rule as text: ``checkpointed-training-preemptible: training pods; price 1; near end 7200s``."""
    parts = [f"{rule.name}: {_match_text(rule.victims, 'pods')}"]
    if rule.beneficiaries != PreemptionMatch():
        parts[0] += f", for {_match_text(rule.beneficiaries, 'gangs')}"
    if not rule.allow:
        return f"{parts[0]}; never evicted"
    times = {
        "min runtime": rule.min_runtime_s,
        "near end": rule.near_end_s,
        "last checkpoint at most": rule.max_checkpoint_age_s,
    }
    parts.append(f"price {rule.price:g}")
    parts += [f"{name} {value:g}s" for name, value in times.items() if value is not None]
    parts += ["needs checkpoints"] * rule.needs_checkpoints + ["honours never"] * rule.honours_never
    return "; ".join(parts)


def _match_text(match: PreemptionMatch, noun: str) -> str:
    words = [" or ".join(sorted(each.value for each in match.workload_classes))] if match.workload_classes else []
    words += [noun]
    words += [f"in namespace {' or '.join(sorted(match.namespaces))}"] if match.namespaces else []
    words += [] if match.at_least is None else [f"of priority {match.at_least} or more"]
    words += [] if match.below is None else [f"below priority {match.below}"]
    return " ".join(words) if match != PreemptionMatch() else f"all {noun}"
