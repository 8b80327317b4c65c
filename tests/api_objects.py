"""Kubernetes objects that tests need, with nothing in them that the test did not ask for."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]  # as the API has it, decoded
GPU = "nvidia.com/gpu"


def pod(name: str, gpus: int = 0, **spec: Any) -> Object:
    """A pod of one container. ``spec`` are further fields of the pod's spec: ``nodeName="gpu-0"``."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container("main", gpus)], "terminationGracePeriodSeconds": 0, **spec},
    }


def container(name: str, gpus: int = 0, resource: str = GPU) -> Object:
    """A container that asks for GPUs by their limit, as pods in the field do."""
    resources = {"limits": {resource: str(gpus)}} if gpus else {}
    return {"name": name, "image": "registry.invalid/train:1", "resources": resources}


def node(name: str, allocatable: dict[str, str], labels: dict[str, str] | None = None) -> Object:
    """A ready node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"} | (labels or {}),
        },
        "status": {
            "capacity": allocatable,
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "simulated"}],
        },
    }


def gpu_node(name: str, gpus: int, labels: dict[str, str] | None = None) -> Object:
    """A ready node with GPUs, and CPU and memory to match."""
    return node(name, {GPU: str(gpus), "cpu": "128", "memory": "1024Gi", "pods": "110"}, labels)
