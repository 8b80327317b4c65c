"""Clusters as `kubectl get ... -o json` prints them, of any size: GPU nodes with pods, faults and gangs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from random import Random
from typing import Any

import msgspec

from gputopo.cli.source import topology_of
from gputopo.crd.nodegpus import content_hash
from gputopo.crd.reservations import (
    LEDGER_KIND,
    RESERVATION_KIND,
    VERSION,
    EntryPhase,
    HeldCapacity,
    LedgerEntry,
    LedgerSpec,
    Preemption,
    ReservationSpec,
    spec_hash,
)
from gputopo.labels import encode_topology, keys
from gputopo.model import NodeTopology
from tests.api_objects import GPU, Object, container

MACHINES = ("8h100-2n-nvswitch18", "8v100-2n-cubemesh", "8a100-2n-pairs12", "4gb200-2n-fabric18")
FAULTY = "fake-8a100-lost-gpu"
RACK = "cloud.provider.com/topology-rack"
OWNERS = (("llm", "pretrain"), ("llm", "finetune"), ("vision", "train"), ("search", "embed"), ("team-a", "notebook"))


def cluster(nodes: int, *, seed: int = 1, at: float | None = None, per_rack: int = 16, load: float = 0.7) -> Object:
    """A cluster: every object that the pages show."""
    at = time.time() if at is None else at
    items = [
        item
        for number in range(nodes)
        for item in _machine(number, Random(seed * 100_003 + number), at, per_rack, load)
    ]
    return {"apiVersion": "v1", "kind": "List", "items": [*items, *waiting_gang("llm", "next-model", 4, 8, at)]}


def cluster_text(nodes: int, **options: Any) -> bytes:
    """The same as text."""
    return json.dumps(cluster(nodes, **options)).encode()


def gpu_machine(name: str, machine: str, labels: dict[str, str] | None = None) -> tuple[Object, NodeTopology]:
    """A Node with its labels and annotation, as the agent publishes them."""
    own, annotation, topology = _encoded(machine)
    usable = len(topology.usable)
    node: Object = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"node-{name}",
            "labels": {**own, **(labels or {}), "kubernetes.io/hostname": name},
            "annotations": {keys.TOPOLOGY.key: annotation},
        },
        "spec": {},
        "status": {"allocatable": {GPU: str(usable), "cpu": "128", "memory": "1000Gi", "pods": "110"}},
    }
    return node, topology


def node_gpus(name: str, node: Object, allocations: list[Object], at: float) -> Object:
    """The agent's report of a node."""
    annotation = node["metadata"]["annotations"][keys.TOPOLOGY.key]
    return {
        "apiVersion": "gputopo.io/v1alpha1",
        "kind": "NodeGpus",
        "metadata": {"name": name},
        "observedAt": rfc3339(at - 30),
        "contentHash": content_hash(annotation),
        "agentVersion": "0.1.0",
        "allocations": allocations,
    }


def gpu_pod(namespace: str, name: str, gpus: int, node: str | None, at: float, **spec: Any) -> Object:
    """A pod, running if it has a node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"{namespace}-{name}",
            "resourceVersion": "1",
            "creationTimestamp": rfc3339(at - 900),
        },
        "spec": {"containers": [container("main", gpus)], **({} if node is None else {"nodeName": node}), **spec},
        "status": {} if node is None else {"phase": "Running", "startTime": rfc3339(at - 600)},
    }


def allocation(gpu: str, namespace: str, pod: str) -> Object:
    """A GPU that a pod holds."""
    return {"gpu": gpu, "pod": {"namespace": namespace, "name": pod, "container": "main", "uid": f"{namespace}-{pod}"}}


def waiting_gang(namespace: str, name: str, members: int, gpus: int, at: float) -> Iterator[Object]:
    """The pods of a gang that waits for GPUs."""
    for rank in range(members):
        pod = gpu_pod(namespace, f"{name}-{rank}", gpus, None, at, schedulingGates=[{"name": keys.GATE}])
        pod["metadata"]["annotations"] = {
            keys.POD_GANG.key: name,
            keys.POD_GANG_SIZE.key: str(members),
            keys.POD_ISLAND.key: "required",
        }
        yield pod


def rfc3339(at: float) -> str:
    """A time as Kubernetes writes it."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@lru_cache
def _encoded(machine: str) -> tuple[dict[str, str], str, NodeTopology]:
    topology = topology_of(machine)
    facts = encode_topology(topology)
    return dict(facts.labels), facts.annotations[keys.TOPOLOGY.key], topology


def _machine(number: int, random: Random, at: float, per_rack: int, load: float) -> list[Object]:
    rack, name = number // per_rack, f"gpu-{number:04}"
    machine = FAULTY if number % 41 == 17 else MACHINES[rack % len(MACHINES)]
    node, topology = gpu_machine(name, machine, {RACK: f"r{rack + 1:03}"})
    node["spec"] = {"unschedulable": True} if number % 53 == 11 else {}
    free = [gpu.uuid or "" for gpu in topology.usable]
    pods: list[Object] = []
    held: list[Object] = []
    while free and random.random() < load:
        size = min(len(free), random.choice((1, 1, 2, 4, 4, 8)))
        namespace, owner = random.choice(OWNERS)
        pod = gpu_pod(namespace, f"{owner}-{number}-{len(pods)}", size, name, at)
        pods.append(pod)
        held += [allocation(gpu, namespace, pod["metadata"]["name"]) for gpu in free[:size]]
        free = free[size:]
    return [node, *pods, node_gpus(name, node, held, at)]


def capacity_hold(
    namespace: str, gang: str, node: str, gpus: int, preemption: Preemption | None = None
) -> list[Object]:
    """A reservation that keeps GPUs of a node for a gang, and the ledger that lists it."""
    spec = ReservationSpec(gang=gang, held=(HeldCapacity(node=node, resource=GPU, gpus=gpus),), preemption=preemption)
    metadata = {"name": f"{gang}-1", "namespace": namespace, "uid": f"hold-{gang}", "resourceVersion": "1"}
    entry = LedgerEntry(metadata["uid"], namespace, metadata["name"], spec_hash(spec), EntryPhase.HELD)
    version = f"{keys.API_GROUP}/{VERSION}"
    return [
        {"apiVersion": version, "kind": RESERVATION_KIND, "metadata": metadata, "spec": msgspec.to_builtins(spec)},
        {
            "apiVersion": version,
            "kind": LEDGER_KIND,
            "metadata": {"name": "default", "uid": "ledger", "resourceVersion": "1", "generation": 1},
            "spec": msgspec.to_builtins(LedgerSpec(entries=(entry,))),
        },
    ]
