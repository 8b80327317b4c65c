"""Hundreds of pods of a megabyte do not take the memory of the programs that list them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.api_objects import Object, pod
from tests.e2e.attacks import FIGURE
from tests.e2e.cluster import Cluster
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.members import Asked, create, gang, wait_until_whole
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import Extender, Served
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
PODS = 400
MEBI = 2**20
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
