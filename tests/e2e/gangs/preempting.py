"""Policies, priority classes and victims for tests of preemption."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from scheduler_core.policy.models import API_VERSION, KIND
from tests.api_client import Client
from tests.api_objects import Object
from tests.e2e.cluster import Cluster
from tests.e2e.gangs.holds import held
from tests.e2e.gangs.members import node_of
from tests.e2e.gangs.running import GATED
from tests.e2e.scheduler.running import gpu_pod, started

SHIPPED_CLASSES = Path(__file__).parents[3] / "daemonset/scheduler/priority-classes/priority-classes.yaml"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
CRITICAL, TOP = "critical", "top"
MIXED = ("--settle", "1s")  # pods that are not gated land in the pool, too
CHEAP = {"restart-time": "1s"}
COSTLY = {"restart-time": "1h"}
RULE = {"name": "lower-yields", "minRuntime": "0s", "nearEnd": "2h"}


def create_classes(cluster: Cluster) -> None:
    """Create priority classes that never preempt by kube-scheduler."""
    for name, value in ((CRITICAL, 100_000), (TOP, 200_000)):
        cluster.api.create(CLASSES, {"metadata": {"name": name}, "value": value, "preemptionPolicy": "Never"})


def create_shipped_classes(cluster: Cluster) -> None:
    """Create gputopo-critical, gputopo-normal and gputopo-scavenger, which also never preempt by kube-scheduler."""
    for each in yaml.safe_load_all(SHIPPED_CLASSES.read_text(encoding="utf-8")):
        cluster.api.create(CLASSES, each)


def built_in_rules(folder: Path) -> tuple[str, ...]:
    """Return the options of a planner that evicts by the built-in rules, also pods that have just started."""
    return options(folder, rules=None, minRuntime="0s")


def options(folder: Path, mode: str = "evict", pool: tuple[str, ...] = GATED, **keys: Any) -> tuple[str, ...]:
    """Return the options of a planner with this policy. ``keys``: further keys of ``preemption``; None: left out."""
    path = folder / "policy.yaml"
    keys = {"mode": mode, "wait": "1s", "rules": [RULE], **keys}
    preemption = {key: value for key, value in keys.items() if value is not None}
    limits = {"heldGpus": "100%"}  # few nodes
    path.write_text(
        yaml.safe_dump({"apiVersion": API_VERSION, "kind": KIND, "preemption": preemption, "gangs": limits})
    )
    return (*pool, "--patience", "1s", "--policy", str(path))


def on_node(cluster: Cluster, name: str, node: str, wishes: dict[str, str] | None = None, **spec: Any) -> None:
    """Run a pod with all GPUs of a node. The API server deletes pods without a grace period at once."""
    spec = {"nodeSelector": {"kubernetes.io/hostname": node}, "terminationGracePeriodSeconds": 1, **spec}
    made = gpu_pod(name, 8, wishes, **spec)
    made["metadata"]["labels"] = {"app": name}
    cluster.create_pod(made)
    started(cluster, name)


def running_pods(cluster: Cluster) -> set[str]:
    """Return the names of the bound pods that are not terminating."""
    pods = cluster.api.items(cluster.pods())
    return {each["metadata"]["name"] for each in pods if node_of(each) and "deletionTimestamp" not in each["metadata"]}


def preemption_of(cluster: Cluster, name: str) -> Object | None:
    """Return the hold of a gang once a unit has begun."""
    hold = held(cluster, name)
    return hold if hold is not None and hold["status"].get("evicting") else None


@contextmanager
def when_a_pod_terminates(cluster: Cluster, namespace: str, act: Callable[[Client], object]) -> Iterator[None]:
    """Act once, as soon as a pod of the namespace terminates."""
    pods = cluster.pods(namespace=namespace)
    version = cluster.api.get(pods)["metadata"]["resourceVersion"]
    api = cluster.plane.client()
    events = api.watch(pods, version, 300)

    def wait() -> None:
        if any(pod["metadata"].get("deletionTimestamp") for _, pod in events):
            act(api)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    yield
    thread.join(10)
    assert not thread.is_alive()
