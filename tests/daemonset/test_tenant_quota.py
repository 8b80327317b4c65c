"""The example quotas of a tenant name every PriorityClass that the manifests create for programs or urgent pods."""

from __future__ import annotations

import yaml

from scheduler_core.policy.preemption import DEFAULT_PREEMPTION
from tests.daemonset.tools import DAEMONSET

_FOR_TENANTS = {"gputopo-normal", "gputopo-scavenger"}
_QUOTA = DAEMONSET / "scheduler/examples/tenant-quota.yaml"


def test_a_tenant_uses_no_priority_class_of_the_programs() -> None:
    """Their classes have a priority of 1,000,000,000 and preempt."""
    files = [file for file in DAEMONSET.rglob("*.yaml") if "chart" not in file.parts]
    texts = [text for file in files if "kind: PriorityClass" in (text := file.read_text(encoding="utf-8"))]
    made = {
        each["metadata"]["name"]
        for text in texts
        for each in yaml.safe_load_all(text)
        if each["kind"] == "PriorityClass"
    }
    (terms,) = (
        each["spec"]["scopeSelector"]["matchExpressions"]
        for each in yaml.safe_load_all(_QUOTA.read_text(encoding="utf-8"))
        if each["metadata"]["name"] == "no-high-priority"
    )

    assert len(made) >= 7
    assert made - _FOR_TENANTS <= set(terms[0]["values"])


def test_every_gang_that_the_quota_lets_through_can_be_evicted() -> None:
    """A unit of more pods than may be evicted in an hour is never evicted."""
    quotas = list(yaml.safe_load_all(_QUOTA.read_text(encoding="utf-8")))
    (gpus,) = (each["spec"]["hard"] for each in quotas if each["metadata"]["name"] == "gpus")

    assert int(gpus["pods"]) <= DEFAULT_PREEMPTION.max_evictions_per_hour
