"""A pod's service account, as the kubelet mounts it, against the real API server."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agent.publish import PublishError, PublishOutcome
from agent.publish.node import NodePublisher
from gputopo.kube.connect import in_cluster
from gputopo.kube.errors import ForbiddenError
from gputopo.kube.rbac import AGENT, Role
from gputopo.labels import encode_topology
from tests import api_objects
from tests.e2e.agent.access import grant
from tests.e2e.cluster import Cluster
from tests.machines import dgx1

pytestmark = pytest.mark.e2e


@pytest.fixture
def account(cluster: Cluster, tmp_path: Path) -> Path:
    """The folder that the kubelet would mount."""
    grant(cluster, "agent", AGENT)
    cluster.api.create("/api/v1/nodes", api_objects.gpu_node("gpu-0", 8))
    (tmp_path / "token").write_text(cluster.token("agent"))
    shutil.copy(cluster.plane.authority.certificate, tmp_path / "ca.crt")
    return tmp_path


def environ(cluster: Cluster) -> dict[str, str]:
    host, port = cluster.url.removeprefix("https://").split(":")
    return {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}


def test_an_agent_publishes_as_its_pod(cluster: Cluster, account: Path) -> None:
    kube = in_cluster(AGENT, account, environ(cluster))

    assert NodePublisher(kube, "gpu-0").publish_facts(encode_topology(dgx1())) == PublishOutcome(written=True)

    kube.close()


def test_a_forbidden_write_of_a_pod_is_refused_with_the_reason(cluster: Cluster, account: Path) -> None:
    """The server refuses what our own table would let through."""
    everything = Role("agent", dict.fromkeys(AGENT.verbs, ("get", "list", "create", "patch", "delete")))
    kube = in_cluster(everything, account, environ(cluster))
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}}

    with pytest.raises(ForbiddenError, match="cannot create resource"):
        kube.create(next(iter(AGENT.verbs)), node)

    kube.close()


def test_a_token_that_is_not_one_is_refused(cluster: Cluster, account: Path) -> None:
    (account / "token").write_text("not a token")
    kube = in_cluster(AGENT, account, environ(cluster))

    with pytest.raises(PublishError, match="401: Unauthorized"):
        NodePublisher(kube, "gpu-0").publish_facts(encode_topology(dgx1()))

    kube.close()
