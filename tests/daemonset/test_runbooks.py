"""Each alert has a runbook and each runbook an alert, and their commands exist."""

from __future__ import annotations

import json
import re
import shlex
import subprocess

import click
import pytest
import yaml

from gputopo.cli import main as cli
from tests.daemonset.tools import DAEMONSET, ROOT, helm_rendered

PAGE = (ROOT / "docs/runbooks.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
PARTS = ["Meaning", "Impact", "Diagnosis", "Action"]


def alert_names() -> list[str]:
    files = ("rules.yaml", "scheduler.yaml", "planner.yaml")
    groups = [yaml.safe_load((DAEMONSET / "alerts" / file).read_text())["groups"] for file in files]
    return [rule["alert"] for each in groups for group in each for rule in group["rules"]]


def test_alerts_and_runbooks_are_the_same_and_in_one_order() -> None:
    assert list(SECTIONS) == alert_names()


@pytest.mark.parametrize("name", SECTIONS)
def test_a_runbook_has_its_four_parts_and_at_least_one_command(name: str) -> None:
    assert re.findall(r"^\*\*(\w+)\*\*:", SECTIONS[name], re.MULTILINE) == PARTS
    assert re.search(r"^\$ ", SECTIONS[name], re.MULTILINE)


def commands() -> list[str]:
    """The gputopo commands of code blocks and of code spans with arguments."""
    lines = re.findall(r"^\$ (gputopo .*)$", PAGE, re.MULTILINE)
    lines += re.findall(r"`(gputopo \S[^`]*)`", PAGE)
    return [re.split(r"\s+#|\s\|", line)[0] for line in lines]


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_the_commands_of_gputopo_take_these_arguments(line: str) -> None:
    """Parsed, not run: they need a cluster."""
    command: click.Command = cli.main
    arguments = shlex.split(line)[1:]
    context = click.Context(command)
    while isinstance(command, click.Group):
        name = arguments.pop(0)
        found = command.get_command(context, name)
        assert found is not None, line
        command, context = found, click.Context(found, parent=context, info_name=name)

    command.make_context(command.name, arguments, parent=context.parent)


def alert_annotations(*settings: str) -> dict[str, dict[str, str]]:
    """The annotations of all alerts of the chart, by the name of the alert."""
    on = ("monitoring.prometheusRule.enabled=true", "scheduler.enabled=true", "planner.enabled=true")
    return {
        rule["alert"]: rule["annotations"]
        for each in helm_rendered(*on, *settings)
        if each["kind"] == "PrometheusRule"
        for group in each["spec"]["groups"]
        for rule in group["rules"]
    }


def test_the_chart_links_to_the_page_that_an_administrator_serves() -> None:
    served = "https://docs.example.com/gputopo/runbooks.html"
    found = alert_annotations(f"monitoring.prometheusRule.runbookUrl={served}")

    assert {name: each["runbook_url"] for name, each in found.items()} == {
        name: f"{served}#{name.lower()}" for name in alert_names()
    }
    assert not any("runbook" in each for each in found.values())


def test_the_chart_without_an_address_has_no_link_that_cannot_be_opened() -> None:
    found = alert_annotations()

    assert {name: each["runbook"] for name, each in found.items()} == {
        name: f"docs/runbooks.md#{name.lower()}" for name in alert_names()
    }
    assert not any("runbook_url" in each for each in found.values())


def test_the_documented_command_turns_every_path_of_the_rule_files_into_a_link() -> None:
    (expression,) = set(re.findall(r"sed '([^']+)'", PAGE))
    files = [DAEMONSET / "alerts" / file for file in ("rules.yaml", "scheduler.yaml", "planner.yaml")]
    done = subprocess.run(["sed", expression, *files], capture_output=True, text=True, check=True)

    assert re.findall(r"runbook_url: (\S+)", done.stdout) == [
        f"https://docs.example.com/gputopo/runbooks.html#{name.lower()}" for name in alert_names()
    ]
    assert "runbook: " not in done.stdout


def test_the_schema_of_the_chart_refuses_a_path() -> None:
    schema = json.loads((DAEMONSET / "chart/values.schema.json").read_text(encoding="utf-8"))
    rule = schema["properties"]["monitoring"]["properties"]["prometheusRule"]["properties"]["runbookUrl"]

    assert re.search(rule["pattern"], "")
    assert re.search(rule["pattern"], "https://docs.example.com/runbooks.html")
    assert not re.search(rule["pattern"], "docs/runbooks.md")
