"""The scheduler's manifests on the real API server, and a real kube-scheduler with the files and rights of theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from gputopo.kube.rbac import LEASES
from gputopo.labels.keys import GPUS, MILLICOST_PER_CPU, SCHEDULER_NAME
from scheduler_core.extender.scheduler_config import SERVICE, WEIGHT, render_configuration
from tests.api_client import ApiError
from tests.api_objects import Object, gpu_node, node, pod
from tests.daemonset.tools import DAEMONSET, helm_rendered, kustomized
from tests.e2e import servers
from tests.e2e.agent.access import define_node_gpus
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.daemonset.extenders import Extender
from tests.e2e.daemonset.extenders import extender as running
from tests.e2e.daemonset.installed import NAMESPACE, apply, documents, path_of
from tests.e2e.extender import RecordingExtender
from tests.e2e.fixtures import StartScheduler
from tests.e2e.process import Server, ServerError

pytestmark = pytest.mark.e2e
OVERLAYS = {
    "default": ("scheduler.enabled=true",),
    "cluster-scheduler": ("scheduler.enabled=true", "scheduler.caller=cluster"),
    "planner": ("planner.enabled=true",),
    "observe": ("observe.enabled=true",),
}
PODS = {"default": 2, "cluster-scheduler": 2, "planner": 2, "observe": 1}


@pytest.fixture
def extender() -> Iterator[RecordingExtender]:
    """Answers on loopback."""
    with RecordingExtender() as running:
        yield running


def url_of(extender: RecordingExtender) -> str:
    return str(yaml.safe_load(extender.config())["extenders"][0]["urlPrefix"])


def beside(url: str, text: str, **clients: str) -> str:
    """A configuration whose extender listens where the test's does; how the API server is reached is the test's too."""
    document: Object = yaml.safe_load(text)
    document["extenders"][0]["urlPrefix"] = url
    document["clientConnection"] |= clients
    return yaml.safe_dump(document)


def of_helm(*settings: str) -> list[Object]:
    plain = [path_of(each) for each in helm_rendered() if each["kind"] in NAMESPACED]
    return [each for each in helm_rendered(*settings) if each["kind"] in NAMESPACED and path_of(each) not in plain]


NAMESPACED = {
    *("ServiceAccount", "ConfigMap", "Service", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"),
    *("PriorityClass", "Deployment", "PodDisruptionBudget", "FlowSchema"),
    *("CustomResourceDefinition", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"),
}


@pytest.mark.parametrize("installer", ["kustomize", "helm"])
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_api_server_takes_every_object_and_the_pods_meet_the_strictest_standard(
    cluster: Cluster, controller_manager: Server, overlay: str, installer: str
) -> None:
    """The base's namespace is one that enforces ``restricted``."""
    assert controller_manager.running
    apply(cluster, documents("base/namespace.yaml"))
    apply(cluster, kustomized(f"scheduler/{overlay}") if installer == "kustomize" else of_helm(*OVERLAYS[overlay]))

    pods = wait_for(
        lambda: found if len(found := cluster.api.items(cluster.pods(namespace=NAMESPACE))) == PODS[overlay] else None,
        "the pods of the Deployment",
    )

    (account,) = {each["spec"]["serviceAccountName"] for each in pods}
    assert (
        account
        == {
            "default": "gputopo-scheduler",
            "cluster-scheduler": "gputopo-extender",
            "planner": "gputopo-planner",
            "observe": "gputopo-observe",
        }[overlay]
    )


def start(cluster: Cluster, scheduler: StartScheduler, url: str, folder: Path) -> Server:
    """Start kube-scheduler as the default overlay does: its ConfigMap, its service account, its RBAC roles."""
    apply(cluster, documents("base/namespace.yaml"))
    objects = kustomized("scheduler/default")
    apply(cluster, [each for each in objects if each["kind"] != "Deployment"])
    (config,) = (each["data"]["scheduler-config.yaml"] for each in objects if each["kind"] == "ConfigMap")
    token = cluster.token("gputopo-scheduler", namespace=NAMESPACE)
    kubeconfig = cluster.kubeconfig(folder / "scheduler.kubeconfig", token)
    return scheduler(beside(url, config, kubeconfig=str(kubeconfig)))


def test_a_scheduler_with_that_file_and_those_rights_places_pods_by_what_the_extender_says(
    cluster: Cluster, extender: RecordingExtender, scheduler: StartScheduler, tmp_path: Path
) -> None:
    cluster.api.create_all([("/api/v1/nodes", gpu_node(f"gpu-{number}", 8)) for number in range(3)])
    extender.answers["prioritize"] = lambda asked: [
        {"Host": name, "Score": 7 if name == "gpu-1" else 5} for name in asked["NodeNames"]
    ]
    server = start(cluster, scheduler, url_of(extender), tmp_path)

    cluster.create_pod(pod("train", 4, schedulerName=SCHEDULER_NAME))
    cluster.create_pod(pod("cpu", schedulerName=SCHEDULER_NAME))
    cluster.create_pod(pod("others", 4))

    placed = cluster.wait_for_pod("train", lambda each: "nodeName" in each["spec"], 40.0)
    cluster.wait_for_pod("cpu", lambda each: "nodeName" in each["spec"])
    assert placed["spec"]["nodeName"] == "gpu-1"
    assert [(each.verb, each.body["Pod"]["metadata"]["name"], each.body["Nodes"]) for each in extender.requests] == [
        ("filter", "train", None),
        ("prioritize", "train", None),
    ]
    assert "nodeName" not in cluster.pod("others")["spec"]
    lease = cluster.api.get(LEASES.path("gputopo-scheduler", NAMESPACE))
    assert lease["spec"]["holderIdentity"]
    assert {each.user for each in cluster.writes() if each.resource == "pods/binding"} == {
        f"system:serviceaccount:{NAMESPACE}:gputopo-scheduler"
    }
    assert "forbidden" not in server.log.read_text()


def test_an_island_is_not_outvoted_by_all_stock_plugins_together(
    cluster: Cluster, extender: RecordingExtender, scheduler: StartScheduler, tmp_path: Path
) -> None:
    """Preferred, without a taint, with the friend that the pod wants near and without whom it avoids: but no island."""
    cluster.api.create_all(
        [("/api/v1/nodes", gpu_node(f"gpu-{number}", 8, {"zone": str(number)})) for number in (0, 1)]
    )
    taint = {"spec": {"taints": [{"key": "a", "effect": "PreferNoSchedule"}]}}
    cluster.api.patch("/api/v1/nodes/gpu-1", taint)
    friend = pod("friend", 4, nodeName="gpu-0")
    friend["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "120", "memory": "1000Gi"}
    cluster.create_pod(friend | {"metadata": {"name": "friend", "labels": {"app": "a"}}})
    stranger = pod("stranger", 0, nodeName="gpu-1")
    cluster.create_pod(stranger | {"metadata": {"name": "stranger", "labels": {"app": "b"}}})
    near = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}
    zone = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["0"]}]}
    soft = "preferredDuringSchedulingIgnoredDuringExecution"
    affinity = {
        "nodeAffinity": {soft: [{"weight": 100, "preference": zone}]},
        "podAffinity": {soft: [{"weight": 100, "podAffinityTerm": near}]},
    }
    answers = {"outvoted": 1, "not-outvoted": 2}
    extender.answers["prioritize"] = lambda asked: [
        {"Host": name, "Score": 5 + (answers[asked["Pod"]["metadata"]["name"]] if name == "gpu-1" else 0)}
        for name in asked["NodeNames"]
    ]
    start(cluster, scheduler, url_of(extender), tmp_path)

    apart = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "b"}},
    }
    for name in answers:
        wishes = {"affinity": affinity, "topologySpreadConstraints": [apart]}
        cluster.create_pod(pod(name, 2, schedulerName=SCHEDULER_NAME, **wishes))
    nodes = {
        name: cluster.wait_for_pod(name, lambda each: "nodeName" in each["spec"], 40.0)["spec"]["nodeName"]
        for name in answers
    }

    # One point, 750, against taint 300 + affinity 200 + friend 200 + stranger 200 + balance 81 - 69; two: 1500.
    assert WEIGHT == 75
    assert nodes == {"outvoted": "gpu-0", "not-outvoted": "gpu-1"}


def test_factors_that_were_not_requested_do_not_outweigh_one_point(
    cluster: Cluster, extender: RecordingExtender, scheduler: StartScheduler, tmp_path: Path
) -> None:
    cluster.api.create_all([("/api/v1/nodes", gpu_node(f"gpu-{number}", 8)) for number in (0, 1)])
    busy = pod("busy", nodeName="gpu-0")
    busy["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "64", "memory": "512Gi"}}
    cluster.create_pod(busy)
    points = {"equal": 0, "better": 1}
    extender.answers["prioritize"] = lambda asked: [
        {"Host": name, "Score": 5 + (points[asked["Pod"]["metadata"]["name"]] if name == "gpu-1" else 0)}
        for name in asked["NodeNames"]
    ]
    start(cluster, scheduler, url_of(extender), tmp_path)

    nodes = {}
    for name in points:
        cluster.create_pod(pod(name, 1, schedulerName=SCHEDULER_NAME))
        placed = cluster.wait_for_pod(name, lambda each: "nodeName" in each["spec"], 40.0)
        nodes[name] = placed["spec"]["nodeName"]

    assert nodes == {"equal": "gpu-0", "better": "gpu-1"}  # where the points are equal: GPUs beside CPU that is in use


A100, V100 = "NVIDIA-A100-SXM4-80GB", "Tesla-V100-SXM2-32GB"


def test_with_its_real_extender_it_places_pods_by_the_labels_of_nodes(
    cluster: Cluster, scheduler: StartScheduler, tmp_path: Path
) -> None:
    for name, product in (("a100", A100), ("v100", V100)):
        cluster.api.create("/api/v1/nodes", gpu_node(name, 4, {"nvidia.com/gpu.product": product}))
    define_node_gpus(cluster)
    apply(cluster, [*documents("base/namespace.yaml"), *kustomized("scheduler/default")])
    with running(cluster, "gputopo-scheduler", tmp_path) as sidecar:
        assert sidecar.ready
        server = start(cluster, scheduler, f"http://127.0.0.1:{sidecar.port}", tmp_path)
        for name, product in (("fits", A100), ("misfit", "H100")):
            wanted = pod(name, 1, schedulerName=SCHEDULER_NAME)
            wanted["metadata"]["labels"] = {"accelerator.sched.io/gpu-model": product}
            cluster.create_pod(wanted)

        fits = cluster.wait_for_pod("fits", lambda each: "nodeName" in each["spec"], 40.0)
        misfit = cluster.wait_for_pod("misfit", lambda each: each["status"].get("conditions"))
        assert fits["spec"]["nodeName"] == "a100"
        (condition,) = misfit["status"]["conditions"]
        assert (condition["reason"], condition["message"][:27]) == ("Unschedulable", "0/2 nodes are available: 2 ")
        assert "forbidden" not in server.log.read_text() + sidecar.log.read_text()


def certificates(folder: Path) -> dict[str, str]:
    """Write the files of the Secret in the manifests, as cert-manager would make them. Returns the environment."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.crt")
    for file, leaf in (("tls", authority.issue_cert(SERVICE)), ("client", authority.issue_cert("kube-scheduler"))):
        leaf.private_key_pem.write_to_path(folder / f"{file}.key")
        leaf.cert_chain_pems[0].write_to_path(folder / f"{file}.crt")
    names = {"GPUTOPO_TLS_CERT": "tls.crt", "GPUTOPO_TLS_KEY": "tls.key", "GPUTOPO_CLIENT_CA": "ca.crt"}
    return {variable: str(folder / name) for variable, name in names.items()}


def test_behind_a_service_one_extender_answers_the_clusters_own_scheduler_and_another_takes_over(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A killed leader's Lease must expire; a leader that ends by SIGTERM releases its Lease. Two are never ready."""
    cluster.api.create("/api/v1/nodes", gpu_node("gpu-0", 8))
    define_node_gpus(cluster)
    apply(cluster, [*documents("base/namespace.yaml"), *kustomized("scheduler/cluster-scheduler")])
    variables = certificates(tmp_path) | {"GPUTOPO_LEASE": f"{NAMESPACE}/gputopo-extender"}
    account = "gputopo-extender"

    def alone(*others: Extender) -> Extender | None:
        ready = [each for each in others if each.ready]
        assert len(ready) <= 1
        return ready[0] if ready else None

    def holder() -> str:
        return str(cluster.api.get(LEASES.path("gputopo-extender", NAMESPACE))["spec"].get("holderIdentity", ""))

    def elected(*others: Extender) -> Extender:
        return wait_for(lambda: alone(*others), "one to be ready", 40.0)

    def place(name: str, by: Extender) -> None:
        """With a scheduler that a Service would lead there."""
        document: Object = yaml.safe_load((DAEMONSET / "scheduler/cluster-scheduler/scheduler-config.yaml").read_text())
        files = {key: str(tmp_path / name) for key, name in FILES.items()}
        document["extenders"][0]["tlsConfig"] |= files
        document["extenders"][0]["urlPrefix"] = f"https://127.0.0.1:{by.port}"
        with servers.scheduler(cluster.plane, yaml.safe_dump(document | {"clientConnection": {}})):
            cluster.create_pod(pod(name, 2, schedulerName=SCHEDULER_NAME))
            cluster.wait_for_pod(name, lambda each: "nodeName" in each["spec"], 40.0)

    with (
        running(cluster, account, tmp_path, **variables) as a,
        running(cluster, account, tmp_path, **variables) as b,
    ):
        first = elected(a, b)
        (second,) = {a, b} - {first}
        leading = holder()
        wait_for(lambda: leading in second.page("/readyz")[1], "the other to say who answers")
        assert second.page("/readyz") == (503, f"another extender leads: {leading} holds the Lease\n")
        place("first", first)

        first.stop()
        assert elected(second) is second
        place("second", second)

        with running(cluster, account, tmp_path, **variables) as third:
            before = holder()
            second.end()
            assert holder() != before  # it was let go: nobody waits for 15 s
            assert elected(third) is third
            place("third", third)
    assert "forbidden" not in "".join(log.read_text() for log in tmp_path.glob("extender-*.log"))


FILES = {"caFile": "ca.crt", "certFile": "client.crt", "keyFile": "client.key"}


def test_the_clusters_own_scheduler_starts_with_the_example_and_keeps_its_profile(
    cluster: Cluster, scheduler: StartScheduler
) -> None:
    """The TLS files are the test's. The tests of the extender check that they are used."""
    cluster.api.create("/api/v1/nodes", gpu_node("gpu-0", 8))
    document: Object = yaml.safe_load((DAEMONSET / "scheduler/cluster-scheduler/scheduler-config.yaml").read_text())
    pem = str(cluster.plane.authority.serving)
    tls: Any = document["extenders"][0]["tlsConfig"]
    tls |= {"caFile": str(cluster.plane.authority.certificate), "certFile": pem, "keyFile": pem}
    document["extenders"][0]["urlPrefix"] = "https://127.0.0.1:1"  # nobody is there
    scheduler(yaml.safe_dump(document | {"clientConnection": {}}))

    cluster.create_pod(pod("cpu"))
    cluster.create_pod(pod("train", 1, schedulerName=SCHEDULER_NAME))

    cluster.wait_for_pod("cpu", lambda each: "nodeName" in each["spec"])
    waiting = cluster.wait_for_pod("train", lambda each: each["status"].get("conditions"))
    (condition,) = waiting["status"]["conditions"]
    assert condition["reason"] == "SchedulerError"
    assert "https://127.0.0.1:1/filter" in condition["message"]


def test_two_extenders_for_one_resource_are_refused(scheduler: StartScheduler) -> None:
    document: Object = yaml.safe_load(render_configuration(()))
    document["extenders"] *= 2

    with pytest.raises(ServerError, match="duplicate extender managed resource name"):
        scheduler(yaml.safe_dump(document))


def test_pods_without_gpus_go_to_cheap_nodes_by_the_example_profile(
    cluster: Cluster, scheduler: StartScheduler
) -> None:
    nodes: dict[str, dict[str, str]] = {
        "dear": {},
        "spot": {"karpenter.sh/capacity-type": "spot"},
        "gpu": {"karpenter.sh/capacity-type": "spot", "nvidia.com/gpu.present": "true"},
    }
    size = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    cluster.api.create_all([("/api/v1/nodes", node(name, size, labels)) for name, labels in nodes.items()])
    busy = pod("busy", nodeName="dear")
    busy["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "60", "memory": "240Gi"}}
    cluster.create_pod(busy)
    scheduler((DAEMONSET / "scheduler/examples/cpu-cost-profile.yaml").read_text())

    cluster.create_pod(pod("web", schedulerName="cpu-by-cost"))

    assert cluster.wait_for_pod("web", lambda each: "nodeName" in each["spec"])["spec"]["nodeName"] == "spot"


def test_pods_without_gpus_go_to_the_node_with_the_lowest_cost_per_cpu(
    cluster: Cluster, scheduler: StartScheduler
) -> None:
    """Kubernetes compares whole numbers only: a decimal cost counts as none."""
    costs = {"cheap": "18", "dear": "62", "dearer": "95", "decimal": "0.01", "unlabelled": None}
    size = {"cpu": "4", "memory": "256Gi", "pods": "110"}
    labels = {name: {} if cost is None else {MILLICOST_PER_CPU.key: cost} for name, cost in costs.items()}
    labels["gpu"] = {MILLICOST_PER_CPU.key: "512", "nvidia.com/gpu.present": "true"}
    cluster.api.create_all([("/api/v1/nodes", node(name, size, each)) for name, each in labels.items()])
    scheduler((DAEMONSET / "scheduler/examples/cpu-cost-profile.yaml").read_text())
    placed = []

    for at in range(3):  # three CPUs each: one pod on a node
        web = pod(f"web-{at}", schedulerName="cpu-by-cost")
        web["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "3"}}
        cluster.create_pod(web)
        placed.append(cluster.wait_for_pod(f"web-{at}", lambda each: "nodeName" in each["spec"])["spec"]["nodeName"])

    assert placed == ["cheap", "dear", "dearer"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_deleting_the_applied_objects_leaves_only_the_namespace(
    cluster: Cluster, controller_manager: Server, overlay: str
) -> None:
    assert controller_manager.running
    apply(cluster, documents("base/namespace.yaml"))
    objects = kustomized(f"scheduler/{overlay}")
    apply(cluster, objects)

    for each in reversed(objects):
        cluster.api.delete(path_of(each))

    def gone() -> bool:
        return not any(_there(cluster, path_of(each)) for each in objects)

    wait_for(gone, "the objects to go")
    assert cluster.api.get(f"/api/v1/namespaces/{NAMESPACE}")["status"]["phase"] == "Active"


def _there(cluster: Cluster, path: str) -> bool:
    try:
        cluster.api.get(path)
    except ApiError as refused:
        if refused.status != 404:
            raise
        return False
    return True


def test_pods_without_gpus_leave_gpus_their_cpu_by_the_other_example(
    cluster: Cluster, scheduler: StartScheduler
) -> None:
    nodes = {"eight": "8", "two": "2", "none": ""}
    size = {"cpu": "64", "memory": "256Gi", "pods": "110"}
    cluster.api.create_all(
        [("/api/v1/nodes", node(name, size, {GPUS.key: gpus} if gpus else {})) for name, gpus in nodes.items()]
    )
    scheduler((DAEMONSET / "scheduler/examples/cpu-beside-gpus-profile.yaml").read_text())
    placed = []
    for name in ("first", "second", "third"):
        each = pod(name, schedulerName="cpu-beside-gpus")
        each["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "60"}}
        cluster.create_pod(each)
        placed.append(cluster.wait_for_pod(name, lambda each: "nodeName" in each["spec"])["spec"]["nodeName"])

    assert placed == ["none", "two", "eight"]
