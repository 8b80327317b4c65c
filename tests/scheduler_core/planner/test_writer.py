"""What goes over the wire before something is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gputopo.kube.access import PLANNER
from gputopo.kube.connect import from_kubeconfig
from gputopo.labels.reservations import ReservationStatus, State
from scheduler_core.gangs.writes import WriteStatus
from scheduler_core.planner.writer import Outcome, Writer
from tests.api_server import Answer, Asked, api_server
from tests.scheduler_core.gangs.members import member
from tests.scheduler_core.plans import plan

PLAN = plan("llm-1", {"a": ("n1", 4)})._replace(version="5")
POD = member("a")._replace(version="7")


def answering(uid: str, version: str) -> Callable[[Asked], Answer]:
    """The pod as it is now; and each write is taken."""

    def answer(asked: Asked) -> Answer:
        found = {"name": "a", "uid": uid, "resourceVersion": version}
        return Answer({"metadata": found if asked.method == "GET" else {"name": PLAN.name, "resourceVersion": "9"}})

    return answer


@pytest.mark.parametrize(
    ("uid", "version", "outcome", "methods"),
    [
        pytest.param(POD.uid, "7", Outcome.DONE, ["GET", "PATCH"], id="it is as it was seen"),
        pytest.param(POD.uid, "8", Outcome.CONFLICT, ["GET"], id="it has changed since"),
        pytest.param("another", "7", Outcome.GONE, ["GET"], id="another pod of that name"),
    ],
)
def test_a_plan_is_taken_back_only_if_the_pod_that_is_late_is_as_it_was_seen(
    tmp_path: Path, uid: str, version: str, outcome: Outcome, methods: list[str]
) -> None:
    with api_server(answering(uid, version)) as server:
        kube = from_kubeconfig(PLANNER, server.kubeconfig(tmp_path / "config"))
        try:
            status = ReservationStatus(State.ROLLING_BACK, "late")
            found = Writer(kube, lambda: True, lambda: 0.0).write(WriteStatus(PLAN, status, POD))
        finally:
            kube.close()

    assert (found.outcome, [each.method for each in server.asked]) == (outcome, methods)
