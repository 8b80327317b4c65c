"""The check of a KubeSchedulerConfiguration that an administrator wrote."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from scheduler_core.extender.scheduler_config import render_configuration
from scheduler_core.extender.scheduler_config_check import (
    SCORE_PLUGINS,
    ConfigurationError,
    Finding,
    check_configuration,
    parse_configuration,
)

NODES = ["cpu", "nvidia.com/gpu"]
GOOD: dict[str, Any] = yaml.safe_load(render_configuration(NODES))
Change = Callable[[dict[str, Any]], object]


def extender(**fields: Any) -> Change:
    return lambda document: document["extenders"][0].update(fields)


def profile(**fields: Any) -> Change:
    return lambda document: document["profiles"][0].update(fields)


def findings(change: Change, resources: list[str] = NODES) -> tuple[Finding, ...]:
    document = copy.deepcopy(GOOD)
    change(document)
    return check_configuration(parse_configuration(document), resources)


def faults(change: Change) -> list[tuple[str, str]]:
    return [(each.at, each.what) for each in findings(change)]


SAMPLE = ("percentageOfNodesToScore", "is not set")
BALANCE = "pluginConfig NodeResourcesBalancedAllocation resources"
FIT = "pluginConfig NodeResourcesFit scoringStrategy"
BALANCED = {"name": "NodeResourcesBalancedAllocation", "args": {"resources": [{"name": "nvidia.com/gpu", "weight": 1}]}}
SHARED = "nvidia.com/gpu.shared"


def packed(*resources: str) -> dict[str, Any]:
    strategy = {"type": "MostAllocated", "resources": [{"name": name, "weight": 1} for name in resources]}
    return {"name": "NodeResourcesFit", "args": {"scoringStrategy": strategy}}


@pytest.mark.parametrize(
    ("change", "at", "what"),
    [
        pytest.param(lambda it: it.pop("percentageOfNodesToScore"), *SAMPLE, id="a sample of nodes, by default"),
        pytest.param(
            lambda it: it.update(percentageOfNodesToScore=50), SAMPLE[0], "is 50", id="a sample of nodes, for all"
        ),
        pytest.param(
            profile(percentageOfNodesToScore=10), f"profiles[0].{SAMPLE[0]}", "is 10", id="a sample, for our profile"
        ),
        pytest.param(lambda it: it.pop("clientConnection"), "clientConnection.qps", "is 50", id="the default limit"),
        pytest.param(
            lambda it: it.update(clientConnection={"qps": 0}), "clientConnection.qps", "is 50", id="no limit named"
        ),
        pytest.param(
            profile(pluginConfig=[BALANCED]),
            f"profiles[0].{FIT}",
            "is LeastAllocated by cpu, memory",
            id="pods are spread, by default",
        ),
        pytest.param(
            profile(pluginConfig=[BALANCED, {"name": "NodeResourcesFit", "args": {"scoringStrategy": None}}]),
            f"profiles[0].{FIT}",
            "is LeastAllocated by cpu, memory",
            id="no strategy",
        ),
        pytest.param(
            profile(pluginConfig=[BALANCED, packed("cpu", "nvidia.com/gpu")]),
            f"profiles[0].{FIT}",
            "is MostAllocated by cpu, nvidia.com/gpu",
            id="packed by whole GPUs and CPU",
        ),
        pytest.param(
            profile(pluginConfig=[packed(SHARED)]), f"profiles[0].{BALANCE}", "has no nvidia.com/gpu", id="no balance"
        ),
        pytest.param(
            profile(
                pluginConfig=[packed(SHARED), {"name": "NodeResourcesBalancedAllocation", "args": {"resources": None}}]
            ),
            f"profiles[0].{BALANCE}",
            "has no nvidia.com/gpu",
            id="balanced by CPU and memory",
        ),
        pytest.param(
            profile(plugins={"score": {"disabled": [{"name": "NodeResourcesBalancedAllocation"}]}}),
            f"profiles[0].{BALANCE}",
            "is disabled",
            id="not balanced at all",
        ),
        pytest.param(lambda it: it.pop("extenders"), "extenders", "has none for GPU pods", id="no extender"),
        pytest.param(
            extender(managedResources=[{"name": "example.com/fpga"}]),
            "extenders",
            "has none for GPU pods",
            id="one for others",
        ),
        pytest.param(extender(filterVerb=None), "extenders[0].filterVerb", "is not set", id="no filter"),
        pytest.param(extender(prioritizeVerb="score"), "extenders[0].prioritizeVerb", "is score", id="another verb"),
        pytest.param(extender(bindVerb="bind"), "extenders[0].bindVerb", "is set", id="bind"),
        pytest.param(extender(preemptVerb=None), "extenders[0].preemptVerb", "is not set", id="no preemption"),
        pytest.param(
            extender(nodeCacheCapable=False), "extenders[0].nodeCacheCapable", "is not true", id="whole nodes"
        ),
        pytest.param(extender(ignorable=True), "extenders[0].ignorable", "is true", id="ignorable"),
        pytest.param(extender(httpTimeout="30s"), "extenders[0].httpTimeout", "is 30s", id="patience"),
        pytest.param(extender(httpTimeout="5001ms"), "extenders[0].httpTimeout", "is 5001ms", id="a bit much"),
        pytest.param(extender(httpTimeout="100ms"), "extenders[0].httpTimeout", "is 100ms", id="no patience"),
        pytest.param(extender(httpTimeout="soon"), "extenders[0].httpTimeout", "is soon", id="no duration"),
        pytest.param(extender(httpTimeout=""), "extenders[0].httpTimeout", "is ", id="an empty duration"),
        pytest.param(
            extender(urlPrefix="http://10.0.0.1:9440"),
            "extenders[0].urlPrefix",
            "is http://10.0.0.1:9440",
            id="plain over a network",
        ),
        pytest.param(extender(urlPrefix=""), "extenders[0].urlPrefix", "is not set", id="nowhere"),
        pytest.param(
            extender(urlPrefix="https://10.0.0.1:9440", tlsConfig={"insecure": True}),
            "extenders[0].tlsConfig.insecure",
            "is true",
            id="any certificate",
        ),
        pytest.param(extender(weight=65), "extenders[0].weight", "is 65", id="a weight that plugins outweigh"),
        pytest.param(extender(managedResources=None), "extenders[0].managedResources", "is empty", id="all pods"),
        pytest.param(
            extender(managedResources=[{"name": "nvidia.com/gpu.shared"}]),
            "extenders[0].managedResources",
            "has no nvidia.com/gpu",
            id="a resource that is not listed",
        ),
        pytest.param(
            extender(managedResources=[{"name": "nvidia.com/gpu", "ignoredByScheduler": True}]),
            "extenders[0].managedResources",
            "has nvidia.com/gpu with ignoredByScheduler",
            id="a resource that nobody counts",
        ),
        pytest.param(
            lambda it: it["extenders"].append(GOOD["extenders"][0]),
            "extenders[1]",
            "is called for GPU pods too",
            id="two of them",
        ),
    ],
)
def test_one_fault_is_one_finding(change: Change, at: str, what: str) -> None:
    assert faults(change) == [(at, what)]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda _: None, id="as generated"),
        pytest.param(extender(httpTimeout=None), id="the default timeout, 5 s"),
        pytest.param(extender(httpTimeout="0.5s"), id="half a second"),
        pytest.param(extender(httpTimeout="1s500ms"), id="a duration of two parts"),
        pytest.param(extender(urlPrefix="https://10.0.0.1:9440/gputopo", tlsConfig={"caFile": "ca"}), id="TLS"),
        pytest.param(extender(urlPrefix="http://[::1]:9440"), id="loopback by IPv6"),
        pytest.param(extender(weight=71), id="the least weight that no plugin outweighs"),
        pytest.param(lambda it: it.update(clientConnection={"qps": -1}), id="no limit at all"),
        pytest.param(
            lambda it: it["extenders"].append({"managedResources": [{"name": "example.com/fpga"}]}),
            id="another extender for something else",
        ),
        pytest.param(
            lambda it: it["profiles"].insert(0, {"schedulerName": "default-scheduler", "percentageOfNodesToScore": 5}),
            id="other pods' profile is not our business",
        ),
    ],
)
def test_accepted_configurations(change: Change) -> None:
    assert findings(change) == ()


def test_without_a_profile_of_ours_every_profile_counts_and_the_default_one_where_none_is_named() -> None:
    def others(document: dict[str, Any]) -> None:
        document["profiles"] = [{"schedulerName": "a"}, GOOD["profiles"][0] | {"schedulerName": "b"}]
        document["extenders"][0]["weight"] = 70

    spread, by_lot = (FIT, "is LeastAllocated by cpu, memory"), (BALANCE, "has no nvidia.com/gpu")
    assert faults(others) == [
        *((f"profiles[0].{at}", what) for at, what in (spread, by_lot)),
        ("extenders[0].weight", "is 70"),
    ]
    assert faults(lambda it: it.pop("profiles")) == [spread, by_lot]


@pytest.mark.parametrize(
    ("plugins", "least"),
    [
        pytest.param({}, 71, id="as they come: 14"),
        pytest.param({"score": {"disabled": [{"name": "ImageLocality"}]}}, 66, id="one less: 13"),
        pytest.param({"multiPoint": {"disabled": [{"name": "*"}]}}, 1, id="none"),
        pytest.param(
            {"multiPoint": {"disabled": [{"name": "*"}], "enabled": [{"name": "NodeName"}, {"name": "NodeAffinity"}]}},
            11,
            id="named one by one: those that score",
        ),
        pytest.param({"score": {"enabled": [{"name": "NodeAffinity", "weight": 10}]}}, 111, id="one of weight: 22"),
        pytest.param({"score": {"enabled": [{"name": "Mine"}]}}, 76, id="one of somebody's own: 15"),
        pytest.param({"multiPoint": {"enabled": [{"name": "Mine", "weight": 2}]}}, 81, id="the same, everywhere: 16"),
    ],
)
def test_the_least_weight_follows_from_the_plugins_of_the_profile(plugins: dict[str, Any], least: int) -> None:
    """Two points x weight x 10 > 100 x the sum of weights, so weight > 5 x that sum."""
    changed = profile(plugins=plugins)

    def of_weight(weight: int) -> list[str]:
        found = findings(lambda document: (changed(document), extender(weight=weight)(document)))
        return [each.why for each in found if each.at.endswith(".weight")]

    assert sum(SCORE_PLUGINS.values()) == 14
    assert of_weight(least) == []
    (why,) = of_weight(least - 1)
    assert why.endswith(f"; set {least} or more")


def test_documents_that_are_no_configuration() -> None:
    for document, why in (
        (None, "Expected `object`, got `null`"),
        ([], "Expected `object`, got `array`"),
        ({}, "missing required field `kind`"),
        ({"kind": "ConfigMap"}, "not a KubeSchedulerConfiguration but a 'ConfigMap'"),
        (GOOD | {"extenders": {}}, r"Expected `array \| null`, got `object` - at `\$.extenders`"),
        (GOOD | {"extenders": [{"weight": "75"}]}, r"Expected `int`, got `str` - at `\$.extenders\[0\].weight`"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            parse_configuration(document)


def test_a_finding_is_a_sentence() -> None:
    (found,) = findings(extender(ignorable=True))

    assert str(found) == (
        "extenders[0].ignorable is true: while the extender is down or starts, GPU pods are placed without "
        "topology and break islands; set false"
    )
