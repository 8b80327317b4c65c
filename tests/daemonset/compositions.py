"""Manifests composed of kustomize components."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.daemonset.tools import DAEMONSET, Object, run

ALL = ("scheduler.enabled=true", "planner.enabled=true", "observe.enabled=true")


def composed(tmp_path: Path, *components: str) -> list[Object]:
    """Every program below daemonset/scheduler in one kustomization."""
    folders = ("default", "planner", "observe")
    top = DAEMONSET / "scheduler"
    relative = Path(*[".."] * len(tmp_path.resolve().parts[1:])) / str(top.resolve())[1:]
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [str(relative / each) for each in folders],
        "components": [str(relative / "components" / each) for each in components],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(document))
    rendered = run("kubectl", "kustomize", "--load-restrictor=LoadRestrictionsNone", tmp_path)
    return [each for each in yaml.safe_load_all(rendered) if each]
