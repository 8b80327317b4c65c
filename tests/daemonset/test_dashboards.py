"""The Grafana dashboards: Prometheus parses every expression, and every metric and label exists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from daemonset.dashboards import DASHBOARDS
from daemonset.dashboards.model import Dashboard, Panel, Query, Row, to_json
from tests.daemonset.dashboard_expressions import prometheus_expression
from tests.daemonset.tools import DAEMONSET, ROOT, Object, helm_rendered, kustomized, run

COMPONENT = DAEMONSET / "components/dashboards"
ON = "monitoring.dashboards.enabled=true"
SCRAPED = {"node", "pod"}  # labels that the scrape configuration adds
# Units of Grafana that these dashboards use: https://github.com/grafana/grafana, packages/grafana-data/src/valueFormats
UNITS = {"short", "s", "bytes", "percentunit", "bool", "reqps", "ops", "wps"}


@pytest.fixture(params=DASHBOARDS)
def dashboard(request: pytest.FixtureRequest) -> Dashboard:
    return DASHBOARDS[request.param]()


def document(dashboard: Dashboard) -> Any:
    return json.loads(to_json(dashboard))


def documented_metrics() -> dict[str, set[str]]:
    """Every series name of docs/metrics.md with its labels; histograms by the names of their series."""
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    found: dict[str, set[str]] = {}
    for name, kind, labels in re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \|", page, re.MULTILINE):
        for suffix in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            extra = {"le"} if suffix == "_bucket" else set()
            found.setdefault(name + suffix, set()).update(re.findall(r"\w+", labels), extra, SCRAPED)
    return found


def test_promtool_parses_every_expression(dashboard: Dashboard, tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": prometheus_expression(query.expression)}
        for number, (_, query) in enumerate(dashboard.queries())
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))

    assert f"SUCCESS: {len(rules)} rules found" in run("promtool", "check", "rules", file)


def test_every_metric_and_label_is_documented(dashboard: Dashboard) -> None:
    metrics = documented_metrics()
    for panel, query in dashboard.queries():
        named = set(re.findall(r"\b(?:gputopo|ai|gang)_\w+", query.expression))
        assert named <= metrics.keys(), panel.title
        assert named
        labels = set.union(*(metrics[name] for name in named))
        selected = re.findall(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)", query.expression)
        grouped = re.findall(r"\w+", " ".join(re.findall(r"\b(?:by|on) \(([^)]*)\)", query.expression)))
        shown = re.findall(r"\{\{(\w+)\}\}", query.legend)
        assert {*selected, *grouped, *shown} <= labels, panel.title
        if " by (" in query.expression:
            assert set(shown) <= set(grouped), panel.title
    for variable in dashboard.variables:
        assert variable.name in metrics[variable.metric]


def test_every_dashboard_has_an_id_of_its_own_and_is_found_by_its_tag() -> None:
    documents = [document(of()) for of in DASHBOARDS.values()]

    assert [each["uid"] for each in documents] == list(DASHBOARDS)
    assert len({each["uid"] for each in documents}) == len({each["title"] for each in documents}) == 4
    assert all(each["tags"] == ["gputopo"] and each["description"] for each in documents)


def test_every_query_uses_the_data_source_variable(dashboard: Dashboard) -> None:
    text = document(dashboard)
    variables = {each["name"]: each for each in text["templating"]["list"]}

    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    panels = [each for each in text["panels"] if each["type"] != "row"]
    sources = [each["datasource"] for panel in panels for each in (panel, *panel["targets"])]
    assert {source["uid"] for source in sources} == {"${datasource}"}
    used = set(re.findall(r"\$(?!__)(\w+)", "".join(query.expression for _, query in dashboard.queries())))
    assert used == variables.keys() - {"datasource"}


def test_every_panel_has_a_unit_and_a_description(dashboard: Dashboard) -> None:
    for panel in document(dashboard)["panels"]:
        if panel["type"] != "row":
            assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
            assert panel["description"].endswith("."), panel["title"]


def test_panels_neither_overlap_nor_leave_the_grid(dashboard: Dashboard) -> None:
    cells: set[tuple[int, int]] = set()
    for panel in document(dashboard)["panels"]:
        place = panel["gridPos"]
        covered = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not covered & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        cells |= covered
    ids = [panel["id"] for panel in document(dashboard)["panels"]]
    assert len(ids) == len(set(ids))


def test_a_panel_that_does_not_fit_into_a_line_begins_the_next_one() -> None:
    panels = tuple(Panel(str(width), "", (Query("up"),), "short", width=width, height=4) for width in (16, 12, 12))
    places = [each["gridPos"] for each in document(Dashboard("u", "t", "", (Row("r", panels),)))["panels"]]

    assert [(place["x"], place["y"]) for place in places] == [(0, 0), (0, 1), (0, 5), (12, 5)]


def test_the_files_are_what_the_code_generates(dashboard: Dashboard) -> None:
    name = f"{dashboard.uid}.json"

    assert sorted(path.stem for path in COMPONENT.glob("*.json")) == sorted(DASHBOARDS)
    assert (COMPONENT / name).read_text(encoding="utf-8") == to_json(dashboard)
    assert (DAEMONSET / "chart/files/dashboards" / name).read_text(encoding="utf-8") == to_json(dashboard)


def config_maps(documents: tuple[Object, ...]) -> dict[str, Object]:
    return {each["metadata"]["name"]: each for each in documents if "grafana_dashboard" in str(each["metadata"])}


def test_kustomize_and_helm_make_the_same_config_maps() -> None:
    of_component = config_maps(kustomized("components/dashboards"))
    of_chart = config_maps(helm_rendered(ON))

    assert of_component.keys() == of_chart.keys() == DASHBOARDS.keys()
    for name, ours in of_component.items():
        assert ours["data"] == of_chart[name]["data"] == {f"{name}.json": to_json(DASHBOARDS[name]())}
        for each in (ours, of_chart[name]):
            assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
            assert each["metadata"]["namespace"] == "gputopo-agent"


def test_the_chart_has_no_dashboards_by_default_and_takes_another_namespace_and_label() -> None:
    settings = (
        ON,
        "monitoring.dashboards.namespace=grafana",
        "monitoring.dashboards.labels.team=gpu",
        "monitoring.dashboards.annotations.grafana_folder=GPUs",
    )
    found = config_maps(helm_rendered(*settings))

    assert config_maps(helm_rendered()) == {}
    assert {each["metadata"]["namespace"] for each in found.values()} == {"grafana"}
    assert {each["metadata"]["labels"]["team"] for each in found.values()} == {"gpu"}
    assert {each["metadata"]["annotations"]["grafana_folder"] for each in found.values()} == {"GPUs"}
