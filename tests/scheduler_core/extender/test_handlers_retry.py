"""A call that is refused waits once for what may be on its way to our watch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from gputopo.labels.reasons import Reason
from scheduler_core.extender.extender import FilterResult
from scheduler_core.extender.http import WAIT_S, WAITS, Reply, extender_app
from scheduler_core.extender.metrics import ExtenderMetrics
from scheduler_core.request.pod import Pod
from tests.machines import hgx_h100
from tests.scheduler_core.fake_scheduler import Stage, asking
from tests.scheduler_core.runtime.served import Passing, app_of, call, serving


def asked(replies: Iterator[Reply], calls: int) -> tuple[list[bytes], float]:
    """The answers to so many calls in a row, and the seconds that all took."""

    def filter_(_: bytes, __: float, *, last: bool = True) -> Reply:
        reply = next(replies)
        return reply._replace(retry=False) if last else reply

    app = extender_app({"filter": filter_}, lambda: None, 100, "", time.monotonic)
    with serving(app) as running:
        begun = time.monotonic()
        return [running.ask("POST", "/filter", b"{}")[1] for _ in range(calls)], time.monotonic() - begun


def test_the_first_ones_are_answered_anew_and_the_others_of_that_moment_at_once() -> None:
    replies = (Reply(200, str(number).encode(), retry=True) for number in range(99))

    answers, seconds = asked(replies, WAITS + 2)

    anew = [str(2 * number + 1).encode() for number in range(WAITS)]
    assert answers == [*anew, str(2 * WAITS).encode(), str(2 * WAITS + 1).encode()]
    assert seconds >= WAITS * WAIT_S


def test_what_is_not_refused_never_waits() -> None:
    replies = (Reply(200, str(number).encode()) for number in range(9))

    assert asked(replies, 3)[0] == [b"0", b"1", b"2"]


class Fickle(Passing):
    """Refuses the first time."""

    def __init__(self) -> None:
        self.asked: list[bool] = []

    def filter(self, pod: Pod, names: AbstractSet[str], *, final: bool = True) -> FilterResult:
        self.asked.append(final)
        if len(self.asked) == 1:
            return FilterResult((), dict.fromkeys(names, Reason.ISLAND.value))
        return super().filter(pod, names)


def test_a_call_that_is_asked_again_is_counted_once_for_what_is_answered() -> None:
    fickle, metrics = Fickle(), ExtenderMetrics()
    with serving(app_of(fickle, metrics=metrics)) as running:
        status, answer = running.ask("POST", "/filter", call("n1"))

    sample = metrics.registry.get_sample_value
    assert (status, b'"NodeNames":["n1"]' in answer, fickle.asked) == (200, True, [False, True])
    assert sample("gputopo_rejections_total", {"reason": "island"}) is None
    assert sample("gputopo_extender_calls_total", {"verb": "filter", "status": "200"}) == 1
    assert sample("gputopo_extender_call_seconds_count", {"verb": "filter"}) == 1
    assert (sample("gputopo_extender_call_seconds_sum", {"verb": "filter"}) or 0) >= WAIT_S


def test_only_the_last_refusal_of_a_call_is_recorded() -> None:
    stage = Stage.set({"a": hgx_h100()})
    pod, names = asking("p", 8, island="required"), {"ghost"}
    answers = [stage.extender.filter(pod, names, final=last) for last in (False, True)]

    assert answers[0] == answers[1]
    assert [each.answer for each in stage.records] == answers[1:]
