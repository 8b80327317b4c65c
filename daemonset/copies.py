"""Write the generated and copied manifests, or with --check list the stale files (exit code 1).

Helm reads no file outside of its chart, and kustomize none outside of its tree, so shared files exist twice.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

import gputopo
from daemonset import agent_guarding, event_guarding, gating, guarding, images
from daemonset.dashboards import DASHBOARDS
from daemonset.dashboards.model import to_json
from gputopo.crd import nodegpus, reservations
from scheduler_core.extender.scheduler_config import Caller, render_configuration
from scheduler_core.policy.quality_and_cost import QUALITY_AND_COST_POLICY

HERE = Path(__file__).parent
RULES = "alerts/rules.yaml"
SCHEDULER_RULES = "alerts/scheduler.yaml"
PLANNER_RULES = "alerts/planner.yaml"

# Files that people edit, except for versions and digests of images.
PINNED = (
    "Dockerfile",
    "chart/Chart.yaml",
    *sorted(
        file.relative_to(HERE).as_posix()
        for file in HERE.rglob("kustomization.yaml")
        if "- name: gputopo\n" in file.read_text(encoding="utf-8")
    ),
)


def definition() -> str:
    """Return the CustomResourceDefinition of ``NodeGpus``."""
    return _head("gputopo/crd/nodegpus.py") + yaml.safe_dump(nodegpus.nodegpus_crd(), sort_keys=False, width=120)


def planner_definitions() -> str:
    """Return the CustomResourceDefinitions of ``PlacementReservation`` and ``PlacementLedger``."""
    definitions = (reservations.reservation_crd(), reservations.ledger_crd())
    return _head("gputopo/crd/reservations.py") + yaml.safe_dump_all(definitions, sort_keys=False, width=120)


def gates(of: Callable[[], list[dict[str, Any]]]) -> str:
    """Return policies that gate pods."""
    return _head("daemonset/gating.py and the rules of scheduler_core/planner/gang/conventions.py") + gating.manifest(
        of()
    )


def planned_all() -> list[dict[str, Any]]:
    """Return the policies by which every GPU pod has gputopo's gate until it is placed."""
    return [*gating.planned_pod_policy(), *gating.gate_removal_policy()]


def guard() -> str:
    """Return the policies that restrict the planner to its pods and its Lease, and its annotations to the planner."""
    own_lease = guarding.leases("gputopo-planner-leases", "gputopo-planner")
    events = event_guarding.planner_events()
    policies = (*guarding.planner_policy(), *guarding.pod_annotations(), *own_lease, *events)
    return _head("daemonset/guarding.py") + gating.manifest(policies)


def extender_guard() -> str:
    """Return the policies that restrict extenders to their own entries in ledgers and their own Leases."""
    own_leases = guarding.leases("gputopo-scheduler-leases", *guarding.EXTENDERS)
    return _head("daemonset/guarding.py") + gating.manifest(
        (*guarding.extender_ledgers(), *own_leases, *event_guarding.extender_events())
    )


def agent_guard(of: Callable[[], list[dict[str, Any]]]) -> str:
    """Return policies that restrict the agent. Kubernetes 1.30 or newer."""
    return _head("daemonset/agent_guarding.py") + gating.manifest(of())


def copy(source: str) -> str:
    """Return another file of this folder, unchanged."""
    return _head(f"daemonset/{source}") + (HERE / source).read_text(encoding="utf-8")


def prometheus_rule(name: str, source: str, namespace: str = "gputopo") -> str:
    """Return a file of alerts as an object of the Prometheus operator."""
    metadata = {"name": name, "namespace": namespace}
    rule = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": metadata}
    rules = (HERE / source).read_text(encoding="utf-8")
    return (
        _head(f"daemonset/{source}") + yaml.safe_dump(rule, sort_keys=False) + "spec:\n" + textwrap.indent(rules, "  ")
    )


def dashboard(name: str) -> str:
    """Return a dashboard as JSON for Grafana."""
    return to_json(DASHBOARDS[name]())


def pinned(target: str) -> str:
    """Return a file of this folder with the tags and digests of ``images.yaml``, and the version of gputopo."""
    ours = images.Image("gputopo", gputopo.__version__, "")
    text = images.pinned((HERE / target).read_text(encoding="utf-8"), [*_images(), ours])
    return re.sub(r"(?m)^((?:app)?[vV]ersion: |ARG VERSION=)\S+$", rf"\g<1>{gputopo.__version__}", text)


def image_digests() -> str:
    """Return the digests of kube-scheduler by tag, for the chart."""
    return _head("daemonset/images.yaml") + yaml.safe_dump(images.digests_by_tag(_images(), images.KUBE_SCHEDULER))


def _images() -> list[images.Image]:
    return images.load_images(images.IMAGES.read_text(encoding="utf-8"))


def _head(source: str) -> str:
    return f"# Generated from {source}: change that, then run `make docs`.\n"


FILES: dict[str, Callable[[], str]] = {
    "base/crd.yaml": definition,
    "base/admission.yaml": partial(agent_guard, agent_guarding.agent_policies),
    "overlays/nfd/admission.yaml": partial(agent_guard, agent_guarding.node_feature_policy),
    "components/monitoring/prometheus-rule.yaml": partial(prometheus_rule, "gputopo-agent", RULES, "gputopo-agent"),
    # Without a header: the output of `gputopo scheduler-config` in a cluster without MIG devices.
    "scheduler/default/scheduler-config.yaml": partial(render_configuration, ()),
    "scheduler/cluster-scheduler/scheduler-config.yaml": partial(render_configuration, (), Caller.CLUSTER),
    "scheduler/components/monitoring/prometheus-rule.yaml": partial(
        prometheus_rule, "gputopo-scheduler", SCHEDULER_RULES
    ),
    "scheduler/planner-without-gates/crds.yaml": planner_definitions,
    "scheduler/planner-without-gates/admission.yaml": guard,
    "chart/files/planner-admission.yaml": guard,
    "scheduler/extender-role/admission.yaml": extender_guard,
    "chart/files/extender-admission.yaml": extender_guard,
    "scheduler/planner/gating.yaml": partial(gates, gating.gang_policies),
    "scheduler/components/planned-all/gating.yaml": partial(gates, planned_all),
    "scheduler/components/planner-monitoring/prometheus-rule.yaml": partial(
        prometheus_rule, "gputopo-planner", PLANNER_RULES
    ),
    "chart/files/crd.yaml": definition,
    "chart/files/planner-crds.yaml": planner_definitions,
    "chart/files/planner-gating.yaml": partial(gates, gating.gang_policies),
    "chart/files/planned-all-gating.yaml": partial(gates, planned_all),
    "chart/files/admission.yaml": partial(agent_guard, agent_guarding.agent_policies),
    "chart/files/admission-nfd.yaml": partial(agent_guard, agent_guarding.node_feature_policy),
    "chart/files/alerts.yaml": partial(copy, RULES),
    "chart/files/scheduler-alerts.yaml": partial(copy, SCHEDULER_RULES),
    "chart/files/planner-alerts.yaml": partial(copy, PLANNER_RULES),
    **{target: partial(pinned, target) for target in PINNED},
    "chart/files/kube-scheduler-digests.yaml": image_digests,
    "chart/files/scheduler-config.yaml": partial(render_configuration, ()),
    "chart/files/quality-and-cost-config.yaml": partial(render_configuration, (), quality_and_cost=True),
    "chart/files/quality-and-cost-policy.yaml": lambda: QUALITY_AND_COST_POLICY,
    "scheduler/components/quality-and-cost/scheduler-config.yaml": partial(
        render_configuration, (), quality_and_cost=True
    ),
    "scheduler/components/quality-and-cost/policy.yaml": lambda: QUALITY_AND_COST_POLICY,
    **{
        f"{folder}/dashboards/{name}.json": partial(dashboard, name)
        for name in DASHBOARDS
        for folder in ("components", "chart/files")
    },
}


def stale_files(folder: Path = HERE) -> list[str]:
    """Return the names of files that differ from their source."""
    return [
        name
        for name, text in FILES.items()
        if not (folder / name).exists() or (folder / name).read_text(encoding="utf-8") != text()
    ]


def main(check: bool) -> int:
    """Write the stale files, or only list them."""
    names = stale_files()
    for name in names:
        if not check:
            (HERE / name).write_text(FILES[name](), encoding="utf-8")
        print(f"daemonset/{name}: {'stale; run `make docs`' if check else 'written'}")
    return 1 if check and names else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
