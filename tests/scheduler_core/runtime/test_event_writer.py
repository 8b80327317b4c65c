"""Events: each once, without haste, and whatever the API server says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.events import Reporter
from gputopo.kube.rbac import PLANNER
from scheduler_core.runtime.event_writer import FEW, MANY, Announcer, Haste, Tell, event
from tests.api_server import Answer, ApiServer, api_server
from tests.gputopo.kube.serving import wait_for

MADE = {"metadata": {"name": "e"}}


BREATHLESS = Haste(64, 0.0)


def tell(name: str = "train", message: str = "it is broken") -> Tell:
    return Tell("Pod", "team", name, f"uid-{name}", "GpuShapeBroken", message, warning=True)


@contextmanager
def announcing(
    answer: Answer, folder: Path, noted: list[str], haste: Haste = BREATHLESS
) -> Iterator[tuple[Announcer, ApiServer]]:
    with api_server(lambda _: answer) as server:
        kube = from_kubeconfig(PLANNER, server.kubeconfig(folder / "config"))
        announcer = Announcer(kube, "gputopo-planner", haste, noted.append)
        try:
            yield announcer, server
        finally:
            announcer.close()
            kube.close()


def test_the_same_is_told_once(tmp_path: Path) -> None:
    noted: list[str] = []
    with announcing(Answer(MADE, 201), tmp_path, noted) as (announcer, server):
        for what in (tell(), tell(), tell("other"), tell(message="it is broken in another way")):
            announcer.announce(what)
        wait_for(lambda: len(noted) == 3, "three Events")

        assert noted == ["written"] * 3
        assert [asked.path for asked in server.asked] == ["/api/v1/namespaces/team/events"] * 3
        assert [asked.body["involvedObject"]["name"] for asked in server.asked] == ["train", "other", "train"]


def test_what_the_api_server_refuses_is_logged_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    noted: list[str] = []
    with announcing(Answer({"message": "no"}, 403), tmp_path, noted) as (announcer, _):
        announcer.announce(tell())
        announcer.announce(tell("other"))
        wait_for(lambda: len(noted) == 2, "refusals")

    assert noted == ["failed"] * 2
    assert vars(caplog.records[0])["fields"] == {
        "of": "team/train",
        "reason": "GpuShapeBroken",
        "error": "POST /api/v1/namespaces/team/events: 403: no",
    }


@pytest.mark.parametrize("haste", [FEW, MANY], ids=["few", "many"])
def test_of_too_many_at_once_some_go_untold(tmp_path: Path, haste: Haste) -> None:
    noted: list[str] = []
    with announcing(Answer(MADE, 201), tmp_path, noted, haste._replace(pause_s=60)) as (announcer, _):
        for number in range(5000):
            announcer.announce(tell(f"p{number}"))
        announcer.announce(tell("p0"))  # forgotten by now: the memory is bounded

    assert noted.count("dropped") in (5000 - haste.waiting, 5001 - haste.waiting)


def test_what_is_told_after_the_end_is_written_by_nobody(tmp_path: Path) -> None:
    noted: list[str] = []
    others = set(threading.enumerate())
    with announcing(Answer(MADE, 201), tmp_path, noted, Haste(64, 60.0)) as (announcer, server):
        (thread,) = (each for each in set(threading.enumerate()) - others if each.name == "events")
        announcer.announce(tell())
        wait_for(lambda: noted, "the first")
        announcer.announce(tell("other"))
        announcer.close()
        thread.join()

        assert (noted, len(server.asked)) == (["written"], 1)


def test_an_event_says_who_tells_what_of_whom() -> None:
    made = event(tell(), Reporter("gputopo-extender"), datetime(2026, 11, 21, 12, tzinfo=UTC))

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
    what = tell()._replace(kind="PlacementReservation", warning=False)
    made = event(what, Reporter("gputopo-planner"), datetime(2026, 11, 21, 12, tzinfo=UTC))

    assert (made["type"], made["involvedObject"]["apiVersion"]) == ("Normal", "gputopo.io/v1alpha1")
