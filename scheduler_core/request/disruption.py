"""The annotations of pods and their owners about evictions: checkpoints, progress, "never". Pure.

Tenants write these values. An invalid value counts as not set, and every number is bounded here.
``evaluation.job_times`` limits the effect of valid values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from gputopo.durations import parse_duration
from gputopo.labels import keys, workloads
from gputopo.timestamps import parse_timestamp
from scheduler_core.request.pod import Pod

MAX_DURATION_S = 366 * 86_400.0
MAX_GRACE_S = 86_400.0 * 7
_PERCENT = re.compile(r"\d{1,3}(?:\.\d{1,6})?", re.ASCII)
_INTEGER = re.compile(r"-?\d{1,10}", re.ASCII)
_MAX_DELETION_COST = 2**31 - 1
_KEYS = frozenset(
    (
        *(each.key for each in keys.DISRUPTION_KEYS),
        workloads.DO_NOT_DISRUPT,
        workloads.SAFE_TO_EVICT,
        workloads.PREFER_NO_EVICTION,
        workloads.DELETION_COST,
    )
)


class DisruptionFacts(NamedTuple):
    """The facts in the annotations of a pod or its owner. None: not set."""

    last_checkpoint: float | None = None  # seconds since 1970
    checkpoints: bool | None = None  # it saves checkpoints and resumes from them
    completion: float | None = None  # estimated end, seconds since 1970
    duration_s: float | None = None  # expected, from its start
    progress: float | None = None  # 0 to 1, since its start
    restart_s: float | None = None
    never: str | None = None  # the annotation that forbids evictions
    never_s: float = inf  # for so long after the start
    deletion_cost: int = 0  # among replicas, the lowest goes first


NO_FACTS = DisruptionFacts()


def parse_disruption(annotations: Mapping[str, str]) -> DisruptionFacts:
    """Return the facts in annotations."""
    if _KEYS.isdisjoint(annotations):  # most pods
        return NO_FACTS
    text = annotations.get
    never, never_s = _never(annotations)
    return DisruptionFacts(
        last_checkpoint=parse_timestamp(text(keys.POD_LAST_CHECKPOINT.key)),
        checkpoints={"true": True, "false": False}.get(text(keys.POD_CHECKPOINTS.key, "")),
        completion=parse_timestamp(text(keys.POD_ESTIMATED_COMPLETION.key)),
        duration_s=_duration(text(keys.POD_EXPECTED_DURATION.key)),
        progress=_progress(text(keys.POD_PROGRESS.key)),
        restart_s=_duration(text(keys.POD_RESTART_TIME.key)),
        never=never,
        never_s=never_s,
        deletion_cost=_deletion_cost(text(workloads.DELETION_COST)),
    )


def _never(annotations: Mapping[str, str]) -> tuple[str | None, float]:
    """Return the annotation that forbids evictions for the longest time, and that time in seconds."""
    found: list[tuple[float, str]] = []
    if annotations.get(keys.POD_PREEMPTIBLE.key) in ("never", "false"):
        found.append((inf, keys.POD_PREEMPTIBLE.key))
    karpenter = annotations.get(workloads.DO_NOT_DISRUPT)
    limit = inf if karpenter == "true" else _duration(karpenter)
    if limit is not None:
        found.append((limit, workloads.DO_NOT_DISRUPT))
    if annotations.get(workloads.SAFE_TO_EVICT) == "false":
        found.append((inf, workloads.SAFE_TO_EVICT))
    if workloads.PREFER_NO_EVICTION in annotations:
        found.append((inf, workloads.PREFER_NO_EVICTION))
    if not found:
        return None, inf
    never_s, key = max(found, key=lambda each: each[0])
    return key, never_s


def _duration(text: str | None) -> float | None:
    found = None if text is None or len(text) > 64 else parse_duration(text)
    return None if found is None else min(found, MAX_DURATION_S)


def _progress(text: str | None) -> float | None:
    found = None if text is None else _PERCENT.fullmatch(text.removesuffix("%"))
    return None if found is None or float(found[0]) > 100 else float(found[0]) / 100


def _deletion_cost(text: str | None) -> int:
    found = None if text is None else _INTEGER.fullmatch(text)
    return 0 if found is None else max(-_MAX_DELETION_COST, min(_MAX_DELETION_COST, int(found[0])))


class RunningFacts(NamedTuple):
    """The facts about a bound pod that decide whether it may be evicted. Times in seconds since 1970; None: not set."""

    declared: DisruptionFacts = NO_FACTS
    started: float | None = None  # when a kubelet admitted it
    deadline: float | None = None  # activeDeadlineSeconds


def running_facts(pod: Pod) -> RunningFacts | None:
    """Return the facts about a pod that is bound; None: it is not, or nothing is known."""
    if not pod.spec.node_name:
        return None
    started, limit_s = parse_timestamp(pod.status.start_time), pod.spec.active_deadline_seconds
    deadline = None if started is None or limit_s is None else started + limit_s
    found = RunningFacts(parse_disruption(pod.metadata.annotations or {}), started, deadline)
    return None if found == RunningFacts() else found
