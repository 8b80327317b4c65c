"""A tenant's gang or Job cannot misuse capacity holds to keep other tenants' gangs waiting."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from gputopo.kube.rbac import RESERVATIONS
from gputopo.timestamps import format_timestamp
from tests.api_objects import Object
from tests.e2e.attacks import FIGURE
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.holds import LARGE, nodes
from tests.e2e.gangs.members import BATCH, Asked, create, gang, member, node_of, of, unschedulable, wait_until_whole
from tests.e2e.gangs.running import Planner
from tests.e2e.gangs.ungated_pods import Kind, UngatedPodLoad
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import gpu_pod, started
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
Record = Callable[[str, object], None]
EVIL = "evil"
MIXED = ("--settle", "1s", "--patience", "1s")
DAY_S = 86_400


@pytest.fixture(autouse=True)
def _namespace(cluster: Cluster) -> None:
    cluster.create_namespace(EVIL)


def at(node: str) -> Object:
    """Return the node selector of one node."""
    return {"nodeSelector": {"kubernetes.io/hostname": node}}


def create_evil(cluster: Cluster, *pods: Object) -> None:
    """Create pods in the namespace of the attacker."""
    cluster.api.create_all([(cluster.pods(namespace=EVIL), each) for each in pods])


def run_evil(cluster: Cluster, *pods: Object) -> None:
    """Create pods in the namespace of the attacker, and wait until they are bound."""
    create_evil(cluster, *pods)
    names = [each["metadata"]["name"] for each in pods]
    for name in names:
        wait_for(lambda name=name: node_of(cluster.api.get(cluster.pods(name, EVIL))), f"pod {name}", 60.0)  # type: ignore[misc]


def held_nodes(cluster: Cluster) -> dict[str, list[str]]:
    """Return the nodes of the capacity holds of all namespaces, by gang."""
    holds = [each for each in cluster.api.items(RESERVATIONS.path()) if each.get("status", {}).get("state") == "Held"]
    return {each["spec"]["gang"]: sorted(one["node"] for one in each["spec"]["held"]) for each in holds}


def has_no_hold(planner: Planner, name: str) -> bool:
    """Return whether the planner says why a gang holds no capacity."""
    gangs = json.loads(planner.text("/gangs"))["gangs"]
    return any(each["name"] == name and "holds no capacity" in each["reason"] for each in gangs)


def seconds_until_whole(cluster: Cluster, name: str, asked: Asked, timeout_s: float, **spec: Object) -> float:
    """Create a gang, and return how long it waits for its nodes."""
    before = time.monotonic()
    create(cluster, *gang(name, asked, **spec))
    wait_until_whole(cluster, name, asked.size, timeout_s)
    return time.monotonic() - before


def delete(cluster: Cluster, *pods: Object) -> None:
    for each in pods:
        cluster.api.delete(cluster.pods(each["metadata"]["name"]))


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_few_gpus_of_each_node_keep_no_whole_nodes_from_others(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, record_property: Record
) -> None:
    nodes(fleet, gpu_0={}, gpu_1={}, gpu_2={}, gpu_3={})
    agents_of()
    running = planner(*MIXED)
    seconds_until_whole(cluster, "first", Asked(2, 8), 120.0)  # from now on, the extender acknowledges plans at once
    delete(cluster, *of(cluster, "first"))
    calm_s = seconds_until_whole(cluster, "calm", Asked(2, 8), 60.0)
    delete(cluster, *of(cluster, "calm"))
    run_evil(cluster, gpu_pod("own", 8, **at("gpu-3")))
    create_evil(cluster, *(member("sparse", number, Asked(4, 1), **at(f"gpu-{number}")) for number in range(4)))
    wait_for(lambda: has_no_hold(running, "sparse") or held_nodes(cluster), "a decision about the hold", 60.0)

    attacked_s = seconds_until_whole(cluster, "whole", Asked(2, 8), 60.0)
    cluster.create_pod(gpu_pod("single", 8))
    started(cluster, "single")

    record_property(FIGURE, f"2 x 8 GPUs start after {attacked_s:.1f} s, calm {calm_s:.1f} s")


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_a_gang_that_waits_for_a_pod_of_its_own_tenant_keeps_no_other_tenant_from_a_hold(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, record_property: Record
) -> None:
    nodes(fleet, gpu_0=LARGE, gpu_1=LARGE, gpu_2={})
    agents_of()
    planner(*MIXED)
    seconds_until_whole(cluster, "first", Asked(2, 8), 120.0)
    delete(cluster, *of(cluster, "first"))
    with UngatedPodLoad(cluster, 8, Kind(20, ((4, {}),), LARGE)) as others:
        wait_for(lambda: others.count >= 8, "a stream of pods")
        calm_s = seconds_until_whole(cluster, "calm", Asked(2, 8), 120.0, nodeSelector=LARGE)
        delete(cluster, *of(cluster, "calm"))
        run_evil(cluster, gpu_pod("own", 8, **at("gpu-2")))
        create_evil(cluster, *gang("bogus", Asked(1, 8), **at("gpu-2")))
        wait_for(lambda: held_nodes(cluster).get("bogus") == ["gpu-2"], "the hold of the attacker", 60.0)

        attacked_s = seconds_until_whole(cluster, "big", Asked(2, 8), 120.0, nodeSelector=LARGE)

    assert held_nodes(cluster) == {"bogus": ["gpu-2"]}
    record_property(FIGURE, f"2 x 8 GPUs behind a stream of pods start after {attacked_s:.1f} s, calm {calm_s:.1f} s")


def job_pod(cluster: Cluster, name: str, node: str, deadline_s: int) -> Object:
    """Return a pod of a new Job with a deadline."""
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "pause"}]}}
    path = f"{BATCH}/{EVIL}/jobs"
    job = cluster.api.create(
        path, {"metadata": {"name": name}, "spec": {"activeDeadlineSeconds": deadline_s, "template": template}}
    )
    cluster.api.patch(f"{path}/{name}/status", {"status": {"startTime": format_timestamp(time.time())}})
    made = gpu_pod(name, 8, **at(node))
    uid = job["metadata"]["uid"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}
    made["metadata"]["ownerReferences"] = [owner]
    return made


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_a_hold_leaves_nodes_whose_jobs_get_a_later_deadline(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, record_property: Record
) -> None:
    nodes(fleet, gpu_0={}, gpu_1={}, gpu_2={}, gpu_3={})
    agents_of()
    planner(*MIXED)
    seconds_until_whole(cluster, "first", Asked(2, 8), 120.0)
    delete(cluster, *of(cluster, "first"))
    for node in ("gpu-0", "gpu-1"):
        cluster.create_pod(gpu_pod(f"on-{node}", 8, **at(node)))
        started(cluster, f"on-{node}")
    run_evil(cluster, *(job_pod(cluster, f"job-{node}", node, 60) for node in ("gpu-2", "gpu-3")))
    create(cluster, *gang("big", Asked(2, 8)))
    wait_for(lambda: held_nodes(cluster).get("big") == ["gpu-2", "gpu-3"], "a hold on the nodes of the Jobs", 60.0)

    for node in ("gpu-2", "gpu-3"):
        raised = {"spec": {"activeDeadlineSeconds": DAY_S}}
        cluster.api.patch(f"{BATCH}/{EVIL}/jobs/job-{node}", raised)
    before = time.monotonic()
    cluster.create_pod(gpu_pod("next", 8))
    wait_for(lambda: held_nodes(cluster).get("big") == ["gpu-0", "gpu-1"], "the hold on other nodes", 60.0)
    moved_s = time.monotonic() - before
    for node in ("gpu-0", "gpu-1"):
        cluster.api.delete(cluster.pods(f"on-{node}"))
        wait_for(lambda: unschedulable(cluster.pod("next")), "a pod of the same priority to be refused")
    wait_until_whole(cluster, "big", 2)

    assert {node_of(each) for each in of(cluster, "big")} == {"gpu-0", "gpu-1"}
    record_property(FIGURE, f"the hold moves after {moved_s:.1f} s, and its gang starts there")
