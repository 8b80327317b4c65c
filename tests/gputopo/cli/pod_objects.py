"""Pods of a small cluster, and an API server that has them."""

from __future__ import annotations

from gputopo.kube.rbac import NODE_GPUS, NODES, PODS
from tests.api_server import Answer, Asked
from tests.gputopo.cli.cluster_objects import NODE, STATE, listed, pod

PENDING = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 too few free healthy GPUs"}
THERE = [
    pod("train", 3, node="gpu-0", phase="Running", startTime="2026-11-18T11:00:00Z"),
    pod("waits", 2, phase="Pending", conditions=[PENDING]),
    pod("web", 0, node="gpu-0", phase="Running"),
    pod("odd", 2, annotations={"gputopo.io/island": "yes"}),
    pod("done", 1, node="gpu-0", phase="Failed"),
]


def cluster(asked: Asked) -> Answer:
    """One node, on which three of four GPUs are taken."""
    fields = asked.query.get("fieldSelector", "")
    if asked.path == PODS.path(namespace="a"):
        return listed(*(each for each in THERE if fields == f"metadata.name={each['metadata']['name']}"))
    running = [each for each in THERE if each["status"].get("phase") != "Failed"]
    answers = {NODES.path(): listed(NODE), NODE_GPUS.path(): listed(STATE), PODS.path(): listed(*running)}
    return answers.get(asked.path, listed())
