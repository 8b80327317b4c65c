"""The rights, settings and names in the manifests are those that the code uses."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
import yaml

from agent.daemon.events import REASONS
from agent.daemon.settings import AgentSettings
from gputopo import __version__
from gputopo.kube.rbac import AGENT, AGENT_WITH_NFD, AGENT_WITH_TOPOLOGY, NODE_GPUS, NODES, Role
from gputopo.labels import keys
from gputopo.process.settings import options_of
from scheduler_core.planner.leader.events import EventReason
from tests.daemonset.roles import granted, used
from tests.daemonset.tools import CHART, DAEMONSET, Object, helm_rendered, kustomized

VARIANTS = [
    pytest.param("default", (), AGENT, id="default"),
    pytest.param("nfd", ("publish=nodefeature",), AGENT_WITH_NFD, id="nfd"),
    pytest.param("no-kubelet-socket", ("kubeletSocket.enabled=false",), AGENT, id="no-kubelet-socket"),
]


@pytest.mark.parametrize(("overlay", "settings", "role"), VARIANTS)
def test_rbac_grants_what_the_code_calls_and_no_more(overlay: str, settings: tuple[str, ...], role: Role) -> None:
    assert granted(kustomized(f"overlays/{overlay}")) == used(role)
    assert granted(helm_rendered(*settings)) == used(role)


@pytest.mark.parametrize(("overlay", "settings", "role"), VARIANTS)
def test_every_role_is_bound_to_the_agent_only(overlay: str, settings: tuple[str, ...], role: Role) -> None:
    assert role.name == "agent"
    for documents in (kustomized(f"overlays/{overlay}"), helm_rendered(*settings)):
        roles = {(each["kind"], each["metadata"]["name"]) for each in documents if each["kind"].endswith("Role")}
        bindings = [each for each in documents if each["kind"] in {"RoleBinding", "ClusterRoleBinding"}]
        assert {(each["roleRef"]["kind"], each["roleRef"]["name"]) for each in bindings} == roles
        account = {"kind": "ServiceAccount", "name": "gputopo-agent", "namespace": "gputopo-agent"}
        assert all(each["subjects"] == [account] for each in bindings)


def test_node_resource_topologies_are_read_only_where_they_are_switched_on() -> None:
    folder = DAEMONSET / "components/node-resource-topology"
    documents = list(yaml.safe_load_all((folder / "roles.yaml").read_text(encoding="utf-8")))
    patch = yaml.safe_load((folder / "daemonset.yaml").read_text(encoding="utf-8"))["spec"]["template"]["spec"]
    rendered = helm_rendered("nodeResourceTopology=true")

    assert granted(documents) == used(AGENT_WITH_TOPOLOGY)
    assert granted(rendered) == used(AGENT) | used(AGENT_WITH_TOPOLOGY)
    (wanted,) = patch["containers"][0]["env"]
    assert environment(rendered)[wanted["name"]] == wanted["value"]
    assert wanted["name"] in {setting.variable for setting in options_of(AgentSettings)}
    added = [each for each in rendered if each["metadata"]["name"] == "gputopo-agent-topology"]
    assert [each["kind"] for each in added] == [each["kind"] for each in documents]
    for each, ours in zip(documents, added, strict=True):
        assert {name: ours[name] for name in each if name != "metadata"} == {
            name: each[name] for name in each if name != "metadata"
        }


def environment(documents: Iterable[Object]) -> dict[str, str | None]:
    """The agent's environment; None: from the pod's own fields."""
    (daemonset,) = (each for each in documents if each["kind"] == "DaemonSet")
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value") for each in container["env"]}


@pytest.mark.parametrize("overlay", ["default", "nfd", "no-kubelet-socket", "demo"])
def test_every_variable_is_a_setting_of_the_agent_and_has_a_value_that_it_takes(overlay: str) -> None:
    variables = environment(kustomized(f"overlays/{overlay}"))
    settings = {setting.variable: setting for setting in options_of(AgentSettings)}
    ours = {name: value for name, value in variables.items() if not name.startswith("NVIDIA_")}

    assert ours.keys() <= settings.keys()
    for name, value in ours.items():
        if value is not None:
            settings[name].parse(value)


def test_the_probes_and_the_socket_are_where_the_agent_has_them_by_default() -> None:
    defaults = {setting.variable: setting.default for setting in options_of(AgentSettings)}
    (daemonset,) = (each for each in kustomized("overlays/default") if each["kind"] == "DaemonSet")
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]

    assert [f":{port['containerPort']}" for port in container["ports"]] == [defaults["GPUTOPO_LISTEN"]]
    assert environment([daemonset])["GPUTOPO_SOCKET"] == defaults["GPUTOPO_SOCKET"]


def policies(file: str) -> dict[str, Object]:
    documents = yaml.safe_load_all((DAEMONSET / file).read_text(encoding="utf-8"))
    return {each["metadata"]["name"]: each["spec"] for each in documents if each["kind"] == "ValidatingAdmissionPolicy"}


def keys_of(expression: str) -> set[str]:
    """The keys and prefixes that an expression spells."""
    return set(re.findall(r"'([a-z.-]+/[^',]*)'", expression))


def test_the_policies_list_the_keys_of_the_contract_one_by_one() -> None:
    """A prefix would include the keys of administrators."""
    own = {key.key for key in keys.NODE_LABELS if key != keys.PRODUCT} | {keys.PRODUCT_PREFIX}
    mirrors, annotations = {key.key for key in keys.MIRRORS}, {key.key for key in keys.NODE_ANNOTATIONS}
    foreign = {
        name: next(each["expression"] for each in policy["variables"] if each["name"] == "foreign")
        for file in ("base/admission.yaml", "overlays/nfd/admission.yaml")
        for name, policy in policies(file).items()
        if name in {"gputopo-agent-nodes", "gputopo-agent-nodefeatures"}
    }
    of_labels, of_annotations = foreign["gputopo-agent-nodes"].split("variables.touchedAnnotations")

    assert keys_of(of_labels) == own | mirrors
    assert keys_of(of_annotations) == annotations
    assert keys_of(foreign["gputopo-agent-nodefeatures"]) == own
    assert {text.split("startsWith(")[1].split(")")[0] for text in foreign.values()} == {f"'{keys.PRODUCT_PREFIX}'"}
    assert not (own | mirrors | annotations) & {key.key for key in keys.NODE_KEYS_READ}


def test_the_policies_cover_what_the_agent_may_write() -> None:
    guarded = {
        (group, version, resource)
        for file in ("base/admission.yaml", "overlays/nfd/admission.yaml")
        for policy in policies(file).values()
        for rule in policy["matchConstraints"]["resourceRules"]
        for group in rule["apiGroups"]
        for version in rule["apiVersions"]
        for resource in rule["resources"]
    }
    written = {
        resource for role in (AGENT, AGENT_WITH_NFD) for resource, verbs in role.verbs.items() if set(verbs) != {"get"}
    }

    subresources = {(each.group, each.version, f"{each.plural}/*") for each in (NODES, NODE_GPUS)}
    assert guarded == {(each.group, each.version, each.plural) for each in written} | subresources
    nfd = str(policies("overlays/nfd/admission.yaml"))
    assert keys.NFD_NODE_NAME in nfd


def test_the_policy_about_events_lists_the_reasons_of_the_agent() -> None:
    """The agent makes Events in agent/daemon/events.py only."""
    (events,) = (policy for name, policy in policies("base/admission.yaml").items() if name == "gputopo-agent-events")
    named = next(each["expression"] for each in events["validations"] if "reason" in each["expression"])

    assert set(re.findall(r"'(Gpu\w+)'", named)) == set(REASONS)


def test_the_policy_about_events_of_the_planner_allows_each_reason_that_the_documentation_names() -> None:
    policy = policies("scheduler/planner-without-gates/admission.yaml")["gputopo-planner-events"]
    named = next(each["expression"] for each in policy["validations"] if "?reason" in each["expression"])
    gangs = (DAEMONSET.parent / "docs/gangs.md").read_text(encoding="utf-8")
    table = re.search(r"^\| event \| object \| meaning \|\n\|[-|]+\n((?:\|.*\n)+)", gangs, re.MULTILINE)
    assert table is not None
    documented = {reason for line in table.group(1).splitlines() for reason in line.split("|")[1].strip().split(", ")}

    allowed = set(re.findall(r"'(\w+)'", named.partition("?reason")[2]))
    assert allowed == {reason.value for reason in EventReason}
    assert documented <= allowed
    assert {"GangEnded", "NodesRequested", "NodesNotRequested"} <= documented


def test_a_request_that_a_policy_cannot_judge_is_refused() -> None:
    every = {**policies("base/admission.yaml"), **policies("overlays/nfd/admission.yaml")}

    assert {name: policy["failurePolicy"] for name, policy in every.items()} == dict.fromkeys(every, "Fail")


def test_chart_and_image_have_the_version_of_the_code() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    (image,) = yaml.safe_load((DAEMONSET / "base/kustomization.yaml").read_text())["images"]

    assert (chart["version"], chart["appVersion"], image["newTag"]) == (__version__,) * 3
