"""An Event on a pod whose required shape is broken: once, without haste, and whatever the API server says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gputopo.kube.access import EXTENDER
from gputopo.kube.connect import from_kubeconfig
from gputopo.labels.reasons import Reason
from scheduler_core.announcing import Announcer, event
from scheduler_core.occupancy import Occupant
from scheduler_core.request import Profile
from scheduler_core.required import SHAPE
from scheduler_core.settling import Settled
from tests.api_server import Answer, ApiServer, api_server
from tests.gputopo.kube.serving import wait_for

MADE = {"metadata": {"name": "e"}}


def broken(name: str = "train", reason: Reason = Reason.ISLAND) -> Settled:
    return Settled(Occupant(f"uid-{name}", "team", name, Profile()), "gpu-7", None, 3, None, reason)


@contextmanager
def announcing(
    answer: Answer, folder: Path, noted: list[str], pause_s: float = 0
) -> Iterator[tuple[Announcer, ApiServer]]:
    with api_server(lambda _: answer) as server:
        kube = from_kubeconfig(EXTENDER, server.kubeconfig(folder / "config"))
        announcer = Announcer(kube, noted.append, pause_s)
        try:
            yield announcer, server
        finally:
            announcer.close()
            kube.close()


def test_a_pod_is_told_of_once(tmp_path: Path) -> None:
    noted: list[str] = []
    with announcing(Answer(MADE, 201), tmp_path, noted) as (announcer, server):
        for found in (broken(), broken(), broken("other")):
            announcer.announce(found)
        wait_for(lambda: len(noted) == 2, "two Events")

        assert noted == ["written", "written"]
        assert [asked.path for asked in server.asked] == ["/api/v1/namespaces/team/events"] * 2
        assert [asked.body["involvedObject"]["uid"] for asked in server.asked] == ["uid-train", "uid-other"]


def test_what_the_api_server_refuses_is_logged_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    noted: list[str] = []
    with announcing(Answer({"message": "no"}, 403), tmp_path, noted) as (announcer, _):
        announcer.announce(broken())
        wait_for(lambda: noted, "a refusal")

    assert noted == ["failed"]
    assert caplog.records[0].__dict__["fields"]["pod"] == "team/train"


def test_of_too_many_at_once_some_go_untold(tmp_path: Path) -> None:
    noted: list[str] = []
    with announcing(Answer(MADE, 201), tmp_path, noted, pause_s=60) as (announcer, _):
        for number in range(5000):
            announcer.announce(broken(f"p{number}"))
        announcer.announce(broken("p0"))  # forgotten by now: the memory is bounded

    assert noted.count("dropped") in (5000 - 64, 5001 - 64)


def test_whatever_shape_is_broken_there_are_words_for_it() -> None:
    messages = {event(broken(reason=reason), datetime.now(UTC))["message"] for reason in SHAPE}

    assert len(messages) == len(SHAPE)


def test_an_event_says_what_is_wrong_and_what_to_do() -> None:
    made = event(broken(reason=Reason.NUMA), datetime(2026, 11, 21, 12, tzinfo=UTC))

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
        "message": "the GPUs that the kubelet of gpu-7 gave this pod are not on one NUMA node. It keeps running; to "
        "have it placed anew, delete it. Why this may happen: docs/troubleshooting.md",
        "type": "Warning",
        "source": {"component": "gputopo-extender"},
        "reportingComponent": "gputopo-extender",
        "reportingInstance": "gputopo-extender",
        "firstTimestamp": "2026-11-21T12:00:00Z",
        "lastTimestamp": "2026-11-21T12:00:00Z",
        "count": 1,
    }
