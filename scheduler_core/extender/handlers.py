"""A call of kube-scheduler's, from body to answer: read, decided, written; timed in each phase and counted.

Filter answers 200 with an ``Error`` where kube-scheduler is to show a sentence; Prioritize, of which kube-scheduler
shows nothing, answers statuses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from scheduler_core.evaluation.transient import RETRY_MESSAGE
from scheduler_core.extender.extender import ExtenderCalls, NotReadyError
from scheduler_core.extender.http import Clock, Handler, Reply
from scheduler_core.extender.metrics import ExtenderMetrics
from scheduler_core.extender.wire import (
    ExtenderArgs,
    InvalidCallError,
    filter_error,
    filter_result,
    host_priorities,
    parse_extender_args,
)

SLOW_S = 0.050  # every call holds up the scheduling of all pods
_INTERNAL = "an error of gputopo's extender; its log says more"
_TEXT = "text/plain; charset=utf-8"
_SEND_NAMES = (
    "set nodeCacheCapable: true in the KubeSchedulerConfiguration: without it kube-scheduler sends 2 KB a node and "
    "call, and scores the nodes that an extender returns as if they were empty"
)
_AGAIN = Reply(200, b"", retry=True)
_log = logging.getLogger(__name__)


class DecidedCall(NamedTuple):
    """A call that was understood, and when each phase of it was over, by the clock."""

    arguments: ExtenderArgs
    read_at: float
    decided_at: float


class AnsweredCall(NamedTuple):
    """What was answered."""

    reply: Reply
    decided: DecidedCall | None = None  # None: nothing was


def handlers(extender: ExtenderCalls, metrics: ExtenderMetrics, clock: Clock) -> dict[str, Handler]:
    """The verbs by the last part of their paths."""
    warned = False

    def parse_args(body: bytes) -> ExtenderArgs:
        nonlocal warned
        sent = parse_extender_args(body)
        if not sent.cache_capable and not warned:  # every call would be too often
            warned = True
            _log.warning("nodes came whole", extra={"fields": {"advice": _SEND_NAMES}})
        return sent

    def filter_(body: bytes, last: bool) -> AnsweredCall:
        sent = parse_args(body)
        read_at = clock()
        found = extender.filter(sent.pod, sent.names, final=last)
        decided_at = clock()
        if not found.nodes and not last:
            return AnsweredCall(_AGAIN)
        if not found.nodes:
            metrics.count_rejections(found.rejected)
        if found.may_fit_soon:
            answer = filter_error(RETRY_MESSAGE)
        else:
            answer = filter_result(found.nodes, found.rejected, cache_capable=sent.cache_capable)
        return AnsweredCall(Reply(200, answer), DecidedCall(sent, read_at, decided_at))

    def prioritize(body: bytes, _: bool) -> AnsweredCall:
        sent = parse_args(body)
        read_at = clock()
        found = extender.prioritize(sent.pod, sent.names)
        decided_at = clock()
        return AnsweredCall(Reply(200, host_priorities(found)), DecidedCall(sent, read_at, decided_at))

    failed = Reply(200, filter_error(_INTERNAL))
    return {
        "filter": _guarded_handler("filter", filter_, failed, metrics, clock),
        "prioritize": _guarded_handler("prioritize", prioritize, Reply(500, _INTERNAL.encode(), _TEXT), metrics, clock),
    }


def _guarded_handler(
    name: str, answer: Callable[[bytes, bool], AnsweredCall], failed: Reply, metrics: ExtenderMetrics, clock: Clock
) -> Handler:
    """The verb that answers whatever happens, and tells how long it took. What is asked again is told of then."""
    seconds = metrics.call_seconds.labels(name)

    def verb(body: bytes, reading_s: float, *, last: bool = True) -> Reply:
        begun = clock()
        try:
            answered = answer(body, last)
        except InvalidCallError as error:
            answered = AnsweredCall(Reply(400, f"{error}\n".encode(), _TEXT))
        except NotReadyError as error:
            answered = AnsweredCall(Reply(503, f"{error}\n".encode(), _TEXT))
        except Exception:  # noqa: BLE001  kube-scheduler's loop waits for an answer, whatever went wrong here
            _log.exception("call", extra={"fields": {"verb": name, "outcome": "error"}})
            answered = AnsweredCall(failed)
            metrics.internal_errors.labels(name).inc()
        if answered.reply.retry:
            return answered.reply
        ended = clock()
        seconds.observe(reading_s + ended - begun)
        metrics.calls.labels(name, str(answered.reply.status)).inc()
        if reading_s + ended - begun > SLOW_S:
            metrics.slow_calls.labels(name).inc()
            _log_slow_call(name, answered, reading_s, begun, ended)
        return answered.reply

    return verb


def _log_slow_call(name: str, answered: AnsweredCall, reading_s: float, begun: float, ended: float) -> None:
    phases = {"receive_s": reading_s, "total_s": reading_s + ended - begun}
    fields: dict[str, object] = {"verb": name, "status": answered.reply.status}
    if (decided := answered.decided) is not None:
        sent, read_at, decided_at = decided
        metadata = sent.pod.metadata
        fields |= {"pod": f"{metadata.namespace}/{metadata.name}", "nodes": len(sent.names)}
        phases |= {"decode_s": read_at - begun, "decide_s": decided_at - read_at, "encode_s": ended - decided_at}
    _log.warning("slow call", extra={"fields": fields | {key: round(each, 6) for key, each in phases.items()}})
