"""The pods of the nodes of a preemption as they are read before the first eviction, from a real HTTP server."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gputopo.crd.reservations import PlannedEviction, PlannedMember
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.rbac import PLANNER
from scheduler_core.planner.commit.actions import CheckBudgets
from scheduler_core.planner.leader.resource_fit_reads import find_shortages
from tests.api_server import Answer, Asked, api_server

Json = dict[str, Any]
VICTIMS = (
    PlannedEviction("a", "other", "a", "n1", "other/a", 8),
    PlannedEviction("b", "other", "b", "n2", "other/b", 8),
)
NODES = {
    name: {"metadata": {"name": name}, "status": {"allocatable": {"memory": "64Gi", "pods": "9"}}}
    for name in ("n1", "n2", "n4")
}


def pod(uid: str, memory: str) -> Json:
    container = {"name": "c", "resources": {"requests": {"memory": memory}}}
    return {"metadata": {"name": uid, "uid": uid, "namespace": "team"}, "spec": {"containers": [container]}}


class Found(NamedTuple):
    """Blocked units, the requests, and nodes that are short without evictions."""

    blocked: Json
    asked: list[Asked]
    short_nodes: frozenset[str]


def found_on(folder: Path, running: dict[str, list[Json]], members: int = 1, node: str = "n1") -> Found:
    """Return the result for so many members on a node. ``running``: pods by node."""
    gang = {f"w{at}": pod(f"w{at}", "8Gi") for at in range(members)}

    def answer(request: Asked) -> Answer:
        fields = request.query.get("fieldSelector", "")
        name = fields.rpartition("=")[2]
        if fields.startswith("metadata.name="):
            return Answer({"metadata": {}, "items": [NODES[name]] if name in NODES else []})
        if fields.startswith("spec.nodeName="):
            return Answer({"metadata": {}, "items": running.get(name, [])})
        last = request.path.rpartition("/")[2]
        if last == "pods":
            return Answer({"metadata": {}, "items": list(gang.values())})
        return Answer(gang[last])

    seats = tuple(PlannedMember(name, name, node) for name in gang)
    with api_server(answer) as server:
        kube = from_kubeconfig(PLANNER, server.kubeconfig(folder / "config"))
        try:
            action = CheckBudgets("hold", VICTIMS, True, "team", (*seats, PlannedMember("cpu", "cpu")))
            found = find_shortages(kube, action)
            return Found(found.blocked, server.asked, found.nodes)
        finally:
            kube.close()


def test_units_on_a_node_that_stays_too_full_are_not_evicted(tmp_path: Path) -> None:
    full = {"n1": [pod("a", "30Gi"), pod("dataloader", "60Gi")]}

    found, *_ = found_on(tmp_path, full)

    assert list(found) == ["other/a"]
    assert found["other/a"] == "node n1 would have 4Gi of memory left for members of the gang that request 8Gi"
    assert found_on(tmp_path, {"n1": [pod("a", "30Gi"), pod("dataloader", "50Gi")]})[0] == {}


def test_where_no_victim_is_on_the_full_node_no_unit_is_evicted(tmp_path: Path) -> None:
    found, *_ = found_on(tmp_path, {"n3": []}, node="n3")
    assert found == {}  # the node is gone: the next proof says so
    found, *_ = found_on(tmp_path, {"n1": [pod("x", "60Gi")]})
    assert list(found) == ["other/a"]


def test_a_short_node_without_evictions_is_named(tmp_path: Path) -> None:
    """Searches leave it out; the units on other nodes are not the reason."""
    elsewhere = {"n4": [pod("x", "60Gi")]}

    assert found_on(tmp_path, elsewhere, node="n4").short_nodes == {"n4"}
    assert found_on(tmp_path, {"n1": [pod("a", "30Gi"), pod("dataloader", "60Gi")]}).short_nodes == frozenset()


@pytest.mark.parametrize(("members", "requests"), [(2, 4), (20, 3)])
def test_many_members_are_read_as_a_list(tmp_path: Path, members: int, requests: int) -> None:
    _, asked, _ = found_on(tmp_path, {}, members)

    assert len(asked) == requests
