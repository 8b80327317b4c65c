"""The alerts fire when they should, and are made of metrics that the agent has."""

from __future__ import annotations

import re

import yaml

from agent.metrics import COUNTERS, GAUGES
from tests.daemonset.tools import DAEMONSET, Object, run

RULES = DAEMONSET / "alerts/rules.yaml"
TESTS = DAEMONSET / "alerts/rules.test.yaml"


def alerts() -> list[Object]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_promtool_takes_the_rules() -> None:
    assert f"SUCCESS: {len(alerts())} rules found" in run("promtool", "check", "rules", RULES)


def test_promtool_has_every_case_come_true() -> None:
    assert "SUCCESS" in run("promtool", "test", "rules", TESTS)


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    fired = {
        case["alertname"]
        for test in yaml.safe_load(TESTS.read_text())["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }

    assert fired == {rule["alert"] for rule in alerts()}


def test_the_metrics_are_those_of_the_agent() -> None:
    named = {name for rule in alerts() for name in re.findall(r"\bgputopo_\w+", rule["expr"])}

    assert named <= GAUGES.keys() | {f"{name}_total" for name in COUNTERS}


def test_the_labels_are_those_of_the_metrics() -> None:
    """Beside ``node``, which the scrape adds."""
    of_metric = {name: {*labels, "node"} for name, (labels, _) in GAUGES.items()}
    of_metric |= {f"{name}_total": {*labels, "node"} for name, (labels, _) in COUNTERS.items()}
    for rule in alerts():
        known = set().union(*(of_metric[name] for name in re.findall(r"\bgputopo_\w+", rule["expr"])))
        selected = re.findall(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)", rule["expr"])
        shown = re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))
        assert {*selected, *shown} <= known, rule["alert"]
