"""The planner's manifests beside those of the scheduler, and the policies that gate pods."""

from __future__ import annotations

import re
from collections.abc import Iterable

import jsonschema
import pytest
import yaml

from daemonset import gating, guarding
from gputopo.crd.reservations import ledger_crd, reservation_crd
from gputopo.kube.rbac import LEDGERS, RESERVATIONS
from gputopo.labels import keys
from gputopo.labels.keys import SCHEDULER_NAME
from gputopo.process.settings import options_of
from scheduler_core.planner.commit.controllers import JOB_TRACKING
from scheduler_core.planner.gang.conventions import GANG_CONVENTIONS
from scheduler_core.planner.settings import PlannerSettings, read_settings
from tests.daemonset.renderings import SPECS, comparable
from tests.daemonset.tools import DAEMONSET, Object, helm_rendered, kustomized, name_of
from tests.daemonset.workloads import containers, deployment, helm_adds, pod

PLANNER = "planner.enabled=true"
WITHOUT_POLICIES = ("admissionPolicy.enabled=false", "admissionPolicy.unrestrictedTokens=accepted")
MUTATING = ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding")
VALIDATING = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


def of_kind(documents: Iterable[Object], *kinds: str) -> list[Object]:
    return [each for each in documents if each["kind"] in kinds]


def test_helm_and_kustomize_install_the_same_gates() -> None:
    gates = of_kind(kustomized("scheduler/planner"), *MUTATING)
    every = tuple(yaml.safe_load_all((DAEMONSET / "scheduler/components/planned-all/gating.yaml").read_text()))

    assert [name_of(each)[::2] for each in (*gates, *every)] == [
        ("MutatingAdmissionPolicy", "gputopo-gangs"),
        ("MutatingAdmissionPolicy", "gputopo-gangs-of-namespaces"),
        ("MutatingAdmissionPolicyBinding", "gputopo-gangs"),
        ("MutatingAdmissionPolicyBinding", "gputopo-gangs-of-namespaces"),
        ("MutatingAdmissionPolicy", "gputopo-planned-all"),
        ("MutatingAdmissionPolicyBinding", "gputopo-planned-all"),
        ("ValidatingAdmissionPolicy", "gputopo-gate-removal"),
        ("ValidatingAdmissionPolicyBinding", "gputopo-gate-removal"),
    ]
    assert comparable(of_kind(helm_adds(PLANNER), *MUTATING)) == comparable(gates)
    kinds = (*MUTATING, *VALIDATING)
    added = comparable(of_kind(helm_adds(PLANNER, "planner.all=true"), *kinds))
    plain = comparable(of_kind(helm_adds(PLANNER), *kinds))
    assert {name: each for name, each in added.items() if name not in plain} == comparable(every)


def test_the_planner_with_gates_is_the_planner_without_and_the_gates() -> None:
    bare = comparable(kustomized("scheduler/planner-without-gates"))
    gated = comparable(kustomized("scheduler/planner"))

    assert of_kind(bare.values(), *MUTATING) == []
    assert {name: each for name, each in gated.items() if each["kind"] not in MUTATING} == bare


def test_the_definitions_are_those_that_the_code_writes_by() -> None:
    found = of_kind(kustomized("scheduler/planner"), "CustomResourceDefinition")

    assert sorted(found, key=str) == sorted([reservation_crd(), ledger_crd()], key=str)
    assert {each["metadata"]["name"] for each in found} == {
        f"{kind.plural}.{kind.group}" for kind in (RESERVATIONS, LEDGERS)
    }


def test_the_gates_spell_the_keys_of_the_contract_and_of_the_rules() -> None:
    (ours, labelled) = of_kind(gating.gang_policies(), "MutatingAdmissionPolicy")
    conditions = [
        {each["name"]: each["expression"] for each in policy["spec"]["matchConditions"]} for policy in (ours, labelled)
    ]
    named = conditions[0]["of-those-that-are-gated"]
    spelled = set(re.findall(r"'([^']*)'", named)) - {"", "true"}

    of_rules = {key for rule in GANG_CONVENTIONS for key in (*rule.keys, *rule.needs)} | {
        key for rule in GANG_CONVENTIONS for key, _ in rule.unless
    }
    values = {value for rule in GANG_CONVENTIONS for _, several in rule.unless for value in several} - {"true"}
    assert spelled == {keys.POD_GANG.key, keys.POD_PLANNED.key, *of_rules, *values}
    assert conditions[1]["of-those-that-are-gated"] == named
    assert [each["opted-in"].partition(" in ")[2] for each in conditions] == [
        f"['{SCHEDULER_NAME}']",
        f"['{SCHEDULER_NAME}', 'default-scheduler']",
    ]
    assert labelled["spec"]["matchConstraints"]["namespaceSelector"] == {"matchLabels": {"gputopo.io/gangs": "enabled"}}
    assert "namespaceSelector" not in ours["spec"]["matchConstraints"]


def test_a_gang_of_which_a_pod_cannot_be_judged_does_not_start_in_part() -> None:
    every = of_kind((*gating.gang_policies(), *gating.planned_pod_policy()), "MutatingAdmissionPolicy")

    assert {(each["spec"]["failurePolicy"], each["spec"]["reinvocationPolicy"]) for each in every} == {
        ("Fail", "IfNeeded")
    }
    assert {str(each["spec"]["matchConstraints"]["resourceRules"]) for each in every} == {
        "[{'apiGroups': [''], 'apiVersions': ['v1'], 'operations': ['CREATE'], 'resources': ['pods']}]"
    }


def test_the_guard_spells_what_the_planner_writes_and_refuses_what_it_cannot_judge() -> None:
    (policy, binding) = guarding.planner_policy()
    texts = str(policy["spec"]["variables"]) + str(policy["spec"]["validations"])

    spelled = set(re.findall(r"(?:gputopo\.io|batch\.kubernetes\.io)/[a-z-]+", texts))
    assert spelled == {keys.GATE, JOB_TRACKING, *(key.key for key in keys.WRITTEN_ON_PODS)}
    assert (policy["spec"]["failurePolicy"], binding["spec"]["validationActions"]) == ("Fail", ["Deny"])
    assert of_kind(helm_adds(PLANNER, *WITHOUT_POLICIES), policy["kind"]) == []


def test_only_who_writes_the_ledger_writes_the_annotations_of_the_planner() -> None:
    (policy, binding) = guarding.pod_annotations()
    spec = policy["spec"]
    conditions = {each["name"]: each["expression"] for each in spec["matchConditions"]}
    (validation,) = spec["validations"]

    written = {key.key for key in keys.WRITTEN_ON_PODS}
    for text in (conditions["with-annotations-of-the-planner"], validation["expression"], validation["message"]):
        assert set(re.findall(r"gputopo\.io/[a-z-]+", text)) == written
    assert f"group('{LEDGERS.group}').resource('{LEDGERS.plural}').check('update')" in conditions["not-by-the-planner"]
    assert spec["matchConstraints"]["resourceRules"] == [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["pods", "pods/*", "bindings"],
        }
    ]
    assert (spec["failurePolicy"], binding["spec"]["validationActions"]) == ("Fail", ["Deny"])


@pytest.mark.parametrize(("enabled", "said"), [("true", "guarded"), ("false", "unguarded")])
def test_the_planner_uses_annotations_only_where_the_admission_policy_is_installed(enabled: str, said: str) -> None:
    settings = (f"admissionPolicy.enabled={enabled}", "admissionPolicy.unrestrictedTokens=accepted")
    (planner,) = deployment(helm_adds(PLANNER, *settings))["spec"]["template"]["spec"]["containers"]

    assert {"name": "GPUTOPO_ANNOTATIONS", "value": said} in planner["env"]


def test_two_planners_run_and_a_standby_is_ready_before_the_other_one_goes() -> None:
    documents = kustomized("scheduler/planner")
    spec = deployment(documents)["spec"]
    (budget,) = of_kind(documents, "PodDisruptionBudget")
    planner = containers(pod("planner"))["planner"]

    assert (spec["replicas"], spec["strategy"]) == (2, {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}})
    assert (budget["spec"]["maxUnavailable"], budget["spec"]["selector"]) == (1, spec["selector"])
    assert (planner["args"], planner["env"]) == (
        ["planner"],
        [
            {"name": "GPUTOPO_LEASE", "value": "gputopo/gputopo-planner"},
            {"name": "GPUTOPO_ANNOTATIONS", "value": "guarded"},
        ],
    )
    assert [planner[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "liveness", "readiness")] == [
        "/healthz",
        "/healthz",
        "/readyz",
    ]
    assert spec["template"]["spec"]["schedulerName"] == "default-scheduler"


def test_every_variable_is_a_setting_of_the_planner_and_the_lease_is_the_one_that_it_may_write() -> None:
    documents = kustomized("scheduler/planner")
    environment = {each["name"]: each["value"] for each in containers(pod("planner"))["planner"]["env"]}
    (role,) = of_kind(documents, "Role")

    assert environment.keys() <= {setting.variable for setting in options_of(PlannerSettings)}
    assert read_settings({}, environment).lease == (role["metadata"]["namespace"], role["rules"][1]["resourceNames"][0])
    assert {setting.variable: setting.default for setting in options_of(PlannerSettings)}["GPUTOPO_LISTEN"] == ":9439"


def test_values_that_differ_between_clusters() -> None:
    documents = helm_adds(
        PLANNER,
        "image.repository=registry.example.com/gputopo",
        "image.pullPolicy=Always",
        "imagePullSecrets[0].name=pull",
        "planner.settings.GPUTOPO_LOG=json",
        "planner.resources.limits.memory=8Gi",
        namespace="gpu-tools",
    )
    spec = deployment(documents)["spec"]["template"]["spec"]
    (planner,) = spec["containers"]

    assert planner["image"].startswith("registry.example.com/gputopo:")
    assert (planner["imagePullPolicy"], spec["imagePullSecrets"]) == ("Always", [{"name": "pull"}])
    assert planner["env"] == [
        {"name": "GPUTOPO_LEASE", "value": "gpu-tools/gputopo-planner"},
        {"name": "GPUTOPO_ANNOTATIONS", "value": "guarded"},
        {"name": "GPUTOPO_LOG", "value": "json"},
    ]
    assert planner["resources"]["limits"] == {"memory": "8Gi"}
    assert {each["metadata"]["namespace"] for each in documents if "namespace" in each["metadata"]} == {"gpu-tools"}


def test_alerts_come_with_the_planner_and_not_without() -> None:
    monitoring = ("monitoring.podMonitor.enabled=true", "monitoring.prometheusRule.enabled=true")
    (rule,) = yaml.safe_load_all(
        (DAEMONSET / "scheduler/components/planner-monitoring/prometheus-rule.yaml").read_text(encoding="utf-8")
    )
    jsonschema.validate(rule["spec"], SPECS["PrometheusRule"])

    def rules(*settings: str) -> list[Object]:
        return of_kind(helm_rendered(*settings, *monitoring), "PrometheusRule")

    plain = {name_of(each) for each in rules()}
    assert comparable(each for each in rules(PLANNER) if name_of(each) not in plain) == comparable([rule])
    assert ("PrometheusRule", "gputopo", "gputopo-planner") not in {
        name_of(each) for each in rules("scheduler.enabled=true")
    }


@pytest.mark.parametrize(
    "policy",
    gating.gang_policies() + gating.planned_pod_policy(),
    ids=lambda each: f"{each['kind']} {each['metadata']['name']}",
)
def test_the_policies_have_the_shape_of_their_kind(policy: Object) -> None:
    """Kubernetes 1.36 brought them to v1; the API server itself takes them in tests/e2e."""
    fields = {"MutatingAdmissionPolicyBinding": {"policyName"}}.get(
        policy["kind"], {"failurePolicy", "reinvocationPolicy", "matchConstraints", "matchConditions", "mutations"}
    )

    assert policy["apiVersion"] == "admissionregistration.k8s.io/v1"
    assert policy["spec"].keys() == fields
