"""The second scheduler, the extender behind a Service, and the observer, as kustomize and as Helm install them."""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Iterable
from typing import Any

import jsonschema
import pytest
import yaml

from gputopo import __version__
from gputopo.kube.rbac import (
    ELECTION,
    EXTENDER,
    LEASES,
    NODE_GPUS,
    NODES,
    OBSERVER,
    PAGE_REVIEWER,
    PLANNER,
    PODS,
    PREEMPTOR,
    PROVISIONER,
    UI,
    Role,
)
from gputopo.process.settings import options_of
from scheduler_core.extender.main import own_pod_name
from scheduler_core.extender.scheduler_config import LOOPBACK, SERVICE, Caller, render_configuration
from scheduler_core.extender.settings import ExtenderSettings, read_settings
from tests.daemonset.renderings import ENDPOINT, SPECS, comparable, minor, only
from tests.daemonset.roles import granted, used
from tests.daemonset.tools import CHART, DAEMONSET, Object, helm_rendered, kustomized, name_of, run, tool
from tests.daemonset.workloads import containers, deployment, helm_adds, pod

TAG = yaml.safe_load((DAEMONSET / "scheduler/default/kustomization.yaml").read_text())["images"][1]["newTag"]
CONFIG = "gputopo-scheduler-config"
SETTINGS = {
    "default": ("scheduler.enabled=true", f"scheduler.kubeScheduler.tag={TAG}"),
    "cluster-scheduler": ("scheduler.enabled=true", "scheduler.caller=cluster"),
    "planner-without-gates": ("planner.enabled=true", "planner.gates=false"),
    "observe": ("observe.enabled=true",),
    "ui": ("ui.enabled=true",),
}
ROLES = {
    "default": EXTENDER,
    "cluster-scheduler": EXTENDER,
    "planner-without-gates": PLANNER,
    "observe": OBSERVER,
    "ui": Role("ui-server", {**UI.verbs, **PAGE_REVIEWER.verbs}),
}
MONITORING = ("monitoring.podMonitor.enabled=true", "monitoring.prometheusRule.enabled=true")


def without_hash(documents: Iterable[Object]) -> dict[tuple[str, str, str], Object]:
    """Return objects by name, without hashes: in the ConfigMap's name (kustomize), in the pods' annotation (Helm)."""
    found: dict[tuple[str, str, str], Object] = {}
    for each in comparable(documents).values():
        if each["kind"] == "ConfigMap":
            each["metadata"]["name"] = CONFIG
            each["data"] = {name: text.strip() for name, text in each["data"].items()}
        if each["kind"] == "Deployment":
            template = each["spec"]["template"]
            template["metadata"].pop("annotations", None)
            for volume in template["spec"].get("volumes", ()):
                if "configMap" in volume:
                    volume["configMap"]["name"] = CONFIG
        found[name_of(each)] = each
    return found


def certificates() -> tuple[Object, ...]:
    text = (DAEMONSET / "scheduler/components/cert-manager/certificates.yaml").read_text(encoding="utf-8")
    return tuple(yaml.safe_load_all(text))


def values_of(container: Object) -> dict[str, str]:
    """The environment, but for what the pod says of itself."""
    return {each["name"]: each["value"] for each in container.get("env", ()) if "value" in each}


@pytest.mark.parametrize("overlay", SETTINGS)
def test_helm_and_kustomize_install_the_same(overlay: str) -> None:
    assert without_hash(helm_adds(*SETTINGS[overlay])) == without_hash(kustomized(f"scheduler/{overlay}"))


def test_helm_and_kustomize_make_the_same_certificates_and_monitor_the_same() -> None:
    plain = {name_of(each) for each in helm_rendered(*SETTINGS["cluster-scheduler"])}
    made = helm_rendered(*SETTINGS["cluster-scheduler"], "scheduler.certManager=true")
    assert comparable(each for each in made if name_of(each) not in plain) == comparable(certificates())

    agents = {name_of(each) for each in helm_rendered(*MONITORING)}
    plain = {name_of(each) for each in helm_rendered(*SETTINGS["default"])}
    extra = [
        each
        for each in helm_rendered(*SETTINGS["default"], *MONITORING)
        if name_of(each) not in plain and name_of(each) not in agents
    ]
    assert comparable(extra) == comparable(kustomized("scheduler/components/monitoring"))


@pytest.mark.parametrize("age", [pytest.param(age, id=f"{age} minors old") for age in range(3)])
@pytest.mark.parametrize("overlay", SETTINGS)
def test_the_schemas_of_kubernetes_take_every_object(overlay: str, age: int) -> None:
    version = minor(age)
    from kubernetes_validate import validate

    for document in (*kustomized(f"scheduler/{overlay}"), *helm_adds(*SETTINGS[overlay])):
        assert validate(copy.deepcopy(document), version, strict=True).startswith(version)


NAMES = {"type": "array", "items": {"type": "string"}}
KEY = {
    "type": "object",
    "additionalProperties": False,
    "required": ["algorithm", "size"],
    "properties": {"algorithm": {"const": "ECDSA"}, "size": {"const": 256}, "rotationPolicy": {"const": "Always"}},
}
DURATION = {"type": "string", "pattern": "^[0-9]+h$"}
# What ours use of cert-manager's API: https://cert-manager.io/docs/reference/api-docs/
CERTIFICATE = {
    "type": "object",
    "additionalProperties": False,
    "required": ["secretName", "duration", "renewBefore", "privateKey", "issuerRef"],
    "properties": {
        "isCA": {"const": True},
        "commonName": {"type": "string", "maxLength": 64},
        "dnsNames": NAMES,
        "usages": {"type": "array", "items": {"enum": ["server auth", "client auth"]}},
        "secretName": {"type": "string"},
        "duration": DURATION,
        "renewBefore": DURATION,
        "privateKey": KEY,
        "issuerRef": only(name={"type": "string"}),
    },
}


def test_objects_of_others_have_the_shape_that_they_want() -> None:
    (monitor, rule) = kustomized("scheduler/components/monitoring")
    expression = only(key={"type": "string"}, operator={"const": "In"}, values=NAMES)
    selector = only(matchExpressions={"type": "array", "items": expression})
    endpoint = {**ENDPOINT, "required": ["port", "interval"]}
    shape = only(selector=selector, podMetricsEndpoints={"type": "array", "items": endpoint})
    jsonschema.validate(monitor["spec"], shape)
    jsonschema.validate(rule["spec"], SPECS["PrometheusRule"])
    for each in certificates():
        if each["kind"] == "Certificate":
            jsonschema.validate(each["spec"], CERTIFICATE)


def test_the_monitor_scrapes_the_pods_that_there_are() -> None:
    (monitor, _) = kustomized("scheduler/components/monitoring")
    (expression,) = monitor["spec"]["selector"]["matchExpressions"]
    scraped = set(SETTINGS) - {"ui"}  # it serves no metrics
    labels = {
        deployment(kustomized(f"scheduler/{overlay}"))["spec"]["template"]["metadata"]["labels"][expression["key"]]
        for overlay in scraped
    }

    assert set(expression["values"]) == labels
    for overlay in scraped:
        assert [
            port for each in containers(pod(overlay)).values() for port in each["ports"] if port["name"] == "metrics"
        ] == [{"name": "metrics", "containerPort": 9439}]


def cluster_role(documents: Iterable[Object]) -> list[Object]:
    """The roles of accounts, without the one that viewers are bound to."""
    return [
        each for each in documents if each["kind"] == "ClusterRole" and each["metadata"]["name"] != "gputopo-ui-viewer"
    ]


@pytest.mark.parametrize("overlay", SETTINGS)
def test_rbac_grants_what_the_code_calls_and_no_more(overlay: str) -> None:
    assert granted(cluster_role(kustomized(f"scheduler/{overlay}"))) == used(ROLES[overlay])
    assert granted(cluster_role(helm_adds(*SETTINGS[overlay]))) == used(ROLES[overlay])


@pytest.mark.parametrize("role", [EXTENDER, OBSERVER], ids=lambda role: role.name)
def test_extender_and_observer_only_read_and_the_extender_says_what_it_holds(role: Role) -> None:
    found = {resource: set(verbs) for resource, verbs in role.verbs.items()}

    assert {NODES, PODS, NODE_GPUS} <= {resource for resource, verbs in found.items() if verbs == {"list", "watch"}}
    assert {(resource.rbac_name, *verbs) for resource, verbs in found.items() if verbs != {"list", "watch"}} == (
        {("events", "create"), ("placementledgers/status", "patch")} if role is EXTENDER else set()
    )


@pytest.mark.parametrize(
    ("overlay", "lease"),
    [
        ("default", "gputopo-scheduler"),
        ("cluster-scheduler", "gputopo-extender"),
        ("planner-without-gates", "gputopo-planner"),
    ],
)
def test_of_leases_only_the_own_one_can_be_changed(overlay: str, lease: str) -> None:
    (role,) = (each for each in kustomized(f"scheduler/{overlay}") if each["kind"] == "Role")
    create, change = role["rules"]

    assert create == {"apiGroups": [LEASES.group], "resources": [LEASES.plural], "verbs": ["create"]}
    assert change == {**create, "verbs": ["get", "update"], "resourceNames": [lease]}
    assert sorted((*create["verbs"], *change["verbs"])) == sorted(ELECTION.verbs[LEASES])
    assert role["metadata"]["namespace"] == "gputopo"


@pytest.mark.parametrize(
    ("overlay", "account", "bound"),
    [
        pytest.param(
            "default",
            "gputopo-scheduler",
            {
                ("ClusterRole", "system:kube-scheduler", ""),
                ("ClusterRole", "system:volume-scheduler", ""),
                ("ClusterRole", "gputopo-extender", ""),
                ("Role", "extension-apiserver-authentication-reader", "kube-system"),
                ("Role", "gputopo-scheduler", "gputopo"),
            },
            id="the second scheduler",
        ),
        pytest.param(
            "cluster-scheduler",
            "gputopo-extender",
            {("ClusterRole", "gputopo-extender", ""), ("Role", "gputopo-extender", "gputopo")},
            id="behind a Service",
        ),
        pytest.param(
            "planner-without-gates",
            "gputopo-planner",
            {("ClusterRole", "gputopo-planner", ""), ("Role", "gputopo-planner", "gputopo")},
            id="the planner",
        ),
        pytest.param("observe", "gputopo-observe", {("ClusterRole", "gputopo-observe", "")}, id="the observer"),
        pytest.param("ui", "gputopo-ui", {("ClusterRole", "gputopo-ui", "")}, id="the pages"),
    ],
)
def test_role_bindings_of_each_account(overlay: str, account: str, bound: set[tuple[str, str, str]]) -> None:
    for documents in (kustomized(f"scheduler/{overlay}"), helm_adds(*SETTINGS[overlay])):
        bindings = [each for each in documents if each["kind"].endswith("RoleBinding")]
        subject = {"kind": "ServiceAccount", "name": account, "namespace": "gputopo"}
        assert all(each["subjects"] == [subject] for each in bindings)
        found = [
            (each["roleRef"]["kind"], each["roleRef"]["name"], each["metadata"].get("namespace", ""))
            for each in bindings
        ]
        assert (len(found), set(found)) == (len(bound), bound)


def test_the_config_map_is_what_the_command_prints() -> None:
    for documents in (kustomized("scheduler/default"), helm_adds(*SETTINGS["default"])):
        (found,) = (each for each in documents if each["kind"] == "ConfigMap")
        assert {name: text.strip() for name, text in found["data"].items()} == {
            "scheduler-config.yaml": render_configuration(()).strip()
        }
    example = DAEMONSET / "scheduler/cluster-scheduler/scheduler-config.yaml"
    assert example.read_text() == render_configuration((), Caller.CLUSTER)


def test_a_change_of_the_configuration_replaces_the_pods() -> None:
    kustomize = deployment(kustomized("scheduler/default"))["spec"]["template"]["spec"]["volumes"]
    assert kustomize[0]["configMap"]["name"].startswith(f"{CONFIG}-")

    plain, changed = (
        deployment(helm_adds(*SETTINGS["default"], *more))["spec"]["template"]["metadata"]["annotations"]
        for more in ((), ("scheduler.config=apiVersion: x",))
    )
    assert plain.keys() == changed.keys() == {"checksum/config"}
    assert plain != changed


def test_scheduler_and_extender_meet_where_both_expect_it() -> None:
    defaults = {setting.variable: setting.default for setting in options_of(ExtenderSettings)}
    both = containers(pod("default"))

    assert f"http://{defaults['GPUTOPO_VERBS']}" == LOOPBACK
    assert (both["extender"]["args"], values_of(both["extender"])) == (["extender"], {})
    assert defaults["GPUTOPO_LISTEN"] == ":9439"
    (service,) = (each for each in kustomized("scheduler/cluster-scheduler") if each["kind"] == "Service")
    metadata, (port,) = service["metadata"], service["spec"]["ports"]
    alone = containers(pod("cluster-scheduler"))["extender"]
    environment = values_of(alone)
    assert f"{metadata['name']}.{metadata['namespace']}.svc" == SERVICE
    assert {"name": port["targetPort"], "containerPort": port["port"]} in alone["ports"]
    assert environment["GPUTOPO_VERBS"] == f":{port['port']}" == f":{LOOPBACK.rpartition(':')[2]}"
    assert service["spec"]["selector"].items() <= (
        deployment(kustomized("scheduler/cluster-scheduler"))["spec"]["template"]["metadata"]["labels"].items()
    )


def test_every_variable_is_a_setting_of_the_extender_and_has_a_value_that_it_takes() -> None:
    alone = containers(pod("cluster-scheduler"))["extender"]
    environment = values_of(alone)

    assert environment.keys() <= {setting.variable for setting in options_of(ExtenderSettings)}
    settings = read_settings({}, environment)
    (volume,) = alone["volumeMounts"]
    assert settings.certificates is not None
    assert settings.certificates.client_ca is not None
    for path in settings.certificates[:3]:
        assert str(path).startswith(f"{volume['mountPath']}/")
    assert settings.lease == ("gputopo", "gputopo-extender")


@pytest.mark.parametrize("overlay", ["default", "cluster-scheduler"])
def test_an_extender_knows_in_which_pod_it_runs(overlay: str) -> None:
    result = {
        each["name"]: each["valueFrom"] for each in containers(pod(overlay))["extender"]["env"] if "valueFrom" in each
    }
    paths = {name: each["fieldRef"]["fieldPath"] for name, each in result.items()}

    assert paths == {"POD_NAMESPACE": "metadata.namespace", "POD_NAME": "metadata.name"}
    assert own_pod_name(dict(paths)) == "metadata.namespace/metadata.name"


def test_a_scheduler_starts_after_its_extender_is_synced_and_ends_before_it() -> None:
    """A native sidecar: an init container that is restarted always, whose startup probe holds up what follows."""
    spec = pod("default")
    (extender,) = spec["initContainers"]
    (scheduler,) = spec["containers"]

    assert extender["restartPolicy"] == "Always"
    assert extender["startupProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    assert scheduler["command"] == ["kube-scheduler", "--config=/etc/gputopo/scheduler-config.yaml"]
    assert spec["schedulerName"] == "default-scheduler"


def test_behind_a_service_neither_rollout_nor_drain_waits_for_a_standby_to_get_ready() -> None:
    documents = kustomized("scheduler/cluster-scheduler")
    spec = deployment(documents)["spec"]
    (container,) = spec["template"]["spec"]["containers"]

    assert spec["strategy"] == {"rollingUpdate": {"maxUnavailable": "100%", "maxSurge": "100%"}}
    assert container["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert (
        container["lifecycle"]["preStop"]["sleep"]["seconds"]
        < spec["template"]["spec"]["terminationGracePeriodSeconds"]
    )
    assert [each for each in documents if each["kind"] == "PodDisruptionBudget"] == []


@pytest.mark.parametrize("overlay", SETTINGS)
def test_no_container_is_throttled_or_may_do_more_than_it_needs(overlay: str) -> None:
    spec = pod(overlay)

    assert (
        spec["securityContext"].items() >= {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}.items()
    )
    for each in containers(spec).values():
        assert "cpu" not in each["resources"]["limits"]
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }


@pytest.mark.parametrize("overlay", SETTINGS)
def test_the_image_has_the_version_of_the_code(overlay: str) -> None:
    (image, *_) = yaml.safe_load((DAEMONSET / f"scheduler/{overlay}/kustomization.yaml").read_text())["images"]

    assert image == {"name": "gputopo", "newTag": __version__}


@pytest.mark.parametrize("version", ["v1.34.4", "v1.34.4-gke.1000", "v1.34.4+k3s1"])
def test_helm_takes_the_scheduler_of_the_api_servers_version(version: str) -> None:
    text = run("helm", "template", "x", CHART, "--set", "scheduler.enabled=true", "--kube-version", version)

    assert "image: registry.k8s.io/kube-scheduler:v1.34.4\n" in text


def test_values_that_differ_between_clusters() -> None:
    documents = helm_adds(
        *SETTINGS["default"],
        "image.repository=registry.example.com/gputopo",
        "image.pullPolicy=Always",
        "imagePullSecrets[0].name=pull",
        "scheduler.kubeScheduler.repository=registry.example.com/kube-scheduler",
        "scheduler.settings.GPUTOPO_LOG=text",
        "scheduler.resources.extender.limits.memory=8Gi",
        namespace="gpu-tools",
    )
    spec = deployment(documents)["spec"]["template"]["spec"]
    both = containers(spec)

    assert both["extender"]["image"] == f"registry.example.com/gputopo:{__version__}"
    assert both["extender"]["imagePullPolicy"] == "Always"
    assert values_of(both["extender"]) == {"GPUTOPO_LOG": "text"}
    assert both["extender"]["resources"]["limits"] == {"memory": "8Gi"}
    assert both["scheduler"]["image"] == f"registry.example.com/kube-scheduler:{TAG}"
    assert both["scheduler"]["command"][-1] == "--leader-elect-resource-namespace=gpu-tools"
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert {each["metadata"]["namespace"] for each in documents if "namespace" in each["metadata"]} == {
        "gpu-tools",
        "kube-system",
    }


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        pytest.param("scheduler.caller=third", "'second', 'cluster'", id="a caller that there is not"),
        pytest.param("scheduler.kubeScheduler.tag=latest", "latest", id="a scheduler of no known version"),
        pytest.param("scheduler.settings.GPUTOPO_LEASE=a/b", "GPUTOPO_LEASE", id="a setting with a value of its own"),
        pytest.param("planner.settings.GPUTOPO_LEASE=a/b", "GPUTOPO_LEASE", id="a Lease of the planner's own"),
        pytest.param("planner.provisioningClass=Check Capacity", "provisioningClass", id="no name of a class"),
        pytest.param(
            "planner.settings.GPUTOPO_PROVISIONING_CLASS=a.b",
            "GPUTOPO_PROVISIONING_CLASS",
            id="a class without its rights",
        ),
        pytest.param("observe.enable=true", "additional properties 'enable' not allowed", id="a misspelled value"),
    ],
)
def test_a_mistake_in_the_values_is_named(setting: str, complaint: str) -> None:
    command: list[Any] = [tool("helm"), "template", "x", CHART, "--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert complaint in done.stderr


def test_the_provisioning_component_grants_what_the_planner_calls() -> None:
    folder = DAEMONSET / "scheduler/components/provisioning"
    documents = list(yaml.safe_load_all((folder / "roles.yaml").read_text(encoding="utf-8")))

    assert granted(cluster_role(documents)) == used(PROVISIONER)
    assert "GPUTOPO_PROVISIONING_CLASS" in (folder / "kustomization.yaml").read_text(encoding="utf-8")


def test_the_preemption_component_and_the_chart_grant_what_the_planner_calls() -> None:
    folder = DAEMONSET / "scheduler/components/preemption"
    documents = list(yaml.safe_load_all((folder / "roles.yaml").read_text(encoding="utf-8")))
    added = {name_of(each) for each in helm_adds("planner.enabled=true", "planner.preemption=true")}

    assert granted(cluster_role(documents)) == used(PREEMPTOR)
    assert {name_of(each) for each in documents} <= added
    assert not any("preemptor" in str(each) for each in helm_adds("planner.enabled=true"))


DEPLOYED = ("Deployment", "gputopo", "gputopo-planner")


def test_the_chart_grants_what_the_component_grants() -> None:
    """The flag without the rights would only write Events about requests that could not be made."""
    folder = DAEMONSET / "scheduler/components/provisioning"
    (patch,) = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))["patches"]
    (added,) = yaml.safe_load(patch["patch"])
    settings = ("planner.enabled=true", f"planner.provisioningClass={added['value']['value']}")

    with_class, without = comparable(helm_adds(*settings)), comparable(helm_adds(settings[0]))

    roles = comparable(yaml.safe_load_all((folder / "roles.yaml").read_text(encoding="utf-8")))
    assert {name: with_class[name] for name in with_class.keys() - without.keys()} == roles
    assert {name for name in without if with_class[name] != without[name]} == {DEPLOYED}
    container = containers(with_class[DEPLOYED]["spec"]["template"]["spec"])["planner"]
    assert added["value"] in container["env"]
