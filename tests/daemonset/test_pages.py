"""Readers of the pages of the programs, in kustomize and in the chart."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.daemon.metrics import CATALOGUE as AGENT_METRICS
from gputopo.kube.rbac import PAGE_REVIEWER
from gputopo.process.metrics import MetricCatalogue
from scheduler_core.extender.metrics import CATALOGUE as EXTENDER_METRICS
from scheduler_core.observe.metrics import CATALOGUE as OBSERVER_METRICS
from scheduler_core.planner.metrics import CATALOGUE as PLANNER_METRICS
from tests.daemonset.compositions import ALL, composed
from tests.daemonset.roles import granted, used
from tests.daemonset.tools import DAEMONSET, Object, helm_rendered, name_of
from tests.daemonset.workloads import containers

COMPONENT = DAEMONSET / "scheduler/components/page-access"
PROGRAMS = {"extender", "planner", "observe"}
# Written by the cluster's administrators, or one of a closed list; the names of schedulers are few.
LABELS_WITHOUT_TENANTS = {
    "a", "b", "bus_id", "call", "cause", "gpu", "host", "index", "interconnect", "island", "kind", "ledger", "limit",
    "link", "module", "numa_node", "object", "outcome", "phase", "product", "python", "rack", "reason", "result",
    "scheduler", "size", "slot", "source", "state", "status", "tray", "type", "verb", "verdict", "version", "what",
    "workload_type",
    "group", "name",  # of an extension, which the administrator installs
}  # fmt: skip


def pages_settings(documents: list[Object] | tuple[Object, ...]) -> dict[str, str | None]:
    """GPUTOPO_PAGES of each program."""
    found = {}
    for each in documents:
        if each["kind"] == "Deployment":
            for name, container in containers(each["spec"]["template"]["spec"]).items():
                values = {one["name"]: one.get("value") for one in container.get("env", ())}
                found[name] = values.get("GPUTOPO_PAGES")
    return {name: value for name, value in found.items() if name in PROGRAMS}


def test_by_default_the_pages_are_on_loopback_without_token_reviews(tmp_path: Path) -> None:
    for documents in (helm_rendered(*ALL), composed(tmp_path)):
        assert pages_settings(documents) == dict.fromkeys(PROGRAMS)
        assert not [each for each in documents if "gputopo-page" in each["metadata"]["name"]]


def test_with_reviews_every_program_may_review_and_the_readers_may_get_the_pages(tmp_path: Path) -> None:
    kustomized, chart = composed(tmp_path, "page-access"), helm_rendered(*ALL, "pages=authorized")
    for documents in (kustomized, chart):
        assert pages_settings(documents) == dict.fromkeys(PROGRAMS, "authorized")
        by_name = {name_of(each): each for each in documents}
        reviewer = by_name["ClusterRole", "", "gputopo-page-reviewer"]
        assert granted([reviewer]) == used(PAGE_REVIEWER)
        (rule,) = by_name["ClusterRole", "", "gputopo-page-reader"]["rules"]
        assert rule == {"nonResourceURLs": ["/decisions", "/explain/*", "/gangs", "/report"], "verbs": ["get"]}
        bound = {each["name"] for each in by_name["ClusterRoleBinding", "", "gputopo-page-reviewer"]["subjects"]}
        accounts = {name for kind, _, name in by_name if kind == "ServiceAccount" and name != "gputopo-agent"}
        assert accounts <= bound == {f"gputopo-{each}" for each in ("scheduler", "extender", "planner", "observe")}


@pytest.mark.parametrize(
    "catalogue",
    [AGENT_METRICS, EXTENDER_METRICS, OBSERVER_METRICS, PLANNER_METRICS],
    ids=("agent", "extender", "observe", "planner"),
)
def test_no_metric_has_a_label_that_names_a_tenant(catalogue: MetricCatalogue) -> None:
    """Metrics are served to everyone on the pod network."""
    assert {label for _, _, labels, _ in catalogue.described() for label in labels} <= LABELS_WITHOUT_TENANTS
