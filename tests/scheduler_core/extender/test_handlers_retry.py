"""A rejected call waits once, for events that may be on their way to the extender's watch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet

import pytest

from gputopo.labels.reasons import Reason, malformed_text
from scheduler_core.extender.handlers import MAX_WAITS, RETRY_WAIT_S
from scheduler_core.extender.metrics import ExtenderMetrics
from scheduler_core.extender.node_choice import FilterResult
from scheduler_core.request.pod import Pod
from tests.machines import hgx_h100
from tests.scheduler_core.fake_scheduler import FakeScheduler, unbound_pod
from tests.scheduler_core.runtime.served import Passing, app_of, call, serving


class Rejecting(Passing):
    """Rejects as long as ``rejects`` says, by the number of the decision; records whether decisions were final."""

    def __init__(self, rejects: Callable[[int], bool]) -> None:
        self.rejects = rejects
        self.final: list[bool] = []

    def filter(self, pod: Pod, names: AbstractSet[str], *, final: bool = True) -> FilterResult:
        self.final.append(final)
        if self.rejects(len(self.final)):
            return FilterResult((), dict.fromkeys(names, Reason.ISLAND.value))
        return super().filter(pod, names)


def decisions_of(extender: Rejecting, calls: int) -> tuple[list[bool], float]:
    """Return whether each decision was final, and the seconds of all calls."""
    with serving(app_of(extender)) as running:
        started = time.monotonic()
        for _ in range(calls):
            assert running.ask("POST", "/filter", call("n1"))[0] == 200
        return extender.final, time.monotonic() - started


def test_the_first_rejections_are_decided_again_and_later_ones_are_final_at_once() -> None:
    final, seconds = decisions_of(Rejecting(lambda _: True), MAX_WAITS + 2)

    assert final == [False, True] * MAX_WAITS + [True, True]
    assert seconds >= MAX_WAITS * RETRY_WAIT_S


def test_accepted_calls_never_wait() -> None:
    assert decisions_of(Rejecting(lambda _: False), 3)[0] == [False, False, False]


def test_a_repeated_decision_is_counted_once() -> None:
    extender, metrics = Rejecting(lambda number: number == 1), ExtenderMetrics()
    with serving(app_of(extender, metrics=metrics)) as running:
        status, answer = running.ask("POST", "/filter", call("n1"))

    sample = metrics.registry.get_sample_value
    assert (status, b'"NodeNames":["n1"]' in answer, extender.final) == (200, True, [False, True])
    assert sample("gputopo_rejections_total", {"reason": "island"}) is None
    assert sample("gputopo_extender_calls_total", {"verb": "filter", "status": "200"}) == 1
    assert sample("gputopo_extender_call_duration_seconds_count", {"verb": "filter"}) == 1
    assert (sample("gputopo_extender_call_duration_seconds_sum", {"verb": "filter"}) or 0) >= RETRY_WAIT_S


def test_only_the_final_rejection_of_a_call_is_recorded() -> None:
    stage = FakeScheduler.synced({"a": hgx_h100()})
    pod, names = unbound_pod("p", 8, island="required"), {"ghost"}
    answers = [stage.extender.filter(pod, names, final=final) for final in (False, True)]

    assert answers[0] == answers[1]
    assert [each.answer for each in stage.records] == answers[1:]


def test_a_decision_about_a_malformed_pod_is_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    text = malformed_text("gputopo.io/island", "maybe", "one of required, preferred, ignore")

    class Malformed(Passing):
        def filter(self, pod: Pod, names: AbstractSet[str], *, final: bool = True) -> FilterResult:  # noqa: ARG002
            return FilterResult((), dict.fromkeys(names, text))

    with caplog.at_level(logging.INFO, "scheduler_core.extender.handlers"), serving(app_of(Malformed())) as running:
        assert running.ask("POST", "/filter", call("n1", "n2"))[0] == 200

    (fields,) = (each.__dict__["fields"] for each in caplog.records if each.getMessage() == "decision")
    assert (fields["nodes"], fields["malformed"]) == (2, text)
