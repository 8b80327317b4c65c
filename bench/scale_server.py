"""An API server of a generated GPU cluster, for ``bench/scale.py``: ``python bench/scale_server.py NODES``.

Prints its port. As ``bench/watch_server.py``, with the answers that the command line needs: metadata only, selectors,
reservations, heartbeats, and a cluster that fits together. Each node has 8 GPUs, a pod with 4, a pod with 2 and a pod
without GPUs; a waiting pod ``wait-0`` and gated gangs of 4 pods, one for every 100 nodes, are in the namespace "team".
A Node has 10 kB, a Pod 6 kB.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from typing import Any

import msgspec
from watch_server import NODE_BYTES, POD_BYTES, Handler, Object, padded

from gputopo.crd.nodegpus import content_hash
from gputopo.kube.heartbeats import HEARTBEAT_NAMESPACE
from gputopo.labels import encode_topology, keys
from gputopo.timestamps import format_timestamp
from tests.machines import MACHINES

MODELS = ("hgx_h100", "hgx_b200", "dgx1", "dgx_a100")
GANG_SIZE, NODES_PER_GANG = 4, 100
BOUND = {"four": 4, "two": 2, "plain": 0}  # the pods of each node, and their GPUs
CREATED = "2026-11-21T08:00:00Z"
OBSERVED_AT = format_timestamp(time.time() - 600)
NOTHING = msgspec.json.encode({"kind": "Status", "message": "the server could not find the requested resource"})


def _metadata(name: str, **more: Any) -> Object:
    return {"name": name, "uid": f"uid-{name}", "resourceVersion": "5", "creationTimestamp": CREATED, **more}


def _node(model: str) -> Object:
    topology = MACHINES[model]()
    facts = encode_topology(topology)
    kinds = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    conditions = [{"type": each, "status": "False", "lastHeartbeatTime": CREATED, "reason": "x"} for each in kinds]
    images = [{"names": [f"registry.example/team/image-{n}:v1.{n}"], "sizeBytes": 10**8 + n} for n in range(40)]
    allocatable = {"cpu": "192", "memory": "2113Gi", "pods": "110", "nvidia.com/gpu": str(len(topology.gpus))}
    labels = {**facts.labels, **facts.mirrors, "kubernetes.io/hostname": "@name@"}
    metadata = _metadata("@name@", labels=labels, annotations=facts.annotations)
    return {
        "metadata": metadata,
        "spec": {},
        "status": {"allocatable": allocatable, "capacity": allocatable, "conditions": conditions, "images": images},
    }


def _with_own_uuids(text: bytes, model: str) -> bytes:
    for number, gpu in enumerate(MACHINES[model]().gpus):
        assert gpu.uuid is not None
        text = text.replace(gpu.uuid.encode(), b"GPU-@hex@-%d" % number)
    return text


def _without_status(text: bytes) -> bytes:
    return msgspec.json.encode({"metadata": msgspec.json.decode(text)["metadata"]})


NODES = [_with_own_uuids(padded(_node(model), NODE_BYTES), model) for model in MODELS]
NODE_METADATA = [_without_status(text) for text in NODES]
TOPOLOGIES = [msgspec.json.decode(text)["metadata"]["annotations"][keys.TOPOLOGY.key] for text in NODES]


def _pod(name: str, gpus: int, annotations: dict[str, str] | None = None, **spec: Any) -> Object:
    limits = {"cpu": "8", "memory": "64Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    env = [{"name": f"SETTING_{number}", "value": "some value or other"} for number in range(20)]
    container = {"name": "main", "image": "registry.example/train:1", "env": env, "resources": {"limits": limits}}
    labels = {"app": "train", "batch.kubernetes.io/job-completion-index": "@number@"}
    metadata = _metadata(name, namespace="team", labels=labels, annotations=annotations or {})
    return {
        "metadata": metadata,
        "spec": {"containers": [container], "schedulerName": "gputopo-scheduler", **spec},
        "status": {"phase": "Running" if "nodeName" in spec else "Pending"},
    }


def _gang_member() -> Object:
    annotations = {keys.POD_GANG.key: "gang-@gang@", keys.POD_GANG_SIZE.key: str(GANG_SIZE)}
    return _pod("gang-@gang@-@number@", 2, annotations, schedulingGates=[{"name": keys.GATE}])


def _texts(made: Object) -> tuple[bytes, bytes]:
    """Return an object, and the same with its metadata only."""
    text = padded(made, POD_BYTES)
    return text, _without_status(text)


PODS = [
    _texts(_pod(f"{name}-@number@", gpus, {keys.POD_ISLAND.key: "required"} if gpus else {}, nodeName="@node@"))
    for name, gpus in BOUND.items()
]
MEMBER = _texts(_gang_member())
WAITING = _texts(_pod("wait-0", 2, {keys.POD_ISLAND.key: "required"}))


def node(at: int, *, metadata_only: bool) -> bytes:
    """Return a Node."""
    text = (NODE_METADATA if metadata_only else NODES)[at % len(MODELS)]
    return text.replace(b"@name@", b"gpu-node-%05d" % at).replace(b"@hex@", b"%08x" % at)


def bound_pod(at: int, *, metadata_only: bool) -> bytes:
    """Return a running pod."""
    on, kind = divmod(at, len(BOUND))
    return PODS[kind][metadata_only].replace(b"@number@", b"%05d" % on).replace(b"@node@", b"gpu-node-%05d" % on)


def gang_pod(at: int, *, metadata_only: bool) -> bytes:
    """Return a gated member of a gang."""
    gang, number = divmod(at, GANG_SIZE)
    return MEMBER[metadata_only].replace(b"@gang@", b"%04d" % gang).replace(b"@number@", b"%d" % number)


def node_gpus(at: int, *, metadata_only: bool) -> bytes:
    """Return a NodeGpus: the GPUs of the pods ``four`` and ``two`` are allocated."""
    name = f"gpu-node-{at:05}"
    metadata = _metadata(name)
    if metadata_only:
        return msgspec.json.encode({"metadata": metadata})
    held = [
        {
            "gpu": f"GPU-{at:08x}-{gpu}",
            "pod": {"namespace": "team", "name": f"{'four' if gpu < 4 else 'two'}-{at:05}", "container": "main"},
        }
        for gpu in range(6)
    ]
    confirmed = content_hash(TOPOLOGIES[at % len(MODELS)].replace("@hex@", f"{at:08x}"))
    observed = {"observedAt": OBSERVED_AT, "contentHash": confirmed, "agentVersion": "0.1.0"}
    return msgspec.json.encode({"metadata": metadata, **observed, "allocations": held})


def heartbeat(at: int, *, metadata_only: bool) -> bytes:
    """Return the Lease of an agent, which confirms its NodeGpus."""
    metadata = _metadata(f"gpu-node-{at:05}", namespace=HEARTBEAT_NAMESPACE)
    spec = {"holderIdentity": OBSERVED_AT, "renewTime": format_timestamp(time.time())}
    return msgspec.json.encode({"metadata": metadata} | ({} if metadata_only else {"spec": spec}))


class Cluster(Handler):
    """Serves lists."""

    size = 0  # nodes

    def _list(self, kind: str, asked: dict[str, str]) -> None:
        metadata_only = "PartialObject" in self.headers.get("Accept", "")
        unlabelled = f"!{keys.SCHEMA.key}" in asked.get("labelSelector", "")  # no node
        found = (node, 0) if unlabelled else self._objects(kind, asked.get("fieldSelector", ""))
        if found is None:
            self._answer(NOTHING, 404)
            return
        make, count = found
        start = int(asked.get("continue") or 0)
        whole = asked.get("resourceVersion") == "0"  # from the server's cache, which ignores limits
        end = count if whole or "limit" not in asked else min(start + int(asked["limit"]), count)
        following = b"%d" % end if end < count else b""
        head = b'{"kind":"List","metadata":{"resourceVersion":"7","continue":"%s"},"items":[' % following
        self._answer(head + b",".join(make(at, metadata_only=metadata_only) for at in range(start, end)) + b"]}")

    def _objects(self, kind: str, fields: str) -> tuple[Callable[..., bytes], int] | None:
        bound, gated = len(BOUND) * self.size, GANG_SIZE * (self.size // NODES_PER_GANG)
        if kind == "pods" and "metadata.name=" in fields:
            return (lambda _at, *, metadata_only: WAITING[metadata_only]), int(fields.endswith("=wait-0"))
        if kind == "pods" and "status.phase=Running" in fields:
            return bound_pod, bound
        every: dict[str, tuple[Callable[..., bytes], int]] = {
            "nodes": (node, self.size),
            "nodegpus": (node_gpus, self.size),
            "leases": (heartbeat, self.size),
            "pods": (self._pod, bound + gated + 1),
            "placementreservations": (node, 0),
            "placementledgers": (node, 0),
        }
        return every.get(kind)

    def _pod(self, at: int, *, metadata_only: bool) -> bytes:
        bound, gated = len(BOUND) * self.size, GANG_SIZE * (self.size // NODES_PER_GANG)
        if at < bound:
            return bound_pod(at, metadata_only=metadata_only)
        return gang_pod(at - bound, metadata_only=metadata_only) if at < bound + gated else WAITING[metadata_only]


def main() -> None:
    """Serve until killed."""
    Cluster.size = int(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Cluster)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
