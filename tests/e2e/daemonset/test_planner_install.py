"""The planner as it goes from a real API server: no pod waits for what is not there any more."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gputopo.cli.cleanup import cleanup
from gputopo.cli.release import release
from gputopo.crd.reservations import LedgerSpec
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.rbac import CLEANER, LEDGERS, PLANNER, RELEASER, RESERVATIONS, Role
from gputopo.labels import keys
from tests.api_objects import Object, pod
from tests.daemonset.tools import kustomized
from tests.daemonset.tools import run as run_tool
from tests.e2e.agent.access import DEFINITIONS, grant
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.daemonset.installed import apply, documents, path_of
from tests.e2e.daemonset.planner_objects import PLAN, ledger, reservation

pytestmark = pytest.mark.e2e
OURS = {"schedulerName": "gputopo-scheduler"}
OTHERS = {"name": "example.com/other"}
CRD = "CustomResourceDefinition"
MANIFESTS = "scheduler/planner"
PODS = ("train-0", "train-1", "plain")
_NUMBERS = itertools.count()
GANG = {keys.POD_GANG.key: "llm-7", keys.POD_GANG_SIZE.key: "2"}


def member(name: str, **spec: object) -> Object:
    made = pod(name, 1, **OURS, **spec)
    made["metadata"]["annotations"] = GANG
    return made


def kubectl(cluster: Cluster, *arguments: str) -> str:
    """The real one, run below daemonset/ as an administrator."""
    folder = cluster.plane.folder
    config = cluster.kubeconfig(folder / "kubectl.kubeconfig")
    return run_tool("kubectl", "--kubeconfig", config, "--cache-dir", folder / "kubectl", *arguments)


def gates(cluster: Cluster, name: str) -> list[Object]:
    found: list[Object] = cluster.pod(name)["spec"].get("schedulingGates", [])
    return found


@pytest.fixture
def installed(cluster: Cluster) -> Cluster:
    """The planner's objects, and what gates pods in force; nobody runs it."""
    served = {each["name"] for each in cluster.api.get("/apis/admissionregistration.k8s.io/v1")["resources"]}
    if "mutatingadmissionpolicies" not in served:
        pytest.skip("this API server has no MutatingAdmissionPolicy: it is served by default from 1.36 on")
    apply(cluster, documents("base/namespace.yaml"))
    kubectl(cluster, "apply", "-k", MANIFESTS)

    def gated() -> bool:
        probe: Object = cluster.api.request("POST", cluster.pods(), member("probe"), query={"dryRun": "All"})
        return "schedulingGates" in probe["spec"]

    wait_for(gated, "the policy")
    return cluster


def uninstall(cluster: Cluster) -> None:
    """Remove the planner as docs/install.md says. Returns when no pod is gated."""
    kubectl(cluster, "delete", "-k", MANIFESTS)
    wait_until_ungated(cluster)


def uninstall_but_definitions(cluster: Cluster) -> None:
    """The same, where somebody kept the custom resource definitions."""
    for each in kustomized(MANIFESTS):
        if each["kind"] != CRD:
            cluster.api.delete(path_of(each))
    wait_until_ungated(cluster)


def wait_until_ungated(cluster: Cluster) -> None:
    """Wait until the API server no longer applies the policy."""

    def free() -> bool:
        probe: Object = cluster.api.request("POST", cluster.pods(), member("probe"), query={"dryRun": "All"})
        return "schedulingGates" not in probe["spec"]

    wait_for(free, "the policy to go")


@pytest.fixture
def waiting(installed: Cluster, tmp_path: Path) -> Cluster:
    """Two pods that wait for a planner, one of them also for somebody else, one that does not, and a ledger."""
    kube = from_kubeconfig(PLANNER, str(installed.kubeconfig(tmp_path / "admin.kubeconfig")))
    kube.create(LEDGERS, ledger(LedgerSpec("planner-0", 1)))
    kube.create(RESERVATIONS, reservation(installed, PLAN))
    kube.close()
    for each in (member("train-0"), member("train-1", schedulingGates=[OTHERS]), pod("plain", 1, **OURS)):
        installed.create_pod(each)
    assert {name: len(gates(installed, name)) for name in PODS} == {"train-0": 1, "train-1": 2, "plain": 0}
    return installed


def run(cluster: Cluster, folder: Path, role: Role, *arguments: str) -> Result:
    """A command, as somebody who may do what its role lists and no more."""
    account = f"{role.name}-{next(_NUMBERS)}"
    grant(cluster, account, role)
    config = cluster.kubeconfig(folder / account, cluster.token(account))
    command = cleanup if role is CLEANER else release
    return CliRunner().invoke(command, ["--kubeconfig", str(config), *arguments])


def test_pods_that_wait_are_released_once_the_planner_is_gone(waiting: Cluster, tmp_path: Path) -> None:
    lines = [
        f"pods/{waiting.namespace}/train-0",
        f"pods/{waiting.namespace}/train-1 (still held by {OTHERS['name']})",
    ]
    uninstall(waiting)

    tried = run(waiting, tmp_path, RELEASER, "--all", "--dry-run")
    untouched = {name: len(gates(waiting, name)) for name in PODS}
    done = run(waiting, tmp_path, RELEASER, "--all")

    assert untouched == {"train-0": 1, "train-1": 2, "plain": 0}
    assert (tried.exit_code, tried.stdout.splitlines()) == (0, [f"would release {line}" for line in lines])
    assert (done.exit_code, done.stdout.splitlines()) == (0, [f"released {line}" for line in lines])
    assert [gates(waiting, name) for name in PODS] == [[], [OTHERS], []]
    cleaned = run(waiting, tmp_path, CLEANER, "--all", "--crd")
    assert (cleaned.exit_code, cleaned.output) == (0, "nothing to remove\n")


def test_records_of_planners_are_kept_while_pods_wait(waiting: Cluster, tmp_path: Path) -> None:
    uninstall_but_definitions(waiting)

    refused = run(waiting, tmp_path, CLEANER, "--all", "--crd")
    released = run(waiting, tmp_path, RELEASER, "-n", waiting.namespace, "--gang", "llm-7")
    cleaned = run(waiting, tmp_path, CLEANER, "--all", "--crd")

    assert (refused.exit_code, "train-0 and 1 more would wait for a planner" in refused.output) == (4, True)
    assert (released.exit_code, cleaned.exit_code) == (0, 0)
    assert cleaned.output.splitlines() == [
        "removed placementledgers/gpus",
        f"removed placementreservations/{waiting.namespace}/llm-7-1a2b3c",
        "removed customresourcedefinitions/placementledgers.gputopo.io",
        "removed customresourcedefinitions/placementreservations.gputopo.io",
    ]
    wait_for(lambda: ours(waiting) == [], "the definitions to go")


def ours(cluster: Cluster) -> list[Object]:
    return [each for each in cluster.api.items(DEFINITIONS) if each["spec"]["group"] == keys.API_GROUP]
