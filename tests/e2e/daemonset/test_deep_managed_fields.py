"""Objects that programs of gputopo write themselves, with managed fields that nest deeply."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from gputopo.cli import main
from gputopo.kube.rbac import CLEANER, LEASES, LEDGERS, NODE_GPUS, RESERVATIONS
from gputopo.labels import keys
from tests.e2e.agent.access import grant
from tests.e2e.agent.running import PATIENCE_S, node_gpus, node_labels, running
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.daemonset.installed import agent_token, install
from tests.e2e.gangs.conftest import StartPlanner, agents_of, extender, gputopo_scheduler, planner, served
from tests.e2e.gangs.members import Asked, create, gang, wait_until_whole
from tests.e2e.gangs.running import LEASE, reserved
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import Extender
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import islands_4_4

__all__ = ["agents_of", "extender", "gputopo_scheduler", "planner", "served"]
pytestmark = pytest.mark.e2e
NODE = "gpu-0"
LEVELS = 1_000  # of custom resources: with more, the API server itself takes long


def nest(cluster: Cluster, path: str, version: str, levels: int) -> None:
    """Give an object a field manager whose fields nest deeply, beside the others."""
    fields = msgspec.Raw(b'{"f:a":' * levels + b"{}" + b"}" * levels)
    entry = {"manager": f"m-{levels}", "operation": "Update", "apiVersion": version, "fieldsType": "FieldsV1"}
    found = cluster.api.get(path)["metadata"].get("managedFields", [])
    kept = [each for each in found if not each["manager"].startswith("m-")]
    cluster.api.patch(path, {"metadata": {"managedFields": [*kept, {**entry, "fieldsV1": fields}]}}, "merge")
    assert str(cluster.api.get(path)).count("f:a") > 90


@pytest.mark.parametrize("levels", [LEVELS, 9_000])
def test_an_agent_restores_and_cleanup_removes_the_keys_of_a_deep_node(
    cluster: Cluster, fleet: Fleet, tmp_path: Path, levels: int
) -> None:
    (node,) = fleet.add(NodeSpec(name=NODE, shape=islands_4_4()))
    install(cluster)
    options = ("--node", NODE, "--node-source", str(node.snapshot), "--socket", "off", "--heartbeat", "10s")
    config = cluster.kubeconfig(tmp_path / "agent.kubeconfig", agent_token(cluster, NODE))
    nest(cluster, f"/api/v1/nodes/{NODE}", "v1", levels)
    with running(cluster, tmp_path, *options, kubeconfig=config) as agent:
        wait_for(lambda: node_gpus(cluster, NODE), "the first state", PATIENCE_S)
        nest(cluster, NODE_GPUS.path(NODE), NODE_GPUS.api_version, LEVELS)
        nest(cluster, f"/api/v1/nodes/{NODE}", "v1", levels)
        lie = {"metadata": {"labels": {keys.ISLANDS.key: "8"}}}
        cluster.api.patch(f"/api/v1/nodes/{NODE}", lie, "merge", fieldManager="kubectl-label")
        wait_for(lambda: node_labels(cluster, NODE)[keys.ISLANDS.key] == "4-4", "the heartbeat", PATIENCE_S)
        agent.end()
    grant(cluster, "cleaner", CLEANER)
    cleaner = str(cluster.kubeconfig(tmp_path / "config", cluster.token("cleaner")))
    shown = CliRunner().invoke(main.main, ["cleanup", "--all", "--kubeconfig", cleaner])
    assert shown.exit_code == 0, shown.output
    assert keys.ISLANDS.key not in node_labels(cluster, NODE)


def test_a_planner_goes_on_with_its_own_objects_nested_deeply(
    cluster: Cluster,
    gpu_nodes: Fleet,
    agents_of: StartAgents,
    served: None,
    gputopo_scheduler: Extender,
    planner: StartPlanner,
) -> None:
    """The Lease, the ledger, and the reservation of a gang that waits."""
    assert gpu_nodes
    assert served is None
    agents_of()
    leader = planner()
    create(cluster, *gang("large", Asked(5, 8)), *gang("small", Asked(2, 1)))
    wait_until_whole(cluster, "small", 2)
    (ledger,) = cluster.api.items(LEDGERS.path())
    own = [LEDGERS.path(ledger["metadata"]["name"]), LEASES.path(LEASE, cluster.namespace)]
    own += [RESERVATIONS.path(each["metadata"]["name"], cluster.namespace) for each in reserved(cluster)]

    for path in own:
        group = LEASES if "leases" in path else LEDGERS
        nest(cluster, path, group.api_version, LEVELS)
    for each in (leader, gputopo_scheduler):
        each.restart()
        each.wait_until_ready()
    create(cluster, *gang("later", Asked(2, 1)))
    wait_until_whole(cluster, "later", 2, 120)

    for each in (leader, gputopo_scheduler):
        assert each.text("/healthz") == "ok\n"
        assert each.count("gputopo_watch_unreadable") == 0
