"""Recorded traffic of a kube-scheduler."""

from __future__ import annotations

from pathlib import Path

from scheduler_core.request.pod import Container, ContainerResources, Metadata, Pod, PodSpec, PodStatus

TRAFFIC = Path(__file__).parents[4] / "shared" / "extender-traffic"
RECORDED = sorted(TRAFFIC.glob("*.json"))
# As kube-scheduler 1.36 writes it, with fewer fields.
POD = {
    "metadata": {"name": "a1", "namespace": "default", "uid": "54e2072e", "creationTimestamp": "2026-11-21T03:24:36Z"},
    "spec": {
        "containers": [{"name": "c", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": "2"}}}],
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute", "tolerationSeconds": 300}],
        "schedulerName": "gputopo-scheduler",
    },
    "status": {"phase": "Pending", "qosClass": "Burstable"},
}
READ = Pod(
    Metadata("a1", "default", "54e2072e"),
    PodSpec(
        (Container("c", ContainerResources({"nvidia.com/gpu": "2"}), image="train:1"),),
        scheduler_name="gputopo-scheduler",
    ),
    PodStatus("Pending"),
)
