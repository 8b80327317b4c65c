"""Nodes for gangs with capacity holds, and these holds."""

from __future__ import annotations

from collections.abc import Mapping

from tests.api_objects import Object
from tests.e2e.cluster import Cluster
from tests.e2e.gangs.running import reserved
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import islands_4_4

LARGE = {"example.com/nodes": "large"}


def nodes(fleet: Fleet, **labels: Mapping[str, str]) -> None:
    """Create nodes with two islands of 4 GPUs and these labels."""
    fleet.add(
        *(NodeSpec(name=name.replace("_", "-"), shape=islands_4_4(), labels=dict(of)) for name, of in labels.items())
    )


def held(cluster: Cluster, gang: str) -> Object | None:
    """Return the capacity hold of a gang once it is the only hold."""
    found = [each for each in reserved(cluster) if each.get("status", {}).get("state") == "Held"]
    return found[0] if [each["spec"]["gang"] for each in found] == [gang] else None
