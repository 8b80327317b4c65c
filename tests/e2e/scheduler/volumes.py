"""Volumes that are bound late: a StorageClass of local volumes, and the controller that completes what is begun.

kube-scheduler binds such a volume in PreBind, after it has chosen the node, and waits there for the controller. While
none runs, a pod stays between Filter and bind for as long as a test wants.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.api_objects import Object
from tests.e2e import servers
from tests.e2e.cluster import Cluster, wait_for

CLASS = "late"
CONTROLLERS = ("persistentvolume-binder-controller",)


def offer(cluster: Cluster, node: str) -> None:
    """A volume on that node, and a claim ``data`` that waits for its first consumer."""
    storage = "/apis/storage.k8s.io/v1/storageclasses"
    late = {
        "metadata": {"name": CLASS},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    cluster.api.create(storage, late)
    here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": CLASS,
        "local": {"path": "/data"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [here]}},
    }
    name = f"{CLASS}-{node}"
    cluster.api.create("/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": spec})
    # The controller, which is not here yet, would have said so.
    cluster.api.patch(f"/api/v1/persistentvolumes/{name}/status", {"status": {"phase": "Available"}})
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": CLASS,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    cluster.api.create(f"/api/v1/namespaces/{cluster.namespace}/persistentvolumeclaims", claim)


def using(wanted: Object) -> Object:
    """Return the pod with a volume of the claim."""
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    return wanted | {"spec": wanted["spec"] | {"volumes": [volume]}}


def wait_for_pre_bind(cluster: Cluster, node: str) -> None:
    """Wait until kube-scheduler has reserved the volume, and waits for the controller."""
    path = f"/api/v1/persistentvolumes/{CLASS}-{node}"
    wait_for(lambda: "claimRef" in cluster.api.get(path)["spec"], "the volume to be reserved")


@contextmanager
def completed(cluster: Cluster) -> Iterator[None]:
    """Within, a controller completes what kube-scheduler has begun."""
    with servers.controller_manager(cluster.plane, CONTROLLERS):
        yield
