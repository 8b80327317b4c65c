"""Handlers of kube-scheduler's calls: decode the body, decide, encode the answer; time each phase and count.

Filter answers 200 with an ``Error`` if kube-scheduler is to show a sentence at the pod. kube-scheduler shows nothing of
Prioritize, so Prioritize answers statuses.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from gputopo.labels.reasons import Reason
from gputopo.process.logs import LineBudget
from scheduler_core.evaluation.transient import retry_message
from scheduler_core.extender.extender import NotReadyError, SchedulerCalls
from scheduler_core.extender.http import Clock, Handler, Reply
from scheduler_core.extender.metrics import ExtenderMetrics
from scheduler_core.extender.wire import (
    ExtenderArgs,
    InvalidCallError,
    filter_error,
    filter_result,
    host_priorities,
    parse_extender_args,
    parse_preemption_args,
    preemption_result,
)
from scheduler_core.runtime.calls_in_progress import CallsInProgress

SLOW_S = 0.050  # every call delays the scheduling of all pods
# kube-scheduler and the extender have watches of their own. kube-scheduler retries rejected pods at once when it sees
# an event: often before the extender sees it, and then not again for minutes. So the first rejected
# calls at such a moment wait for the extender's watch, and are then decided again. For later calls the watch is up to
# date.
RETRY_WAIT_S = 0.02
MAX_WAITS = 5  # in a row
_WAIT_INTERVAL_S = 0.5  # then one wait per interval: at most 1/25 of the time is spent waiting
_INTERNAL_ERROR = "internal error of the gputopo extender; see its log"
_TEXT = "text/plain; charset=utf-8"
_NODE_CACHE_ADVICE = (
    "set nodeCacheCapable: true in the KubeSchedulerConfiguration: without it kube-scheduler sends 2 KB per node and "
    "call, and scores the nodes that an extender returns as if they were empty"
)
_MALFORMED_LINES_PER_S = 20.0
_log = logging.getLogger(__name__)


class DecidedCall(NamedTuple):
    """A decoded call, and the ends of its phases by the clock."""

    arguments: ExtenderArgs
    decoded_at: float
    decided_at: float


class AnsweredCall(NamedTuple):
    """A call and its answer."""

    reply: Reply
    decided: DecidedCall | None = None  # None: the call failed before a decision


class WaitBudget:
    """Limits the waits of rejected calls: ``MAX_WAITS`` in a row, each earned back in half a second."""

    def __init__(self) -> None:
        self._spent_until = float("-inf")

    def is_available(self, now: float) -> bool:
        """Return whether a call may wait now."""
        self._spent_until = max(self._spent_until, now - MAX_WAITS * _WAIT_INTERVAL_S)
        return now - self._spent_until >= _WAIT_INTERVAL_S

    def spend(self) -> None:
        """Count one wait."""
        self._spent_until += _WAIT_INTERVAL_S


def handlers(
    extender: SchedulerCalls, metrics: ExtenderMetrics, clock: Clock, calls: CallsInProgress | None = None
) -> dict[str, Handler]:
    """Return the handlers by verb. ``calls``: the calls of the listener."""
    in_progress = CallsInProgress() if calls is None else calls
    waits = WaitBudget()
    malformed_lines = LineBudget(_MALFORMED_LINES_PER_S)
    warned = False

    def parse_args(body: bytes) -> ExtenderArgs:
        nonlocal warned
        args = parse_extender_args(body)
        if not args.cache_capable and not warned:  # a warning at every call would be too much
            warned = True
            _log.warning("complete nodes received", extra={"fields": {"advice": _NODE_CACHE_ADVICE}})
        return args

    async def filter_(body: bytes) -> AnsweredCall:
        args = parse_args(body)
        decoded_at = clock()
        may_wait = waits.is_available(decoded_at)
        result = extender.filter(args.pod, args.names, final=not may_wait)
        if may_wait and not result.nodes and not result.unfinished:
            waits.spend()
            with in_progress.waiting():
                await asyncio.sleep(RETRY_WAIT_S)
            result = extender.filter(args.pod, args.names)
        decided_at = clock()
        if not result.nodes:
            metrics.count_rejections(result.rejected)
            _log_malformed(args, result.rejected, malformed_lines.admit_line)
        if result.may_fit_soon:
            answer = filter_error(retry_message(result.rejected))
        else:
            answer = filter_result(result.nodes, result.rejected, cache_capable=args.cache_capable)
        return AnsweredCall(Reply(200, answer), DecidedCall(args, decoded_at, decided_at))

    async def prioritize(body: bytes) -> AnsweredCall:
        args = parse_args(body)
        decoded_at = clock()
        scores = extender.prioritize(args.pod, args.names)
        decided_at = clock()
        return AnsweredCall(Reply(200, host_priorities(scores)), DecidedCall(args, decoded_at, decided_at))

    failed_filter = Reply(200, filter_error(_INTERNAL_ERROR))
    failed = Reply(500, _INTERNAL_ERROR.encode(), _TEXT)
    return {
        "filter": _guarded_handler("filter", filter_, failed_filter, metrics, clock),
        "prioritize": _guarded_handler("prioritize", prioritize, failed, metrics, clock),
        "preempt": _guarded_handler("preempt", _preemption(extender, metrics, clock), failed, metrics, clock),
    }


def _preemption(
    extender: SchedulerCalls, metrics: ExtenderMetrics, clock: Clock
) -> Callable[[bytes], Awaitable[AnsweredCall]]:
    """Return the handler of preemption calls. Where a call fails, kube-scheduler evicts nothing."""

    async def preempt(body: bytes) -> AnsweredCall:
        pod, victims = parse_preemption_args(body)
        decoded_at = clock()
        result = extender.preempt(pod, victims)
        decided_at = clock()
        metrics.count_preemption(result)
        decided = DecidedCall(ExtenderArgs(pod, victims.keys()), decoded_at, decided_at)
        return AnsweredCall(Reply(200, preemption_result(result.kept)), decided)

    return preempt


def _log_malformed(args: ExtenderArgs, rejected: Mapping[str, str], take: Callable[[float], int | None]) -> None:
    """Log the decision about a pod with an invalid request, which has no record."""
    reason = next(iter(rejected.values()), "")
    if reason.startswith(Reason.MALFORMED.value) and take(time.monotonic()) is not None:
        metadata = args.pod.metadata
        fields = {"pod": f"{metadata.namespace}/{metadata.name}", "nodes": len(args.names), "malformed": reason}
        _log.info("decision", extra={"fields": fields})


def _guarded_handler(
    verb: str,
    answer: Callable[[bytes], Awaitable[AnsweredCall]],
    failed: Reply,
    metrics: ExtenderMetrics,
    clock: Clock,
) -> Handler:
    """Return a handler that answers after every error, and that measures and counts the calls."""
    duration = metrics.call_duration.labels(verb)

    async def handler(body: bytes, receive_s: float) -> Reply:
        started = clock()
        try:
            answered = await answer(body)
        except InvalidCallError as error:
            answered = AnsweredCall(Reply(400, f"{error}\n".encode(), _TEXT))
        except NotReadyError as error:
            answered = AnsweredCall(Reply(503, f"{error}\n".encode(), _TEXT))
        except Exception:  # noqa: BLE001  the scheduling loop of kube-scheduler waits for an answer
            _log.exception("call", extra={"fields": {"verb": verb, "outcome": "error"}})
            answered = AnsweredCall(failed)
            metrics.internal_errors.labels(verb).inc()
        ended = clock()
        duration.observe(receive_s + ended - started)
        metrics.calls.labels(verb, str(answered.reply.status)).inc()
        if receive_s + ended - started > SLOW_S:
            metrics.slow_calls.labels(verb).inc()
            _log_slow_call(verb, answered, receive_s, started, ended)
        return answered.reply

    return handler


def _log_slow_call(verb: str, answered: AnsweredCall, receive_s: float, started: float, ended: float) -> None:
    phases = {"receive_s": receive_s, "total_s": receive_s + ended - started}
    fields: dict[str, object] = {"verb": verb, "status": answered.reply.status}
    if (decided := answered.decided) is not None:
        args, decoded_at, decided_at = decided
        metadata = args.pod.metadata
        fields |= {"pod": f"{metadata.namespace}/{metadata.name}", "nodes": len(args.names)}
        phases |= {
            "decode_s": decoded_at - started,
            "decide_s": decided_at - decoded_at,
            "encode_s": ended - decided_at,
        }
    _log.warning("slow call", extra={"fields": fields | {key: round(each, 6) for key, each in phases.items()}})
