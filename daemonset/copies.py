"""Write the manifests that are copies of something else, or with --check say which of them are stale (exit code 1).

Helm reads no file outside of its chart, and kustomize none outside of its tree, so what both need is there twice.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from daemonset import gating, guarding
from gputopo.crd import nodegpus, reservations
from scheduler_core.extender.scheduler_config import Caller, render_configuration

HERE = Path(__file__).parent
RULES = "alerts/rules.yaml"
SCHEDULER_RULES = "alerts/scheduler.yaml"
PLANNER_RULES = "alerts/planner.yaml"


def definition() -> str:
    """The CustomResourceDefinition of ``NodeGpus``."""
    return _head("gputopo/crd/nodegpus.py") + yaml.safe_dump(nodegpus.nodegpus_crd(), sort_keys=False, width=120)


def planner_definitions() -> str:
    """The CustomResourceDefinitions of ``PlacementReservation`` and ``PlacementLedger``."""
    definitions = (reservations.reservation_crd(), reservations.ledger_crd())
    return _head("gputopo/crd/reservations.py") + yaml.safe_dump_all(definitions, sort_keys=False, width=120)


def gates(of: Callable[[], list[dict[str, Any]]]) -> str:
    """Policies that gate pods."""
    return _head("daemonset/gating.py and the rules of scheduler_core/planner/gang/conventions.py") + gating.manifest(
        of()
    )


def guard() -> str:
    """The policies that keep the planner to its own pods, and others from writing the planner's annotations."""
    return _head("daemonset/guarding.py") + gating.manifest((*guarding.planner(), *guarding.pod_annotations()))


def copy(source: str) -> str:
    """Another file of this folder, verbatim."""
    return _head(f"daemonset/{source}") + (HERE / source).read_text(encoding="utf-8")


def prometheus_rule(name: str, source: str) -> str:
    """A file of alerts as an object of the Prometheus operator."""
    metadata = {"name": name, "namespace": "gputopo"}
    rule = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": metadata}
    rules = (HERE / source).read_text(encoding="utf-8")
    return (
        _head(f"daemonset/{source}") + yaml.safe_dump(rule, sort_keys=False) + "spec:\n" + textwrap.indent(rules, "  ")
    )


def _head(source: str) -> str:
    return f"# Generated from {source}: change that, then run `make docs`.\n"


FILES: dict[str, Callable[[], str]] = {
    "base/crd.yaml": definition,
    "components/monitoring/prometheus-rule.yaml": partial(prometheus_rule, "gputopo-agent", RULES),
    # Without a head of its own: what `gputopo scheduler-config` prints in a cluster whose nodes have no MIG devices.
    "scheduler/default/scheduler-config.yaml": partial(render_configuration, ()),
    "scheduler/cluster-scheduler/scheduler-config.yaml": partial(render_configuration, (), Caller.CLUSTER),
    "scheduler/components/monitoring/prometheus-rule.yaml": partial(
        prometheus_rule, "gputopo-scheduler", SCHEDULER_RULES
    ),
    "scheduler/planner-without-gates/crds.yaml": planner_definitions,
    "scheduler/planner-without-gates/admission.yaml": guard,
    "chart/files/planner-admission.yaml": guard,
    "scheduler/planner/gating.yaml": partial(gates, gating.gangs),
    "scheduler/components/planned-all/gating.yaml": partial(gates, gating.planned),
    "scheduler/components/planner-monitoring/prometheus-rule.yaml": partial(
        prometheus_rule, "gputopo-planner", PLANNER_RULES
    ),
    "chart/files/crd.yaml": definition,
    "chart/files/planner-crds.yaml": planner_definitions,
    "chart/files/planner-gating.yaml": partial(gates, gating.gangs),
    "chart/files/planned-all-gating.yaml": partial(gates, gating.planned),
    "chart/files/admission.yaml": partial(copy, "base/admission.yaml"),
    "chart/files/admission-nfd.yaml": partial(copy, "overlays/nfd/admission.yaml"),
    "chart/files/alerts.yaml": partial(copy, RULES),
    "chart/files/scheduler-alerts.yaml": partial(copy, SCHEDULER_RULES),
    "chart/files/planner-alerts.yaml": partial(copy, PLANNER_RULES),
    "chart/files/scheduler-config.yaml": partial(render_configuration, ()),
}


def stale(folder: Path = HERE) -> list[str]:
    """The names of files that differ from what they are made of."""
    return [
        name
        for name, text in FILES.items()
        if not (folder / name).exists() or (folder / name).read_text(encoding="utf-8") != text()
    ]


def main(check: bool) -> int:
    """Write what is stale, or only name it."""
    names = stale()
    for name in names:
        if not check:
            (HERE / name).write_text(FILES[name](), encoding="utf-8")
        print(f"daemonset/{name}: {'stale; run `make docs`' if check else 'written'}")
    return 1 if check and names else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
