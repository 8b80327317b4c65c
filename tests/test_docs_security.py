"""docs/security.md and docs/hardening.md against the roles, the manifests and the listeners."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gputopo.kube.rbac import AGENT, EXTENDER, GANG_SIZE_SOURCES, OBSERVER, PAGE_REVIEWER, PLANNER, UI, Role

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/security.md").read_text(encoding="utf-8")
HARDENING = (ROOT / "docs/hardening.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in TEXT.splitlines() if line.startswith("| ")]
MANIFESTS = [
    document
    for path in sorted((ROOT / "daemonset").rglob("*.yaml"))
    if not {"chart", "examples"} & set(path.parts)
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    if isinstance(document, dict) and "kind" in document
]


def granted(text: str) -> set[tuple[str, str]]:
    """(resource, verb) of a cell such as "nodes, pods: list, watch; events: create"."""
    parts = [part.split(": ") for part in text.split("; ")]
    return {(name, verb) for names, verbs in parts for name in names.split(", ") for verb in verbs.split(", ")}


UI_SERVER = Role("ui-server", {**UI.verbs, **PAGE_REVIEWER.verbs})


@pytest.mark.parametrize("role", [AGENT, EXTENDER, PLANNER, OBSERVER, UI_SERVER], ids=lambda role: role.name)
def test_the_rights_of_each_program_are_those_of_its_role(role: Role) -> None:
    (listed,) = (cells[1] for cells in ROWS if cells[0] == role.name and ": " in cells[1])
    sources = "the kinds that define the size of a gang"
    used = {
        (sources if resource in GANG_SIZE_SOURCES else resource.rbac_name, verb)
        for resource, verbs in role.verbs.items()
        for verb in verbs
    }

    assert granted(listed) == used


def test_every_restricting_policy_is_listed() -> None:
    policies = {each["metadata"]["name"] for each in MANIFESTS if each["kind"] == "ValidatingAdmissionPolicy"}

    assert {
        name for cells in ROWS if len(cells) == 2 for name in re.findall("`(gputopo-[a-z-]+)`", cells[0])
    } == policies


def test_the_levels_of_the_namespaces_are_those_of_the_manifests() -> None:
    label = "pod-security.kubernetes.io/enforce"
    levels: dict[str, set[str]] = {}
    for each in MANIFESTS:
        if each["kind"] == "Namespace":
            levels.setdefault(each["metadata"]["name"], set()).add(each["metadata"]["labels"][label])
    listed = {cells[0].strip("`"): set(re.findall(r"`(\w+)`", cells[2])) for cells in ROWS if len(cells) == 3}

    assert {name: found for name, found in listed.items() if name.startswith("gputopo")} == levels


@pytest.mark.parametrize("text", [TEXT, HARDENING, (ROOT / "SECURITY.md").read_text(encoding="utf-8")])
def test_named_files_and_values_exist(text: str) -> None:
    files = set(re.findall(r"`(daemonset/[\w./-]+)`", text))
    values = yaml.safe_load((ROOT / "daemonset/chart/values.yaml").read_text(encoding="utf-8"))

    assert [each for each in files if not (ROOT / each).exists()] == []
    for dotted in re.findall(r"`((?:image|networkPolicy|admissionPolicy|scheduler)\.\w+)`", text):
        section, key = dotted.split(".")
        assert key in values[section], dotted


def test_named_alerts_and_metrics_exist() -> None:
    alerts = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "daemonset/alerts").glob("*.yaml"))
    metrics = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")

    for name in re.findall(r"`(Gputopo\w+)`", TEXT + HARDENING):
        assert f"alert: {name}\n" in alerts, name
    for name in re.findall(r"`(gputopo_\w+)`", TEXT + HARDENING):
        assert f"`{name}`" in metrics, name
