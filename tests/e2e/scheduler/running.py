"""The extender as a process of its own, with the rights that its role lists, and the scheduler that calls it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import urllib3
import yaml
from prometheus_client.parser import text_string_to_metric_families

from gputopo.kube.rbac import EXTENDER
from gputopo.labels.keys import SCHEDULER_NAME
from scheduler_core.extender import scheduler_config
from tests.api_objects import GPU, Object, pod
from tests.e2e.agent.access import define_node_gpus, grant, user
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.credentials import write_kubeconfig
from tests.e2e.process import Server
from tests.ports import free_port

ACCOUNT = "extender"
COMMAND = [sys.executable, "-m", "gputopo", "extender"]
PATIENCE_S = 60.0  # for a busy machine; nothing here waits longer than it must
_CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("GPUTOPO_", "KUBE"))}


class Served:
    """A process of ours that serves pages beside what it does."""

    def __init__(self, server: Server, pages: int) -> None:
        self.server = server
        self.pages = f"http://127.0.0.1:{pages}"
        self._pool = urllib3.PoolManager(retries=False, timeout=10.0)

    @property
    def ready(self) -> bool:
        """Return whether the extender reports ready. Raises OSError while no process listens."""
        return self._get("/readyz").status == 200

    def wait_until_ready(self) -> None:
        """Wait until the extender knows the cluster."""
        self.server.wait_until(lambda: self.ready)

    def restart(self) -> None:
        """SIGKILL, and a new process, which is not ready yet when this returns."""
        self.server.restart()

    def text(self, path: str) -> str:
        """A page of the second listener."""
        return self._get(path).data.decode()

    def lines(self, path: str) -> list[Object]:
        """A page of JSON lines."""
        return [msgspec.json.decode(line) for line in self.text(path).splitlines()]

    def count(self, sample: str, **labels: str) -> float:
        """The sum of the samples of a metric that carry these labels; 0 where there are none."""
        families = text_string_to_metric_families(self.text("/metrics"))
        return sum(
            each.value
            for family in families
            for each in family.samples
            if each.name == sample and labels.items() <= each.labels.items()
        )

    def _get(self, path: str) -> urllib3.BaseHTTPResponse:
        try:
            return self._pool.request("GET", self.pages + path)
        except urllib3.exceptions.HTTPError as nobody:
            raise OSError(f"{self.pages}{path}") from nobody


class Extender(Served):
    """An extender that can be killed and restarted at the same address."""

    def __init__(self, server: Server, verbs: int, pages: int) -> None:
        super().__init__(server, pages)
        self.prefix = f"http://127.0.0.1:{verbs}"  # of the verbs

    @property
    def filter_calls(self) -> int:
        """Return the number of filter requests that this process has answered, with any status."""
        return int(self.count("gputopo_extender_calls_total", verb="filter"))

    def call(self, verb: str, body: Object) -> tuple[int, bytes]:
        """Ask as kube-scheduler does: status and answer."""
        answer = self._pool.request("POST", f"{self.prefix}/{verb}", body=msgspec.json.encode(body))
        return answer.status, answer.data

    def configuration(self, **changes: Any) -> str:
        """The KubeSchedulerConfiguration that is shipped, but for the extender's port; ``changes``: of its fields.

        Leader election is off: the lease of a scheduler that a test killed would keep the next one waiting.
        """
        document: Object = yaml.safe_load(scheduler_config.render_configuration([GPU]))
        (extender,) = document["extenders"]
        assert extender["urlPrefix"] == scheduler_config.LOOPBACK
        extender["urlPrefix"] = self.prefix
        document["leaderElection"] = {"leaderElect": False}
        return yaml.safe_dump(document | changes)


def gpu_pod(name: str, gpus: int, wishes: dict[str, str] | None = None, **spec: Any) -> Object:
    """A pod that our scheduler is to place. ``wishes``: annotations by their part after the slash, or whole keys."""
    keys = {key if "/" in key else f"gputopo.io/{key}": value for key, value in (wishes or {}).items()}
    made = pod(name, gpus, schedulerName=SCHEDULER_NAME, **spec)
    made["metadata"]["annotations"] = keys
    return made


def prepare(cluster: Cluster) -> None:
    """Create the custom resource, and a service account with the extender's role, as the manifests do."""
    define_node_gpus(cluster)
    grant(cluster, ACCOUNT, EXTENDER)


@contextmanager
def running(
    cluster: Cluster, *options: str, server_url: str | None = None, environ: Mapping[str, str] = {}
) -> Iterator[Extender]:
    """Run an extender within the block, ready or not; ``server_url``: a way to the API server of its own."""
    folder, name = cluster.plane.folder, f"extender-{cluster.namespace}"
    token = {"token": cluster.token(ACCOUNT)}
    kubeconfig = write_kubeconfig(
        folder / f"{name}.kubeconfig", server_url or cluster.url, cluster.plane.authority.certificate, token
    )
    verbs, pages = free_port(), free_port()
    command = [*COMMAND, "--verbs", f"127.0.0.1:{verbs}", "--listen", f"127.0.0.1:{pages}", *options]
    server = Server(
        "extender", command, folder / "logs" / f"{name}.log", _CLEAN | {"KUBECONFIG": str(kubeconfig), **environ}
    )
    try:
        yield Extender(server, verbs, pages)
    finally:
        server.stop()


def writes(cluster: Cluster) -> list[tuple[str, str]]:
    """Return all writes of the extenders of this test as (resource, verb), rejected writes included."""
    mine = user(cluster, ACCOUNT)
    return [(write.resource, write.verb) for write in cluster.writes() if write.user == mine]


def condition(found: Object) -> Object:
    """Return the condition PodScheduled=False of a pod; {} if the pod has none."""
    conditions = found["status"].get("conditions") or []
    return next((each for each in conditions if each["type"] == "PodScheduled" and each["status"] == "False"), {})


def refused(cluster: Cluster, name: str, timeout_s: float = PATIENCE_S) -> str:
    """Wait until a pod of the test's namespace is called unschedulable; the scheduler's sentence."""
    found = cluster.wait_for_pod(name, lambda each: condition(each).get("reason") == "Unschedulable", timeout_s)
    return str(condition(found)["message"])


def placed(cluster: Cluster, name: str, timeout_s: float = PATIENCE_S) -> Object:
    """Wait until a pod is bound."""
    return cluster.wait_for_pod(name, lambda each: "nodeName" in each["spec"], timeout_s)


def started(cluster: Cluster, name: str, timeout_s: float = PATIENCE_S) -> Object:
    """Wait until a pod runs."""
    return cluster.wait_for_pod(name, lambda each: each["status"]["phase"] == "Running", timeout_s)


def all_placed(cluster: Cluster, timeout_s: float = PATIENCE_S) -> list[Object]:
    """Wait until every pod of the test's namespace is bound; they."""

    def pods() -> list[Object] | None:
        found = cluster.api.items(cluster.pods())
        return found if all("nodeName" in each["spec"] for each in found) else None

    return wait_for(pods, "all pods to be bound", timeout_s)
