"""The log of decisions: one line each, bounded, and with names that cannot forge lines."""

from __future__ import annotations

import io
import json
import logging

import msgspec
import pytest

from gputopo.process.logs import start_logging, stop_logging
from scheduler_core.extender.decision_lines import LINES_PER_S, MAX_NODE_LINES, DecisionLogger, decision_fields
from scheduler_core.extender.extender import DecisionRecord
from tests.scheduler_core.builders import pod
from tests.scheduler_core.extender.decisions import NAMES, PODS, decided

LOGGER = "scheduler_core.extender.decision_lines"


@pytest.fixture(scope="module")
def records() -> list[DecisionRecord]:
    return decided(*PODS.values())


def written(form: str, *records: DecisionRecord) -> list[str]:
    """The lines of the log."""
    stream = io.StringIO()
    sink = start_logging(form, stream, (LOGGER,), {})
    lines = DecisionLogger()
    for each in records:
        lines.write(each)
    stop_logging(sink)
    return stream.getvalue().splitlines()


def test_a_decision_is_one_line_with_its_result(records: list[DecisionRecord]) -> None:
    (line,) = written("json", records[1])
    fields = json.loads(line)
    record = records[1]

    assert fields["event"] == "decision"
    assert (fields["pod"], fields["asks"]) == ("team/b", {"nvidia.com/gpu": 2, "island": "required"})
    assert (fields["nodes"], fields["passed"], fields["node"]) == (len(NAMES), 1, record.answer.nodes[0])
    assert fields["score"] == record.scores[0].points
    assert fields["suitable"] + sum(fields["refused"].values()) == len(NAMES)
    assert fields["suitable"] > fields["passed"]  # a pod with a required shape gets one node of several that suit
    assert fields["ms"] >= 0


def test_a_rejection_names_its_reasons(records: list[DecisionRecord]) -> None:
    fields = decision_fields(records[4])

    assert (fields["node"], fields["score"], fields["passed"]) == (None, None, 0)
    assert fields["refused"]
    assert fields["suitable"] == 0
    assert sum(fields["refused"].values()) == len(NAMES)
    assert all(reason.islower() for reason in fields["refused"])


def test_at_level_debug_each_node_has_a_line(records: list[DecisionRecord]) -> None:
    lines = [json.loads(each) for each in written("json:debug", records[0], records[4])]

    assert [each["event"] for each in lines].count("decision") == 2
    passed = [each for each in lines if each["event"] == "decision node" and each["pod"] == "team/a"]
    refused = [each for each in lines if each["event"] == "decision node" and each["pod"] == "team/e"]
    assert [each["node"] for each in passed] == list(records[0].answer.nodes)[:MAX_NODE_LINES]
    assert all(each["factors"] for each in passed)
    assert {each["node"] for each in refused} == set(records[4].answer.rejected)
    assert written("json", records[0])[0].count("decision node") == 0


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("name", ['x\n{"event":"decision"}', "x\u202egnp", "x y=1", "\x1b[31mred", "x" * 253])
def test_names_cannot_forge_lines(form: str, name: str) -> None:
    plain = pod("p", 1)
    (record,) = decided(msgspec.structs.replace(plain, metadata=msgspec.structs.replace(plain.metadata, name=name)))

    (line,) = written(form, record)

    assert line.isprintable() or form == "json"
    assert "\x1b" not in line
    assert line.count(" decision ") == (form == "text")


def test_the_lines_of_a_second_are_bounded_and_the_rest_is_counted(
    records: list[DecisionRecord], caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    lines = DecisionLogger(lambda: now[0])
    with caplog.at_level(logging.INFO, LOGGER):
        for _ in range(3 * int(LINES_PER_S)):
            lines.write(records[0])
        assert LINES_PER_S <= len(caplog.records) <= LINES_PER_S + 2
        written_at_once = len(caplog.records)
        now[0] = 10.0
        lines.write(records[0])

    assert caplog.records[-1].__dict__["fields"]["left_out"] == 3 * LINES_PER_S - written_at_once
