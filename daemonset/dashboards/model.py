"""Dashboards, rows and panels as values, and their JSON for Grafana 10 or newer. Pure.

Field names: https://grafana.com/docs/grafana/latest/dashboards/build-dashboards/view-dashboard-json-model/
Units are the ids of Grafana's standard options.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

GRID_WIDTH = 24
_SCHEMA_VERSION = 39  # of Grafana 10.4; newer versions migrate it
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Query(NamedTuple):
    """One PromQL expression, and the name of its series in the legend."""

    expression: str
    legend: str = ""  # {{label}} is replaced by the value of the label


class Panel(NamedTuple):
    """A panel. ``kind`` is a panel plugin of Grafana: timeseries, stat, table or bargauge."""

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str  # id of a unit of Grafana, such as "s", "bytes", "percentunit", "short"
    kind: str = "timeseries"
    width: int = 8  # of the 24 columns of the grid
    height: int = 8
    stacked: bool = False
    bad_above: float | None = None  # values from here on are red, lower ones green; None: no colour


class Row(NamedTuple):
    """Panels below one heading."""

    title: str
    panels: tuple[Panel, ...]


class Variable(NamedTuple):
    """A selection at the top of the dashboard: values of a label. ``All`` selects every value."""

    name: str
    label: str
    metric: str  # the metric that has the label, which is named like the variable


class Dashboard(NamedTuple):
    """A dashboard; ``uid`` is unique in Grafana and part of its URL."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()

    def queries(self) -> Iterator[tuple[Panel, Query]]:
        """Yield every query, with its panel."""
        for row in self.rows:
            for panel in row.panels:
                for query in panel.queries:
                    yield panel, query


def to_json(dashboard: Dashboard) -> str:
    """Return the dashboard as Grafana imports and provisions it."""
    document = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["gputopo"],
        "schemaVersion": _SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,  # one crosshair in all panels
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "links": [
            {
                "type": "dashboards",
                "tags": ["gputopo"],
                "title": "gputopo",
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {"list": [_datasource_variable(), *map(_variable, dashboard.variables)]},
        "panels": list(_placed(dashboard.rows)),
    }
    return json.dumps(document, indent=2, ensure_ascii=True) + "\n"


def _datasource_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}


def _variable(variable: Variable) -> dict[str, Any]:
    query = f"label_values({variable.metric}, {variable.name})"
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": _DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": variable.name},
        "refresh": 2,  # when the time range changes
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _placed(rows: tuple[Row, ...]) -> Iterator[dict[str, Any]]:
    """Yield rows and panels with their places: left to right, a new line where the next panel does not fit."""
    y, number = 0, 1
    for row in rows:
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": y, "w": GRID_WIDTH, "h": 1},
            "panels": [],
        }
        y, number, x, line = y + 1, number + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > GRID_WIDTH:
                y, x, line = y + line, 0, 0
            yield _panel(panel, number) | {"gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height}}
            x, line, number = x + panel.width, max(line, panel.height), number + 1
        y += line


def _panel(panel: Panel, number: int) -> dict[str, Any]:
    instant = panel.kind != "timeseries"
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": _DATASOURCE,
            "expr": query.expression,
            "legendFormat": query.legend or "__auto",
            "instant": instant,
            "range": not instant,
            **({"format": "table"} if panel.kind == "table" else {}),
        }
        for index, query in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
        **({"transformations": _WITHOUT_TIME} if panel.kind == "table" else {}),
    }


_WITHOUT_TIME = [{"id": "organize", "options": {"excludeByName": {"Time": True}}}]


def _defaults(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.unit == "percentunit":
        defaults |= {"min": 0, "max": 1}
    if panel.bad_above is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.bad_above}]
        defaults |= {"thresholds": {"mode": "absolute", "steps": steps}, "color": {"mode": "thresholds"}}
    if panel.kind == "timeseries":
        mode = "normal" if panel.stacked else "none"
        defaults["custom"] = {"fillOpacity": 25 if panel.stacked else 0, "stacking": {"mode": mode, "group": "A"}}
        defaults.pop("color", None)  # red curves for all series would hide which is which
    return defaults


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "timeseries":
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if panel.kind == "table":
        return {"showHeader": True}
    return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
