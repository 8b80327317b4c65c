"""A tenant cannot protect its pods for ever, nor keep pods of others from being evicted for a critical gang."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gputopo.timestamps import format_timestamp, parse_timestamp
from tests.e2e.attacks import FIGURE
from tests.e2e.background import ClusterWork
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.holds import nodes
from tests.e2e.gangs.members import Asked, create, gang, wait_until_whole
from tests.e2e.gangs.preempting import CHEAP, CRITICAL, create_classes, on_node, options, running_pods
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import gpu_pod, started
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}
YEAR_S = 31_536_000
INVENTED = {"apiVersion": "example.com/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}


@pytest.fixture(autouse=True)
def _priority_classes(cluster: Cluster) -> None:
    create_classes(cluster)


def never_starts(cluster: Cluster) -> None:
    """The gang of the pod has a member that never starts."""
    on_node(cluster, "victim", "gpu-0", {"gang": "tricky"})
    member = gpu_pod("never-starts", 0, {"gang": "tricky"})
    member["spec"]["schedulerName"] = "none"
    cluster.create_pod(member)


def invented_owner(cluster: Cluster) -> None:
    """The pod says that a DaemonSet, of no known API group, creates it again at once."""
    on_node(cluster, "victim", "gpu-0")
    cluster.api.patch(cluster.pods("victim"), {"metadata": {"ownerReferences": [INVENTED]}})


def important_member(cluster: Cluster) -> None:
    """The gang of the pod has a member without GPUs of a high priority."""
    on_node(cluster, "victim", "gpu-0", {"gang": "tricky"})
    at = {"kubernetes.io/hostname": "other"}
    cluster.create_pod(gpu_pod("launcher", 0, {"gang": "tricky"}, priorityClassName=CRITICAL, nodeSelector=at))
    started(cluster, "launcher")


@pytest.mark.parametrize("trick", [never_starts, invented_owner, important_member])
@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_tricks_of_an_owner_protect_no_pod(
    cluster: Cluster,
    fleet: Fleet,
    agents_of: StartAgents,
    planner: StartPlanner,
    tmp_path: Path,
    trick: Callable[[Cluster], None],
) -> None:
    nodes(fleet, gpu_0={}, other={})
    agents_of()
    trick(cluster)
    on_node(cluster, "other", "other", {"preemptible": "never"})
    planner(*options(tmp_path))

    create(cluster, *gang("urgent", Asked(1, 8), priorityClassName=CRITICAL))

    wait_until_whole(cluster, "urgent", 1, 180)
    assert "victim" not in running_pods(cluster)
    assert "other" in running_pods(cluster)


def long_grace_period(cluster: Cluster) -> None:
    """The pod may end a year after its eviction."""
    on_node(cluster, "victim", "gpu-0", terminationGracePeriodSeconds=YEAR_S)


def slow_deletion(cluster: Cluster) -> None:
    """The owner has deleted the pod, with another grace period than its own."""
    on_node(cluster, "victim", "gpu-0")
    cluster.api.request("DELETE", cluster.pods("victim"), {"gracePeriodSeconds": YEAR_S})


def gang_with_long_grace_period(cluster: Cluster) -> None:
    """A member without GPUs may end a year after its eviction."""
    on_node(cluster, "victim", "gpu-0", {"gang": "tricky"})
    where = {"kubernetes.io/hostname": "gpu-0"}
    cluster.create_pod(
        gpu_pod("launcher", 0, {"gang": "tricky"}, nodeSelector=where, terminationGracePeriodSeconds=YEAR_S)
    )
    started(cluster, "launcher")


@pytest.mark.parametrize("trick", [long_grace_period, slow_deletion, gang_with_long_grace_period])
@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_an_owner_chooses_no_grace_period_above_the_limit_of_the_policy(
    cluster: Cluster,
    fleet: Fleet,
    agents_of: StartAgents,
    planner: StartPlanner,
    tmp_path: Path,
    trick: Callable[[Cluster], None],
) -> None:
    nodes(fleet, gpu_0={}, other={})
    agents_of()
    on_node(cluster, "other", "other", {"preemptible": "never"})
    with FullGracePeriods(cluster, fleet):
        trick(cluster)
        planner(*options(tmp_path, maxGrace="5s"))

        create(cluster, *gang("urgent", Asked(1, 8), priorityClassName=CRITICAL))

        wait_until_whole(cluster, "urgent", 1, 180)
    assert running_pods(cluster) == {"other", "urgent-0"}


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_one_evicted_pod_of_a_controller_does_not_protect_the_others(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path
) -> None:
    nodes(fleet, gpu_0={}, gpu_1={})
    agents_of()
    for node in ("gpu-0", "gpu-1"):
        on_node(cluster, f"on-{node}", node)
        cluster.api.patch(cluster.pods(f"on-{node}"), {"metadata": {"ownerReferences": [OWNER]}})
        an_hour_ago = {"status": {"startTime": format_timestamp(time.time() - 3_600.0)}}
        cluster.api.patch(f"{cluster.pods(f'on-{node}')}/status", an_hour_ago)
    planner(*options(tmp_path))

    for name in ("first", "second"):
        create(cluster, *gang(name, Asked(1, 8), priorityClassName=CRITICAL))
        wait_until_whole(cluster, name, 1, 180)

    assert running_pods(cluster) == {"first-0", "second-0"}


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_a_victim_that_ends_slowly_delays_the_next_preemption_by_a_minute(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path
) -> None:
    nodes(fleet, gpu_0={}, gpu_1={})
    agents_of()
    on_node(cluster, "slow", "gpu-0", CHEAP, terminationGracePeriodSeconds=1_800)
    on_node(cluster, "fast", "gpu-1", {"restart-time": "1h"})
    fleet.keep_running(slow := cluster.api.get(cluster.pods("slow")))
    planner(*options(tmp_path))
    create(cluster, *gang("first", Asked(1, 8), priorityClassName=CRITICAL))
    wait_for(lambda: "slow" not in running_pods(cluster), "the eviction of the first pod", 60)

    create(cluster, *gang("second", Asked(1, 8), priorityClassName=CRITICAL))
    wait_until_whole(cluster, "second", 1, 180)

    fleet.let_end(slow)
    wait_until_whole(cluster, "first", 1, 60)


class FullGracePeriods(ClusterWork):
    """Containers that ignore SIGTERM: each pod ends when its grace period is over."""

    def __init__(self, cluster: Cluster, fleet: Fleet) -> None:
        super().__init__("grace periods", cluster)
        self._path, self._fleet = cluster.pods(), fleet

    def _turn(self) -> None:
        for each in self._api.items(self._path):
            gone_by = parse_timestamp(each["metadata"].get("deletionTimestamp"))
            if "nodeName" in each["spec"] and gone_by is None:
                self._fleet.keep_running(each)
            elif gone_by is not None and gone_by <= time.time():
                self._fleet.let_end(each)


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_a_pod_that_never_ends_stops_no_eviction(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path
) -> None:
    nodes(fleet, gpu_1={}, gpu_2={})
    agents_of()
    on_node(cluster, "endless", "gpu-1", terminationGracePeriodSeconds=1_000_000)
    endless = cluster.api.get(cluster.pods("endless"))
    fleet.keep_running(endless)
    cluster.api.request("DELETE", cluster.pods("endless"), {"gracePeriodSeconds": 1_000_000})
    on_node(cluster, "victim", "gpu-2", {"restart-time": "1h"})
    planner(*options(tmp_path))

    create(cluster, *gang("urgent", Asked(1, 8), priorityClassName=CRITICAL))

    wait_until_whole(cluster, "urgent", 1, 180)
    fleet.let_end(endless)
    assert "victim" not in running_pods(cluster)


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_gangs_deleted_after_evictions_for_them_evict_no_more_pods_with_new_names(
    cluster: Cluster,
    fleet: Fleet,
    agents_of: StartAgents,
    planner: StartPlanner,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    nodes(fleet, gpu_0={}, gpu_1={})
    agents_of()
    for at in range(2):
        on_node(cluster, f"old-{at}", f"gpu-{at}", CHEAP, terminationGracePeriodSeconds=60)
        fleet.keep_running(cluster.pod(f"old-{at}"))
    planner(*options(tmp_path))
    cluster.create_namespace("killer")
    paths = cluster.pods(namespace="killer")
    (first,) = gang("kill-0", Asked(1, 8), priorityClassName=CRITICAL)
    cluster.api.create(paths, first)
    wait_for(lambda: len(running_pods(cluster)) == 1, "an eviction", 60)
    cluster.api.delete(f"{paths}/kill-0-0")
    (evicted,) = {"old-0", "old-1"} - running_pods(cluster)
    fleet.let_end(cluster.pod(evicted))
    on_node(cluster, "new", f"gpu-{evicted[-1]}", CHEAP)

    (second,) = gang("kill-1", Asked(1, 8), priorityClassName=CRITICAL)
    cluster.api.create(paths, second)
    time.sleep(15)
    left = running_pods(cluster)
    fleet.let_end(cluster.pod(next(iter(left - {"new"}))))
    create(cluster, *gang("urgent", Asked(1, 8), priorityClassName=CRITICAL))
    began = time.monotonic()
    wait_until_whole(cluster, "urgent", 1, 60)

    assert left == ({"old-0", "old-1", "new"} - {evicted})
    record_property(
        FIGURE, f"one pod is evicted; a gang of another namespace starts after {time.monotonic() - began:.0f} s"
    )
