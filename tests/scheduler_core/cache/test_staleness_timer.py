"""The times at which a node becomes stale or fresh by time alone."""

from __future__ import annotations

from gputopo.crd.nodegpus import NodeGpus
from gputopo.timestamps import format_timestamp
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_records import NO_FACTS, NodeRecords
from scheduler_core.policy.policy import Policy

NOW = 1_795_000_000.0
POLICY = Policy()


def reported(name: str, at: float) -> NodeRecord:
    """A node whose agent reported at this time."""
    return NodeRecord(name, NO_FACTS, NodeGpus(format_timestamp(at), "", "1"))


def test_a_node_is_due_when_its_last_report_is_too_old_and_not_before() -> None:
    records = NodeRecords(POLICY)
    records.set_record(reported("n", NOW), NOW)

    assert records.pop_due(NOW + POLICY.stale_after_s - 1) == set()
    assert records.pop_due(NOW + POLICY.stale_after_s + 1) == {"n"}
    assert records.pop_due(NOW + POLICY.stale_after_s + 2) == set()


def test_a_later_report_puts_the_time_off() -> None:
    """The node may be due at the former time as well; it is due after the last report in any case."""
    records = NodeRecords(POLICY)
    for seconds in range(0, 600, 60):
        records.set_record(reported("n", NOW + seconds), NOW + seconds)

    records.pop_due(NOW + POLICY.stale_after_s + 1)

    assert records.pop_due(NOW + 540 + POLICY.stale_after_s + 1) == {"n"}


def test_a_node_whose_agent_reports_of_the_future_is_due_when_that_is_near() -> None:
    records = NodeRecords(POLICY)
    records.set_record(reported("n", NOW), NOW)
    records.set_record(reported("n", NOW + 3_600), NOW)

    assert records.pop_due(NOW + 3_600) == {"n"}
    assert records.pop_due(NOW + 3_600 + POLICY.stale_after_s + 1) == {"n"}


def test_thousands_of_reports_of_a_node_take_the_memory_of_one() -> None:
    records = NodeRecords(POLICY)
    for number in range(5_000):
        at = NOW + number / 10
        records.pop_due(at)
        records.set_record(reported("n", at), at)

    assert len(records._staleness_timer) <= 2
