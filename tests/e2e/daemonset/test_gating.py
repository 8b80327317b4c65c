"""Which pods the policies gate on the real API server, and which they leave alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gputopo.labels import keys
from gputopo.labels import workloads as seen
from tests.e2e import cleaning
from tests.e2e.api import Client
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.daemonset.installed import apply, documents
from tests.e2e.objects import Object, pod
from tests.e2e.servers import ControlPlane

pytestmark = pytest.mark.e2e
OURS = {"schedulerName": "gputopo-scheduler"}
GANG = {keys.POD_GANG.key: "llm-7", keys.POD_GANG_SIZE.key: "2"}
GATE = {"name": keys.GATE}
POLICIES = "/apis/admissionregistration.k8s.io/v1"
PLAIN, LABELLED = "gating-plain", "gating-labelled"
KUEUE = {"name": "kueue.x-k8s.io/admission"}


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane, pristine: set[cleaning.Found]) -> Iterator[Client]:
    """A cluster with the policies in force, and two namespaces of which one has opted in."""
    api = control_plane.client()
    served = {each["name"] for each in api.get(POLICIES)["resources"]}
    if "mutatingadmissionpolicies" not in served:
        pytest.skip("this API server has no MutatingAdmissionPolicy: it is served by default from 1.36 on")
    cluster = Cluster(control_plane, api, PLAIN)
    cluster.create_namespace(LABELLED)
    labels = {"metadata": {"labels": {keys.GANGS_ENABLED.key: keys.GANGS_ENABLED.example}}}
    api.patch(f"/api/v1/namespaces/{LABELLED}", labels)
    apply(cluster, documents("scheduler/planner/gating.yaml"))
    for namespace, spec in ((PLAIN, OURS), (LABELLED, {})):
        probe = member("probe", GANG, **spec)
        wait_for(lambda namespace=namespace, probe=probe: gates(api, probe, namespace), f"the policy in {namespace}")
    yield api
    cleaning.clean(api, pristine)
    api.close()


def member(name: str, annotations: dict[str, str], labels: dict[str, str] | None = None, **spec: object) -> Object:
    made = pod(name, 1, **spec)
    made["metadata"] |= {"annotations": annotations, "labels": labels or {}}
    return made


def gates(api: Client, body: Object, namespace: str = PLAIN) -> list[Object]:
    """Of a pod as it would be created."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    made: Object = api.request("POST", path, body, query={"dryRun": "All"})
    found: list[Object] = made["spec"].get("schedulingGates", [])
    return found


def test_x(api: Client) -> None:
    b = member("a", GANG, **OURS)
    b["spec"]["containers"][0]["env"] = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]
    b["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol":"TCP", "name": "x"}]
    print(gates(api, b), gates(api, member("b", {}, **OURS)))
    print(gates(api, member("b", {}, {"job-name": "x"}, **OURS)))
    print(gates(api, member("b", {}, {"job-name": "x", "batch.kubernetes.io/job-completion-index": "0"}, **OURS)))
    print(gates(api, member("b", {}, {"jobset.sigs.k8s.io/jobset-name": "x"}, **OURS)))
    print(gates(api, member("b", {}, {"jobset.sigs.k8s.io/jobset-name": "x", "jobset.sigs.k8s.io/replicatedjob-name":"dataset-initializer"}, **OURS)))
    assert 0
