"""Calls filters and factors of other packages, so that one that fails affects nothing else.

A function fails if it raises, answers with something else than its interface says, or takes longer than ``DEADLINE_S``.
A slow answer still counts; after an error a factor scores 0, and a filter answers as its profile says (refuse, unless
``onFailure: ignore``). After ``MOST_FAILURES`` failures in a row the function is disabled for the life of the process,
and answers as after an error. Python cannot interrupt a function that never returns: the health check of the process
ends it then.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from gputopo.labels.reasons import Reason
from scheduler_core.cache.node_state import NodeState
from scheduler_core.policy.extensions import FACTORS_GROUP, FILTERS_GROUP, Extension, installed_extensions
from scheduler_core.policy.policy import FilterUse, Policy
from scheduler_core.request.pod_request import PodProfile

DEADLINE_S = 0.05
MOST_FAILURES = 3  # in a row
_log = logging.getLogger("gputopo.extensions")
_log.addHandler(logging.NullHandler())  # commands start no logging: they report failures in their output


class ExtensionCalls:
    """The calls of extensions by one process, and their failures by group, name and outcome."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.failures = Counter[tuple[str, str, str]]()  # (group, name, "error" or "slow")
        self.disabled: set[tuple[str, str]] = set()
        self.last_failure: dict[tuple[str, str], str] = {}  # by group and name
        self._in_a_row = Counter[tuple[str, str]]()
        self._clock = clock

    def call(self, group: str, extension: Extension, valid: Callable[[Any], bool], *arguments: Any) -> tuple[bool, Any]:
        """Return True and the answer, or False and None if there is no valid one."""
        key = (group, extension.name)
        if extension.function is None or key in self.disabled:
            return False, None
        started = self._clock()
        try:
            answer = extension.function(*arguments)
            error = None if valid(answer) else f"answered {answer!r:.80}, a {type(answer).__name__}"
        except KeyboardInterrupt:  # a person ends the command
            raise
        except BaseException as raised:  # noqa: BLE001  whatever another package raises, such as the exit of sys.exit()
            answer, error = None, _error_text(raised)
        seconds = self._clock() - started
        if error is None and seconds <= DEADLINE_S:
            self._in_a_row.pop(key, None)
            self.last_failure.pop(key, None)
        else:
            self._record_failure(key, "slow" if error is None else "error", error or f"took {seconds:.3f} s")
        return error is None, answer

    def _record_failure(self, key: tuple[str, str], outcome: str, why: str) -> None:
        self.failures[*key, outcome] += 1
        self.last_failure[key] = why
        self._in_a_row[key] += 1
        disabled = self._in_a_row[key] >= MOST_FAILURES
        if disabled:
            self.disabled.add(key)
        fields = {"group": key[0], "name": key[1], "outcome": outcome, "why": why, "disabled": disabled}
        _log.warning("extension", extra={"fields": fields})


CALLS = ExtensionCalls()


def extension_rejection(profile: PodProfile, node: NodeState, policy: Policy) -> Reason | None:
    """Return the first reason of the profile's extension filters against the node; None: it passes them."""
    return next((reason for _, reason in rejecting_filters(profile, node, policy)), None)


def rejecting_filters(profile: PodProfile, node: NodeState, policy: Policy) -> Iterator[tuple[Extension, Reason]]:
    """Yield the profile's extension filters that reject the node, with their reasons."""
    for use in policy.filters:
        extension = installed_extensions().filters.get(use.name, Extension(use.name, None, error="not installed here"))
        reason = _reason(use, extension, profile, node, policy)
        if reason is not None:
            yield extension, reason


def extension_factors(policy: Policy) -> list[tuple[str, Callable[[PodProfile, NodeState, Policy], float], float]]:
    """Return name, function and weight of the profile's extension factors."""
    factors = installed_extensions().factors
    return [
        (name, partial(_raw, factors.get(name, Extension(name, None))), weight)
        for name, weight in policy.factors
        if weight
    ]


def failing_extensions(policy: Policy) -> Iterator[str]:
    """Yield the filters and factors of the profile that failed in this process, each with its last failure."""
    used = [("filter", FILTERS_GROUP, use.name) for use in policy.filters]
    used += [("factor", FACTORS_GROUP, name) for name, weight in policy.factors if weight]
    for kind, group, name in used:
        if (why := CALLS.last_failure.get((group, name))) is not None:
            state = "is disabled after failures" if (group, name) in CALLS.disabled else "failed"
            yield f"the {kind} {name} {state}: {why!a}"


def factor_measure(name: str) -> str:
    """Return what an extension factor measures."""
    found = installed_extensions().factors.get(name)
    text = "not installed here" if found is None else found.measure
    failing = (FACTORS_GROUP, name) in CALLS.disabled
    return f"{text} (extension{', disabled after failures' if failing else ''})"


def _reason(
    use: FilterUse, extension: Extension, profile: PodProfile, node: NodeState, policy: Policy
) -> Reason | None:
    answered, reason = CALLS.call(FILTERS_GROUP, extension, _is_reason, profile, node, policy)
    if answered:
        return reason if isinstance(reason, Reason) else None
    return Reason.EXTENSION if use.refuse_on_failure else None


def _error_text(raised: BaseException) -> str:
    try:
        text = str(raised)
    except Exception:  # noqa: BLE001  an exception of another package may fail to describe itself
        text = "(no text)"
    return f"{type(raised).__name__}: {text}"[:200]


def _is_reason(answer: object) -> bool:
    return answer is None or isinstance(answer, Reason)


def _raw(extension: Extension, profile: PodProfile, node: NodeState, policy: Policy) -> float:
    answered, raw = CALLS.call(FACTORS_GROUP, extension, _is_raw, profile, node, policy)
    return float(raw) if answered else 0.0


def _is_raw(answer: object) -> bool:
    return isinstance(answer, int | float) and not isinstance(answer, bool) and 0 <= answer <= 1
