"""The alerts fire when they should, and are made of metrics that agent, extender and planner have."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
import yaml

from agent.daemon import metrics as of_agent
from scheduler_core.extender.metrics import CATALOGUE
from scheduler_core.planner.metrics import CATALOGUE as OF_PLANNER
from tests.daemonset.tools import DAEMONSET, Object, run


class Alerts(NamedTuple):
    """One file of alerts."""

    rules: str
    tests: str
    metrics: dict[str, set[str]]  # name on the wire -> its labels, with the one that the scrape adds

    def read(self) -> list[Object]:
        groups = yaml.safe_load((DAEMONSET / "alerts" / self.rules).read_text(encoding="utf-8"))["groups"]
        return [rule for group in groups for rule in group["rules"]]


AGENT = {name: {*labels, "node"} for name, (labels, _) in of_agent.GAUGES.items()}
AGENT |= {f"{name}_total": {*labels, "node"} for name, (labels, _) in of_agent.COUNTERS.items()}
EXTENDER = {name: {*labels, "pod"} for name, _, labels, _ in CATALOGUE.described()}
PLANNER = {name: {*labels, "pod"} for name, _, labels, _ in OF_PLANNER.described()}
FILES = [
    pytest.param(Alerts("rules.yaml", "rules.test.yaml", AGENT), id="agent"),
    pytest.param(Alerts("scheduler.yaml", "scheduler.test.yaml", EXTENDER), id="scheduler"),
    pytest.param(Alerts("planner.yaml", "planner.test.yaml", PLANNER), id="planner"),
]
pytestmark = pytest.mark.parametrize("alerts", FILES)


def test_promtool_takes_the_rules(alerts: Alerts) -> None:
    checked = run("promtool", "check", "rules", f"alerts/{alerts.rules}")

    assert f"SUCCESS: {len(alerts.read())} rules found" in checked


def test_promtool_has_every_case_come_true(alerts: Alerts) -> None:
    assert "SUCCESS" in run("promtool", "test", "rules", f"alerts/{alerts.tests}")


def test_every_alert_has_a_case_in_which_it_fires_and_a_line_in_the_docs(alerts: Alerts) -> None:
    names = {rule["alert"] for rule in alerts.read()}
    fired = {
        case["alertname"]
        for test in yaml.safe_load((DAEMONSET / "alerts" / alerts.tests).read_text(encoding="utf-8"))["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    documented = (DAEMONSET.parent / "docs/operations.md").read_text(encoding="utf-8")

    assert fired == names
    assert {name for name in names if f"| `{name}` |" not in documented} == set()


def test_metrics_and_labels_are_those_that_there_are(alerts: Alerts) -> None:
    for rule in alerts.read():
        named = re.findall(r"\b(?:gputopo|ai)_\w+", rule["expr"])
        assert set(named) <= alerts.metrics.keys()
        known = set().union(*(alerts.metrics[name] for name in named))
        selected = re.findall(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)", rule["expr"])
        grouped = [name for names in re.findall(r"\bby \(([^)]*)\)", rule["expr"]) for name in names.split(", ")]
        shown = re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))
        assert {*selected, *grouped, *shown} <= known, rule["alert"]


def test_every_alert_names_its_runbook_and_a_path_is_no_url(alerts: Alerts) -> None:
    named = {rule["alert"]: rule["annotations"].get("runbook") for rule in alerts.read()}

    assert named == {name: f"docs/runbooks.md#{name.lower()}" for name in named}
    assert not any("runbook_url" in rule["annotations"] for rule in alerts.read())
