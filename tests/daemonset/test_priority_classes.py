"""The priority tiers that come with gputopo."""

from __future__ import annotations

from pathlib import Path

import yaml

from gputopo.labels.workloads import CRITICAL, NORMAL, SCAVENGER

_FILE = Path(__file__).parents[2] / "daemonset/scheduler/priority-classes/priority-classes.yaml"


def test_tiers_are_ordered_and_evict_no_pods() -> None:
    classes = list(yaml.safe_load_all(_FILE.read_text(encoding="utf-8")))
    values = {each["metadata"]["name"]: each["value"] for each in classes}

    assert sorted(values, key=lambda name: values[name]) == [SCAVENGER, NORMAL, CRITICAL]
    assert values[SCAVENGER] < 0 < values[NORMAL]
    assert {each["preemptionPolicy"] for each in classes} == {"Never"}
    assert not any(each["globalDefault"] for each in classes)
