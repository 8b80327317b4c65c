"""Events: each once, without haste, and whatever the API server says."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.events import EventReporter
from gputopo.kube.rbac import PLANNER
from scheduler_core.runtime.event_writer import HIGH_RATE, LOW_RATE, EventDraft, EventWriter, RateLimit, event_body
from tests.api_server import Answer, ApiServer, api_server
from tests.gputopo.kube.serving import wait_for

MADE = {"metadata": {"name": "e"}}


BREATHLESS = RateLimit(64, 0.0)


def draft(name: str = "train", message: str = "it is broken") -> EventDraft:
    return EventDraft("Pod", "team", name, f"uid-{name}", "GpuShapeBroken", message, warning=True)


@contextmanager
def announcing(
    answer: Answer, folder: Path, noted: list[str], haste: RateLimit = BREATHLESS
) -> Iterator[tuple[EventWriter, ApiServer]]:
    with api_server(lambda _: answer) as server:
        kube = from_kubeconfig(PLANNER, server.kubeconfig(folder / "config"))
        announcer = EventWriter(kube, "gputopo-planner", haste, noted.append)
        try:
            yield announcer, server
        finally:
            announcer.close()
            kube.close()


def test_equal_states_are_written_once(tmp_path: Path) -> None:
    noted: list[str] = []
    with announcing(Answer(MADE, 201), tmp_path, noted) as (announcer, server):
        for what in (draft(), draft(), draft("other"), draft(message="it is broken in another way")):
            announcer.write_event(what)
        wait_for(lambda: len(noted) == 3, "three Events")

        assert noted == ["written"] * 3
        assert [asked.path for asked in server.asked] == ["/api/v1/namespaces/team/events"] * 3
        assert [asked.body["involvedObject"]["name"] for asked in server.asked] == ["train", "other", "train"]


def test_refused_events_are_logged_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    noted: list[str] = []
    with announcing(Answer({"message": "no"}, 403), tmp_path, noted) as (announcer, _):
        announcer.write_event(draft())
        announcer.write_event(draft("other"))
        wait_for(lambda: len(noted) == 2, "refusals")

    assert noted == ["failed"] * 2
    assert vars(caplog.records[0])["fields"] == {
        "of": "team/train",
        "reason": "GpuShapeBroken",
        "error": "POST /api/v1/namespaces/team/events: 403: no",
    }


@pytest.mark.parametrize("haste", [LOW_RATE, HIGH_RATE], ids=["few", "many"])
def test_of_too_many_at_once_some_go_untold(tmp_path: Path, haste: RateLimit) -> None:
    noted: list[str] = []
    with announcing(Answer(MADE, 201), tmp_path, noted, haste._replace(pause_s=60)) as (announcer, _):
        for number in range(5000):
            announcer.write_event(draft(f"p{number}"))
        announcer.write_event(draft("p0"))  # forgotten by now: the memory is bounded

    assert noted.count("dropped") in (5000 - haste.queued, 5001 - haste.queued)


def test_events_after_the_end_are_not_written(tmp_path: Path) -> None:
    noted: list[str] = []
    others = set(threading.enumerate())
    with announcing(Answer(MADE, 201), tmp_path, noted, RateLimit(64, 60.0)) as (announcer, server):
        (thread,) = (each for each in set(threading.enumerate()) - others if each.name == "events")
        announcer.write_event(draft())
        wait_for(lambda: noted, "the first")
        announcer.write_event(draft("other"))
        announcer.close()
        thread.join()

        assert (noted, len(server.asked)) == (["written"], 1)


def test_the_body_of_an_event() -> None:
    made = event_body(draft(), EventReporter("gputopo-extender"), datetime(2026, 11, 21, 12, tzinfo=UTC))

    assert made == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "train.18ea0da41e9d8000", "namespace": "team"},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": "train",
            "namespace": "team",
            "uid": "uid-train",
        },
        "reason": "GpuShapeBroken",
        "message": "it is broken",
        "type": "Warning",
        "source": {"component": "gputopo-extender"},
        "reportingComponent": "gputopo-extender",
        "reportingInstance": "gputopo-extender",
        "firstTimestamp": "2026-11-21T12:00:00Z",
        "lastTimestamp": "2026-11-21T12:00:00Z",
        "count": 1,
    }


def test_an_event_of_a_reservation_names_its_kind() -> None:
    what = draft()._replace(kind="PlacementReservation", warning=False)
    made = event_body(what, EventReporter("gputopo-planner"), datetime(2026, 11, 21, 12, tzinfo=UTC))

    assert (made["type"], made["involvedObject"]["apiVersion"]) == ("Normal", "gputopo.io/v1alpha1")


def test_a_written_event_is_not_kept_in_memory(tmp_path: Path) -> None:
    noted: list[str] = []
    event = draft(message="it is broken")
    before = sys.getrefcount(event)
    with announcing(Answer(MADE, 201), tmp_path, noted) as (announcer, _):
        for each in (event, draft("last")):
            announcer.write_event(each)
        wait_for(lambda: len(noted) == 2, "two Events")

        assert sys.getrefcount(event) == before
        announcer.write_event(event)
        announcer.write_event(draft("third"))
        wait_for(lambda: len(noted) == 3, "only the third")
