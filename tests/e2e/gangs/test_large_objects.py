"""Hundreds of pods of a megabyte do not take the memory of the programs that list them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.api_client import ApiError
from tests.api_objects import Object, pod
from tests.e2e.attacks import FIGURE
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.members import Asked, create, gang, gated, member, wait_until_whole
from tests.e2e.gangs.running import entries
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import Extender, Served
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
PODS = 400
MEBI = 2**20
SPARE = "example.com/spare"  # annotation
MOST = 512 * MEBI  # a quarter of the limit in the manifests; before, more than 829 MiB


def large_pod(name: str) -> Object:
    made = pod(name, 1, schedulingGates=[{"name": "example.com/never"}])
    made["spec"]["containers"][0]["args"] = ["x" * 1_000_000]
    return made


@contextmanager
def peaks(programs: tuple[Served, ...]) -> Iterator[list[int]]:
    """Measure the most resident memory of each program, also after a restart."""
    found, ended = [0] * len(programs), threading.Event()

    def sample() -> None:
        while not ended.wait(0.02):
            for at, each in enumerate(programs):
                try:
                    found[at] = max(found[at], psutil.Process(each.server.pid).memory_info().rss)
                except psutil.Error:
                    continue

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def test_programs_start_beside_hundreds_of_large_pods(  # noqa: PLR0917  fixtures
    cluster: Cluster,
    gpu_nodes: Fleet,
    agents_of: StartAgents,
    served: None,
    gputopo_scheduler: Extender,
    planner: StartPlanner,
    record_property: Callable[[str, object], None],
) -> None:
    assert gpu_nodes
    assert served is None
    agents_of()
    programs = (gputopo_scheduler, planner())
    cluster.create_namespace("tenant")
    for number in range(PODS):
        cluster.api.create(cluster.pods(namespace="tenant"), large_pod(f"large-{number}"))

    with peaks(programs) as most:
        for each in programs:
            each.restart()
            each.wait_until_ready()
        create(cluster, *gang("after", Asked(2, 1)))
        wait_until_whole(cluster, "after", 2, 120)

    assert max(most) < MOST
    record_property(FIGURE, " and ".join(f"{each / MEBI:.0f} MiB" for each in most) + " at most")


def test_gated_pods_that_cannot_grow_delay_no_other_gang(
    cluster: Cluster,
    gpu_nodes: Fleet,
    agents_of: StartAgents,
    served: None,
    gputopo_scheduler: Extender,
    planner: StartPlanner,
) -> None:
    """Etcd refuses the planner's patch of each of them: the API server answers 500, and is not unavailable."""
    assert gpu_nodes
    assert served is None
    assert gputopo_scheduler.ready
    agents_of()
    running = planner()
    for namespace in ("tenant-a", "tenant-b"):
        cluster.create_namespace(namespace)
    length = full_length(cluster)

    for namespace in ("tenant-a", "tenant-b"):
        for number in range(2):
            cluster.api.create(cluster.pods(namespace=namespace), full_member(number, length))
    wait_for(
        lambda: running.count("gputopo_planner_writes_total", kind="UngateAndPin", outcome="refused") >= 4,
        "the patches to be refused",
    )
    create(cluster, *gang("other", Asked(2, 1)))
    wait_until_whole(cluster, "other", 2)

    # The capacity that it holds comes free: it is rolled back.
    wait_for(lambda: not entries(cluster), "the rollback of the gangs of the tenants", 120)
    running.server.stop()  # it would place them once they have become smaller
    for namespace in ("tenant-a", "tenant-b"):
        for each in cluster.api.items(cluster.pods(namespace=namespace)):
            assert gated(each)
            delete_full(cluster, cluster.pods(each["metadata"]["name"], namespace))


def full_member(number: int, length: int) -> Object:
    """Return a gated member of a gang, with an argument of this length."""
    made = member("full", number, Asked(2, 1))
    made["spec"]["containers"][0]["args"] = ["x" * length]
    made["metadata"]["annotations"][SPARE] = "x" * 4_000
    return made


def delete_full(cluster: Cluster, path: str) -> None:
    """Delete a member that cannot grow: the API server writes it before it deletes it, perhaps as it was before."""
    cluster.api.patch(path, {"metadata": {"annotations": {SPARE: None}}})

    def is_deleted() -> bool:
        try:
            cluster.api.delete(path)
        except ApiError as error:
            return error.status == 404
        return True

    wait_for(is_deleted, f"the deletion of {path}")


def full_length(cluster: Cluster) -> int:
    """Return the longest argument with which etcd still stores the member."""
    most, too_long = 1_500_000, 1_600_000
    path = cluster.pods(namespace="tenant-a")
    while too_long - most > 16:
        length = (most + too_long) // 2
        try:
            cluster.api.create(path, full_member(0, length))
        except ApiError:
            too_long = length
        else:
            most = length
            delete_full(cluster, f"{path}/full-0")
    return most
