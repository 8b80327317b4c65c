"""The example manifests that restrict tenants, on the real API server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.api_client import ApiError
from tests.api_objects import container, pod
from tests.e2e import cleaning
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.daemonset.installed import apply, documents, refusal
from tests.e2e.servers import ControlPlane

pytestmark = pytest.mark.e2e
OURS = {"schedulerName": "gputopo-scheduler"}
FIRST = {"initContainers": [container("first", 1)]}


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane, pristine: set[cleaning.Found]) -> Iterator[Cluster]:
    """A tenant's namespace, and the policy in force."""
    api = control_plane.client()
    found = Cluster(control_plane, api, "team-a")
    apply(found, documents("scheduler/examples/tenant-gpu-pods.yaml"))
    wait_for(lambda: refusal(api, "POST", found.pods(), pod("p", 1))[0] == 403, "the policy")
    yield found
    cleaning.clean(api, pristine)
    api.close()


@pytest.mark.parametrize(
    ("gpus", "spec", "result"),
    [
        pytest.param(1, {}, "needs schedulerName gputopo-scheduler", id="the cluster's scheduler"),
        pytest.param(1, {**OURS, "nodeName": "gpu-0"}, "names no node", id="a node of the tenant's choice"),
        pytest.param(0, {**FIRST, "nodeName": "gpu-0"}, "names no node", id="GPUs of an init container"),
    ],
)
def test_gpu_pods_that_avoid_the_scheduler_are_refused(cluster: Cluster, gpus: int, spec: Any, result: str) -> None:
    status, message = refusal(cluster.api, "POST", cluster.pods(), pod("p", gpus, **spec))

    assert status == 403
    assert result in message


@pytest.mark.parametrize(
    ("gpus", "spec"),
    [
        pytest.param(1, OURS, id="GPUs, by gputopo's scheduler"),
        pytest.param(0, {"nodeName": "gpu-0"}, id="no GPUs, on a node of its choice"),
    ],
)
def test_other_pods_are_not_affected(cluster: Cluster, gpus: int, spec: Any) -> None:
    assert refusal(cluster.api, "POST", cluster.pods(), pod("p", gpus, **spec)) == (200, "")


def test_the_clusters_own_components_are_not_affected(cluster: Cluster) -> None:
    accounts, pods = (f"/api/v1/namespaces/kube-system/{plural}" for plural in ("serviceaccounts", "pods"))
    with suppress(ApiError):  # it is there
        cluster.api.create(accounts, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})

    assert refusal(cluster.api, "POST", pods, pod("p", 1)) == (200, "")


def test_the_quotas_are_taken(cluster: Cluster) -> None:
    """Their effect is that of the quota controller, which no control plane of these tests runs."""
    for quota in documents("scheduler/examples/tenant-quota.yaml"):
        quota["metadata"]["namespace"] = cluster.namespace
        path = f"/api/v1/namespaces/{cluster.namespace}/resourcequotas"
        try:
            stored = cluster.api.create(path, quota, dryRun="All", fieldValidation="Strict")
        except ApiError as error:
            pytest.fail(f"{quota['metadata']['name']}: {error}")
        assert stored["spec"] == quota["spec"]
