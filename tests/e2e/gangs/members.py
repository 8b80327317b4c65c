"""Gangs as users write them: pods with the gate and annotations of gputopo, bare or of a Job."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from gputopo.labels import keys
from gputopo.labels.keys import SCHEDULER_NAME
from tests.api_objects import Object, pod
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.scheduler.running import condition

BATCH = "/apis/batch/v1/namespaces"
TRACKING = "batch.kubernetes.io/job-tracking"  # the finalizer by which the Job controller counts
JOB_NAME = "batch.kubernetes.io/job-name"
GATES = [{"name": keys.GATE}]


class Asked(NamedTuple):
    """The request of each member of a gang."""

    size: int
    gpus: int  # of each member
    wishes: Mapping[str, str] = MappingProxyType({})  # annotations by their part after the slash, or whole keys
    scheduler: str = SCHEDULER_NAME

    def annotations(self, gang: str) -> dict[str, str]:
        """Return the annotations of a member."""
        own = {keys.POD_GANG.key: gang, keys.POD_GANG_SIZE.key: str(self.size)}
        return own | {key if "/" in key else f"gputopo.io/{key}": value for key, value in self.wishes.items()}


def member(gang: str, number: int, asked: Asked, **spec: Any) -> Object:
    """Return one gated bare pod of a gang."""
    fields: dict[str, Any] = {"schedulerName": asked.scheduler, "schedulingGates": GATES}
    made = pod(f"{gang}-{number}", asked.gpus, **(fields | spec))
    made["metadata"]["annotations"] = asked.annotations(gang)
    return made


def gang(name: str, asked: Asked, **spec: Any) -> list[Object]:
    """Return all gated pods of a gang."""
    return [member(name, number, asked, **spec) for number in range(asked.size)]


def job(name: str, asked: Asked, **spec: Any) -> Object:
    """A Job whose pods are a gang. ``spec``: further fields of the Job's."""
    template = member(name, 0, asked, restartPolicy="Never")
    del template["metadata"]["name"]
    described = {"metadata": template["metadata"], "spec": template["spec"]}
    return {
        "metadata": {"name": name},
        "spec": {"completions": asked.size, "parallelism": asked.size, "template": described, **spec},
    }


def create(cluster: Cluster, *pods: Object) -> None:
    """Create pods together."""
    cluster.api.create_all([(cluster.pods(), each) for each in pods])


def create_job(cluster: Cluster, made: Object) -> None:
    """Create a Job in the test's namespace."""
    cluster.api.create(f"{BATCH}/{cluster.namespace}/jobs", made)


def job_status(cluster: Cluster, name: str) -> Object:
    """Return the status of a Job."""
    return dict(cluster.api.get(f"{BATCH}/{cluster.namespace}/jobs/{name}")["status"])


def of_job(cluster: Cluster, name: str) -> list[Object]:
    """The pods of a Job."""
    return cluster.api.items(cluster.pods(), labelSelector=f"{JOB_NAME}={name}")


def of(cluster: Cluster, name: str) -> list[Object]:
    """The pods of a gang, in the order of their names."""
    found = [each for each in cluster.api.items(cluster.pods()) if gang_of(each) == name]
    return sorted(found, key=lambda each: str(each["metadata"]["name"]))


def gang_of(found: Object) -> str | None:
    """Return the gang that a pod names."""
    named: str | None = found["metadata"].get("annotations", {}).get(keys.POD_GANG.key)
    return named


def gated(found: Object) -> bool:
    """Return whether a pod has gputopo's scheduling gate."""
    return any(each["name"] == keys.GATE for each in found["spec"].get("schedulingGates") or ())


def node_of(found: Object) -> str | None:
    """Return the node of a pod."""
    named: str | None = found["spec"].get("nodeName")
    return named


def wait_until_whole(cluster: Cluster, name: str, size: int, timeout_s: float = 60.0) -> list[Object]:
    """Wait until that many pods of a gang are bound; return them."""

    def bound() -> list[Object] | None:
        found = [each for each in of(cluster, name) if node_of(each)]
        return found if len(found) == size else None

    return wait_for(bound, f"{size} pods of {name} to be bound", timeout_s)


def unschedulable(found: Object) -> bool:
    """Return whether kube-scheduler found no node."""
    return condition(found).get("reason") == "Unschedulable"
