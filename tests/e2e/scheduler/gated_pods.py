"""Pods with gputopo's scheduling gate."""

from __future__ import annotations

from gputopo.labels import keys
from tests.api_objects import Object, pod


def gated(name: str, rank: int, size: int) -> Object:
    """A member of a gang that waits for the planner."""
    found = pod(f"{name}-{rank}", 8, schedulingGates=[{"name": keys.GATE}])
    found["metadata"]["annotations"] = {keys.POD_GANG.key: name, keys.POD_GANG_SIZE.key: str(size)}
    return found
