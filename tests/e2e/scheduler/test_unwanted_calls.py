"""Unwanted calls do not happen: calls for pods without GPUs, and endless retries of one pod."""

from __future__ import annotations

import time

import pytest

from tests.api_objects import Object
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import Extender, condition, gpu_pod, refused, started, writes
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import islands_4_4, pcie_8

pytestmark = pytest.mark.e2e
WATCHED_S = 10.0


def test_pods_without_gpus_never_reach_us(cluster: Cluster, fleet: Fleet, gputopo_scheduler: Extender) -> None:
    fleet.add(NodeSpec(name="gpu-0", shape=islands_4_4()))
    for number in range(20):
        cluster.create_pod(gpu_pod(f"web-{number}", 0))
    for number in range(20):
        started(cluster, f"web-{number}")

    assert gputopo_scheduler.count("gputopo_extender_calls_total") == 0


def test_pods_that_cannot_be_placed_are_told_why_and_left_in_peace(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, gputopo_scheduler: Extender
) -> None:
    """Each in words that never change, so that writing them down wakes nobody; heartbeats of agents wake nobody."""
    fleet.add(NodeSpec(name="gpu-0", shape=pcie_8()), NodeSpec(name="gpu-1", shape=islands_4_4()))
    agents_of()
    cluster.create_pod(gpu_pod("holder", 3))
    started(cluster, "holder")
    wishes = [
        {"interconnect": "nvswitch"},
        {"min-bandwidth": "5000"},
        {"accelerator.sched.io/gpu-model": "H100"},
        {"min-vram": "900Gi"},
        {"island": "reqired"},
    ]
    asked = [gpu_pod(f"gang-{at}", 8 if at % 2 else 5, wishes[at % len(wishes)]) for at in range(40)]
    cluster.api.create_all([(cluster.pods(), each) for each in asked])
    names = [each["metadata"]["name"] for each in asked]
    before = {name: refused(cluster, name) for name in names}
    _calm(gputopo_scheduler)
    calls, written = gputopo_scheduler.filter_calls, _statuses(cluster)
    versions = {name: cluster.pod(name)["metadata"]["resourceVersion"] for name in names}

    beats = 0
    deadline = time.monotonic() + WATCHED_S
    while time.monotonic() < deadline:
        for node in fleet.names:
            cluster.api.patch(f"/apis/gputopo.io/v1alpha1/nodegpus/{node}", {"observedAt": _now()})
            beats += 1
        time.sleep(0.5)

    assert beats >= 20
    assert gputopo_scheduler.filter_calls - calls == 0
    assert _statuses(cluster) == written
    assert {name: cluster.pod(name)["metadata"]["resourceVersion"] for name in names} == versions

    # Anything about an assigned pod has all of them asked about again: once each, and nothing is written.
    cluster.api.patch(cluster.pods("holder"), {"metadata": {"labels": {"any": "thing"}}})
    wait_for(lambda: gputopo_scheduler.filter_calls > calls, "the calls")
    _calm(gputopo_scheduler)
    assert 0 < gputopo_scheduler.filter_calls - calls <= 2 * len(names)
    assert {name: str(condition(cluster.pod(name))["message"]) for name in names} == before
    assert _statuses(cluster) == written


@pytest.mark.usefixtures("gputopo_scheduler")
def test_a_malformed_wish_is_quoted_in_the_event_that_describe_shows(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents
) -> None:
    fleet.add(NodeSpec(name="gpu-0", shape=islands_4_4()), NodeSpec(name="gpu-1", shape=islands_4_4()))
    agents_of()
    cluster.create_pod(gpu_pod("train", 4, {"island": "reqired"}))

    said = refused(cluster, "train")

    reason = "the pod's request is malformed: gputopo.io/island: 'reqired' is not required, preferred or ignore"
    assert said.startswith(f"0/2 nodes are available: 2 {reason}. "), said
    about = "involvedObject.name=train,reason=FailedScheduling"
    assert {each["message"] for each in wait_for(lambda: _events(cluster, about), "the event")} == {said}


def test_an_extender_writes_nothing_but_events(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, gputopo_scheduler: Extender
) -> None:
    fleet.add(NodeSpec(name="gpu-0", shape=islands_4_4()))
    agents_of()
    for number in range(2):
        cluster.create_pod(gpu_pod(f"train-{number}", 4, {"island": "required"}))
        started(cluster, f"train-{number}")

    assert gputopo_scheduler.filter_calls == 2
    assert writes(cluster) == []


def _events(cluster: Cluster, selector: str) -> list[Object]:
    return cluster.api.items(f"/api/v1/namespaces/{cluster.namespace}/events", fieldSelector=selector)


def _calm(extender: Extender) -> None:
    """Wait until a second has passed without a call."""
    calls, since = extender.filter_calls, time.monotonic()
    while time.monotonic() - since < 1.0:
        time.sleep(0.1)
        if (now := extender.filter_calls) != calls:
            calls, since = now, time.monotonic()


def _statuses(cluster: Cluster) -> int:
    """Return the number of the scheduler's writes to the status of a pod."""
    return sum(each.resource == "pods/status" and each.user == "system:kube-scheduler" for each in cluster.writes())


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
