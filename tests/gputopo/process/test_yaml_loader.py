"""Merge keys are read, and cannot multiply a text."""

from __future__ import annotations

import pytest
import yaml

from gputopo.process.yaml_loader import load_yaml
from scheduler_core.policy.file import PolicyError, parse_policy_file
from scheduler_core.request.manifest import ManifestError, parse_manifest

MULTIPLYING = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 30)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def test_merge_keys_are_read() -> None:
    assert load_yaml("base: &base {x: 1}\nother: {<<: *base, y: 2}")["other"] == {"x": 1, "y": 2}


def test_mappings_that_merge_each_other_are_refused() -> None:
    assert len(MULTIPLYING) < 2_000
    with pytest.raises(yaml.YAMLError, match=r"more than 100000 entries"):
        load_yaml(MULTIPLYING)


def test_also_in_manifests_and_policy_files() -> None:
    with pytest.raises(ManifestError, match="more than 100000 entries"):
        parse_manifest(MULTIPLYING)
    with pytest.raises(PolicyError, match="more than 100000 entries"):
        parse_policy_file(MULTIPLYING, "policy.yaml")
