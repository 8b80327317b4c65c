"""Requests for nodes for gangs that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler_core.planner.commit.actions import RequestNodes
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.leader.provisioning import MAX_OPEN, REPEAT_S, REQUEST_AFTER_S, NodeRequests, node_request
from scheduler_core.planner.leader.queue import QueuedGang, UnfitState
from scheduler_core.request.full_pod import LabelSelector, PodAffinityTerm
from tests.scheduler_core.builders import request
from tests.scheduler_core.planner.gang.gang_pods import members, queued

NOW = 100.0


def waiting(
    name: str = "llm", *, tried: bool = True, since: float = NOW - REQUEST_AFTER_S, **changed: Any
) -> QueuedGang:
    found = queued(name, ready=tuple(members(3, **changed)))
    return QueuedGang(found, 0.0, unfit_state=UnfitState("state") if tried else None, queued_since=since)


def due(requests: NodeRequests, *queue: QueuedGang, now: float = NOW, free: bool = True) -> list[RequestNodes]:
    is_free: Callable[[Gang], bool] = lambda _: free  # noqa: E731
    return list(requests.due_requests(queue, is_free, now))


def test_a_gang_that_does_not_fit_is_requested_once_in_a_while() -> None:
    requests = NodeRequests("check")

    assert [each.gang.name for each in due(requests, waiting())] == ["llm"]
    assert due(requests, waiting(), now=NOW + REPEAT_S - 1) == []
    assert len(due(requests, waiting(), now=NOW + REPEAT_S)) == 1


@pytest.mark.parametrize(
    "gang",
    [
        pytest.param(waiting(tried=False), id="not tried yet"),
        pytest.param(waiting(since=NOW - REQUEST_AFTER_S + 1), id="waits for a moment only"),
        pytest.param(waiting(blocked="its volume claim data is not bound yet"), id="waits for a volume"),
    ],
)
def test_other_gangs_are_not_requested(gang: QueuedGang) -> None:
    assert due(NodeRequests("check"), gang) == []


def test_it_is_off_by_default_and_leaves_planned_gangs_alone() -> None:
    assert due(NodeRequests(None), waiting()) == []
    assert due(NodeRequests("check"), waiting(), free=False) == []


def test_members_with_other_anti_affinity_are_requested_apart() -> None:
    one, other, third = members(3)
    apart = other._replace(anti_affinity=(PodAffinityTerm("kubernetes.io/hostname", LabelSelector({"app": "x"})),))

    made = node_request(queued("llm", ready=(one, apart, third)), "check")

    assert made.groups == ((one.name, 2), (other.name, 1))


def test_the_number_of_requests_is_limited() -> None:
    assert len(due(NodeRequests("check"), *(waiting(f"g{at}") for at in range(MAX_OPEN + 5)))) == MAX_OPEN


def test_one_namespace_does_not_keep_others_from_being_requested() -> None:
    mine = [waiting(f"never-{at}") for at in range(2 * MAX_OPEN)]
    theirs = waiting("needed")
    theirs = theirs._replace(gang=theirs.gang._replace(name=GangName("other", "needed")))

    found = due(NodeRequests("check"), *mine, theirs)

    assert [each.gang.name for each in found][:3] == ["never-0", "needed", "never-1"]
    assert len(found) == MAX_OPEN


def test_a_request_has_a_pod_of_each_kind_and_a_stable_name() -> None:
    ready = [each._replace(request=request(8 if at else 4, each.name)) for at, each in enumerate(members(3))]
    found = node_request(queued("jobset.train", ready=tuple(ready)), "check")

    assert found.groups == (("w-0", 1), ("w-1", 2))
    assert found == node_request(queued("jobset.train", ready=tuple(ready)), "check")
    assert found.name.startswith("jobset-train-")
    others = node_request(queued("jobset.train", ready=tuple(each._replace(uid=each.uid + "x") for each in ready)), "c")
    assert others.name != found.name
