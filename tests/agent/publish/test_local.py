"""The file for NFD and standard output."""

from __future__ import annotations

import contextlib
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.publish import NodeEvent, PublishError, PublishOutcome
from agent.publish.local import FeaturesFilePublisher, StandardOutputPublisher
from gputopo.crd.nodegpus import NodeGpus
from gputopo.labels import EncodedTopology

FACTS = EncodedTopology(labels={"b": "2", "a": "1"}, annotations={"t": "{}"}, mirrors={"m": "3"})
OTHER = FACTS._replace(labels={"a": "9"})
STATE = NodeGpus("2026-11-21T12:00:00Z", "1a2b", "0.1.0", ())


class AdjustableClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 21, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> AdjustableClock:
    return AdjustableClock()


@pytest.fixture
def file(tmp_path: Path, clock: AdjustableClock) -> FeaturesFilePublisher:
    return FeaturesFilePublisher(tmp_path / "gputopo", timedelta(minutes=10), clock)


def test_a_features_file_is_labels_and_an_expiry(file: FeaturesFilePublisher, tmp_path: Path) -> None:
    assert file.publish_facts(FACTS) == PublishOutcome(written=True)

    assert (tmp_path / "gputopo").read_text() == "# +expiry-time=2026-11-21T12:10:00Z\na=1\nb=2\n"
    assert [path.name for path in tmp_path.iterdir()] == ["gputopo"]


def test_a_features_file_is_left_alone_for_half_of_its_lifetime(
    file: FeaturesFilePublisher, tmp_path: Path, clock: AdjustableClock
) -> None:
    file.publish_facts(FACTS)

    clock.now += timedelta(minutes=4, seconds=59)
    assert file.publish_facts(FACTS) == PublishOutcome(written=False)
    clock.now += timedelta(seconds=1)
    assert file.publish_facts(FACTS) == PublishOutcome(written=True)

    assert (tmp_path / "gputopo").read_text().startswith("# +expiry-time=2026-11-21T12:15:00Z\n")


def test_a_features_file_is_written_on_a_change_and_where_it_is_gone(
    file: FeaturesFilePublisher, tmp_path: Path
) -> None:
    file.publish_facts(FACTS)

    assert file.publish_facts(OTHER) == PublishOutcome(written=True)
    assert file.publish_facts(OTHER) == PublishOutcome(written=False)
    (tmp_path / "gputopo").unlink()
    assert file.publish_facts(OTHER) == PublishOutcome(written=True)

    assert (tmp_path / "gputopo").read_text().splitlines()[1:] == ["a=9"]


def test_a_features_file_that_could_not_be_written_is_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "features.d"
    file = FeaturesFilePublisher(folder / "gputopo", timedelta(minutes=10))

    with pytest.raises(PublishError, match=rf"cannot write {folder}/gputopo: No such file or directory"):
        file.publish_facts(FACTS)
    folder.mkdir()

    assert file.publish_facts(FACTS) == PublishOutcome(written=True)


def test_a_features_file_carries_nothing_but_labels(file: FeaturesFilePublisher, tmp_path: Path) -> None:
    assert file.write_state(STATE) == PublishOutcome(written=False)
    file.write_event(NodeEvent("GpuLost", "gone", warning=True))

    assert list(tmp_path.iterdir()) == []


def test_standard_output_shows_each_change_once() -> None:
    stream = io.StringIO()
    output = StandardOutputPublisher(stream)

    outcomes = [output.publish_facts(facts) for facts in (FACTS, FACTS, OTHER)]
    states = [output.write_state(STATE), output.write_state(STATE)]
    output.write_event(NodeEvent("GpuLost", "gone", warning=True))

    assert [outcome.written for outcome in outcomes] == [True, False, True]
    assert [state.written for state in states] == [True, False]
    *labels, state, event = stream.getvalue().splitlines()
    assert labels == ["b=2", "a=1", "m=3", "t={}", "a=9", "m=3", "t={}"]
    assert json.loads(state)["observedAt"] == STATE.observed_at
    assert json.loads(event) == {"reason": "GpuLost", "message": "gone", "warning": True}


def test_closed_standard_output_is_an_error() -> None:
    full = Path("/dev/full").open("w")  # noqa: SIM115  closing it fails too
    output = StandardOutputPublisher(full)

    with pytest.raises(PublishError, match="cannot write to standard output: No space left on device"):
        output.publish_facts(FACTS)

    with contextlib.suppress(OSError):
        full.close()
