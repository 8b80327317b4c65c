"""The log of decisions: one line for each, so that the log shows a day later why a pod was late.

``decision`` (level info) has the pod, its requests, the policy profile, the numbers of nodes, the chosen node and its
score, and the milliseconds. ``decision node`` (level debug) has one answered or rejected node each. The lines are
limited to ``LINES_PER_S``; the next line has the number of omitted lines (``left_out``). The metrics count all
decisions.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from gputopo.labels.reasons import Reason
from gputopo.process.logs import LineBudget
from scheduler_core.evaluation.evaluate import evaluator_for
from scheduler_core.evaluation.score import Score
from scheduler_core.extender.extender import DecisionRecord
from scheduler_core.request.pod_request import PodProfile

LINES_PER_S = 200.0
MAX_NODE_LINES = 64  # of a decision, at level debug
_NAMES = {reason.value: reason.name.lower() for reason in Reason}
_log = logging.getLogger(__name__)


class DecisionLogger:
    """Writes the lines of decisions."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._budget = LineBudget(LINES_PER_S)

    def write(self, record: DecisionRecord) -> None:
        """Write the line of a decision, and at level debug those of its nodes."""
        if not _log.isEnabledFor(logging.INFO):
            return
        left_out = self._budget.admit_line(self._clock())
        if left_out is None:
            return
        fields = decision_fields(record) if record.victims is None else preemption_fields(record)
        title = "decision" if record.victims is None else "preemption"
        _log.info(title, extra={"fields": fields | ({"left_out": left_out} if left_out else {})})
        if _log.isEnabledFor(logging.DEBUG):
            for each in node_fields(record):
                _log.debug("decision node", extra={"fields": each})


def decision_fields(record: DecisionRecord) -> dict[str, Any]:
    """Return the fields of a decision. ``suitable`` and ``refused``: all nodes that gputopo knows."""
    request, nodes = record.request, record.answer.nodes
    score = _score(record, nodes[0]) if nodes else None
    return {
        "pod": f"{request.namespace}/{request.name}",
        "uid": request.uid,
        "asks": _asks(request.profile),
        "profile": record.policy.name,
        "nodes": len(record.names),
        "passed": len(nodes),
        "suitable": record.suitable,
        "refused": {_NAMES.get(text, "malformed"): count for text, count in record.rejection_counts.items()},
        "node": nodes[0] if nodes else None,
        "score": None if score is None else score.points,
        "retry": record.answer.may_fit_soon,
        "ms": round(1000 * sum(record.phases), 3),
    }


def preemption_fields(record: DecisionRecord) -> dict[str, Any]:
    """Return the fields of a preemption. ``dropped``: offered nodes by the cause for which they were dropped."""
    request, causes = record.request, Counter(cause.name.lower() for cause in record.dropped.values())
    causes.update(_NAMES.get(text, "malformed") for text in record.answer.rejected.values())
    return {
        "pod": f"{request.namespace}/{request.name}",
        "uid": request.uid,
        "asks": _asks(request.profile),
        "nodes": len(record.victims or ()),
        "kept": len(record.answer.nodes),
        "dropped": dict(sorted(causes.items())),
        "ms": round(1000 * sum(record.phases), 3),
    }


def node_fields(record: DecisionRecord) -> Iterator[dict[str, Any]]:
    """Yield the fields of the answered nodes, or of the rejected ones; at most ``MAX_NODE_LINES``."""
    pod = f"{record.request.namespace}/{record.request.name}"
    for name in record.answer.nodes[:MAX_NODE_LINES]:
        score = _score(record, name)
        factors = {} if score is None else {part.factor: part.share for part in score.parts}
        yield {"pod": pod, "node": name, "score": None if score is None else score.points, "factors": factors}
    for name in sorted(record.answer.rejected)[:MAX_NODE_LINES]:
        yield {"pod": pod, "node": name, "refused": _NAMES.get(record.answer.rejected[name], "malformed")}


def _asks(profile: PodProfile) -> dict[str, Any]:
    """Return what the pod requests, in short: the devices, and the constraints that are set."""
    constraints = zip(profile.constraints._fields, profile.constraints, strict=True)
    return dict(profile.device_request.totals) | {
        name: getattr(value, "value", value) for name, value in constraints if value is not None
    }


def _score(record: DecisionRecord, name: str) -> Score | None:
    state = record.table.states.get(name)
    found = None if state is None else evaluator_for(record.request.profile, record.policy)(state)
    return found if isinstance(found, Score) else None
