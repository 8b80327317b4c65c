"""Extenders that are killed, API servers that restart, watches that are cut, and observations that are old."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from gputopo.kube.heartbeats import HEARTBEAT_NAMESPACE
from gputopo.kube.rbac import LEASES
from gputopo.labels.reasons import Reason
from tests.api_objects import Object
from tests.e2e.agent.forwarder import forwarder
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.fixtures import StartScheduler
from tests.e2e.scheduler import real_state
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import (
    PATIENCE_S,
    Extender,
    all_placed,
    condition,
    gpu_pod,
    placed,
    prepare,
    refused,
    running,
    started,
)
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import islands_4_4

pytestmark = pytest.mark.e2e
REQUIRED = {"island": "required"}
NODE_GPUS = "/apis/gputopo.io/v1alpha1/nodegpus"


def islands(fleet: Fleet, count: int) -> None:
    """Nodes of two islands of 4."""
    fleet.add(*(NodeSpec(name=f"gpu-{number}", shape=islands_4_4()) for number in range(count)))


def stir(cluster: Cluster) -> bool:
    """Have something happen to a node, a pod and a ``NodeGpus``: bookmarks come once a minute. True."""
    now = {"now": str(time.monotonic())}
    for path in ("/api/v1/nodes/gpu-0", cluster.pods("early"), f"{NODE_GPUS}/gpu-0"):
        cluster.api.patch(path, {"metadata": {"annotations": now}})
    time.sleep(0.5)
    return True


def call() -> Object:
    """Return a filter request as kube-scheduler sends it."""
    wanted = gpu_pod("asked", 4, REQUIRED)
    wanted["metadata"] |= {"uid": "1", "namespace": "default"}
    return {"Pod": wanted, "Nodes": None, "NodeNames": ["gpu-0"]}


def whole_islands(cluster: Cluster, fleet: Fleet) -> int:
    """Return the number of running pods; fails unless each has an island of its own."""
    pods = wait_for(lambda: _if_all_run(cluster.api.items(cluster.pods())), "all pods to run")
    held = real_state.held(fleet, pods)
    assert real_state.all_in_one_island(fleet, held)
    return sum(map(len, held.values()))


def _if_all_run(pods: list[Object]) -> list[Object] | None:
    return pods if all(each["status"]["phase"] == "Running" for each in pods) else None


def test_an_extender_that_is_killed_under_traffic_loses_no_pod_and_breaks_no_island(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, gputopo_scheduler: Extender
) -> None:
    """The extender restarts without state, between filter and bind of some pod."""
    islands(fleet, 12)
    agents_of()

    def arrive(number: int) -> None:
        cluster.create_pod(gpu_pod(f"train-{number}", 4, REQUIRED))
        time.sleep(0.1)

    with ThreadPoolExecutor(1) as pool:
        arriving = [pool.submit(arrive, number) for number in range(24)]
        for at in (4, 10, 16):
            arriving[at].result()
            gputopo_scheduler.restart()
        for each in arriving:
            each.result()
    all_placed(cluster)

    assert whole_islands(cluster, fleet) == 24
    gputopo_scheduler.wait_until_ready()
    assert gputopo_scheduler.count("gputopo_required_shapes_violated_total") == 0


def test_calls_are_refused_until_the_cluster_is_known(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, scheduler: StartScheduler
) -> None:
    islands(fleet, 1)
    prepare(cluster)
    agents_of()
    with forwarder(cluster.url) as road:
        road.take_down()
        with running(cluster, server_url=f"https://127.0.0.1:{road.port}") as extender:
            extender.server.wait_until(lambda: not extender.ready)
            assert extender.call("filter", call())[0] == 503
            assert b"has not yet listed all nodes, pods, nodegpus" in extender.call("filter", call())[1]
            scheduler(extender.configuration())
            cluster.create_pod(gpu_pod("early", 4, REQUIRED))
            output = cluster.wait_for_pod("early", condition)
            assert condition(output)["reason"] == "SchedulerError"
            assert "503" in condition(output)["message"]

            road.bring_up()
            wait_for(lambda: stir(cluster) and extender.ready, "the extender", PATIENCE_S)
            started(cluster, "early")
            assert whole_islands(cluster, fleet) == 1


def test_events_during_a_broken_watch_are_known_after_it_reconnects(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, scheduler: StartScheduler
) -> None:
    """Pods that another scheduler binds meanwhile are on no watch that breaks."""
    islands(fleet, 2)
    prepare(cluster)
    agents = agents_of()
    with (
        forwarder(cluster.url) as road,
        running(cluster, server_url=f"https://127.0.0.1:{road.port}") as extender,
    ):
        extender.wait_until_ready()
        road.take_down()
        for name in ("a", "b"):
            others = gpu_pod(name, 2, nodeName="gpu-0")
            cluster.create_pod(others)
            started(cluster, name)
        fleet.finish(cluster.pod("a"))
        agents.catch_up()
        road.bring_up()
        known = "gputopo_gpu_pods"
        wait_for(lambda: extender.count(known) == 1, "the pod that is left", 60.0)
        scheduler(extender.configuration())
        for number in range(3):
            cluster.create_pod(gpu_pod(f"train-{number}", 4, REQUIRED))
        for number in range(3):
            started(cluster, f"train-{number}")
    held = real_state.held(fleet, cluster.api.items(cluster.pods()))
    assert real_state.all_in_one_island(fleet, held)


def test_an_api_server_that_restarts_under_traffic_loses_no_pod_and_breaks_no_island(
    cluster: Cluster, fleet: Fleet, gputopo_scheduler: Extender, agents_of: StartAgents
) -> None:
    islands(fleet, 8)
    agents = agents_of()
    for number in range(8):
        cluster.create_pod(gpu_pod(f"before-{number}", 4, REQUIRED))
    agents.catch_up()

    with agents.silenced():
        cluster.plane.restart_apiserver()
    for number in range(8):
        cluster.create_pod(gpu_pod(f"after-{number}", 4, REQUIRED))
    all_placed(cluster)

    assert whole_islands(cluster, fleet) == 16
    assert gputopo_scheduler.count("gputopo_required_shapes_violated_total") == 0


def test_required_shapes_are_refused_where_the_observation_is_old_and_other_pods_are_not(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, gputopo_scheduler: Extender
) -> None:
    islands(fleet, 2)
    agents_of()
    for node in fleet.names:
        cluster.api.patch(f"{NODE_GPUS}/{node}", {"observedAt": "2026-01-01T00:00:00Z"})
    wait_for(lambda: gputopo_scheduler.count("gputopo_table_stale_nodes") == 2, "two stale nodes")

    cluster.create_pod(gpu_pod("gang", 4, REQUIRED))
    cluster.create_pod(gpu_pod("plain", 2))

    said = refused(cluster, "gang")
    assert said.startswith(f"0/2 nodes are available: 2 {Reason.UNKNOWN_TOPOLOGY.value}. "), said
    assert placed(cluster, "plain")["spec"]["nodeName"] in fleet.names

    for node in fleet.names:
        cluster.api.patch(f"{NODE_GPUS}/{node}", {"observedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
    wait_for(lambda: gputopo_scheduler.count("gputopo_table_stale_nodes") == 0, "no stale node")
    cluster.api.patch(cluster.pods("gang"), {"metadata": {"annotations": {"anybody": "may kick a pod"}}})
    started(cluster, "gang")
    assert whole_islands(cluster, fleet) == 2


def test_a_node_is_refused_while_its_agent_does_not_renew_its_lease(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, gputopo_scheduler: Extender
) -> None:
    """The content has not changed for days; only the Lease says that the agent runs."""
    islands(fleet, 2)
    agents_of()
    written = "2026-01-01T00:00:00Z"
    cluster.create_namespace(HEARTBEAT_NAMESPACE)

    def renew(node: str, ago_s: float) -> None:
        at = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(time.time() - ago_s))
        body = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": {"name": node}}
        spec = {"holderIdentity": written, "renewTime": at}
        query = {"fieldManager": "test", "force": "true"}
        cluster.api.patch(LEASES.path(node, HEARTBEAT_NAMESPACE), body | {"spec": spec}, "apply", **query)

    for node in fleet.names:
        cluster.api.patch(f"{NODE_GPUS}/{node}", {"observedAt": written})
    wait_for(lambda: gputopo_scheduler.count("gputopo_table_stale_nodes") == 2, "two stale nodes")
    renew("gpu-0", 60)
    renew("gpu-1", 3600)
    wait_for(lambda: gputopo_scheduler.count("gputopo_table_stale_nodes") == 1, "one stale node")

    for number in range(3):
        cluster.create_pod(gpu_pod(f"gang-{number}", 4, REQUIRED))
    wait_for(lambda: sum("nodeName" in each["spec"] for each in cluster.api.items(cluster.pods())) == 2, "two pods")
    assert {each["spec"].get("nodeName", "gpu-0") for each in cluster.api.items(cluster.pods())} == {"gpu-0"}

    renew("gpu-1", 0)
    wait_for(lambda: gputopo_scheduler.count("gputopo_table_stale_nodes") == 0, "no stale node")
    for each in cluster.api.items(cluster.pods()):
        cluster.api.patch(cluster.pods(each["metadata"]["name"]), {"metadata": {"annotations": {"kick": "1"}}})
    all_placed(cluster)
    assert whole_islands(cluster, fleet) == 3
