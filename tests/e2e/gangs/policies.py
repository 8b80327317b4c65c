"""Policy files for planners."""

from __future__ import annotations

from pathlib import Path

import yaml

from scheduler_core.policy.models import API_VERSION, KIND


def policy_file(folder: Path, **gangs: object) -> str:
    """Write a policy file with these limits; return its path."""
    path = folder / "policy.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": API_VERSION, "kind": KIND, "gangs": gangs}))
    return str(path)
