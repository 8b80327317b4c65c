"""A real Prometheus scrapes agent, extender, planner and observer; it answers every query of every dashboard."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import urllib3
import yaml

from daemonset.dashboards import DASHBOARDS
from gputopo.kube.rbac import OBSERVER
from tests.api_objects import pod
from tests.daemonset.dashboard_expressions import prometheus_expression
from tests.daemonset.tools import tool
from tests.e2e.agent import running as of_agent
from tests.e2e.agent.access import grant
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.fixtures import StartScheduler
from tests.e2e.gangs import running as of_planner
from tests.e2e.gangs.members import Asked, create, gang, wait_until_whole
from tests.e2e.process import Server
from tests.e2e.scheduler import running as of_extender
from tests.e2e.scheduler.running import gpu_pod, placed, started
from tests.ports import free_port
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
# Panels of series that exist only after an event that this test does not cause (a fault, a miss, an error, a limit), or
# only on real GPUs (use). Every other query must have a result.
QUIET = {
    "gputopo-fleet": {
        "Islands broken although a partly used island was free",
        "Reserved GPUs",
        "Held and busy",
        "GPU memory",
    },
    "gputopo-scheduling": {
        "Calls over 50 ms",
        "Pods without a suitable node, by reason",
        "Predicted GPUs compared with allocated GPUs",
        "Required shapes violated",
        "Writes that did not succeed",
        "Failed watches and unacknowledged proposals",
    },
    "gputopo-queues": {
        "Preemptions for gangs",
        "GPU-hours lost by preemptions",
        "Nodes offered by kube-scheduler's preemption",
        "Calls of preemption",
        "Pods released without a place",
        "Gangs at a limit of their namespace",
    },
    "gputopo-hardware": {
        "Degradations",
        "Missing lanes of NVLinks",
        "NVLink errors",
        "NVLinks with errors",
        "Memory errors",
        "Remapped memory rows",
        "Agents that are not ready, or whose data is not published",
        "Failing sources and NVML calls",
        "Failed and restoring writes",
    },
}


class Target(NamedTuple):
    """One program that Prometheus scrapes."""

    address: str
    labels: dict[str, str]  # what the scrape configuration of docs/operations.md adds


class Prometheus:
    """A Prometheus server of the test."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool = urllib3.PoolManager(retries=False, timeout=10.0)

    def ready(self) -> bool:
        """Return whether it answers queries. Raises OSError while no server listens."""
        try:
            return self._pool.request("GET", f"{self._url}/-/ready").status == 200
        except urllib3.exceptions.HTTPError as refused:
            raise OSError(self._url) from refused

    def query(self, expression: str) -> list[Any]:
        """Return the series of an expression. Fails with the message of Prometheus."""
        answer = self._pool.request("GET", f"{self._url}/api/v1/query", fields={"query": expression})
        document = answer.json()
        assert document["status"] == "success", f"{expression}: {document.get('error')}"
        return list(document["data"]["result"])

    def healthy_targets(self) -> int:
        """Return the number of targets whose last scrape succeeded, after at least three scrapes of each."""
        return len(self.query("up == 1 and count_over_time(up[5m]) >= 3"))


@pytest.fixture
def targets(cluster: Cluster, gpu_nodes: Fleet, scheduler: StartScheduler, tmp_path: Path) -> Iterator[list[Target]]:
    """An agent, an extender with its kube-scheduler, a planner and an observer, each as a process with its role."""
    of_agent.prepare(cluster)
    of_planner.prepare(cluster)
    of_extender.prepare(cluster)
    grant(cluster, "observer", OBSERVER)
    with ExitStack() as running:
        addresses = {}
        for name in gpu_nodes.names:
            node, address = gpu_nodes[name], f"127.0.0.1:{free_port()}"
            options = ("--node", name, "--node-source", str(node.snapshot), "--socket", str(node.socket))
            running.enter_context(of_agent.running(cluster, tmp_path, *options, "--listen", address))
            addresses[name] = Target(address, {"node": name})
        planner = running.enter_context(of_planner.running(cluster))
        extender = running.enter_context(of_extender.running(cluster))
        extender.wait_until_ready()
        planner.wait_until_ready()
        scheduler(extender.configuration())
        observer = f"127.0.0.1:{free_port()}"
        running.enter_context(_observer(cluster, tmp_path, observer))
        programs = {"gputopo-scheduler-0": extender.pages, "gputopo-planner-0": planner.pages}
        yield [
            *addresses.values(),
            *(Target(url.removeprefix("http://"), {"pod": name}) for name, url in programs.items()),
            Target(observer, {"pod": "gputopo-observe-0"}),
        ]


def _observer(cluster: Cluster, folder: Path, address: str) -> ExitStack:
    config = cluster.kubeconfig(folder / "observer.kubeconfig", cluster.token("observer"))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GPUTOPO_", "KUBE"))}
    command = [sys.executable, "-m", "gputopo", "observe", "-o", "jsonl", "--listen", address]
    server = Server("observer", command, folder / "observer.log", clean | {"KUBECONFIG": str(config)})
    stack = ExitStack()
    stack.callback(server.stop)
    return stack


@pytest.fixture
def prometheus(targets: list[Target], tmp_path: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the programs every second."""
    jobs = [{"targets": [each.address], "labels": each.labels} for each in targets]
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "gputopo", "static_configs": jobs}],
    }
    file = tmp_path / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    flags = (f"--config.file={file}", f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address={address}")
    server = Server("prometheus", [tool("prometheus"), *flags], tmp_path / "prometheus.log")
    try:
        found = Prometheus(f"http://{address}")
        server.wait_until(found.ready)
        yield found
    finally:
        server.stop()


def test_prometheus_answers_every_query_of_every_dashboard(
    cluster: Cluster, targets: list[Target], prometheus: Prometheus
) -> None:
    create(cluster, *gang("llm", Asked(2, 4)))
    cluster.create_pod(gpu_pod("single", 1))
    wait_until_whole(cluster, "llm", 2)
    started(cluster, placed(cluster, "single")["metadata"]["name"])
    cluster.create_pod(pod("waits", 16, schedulerName="gputopo-scheduler"))
    wait_for(lambda: prometheus.healthy_targets() == len(targets), "three scrapes of each program", 60.0)

    def without_result() -> list[tuple[str, str]]:
        return [
            (name, panel.title)
            for name, of in DASHBOARDS.items()
            for panel, query in of().queries()
            if not prometheus.query(prometheus_expression(query.expression)) and panel.title not in QUIET[name]
        ]

    wait_for(lambda: without_result() == [], f"a result of each query, still none of {without_result()}", 30.0)


def test_the_numbers_are_those_of_the_cluster(cluster: Cluster, targets: list[Target], prometheus: Prometheus) -> None:
    """Several programs export the free islands: a panel counts each island once."""
    wait_for(lambda: prometheus.healthy_targets() == len(targets), "three scrapes of each program", 60.0)
    panels = {panel.title: query for panel, query in DASHBOARDS["gputopo-fleet"]().queries()}

    def value(title: str) -> dict[str, str]:
        series = prometheus.query(prometheus_expression(panels[title].expression))
        return {each["metric"].get("size", ""): each["value"][1] for each in series}

    wait_for(lambda: value("Islands by free GPUs").get("4") == "8", "eight islands with 4 free GPUs", 60.0)
    assert value("GPUs") == {"": "32"}
    assert value("GPU nodes") == {"": "4"}
    assert value("Lost GPUs") == {"": "0"}
    cluster.create_pod(gpu_pod("single", 1))
    placed(cluster, "single")
    expected = {"3": "1", "4": "7"}

    def shown() -> dict[str, str]:
        return {size: count for size, count in value("Islands by free GPUs").items() if count != "0"}

    wait_for(lambda: shown() == expected, f"{expected} free islands", 60.0)
