"""The configuration that is generated, and that its weight is what the arithmetic wants."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gputopo.model import NodeTopology
from scheduler_core.cache.node_state import NodeState, state_of
from scheduler_core.evaluation.score import score_state
from scheduler_core.extender.scheduler_config import WEIGHT, Caller, managed_resources, render_configuration
from scheduler_core.extender.scheduler_config_check import check_configuration, parse_configuration
from scheduler_core.policy.file import parse_policy_file
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.quality_and_cost import QUALITY_AND_COST_POLICY
from scheduler_core.request.pod_request import PodRequest
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, occupant, profile, record

RESOURCES = [
    "cpu",
    "nvidia.com/mig-3g.40gb",
    "nvidia.com/gpu",
    "nvidia.com/mig-1g.10gb",
    "nvidia.com/hostdev",
    "memory",
]
SCORING: dict[str, Any] = {
    "pluginConfig": [
        {
            "name": "NodeResourcesBalancedAllocation",
            "args": {
                "resources": [
                    {"name": "nvidia.com/gpu", "weight": 1},
                    {"name": "nvidia.com/gpu.shared", "weight": 1},
                    {"name": "nvidia.com/mig-1g.10gb", "weight": 1},
                    {"name": "nvidia.com/mig-3g.40gb", "weight": 1},
                    {"name": "cpu", "weight": 1},
                    {"name": "memory", "weight": 1},
                ],
            },
        },
        {
            "name": "NodeResourcesFit",
            "args": {
                "scoringStrategy": {
                    "type": "MostAllocated",
                    "resources": [
                        {"name": "nvidia.com/gpu.shared", "weight": 1},
                        {"name": "nvidia.com/mig-1g.10gb", "weight": 1},
                        {"name": "nvidia.com/mig-3g.40gb", "weight": 1},
                    ],
                }
            },
        },
        {"name": "PodTopologySpread", "args": {"defaultingType": "List", "defaultConstraints": []}},
    ],
}
BEHAVIOUR: dict[str, Any] = {
    "filterVerb": "filter",
    "prioritizeVerb": "prioritize",
    "preemptVerb": "preempt",
    "weight": 75,
    "nodeCacheCapable": True,
    "ignorable": False,
    "httpTimeout": "3s",
    "managedResources": [
        {"name": "nvidia.com/gpu", "ignoredByScheduler": False},
        {"name": "nvidia.com/gpu.shared", "ignoredByScheduler": False},
        {"name": "nvidia.com/mig-1g.10gb", "ignoredByScheduler": False},
        {"name": "nvidia.com/mig-3g.40gb", "ignoredByScheduler": False},
    ],
}


def test_a_second_scheduler_calls_the_extender_beside_it() -> None:
    assert yaml.safe_load(render_configuration(RESOURCES)) == {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {
            "leaderElect": True,
            "resourceName": "gputopo-scheduler",
            "resourceNamespace": "gputopo",
        },
        "clientConnection": {"qps": 500, "burst": 1000},
        "percentageOfNodesToScore": 100,
        "profiles": [{"schedulerName": "gputopo-scheduler", **SCORING}],
        "extenders": [{"urlPrefix": "http://127.0.0.1:9440", **BEHAVIOUR}],
    }


def test_the_clusters_own_scheduler_calls_it_through_a_service_and_treats_other_pods_as_before() -> None:
    keys = "/etc/kubernetes/gputopo"

    assert yaml.safe_load(render_configuration(RESOURCES, Caller.CLUSTER)) == {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": "/etc/kubernetes/scheduler.conf", "qps": 500, "burst": 1000},
        "profiles": [
            {"schedulerName": "default-scheduler"},
            {"schedulerName": "gputopo-scheduler", "percentageOfNodesToScore": 100, **SCORING},
        ],
        "extenders": [
            {
                "urlPrefix": "https://SERVICE_ADDRESS:9440",
                "enableHTTPS": True,
                "tlsConfig": {
                    "serverName": "gputopo-extender.gputopo.svc",
                    "caFile": f"{keys}/ca.crt",
                    "certFile": f"{keys}/tls.crt",
                    "keyFile": f"{keys}/tls.key",
                },
                **BEHAVIOUR,
            }
        ],
    }


@pytest.mark.parametrize("caller", Caller)
def test_the_check_accepts_the_generated_configuration(caller: Caller) -> None:
    assert (
        check_configuration(parse_configuration(yaml.safe_load(render_configuration(RESOURCES, caller))), RESOURCES)
        == ()
    )


def test_whole_gpus_and_shares_are_managed_in_any_cluster() -> None:
    assert managed_resources([]) == managed_resources(["cpu"]) == ("nvidia.com/gpu", "nvidia.com/gpu.shared")


def node(topology: NodeTopology, *busy: int) -> NodeState:
    pods = [occupant("busy", len(busy))]
    return state_of(record(topology=topology, held={"busy": busy}, pods=pods), NOW, Policy())


PLUGINS = 3 + 2 + 1 + 2 + 2 + 1 + 1 + 2  # of the profile: see ``config``


@pytest.mark.parametrize("wishes", [{}, {"island": "preferred"}], ids=["nothing said", "island preferred"])
def test_no_plugin_outvotes_an_island(wishes: dict[str, str]) -> None:
    """Two GPUs free that NVLink joins, against two of different pairs: points x weight x 10 > 100 x each weight."""
    topology = MACHINES["a100_bridged"]()
    pair = score_state(profile(2, **wishes), node(topology, 2, 3), Policy())
    across = score_state(profile(2, **wishes), node(topology, 1, 3), Policy())

    assert (pair.rounded - across.rounded) * WEIGHT * 10 > 100 * PLUGINS


def test_a_point_outvotes_what_plugins_say_unasked_and_not_all_wishes_of_a_pod_at_once() -> None:
    unasked = 1 + 1 + 1  # NodeResourcesFit, NodeResourcesBalancedAllocation, ImageLocality
    wishes = 2 + 2 + 2  # NodeAffinity, PodTopologySpread, InterPodAffinity

    assert 100 * unasked < WEIGHT * 10 < 100 * (unasked + wishes)


@pytest.mark.parametrize("caller", list(Caller))
def test_one_flag_adds_the_names_for_quality_and_for_cost(caller: Caller) -> None:
    usual = yaml.safe_load(render_configuration(RESOURCES, caller))
    found = yaml.safe_load(render_configuration(RESOURCES, caller, quality_and_cost=True))

    ours = usual["profiles"][-1]
    assert found["profiles"] == [
        *usual["profiles"],
        *(ours | {"schedulerName": name} for name in ("gpu-aware-scheduler", "cost-optimized-scheduler")),
    ]
    assert {**found, "profiles": None} == {**usual, "profiles": None}
    assert check_configuration(parse_configuration(found), RESOURCES) == ()


@pytest.mark.parametrize("name", ["gpu-aware-scheduler", "cost-optimized-scheduler"])
def test_the_check_finds_faults_in_the_profiles_of_both_names(name: str) -> None:
    document = yaml.safe_load(render_configuration(RESOURCES, quality_and_cost=True))
    (profile,) = (each for each in document["profiles"] if each["schedulerName"] == name)
    profile["percentageOfNodesToScore"] = 5

    (finding,) = check_configuration(parse_configuration(document), RESOURCES)

    assert "percentageOfNodesToScore is 5" in str(finding)


def test_each_name_has_a_policy_profile_and_its_wish_decides() -> None:
    policies = parse_policy_file(QUALITY_AND_COST_POLICY, "policy.yaml").policies
    plain = record(topology=MACHINES["a100_bridged"](), held={}, labels={"gputopo.io/cost-per-hour": "4"})
    fast = record(topology=MACHINES["hgx_h100"](), held={}, labels={"gputopo.io/cost-per-hour": "32"})
    nodes = {"cheap": state_of(plain, NOW, Policy()), "fast": state_of(fast, NOW, Policy())}

    def best(scheduler: str) -> str:
        request = PodRequest("u", "a", "p", scheduler, profile(2))
        policy = policies.policy_for(request)
        return max(nodes, key=lambda name: score_state(request.profile, nodes[name], policy).points)

    assert best("gpu-aware-scheduler") == "fast"
    assert best("cost-optimized-scheduler") == "cheap"
    assert [each.policy.name for each in policies.profiles] == ["quality", "cost", "default"]
