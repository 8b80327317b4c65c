"""A decision can be made again from what is kept of it; what is kept is bounded; and a file takes all of it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler_core.extender.decision_log import DecisionFile, DecisionLog, Pause
from scheduler_core.extender.decision_record import (
    DecisionFormatError,
    DecisionLine,
    encode_decision,
    parse_decision,
    replay_differences,
)
from scheduler_core.extender.extender import DecisionRecord
from tests.scheduler_core.extender.decisions import NAMES, PODS, SHAPES, decided


@pytest.fixture(scope="module")
def records() -> list[DecisionRecord]:
    return decided(*PODS.values(), names=frozenset({*NAMES[1:], "unheard-of"}))


@pytest.mark.parametrize("place", range(len(PODS)), ids=list(PODS))
def test_a_decision_is_made_again_as_it_was(records: list[DecisionRecord], place: int) -> None:
    line = parse_decision(encode_decision(records[place]))

    assert line.answer == records[place].answer.nodes
    assert list(replay_differences(line)) == []


def test_the_decisions_are_of_all_kinds(records: list[DecisionRecord]) -> None:
    lines = [parse_decision(encode_decision(each)) for each in records]

    assert [bool(line.answer) for line in lines] == [True, True, True, True, False, True]
    assert any(line.doubtful for line in lines)
    assert any(line.refused for line in lines)
    assert all(line.unknown == ("unheard-of",) for line in lines)


def test_nodes_share_states_and_states_share_topologies(records: list[DecisionRecord]) -> None:
    line = parse_decision(encode_decision(records[0]))

    assert len(line.topologies) == len(SHAPES)
    assert sorted(name for names in line.nodes for name in names) == sorted(NAMES[1:])


def _other(line: DecisionLine, **changed: Any) -> list[str]:
    return list(replay_differences(msgspec.structs.replace(line, **changed)))


def test_differences_of_a_replay_are_reported(records: list[DecisionRecord]) -> None:
    passed, refused = parse_decision(encode_decision(records[0])), parse_decision(encode_decision(records[4]))

    assert _other(passed, answer=("n9",)) == [f"answered n9; now {', '.join(passed.answer)}"]
    assert _other(passed, points=(1.0,) * 7) == [f"points {(1.0,) * 7}; now {passed.points}"]
    reason = next(iter(refused.refused))
    assert f"n9 was rejected for {reason!r}; now for None" in _other(refused, refused={reason: ("n9",)})
    assert _other(refused, answer=tuple(f"m{n}" for n in range(10))) == [
        "answered m0, m1, m2, m3, m4, m5, m6, m7 and 2 more; now no node"
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        pytest.param(b"", "not a decision of an extender (Input data was truncated): ''", id="nothing"),
        pytest.param(b'{"format":1}', "missing required field `at`", id="another document"),
        pytest.param(b"[" * 100_000, "not a decision", id="deep"),
    ],
)
def test_a_line_that_is_no_decision_is_quoted(line: bytes, says: str) -> None:
    with pytest.raises(DecisionFormatError) as refused:
        parse_decision(line)

    assert says in str(refused.value)


def test_a_line_of_another_format_or_that_does_not_fit_together_is_refused(records: list[DecisionRecord]) -> None:
    line = parse_decision(encode_decision(records[0]))
    with pytest.raises(DecisionFormatError, match="unknown decision format 2, expected 1"):
        parse_decision(msgspec.json.encode(msgspec.structs.replace(line, format=2)))
    with pytest.raises(DecisionFormatError, match="0 states for"):
        _other(line, states=())
    with pytest.raises(DecisionFormatError, match="invalid node state"):
        _other(line, topologies=())


def test_the_last_decisions_are_kept_and_their_names_are_bounded(records: list[DecisionRecord]) -> None:
    few, small = DecisionLog(3), DecisionLog(100, max_names=20)
    for each in records:
        few.add_decision(each)
        small.add_decision(each)

    first = len(records) - 3
    assert list(few.json_lines()) == list(enumerate(map(encode_decision, records[-3:]), start=first))
    assert list(few.json_lines(first + 1)) == list(enumerate(map(encode_decision, records[-2:]), start=first + 1))
    assert list(few.json_lines(-1)) == [(len(records) - 1, encode_decision(records[-1]))]
    assert list(few.json_lines(-9)) == list(few.json_lines())
    assert list(few.json_lines(len(records))) == []
    assert len(small) == 2  # of eight names each
    assert (few.last_decision("uid-f"), few.last_decision("uid-a")) == (records[-1], None)
    DecisionLog(1, max_names=1).add_decision(records[0])


def test_one_decision_is_kept_however_many_names_it_has(records: list[DecisionRecord]) -> None:
    decisions = DecisionLog(10, max_names=1)
    for each in records:
        decisions.add_decision(each)

    assert [line for _, line in decisions.json_lines()] == [encode_decision(records[-1])]


def test_a_file_takes_every_decision_and_is_put_aside_when_it_is_full(
    records: list[DecisionRecord], tmp_path: Path
) -> None:
    path, noted = tmp_path / "decisions.jsonl", list[str]()
    size = sum(len(encode_decision(each)) for each in records[:3])
    file = DecisionFile(path, noted.append, max_bytes=size)
    for each in records[:5]:
        file.append(each)
    file.close()

    assert noted == ["written"] * 5
    assert path.with_name("decisions.jsonl.1").read_bytes() == b"".join(encode_decision(each) for each in records[:3])
    assert path.read_bytes() == b"".join(encode_decision(each) for each in records[3:5])


def test_a_write_error_of_the_file_is_logged_once_and_delays_no_decision(
    records: list[DecisionRecord], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    noted = list[str]()
    file = DecisionFile(tmp_path / "missing" / "file", noted.append)
    file.append(records[0])
    file.append(records[1])
    file.close()

    assert noted == ["failed", "failed"]
    assert [record.getMessage() for record in caplog.records] == ["decisions"]


def test_where_decisions_come_too_fast_some_are_left_out_of_the_file(
    records: list[DecisionRecord], tmp_path: Path
) -> None:
    gate, noted = threading.Event(), list[str]()

    def note(what: str) -> None:
        noted.append(what)
        if what == "written":
            gate.wait(5)

    file = DecisionFile(tmp_path / "file", note)
    for _ in range(200):
        file.append(records[0])
    gate.set()
    file.close()

    assert noted.count("dropped") >= 200 - 64 - 2
    assert noted.count("written") + noted.count("dropped") == 200


def test_the_encoder_pauses_while_it_encodes(records: list[DecisionRecord]) -> None:
    """The line is the same. A decision about many nodes has a pause for each few."""
    pauses = list[int]()
    many = records[0]._replace(names=frozenset(f"unknown-{at}" for at in range(1000)))

    assert encode_decision(many, lambda: pauses.append(1)) == encode_decision(many)
    assert len(pauses) >= 1000 / 64


def test_a_pause_takes_as_long_as_the_work_before_it() -> None:
    clock, slept = iter([5.0, 5.001, 5.004, 5.004, 5.014]), list[float]()
    pause = Pause(lambda: next(clock), slept.append)

    for _ in range(5):
        pause()

    assert slept == pytest.approx([0.0, 0.004, 0.010])


def test_encoders_wait_for_calls(records: list[DecisionRecord], tmp_path: Path) -> None:
    waits = list[str]()
    log = DecisionLog(4, wait_for_calls=lambda: waits.append("page"))
    log.add_decision(records[0])
    file = DecisionFile(tmp_path / "file", lambda _: None, wait_for_calls=lambda: waits.append("file"))
    file.append(records[0])
    file.close()
    _, line = next(log.json_lines())

    assert line == (tmp_path / "file").read_bytes()
    assert set(waits) == {"page", "file"}


def test_decisions_that_were_not_encoded_are_freed_one_at_a_time(records: list[DecisionRecord]) -> None:
    waits = list[str]()
    log = DecisionLog(3, wait_for_calls=lambda: waits.append("page"))
    for each in records[:3]:
        log.add_decision(each)
    lines = log.json_lines()
    next(lines)
    waits.clear()
    lines.close()

    assert waits == ["page", "page"]
