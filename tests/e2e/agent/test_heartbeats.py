"""Heartbeats in Leases on the real API server, and what etcd stores of them."""

from __future__ import annotations

import base64
from pathlib import Path

import msgspec
import pytest
import urllib3

from agent.publish.state import StateWriter
from gputopo.crd.nodegpus import DeviceAllocation, NodeGpus, PodRef, content_hash
from gputopo.kube.heartbeats import HEARTBEAT_NAMESPACE, list_heartbeats
from gputopo.kube.rbac import AGENT, LEASES, NODE_GPUS, READER
from tests import api_objects
from tests.api_objects import Object
from tests.e2e.agent.access import define_node_gpus, grant, open_kube
from tests.e2e.cluster import Cluster
from tests.machines import hgx_h100

pytestmark = pytest.mark.e2e
NODE = "gpu-node-00001-pool-a1b2c3"
LEASE = LEASES.path(NODE, HEARTBEAT_NAMESPACE)
BUSY = NodeGpus(
    "2026-11-21T12:00:00Z",
    content_hash("1"),
    "0.1.0",
    tuple(
        DeviceAllocation(gpu.uuid or "", PodRef("team", f"train-{at // 4}", "main"))
        for at, gpu in enumerate(hgx_h100().gpus)
    ),
    nics=(),
)


def at(minute: int) -> NodeGpus:
    return msgspec.structs.replace(BUSY, observed_at=f"2026-11-21T12:{minute:02}:00Z")


def stored_bytes(cluster: Cluster, key: str) -> int:
    """The size of a value in etcd."""
    etcd = cluster.plane.etcd_url
    body = msgspec.json.encode({"key": base64.b64encode(key.encode()).decode()})
    answer = urllib3.request("POST", f"{etcd}/v3/kv/range", body=body)
    (found,) = msgspec.json.decode(answer.data)["kvs"]
    return len(base64.b64decode(found["value"]))


def prepare(cluster: Cluster) -> str:
    """Create the Node; return its UID."""
    define_node_gpus(cluster)
    return str(cluster.api.create("/api/v1/nodes", api_objects.gpu_node(NODE, 8))["metadata"]["uid"])


def test_a_quiet_node_renews_a_lease_which_readers_see(cluster: Cluster, tmp_path: Path) -> None:
    uid = prepare(cluster)
    cluster.create_namespace(HEARTBEAT_NAMESPACE)
    grant(cluster, "agent", AGENT)
    grant(cluster, "reader", READER)
    kube, reader = (open_kube(cluster, name, role, tmp_path) for name, role in (("agent", AGENT), ("reader", READER)))
    writer = StateWriter(kube, NODE, 0.0)

    outcomes = [writer.write_state(at(minute)) for minute in (0, 5, 10, 15)]

    assert [(each.written, each.renewed) for each in outcomes] == [(True, False), *[(False, True)] * 3]
    heartbeat = list_heartbeats(reader)[NODE]
    assert (heartbeat.confirms, heartbeat.at) == (at(0).observed_at, "2026-11-21T12:15:00.000000Z")
    lease: Object = cluster.api.get(LEASE)
    assert "managedFields" not in lease["metadata"]
    assert [owner["uid"] for owner in lease["metadata"]["ownerReferences"]] == [uid]
    sizes = [
        stored_bytes(cluster, f"/registry/{key}/{NODE}")
        for key in (f"leases/{HEARTBEAT_NAMESPACE}", "gputopo.io/nodegpus")
    ]
    print(f"etcd stores {sizes[0]} bytes of the Lease, and {sizes[1]} of the NodeGpus")
    assert sizes[0] < sizes[1] / 5

    again = StateWriter(kube, NODE, 0.0)  # a new process finds the Lease
    for minute in (20, 25):
        again.write_state(at(minute))
    assert cluster.api.get(LEASE)["spec"] == {
        "holderIdentity": at(20).observed_at,
        "renewTime": "2026-11-21T12:25:00.000000Z",
    }
    kube.close()
    reader.close()


def test_manifests_of_the_version_before_make_the_node_gpus_the_heartbeat(cluster: Cluster, tmp_path: Path) -> None:
    """Neither the namespace nor the right to write Leases exists."""
    prepare(cluster)
    before = AGENT._replace(verbs={kind: verbs for kind, verbs in AGENT.verbs.items() if kind != LEASES})
    grant(cluster, "agent", before)
    kube = open_kube(cluster, "agent", AGENT, tmp_path)
    writer = StateWriter(kube, NODE, 0.0)

    for minute in (0, 5, 10):
        writer.write_state(at(minute))
        assert cluster.api.get(NODE_GPUS.path(NODE))["observedAt"] == at(minute).observed_at
    kube.close()


def test_a_lease_that_another_client_edited_is_renewed_after_the_state_was_written_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    prepare(cluster)
    cluster.create_namespace(HEARTBEAT_NAMESPACE)
    grant(cluster, "agent", AGENT)
    kube = open_kube(cluster, "agent", AGENT, tmp_path)
    writer = StateWriter(kube, NODE, 0.0)
    for minute in (0, 5):
        writer.write_state(at(minute))
    cluster.api.patch(LEASE, {"spec": {"renewTime": "2030-01-01T00:00:00.000000Z"}}, fieldManager="kubectl-edit")

    writer.write_state(at(10))
    assert cluster.api.get(NODE_GPUS.path(NODE))["observedAt"] == at(10).observed_at
    writer.write_state(at(15))
    lease = cluster.api.get(LEASE)
    assert lease["spec"]["renewTime"] == "2026-11-21T12:15:00.000000Z"
    assert "managedFields" not in lease["metadata"]
    kube.close()
