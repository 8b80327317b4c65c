"""Programs are killed at random, the API server restarts, a tenant attacks all the time: no promise is broken.

A minute stands for an hour: by default one minute; ``make chaos`` runs 24 and prints the table of docs/testing.md.
"""

from __future__ import annotations

import json
import os
import time
from functools import partial

import psutil
import pytest
import urllib3

from tests.e2e.chaos.faults import TENANT, Faults, Programs
from tests.e2e.chaos.reasons import Objects, nodes_of, untrue_gangs, untrue_pods
from tests.e2e.chaos.workload import Workload
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.conftest import Timed
from tests.e2e.fixtures import StartScheduler
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.invariant import broken, halves, violations, watched
from tests.e2e.gangs.members import GATES, Asked, create, gang, node_of
from tests.e2e.gangs.running import entries, reserved
from tests.e2e.process import Server
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import Extender, Served, gpu_pod
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
MINUTES = float(os.environ.get("GPUTOPO_E2E_CHAOS_MINUTES", "1"))
SEED = int(os.environ.get("GPUTOPO_E2E_CHAOS_SEED", "1"))
PAUSE_S = 3.0  # between faults
REASON_WITHIN_S = 120.0  # kube-scheduler tries a pod again after a back-off, and a killed extender waits half a minute
FAULTS_BETWEEN_CHECKS = 60
MOST_GROWTH = 1.3  # of memory, from a third of the run to its end; of runs of ten minutes and more


class Samples:
    """Memory and answer times of the programs, over the run."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self.mib: dict[str, list[float]] = {}
        self.health_s: list[float] = []
        self.reset_probes = 0

    def take(self) -> None:
        """Measure now. A process that was just killed does not count. The larger planner is the one that leads."""
        sizes: dict[str, float] = {}
        for name, each in zip(("extender", "planner", "planner"), self._programs.served, strict=True):
            try:
                size = psutil.Process(each.server.pid).memory_info().rss / 2**20
                sizes[name] = max(size, sizes.get(name, 0.0))
                before = time.perf_counter()
                each.text("/healthz")
                self.health_s.append(time.perf_counter() - before)
            except (OSError, psutil.Error):
                self.reset_probes += 1
        for name, size in sizes.items():
            self.mib.setdefault(name, []).append(size)

    def growth(self, name: str) -> float:
        """Return the memory at the end relative to that after a third of the run."""
        found = self.mib[name]
        third = sorted(found[len(found) // 3 : len(found) // 2])
        last = sorted(found[-len(found) // 6 :])
        return last[len(last) // 2] / third[len(third) // 2]


def untrue_reasons(cluster: Cluster, fleet: Fleet, programs: Programs) -> list[str]:
    """Return the pods and gangs that wait for another reason than they are said to."""
    page = next((page for each in programs.planners if (page := json.loads(each.text("/gangs")))["leads"]), None)
    if page is None:
        return ["no planner leads"]
    found = Objects(cluster.api.items(cluster.pods()), reserved(cluster), entries(cluster))
    nodes = nodes_of(found, {name: fleet[name].topology for name in fleet.names}, fleet.given())
    if nodes is None:
        return ["a bound pod is not admitted"]
    return [*untrue_pods(found.pods, nodes), *untrue_gangs(page, found, nodes)]


def create_waiting_pods(cluster: Cluster) -> None:
    """Create gangs and pods that wait for one reason each."""
    short, other_gate = gang("short", Asked(3, 1)), gang("other-gate", Asked(2, 1))
    disagreeing = [gang("disagreeing", Asked(size, 1))[size - 2] for size in (2, 3)]
    for each in other_gate:
        each["spec"]["schedulingGates"] = [*GATES, {"name": "example.com/quota"}]
    create(
        cluster,
        *short[:2],
        *other_gate,
        *disagreeing,
        *gang("too-large", Asked(9, 4, {"island": "required"})),
        gpu_pod("eight-in-an-island", 8, {"island": "required"}),
        gpu_pod("nine", 9),
        gpu_pod("malformed", 1, {"island": "perhaps"}),
    )


class Reasons:
    """Checks of the reasons, while nothing else happens."""

    def __init__(self, cluster: Cluster, fleet: Fleet, programs: Programs) -> None:
        self._cluster, self._fleet, self._programs = cluster, fleet, programs
        self.checks, self.waiting = 0, 0
        self.untrue: list[str] = []

    def check(self) -> None:
        """Wait until all programs answer and all reasons are true, or until they should be."""
        for each in self._programs.served:
            each.server.wait_until(partial(_answers, each))
        deadline = time.monotonic() + REASON_WITHIN_S
        while (untrue := self._untrue()) and time.monotonic() < deadline:
            time.sleep(1.0)
        self.checks += 1
        self.waiting += sum(node_of(each) is None for each in self._cluster.api.items(self._cluster.pods()))
        self.untrue += untrue
        print("untrue reasons:", *untrue, sep="\n  ", flush=True)

    def _untrue(self) -> list[str]:
        try:
            return untrue_reasons(self._cluster, self._fleet, self._programs)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return [f"not answered: {error}"]


@pytest.mark.usefixtures("controller_manager")
def test_no_prediction_is_broken_in_a_day_of_faults_and_attacks(  # noqa: PLR0917  fixtures
    cluster: Cluster,
    gpu_nodes: Fleet,
    agents_of: StartAgents,
    served: None,
    extender: Extender,
    scheduler: StartScheduler,
    planner: StartPlanner,
    timed: Timed,
) -> None:
    assert served is None
    agents_of()
    kube_scheduler: Server = scheduler(extender.configuration())
    planners = (planner("--settle", "1s"), planner("--settle", "1s", name="second-planner"))
    programs = Programs(extender, planners, kube_scheduler)
    cluster.api.create("/api/v1/namespaces", {"metadata": {"name": TENANT}})  # a controller adds its service account
    faults, samples = Faults(cluster, gpu_nodes, programs, SEED), Samples(programs)
    reasons = Reasons(cluster, gpu_nodes, programs)
    with watched(cluster) as past:
        with timed(f"{MINUTES:g} minutes of faults"), Workload(cluster, SEED) as workload:
            end = time.monotonic() + 60 * MINUTES
            while time.monotonic() < end:
                name = faults.inject()
                print(f"{end - time.monotonic():7.1f} s left: {name}", flush=True)
                time.sleep(PAUSE_S)
                samples.take()
                if sum(faults.count.values()) % FAULTS_BETWEEN_CHECKS == 0:
                    workload.is_paused = True
                    reasons.check()
                    workload.is_paused = False
        for each in programs.served:
            each.server.wait_until(partial(_answers, each))
        wait_for(lambda: _settled(cluster, workload.sizes), "all gangs to be complete or absent", 180.0)
        halved = halves(cluster.api.items(cluster.pods()), workload.sizes)
        create_waiting_pods(cluster)
        reasons.check()
        events = past.events()
    print(
        f"faults: {faults.count}; gangs: {len(workload.sizes)}; single pods: {workload.singles}; events: {len(events)}"
    )
    print(f"checks of all reasons: {reasons.checks}, of pods that waited: {reasons.waiting}")
    print(f"memory: { ({name: round(samples.growth(name), 2) for name in samples.mib}) }")
    print(f"/healthz: slowest {max(samples.health_s):.2f} s of {len(samples.health_s)}; down {samples.reset_probes}")
    assert violations(events, dict.fromkeys(gpu_nodes.names, 8)) == []
    assert broken(events, {name: gpu_nodes[name].topology for name in gpu_nodes.names}, gpu_nodes.given()) == []
    assert halved == {}
    assert reasons.untrue == []
    assert len(workload.sizes) >= MINUTES / 2
    if MINUTES >= 10:
        assert all(samples.growth(name) < MOST_GROWTH for name in samples.mib)


def _answers(served: Served) -> bool:
    return served.text("/healthz") == "ok\n"


def _settled(cluster: Cluster, sizes: dict[str, int]) -> bool:
    """Return whether no reservation is open, and no gang is bound by half."""
    try:
        pods = cluster.api.items(cluster.pods())
        return not entries(cluster) and not halves(pods, sizes)
    except urllib3.exceptions.HTTPError:
        return False
